"""Studies of DDML small enough to be run by messages, one for each kind of step and link; and what must hold after any run of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from machine_runs import spent
from shoal.domain import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.messages.base import Array
from shoal.messages.codec import decode
from shoal.privacy.ledger import SPENT
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Finish,
    Input,
    MemoryLedger,
    Outbound,
    Outcome,
    Sent,
    Started,
    Tick,
    open_hosts,
)
from shoal.protocols.ddml.aggregator import DDMLAggregator, Keeping
from shoal.protocols.ddml.messages import ID_BYTES, MESSAGES, Instance, Update
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.ddml.step import price

STUDY = bytes(range(32))

FEATURES = (
    Numeric("age", 0, 10),
    Numeric("height", -5, 5, bins=[0], missing=False),
    Categorical("town", ["x", "y", "z"], missing=False),
)
ILL = Categorical("ill", ["no", "yes"], missing=False)
TWO = Schema(FEATURES, label=ILL)
THREE = Schema(FEATURES, label=Categorical("kind", ["a", "b", "c"], missing=False))
NUMBER = Schema(FEATURES, label=Numeric("cost", 100, 300, missing=False))
WORDS = Schema(FEATURES[:1], label=ILL, texts=[Text("query", buckets=16, ngrams=1)])

STUDIES: dict[str, Params] = {
    "closest": Params(TWO, 8.0, 500, n_instances=5, n_updates=2),
    "laplace": Params(TWO, 20.0, 500, variant="paper", merge="discard", averaging=False, n_instances=5, n_updates=2),
    "gaussian": Params(WORDS, 60.0, 500, delta=1e-2, n_instances=4, crosses=(("age", "query"),)),
    "weight": Params(TWO, 4.0, 500, unit="weight", n_instances=3, n_updates=3, batch_size=2),
    "classes": Params(THREE, 12.0, 500, link="multinomial", n_instances=5, crosses=(("age", "town"),)),
    "number": Params(NUMBER, 12.0, 500, link="identity", n_instances=1),
    "rate": Params(NUMBER, 12.0, 500, variant="paper", link="log", merge="discard"),
    "words": Params(WORDS, 12.0, 500, n_instances=5, crosses=(("age", "query"),)),
    "decay": Params(TWO, 16.0, 500, variant="paper", decay="sqrt", n_instances=5, n_updates=2),
}

Columns = dict[str, npt.NDArray[Any]]


def people(schema: Schema, n: int, seed: int = 0) -> tuple[Columns, npt.NDArray[Any]]:
    """Encoded rows in which every feature leans with the label, and some values are missing where they may be."""
    rng = np.random.default_rng(seed)
    label = schema.label
    lean = rng.random(n)
    labels: npt.NDArray[Any]
    if isinstance(label, Categorical):
        labels = np.minimum((lean * len(label.values)).astype(np.int64), len(label.values) - 1)
    else:
        assert label is not None
        labels = label.low + (label.high - label.low) * lean
    columns: Columns = {}
    for feature in schema.features:
        share = np.clip(lean + rng.normal(0, 0.1, n), 0, 1)
        if isinstance(feature, Numeric):
            column = feature.low + (feature.high - feature.low) * share
            columns[feature.name] = np.where(rng.random(n) < 0.1 * feature.missing, np.nan, column)
        else:
            columns[feature.name] = np.minimum((share * len(feature.values)).astype(np.int64), len(feature.values) - 1)
    for text in schema.texts:
        column = np.empty(n, object)
        for i in range(n):
            column[i] = np.unique(rng.integers(0, text.buckets // 2, 3) + (text.buckets // 2) * (lean[i] > 0.5))
        columns[text.name] = column
    return columns, labels


def rows(columns: Columns, labels: npt.NDArray[Any], first: int, n: int) -> tuple[Columns, npt.NDArray[Any]]:
    return {name: column[first : first + n] for name, column in columns.items()}, labels[first : first + n]


def make(
    params: Params, n: int, seed: int = 0, kind: type[DDMLPeer] = DDMLPeer, n_rows: int = 1, **options: Any
) -> tuple[DDMLAggregator, dict[str, DDMLPeer]]:
    """Everyone, honest; a device has ``n_rows`` rows. The study stays open until its time is up."""
    columns, labels = people(params.schema, n * n_rows, seed)
    peers = {f"peer-{i}": kind(STUDY, params, *rows(columns, labels, i * n_rows, n_rows)) for i in range(n)}
    return DDMLAggregator(STUDY, params, **{"patience": timedelta(days=1), "n_expected": 1 << 60, **options}), peers


def in_turn(aggregator: DDMLAggregator, peers: Mapping[str, DDMLPeer], entropy: SeededEntropy) -> Outcome:
    """One device after another, each on instances that all before it have improved; in `run_local` all draw before anyone answers."""
    hosts, outcome = open_hosts(aggregator, peers, entropy, None), Outcome()
    for started in hosts:
        inbox: deque[tuple[str, Input | Sent]] = deque([(started, Started())])
        while inbox:
            name, given = inbox.popleft()
            host = hosts[name]
            handled = host.handle(given, START, outcome)
            host.accept(handled)
            for item in handled.work:
                match item:
                    case Outbound():
                        sent = host.send(item, START, outcome)
                        assert isinstance(sent, Sent)
                        outcome.sent.append(sent)
                        inbox.append((sent.to, sent))
                        host.acknowledged(sent.question)
                    case Finish() | Abort():
                        outcome.note(name, item)
    handled = hosts[AGGREGATOR].handle(Tick(), START + aggregator.patience, outcome)
    for ending in handled.work:
        assert isinstance(ending, Finish | Abort)
        outcome.note(AGGREGATOR, ending)
    outcome.states = {name: host.state for name, host in hosts.items()} | {AGGREGATOR: handled.state}
    return outcome


def some_weights(params: Params, seed: int = 0, size: int = 1000) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(-size, size + 1, params.n_weights, np.int32)


def an_id(i: int) -> bytes:
    return SeededEntropy("ids").spawn(i).bytes(ID_BYTES)


def an_instance(params: Params, draw: bytes, epoch: int = 0, seed: int = 0) -> Instance:
    return Instance(study=STUDY, draw=draw, epoch=epoch, weights=Array.of(some_weights(params, seed)))


def an_update(params: Params, i: int = 0, epoch: int = 0, weights: npt.NDArray[np.int32] | None = None) -> Update:
    return Update(study=STUDY, id=an_id(i), epoch=epoch, weights=Array.of(some_weights(params, i) if weights is None else weights))


def updates_sent(outcome: Outcome) -> dict[tuple[str, str], dict[bytes, Update]]:
    """Every update that left: peer and question -> the different bytes that left for it."""
    left: dict[tuple[str, str], dict[bytes, Update]] = {}
    for sent in outcome.sent:
        if sent.question is not None:
            message = decode(sent.payload, MESSAGES, STUDY)
            assert isinstance(message, Update)
            left.setdefault((sent.sender, sent.question), {})[sent.payload] = message
    return left


def taken(state: Keeping) -> int:
    """Updates that reached the aggregator."""
    return state.n_merged + sum(dict(state.refused).values())


def price_of(params: Params) -> int:
    event = price(params)
    assert event is not None
    return grains_up(event.epsilon)


def check(params: Params, outcome: Outcome, ledgers: Mapping[str, MemoryLedger]) -> None:
    """Raise AssertionError unless an honest run kept every promise, whatever failed on the way."""
    left = updates_sent(outcome)
    state = outcome.states[AGGREGATOR]
    assert not outcome.rejected, "honest machines reject nothing of each other"
    assert not outcome.aborted
    assert not outcome.failed
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    ids = [update.id for payloads in left.values() for update in payloads.values()]
    assert len(set(ids)) == len(ids), "every update has an id of its own"
    assert taken(state) <= len(left), "an update is taken once"
    n_acknowledged = 0
    for name, ledger in ledgers.items():
        states = {question: entry.state for (_, question), entry in ledger.entries.items()}
        assert set(states) <= {f"update/{number}" for number in range(params.n_updates)}
        begun = {question for question, at in states.items() if at in SPENT}
        assert {question for sender, question in left if sender == name} <= begun, "what left is spent"
        assert spent(ledger) == len(begun) * price_of(params), "the ledger's total is the study's price of each"
        n_acknowledged += sum(at is State.SENT for at in states.values())
    assert n_acknowledged <= taken(state), "what is acknowledged is not lost"
    instances = state.matrix()
    assert instances.shape == (params.n_instances, params.n_weights), "instances are whole models"


def check_complete(params: Params, outcome: Outcome, ledgers: Mapping[str, MemoryLedger]) -> None:
    """Also that everything arrived: every device sent all its updates, spent exactly that, and each was taken."""
    check(params, outcome, ledgers)
    assert taken(outcome.states[AGGREGATOR]) == len(updates_sent(outcome)) == len(ledgers) * params.n_updates
    for name, ledger in ledgers.items():
        assert len(ledger.entries) == params.n_updates
        assert all(entry.state is State.SENT for entry in ledger.entries.values())
        assert outcome.results[name] == params.n_updates
