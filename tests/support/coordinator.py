"""Small studies of every kind, honest peers, a run through `apply_inputs`, and services.

Tests of the coordinator and of layers that need a served study use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.clock import ManualClock, from_milliseconds, to_milliseconds
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.coordinator.handlers import get_result
from shoal.coordinator.publishing import publish
from shoal.coordinator.scheduler import apply_inputs
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store.base import (
    PendingInput,
    StepResult,
    Store,
    StudyOutcome,
    StudyRecord,
    StudySnapshot,
)
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.coordinator.studies import encode_result, make_hosting
from shoal.coordinator.submissions import BATCH_GROUP
from shoal.crypto.identity import Identity, Roster
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Compute,
    Feed,
    IdealComputation,
    OutgoingMessage,
    Peer,
    ProtocolOutcome,
    SentMessage,
    Started,
    open_hosts,
)
from shoal.protocols.machines import Aggregator
from shoal.protocols.pfds.paper.peer import PaperPeer
from shoal.protocols.pfds.paper.script import TreeRows
from shoal.protocols.pfds.params import PFDSRows
from shoal.protocols.pfds.peer import LocalPeer, SecureSumPeer
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.sdq.params import CellTable
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.queries import MarginalsQuery, SDQQuery
from shoal.protocols.secagg.member import SumMember
from shoal.protocols.secagg.messages import SumParameters
from shoal.study import anonml, pfds, sdq
from shoal.study.handle import StudyHandle
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.sdq import encode_queries
from shoal.transport.api import BatchReceipt, Enrolled, Enrolment, Poll

NOW = to_milliseconds(START)
PATIENCE = 60_000
QUERIES: tuple[SDQQuery, ...] = (MarginalsQuery(features=("town", "ill")),)

_HEAD = 'title = "A study"\npurpose = "To test."\ncontact = "a@example.org"\n'
_BODY = """
[label]
name = "ill"
values = ["no", "yes"]
[[feature]]
name = "age"
range = [0, 100]
bins = [40, 60]
missing = false
[[feature]]
name = "town"
values = ["x", "y", "z"]
missing = false
"""


def _text(
    protocol: str,
    head: str,
    epsilon: float,
    participation: str,
    tail: str = "",
    *,
    bins: bool = True,
) -> str:
    body = _BODY if bins else _BODY.replace("bins = [40, 60]\n", "")
    return (
        f'protocol = "{protocol}"\n{head}{body}[privacy]\nepsilon = '
        f"{epsilon}\n{participation}{tail}"
    )


_PAPER, _LOCAL, _SUM = 'variant = "paper"\n', 'trust = "local"\n', 'trust = "secure-sum"\n'
_PEOPLE, _FOUR = (
    "[participation]\nminimum = 20\nsize = 60\n",
    "[participation]\nminimum = 3\nsize = 120\n",
)
_FREE = '[queries]\nfeatures = ["town", "ill"]\nn_queries = 1\nepsilon_release = 1.0\n'
_CROWD = "[participation]\nminimum = 1000\nsize = 2000\nhonest_share = 0.9\n"
_SITES = "[sdq]\nn_databases = 4\n"
_TEXTS = {
    "anonml": _text("anonml", "", 2.0, _PEOPLE),
    "anonml phases": _text("anonml", "", 2.0, _PEOPLE, bins=False),
    "anonml paper": _text(
        "anonml",
        _PAPER,
        9.0,
        _PEOPLE,
        "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 1\n",
    ),
    "sdq": _text(
        "sdq", "", 6.0, _FOUR, f'{_SITES}max_colluders = 1\ndepth = 2\nchoice = "mpc"\n{_FREE}'
    ),
    "sdq paper": _text("sdq", _PAPER, 6.0, _FOUR, f"{_SITES}max_colluders = 1\ndepth = 1\n"),
    "sdq local": _text("sdq", _PAPER + _LOCAL, 6.0, _FOUR, f"{_SITES}depth = 1\n"),
    "pfds": _text("pfds", "", 3.0, _FOUR, "[pfds]\nn_holders = 4\n"),
    "pfds sum": _text("pfds", _SUM, 3.0, _FOUR, "[pfds]\nn_holders = 4\nmax_colluders = 1\n"),
    "pfds paper": _text(
        "pfds", _PAPER, 9.0, _FOUR, "[pfds]\nn_holders = 4\nmax_depth = 2\n", bins=False
    ),
    "ddml": _text(
        "ddml",
        "",
        4.0,
        "[participation]\nminimum = 10\nsize = 1000\n",
        '[ddml]\nn_instances = 10\nadmission = "token"\n',
    ),
    "shuffled": _text("anonml", 'trust = "shuffled"\n', 2.0, f"delta = 1e-6\n{_CROWD}"),
}
HOSTED = tuple(name for name in _TEXTS if name not in ("ddml", "shuffled"))
"""Studies that have a machine."""
ROSTERED = ("sdq", "sdq paper", "sdq local", "pfds sum")


def identity(i: int) -> Identity:
    return Identity.from_seed(bytes([i + 1]) * 32)


def make_manifest(name: str, *, closes: str | None = None) -> Manifest:
    text = _HEAD + _TEXTS[name]
    if closes is not None:
        text = text.replace("[participation]\n", f"[participation]\ncloses = {closes}\n")
    roster = (
        tuple(RosterMember(f"site-{i}", identity(i).public_key) for i in range(4))
        if name in ROSTERED
        else ()
    )
    return Manifest(parse_study_text(text), roster=roster)


def make_handle(name: str) -> StudyHandle:
    return StudyHandle(make_manifest(name))


def make_aggregator(manifest: Manifest, record: StudyRecord) -> Aggregator[Any] | None:
    """Return the aggregator that a coordinator hosts for a stored study."""
    return StudyHandle(manifest).make_aggregator(make_hosting(record))


def publish_manifest(
    store: Store, manifest: Manifest, now: int, **options: Any
) -> tuple[StudyRecord, bool]:
    """Publish a study by its manifest; see `publish`."""
    return publish(store, StudyHandle(manifest), now, **options)


def make_record(name: str, **changes: Any) -> StudyRecord:
    manifest = make_manifest(name)
    queries = encode_queries(QUERIES) if name == "sdq" else b""
    settings = {
        "phase_timeout": PATIENCE,
        "seats": StudyHandle(manifest).seat_names,
        "queries": queries,
        **changes,
    }
    return StudyRecord(manifest.digest.hex(), manifest.to_bytes(), NOW, **settings)


def rows(
    schema: Schema, n: int, seed: int
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """Return encoded rows whose features depend on the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature in schema.features:
        if isinstance(feature, Numeric):
            columns[feature.name] = np.floor(
                feature.low + (feature.high - feature.low) * rng.beta(2 + labels, 3, n)
            )
        else:
            assert isinstance(feature, Categorical)
            columns[feature.name] = (
                labels + rng.integers(0, len(feature.values), n) * (rng.random(n) < 0.5)
            ) % len(feature.values)
    return columns, labels


