"""Plain ID3 with exact arithmetic, a plain loop through a script, and small studies of SDQ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.privacy.events import Event
from shoal.privacy.ledger.state import SPENT_STATES
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    MemoryLedger,
    ProtocolOutcome,
    run_local,
)
from shoal.protocols.sdq.aggregator import SDQAggregator, SDQResult
from shoal.protocols.sdq.messages import MESSAGES
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.queries import (
    CountQuery,
    HistogramQuery,
    MarginalsQuery,
    QueryCondition,
    QueryRules,
    price_query,
)
from shoal.protocols.sdq.script import Answers, SDQRound, SDQScript, SDQScriptState
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.machines import make_sdq_machines
from tests.support.machines import Logging, Saving, answers_by_peer, spent

PLAY = ";".join(
    [
        "Sunny Hot High Weak No",
        "Sunny Hot High Strong No",
        "Overcast Hot High Weak Yes",
        "Rain Mild High Weak Yes",
        "Rain Cool Normal Weak Yes",
        "Rain Cool Normal Strong No",
        "Overcast Cool Normal Strong Yes",
        "Sunny Mild High Weak No",
        "Sunny Cool Normal Weak Yes",
        "Rain Mild Normal Weak Yes",
        "Sunny Mild Normal Strong Yes",
        "Overcast Mild High Strong Yes",
        "Overcast Hot Normal Weak Yes",
        "Rain Mild High Strong No",
    ]
)
"""The table of the paper's Figure 1."""
WEATHER = Schema(
    [
        Categorical("outlook", ["Overcast", "Rain", "Sunny"], missing=False),
        Categorical("temperature", ["Cool", "Mild", "Hot"], missing=False),
        Categorical("humidity", ["High", "Normal"], missing=False),
        Categorical("wind", ["Strong", "Weak"], missing=False),
    ],
    label=Categorical("play", ["No", "Yes"]),
)


def weather(params: SDQParams) -> CellTable:
    """Return the rows of Figure 1."""
    days = np.array([day.split() for day in PLAY.split(";")], object)
    columns = {name: days[:, i] for i, name in enumerate([*WEATHER.names, "play"])}
    return CellTable.from_columns(params, WEATHER.encode(columns), WEATHER.encode_label(columns))


def make_schema(arities: Sequence[int], n_classes: int) -> Schema:
    """Return attributes with given numbers of cells."""
    features = [
        Categorical(f"a{j}", [str(i) for i in range(n)], missing=False)
        if n > 1
        else Numeric(f"a{j}", 0, 1, bins=[], missing=False)
        for j, n in enumerate(arities)
    ]
    return Schema(features, label=Categorical("kind", [f"c{i}" for i in range(n_classes)]))


