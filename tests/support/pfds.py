"""Small studies of PFDS's variant plus, rows whose label depends on the features, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.privacy.events import Event
from shoal.privacy.ledger.state import SPENT_STATES
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    Aggregator,
    MemoryLedger,
    Peer,
    ProtocolOutcome,
    run_local,
)
from shoal.protocols.pfds import tables
from shoal.protocols.pfds.aggregator import LocalAggregator, PFDSResult, SecureSumAggregator
from shoal.protocols.pfds.messages import MESSAGES, PFDSScriptState
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.peer import LocalPeer, SecureSumPeer
from shoal.protocols.pfds.personal_model import PersonalModel
from shoal.protocols.pfds.script import Answers, SecureSumScript
from shoal.simulation.machines import make_pfds_machines
from tests.support.machines import Logging, Saving, answers_by_peer, spent

TWO, THREE, NUMBER = (
    Categorical("y", ["0", "1"]),
    Categorical("y", ["0", "1", "2"]),
    Numeric("y", 0, 8),
)
LABELS = {"two": TWO, "three": THREE, "number": NUMBER}
ARITIES = (2, 3, 5, 4, 2)


def make_params(
    label: Feature = TWO, epsilon: float = 1.0, size: int = 4000, **figures: Any
) -> PFDSParams:
    features = [
        Categorical(f"a{j}", [str(i) for i in range(arity)], missing=False)
        for j, arity in enumerate(ARITIES)
    ]
    return PFDSParams(
        Schema(features, label),
        epsilon,
        size,
        **{"n_holders": 8, "minimum": 8, "trust": "secure-sum", **figures},
    )


def make_rows(params: PFDSParams, n: int = 4000, seed: int = 1) -> PFDSRows:
    """Return rows in which three features predict the label, two of them almost equal."""
    generator = np.random.default_rng(seed)
    cells = np.stack([generator.integers(0, arity, n) for arity in params.arities], axis=1)
    cells[:, 4] = np.where(generator.random(n) < 0.9, cells[:, 0], cells[:, 4])
    score = (
        1.5 * (2 * cells[:, 0] - 1) + 0.5 * (cells[:, 2] - 2.0) + 0.5 * (cells[:, 4] - 0.5) - 0.7
    )
    labels: Any = (generator.random(n) < 1 / (1 + np.exp(-score))).astype(np.int64)
    if params.is_number:
        labels = np.clip(4 + score + generator.normal(0, 0.5, n), 0, 8)
    elif params.n_sides > 2:
        labels = np.where(generator.random(n) < 0.7, cells[:, 1], generator.integers(0, 3, n))
    return PFDSRows.from_columns(
        params,
        {f"a{j}": cells[:, j] for j in range(len(ARITIES))},
        labels,
        generator.integers(0, params.n_holders, n),
    )


def parted(params: PFDSParams, rows: PFDSRows) -> list[PFDSRows]:
    """Return the rows of each holder."""
    return [rows.take(rows.owners == holder) for holder in range(params.n_holders)]


def followed(script: SecureSumScript, rows: PFDSRows) -> Iterator[tuple[PFDSScriptState, Ints]]:
    """Return each script state of a study without noise, and the counts of its rows."""
    course, answers = script.initial_state, Answers()
    while script.find_question(course):
        counted = script.count(course, rows)
        yield course, counted
        answers = (*answers, counted)
        course = script.advance(course, answers)
    yield course, np.zeros(0, np.int64)


N = 5
answers_sent = partial(answers_by_peer, MESSAGES)

_SUMS: dict[str, Any] = {"n_holders": N, "minimum": 4, "max_colluders": 1, "epsilon": 3.0}
STUDIES: dict[str, PFDSParams] = {
    "local": make_params(TWO, trust="local", n_holders=N, minimum=4, epsilon=3.0),
    "sums": make_params(TWO, **_SUMS),
    "gaussian": make_params(TWO, **{**_SUMS, "epsilon": 1.0}, delta=1e-6),
    "number": make_params(NUMBER, **_SUMS),
    "three": make_params(THREE, **_SUMS),
}
SUMMED = tuple(name for name in STUDIES if name != "local")


def pooled_rows(params: PFDSParams, n: int = 300, seed: int = 1) -> PFDSRows:
    return make_rows(params, n, seed)


def make(name: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return honest holders of one of the studies, and two readers: with rows and without."""
    params = replace(STUDIES[name], **options.pop("changes", {}))
    rows = options.pop("rows", None) or parted(params, pooled_rows(params))
    readers = options.pop("readers", (pooled_rows(params, 40, 7), None))
    return make_pfds_machines(params, rows, readers=readers, **options)


