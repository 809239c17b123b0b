"""Studies of SDQ small enough to be run by messages, one for each way of answering; and what must hold after any run of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from machine_runs import Logging, Saving, answers_by_peer, spent
from sdq_trees import parted, random_table, schema_of
from shoal.entropy import Entropy, SeededEntropy
from shoal.privacy.events import Event
from shoal.privacy.ledger import SPENT
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    MemoryLedger,
    Outcome,
    run_local,
)
from shoal.protocols.sdq.aggregator import Mined, SDQAggregator
from shoal.protocols.sdq.messages import MESSAGES
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.queries import Condition, Count, Free, Histogram, Marginals, free_price
from shoal.protocols.sdq.script import Round, Script
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.sdq_machines import machines

ARITIES = (3, 2, 2)
SCHEMA = schema_of(ARITIES, 2)
N = 5
answers_sent = partial(answers_by_peer, MESSAGES)

_SHARED = Params(SCHEMA, 6.0, 300, n_databases=N, minimum=4, max_colluders=1, depth=2)
STUDIES: dict[str, Params] = {
    "paper": replace(_SHARED, variant="paper"),
    "local": replace(_SHARED, variant="paper", trust="local", max_colluders=0),
    "selected": replace(_SHARED, variant="paper", noise="two-selected", minimum=N),
    "plus": _SHARED,
    "sums": replace(_SHARED, choice="sums"),
    "bayes": replace(_SHARED, learner="naive-bayes"),
}
FREE = Free(("a0", "kind"), 2, 0.5)
QUERIES = (Marginals(features=("a0", "kind")), Count(where=(Condition(feature="kind", cells=(1,)),)))
TOO_MUCH = Histogram(features=("a1",))
"""A count of a feature that may not be counted."""


def pooled(n: int = 300, seed: int = 1, n_databases: int = N) -> Table:
    return random_table(ARITIES, 2, n, seed, n_databases)


def tables(n: int = 300, seed: int = 1, n_databases: int = N) -> list[Table]:
    return list(parted(pooled(n, seed, n_databases)))


def make(name: str, **options: Any) -> tuple[SDQAggregator, dict[str, SDQPeer]]:
    """Everyone, honest, in one of the studies."""
    params = replace(STUDIES[name], **options.pop("changes", {}))
    return machines(script_of(params), options.pop("tables", None) or tables(n_databases=params.n_databases), **options)


class Bare(SDQPeer):
    """Adds no noise; the price is that of the study with some."""

    def prices(self) -> Mapping[str, Event]:
        params = replace(self.params, epsilon=1.0)
        queries = {f"query/{number}": free_price(params, self.free) for number in range(self.free.n_queries)} if self.free else {}
        return {**_largest(self.script, params), **queries}

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:
        return np.concatenate([part.count(table) for part in asked.parts])


def _largest(script: Script, params: Params) -> dict[str, Event]:
    """Prices for whatever a study without noise may ask, which goes deeper than one with some."""
    prices = dict(type(script)(params).prices)  # type: ignore[call-arg]
    (event, *_) = prices.values()
    more = [f"choice/{i}" for i in range(params.depth)] + ["tables", "table"]
    return dict.fromkeys(more, event) | prices


class Saved(Saving, SDQPeer): ...


class SavedAggregator(Saving, SDQAggregator): ...


class Logged(Logging, SDQPeer): ...


class LoggedAggregator(Logging, SDQAggregator): ...


@cache
def logged(name: str) -> tuple[LoggedAggregator, dict[str, Logged], Mined]:
    """An honest run of a study with free counts: the machines, with all that they were given, and what was learned."""
    aggregator, peers = make(name, free=FREE, queries=QUERIES, peer=Logged, aggregator=LoggedAggregator)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not (outcome.failed or outcome.aborted or outcome.rejected)
    for machine in (aggregator, *peers.values()):
        machine.is_logging = False  # type: ignore[attr-defined]
    return aggregator, peers, outcome.results[AGGREGATOR]  # type: ignore[return-value]


def check(peers: Mapping[str, SDQPeer], outcome: Outcome, ledgers: Mapping[str, MemoryLedger]) -> None:
    """Raise AssertionError unless a run kept every promise, whatever failed on the way."""
    assert not outcome.failed, outcome.failed
    study = next(iter(peers.values())).study
    left = answers_sent(outcome, study)
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    for name, ledger in ledgers.items():
        peer = peers[name]
        begun = {question for (_, question), entry in ledger.entries.items() if entry.state in SPENT}
        assert {question for sender, question in left if sender == name} <= begun, "what left is spent"
        assert spent(ledger) == sum(grains_up(peer.price(question).epsilon) for question in begun), "and nothing else is"
        of_queries = grains_up(peer.free.epsilon_release) * peer.free.n_queries if peer.free else 0
        most = math.inf if peer.params.is_bare else grains_up(peer.params.epsilon)
        assert spent(ledger) <= most + of_queries, "never more than the study says"


def check_complete(peers: Mapping[str, SDQPeer], outcome: Outcome, ledgers: Mapping[str, MemoryLedger]) -> Mined:
    """Also that the study came to its end, with everyone, each of whom has spent exactly the price of what was asked."""
    check(peers, outcome, ledgers)
    assert not outcome.aborted and not outcome.rejected, (outcome.aborted, outcome.rejected)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, Mined)
    n_rounds = len(mined.answers) + len(mined.counted)
    assert mined.n_answering == (len(peers),) * n_rounds
    for name, ledger in ledgers.items():
        assert outcome.results[name] == n_rounds == len(ledger.entries)
    return mined
