"""Studies with tokens, their members and packets, and a coordinator that accepts them.

The coordinator (`TokenDesk`), a relay, and a clock that moves when all participants wait run in one
process, without HTTP.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from itertools import count
from sqlite3 import Connection
from typing import Any

import httpx2
import pytest

from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.crypto.credentials.issuance import Credential, Registration
from shoal.crypto.credentials.tokens import PresentedToken, TokenVerifier, read_pseudonym
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode, encode
from shoal.participant import keys, offers, runner
from shoal.participant.client import Client, RefusedError
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.network import NetworkPath
from shoal.participant.offers import Offer, record_consent
from shoal.participant.runner import ParticipationResult
from shoal.privacy.ledger.limits import Limit
from shoal.privacy.rounding import DELTA_GRAINS, grains_down
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk
from shoal.protocols.base import Tick
from shoal.simulation.network import CrashError, CrashingLedger
from shoal.study.anonml import build_script
from shoal.study.delivery import (
    TokenSlots,
    compute_scope,
    has_tokens,
    hash_pseudonym,
    needs_schedule,
)
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.schedule import PhaseWindow, Schedule
from shoal.transport.api import Enrolled, Enrolment, MemberList, ReceivedPackets
from shoal.transport.packets import Packet
from tests.support.coordinator import NOW, PATIENCE, make_manifest
from tests.support.participants import (
    COORDINATOR,
    Desk,
    FragileJournal,
    Person,
    compute_packet_size,
    take_part,
)
from tests.support.participants import (
    make_study as plain_study_of,
)
from tests.support.tokens import ISSUER

KEYS = CoordinatorKeys(bytes(range(32)))
RELAY = "https://relay.example.org"


def tokened(
    manifest: Manifest,
    keys: CoordinatorKeys = KEYS,
    *,
    epoch: str | None = None,
    relay: str | None = None,
) -> Manifest:
    """Return a study as ``shoal serve`` publishes it, with keys and schedule."""
    return scheduled(
        replace(
            manifest,
            issuer_key=keys.issuer.key,
            gateway_key=keys.gateway_key,
            epoch=epoch,
            relay=relay,
        )
    )


def scheduled(manifest: Manifest, opens: int = NOW, window: int = PATIENCE) -> Manifest:
    """Return a study with a schedule in milliseconds, if it needs one."""
    schedule = Schedule(opens, window) if needs_schedule(manifest) else None
    return replace(manifest, schedule=schedule)


@cache
def make_study(name: str, *, epoch: str | None = None, relay: str | None = None) -> Manifest:
    return tokened(make_manifest(name), epoch=epoch, relay=relay)


@cache
def make_slots(manifest: Manifest) -> TokenSlots:
    return TokenSlots(manifest)


@cache
def member(manifest: Manifest, i: int, keys: CoordinatorKeys = KEYS) -> Credential:
    """Return the credential of member ``i``, in the partition of its number."""
    entropy, scope = SeededEntropy(f"member {i}"), compute_scope(manifest)
    registration = Registration.draw(entropy)
    issued = keys.issuer.issue(
        scope,
        registration.make_commitment(keys.issuer.key, scope),
        i % make_slots(manifest).n_credential_partitions,
        entropy,
    )
    return registration.accept(keys.issuer.key, scope, issued)


def derive_ticket(manifest: Manifest, credential: Credential, slot: int = 0) -> bytes:
    slots = make_slots(manifest)
    return slots.compute_ticket(
        credential.compute_pseudonym(slots.encode_context(slot)), credential.partition
    )


def list_questions(manifest: Manifest, credential: Credential) -> list[tuple[int, int]]:
    """Return phase and number of all questions assigned to a member."""
    script, slots = build_script(manifest.study, manifest.digest), make_slots(manifest)
    found = []
    for slot in range(slots.n_slots):
        words = ticket_words(manifest.digest, derive_ticket(manifest, credential, slot))
        for phase in range(script.n_phases):
            asked = script.list_question_numbers(phase, int(script.assign_groups(phase, words)[0]))
            found += [
                (phase, question)
                for question in asked
                if slots.find_question_slot(phase, question) == slot
            ]
    return found


def make_answer(
    manifest: Manifest,
    credential: Credential,
    asked: tuple[int, int] | None = None,
    report: bytes = b"\1",
) -> bytes:
    """Return an answer to a question, by default to the first one assigned to the member."""
    phase, question = list_questions(manifest, credential)[0] if asked is None else asked
    ticket = derive_ticket(
        manifest, credential, make_slots(manifest).find_question_slot(phase, question)
    )
    return encode(
        AnonMLAnswer(
            study=manifest.digest, ticket=ticket, phase=phase, question=question, report=report
        )
    )


def packed(
    manifest: Manifest,
    credential: Credential,
    answer: bytes,
    slot: int = 0,
    *,
    seed: int = 0,
    place: int | None = None,
) -> bytes:
    """Return the packet of an answer."""
    token = credential.mint(make_slots(manifest).encode_context(slot), answer, SeededEntropy(seed))
    return Packet(token, credential.partition if place is None else place, answer).to_bytes(
        compute_packet_size(manifest)
    )


def make_packet(manifest: Manifest, i: int, report: bytes = b"\1") -> bytes:
    """Return the first packet of member ``i``."""
    credential = member(manifest, i)
    asked = list_questions(manifest, credential)[0]
    return packed(
        manifest,
        credential,
        make_answer(manifest, credential, asked, report),
        make_slots(manifest).find_question_slot(*asked),
    )


_YIELDS = 40
"""Number of times that all other tasks may run before the clock moves."""


def token_manifest(
    protocol: str = "anonml", n: int = 3, epoch: str | None = None, **more: Any
) -> Manifest:
    """Return a study that admits by tokens."""
    return scheduled(
        Manifest(plain_study_of(protocol, n, **more), issuer_key=ISSUER.key, epoch=epoch)
    )


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow seeded randomness in real runs; only tests can do this."""
    for module in (runner, keys, offers):
        monkeypatch.setattr(module, "require_system", lambda entropy: entropy)


