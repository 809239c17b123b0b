"""A coordinator that takes packets with tokens, a relay, and a time that passes when everyone waits: all in one process, without HTTP."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from sqlite3 import Connection
from typing import Any

import httpx2
import pytest

from participants import COORDINATOR, Desk, FragileJournal, Person, study_of
from shoal.crypto.credentials import Issuer
from shoal.crypto.roster import Identity
from shoal.crypto.tokens import Presented, Verifier, pseudonym_of
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode
from shoal.participant import credentials, identity, offers, runner
from shoal.participant.client import Client, RefusedError
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, take_up
from shoal.participant.runner import Finished
from shoal.participant.via import Via
from shoal.privacy.events import Unit
from shoal.privacy.limits import Limit, Period
from shoal.privacy.rounding import DELTA_GRAINS, grains_down
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask
from shoal.protocols.base import Tick
from shoal.sim.faults import CrashError, FragileLedger
from shoal.study.anonymity import Slots, Window, has_tokens, name_of_pseudonym, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.forms import Enrolled, Enrolment, Members, Received
from shoal.transport.packets import Packet, packet_size

ISSUER = Issuer.from_seed(bytes(range(32)))

_YIELDS = 40
"""So often everyone else is let go on before time does."""


def token_manifest(protocol: str = "anonml", n: int = 3, epoch: str | None = None, **more: Any) -> Manifest:
    """A study that admits by tokens."""
    return Manifest(study_of(protocol, n, **more), issuer_key=ISSUER.key, epoch=epoch)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded randomness for what would be real: only test code can have it."""
    for module in (runner, identity, offers, credentials):
        monkeypatch.setattr(module, "require_system", lambda entropy: entropy)


class Relayed(Via):
    """Packets go to a relay's spool, which hands them on twice in a window; now and then it loses what it has acknowledged."""

    name = "ohttp"
    words = "through a relay"

    def __init__(self, desk: TokenDesk) -> None:
        self.desk = desk

    def transport(self, *, is_apart: bool) -> httpx2.AsyncBaseTransport:
        raise AssertionError("a desk needs none")

    def allow(self, manifest: Manifest) -> None:
        pass

    async def check(self, manifest: Manifest) -> None:
        self.desk.n_checked += 1

    def seal(self, _study: str, packet: bytes) -> bytes:
        return self.desk.entropy.bytes(16) + packet

    async def post_packet(self, study: str, sealed: bytes, client: Client) -> None:
        await self.desk._call(lambda: self.desk.spooled(sealed))


