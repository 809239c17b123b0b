"""Plain trees and small studies of PFDS's variant paper, rows for them, and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.base import AGGREGATOR, MemoryLedger, ProtocolOutcome, run_local
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.paper.aggregator import PaperAggregator, PFDSPaperResult
from shoal.protocols.pfds.paper.peer import PaperPeer
from shoal.protocols.pfds.paper.script import TreeRows, list_questions
from shoal.protocols.pfds.paper.tree import Levels, PrivateTree, SplitLevel
from shoal.protocols.pfds.params import Floats, PFDSParams
from shoal.simulation.machines import make_pfds_paper_machines
from tests.support.machines import Logging, Saving
from tests.support.pfds import check

SCHEMA = Schema(
    [
        Numeric("age", 0, 100, missing=False),
        Categorical("ward", ["a", "b", "c"], missing=False),
        Categorical(
            "city",
            ["Oslo", "Bergen", "Rome", "Milan"],
            groups={"north": ["Oslo", "Bergen"], "south": ["Rome", "Milan"]},
        ),
        Numeric("weight", 2, 6, missing=False),
    ],
    label=Categorical("ill", ["no", "yes"]),
)
"""Splits have 2, 3, 3 and 2 children."""


def make_params(schema: Schema = SCHEMA, epsilon: float = 1.0, **changes: Any) -> PFDSParams:
    """Return parameters of variant paper, four levels deep."""
    return PFDSParams(
        schema,
        epsilon,
        **{
            "size": 200,
            "n_holders": 3,
            "max_depth": 4,
            "n_levels": 3,
            "variant": "paper",
            **changes,
        },
    )


def make_level(*splits: tuple[int, float]) -> SplitLevel:
    """Return a level from its nodes' attributes and split values."""
    return SplitLevel(
        np.array([a for a, _ in splits], np.int16), np.array([float(value) for _, value in splits])
    )


def random_points(params: PFDSParams, n: int, seed: int) -> TreeRows:
    """Return rows in which the outcome depends on the first attribute."""
    rng = np.random.default_rng(seed)
    values = [
        rng.uniform(one.low, one.high, n)
        if isinstance(one, Numeric)
        else rng.integers(0, one.n_bins, n).astype(float)
        for one in params.schema.features
    ]
    rank = np.argsort(np.argsort(values[0])) * params.n_outcomes // max(n, 1)
    return TreeRows(
        np.stack(values, axis=1),
        np.where(rng.random(n) < 0.8, rank, rng.integers(0, params.n_outcomes, n)),
    )


def count_children(params: PFDSParams, attribute: int) -> int:
    """Return the number of children of a split."""
    feature = params.schema.features[attribute]
    return 2 if isinstance(feature, Numeric) else feature.n_bins


def plain_path(params: PFDSParams, levels: Levels, row: Floats) -> list[int]:
    """Return the node of each level on the path of a row, found by counting children."""
    path = [0]
    for level in levels:
        node = path[-1]
        attribute = int(level.attributes[node])
        is_number = isinstance(params.schema.features[attribute], Numeric)
        edge = int(row[attribute] >= level.splits[node]) if is_number else int(row[attribute])
        path.append(sum(count_children(params, int(a)) for a in level.attributes[:node]) + edge)
    return path


N, READERS = 4, 2
NAMES = tuple(f"peer-{i}" for i in range(N))

_SHARED = make_params(n_holders=N, minimum=3)
STUDIES: dict[str, PFDSParams] = {
    "classes": _SHARED,
    "number": replace(
        _SHARED, schema=Schema(SCHEMA.features, label=Numeric("cost", -5, 15)), n_buckets=4
    ),
    "own": replace(_SHARED, labelling="own"),
    "unprojected": replace(_SHARED, projection=False),
    "flat": replace(_SHARED, max_depth=1),
}


def make_points(params: PFDSParams, seed: int = 1) -> list[TreeRows]:
    """Return the rows of each holder; the last has none."""
    return [random_points(params, n, seed + i) for i, n in enumerate((40, 25, 10, 0))]


def make(name: str, **options: Any) -> tuple[PaperAggregator, dict[str, Any]]:
    """Return honest holders of one of the studies, and two readers."""
    params = replace(STUDIES[name], **options.pop("changes", {}))
    return make_pfds_paper_machines(
        params,
        options.pop("points", None) or make_points(params),
        n_readers=options.pop("n_readers", READERS),
        **options,
    )


class Saved(Saving, PaperPeer): ...


class SavedAggregator(Saving, PaperAggregator): ...


class Logged(Logging, PaperPeer): ...


class LoggedAggregator(Logging, PaperAggregator): ...


@cache
def logged(name: str) -> tuple[LoggedAggregator, dict[str, Any], PFDSPaperResult]:
    """Run an honest study; return its machines with their inputs, and the shared pieces."""
    aggregator, peers = make(name, peer=Logged, aggregator=LoggedAggregator)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not (outcome.failed or outcome.aborted or outcome.rejected)
    assert isinstance(aggregator, LoggedAggregator)
    for machine in (aggregator, *(peers[holder] for holder in NAMES)):
        machine.is_logging = False
    return aggregator, peers, outcome.results[AGGREGATOR]  # type: ignore[return-value]


def same_tree(one: PrivateTree, other: PrivateTree) -> bool:
    levels = zip(one.levels, other.levels, strict=True)
    same = all(
        np.array_equal(a.attributes, b.attributes) and np.array_equal(a.splits, b.splits)
        for a, b in levels
    )
    return same and np.array_equal(one.labels, other.labels)


def same_rows(one: Dataset, other: Dataset) -> bool:
    return np.array_equal(one.labels, other.labels) and all(
        np.array_equal(one.columns[name], other.columns[name]) for name in one.columns
    )


def same_release(one: PFDSPaperResult, other: PFDSPaperResult) -> bool:
    """Return whether two releases are equal, with the same holders in the same order."""
    assert (
        list(one.trees) == list(other.trees)
        and list(one.datasets) == list(other.datasets)
        and one.left_out == other.left_out
    )
    trees = all(same_tree(one.trees[name], other.trees[name]) for name in one.trees)
    return trees and all(
        same_rows(one.datasets[name], other.datasets[name]) for name in one.datasets
    )


def check_published(params: PFDSParams, outcome: ProtocolOutcome) -> PFDSPaperResult | None:
    """Raise AssertionError unless all results are equal."""
    found = [result for result in outcome.results.values() if isinstance(result, PFDSPaperResult)]
    assert len(found) == len(outcome.results)
    for result in found:
        assert (
            same_release(result, found[0])
            and params.minimum <= len(result.trees) <= params.n_holders
        )
        assert set(result.datasets) <= set(result.trees)
        assert {left.holder for left in result.left_out} == set(NAMES) - set(result.datasets)
    return found[0] if found else None


def check_complete(
    peers: Mapping[str, Any], outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]
) -> PFDSPaperResult:
    """Check in addition that the study ended with all holders and that each spent its price."""
    check(peers, outcome, ledgers)
    assert not outcome.aborted and not outcome.rejected, (outcome.aborted, outcome.rejected)
    params = peers["peer-0"].params
    published = check_published(params, outcome)
    assert published is not None and len(outcome.results) == 1 + len(peers)
    assert tuple(published.trees) == tuple(published.datasets) == NAMES and published.left_out == ()
    for name in NAMES:
        assert [question for _, question in ledgers[name].entries] == list(list_questions(params))
    return published