def random_table(
    arities: Sequence[int], n_classes: int, n: int, seed: int, n_databases: int = 1
) -> CellTable:
    """Return rows whose label depends on the attributes."""
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(0, arity, n) for arity in arities], axis=1)
    labels = np.where(
        rng.random(n) < 0.7,
        cells[:, : 1 + len(arities) // 2].sum(axis=1) % n_classes,
        rng.integers(0, n_classes, n),
    )
    return CellTable(cells, labels.astype(np.int64), rng.integers(0, n_databases, n))


def parted(table: CellTable) -> Iterator[CellTable]:
    """Return the table of each database."""
    assert table.owners is not None
    for one in np.unique(table.owners):
        yield CellTable(table.cells[table.owners == one], table.labels[table.owners == one])


def summed(asked: SDQRound, databases: Sequence[CellTable]) -> Ints:
    """Return the sums of a round, without noise."""
    return np.sum(
        [np.concatenate([part.count(table) for part in asked.parts]) for table in databases], axis=0
    )


def run(script: SDQScript, answer: Callable[[SDQRound], Ints]) -> tuple[SDQScriptState, Answers]:
    """Run every round of a script with given answers."""
    course, answers = SDQScriptState(), ()
    while (asked := script.make_round(course)) is not None:
        answers = (*answers, answer(asked))
        course = script.advance(course, answers)
    return course, answers


class CentralID3:
    """Recursive ID3 on all rows in one place, by information gain; ties go to the first."""

    def __init__(
        self, table: CellTable, arities: Sequence[int], n_classes: int, depth: int
    ) -> None:
        self.arities, self.n_classes = arities, n_classes
        rows = list(zip(table.cells.tolist(), table.labels.tolist(), strict=True))
        self.root = self._learn(rows, list(range(len(arities))), depth, 0)

    def _learn(
        self, rows: list[tuple[list[int], int]], left: list[int], depth: int, inherited: int
    ) -> tuple[int, list] | int:  # type: ignore[type-arg]
        if not rows:
            return inherited
        counts = [sum(label == c for _, label in rows) for c in range(self.n_classes)]
        label = counts.index(max(counts))
        if max(counts) == len(rows) or not left or not depth:
            return label
        best = max(left, key=lambda j: (self._gain(rows, j), -j))
        rest = [j for j in left if j != best]
        return best, [
            self._learn([row for row in rows if row[0][best] == cell], rest, depth - 1, label)
            for cell in range(self.arities[best])
        ]

    def _gain(self, rows: list[tuple[list[int], int]], j: int) -> Fraction:
        """The exponential of what is left of the gain without the entropy before the split: a
        fraction, so that ties are ties.
        """
        gain = Fraction(1)
        for cell in range(self.arities[j]):
            labels = [label for cells, label in rows if cells[j] == cell]
            counts = [labels.count(c) for c in range(self.n_classes)]
            gain *= Fraction(prod(n**n for n in counts), len(labels) ** len(labels))
        return gain

    def predict(self, cells: Sequence[int]) -> int:
        node = self.root
        while not isinstance(node, int):
            node = node[1][cells[node[0]]]
        return node


ARITIES = (3, 2, 2)
SCHEMA = make_schema(ARITIES, 2)
N = 5
answers_sent = partial(answers_by_peer, MESSAGES)

_SHARED = SDQParams(SCHEMA, 6.0, 300, n_databases=N, minimum=4, max_colluders=1, depth=2)
STUDIES: dict[str, SDQParams] = {
    "paper": replace(_SHARED, variant="paper"),
    "local": replace(_SHARED, variant="paper", trust="local", max_colluders=0),
    "selected": replace(_SHARED, variant="paper", noise="two-selected", minimum=N),
    "plus": _SHARED,
    "sums": replace(_SHARED, choice="sums"),
    "bayes": replace(_SHARED, learner="naive-bayes"),
}
FREE = QueryRules(("a0", "kind"), 2, 0.5)
QUERIES = (
    MarginalsQuery(features=("a0", "kind")),
    CountQuery(where=(QueryCondition(feature="kind", cells=(1,)),)),
)
TOO_MUCH = HistogramQuery(features=("a1",))
"""A count of a feature that may not be counted."""


def pooled(n: int = 300, seed: int = 1, n_databases: int = N) -> CellTable:
    return random_table(ARITIES, 2, n, seed, n_databases)


def tables(n: int = 300, seed: int = 1, n_databases: int = N) -> list[CellTable]:
    return list(parted(pooled(n, seed, n_databases)))


def make(
    name: str,
    *,
    phase_timeout: timedelta = timedelta(minutes=1),
    aggregator: type[SDQAggregator] = SDQAggregator,
    **options: Any,
) -> tuple[SDQAggregator, dict[str, SDQPeer]]:
    """Return the miner and the honest databases of one of the studies."""
    params = replace(STUDIES[name], **options.pop("changes", {}))

    def make_aggregator(script: Any, terms: Any, _: timedelta, *rest: Any) -> SDQAggregator:
        return aggregator(script, terms, phase_timeout, *rest)

    return make_sdq_machines(
        make_sdq_script(params),
        options.pop("tables", None) or tables(n_databases=params.n_databases),
        aggregator=make_aggregator,  # type: ignore[arg-type]
        **options,
    )


class Bare(SDQPeer):
    """Answers without noise, at the price of answers with noise."""

    def compute_prices(self) -> Mapping[str, Event]:
        params = replace(self.params, epsilon=1.0)
        queries = (
            {
                f"query/{number}": price_query(params, self.query_rules)
                for number in range(self.query_rules.n_queries)
            }
            if self.query_rules
            else {}
        )
        return {**_largest(self.script, params), **queries}

    def draw_noisy_answer(
        self, asked: SDQRound, table: CellTable, role: int | None, entropy: Entropy
    ) -> Ints:
        return np.concatenate([part.count(table) for part in asked.parts])


def _largest(script: SDQScript, params: SDQParams) -> dict[str, Event]:
    """Return prices for all questions of a study without noise, which grows deeper."""
    prices = dict(type(script)(params).prices)  # type: ignore[call-arg]
    (event, *_) = prices.values()
    more = [f"choice/{i}" for i in range(params.depth)] + ["tables", "table"]
    return dict.fromkeys(more, event) | prices


class Saved(Saving, SDQPeer): ...


class SavedAggregator(Saving, SDQAggregator): ...


class Logged(Logging, SDQPeer): ...


class LoggedAggregator(Logging, SDQAggregator): ...


@cache
def logged(name: str) -> tuple[LoggedAggregator, dict[str, Logged], SDQResult]:
    """Run an honest study with free counts; return its machines, their inputs and the result."""
    aggregator, peers = make(
        name, free=FREE, queries=QUERIES, peer=Logged, aggregator=LoggedAggregator
    )
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not (outcome.failed or outcome.aborted or outcome.rejected)
    for machine in (aggregator, *peers.values()):
        machine.is_logging = False  # type: ignore[attr-defined]
    return aggregator, peers, outcome.results[AGGREGATOR]  # type: ignore[return-value]


def check(
    peers: Mapping[str, SDQPeer], outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]
) -> None:
    """Raise AssertionError unless a run kept every promise, even after faults."""
    assert not outcome.failed, outcome.failed
    study = next(iter(peers.values())).study
    left = answers_sent(outcome, study)
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    for name, ledger in ledgers.items():
        peer = peers[name]
        begun = {
            question
            for (_, question), entry in ledger.entries.items()
            if entry.state in SPENT_STATES
        }
        assert {question for sender, question in left if sender == name} <= begun, (
            "what left is spent"
        )
        assert spent(ledger) == sum(
            grains_up(peer.price(question).epsilon) for question in begun
        ), "and nothing else is"
        of_queries = (
            grains_up(peer.query_rules.epsilon_release) * peer.query_rules.n_queries
            if peer.query_rules
            else 0
        )
        most = math.inf if peer.params.is_noiseless else grains_up(peer.params.epsilon)
        assert spent(ledger) <= most + of_queries, "never more than the study says"


def check_complete(
    peers: Mapping[str, SDQPeer], outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]
) -> SDQResult:
    """Check in addition that the study ended with all databases, and each spent its price."""
    check(peers, outcome, ledgers)
    assert not outcome.aborted and not outcome.rejected, (outcome.aborted, outcome.rejected)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, SDQResult)
    n_rounds = len(mined.answers) + len(mined.query_tables)
    assert mined.n_answering == (len(peers),) * n_rounds
    for name, ledger in ledgers.items():
        assert outcome.results[name] == n_rounds == len(ledger.entries)
    return mined