def ticket(i: int) -> bytes:
    return i.to_bytes(32, "big")


def make_peers(name: str, n: int = 60) -> dict[str, Peer[Any]]:
    """Return honest peers by their names: n people, or the holders of the study."""
    manifest = make_manifest(name)
    study, digest = manifest.study, manifest.digest
    if study.protocol == "anonml":
        script, (columns, labels) = anonml.build_script(study, digest), rows(study.schema(), n, 1)
        cut = [
            ({name: column[i : i + 1] for name, column in columns.items()}, labels[i : i + 1])
            for i in range(n)
        ]
        return {
            f"person-{i}": AnonMLPeer(digest, script, ticket(i), *one) for i, one in enumerate(cut)
        }
    names, tables = (
        StudyHandle(manifest).participant_names,
        [rows(study.schema(), 30, i) for i in range(4)],
    )
    terms = None
    if manifest.roster:
        roster = Roster(names, tuple(member.key for member in manifest.roster))
        terms = SumParameters(
            digest, roster, 4 if study.trust == "local" else study.participation.minimum
        )
    peers: dict[str, Peer[Any]] = {}
    for i, (holder, table) in enumerate(zip(names, tables, strict=True)):
        if study.protocol == "sdq":
            assert terms is not None
            params = sdq.build_params(study)
            counted = CellTable.from_columns(params, *table, np.zeros(30, np.int64))
            peers[holder] = SDQPeer(
                sdq.build_script(study),
                SumMember(terms, i, identity(i)),
                counted,
                sdq.build_free_queries(study),
            )
            continue
        shared = pfds.build_params(study)
        if shared.variant == "paper":
            peers[holder] = PaperPeer(shared, digest, holder, TreeRows.from_columns(shared, *table))
        elif terms is not None:
            peers[holder] = SecureSumPeer(
                SecureSumScript(shared),
                SumMember(terms, i, identity(i)),
                PFDSRows.from_columns(shared, *table),
            )
        else:
            peers[holder] = LocalPeer(shared, digest, i, PFDSRows.from_columns(shared, *table))
    return peers