def list_questions(params: PFDSParams) -> tuple[str, ...]:
    return (tables.TABLES,) if params.trust == "local" else SecureSumScript(params).questions


def sharers(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("peer-")]


class SavedTables(Saving, LocalPeer): ...


class SavedTablesAggregator(Saving, LocalAggregator): ...


class SavedSums(Saving, SecureSumPeer): ...


class SavedSumsAggregator(Saving, SecureSumAggregator): ...


class LoggedTables(Logging, LocalPeer): ...


class LoggedTablesAggregator(Logging, LocalAggregator): ...


class LoggedSums(Logging, SecureSumPeer): ...


class LoggedSumsAggregator(Logging, SecureSumAggregator): ...


class BareTables(LocalPeer):
    """Tables without noise, at the price of tables with noise."""

    def compute_prices(self) -> Mapping[str, Event]:
        return {tables.TABLES: tables.price_tables(replace(self.params, epsilon=1.0))}


class BareSums(SecureSumPeer):
    """Sums without noise, at the price of sums with noise."""

    def compute_prices(self) -> Mapping[str, Event]:
        return dict.fromkeys(
            self.script.questions,
            SecureSumScript(replace(self.params, epsilon=1.0)).prices[tables.TABLES],
        )

    def draw_noisy_answer(self, course: PFDSScriptState, rows: PFDSRows, entropy: Entropy) -> Ints:
        return self.script.count(course, rows)


def saved(name: str) -> dict[str, Any]:
    """Return machines that crash before every step."""
    if name == "local":
        return {"peer": SavedTables, "aggregator": SavedTablesAggregator}
    return {"peer": SavedSums, "aggregator": SavedSumsAggregator}


@cache
def logged(name: str) -> tuple[Any, dict[str, Any], PFDSResult]:
    """Run an honest study; return its machines with their inputs, and the result."""
    kinds = (
        (LoggedTables, LoggedTablesAggregator)
        if name == "local"
        else (LoggedSums, LoggedSumsAggregator)
    )
    aggregator, peers = make(name, peer=kinds[0], aggregator=kinds[1], readers=())
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not (outcome.failed or outcome.aborted or outcome.rejected)
    for machine in (aggregator, *peers.values()):
        machine.is_logging = False
    return aggregator, peers, outcome.results[AGGREGATOR]  # type: ignore[return-value]


def cost(peer: Peer[Any], questions: Iterable[str]) -> int:
    """Return the plain sum of prices, in grains of epsilon."""
    return sum(grains_up(peer.price(question).epsilon) for question in questions)


def same_model(one: PooledModel, other: PooledModel) -> bool:
    return all(
        np.array_equal(getattr(one, part), getattr(other, part))
        for part in ("weights", "intercepts", "variances", "shares")
    )


def check(
    peers: Mapping[str, Any], outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]
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
        assert spent(ledger) == cost(peer, begun), "and nothing else is"
        assert peer.params.delta or spent(ledger) <= grains_up(peer.params.epsilon), (
            "never more than the study says"
        )
        if not name.startswith("peer-"):
            assert not ledger.entries, "who only reads spends nothing"


def check_complete(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Any],
    outcome: ProtocolOutcome,
    ledgers: Mapping[str, Any],
) -> PFDSResult:
    """Check in addition that the study ended with all holders and that each spent its price."""
    check(peers, outcome, ledgers)
    assert not outcome.aborted and not outcome.rejected, (outcome.aborted, outcome.rejected)
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult) and published.left_out == ()
    questions, names = list_questions(aggregator.params), sharers(peers)  # type: ignore[attr-defined]
    assert published.n_answering == (len(names),) * len(questions)
    for name, ledger in ledgers.items():
        assert len(ledger.entries) == (len(questions) if name in names else 0)
        assert isinstance(
            outcome.results[name], PooledModel if peers[name]._rows is None else PersonalModel
        )
    return published
