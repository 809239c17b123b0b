"""Studies of PFDS's variant plus small enough to be run by messages; and what must hold after any run of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from machine_runs import Logging, Saving, answers_by_peer, spent
from pfds_sums import NUMBER, THREE, TWO, params_of, parted, rows_of
from shoal.entropy import Entropy, SeededEntropy
from shoal.privacy.events import Event
from shoal.privacy.ledger import SPENT
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    Aggregator,
    MemoryLedger,
    Outcome,
    Peer,
    run_local,
)
from shoal.protocols.pfds import local
from shoal.protocols.pfds.home import Home
from shoal.protocols.pfds.messages import MESSAGES
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Ints, Params, Rows
from shoal.protocols.pfds.publishing import Published
from shoal.protocols.pfds.summing_aggregator import SummingAggregator
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.sums import Course, SumScript
from shoal.protocols.pfds.tables_aggregator import TablesAggregator
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.sim.pfds_machines import machines

N = 5
answers_sent = partial(answers_by_peer, MESSAGES)

_SUMS: dict[str, Any] = {"n_holders": N, "minimum": 4, "max_colluders": 1, "epsilon": 3.0}
STUDIES: dict[str, Params] = {
    "local": params_of(TWO, trust="local", n_holders=N, minimum=4, epsilon=3.0),
    "sums": params_of(TWO, **_SUMS),
    "gaussian": params_of(TWO, **{**_SUMS, "epsilon": 1.0}, delta=1e-6),
    "number": params_of(NUMBER, **_SUMS),
    "three": params_of(THREE, **_SUMS),
}
SUMMED = tuple(name for name in STUDIES if name != "local")


def pooled_rows(params: Params, n: int = 300, seed: int = 1) -> Rows:
    return rows_of(params, n, seed)


def make(name: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Everyone, honest, in one of the studies, and two that only read: one with rows and one without."""
    params = replace(STUDIES[name], **options.pop("changes", {}))
    rows = options.pop("rows", None) or parted(params, pooled_rows(params))
    readers = options.pop("readers", (pooled_rows(params, 40, 7), None))
    return machines(params, rows, readers=readers, **options)


def questions_of(params: Params) -> tuple[str, ...]:
    return (local.TABLES,) if params.trust == "local" else SumScript(params).questions


def sharers(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("peer-")]


class SavedTables(Saving, TablesPeer): ...


class SavedTablesAggregator(Saving, TablesAggregator): ...


class SavedSums(Saving, SummingPeer): ...


class SavedSumsAggregator(Saving, SummingAggregator): ...


class LoggedTables(Logging, TablesPeer): ...


class LoggedTablesAggregator(Logging, TablesAggregator): ...


class LoggedSums(Logging, SummingPeer): ...


class LoggedSumsAggregator(Logging, SummingAggregator): ...


class BareTables(TablesPeer):
    """Adds no noise; the price is that of the study with some."""

    def prices(self) -> Mapping[str, Event]:
        return {local.TABLES: local.price(replace(self.params, epsilon=1.0))}


class BareSums(SummingPeer):
    """Adds no noise; the price is that of the tables of a study with some."""

    def prices(self) -> Mapping[str, Event]:
        return dict.fromkeys(self.script.questions, SumScript(replace(self.params, epsilon=1.0)).prices[local.TABLES])

    def noisy(self, course: Course, rows: Rows, entropy: Entropy) -> Ints:
        return self.script.count(course, rows)


def saved(name: str) -> dict[str, Any]:
    """Machines that go down before every step."""
    if name == "local":
        return {"peer": SavedTables, "aggregator": SavedTablesAggregator}
    return {"peer": SavedSums, "aggregator": SavedSumsAggregator}


@cache
def logged(name: str) -> tuple[Any, dict[str, Any], Published]:
    """An honest run of a study: the machines, with all that they were given, and what was learned."""
    kinds = (LoggedTables, LoggedTablesAggregator) if name == "local" else (LoggedSums, LoggedSumsAggregator)
    aggregator, peers = make(name, peer=kinds[0], aggregator=kinds[1], readers=())
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not (outcome.failed or outcome.aborted or outcome.rejected)
    for machine in (aggregator, *peers.values()):
        machine.is_logging = False
    return aggregator, peers, outcome.results[AGGREGATOR]  # type: ignore[return-value]


def cost(peer: Peer[Any], questions: Iterable[str]) -> int:
    """The plain sum of prices, in grains of epsilon."""
    return sum(grains_up(peer.price(question).epsilon) for question in questions)


def same_model(one: Model, other: Model) -> bool:
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("weights", "intercepts", "variances", "shares"))


def check(peers: Mapping[str, Any], outcome: Outcome, ledgers: Mapping[str, MemoryLedger]) -> None:
    """Raise AssertionError unless a run kept every promise, whatever failed on the way."""
    assert not outcome.failed, outcome.failed
    study = next(iter(peers.values())).study
    left = answers_sent(outcome, study)
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    for name, ledger in ledgers.items():
        peer = peers[name]
        begun = {question for (_, question), entry in ledger.entries.items() if entry.state in SPENT}
        assert {question for sender, question in left if sender == name} <= begun, "what left is spent"
        assert spent(ledger) == cost(peer, begun), "and nothing else is"
        assert peer.params.delta or spent(ledger) <= grains_up(peer.params.epsilon), "never more than the study says"
        if not name.startswith("peer-"):
            assert not ledger.entries, "who only reads spends nothing"


def check_complete(aggregator: Aggregator[Any], peers: Mapping[str, Any], outcome: Outcome, ledgers: Mapping[str, Any]) -> Published:
    """Also that the study came to its end, with everyone, each of whom has spent exactly the price of what was asked."""
    check(peers, outcome, ledgers)
    assert not outcome.aborted and not outcome.rejected, (outcome.aborted, outcome.rejected)
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, Published) and published.left_out == ()
    questions, names = questions_of(aggregator.params), sharers(peers)  # type: ignore[attr-defined]
    assert published.n_answering == (len(names),) * len(questions)
    for name, ledger in ledgers.items():
        assert len(ledger.entries) == (len(questions) if name in names else 0)
        assert isinstance(outcome.results[name], Model if peers[name]._rows is None else Home)
    return published