@dataclass
class Memory:
    """The stored data of one study, for `apply_inputs` alone."""

    state: bytes | None = None
    held: list[PendingInput] = field(default_factory=list)
    alarms: set[int] = field(default_factory=set)
    letters: list[tuple[str | None, bytes]] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    ending: StudyOutcome | None = None

    def loaded(self, now: int) -> StudySnapshot:
        return StudySnapshot(
            self.state,
            tuple(self.held),
            tuple(sorted(alarm for alarm in self.alarms if alarm <= now)),
        )

    def save(self, folded: StepResult) -> None:
        self.state, self.ending = folded.state, folded.outcome
        self.held = [held for held in self.held if held.number not in folded.input_numbers]
        self.alarms = (self.alarms - set(folded.fired_alarms)) | set(folded.alarms)
        self.letters += folded.messages
        for code, n in folded.rejection_counts.items():
            self.rejected[code] = self.rejected.get(code, 0) + n


def drive(
    name: str, peers: Mapping[str, Peer[Any]], seed: int = 1, batch: int = 10**9
) -> tuple[Memory, ProtocolOutcome]:
    """Run a whole study: hosted peers, and the aggregator through `apply_inputs` in batches."""
    manifest, hosted, entropy = make_manifest(name), make_record(name), SeededEntropy(seed)
    aggregator, names, memory, outcome = (
        make_aggregator(manifest, hosted),
        StudyHandle(manifest).participant_names,
        Memory(),
        ProtocolOutcome(),
    )
    assert aggregator is not None
    hosts = open_hosts(aggregator, peers, entropy, None)
    del hosts[AGGREGATOR]
    computer, now, number, delivered = IdealComputation(entropy), NOW, 0, 0
    inbox: list[tuple[str, Any]] = [(peer, Started()) for peer in hosts]
    while memory.ending is None or inbox:
        for peer, given in inbox:
            handled = hosts[peer].handle(given, from_milliseconds(now), outcome)
            hosts[peer].commit(handled)
            for item in handled.work:
                match item:
                    case OutgoingMessage():
                        sent = hosts[peer].begin_send(item, from_milliseconds(now), outcome)
                        assert isinstance(sent, SentMessage)
                        message = decode(sent.payload, aggregator.messages, aggregator.study)
                        number += 1
                        memory.held.append(
                            PendingInput(
                                number,
                                "" if message.is_anonymous else peer,
                                sent.payload,
                                str(number).encode(),
                            )
                        )
                    case Compute():
                        computer.begin(peer, item)
                    case Feed():
                        computer.feed(peer, item)
                    case ending:
                        outcome.record_ending(peer, ending)
        inbox = list(computer.collect())
        if memory.ending is None and not inbox:
            if memory.state is not None and not memory.held:
                now = max(now, min(memory.alarms))
            loaded = memory.loaded(now)
            some = StudySnapshot(
                loaded.state,
                loaded.inputs[:batch],
                loaded.alarms if len(loaded.inputs) <= batch else (),
            )
            memory.save(
                apply_inputs(
                    aggregator,
                    some,
                    now,
                    entropy,
                    names,
                    partial(encode_result, StudyHandle(manifest)),
                )
            )
        for to, payload in memory.letters[delivered:]:
            inbox += [
                (peer, SentMessage(from_milliseconds(now), AGGREGATOR, peer, payload))
                for peer in (hosts if to is None else [to])
            ]
        delivered = len(memory.letters)
    return memory, outcome


async def enrol(
    service: CoordinatorService, digest: str, key: bytes, form: Enrolment, nonce: bytes
) -> Enrolled:
    return await service.registrar.enrol(await service.get_study(digest), key, form, nonce)


async def submit(service: CoordinatorService, digest: str, payload: bytes) -> None:
    await service.submissions.submit(await service.get_study(digest), payload)


async def accept_message(
    service: CoordinatorService, digest: str, name: str, payload: bytes, nonce: bytes
) -> None:
    view = await service.get_study(digest)
    await service.submissions.accept_message(view, name, payload, nonce)


