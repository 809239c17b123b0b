"""Small studies of DDML for message runs, one for each kind of step and link, and checks.

Also studies for tests of its HTTP service, messages of honest devices, and a real server in a
separate thread.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.clock import ManualClock, to_milliseconds
from shoal.coordinator.ddml.fast_path import DDMLFastPath
from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.coordinator.ddml.studies import EPOCH_BYTES, DDMLStudies
from shoal.coordinator.store.base import Store, StudyRecord
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.messages.base import Array
from shoal.messages.codec import decode
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Finish,
    Input,
    MemoryLedger,
    OutgoingMessage,
    ProtocolOutcome,
    SentMessage,
    Started,
    Tick,
    open_hosts,
)
from shoal.protocols.ddml.aggregator import DDMLAggregator, DDMLAggregatorState
from shoal.protocols.ddml.messages import ID_BYTES, MESSAGES, DDMLInstance, DDMLUpdate
from shoal.protocols.ddml.noisy_step import price_update
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.transport.api import study_route
from shoal.transport.requests import ErrorMiddleware, not_found_error
from tests.support.machines import spent

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

STUDIES: dict[str, DDMLParams] = {
    "closest": DDMLParams(TWO, 8.0, 500, n_instances=5, n_updates=2),
    "laplace": DDMLParams(
        TWO,
        20.0,
        500,
        variant="paper",
        merge="discard",
        averaging=False,
        n_instances=5,
        n_updates=2,
    ),
    "gaussian": DDMLParams(
        WORDS, 60.0, 500, delta=1e-2, n_instances=4, crosses=(("age", "query"),)
    ),
    "weight": DDMLParams(TWO, 4.0, 500, unit="weight", n_instances=3, n_updates=3, batch_size=2),
    "classes": DDMLParams(
        THREE, 12.0, 500, link="multinomial", n_instances=5, crosses=(("age", "town"),)
    ),
    "number": DDMLParams(NUMBER, 12.0, 500, link="identity", n_instances=1),
    "rate": DDMLParams(NUMBER, 12.0, 500, variant="paper", link="log", merge="discard"),
    "words": DDMLParams(WORDS, 12.0, 500, n_instances=5, crosses=(("age", "query"),)),
    "decay": DDMLParams(TWO, 16.0, 500, variant="paper", decay="sqrt", n_instances=5, n_updates=2),
}

Columns = dict[str, npt.NDArray[Any]]


def people(schema: Schema, n: int, seed: int = 0) -> tuple[Columns, npt.NDArray[Any]]:
    """Return encoded rows whose features depend on the label, with missing values if allowed."""
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
            columns[feature.name] = np.minimum(
                (share * len(feature.values)).astype(np.int64), len(feature.values) - 1
            )
    for text in schema.texts:
        column = np.empty(n, object)
        for i in range(n):
            column[i] = np.unique(
                rng.integers(0, text.buckets // 2, 3) + (text.buckets // 2) * (lean[i] > 0.5)
            )
        columns[text.name] = column
    return columns, labels


def rows(
    columns: Columns, labels: npt.NDArray[Any], first: int, n: int
) -> tuple[Columns, npt.NDArray[Any]]:
    return {name: column[first : first + n] for name, column in columns.items()}, labels[
        first : first + n
    ]


def make(
    params: DDMLParams,
    n: int,
    seed: int = 0,
    kind: type[DDMLPeer] = DDMLPeer,
    n_rows: int = 1,
    **options: Any,
) -> tuple[DDMLAggregator, dict[str, DDMLPeer]]:
    """Return an honest aggregator and devices with ``n_rows`` rows each.

    The study stays open until its time is up.
    """
    columns, labels = people(params.schema, n * n_rows, seed)
    peers = {
        f"peer-{i}": kind(STUDY, params, *rows(columns, labels, i * n_rows, n_rows))
        for i in range(n)
    }
    return DDMLAggregator(
        STUDY, params, **{"phase_timeout": timedelta(days=1), "n_expected": 1 << 60, **options}
    ), peers


def in_turn(
    aggregator: DDMLAggregator, peers: Mapping[str, DDMLPeer], entropy: SeededEntropy
) -> ProtocolOutcome:
    """Run one device after another, each on the instances that earlier ones improved.

    In `run_local` all devices draw before the first one answers.
    """
    hosts, outcome = open_hosts(aggregator, peers, entropy, None), ProtocolOutcome()
    for started in hosts:
        inbox: deque[tuple[str, Input | SentMessage]] = deque([(started, Started())])
        while inbox:
            name, given = inbox.popleft()
            host = hosts[name]
            handled = host.handle(given, START, outcome)
            host.commit(handled)
            for item in handled.work:
                match item:
                    case OutgoingMessage():
                        sent = host.begin_send(item, START, outcome)
                        assert isinstance(sent, SentMessage)
                        outcome.sent.append(sent)
                        inbox.append((sent.to, sent))
                        host.mark_acknowledged(sent.question)
                    case Finish() | Abort():
                        outcome.record_ending(name, item)
    handled = hosts[AGGREGATOR].handle(Tick(), START + aggregator.phase_timeout, outcome)
    for ending in handled.work:
        assert isinstance(ending, Finish | Abort)
        outcome.record_ending(AGGREGATOR, ending)
    outcome.states = {name: host.state for name, host in hosts.items()} | {
        AGGREGATOR: handled.state
    }
    return outcome


def some_weights(params: DDMLParams, seed: int = 0, size: int = 1000) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(-size, size + 1, params.n_weights, np.int32)


def an_id(i: int) -> bytes:
    return SeededEntropy("ids").spawn(i).bytes(ID_BYTES)


def an_instance(params: DDMLParams, draw: bytes, epoch: int = 0, seed: int = 0) -> DDMLInstance:
    return DDMLInstance(
        study=STUDY, draw=draw, epoch=epoch, weights=Array.from_values(some_weights(params, seed))
    )


def an_update(
    params: DDMLParams, i: int = 0, epoch: int = 0, weights: npt.NDArray[np.int32] | None = None
) -> DDMLUpdate:
    return DDMLUpdate(
        study=STUDY,
        id=an_id(i),
        epoch=epoch,
        weights=Array.from_values(some_weights(params, i) if weights is None else weights),
    )


def updates_sent(outcome: ProtocolOutcome) -> dict[tuple[str, str], dict[bytes, DDMLUpdate]]:
    """Return the different bytes sent for each update, by peer and question."""
    left: dict[tuple[str, str], dict[bytes, DDMLUpdate]] = {}
    for sent in outcome.sent:
        if sent.question is not None:
            message = decode(sent.payload, MESSAGES, STUDY)
            assert isinstance(message, DDMLUpdate)
            left.setdefault((sent.sender, sent.question), {})[sent.payload] = message
    return left


def taken(state: DDMLAggregatorState) -> int:
    """Return the number of updates that reached the aggregator."""
    return state.n_merged + sum(dict(state.refused).values())


def compute_price(params: DDMLParams) -> int:
    event = price_update(params)
    assert event is not None
    return grains_up(event.epsilon)


def check(
    params: DDMLParams, outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]
) -> None:
    """Raise AssertionError unless an honest run kept every promise, even after faults."""
    left = updates_sent(outcome)
    state = outcome.states[AGGREGATOR]
    assert not outcome.rejected, "honest machines reject nothing of each other"
    assert not outcome.aborted
    assert not outcome.failed
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    ids = [update.id for payloads in left.values() for update in payloads.values()]
    assert len(set(ids)) == len(ids), "two updates have the same id"
    assert taken(state) <= len(left), "an update is taken once"
    n_acknowledged = 0
    for name, ledger in ledgers.items():
        states = {question: entry.state for (_, question), entry in ledger.entries.items()}
        assert set(states) <= {f"update/{number}" for number in range(params.n_updates)}
        begun = {question for question, at in states.items() if at in SPENT_STATES}
        assert {question for sender, question in left if sender == name} <= begun, (
            "what left is spent"
        )
        assert spent(ledger) == len(begun) * compute_price(params), (
            "the ledger's total is the study's price of each"
        )
        n_acknowledged += sum(at is ReleaseState.SENT for at in states.values())
    assert n_acknowledged <= taken(state), "what is acknowledged is not lost"
    instances = state.to_matrix()
    assert instances.shape == (params.n_instances, params.n_weights), "instances are whole models"


def check_complete(
    params: DDMLParams, outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]
) -> None:
    """Check in addition that each device sent all updates, spent their price, and all arrived."""
    check(params, outcome, ledgers)
    assert (
        taken(outcome.states[AGGREGATOR])
        == len(updates_sent(outcome))
        == len(ledgers) * params.n_updates
    )
    for name, ledger in ledgers.items():
        assert len(ledger.entries) == params.n_updates
        assert all(entry.state is ReleaseState.SENT for entry in ledger.entries.values())
        assert outcome.results[name] == params.n_updates


PATIENCE = 60_000

_TEXT = """
title = "A study"
purpose = "To test."
contact = "a@example.org"
protocol = "ddml"
[label]
name = "ill"
values = ["no", "yes"]
[[feature]]
name = "age"
range = [0, 100]
missing = false
[privacy]
epsilon = 8.0
n_updates = 2
[participation]
minimum = 10
size = SIZE
[ddml]
n_instances = 5
admission = "ADMISSION"
"""


def make_manifest(admission: str, size: int = 1000) -> Manifest:
    """Return a study of up to ``2 * size`` updates."""
    return Manifest(
        parse_study_text(_TEXT.replace("SIZE", str(size)).replace("ADMISSION", admission))
    )


def published(store: Store, manifest: Manifest, clock: ManualClock) -> StudyRecord:
    hosted = StudyRecord(
        manifest.digest.hex(), manifest.to_bytes(), to_milliseconds(clock.now()), PATIENCE
    )
    store.publish(hosted)
    return hosted


def open_sqlite(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "coordinator.db")


def improved(drawn: bytes, entropy: SeededEntropy) -> bytes:
    """Return the update of a device after a draw: a new id, the epoch, and changed weights."""
    weights = np.frombuffer(drawn, "<i4", offset=EPOCH_BYTES)
    step = entropy.below_many(2001, weights.size) - 1000
    return entropy.bytes(16) + drawn[:EPOCH_BYTES] + (weights + step).astype("<i4").tobytes()


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                access_log=False,
                log_level="warning",
                lifespan="on",
            )
        )
        self.is_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@contextmanager
def served(
    store: Store, models: InstanceStore, clock: ManualClock
) -> Iterator[tuple[httpx2.Client, DDMLStudies]]:
    """Run a worker on a free port; yield a client and the studies."""
    devices = DDMLStudies(store, models, clock, SystemEntropy())

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raise not_found_error("There is nothing under this path.")
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await devices.stop()
        await send({"type": "lifespan.shutdown.complete"})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(DDMLFastPath(devices, ErrorMiddleware(inner)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert server.is_up.wait(180)
            with httpx2.Client(
                base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=180
            ) as client:
                yield client, devices
        finally:
            server.should_exit = True
            thread.join()


def draw(client: httpx2.Client, hosted: StudyRecord) -> bytes:
    answer = client.post(study_route(hosted.digest, "draw"))
    assert answer.status_code == 200
    return answer.content
