"""Studies small enough to run in a test, participants with files of their own, and a coordinator in this process that fails on purpose."""

from __future__ import annotations

import asyncio
import heapq
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from shoal.clock import ManualClock
from shoal.coordinator.aggregators import aggregator_of, names_of
from shoal.coordinator.store.base import Hosted
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import TransportError
from shoal.messages.base import Array
from shoal.messages.codec import decode, encode
from shoal.participant import identity as identities
from shoal.participant import offers, runner
from shoal.participant.client import Client, RefusedError
from shoal.participant.journal import Journal, Role, Step
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, take_up
from shoal.participant.runner import Finished
from shoal.privacy.events import Unit
from shoal.privacy.limits import Limit, Period
from shoal.privacy.rounding import DELTA_GRAINS, grains_down
from shoal.protocols.base import AGGREGATOR, EVERYONE, Abort, Computer, Finish, Host, Input, Outbound, Outcome, Sent, Started, Tick, WakeAt
from shoal.protocols.ddml.aggregator import DDMLAggregator
from shoal.protocols.ddml.messages import ID_BYTES, Draw, Instance, Update
from shoal.sim.faults import CrashError, FragileLedger
from shoal.study import ddml
from shoal.study.manifest import Manifest, Member
from shoal.study.spec import Study
from shoal.tables import Table
from shoal.transport.forms import Enrolled, Enrolment, Letter, Letters, Poll, Published, Status
from shoal.transport.signing import sign_published

URL = "http://127.0.0.1:8700"
COORDINATOR = Identity.from_seed(bytes(range(32)))
PATIENCE = timedelta(minutes=1)

_IDLE = 30
"""Polls in a row that find nothing, after which nothing will come before the next alarm."""


def document_of(protocol: str, n: int = 3, **more: Any) -> dict[str, Any]:
    """The document of a study of two features among n participants, or for n rows each of three holders."""
    text = {"title": f"Wind, by {protocol}", "purpose": "When do we play?", "contact": "a@example.org"}
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


def study_of(protocol: str, n: int = 3, **more: Any) -> Study:
    """The study of `document_of`."""
    return Study.model_validate(document_of(protocol, n, **more))


def manifest_of(protocol: str, n: int = 3, keys: tuple[bytes, ...] = (), **more: Any) -> Manifest:
    """The manifest of such a study; with a roster where there are keys."""
    return Manifest(study_of(protocol, n, **more), roster=tuple(Member(f"site-{i}", key) for i, key in enumerate(keys)))


def table_of(n: int, seed: int | str = 0) -> Table:
    """Rows in which strong wind means no play, mostly."""
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
    """A directory in memory, where there is one: files are synchronised to the disk at every step."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | str], SeededEntropy]:
    """Seeded randomness for what would be real: only test code can have it."""
    for module in (runner, identities, offers):
        monkeypatch.setattr(module, "require_system", lambda entropy: entropy)
    return SeededEntropy


class Everyone(tuple[str, ...]):
    """Participants, of whom all together are written to by one letter."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return iter((EVERYONE,))


