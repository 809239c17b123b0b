"""PFDS in the output of ``shoal simulate``: release, personal models, release files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cli.simulate.protocol import ProtocolView, format_percent
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.params import PFDSParams
from shoal.releases.artifact import write_signed_release
from shoal.releases.content import PFDSRelease, compute_noisy_row_count
from shoal.simulation.pfds import simulate_release
from shoal.simulation.run import RunTask, Split
from shoal.study.manifest import Manifest
from shoal.study.spec import Study
from shoal.text import format_count


def format_model_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines about the release and the personal models."""
    points = result["points"]
    return [
        f"model     {_describe_releases(points)}",
        f"personal  {_describe_gain(points, result['repeats'])}",
    ]


def _describe_releases(points: Sequence[Mapping[str, Any]]) -> str:
    """Return what is learned from the release alone."""
    return " or ".join(sorted({_describe_release(point) for point in points}))


def _describe_release(point: Mapping[str, Any]) -> str:
    if point["variant"] == "paper":
        by = "all trees" if point["labelling"] == "shared" else "the tree that they come from"
        how = "" if point["projection"] else ", without projection of counts"
        return (
            f"a regression on synthetic rows from private trees of {point['depth']} levels{how}, "
            f"and labelled by {by}"
        )
    n_all, n_there = point["n_holders"], point["people"]
    holders = (
        format_count(n_all, "holder")
        if n_there == n_all
        else f"{n_there} of {format_count(n_all, 'holder')}"
    )
    if point["trust"] == "local":
        noise = "without noise" if point["noise"] is None else "with all of the noise"
        return (
            f"the pooled tables of {holders}, each of "
            f"{format_count(point['n_tables'], 'attribute')} {noise}"
        )
    noise = (
        "no noise"
        if point["noise"] is None
        else f"a share of the noise from each, enough if {point['n_honest']} are honest"
    )
    return f"sums over {holders}; {noise}"


def _describe_gain(points: Sequence[Mapping[str, Any]], repeats: int) -> str:
    """Return the share of holders that gain from the release; for a sweep, explain its column."""
    told, n_all = (
        [point["at_home"] for point in points],
        max(point["n_holders"] for point in points),
    )
    minimum, maximum = (
        min(gain["n_holders"] for gain in told),
        max(gain["n_holders"] for gain in told),
    )
    tried = (
        format_count(maximum, "holder")
        if minimum == maximum
        else f"{minimum} to {format_count(maximum, 'holder')}"
    )
    drawn = f" drawn from {n_all}" if maximum < n_all else ""
    better = "predict more accurately" if "accuracy" in told[0]["home"] else "have a smaller RMSE"
    than = (
        f"{better} with the release than with their own rows alone (over "
        f"{format_count(repeats, 'run')}; a tie is not a gain)"
    )
    if len(points) > 1:
        return f"gain is the share of {tried}{drawn} that {than}"
    return f"{format_percent(told[0]['gain']['value'])} of {tried}{drawn} {than}"


def write_releases(directory: Path, study: Study, task: RunTask, split: Split) -> None:
    """Write the release of a run into an existing directory.

    The release of the pool is called ``release``; those of holders ``release-0`` and so on. The run
    is simulated again, with the same result, because outcomes do not contain rows. Anyone who knows
    the seed can sign as these holders.
    """
    params, shared, manifest = task.params, simulate_release(task, split), Manifest(study)
    assert isinstance(params, PFDSParams)
    is_pool = params.variant == "plus"
    model = shared.model if is_pool else None
    counted = (
        compute_noisy_row_count(params, shared.answers, len(shared.sharers)) if is_pool else None
    )
    for holder, dataset in zip(
        shared.sharers, shared.draw_released_rows(params, task), strict=not is_pool
    ):
        release = PFDSRelease(
            manifest, dataset, is_simulated=True, model=model, noisy_count=counted
        )
        identity = Identity.from_seed(
            SeededEntropy(task.seed).spawn("simulated holder", holder).bytes(32)
        )
        name = "release" if is_pool else f"release-{holder}"
        write_signed_release(
            directory / name, release, f"simulated holder {holder}", identity, is_inferred=False
        )


VIEW = ProtocolView("pfds", format_model_lines, write_releases=write_releases)
