"""Small studies, participants with their own files, and an in-process coordinator that fails.

Also processes that a test can kill at any moment.
"""

from __future__ import annotations

import asyncio
import heapq
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from shoal.clock import Clock, ManualClock
from shoal.coordinator.store.base import StudyRecord
from shoal.crypto.identity import Identity
from shoal.data.tables import Table
from shoal.entropy import SeededEntropy
from shoal.errors import TransportError
from shoal.messages.base import Array
from shoal.messages.codec import decode, encode
from shoal.participant import keys as identities
from shoal.participant import offers, runner
from shoal.participant.client import Client, RefusedError, encode_update_body, parse_instance
from shoal.participant.delivery import ProgressCallback, StudyContext, ignore_progress
from shoal.participant.journal import Journal, JournalUpdate, Role
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, find_agreed, record_consent
from shoal.participant.runner import ParticipationResult
from shoal.privacy.ledger.limits import Limit
from shoal.privacy.rounding import DELTA_GRAINS, grains_down
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    Abort,
    Finish,
    Host,
    Input,
    JointComputation,
    Ledger,
    OutgoingMessage,
    ProtocolOutcome,
    SentMessage,
    Started,
    Tick,
    WakeAt,
)
from shoal.protocols.ddml.aggregator import DDMLAggregator
from shoal.protocols.ddml.messages import ID_BYTES, DDMLDraw, DDMLInstance, DDMLUpdate
from shoal.simulation.network import CrashError, CrashingLedger
from shoal.study import ddml
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.spec import Study
from shoal.study.validation import parse_study
from shoal.transport.api import (
    Enrolled,
    Enrolment,
    MessagePage,
    Poll,
    QueuedMessage,
    SignedManifest,
    Status,
)
from shoal.transport.signing import sign_broadcast, sign_manifest
from tests.support.coordinator import make_aggregator

URL = "http://127.0.0.1:8700"
COORDINATOR = Identity.from_seed(bytes(range(32)))
PATIENCE = timedelta(minutes=1)

_IDLE = 30
"""Polls in a row that find nothing, after which nothing will come before the next alarm."""


def make_document(protocol: str, n: int = 3, **more: Any) -> dict[str, Any]:
    """Return the document of a study with two features, for n participants or three holders."""
    text = {
        "title": f"Wind, by {protocol}",
        "purpose": "When do we play?",
        "contact": "a@example.org",
    }
    return {
        **text,
        "protocol": protocol,
        "label": {"name": "play", "values": ["no", "yes"]},
        "feature": [
            {"name": "wind", "values": ["weak", "strong"], "missing": False},
            {
                "name": "heat",
                "range": [0, 40],
                "bins": None if (protocol, more.get("variant")) == ("pfds", "paper") else [20],
                "missing": False,
            },
        ],
        "privacy": {"epsilon": 2.0},
        "participation": {"minimum": n, "size": max(20, n)},
        **more,
    }


def make_study(protocol: str, n: int = 3, **more: Any) -> Study:
    """Return the study of `make_document`."""
    return parse_study(make_document(protocol, n, **more))


def make_manifest(protocol: str, n: int = 3, keys: tuple[bytes, ...] = (), **more: Any) -> Manifest:
    """Return the manifest of such a study, with a roster if there are keys."""
    return Manifest(
        make_study(protocol, n, **more),
        roster=tuple(RosterMember(f"site-{i}", key) for i, key in enumerate(keys)),
    )


def store_answer(path: Path, clock: Clock, manifest: Manifest, question: str) -> None:
    """Reserve and store an answer, as a participant does that stops before it sends the answer."""
    study = StudyHandle(manifest)
    with LedgerFile(path, clock) as ledger:
        account = ledger.account(study.digest, "rows.csv", URL, manifest.study.title)
        account.reserve(question, study.plan.charges[0])
        account.store(question, b"drawn and not sent")


def compute_packet_size(manifest: Manifest) -> int:
    """Return the size of each packet of a study with tokens."""
    size = StudyHandle(manifest).packet_size
    assert size is not None
    return size