class Relayed(NetworkPath):
    """A path to a relay's spool, which delivers twice in a window and may lose packets."""

    name = "ohttp"
    description = "through a relay"

    def __init__(self, desk: TokenDesk) -> None:
        self.desk = desk

    def make_transport(self, *, is_isolated: bool) -> httpx2.AsyncBaseTransport:
        raise AssertionError("a desk needs none")

    def check_allowed(self, manifest: Manifest) -> None:
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
    others
        Keys of further members, who do not take part.
    """

    def __init__(
        self, manifest: Manifest, seed: int | str = 0, *, loss: int = 0, has_relay: bool = False
    ) -> None:
        super().__init__(manifest, seed, loss=loss)
        self.is_hasty = False
        if has_relay:
            self.network_path = Relayed(self)
        self.scope, self.slots = compute_scope(manifest), TokenSlots(manifest)
        self.verifier = TokenVerifier(ISSUER.key, self.scope)
        self.registered: dict[bytes, tuple[bytes, bytes]] = {}
        self.packets: list[tuple[float, bytes]] = []
        self.sealed: list[bytes] = []
        self.spool: set[bytes] = set()
        self.lost: set[int] = set()
        self.answers: dict[bytes, set[bytes]] = {}
        self.bad: list[str] = []
        self.hidden: set[bytes] = set()
        self.others: list[bytes] = []
        self.n_checked = self.n_looks = self.n_members = 0
        self._sleepers: list[tuple[Any, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._sleep = self._wait

    async def submit_packet(self, study: str, packet: bytes) -> None:
        await self._call(lambda: self._packet(packet))

    async def fetch_members(self, study: str) -> MemberList:
        self.n_members += 1
        return await self._call(
            lambda: MemberList(
                joined=b"".join(sorted({*self.registered, *self.others} - self.hidden))
            )
        )

    async def fetch_received(self, study: str) -> ReceivedPackets:
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
            issued = ISSUER.issue(
                self.scope,
                commitment,
                self.entropy.below(self.slots.n_credential_partitions),
                self.entropy,
            )
            self.registered[key] = commitment, issued
        self.enrolled[key] = f"person-{sorted(self.registered).index(key)}"
        return Enrolled(name=self.enrolled[key], issued=self.registered[key][1].hex())

    def spooled(self, sealed: bytes) -> None:
        self.sealed.append(sealed)
        if len(self.sealed) - 1 not in self.lost:
            self.spool.add(sealed)

    def _packet(self, data: bytes) -> None:
        self.packets.append((self.time.now().timestamp(), data))
        packet = Packet.from_bytes(data, compute_packet_size(self.manifest))
        answer = decode(packet.answer, MESSAGES, self.manifest.digest)
        assert isinstance(answer, AnonMLAnswer)
        context, pseudonym = (
            self.slots.encode_context(self.slots.find_question_slot(answer.phase, answer.question)),
            read_pseudonym(packet.token),
        )
        try:
            self.verifier.verify(
                PresentedToken(packet.token, context, packet.answer, packet.partition)
            )
            assert answer.ticket == self.slots.compute_ticket(pseudonym, packet.partition)
        except RemoteProtocolError as error:
            self.bad.append(error.code)
            return
        known = self.answers.setdefault(pseudonym, set())
        if not known and self.slots.n_credential_partitions == 1 and self.status == "open":
            self._take("", packet.answer)
        known.add(packet.answer)

    def _received(self) -> ReceivedPackets:
        window = self.window()
        if self.status == "open" and not window.collects_until <= self.time.now() < window.closes:
            raise RefusedError("HOST-002", "Not now.", status=409)
        return ReceivedPackets(
            phase=0, names=b"".join(sorted(hash_pseudonym(pseudonym) for pseudonym in self.answers))
        )

    def window(self) -> PhaseWindow:
        """Window of the last opened phase; for DDML, a window without end."""
        if self.manifest.study.protocol == "ddml":
            return PhaseWindow(self.time.now(), self.time.now() + timedelta(days=1))
        ask = decode(self.letters[-1][2], MESSAGES, self.manifest.digest)
        assert isinstance(ask, AnonMLAsk)
        return PhaseWindow(ask.opened, ask.closes)

    async def _wait(self, seconds: float) -> None:
        done = asyncio.get_running_loop().create_future()
        heapq.heappush(
            self._sleepers,
            (self.time.now() + timedelta(seconds=seconds), next(self._numbers), done),
        )
        await done

    async def pass_time(self) -> None:
        """Let time pass when all participants wait for it."""
        released: set[Any] = set()
        while True:
            for _ in range(_YIELDS):
                await asyncio.sleep(0)
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            times = [when for when, *_ in self._sleepers[:1]] + self.alarms[:1]
            window = self.window() if self.status == "open" else None
            times += (
                []
                if window is None
                else [
                    when
                    for when in (window.collects_until, window.resends_until)
                    if when not in released
                ]
            )
            if not times:
                continue
            when = min(times)
            self.time.advance(max(0.0, (when - self.time.now()).total_seconds()))
            if (
                window is not None
                and when in (window.collects_until, window.resends_until)
                and when not in released
            ):
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
    """A journal that simulates a crash of its caller before or after each write."""

    def begin_write(self) -> AbstractContextManager[Connection]:
        return self._shaken()

    @contextmanager
    def _shaken(self) -> Iterator[Connection]:
        self.shake()
        with super().begin_write() as db:
            yield db
        self.shake()


@dataclass
class Holder(Person):
    """A person with tokens; it crashes at one counted step, or at random."""

    crash_at: int = -1
    n_steps: int = 0
    told: list[str] = field(default_factory=list)

    def shake(self) -> None:
        self.n_steps += 1
        if self.n_steps == self.crash_at:
            raise CrashError
        super().shake()

    async def join(
        self, desk: Client, manifest: Manifest, key: bytes = COORDINATOR.public_key
    ) -> ParticipationResult:
        offer = Offer(desk.url, StudyHandle(manifest), key)
        with ExitStack() as stack:
            ledger = stack.enter_context(LedgerFile(self.path, self.clock))
            journal = stack.enter_context(ShakyJournal(self.path, self.clock))
            journal.shake = lambda: None
            ledger.set_limit(Limit(None, grains_down(100.0), delta_grains=DELTA_GRAINS - 1))
            record_consent(journal, offer, "rows.csv", self.entropy.spawn("ticket"), role=self.role)
            journal.shake = self.shake
            return await take_part(
                offer,
                self.table,
                journal,
                CrashingLedger(ledger, self.shake),
                desk,
                self.clock,
                self.entropy.spawn("life", self.n_crashes),
                role=self.role,
                on_progress=self.told.append,
            )


def play(desk: TokenDesk, everyone: list[Holder]) -> list[ParticipationResult | BaseException]:
    """Run all people, again after each crash, while time passes; return how each ended."""

    async def all_of_them() -> list[ParticipationResult | BaseException]:
        passing = asyncio.create_task(desk.pass_time())
        try:
            joins = (one.join_again(desk, desk.manifest) for one in everyone)
            return list(await asyncio.wait_for(asyncio.gather(*joins, return_exceptions=True), 60))
        finally:
            passing.cancel()

    return asyncio.run(all_of_them())


def derive_key(person: Holder, manifest: Manifest) -> Identity:
    """Return the key of a person in a study."""
    with Journal(person.path, person.clock) as journal:
        seed = journal.read_seed()
    assert seed is not None
    return keys.derive_identity(manifest, seed)