class Desk(Client):
    """A coordinator without HTTP: the study's real aggregator in a host, and what a `Client` asks for. It loses and doubles what it likes.

    Parameters
    ----------
    loss
        Of so many calls one fails, before or after it has had its effect; 0 for none.
    """

    def __init__(self, manifest: Manifest, seed: int | str = 0, *, loss: int = 0, identity: Identity = COORDINATOR, url: str = URL) -> None:
        self.entropy = SeededEntropy(seed)
        self.time = ManualClock()
        super().__init__(url, self.time, self.entropy.spawn("client"), transport=_nothing, sleep=_soon)
        self.manifest, self.identity, self.loss = manifest, identity, loss
        self.chance = self.entropy.spawn("loss")
        if manifest.study.protocol == "ddml":
            machine: Any = DDMLAggregator(manifest.digest, ddml.params_of(manifest.study), minimum=1, patience=PATIENCE)
        else:
            hosted = Hosted(manifest.digest.hex(), manifest.to_bytes(), 0, PATIENCE // timedelta(milliseconds=1))
            machine = aggregator_of(manifest, hosted)
        self.host = Host(AGGREGATOR, machine, None, Everyone((*names_of(manifest), "device")), self.entropy, machine.initial())
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

    def apart(self) -> Client:
        return self

    async def studies(self) -> list[dict[str, Any]]:
        return [{"digest": self.manifest.digest.hex(), "title": self.manifest.study.title, "status": self.status}]

    async def published(self, study: str) -> Published:
        manifest, signature = self.manifest.to_bytes(), sign_published(self.identity, self.manifest.digest)
        return Published(manifest=manifest, key=self.identity.public, signature=signature)

    async def enrol(self, study: str, identity: Identity, form: Enrolment) -> Enrolled:
        return await self._call(lambda: self._enrol(identity.public, form))

    async def message(self, study: str, identity: Identity, payload: bytes) -> None:
        await self._call(lambda: self._take(self.enrolled[identity.public], payload))

    async def submit(self, study: str, payload: bytes) -> None:
        await self._call(lambda: self._take("", payload))

    async def mailbox(self, study: str, identity: Identity, poll: Poll) -> Letters:
        return await self._call(lambda: self._letters(self.enrolled[identity.public], poll.after))

    async def board(self, study: str, after: int, wait: int = 0) -> Letters:
        return await self._call(lambda: self._letters(EVERYONE, after))

    async def draw(self, study: str) -> bytes:
        return await self._call(self._draw)

    async def update(
        self,
        study: str,
        body: bytes,
        number: int,
        *,
        identity: Identity | None = None,
        ticket: bytes | None = None,
        token: bytes | None = None,
    ) -> None:
        proof = (ticket or token) if identity is None else identity.public
        await self._call(lambda: self._update(body, None if proof is None else f"{proof.hex()} {number}"))

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
        names = names_of(self.manifest)
        name = roster.get(key) or self.enrolled.get(key) or (names[len(self.enrolled)] if names else f"person-{len(self.enrolled)}")
        self.enrolled[key] = name
        return Enrolled(name=name, position=names.index(name) if names else None)

    def _take(self, sender: str, payload: bytes) -> None:
        self.n_idle = 0
        self.came.append((sender, payload))
        if self.status != "open":
            raise RefusedError("HOST-002", "The study has ended.", status=410)
        self._step(Sent(self.time.now(), sender, AGGREGATOR, payload))

    def _letters(self, name: str, after: int) -> Letters:
        found = tuple(Letter(number=i, payload=payload) for i, to, payload in self.letters if i > after and to in (EVERYONE, name))
        self.n_idle = 0 if found or not self.is_hasty else self.n_idle + 1
        if self.n_idle > _IDLE * max(1, len(self.enrolled)) and self.alarms and self.status == "open":
            self.n_idle = 0
            self.time.advance(max(0.0, (heapq.heappop(self.alarms) - self.time.now()).total_seconds()))
            self._step(Tick())
        return Letters(letters=found, status=self.status)

    def _draw(self) -> bytes:
        if self.status != "open":
            raise RefusedError("HOST-002", "The study has ended.", status=410)
        n = len(self.letters)
        draw = Draw(study=self.manifest.digest, id=self.entropy.bytes(ID_BYTES))
        self._step(Sent(self.time.now(), "device", AGGREGATOR, encode(draw)))
        (letter,) = self.letters[n:]
        found = decode(letter[2], self.host.machine.messages, self.manifest.digest)
        assert isinstance(found, Instance)
        return found.epoch.to_bytes(8, "little") + found.weights.data

    def _update(self, body: bytes, proof: str | None) -> None:
        self.updates.append((body, proof))
        weights = Array.of(np.frombuffer(body[ID_BYTES + 8 :], "<i4").astype(np.int32))
        epoch = int.from_bytes(body[ID_BYTES : ID_BYTES + 8], "little")
        self._take("", encode(Update(study=self.manifest.digest, id=body[:ID_BYTES], epoch=epoch, weights=weights)))

    def _step(self, given: Input | Sent) -> None:
        outcome = Outcome()
        handled = self.host.handle(given, self.time.now(), outcome)
        self.host.accept(handled)
        assert not outcome.failed, outcome.failed
        self.rejected += [one.error.code for one in outcome.rejected]
        for item in handled.work:
            match item:
                case Outbound(to, payload):
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
    """A journal whose caller may go down before or after each save."""

    shake: Callable[[], None]

    def save(self, study: str, step: Step) -> tuple[int, ...]:
        self.shake()
        numbers = super().save(study, step)
        self.shake()
        return numbers

    def delivered(self, study: str, *numbers: int) -> None:
        self.shake()
        super().delivered(study, *numbers)
        self.shake()


@dataclass
class Person:
    """A participant with a ledger and a journal of its own. Of so many durable steps, ``crash``, it goes down before or after one."""

    path: Path
    table: Table | None
    entropy: SeededEntropy
    role: Role = "sharer"
    computer: Computer | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    crash: int = 0
    n_crashes: int = 0
    said: list[str] = field(default_factory=list)

    def public(self) -> bytes:
        """Its master key."""
        with Journal(self.path, self.clock) as journal:
            return identities.master(journal, self.entropy.spawn("identity")).public

    async def join(self, desk: Client, manifest: Manifest, key: bytes = COORDINATOR.public) -> Finished:
        """Agree to a study, if that was not done before, and take part in it."""
        offer = Offer(desk.url, manifest, manifest.digest.hex(), key)
        with ExitStack() as stack:
            ledger = stack.enter_context(LedgerFile(self.path, self.clock))
            journal = stack.enter_context(FragileJournal(self.path, self.clock))
            journal.shake = self.shake
            for unit in Unit:
                ledger.set_limit(Limit(unit, grains_down(100.0), period=Period.EVER, delta_grains=DELTA_GRAINS - 1))
            take_up(journal, offer, "rows.csv", self.entropy.spawn("ticket"), role=self.role)
            return await runner.run(
                journal,
                FragileLedger(ledger, self.shake),
                offer,
                self.table,
                desk,
                self.clock,
                # What a process draws is not what the one before it has drawn.
                self.entropy.spawn("life", self.n_crashes),
                self.computer,
                role=self.role,
                on_progress=self.said.append,
            )

    async def join_again(self, desk: Client, manifest: Manifest) -> Finished:
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
        """What decides when it goes down."""
        return self.entropy.spawn("crashes")


def people(folder: Path, tables: list[Table], seed: int | str = 0) -> list[Person]:
    """A participant for each table."""
    return [Person(folder / f"{i}.db", table, SeededEntropy(seed).spawn("person", i)) for i, table in enumerate(tables)]


async def together(desk: Client, manifest: Manifest, everyone: list[Person]) -> list[Finished]:
    """All of them take part at once."""
    return list(await asyncio.gather(*(one.join_again(desk, manifest) for one in everyone)))
