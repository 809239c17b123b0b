"""How ``shoal simulate`` shows what is learned: its kind, its noise, and the tree itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.names import counted

_SPLITS = {"mpc": ", splits chosen jointly", "sums": ", splits chosen by sums alone", None: ""}


def model_lines(result: Mapping[str, Any]) -> list[str]:
    """What kind of model a study learns, and by which steps; nothing for anonml, which chooses by itself."""
    points = result["points"]
    if result["protocol"] == "ddml":
        return [f"model     {_weights(points)}", f"traffic   {_traffic(result)}"]
    if result["protocol"] == "pfds":
        return [f"model     {_release(points)}", f"at home   {_gain(points, result['repeats'])}"]
    return [f"model     {_learner(points)}"] if result["protocol"] == "sdq" else []


def per_cent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.0f} %"


def tree_lines(point: Mapping[str, Any]) -> list[str]:
    """The tree of a point, under a line that says what it is."""
    lines = point.get("tree", "").splitlines()
    return ["tree      of the first run, its upper levels; --out writes all of it", *(f"  {line}" for line in lines), ""] if lines else []


def _weights(points: Sequence[Mapping[str, Any]]) -> str:
    """The instances of ddml and the noise of an update."""
    first = points[0]
    weights = counted(first["weights"], "weight")
    if len(points) > 1:
        return f"{weights}; noise as below"
    noise = "no noise" if first["mechanism"] is None else f"noise by {first['mechanism']}"
    kept = f"in {counted(first['n_instances'], 'instance')} ({first['merge']})"
    return f"{weights} {kept}; learning rate {first['learning_rate']:.4g}, clip {first['clip']:.4g}, {noise}"


def _traffic(result: Mapping[str, Any]) -> str:
    order = "in random order" if result["order"] == "shuffled" else "in the order of the table"
    return f"devices come {order}, with {counted(result['in_flight'], 'other update')} under way"


def _learner(points: Sequence[Mapping[str, Any]]) -> str:
    """What is learned from sums, how splits are chosen, and who adds the noise."""
    kinds = sorted({_kind(point) for point in points})
    noises = sorted({_noise(point) for point in points})
    return " or ".join(kinds) + (f"; {noises[0]}" if len(noises) == 1 else "")


def _release(points: Sequence[Mapping[str, Any]]) -> str:
    """What is learned from the release alone."""
    return " or ".join(sorted({_released(point) for point in points}))


def _released(point: Mapping[str, Any]) -> str:
    if point["variant"] == "paper":
        by = "all trees" if point["labelling"] == "shared" else "the tree that they come from"
        how = "" if point["projection"] else ", counts as they are"
        return f"a regression on rows made up by private trees of {point['depth']} levels{how}, and labelled by {by}"
    n_all, n_there = point["n_holders"], point["people"]
    holders = counted(n_all, "holder") if n_there == n_all else f"{n_there} of {counted(n_all, 'holder')}"
    if point["trust"] == "local":
        noise = "without noise" if point["noise"] is None else "with all of the noise"
        return f"the pooled tables of {holders}, each of {counted(point['n_tables'], 'attribute')} {noise}"
    noise = "no noise" if point["noise"] is None else f"a share of the noise from each, made for {point['n_honest']} honest ones"
    return f"sums over {holders}; {noise}"


def _gain(points: Sequence[Mapping[str, Any]], repeats: int) -> str:
    """How many holders are better off with the release, by what measure, and among how many; of a sweep what its column says."""
    told, n_all = [point["at_home"] for point in points], max(point["n_holders"] for point in points)
    fewest, most = min(one["n_holders"] for one in told), max(one["n_holders"] for one in told)
    tried = counted(most, "holder") if fewest == most else f"{fewest} to {counted(most, 'holder')}"
    drawn = f" drawn from {n_all}" if most < n_all else ""
    better = "predict more accurately" if "accuracy" in told[0]["home"] else "have a smaller RMSE"
    than = f"{better} with the release than with their own rows alone (over {counted(repeats, 'run')}; a tie is no gain)"
    if len(points) > 1:
        return f"gain is the share of {tried}{drawn} that {than}"
    return f"{per_cent(told[0]['gain']['value'])} of {tried}{drawn} {than}"


def _kind(point: Mapping[str, Any]) -> str:
    return "naive Bayes" if point["depth"] is None else f"a tree of depth {point['depth']} at most{_SPLITS[point['choice']]}"


def _noise(point: Mapping[str, Any]) -> str:
    if point["noise"] is None:
        return "no noise"
    if point["noise"] == "two-selected":
        return "noise by two selected databases"
    n, n_honest = point["n_databases"], point["n_honest"]
    return (
        "all of the noise from each database"
        if n_honest == 1
        else f"a share of the noise from each of {n}, made for {n_honest} honest ones"
    )