async def accept_batch(
    service: CoordinatorService, digest: str, packets: Sequence[bytes]
) -> BatchReceipt:
    view = await service.get_study(digest)
    return await service.submissions.accept_batch(view, in_groups(packets), bytes)


async def in_groups(packets: Sequence[bytes]) -> AsyncIterator[Sequence[bytes]]:
    """Yield the packets of a batch as they arrive."""
    for start in range(0, len(packets), BATCH_GROUP):
        yield packets[start : start + BATCH_GROUP]


async def get_model(service: CoordinatorService, digest: str) -> bytes:
    return get_result(await service.get_study(digest))


async def attend(
    services: Sequence[CoordinatorService],
    name: str,
    peers: Mapping[str, Peer[Any]],
    clock: ManualClock,
    seed: int = 1,
) -> ProtocolOutcome:
    """Enrol all peers and let them take part, at alternating workers, until the study ends.

    Time passes when nothing happens any more.
    """
    manifest, entropy, outcome = make_manifest(name), SeededEntropy(seed), ProtocolOutcome()
    digest, aggregator = manifest.digest.hex(), make_aggregator(manifest, make_record(name))
    assert aggregator is not None
    hosts = open_hosts(aggregator, peers, entropy, None)
    del hosts[AGGREGATOR]
    turn, computer, cursors = count(), IdealComputation(entropy), dict.fromkeys(hosts, 0)
    has_looked, names = False, {}
    for i, peer in enumerate(hosts):
        form = Enrolment(ticket=ticket(i).hex() if manifest.study.protocol == "anonml" else None)
        nonce = next(turn)
        service = services[nonce % len(services)]
        names[peer] = (
            await enrol(service, digest, identity(i).public_key, form, nonce.to_bytes(16, "big"))
        ).name
    inbox: list[tuple[str, Any]] = [(peer, Started()) for peer in hosts]
    while True:
        for peer, given in inbox:
            handled = hosts[peer].handle(given, clock.now(), outcome)
            hosts[peer].commit(handled)
            for item in handled.work:
                service = services[next(turn) % len(services)]
                match item:
                    case OutgoingMessage() if manifest.study.protocol == "anonml":
                        await submit(service, digest, item.payload)
                    case OutgoingMessage():
                        nonce = next(turn)
                        try:
                            await accept_message(
                                service,
                                digest,
                                names[peer],
                                item.payload,
                                nonce.to_bytes(16, "big"),
                            )
                        except RemoteProtocolError as error:
                            if error.code != "HOST-002":
                                raise
                    case Compute():
                        computer.begin(peer, item)
                    case Feed():
                        computer.feed(peer, item)
                    case ending:
                        outcome.record_ending(peer, ending)
        inbox, status = list(computer.collect()), "open"
        for peer in hosts:
            nonce, after = next(turn), cursors[peer]
            service = services[nonce % len(services)]
            if manifest.study.protocol == "anonml":
                fetched = await service.mailbox.fetch(digest, None, after, 0)
            else:
                fetched = await service.mailbox.poll(
                    digest, names[peer], Poll(after=after), nonce.to_bytes(16, "big")
                )
            status = fetched.status
            for message in fetched.letters:
                cursors[peer] = message.number
                inbox.append((peer, SentMessage(clock.now(), AGGREGATOR, peer, message.payload)))
        if not inbox and status != "open":
            return outcome
        if inbox:
            has_looked = False
        elif services[0]._store.list_due(to_milliseconds(clock.now())):
            await asyncio.sleep(0.002)
        elif has_looked:
            has_looked = False
            clock.advance(PATIENCE / 1000)
            services[0]._scheduler.wake()
        else:
            has_looked = True


Work = Callable[[CoordinatorService, ManualClock], Awaitable[None]]
NONCES = count(1 << 64)


@asynccontextmanager
async def opened(
    path: Path, clock: ManualClock, holder: str = "one"
) -> AsyncIterator[CoordinatorService]:
    with SqliteStore(path / "store.db") as store:
        service = CoordinatorService(
            store, MemoryInstanceStore(), clock, SeededEntropy(7).spawn(holder), holder
        )
        await service.start()
        try:
            yield service
        finally:
            await service.stop()


def run(path: Path, work: Work) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(path, clock) as service, asyncio.timeout(20):
            await work(service, clock)

    asyncio.run(main())


def new() -> bytes:
    """Return a nonce that was not used before."""
    return next(NONCES).to_bytes(16, "big")


async def refusal(call: Awaitable[object]) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        await call
    return caught.value.code
