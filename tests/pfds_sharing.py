"""Studies of PFDS's variant paper small enough to be run by messages; and what must hold after any run of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from machine_runs import Logging, Saving
from pfds_cases import check
from pfds_trees import SCHEMA, params_of, random_points
from shoal.domain import Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.base import AGGREGATOR, MemoryLedger, Outcome, run_local
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.paper import Points, questions
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.sharing import PublishedTrees
from shoal.protocols.pfds.sharing_aggregator import SharingAggregator
from shoal.protocols.pfds.sharing_peer import SharingPeer
from shoal.protocols.pfds.tree import PrivateTree
from shoal.sim.pfds_machines import paper_machines

N, READERS = 4, 2
NAMES = tuple(f"peer-{i}" for i in range(N))

_SHARED = params_of(n_holders=N, minimum=3)
STUDIES: dict[str, Params] = {
    "classes": _SHARED,
    "number": replace(_SHARED, schema=Schema(SCHEMA.features, label=Numeric("cost", -5, 15)), n_buckets=4),
    "own": replace(_SHARED, labelling="own"),
    "unprojected": replace(_SHARED, projection=False),
    "flat": replace(_SHARED, max_depth=1),
}


def points_of(params: Params, seed: int = 1) -> list[Points]:
    """The rows of each holder; the last has none."""
    return [random_points(params, n, seed + i) for i, n in enumerate((40, 25, 10, 0))]


def make(name: str, **options: Any) -> tuple[SharingAggregator, dict[str, Any]]:
    """Everyone, honest, in one of the studies, and two that only read."""
    params = replace(STUDIES[name], **options.pop("changes", {}))
    return paper_machines(params, options.pop("points", None) or points_of(params), n_readers=options.pop("n_readers", READERS), **options)


class Saved(Saving, SharingPeer): ...


class SavedAggregator(Saving, SharingAggregator): ...


class Logged(Logging, SharingPeer): ...


class LoggedAggregator(Logging, SharingAggregator): ...


@cache
def logged(name: str) -> tuple[LoggedAggregator, dict[str, Any], PublishedTrees]:
    """An honest run of a study: the machines, with all that they were given, and what was shared."""
    aggregator, peers = make(name, peer=Logged, aggregator=LoggedAggregator)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not (outcome.failed or outcome.aborted or outcome.rejected)
    assert isinstance(aggregator, LoggedAggregator)
    for machine in (aggregator, *(peers[holder] for holder in NAMES)):
        machine.is_logging = False
    return aggregator, peers, outcome.results[AGGREGATOR]  # type: ignore[return-value]


def same_tree(one: PrivateTree, other: PrivateTree) -> bool:
    levels = zip(one.levels, other.levels, strict=True)
    same = all(np.array_equal(a.attributes, b.attributes) and np.array_equal(a.splits, b.splits) for a, b in levels)
    return same and np.array_equal(one.labels, other.labels)


def same_rows(one: Dataset, other: Dataset) -> bool:
    return np.array_equal(one.labels, other.labels) and all(np.array_equal(one.columns[name], other.columns[name]) for name in one.columns)


def same_release(one: PublishedTrees, other: PublishedTrees) -> bool:
    """Whether two have come to the same, of the same holders in the same order."""
    assert list(one.trees) == list(other.trees) and list(one.datasets) == list(other.datasets) and one.left_out == other.left_out
    trees = all(same_tree(one.trees[name], other.trees[name]) for name in one.trees)
    return trees and all(same_rows(one.datasets[name], other.datasets[name]) for name in one.datasets)


def check_published(params: Params, outcome: Outcome) -> PublishedTrees | None:
    """Raise AssertionError unless all who have a result have the same one."""
    found = [result for result in outcome.results.values() if isinstance(result, PublishedTrees)]
    assert len(found) == len(outcome.results)
    for result in found:
        assert same_release(result, found[0]) and params.minimum <= len(result.trees) <= params.n_holders
        assert set(result.datasets) <= set(result.trees)
        assert {left.holder for left in result.left_out} == set(NAMES) - set(result.datasets)
    return found[0] if found else None


def check_complete(peers: Mapping[str, Any], outcome: Outcome, ledgers: Mapping[str, MemoryLedger]) -> PublishedTrees:
    """Also that the study came to its end with everyone, each sharer having spent exactly the price of all its questions."""
    check(peers, outcome, ledgers)
    assert not outcome.aborted and not outcome.rejected, (outcome.aborted, outcome.rejected)
    params = peers["peer-0"].params
    published = check_published(params, outcome)
    assert published is not None and len(outcome.results) == 1 + len(peers)
    assert tuple(published.trees) == tuple(published.datasets) == NAMES and published.left_out == ()
    for name in NAMES:
        assert [question for _, question in ledgers[name].entries] == list(questions(params))
    return published