class TokenDesk(Desk):
    """The study's real aggregator behind real tokens.

    Attributes
    ----------
    packets
        Every packet that came, with the time.
    answers
        The answers under each pseudonym: more than one would be a second answer.
    """

    def __init__(self, manifest: Manifest, seed: int | str = 0, *, loss: int = 0, has_relay: bool = False) -> None:
        super().__init__(manifest, seed, loss=loss)
        self.is_hasty = False
        if has_relay:
            self.via = Relayed(self)
        self.scope, self.slots = scope_of(manifest), Slots(manifest)
        self.verifier = Verifier(ISSUER.key, self.scope)
        self.registered: dict[bytes, tuple[bytes, bytes]] = {}
        self.packets: list[tuple[float, bytes]] = []
        self.sealed: list[bytes] = []
        self.spool: set[bytes] = set()
        self.lost: set[int] = set()
        self.answers: dict[bytes, set[bytes]] = {}
        self.bad: list[str] = []
        self.hidden: set[bytes] = set()
        self.n_checked = self.n_looks = self.n_members = 0
        self._sleepers: list[tuple[Any, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._sleep = self._wait

    async def submit_packet(self, study: str, packet: bytes) -> None:
        await self._call(lambda: self._packet(packet))

    async def members(self, study: str) -> Members:
        self.n_members += 1
        return await self._call(lambda: Members(joined=b"".join(sorted(set(self.registered) - self.hidden))))

    async def received(self, study: str) -> Received:
        self.n_looks += 1
        return await self._call(self._received)

    def _enrol(self, key: bytes, form: Enrolment) -> Enrolled:
        if not has_tokens(self.manifest):
            return super()._enrol(key, form)
        assert form.ticket is None and form.commitment is not None
        commitment = bytes.fromhex(form.commitment)
        if self.registered.get(key, (commitment,))[0] != commitment:
            raise RefusedError("ENROL-002", "Another commitment.", status=409)
        if key not in self.registered:
            issued = ISSUER.issue(self.scope, commitment, self.entropy.below(self.slots.n_places), self.entropy)
            self.registered[key] = commitment, issued
        self.enrolled[key] = f"person-{sorted(self.registered).index(key)}"
        return Enrolled(name=self.enrolled[key], issued=self.registered[key][1].hex())

    def spooled(self, sealed: bytes) -> None:
        self.sealed.append(sealed)
        if len(self.sealed) - 1 not in self.lost:
            self.spool.add(sealed)

    def _packet(self, data: bytes) -> None:
        self.packets.append((self.time.now().timestamp(), data))
        packet = Packet.from_bytes(data, packet_size(self.manifest))
        answer = decode(packet.answer, MESSAGES, self.manifest.digest)
        assert isinstance(answer, Answer)
        context, pseudonym = self.slots.context(self.slots.of_question(answer.phase, answer.question)), pseudonym_of(packet.token)
        try:
            self.verifier.verify(Presented(packet.token, context, packet.answer, packet.place))
            assert answer.ticket == self.slots.ticket(pseudonym, packet.place)
        except RemoteProtocolError as error:
            self.bad.append(error.code)
            return
        known = self.answers.setdefault(pseudonym, set())
        if not known and self.slots.n_places == 1 and self.status == "open":
            self._take("", packet.answer)
        known.add(packet.answer)

    def _received(self) -> Received:
        window = self.window()
        if self.status == "open" and not window.collects_until <= self.time.now() < window.closes:
            raise RefusedError("HOST-002", "Not now.", status=409)
        return Received(phase=0, names=b"".join(sorted(name_of_pseudonym(pseudonym) for pseudonym in self.answers)))

    def window(self) -> Window:
        """That of the phase which was opened last; of a study of devices, none that ends."""
        if self.manifest.study.protocol == "ddml":
            return Window(self.time.now(), self.time.now() + timedelta(days=1))
        ask = decode(self.letters[-1][2], MESSAGES, self.manifest.digest)
        assert isinstance(ask, Ask)
        return Window(ask.opened, ask.closes)

    async def _wait(self, seconds: float) -> None:
        done = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.time.now() + timedelta(seconds=seconds), next(self._numbers), done))
        await done

    async def pass_time(self) -> None:
        """Have time pass as soon as everyone waits for it."""
        released: set[Any] = set()
        while True:
            for _ in range(_YIELDS):
                await asyncio.sleep(0)
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            times = [when for when, *_ in self._sleepers[:1]] + self.alarms[:1]
            window = self.window() if self.status == "open" else None
            times += [] if window is None else [when for when in (window.collects_until, window.resends_until) if when not in released]
            if not times:
                continue
            when = min(times)
            self.time.advance(max(0.0, (when - self.time.now()).total_seconds()))
            if window is not None and when in (window.collects_until, window.resends_until) and when not in released:
                released.add(when)
                for sealed in sorted(self.spool):
                    self._packet(sealed[16:])
                self.spool.clear()
            elif self.alarms and self.alarms[0] == when:
                heapq.heappop(self.alarms)
                if self.status == "open":
                    self._step(Tick())
            else:
                heapq.heappop(self._sleepers)[2].set_result(None)


class ShakyJournal(FragileJournal):
    """A journal whose caller may go down before or after everything that is written."""

    def change(self) -> AbstractContextManager[Connection]:
        return self._shaken()

    @contextmanager
    def _shaken(self) -> Iterator[Connection]:
        self.shake()
        with super().change() as db:
            yield db
        self.shake()


@dataclass
class Holder(Person):
    """A person with tokens; goes down at one step that is counted, or now and then."""

    crash_at: int = -1
    n_steps: int = 0
    told: list[str] = field(default_factory=list)

    def shake(self) -> None:
        self.n_steps += 1
        if self.n_steps == self.crash_at:
            raise CrashError
        super().shake()

    async def join(self, desk: Client, manifest: Manifest, key: bytes = COORDINATOR.public) -> Finished:
        offer = Offer(desk.url, manifest, manifest.digest.hex(), key)
        with ExitStack() as stack:
            ledger = stack.enter_context(LedgerFile(self.path, self.clock))
            journal = stack.enter_context(ShakyJournal(self.path, self.clock))
            journal.shake = lambda: None
            for unit in Unit:
                ledger.set_limit(Limit(unit, grains_down(100.0), period=Period.EVER, delta_grains=DELTA_GRAINS - 1))
            take_up(journal, offer, "rows.csv", self.entropy.spawn("ticket"), role=self.role)
            journal.shake = self.shake
            who = journal, FragileLedger(ledger, self.shake), offer, self.table, desk, self.clock
            return await runner.run(*who, self.entropy.spawn("life", self.n_crashes), role=self.role, on_progress=self.told.append)


def play(desk: TokenDesk, everyone: list[Holder]) -> list[Finished | BaseException]:
    """Have all of them take part, and again after each crash, while time passes; how each ended."""

    async def all_of_them() -> list[Finished | BaseException]:
        passing = asyncio.create_task(desk.pass_time())
        try:
            joins = (one.join_again(desk, desk.manifest) for one in everyone)
            return list(await asyncio.wait_for(asyncio.gather(*joins, return_exceptions=True), 60))
        finally:
            passing.cancel()

    return asyncio.run(all_of_them())


def key_of(person: Holder, manifest: Manifest) -> Identity:
    """The key of a person in a study."""
    with Journal(person.path, person.clock) as journal:
        seed = journal.seed()
    assert seed is not None
    return identity.identity_for(manifest, seed)