def make_table(n: int, seed: int | str = 0) -> Table:
    """Return rows in which strong wind mostly means no play."""
    entropy = SeededEntropy(seed).spawn("rows")
    wind, heat, noise = (entropy.below_many(bound, n) for bound in (2, 41, 8))
    play = np.where(noise == 0, wind, 1 - wind)
    return {
        "wind": np.array(["weak", "strong"], object)[wind],
        "heat": heat.astype(float),
        "play": np.array(["no", "yes"], object)[play],
    }


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a directory in memory if possible: each step synchronises files to the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | str], SeededEntropy]:
    """Allow seeded randomness in real runs; only tests can do this."""
    for module in (runner, identities, offers):
        monkeypatch.setattr(module, "require_system", lambda entropy: entropy)
    return SeededEntropy


class Everyone(tuple[str, ...]):
    """Participants that one broadcast reaches together."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return iter((EVERYONE,))


class Desk(Client):
    """A coordinator without HTTP: the study's real aggregator in a host, and what a `Client` asks
    for. It loses and doubles what it likes.

    Parameters
    ----------
    loss
        Of so many calls one fails, before or after it has had its effect; 0 for none.
    """

    def __init__(
        self,
        manifest: Manifest,
        seed: int | str = 0,
        *,
        loss: int = 0,
        identity: Identity = COORDINATOR,
        url: str = URL,
    ) -> None:
        self.entropy = SeededEntropy(seed)
        self.time = ManualClock()
        super().__init__(
            url, self.time, self.entropy.spawn("client"), make_transport=_nothing, sleep=_soon
        )
        self.manifest, self.identity, self.loss = manifest, identity, loss
        self.chance = self.entropy.spawn("loss")
        if manifest.study.protocol == "ddml":
            machine: Any = DDMLAggregator(
                manifest.digest,
                ddml.build_params(manifest.study),
                minimum=1,
                phase_timeout=PATIENCE,
            )
        else:
            hosted = StudyRecord(
                manifest.digest.hex(), manifest.to_bytes(), 0, PATIENCE // timedelta(milliseconds=1)
            )
            machine = make_aggregator(manifest, hosted)
        self.host = Host(
            AGGREGATOR,
            machine,
            None,
            Everyone((*StudyHandle(manifest).participant_names, "device")),
            self.entropy,
            machine.initial_state(),
        )
        self.letters: list[tuple[int, str, bytes]] = []
        self.alarms: list[datetime] = []
        self.enrolled: dict[bytes, str] = {}
        self.tickets: set[str] = set()
        self.came: list[tuple[str, bytes]] = []
        self.updates: list[tuple[bytes, str | None]] = []
        self.rejected: list[str] = []
        self.status: Status = "open"
        self.result: object = None
        self.n_idle = 0
        self.is_hasty = True
        self._step(Started())

    def open_isolated(self) -> Client:
        return self

    async def fetch_studies(self) -> list[dict[str, Any]]:
        return [
            {
                "digest": self.manifest.digest.hex(),
                "title": self.manifest.study.title,
                "status": self.status,
            }
        ]

    async def fetch_manifest(self, study: str) -> SignedManifest:
        manifest, signature = (
            self.manifest.to_bytes(),
            sign_manifest(self.identity, self.manifest.digest),
        )
        return SignedManifest(manifest=manifest, key=self.identity.public_key, signature=signature)

    async def enrol(self, study: str, identity: Identity, form: Enrolment) -> Enrolled:
        return await self._call(lambda: self._enrol(identity.public_key, form))

    async def send_message(self, study: str, identity: Identity, payload: bytes) -> None:
        await self._call(lambda: self._take(self.enrolled[identity.public_key], payload))

    async def submit_message(self, study: str, payload: bytes) -> None:
        await self._call(lambda: self._take("", payload))

    async def poll_mailbox(self, study: str, identity: Identity, poll: Poll) -> MessagePage:
        return await self._call(
            lambda: self._letters(self.enrolled[identity.public_key], poll.after)
        )

    async def fetch_broadcasts(self, study: str, after: int, wait: int = 0) -> MessagePage:
        return await self._call(lambda: self._letters(EVERYONE, after))

    async def draw_instance(self, study: str, draw: DDMLDraw) -> DDMLInstance:
        return parse_instance(draw, await self._call(self._draw))

    async def send_update(
        self,
        study: str,
        update: DDMLUpdate,
        number: int,
        *,
        identity: Identity | None = None,
        ticket: bytes | None = None,
        token: bytes | None = None,
    ) -> None:
        proof = (ticket or token) if identity is None else identity.public_key
        body = encode_update_body(update)
        await self._call(
            lambda: self._update(body, None if proof is None else f"{proof.hex()} {number}")
        )

    async def _call(self, act: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        fate = self.chance.below(self.loss) if self.loss else -1
        if fate == 0 and self.chance.below(2):
            raise TransportError("NET-001", "Lost on the way there.")
        answer = act()
        if fate == 0:
            raise TransportError("NET-001", "Lost on the way back.")
        return answer

    def _enrol(self, key: bytes, form: Enrolment) -> Enrolled:
        self.tickets |= {form.ticket} if form.ticket else set()
        roster = {member.key: member.name for member in self.manifest.roster}
        names = StudyHandle(self.manifest).participant_names
        name = (
            roster.get(key)
            or self.enrolled.get(key)
            or (names[len(self.enrolled)] if names else f"person-{len(self.enrolled)}")
        )
        self.enrolled[key] = name
        return Enrolled(name=name, position=names.index(name) if names else None)

    def _take(self, sender: str, payload: bytes) -> None:
        self.n_idle = 0
        self.came.append((sender, payload))
        if self.status != "open":
            raise RefusedError("HOST-002", "The study has ended.", status=410)
        self._step(SentMessage(self.time.now(), sender, AGGREGATOR, payload))

    def _letters(self, name: str, after: int) -> MessagePage:
        found = tuple(
            QueuedMessage(
                number=i,
                payload=payload,
                signature=sign_broadcast(self.identity, self.manifest.digest, i, payload)
                if self.manifest.schedule is not None
                else None,
            )
            for i, to, payload in self.letters
            if i > after and to in (EVERYONE, name)
        )
        self.n_idle = 0 if found or not self.is_hasty else self.n_idle + 1
        if (
            self.n_idle > _IDLE * max(1, len(self.enrolled))
            and self.alarms
            and self.status == "open"
        ):
            self.n_idle = 0
            self.time.advance(
                max(0.0, (heapq.heappop(self.alarms) - self.time.now()).total_seconds())
            )
            self._step(Tick())
        return MessagePage(letters=found, status=self.status)

    def _draw(self) -> bytes:
        if self.status != "open":
            raise RefusedError("HOST-002", "The study has ended.", status=410)
        n = len(self.letters)
        draw = DDMLDraw(study=self.manifest.digest, id=self.entropy.bytes(ID_BYTES))
        self._step(SentMessage(self.time.now(), "device", AGGREGATOR, encode(draw)))
        (letter,) = self.letters[n:]
        found = decode(letter[2], self.host.machine.messages, self.manifest.digest)
        assert isinstance(found, DDMLInstance)
        return found.epoch.to_bytes(8, "little") + found.weights.data

    def _update(self, body: bytes, proof: str | None) -> None:
        self.updates.append((body, proof))
        weights = Array.from_values(np.frombuffer(body[ID_BYTES + 8 :], "<i4").astype(np.int32))
        epoch = int.from_bytes(body[ID_BYTES : ID_BYTES + 8], "little")
        self._take(
            "",
            encode(
                DDMLUpdate(
                    study=self.manifest.digest, id=body[:ID_BYTES], epoch=epoch, weights=weights
                )
            ),
        )

    def _step(self, given: Input | SentMessage) -> None:
        outcome = ProtocolOutcome()
        handled = self.host.handle(given, self.time.now(), outcome)
        self.host.commit(handled)
        assert not outcome.failed, outcome.failed
        self.rejected += [one.error.code for one in outcome.rejected]
        for item in handled.work:
            match item:
                case OutgoingMessage(to, payload):
                    self.letters.append((len(self.letters) + 1, to, payload))
                case WakeAt(when):
                    heapq.heappush(self.alarms, when)
                case Finish(result):
                    self.status, self.result = "done", result
                case Abort(error):
                    self.status, self.result = "failed", error


def _nothing() -> httpx2.AsyncBaseTransport:
    return httpx2.MockTransport(lambda request: httpx2.Response(404))


async def _soon(_: float) -> None:
    await asyncio.sleep(0)


class FragileJournal(Journal):
    """A journal that may raise a crash before or after each save."""

    shake: Callable[[], None]

    def save(self, study: str, update: JournalUpdate) -> tuple[int, ...]:
        self.shake()
        numbers = super().save(study, update)
        self.shake()
        return numbers

    def remove_messages(self, study: str, *numbers: int) -> None:
        self.shake()
        super().remove_messages(study, *numbers)
        self.shake()


async def take_part(
    offer: Offer,
    table: Table | None,
    journal: Journal,
    ledger: Ledger,
    client: Client,
    clock: ManualClock,
    entropy: Any,
    *,
    computer: JointComputation | None = None,
    role: Role = "sharer",
    on_progress: ProgressCallback = ignore_progress,
) -> ParticipationResult:
    """Take part as a session does, with parts that a test chooses."""
    study = offer.study
    runner.require_system(entropy)
    with journal.lock_study(offer.digest):
        joined = find_agreed(journal, ledger, offer, role)
        context = StudyContext(study, joined, journal, ledger, client, clock, entropy, on_progress)
        rows = None if table is None else study.encode_rows(table)
        return await runner.run(context, rows, computer)


@dataclass
class Person:
    """A participant with its own ledger and journal.

    One of ``crash`` durable steps, on average, ends in a crash before or after it.
    """

    path: Path
    table: Table | None
    entropy: SeededEntropy
    role: Role = "sharer"
    computer: JointComputation | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    crash: int = 0
    n_crashes: int = 0
    said: list[str] = field(default_factory=list)

    def public(self) -> bytes:
        """Master key."""
        with Journal(self.path, self.clock) as journal:
            return identities.load_master_identity(
                journal, self.entropy.spawn("identity")
            ).public_key

    async def join(
        self, desk: Client, manifest: Manifest, key: bytes = COORDINATOR.public_key
    ) -> ParticipationResult:
        """Agree to a study, if that was not done before, and take part in it."""
        offer = Offer(desk.url, StudyHandle(manifest), key)
        with ExitStack() as stack:
            ledger = stack.enter_context(LedgerFile(self.path, self.clock))
            journal = stack.enter_context(FragileJournal(self.path, self.clock))
            journal.shake = self.shake
            ledger.set_limit(Limit(None, grains_down(100.0), delta_grains=DELTA_GRAINS - 1))
            record_consent(journal, offer, "rows.csv", self.entropy.spawn("ticket"), role=self.role)
            return await take_part(
                offer,
                self.table,
                journal,
                CrashingLedger(ledger, self.shake),
                desk,
                self.clock,
                # A restarted process draws other values than the one before it.
                self.entropy.spawn("life", self.n_crashes),
                computer=self.computer,
                role=self.role,
                on_progress=self.said.append,
            )

    async def join_again(self, desk: Client, manifest: Manifest) -> ParticipationResult:
        """Take part, and again after each crash."""
        while True:
            try:
                return await self.join(desk, manifest)
            except CrashError:
                self.n_crashes += 1

    def shake(self) -> None:
        if self.crash and self.chance.below(self.crash) == 0:
            raise CrashError

    @cached_property
    def chance(self) -> SeededEntropy:
        """Stream that decides about crashes."""
        return self.entropy.spawn("crashes")


def people(folder: Path, tables: list[Table], seed: int | str = 0) -> list[Person]:
    """Return a participant for each table."""
    return [
        Person(folder / f"{i}.db", table, SeededEntropy(seed).spawn("person", i))
        for i, table in enumerate(tables)
    ]


async def together(
    desk: Client, manifest: Manifest, everyone: list[Person]
) -> list[ParticipationResult]:
    """Run all participants concurrently."""
    return list(await asyncio.gather(*(one.join_again(desk, manifest) for one in everyone)))


PROCESSES = multiprocessing.get_context("forkserver")


@contextmanager
def child(
    work: Callable[..., None], *arguments: object
) -> Iterator[tuple[Connection, Callable[[], None]]]:
    """Yield the link to a new process and a function that kills it; end the process at the end."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=work, args=(*arguments, there), daemon=True)
    process.start()
    there.close()

    def kill() -> None:
        process.kill()
        process.join()

    try:
        yield here, kill
    finally:
        kill()
        process.close()
        here.close()
