"""Anonymous studies between real processes: a coordinator, a relay and a fleet, a capture of all that goes between them, and cheats."""

from __future__ import annotations

import asyncio
import json
import select
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from capture import Segment, connections
from captured_http import Keys, Request, requests
from certificates import Certificates
from served import ENVIRONMENT, PATIENCE, Coordinator, Participant
from shoal.attacks.linker import Trace
from shoal.attacks.linker_reads import chained
from shoal.clock import SystemClock
from shoal.coordinator.keys import Keys as CoordinatorKeys
from shoal.coordinator.publishing import first_start
from shoal.coordinator.results import result_of
from shoal.coordinator.store.opening import open_store
from shoal.crypto.credentials import Credential, Issuer, Registration
from shoal.crypto.roster import Identity
from shoal.crypto.tokens import pseudonym_of
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.messages.codec import decode, encode
from shoal.participant.client import Client, RefusedError
from shoal.participant.identity import identity_for
from shoal.participant.via import via_of
from shoal.protocols.anonml.aggregator import AnonMLAggregator, Learned
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask
from shoal.protocols.base import START, Finish
from shoal.study.anonml import script_of
from shoal.study.anonymity import Slots, Window, name_of_pseudonym, scope_of
from shoal.study.manifest import Manifest
from shoal.transport import bhttp
from shoal.transport.forms import Batch, Enrolment, Letters, Published, from_cbor
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import Packet, packet_size
from shoal.transport.routes import GATEWAY, PACKETS, study_route

R, T = TypeVar("R"), TypeVar("T")

N_ATTEMPTS = 3
READS = ("board", "members", "received")
"""What participants ask for under no name."""
_LAST = 10**15 - 1
_TRY_SECONDS = 5.0


class TooSlowError(Exception):
    """A machine was too busy for the window of a study: what should have been done in it was done later, or not at all."""


def in_time(run: Callable[[Path, float], R], patience: float) -> R:
    """What comes of a study, tried with a longer window where this machine is too busy for it; the last time that is an error.

    Parameters
    ----------
    run
        Is given an empty directory and the length of the window.
    patience
        Seconds of the first window; each is twice as long as the one before.
    """
    for attempt in range(N_ATTEMPTS):
        try:
            with temporary_folder() as home:
                return run(home, patience * 2**attempt)
        except TooSlowError as error:
            print(f"{patience * 2**attempt:g} s are too few: {error}")
            if attempt == N_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt has ended")


class Relay:
    """A process of ``shoal relay`` that listens; it writes down the keys of its connections to the coordinator."""

    def __init__(self, home: Path, port: int, to: str, tls: Certificates) -> None:
        self.home, self.keys = home, home / "relay-keys"
        words = ("--to", to, "--port", str(port), "--ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key, "--json")
        command = [sys.executable, "-m", "shoal", "relay", *map(str, words)]
        environment = {**ENVIRONMENT, "SSLKEYLOGFILE": str(self.keys)}
        self.process = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE)[1]
        self.said: dict[str, Any] = json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said of trouble."""
        self.process.terminate()
        _, trouble = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, trouble


class Fleet:
    """A process with many participants, each of whom connects from an address of its own; it writes down the keys of all connections."""

    def __init__(self, home: Path, coordinator: Coordinator, data: Path, n: int, tls: Certificates, *words: str) -> None:
        self.home, self.n, self.keys = home, n, home / "fleet-keys"
        given = (coordinator.url, "--data", data, "--participants", n, "--directory", home / "people", "--ca", tls.ca, *words)
        command = [sys.executable, "-m", "shoal.participant.fleet", *map(str, given)]
        environment = {**ENVIRONMENT, "SSLKEYLOGFILE": str(self.keys)}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self, patience: float) -> str:
        """Wait until all have ended, in a study whose phase is so long; what was said."""
        said, _ = self.process.communicate(timeout=PATIENCE + patience)
        return said

    def check(self, said: str) -> None:
        """See that all have answered, as they said at the end."""
        assert self.process.returncode == 0 and said.splitlines()[-1] == f"{self.n} of {self.n}: {self.n} finished", said[-2000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def people(self) -> list[Participant]:
        return [Participant(self.home / "people", f"participant-{i:05d}") for i in range(self.n)]

    def address(self, i: int) -> str:
        """From where a participant connects."""
        return f"127.0.{i // 250 + 1}.{i % 250 + 1}"


@dataclass(frozen=True)
class Sent:
    """What a participant's file says of the one packet that it has sent."""

    who: str
    key: bytes
    ticket: bytes
    packet: Packet

    @property
    def pseudonym(self) -> bytes:
        return pseudonym_of(self.packet.token)

    @property
    def name(self) -> bytes:
        """Under which the coordinator has it."""
        return name_of_pseudonym(self.pseudonym)


def sent_by(people: Sequence[Participant], manifest: Manifest) -> list[Sent]:
    """The packets of participants, as their files have them."""
    found = []
    for one in people:
        with closing(sqlite3.connect(one.ledger)) as db:
            ((packet,),) = db.execute("SELECT packet FROM packets WHERE study = ?", (manifest.digest.hex(),)).fetchall()
        key = identity_for(manifest, one.seed()).public
        opened = Packet.from_bytes(packet, packet_size(manifest))
        answer = decode(opened.answer, MESSAGES, manifest.digest)
        assert isinstance(answer, Answer)
        found.append(Sent(one.name, key, answer.ticket, opened))
    return found


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A directory in memory, where there is one: files are synchronised to the disk at every step."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


def manifest_of(coordinator: Coordinator) -> Manifest:
    """The manifest that a coordinator publishes first."""
    return Manifest.from_bytes(from_cbor(coordinator.get("manifest").content, Published).manifest)


def window_of(coordinator: Coordinator) -> Window:
    """The window of a study's first phase."""
    letters = from_cbor(coordinator.get("board?after=0&wait=30").content, Letters).letters
    ask = decode(letters[0].payload, MESSAGES, bytes.fromhex(coordinator.studies[0]))
    assert isinstance(ask, Ask)
    return Window(ask.opened, ask.closes)


def model_when_done(coordinator: Coordinator, patience: float) -> bytes:
    """What a coordinator has published of a study whose phase is so long, once it has ended."""
    deadline = time.monotonic() + PATIENCE + patience
    while from_cbor(coordinator.get(f"board?after={_LAST}&wait=30").content, Letters).status == "open":
        assert time.monotonic() < deadline, "the study does not end"
    return coordinator.get("model").content


def model_of(manifest: Manifest, packets: Sequence[Packet]) -> bytes:
    """What comes of some answers, computed here."""
    script, entropy = script_of(manifest.study, manifest.digest), SystemEntropy()
    aggregator = AnonMLAggregator(manifest.digest, script, patience=timedelta(days=1))
    state, _ = aggregator.started(aggregator.initial(), START, entropy)
    for packet in packets:
        state, _ = aggregator.received(state, "somebody", decode(packet.answer, MESSAGES, manifest.digest), START, entropy)
    _, (end,) = aggregator.ticked(state, START + timedelta(days=1), entropy)
    assert isinstance(end, Finish) and isinstance(end.result, Learned)
    return result_of(manifest, end.result)


class Cheat:
    """A participant that has registered as it should, and then sends what it should not; and somebody who has not registered at all.

    Attributes
    ----------
    sent
        The two packets under one pseudonym, of which one may count.
    n_again
        How often something was asked or sent once more, since it was not known to have arrived.
    """

    def __init__(self, manifest: Manifest, coordinator: Coordinator, tls: Certificates, via: str | None = None) -> None:
        self.manifest, self.sent, self.n_again = manifest, list[Packet](), 0
        self._slots, self._entropy = Slots(manifest), SystemEntropy()
        self._script = script_of(manifest.study, manifest.digest)
        self._via = via_of(via, coordinator.url, self._entropy, ca=tls.ca, manifest=manifest, local_address=None if via else "127.0.9.9")
        self._client = Client(coordinator.url, SystemClock(), self._entropy, ca=tls.ca, via=self._via)

    def send(self, until: datetime) -> None:
        """Answer twice, answer another question than one's own, and answer with a credential of one's own making."""
        now = SystemClock().now
        try:
            asyncio.run(asyncio.wait_for(self._send(), max(0.0, (until - now()).total_seconds())))
        except (TimeoutError, RefusedError) as error:
            if now() < until:
                raise
            raise TooSlowError(f"the window is over before cheats have sent what they send, of which {self.n_again} once more") from error

    async def _send(self) -> None:
        study, issuer_key = self.manifest.digest.hex(), self.manifest.issuer_key
        assert issuer_key is not None
        scope = scope_of(self.manifest)
        async with self._client as client, client.apart() as apart:
            await self._insist(partial(self._via.check, self.manifest))
            registration = Registration.draw(self._entropy)
            commitment = registration.commitment(issuer_key, scope)
            form, identity = Enrolment(commitment=commitment.hex()), Identity.from_seed(self._entropy.bytes(32))
            enrolled = await self._insist(partial(client.enrol, study, identity, form))
            assert enrolled.issued is not None
            credential = registration.accept(issuer_key, scope, bytes.fromhex(enrolled.issued))
            own = self._question(credential)
            self.sent = [self._packet(credential, own, cell) for cell in (0, 1)]
            assert self.sent[0].answer != self.sent[1].answer
            others = [self._packet(credential, 1 - own, 0), self._packet(self._forged(), None, 0)]
            size = packet_size(self.manifest)
            sealed = [self._via.seal(study, packet.to_bytes(size)) for packet in (*self.sent, *others)]
            # The same bytes again change nothing.
            for data in (*sealed, sealed[0]):
                await self._insist(partial(self._via.post_packet, study, data, apart))

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer; what takes long is asked anew, as a circuit of Tor may never be built."""

        async def in_time() -> T:
            try:
                return await asyncio.wait_for(ask(), _TRY_SECONDS)
            except TimeoutError:
                raise TransportError("NET-004", "It takes too long.") from None

        def again(_: object) -> None:
            self.n_again += 1

        return await self._client.insist(in_time, again)

    def check(self, refused: Mapping[str, int]) -> None:
        """See that what was sent is refused and counted, as often as it came; and nothing else is."""
        assert set(refused) == {"HOST-005", "ANONML-001", "TOKEN-001"}
        assert len(refused) <= sum(refused.values()) <= len(refused) + self.n_again, refused

    def _forged(self) -> Credential:
        """A credential by an issuer of one's own."""
        issuer, registration = Issuer.from_seed(self._entropy.bytes(32)), Registration.draw(self._entropy)
        scope = scope_of(self.manifest)
        issued = issuer.issue(scope, registration.commitment(issuer.key, scope), 0, self._entropy)
        return registration.accept(issuer.key, scope, issued)

    def _question(self, credential: Credential) -> int:
        words = words_of(self.manifest.digest, self._ticket(credential))
        (question,) = self._script.asked(0, int(self._script.group_of(0, words)[0]))
        return question

    def _ticket(self, credential: Credential) -> bytes:
        return self._slots.ticket(credential.pseudonym(self._slots.context(0)), credential.place)

    def _packet(self, credential: Credential, question: int | None, cell: int) -> Packet:
        """An answer to a question, by default to one's own; the report is such that two of different cells differ."""
        number = self._question(credential) if question is None else question
        mechanism = self._script.questions(0, self._script.publish(()))[number].mechanism
        assert mechanism is not None
        reports = {mechanism.encode(mechanism.report(cell, self._entropy)) for _ in range(200)}
        report = sorted(reports)[cell]
        answer = Answer(study=self.manifest.digest, ticket=self._ticket(credential), phase=0, question=number, report=report)
        context = self._slots.context(self._slots.of_question(0, number))
        return Packet(credential.mint(context, encode(answer), self._entropy), credential.place, encode(answer))


class View:
    """All that was captured, opened: what went to the relay, and what to the coordinator.

    Parameters
    ----------
    segments
        The capture.
    keys
        Of connections; others are left out.
    relay_port, coordinator_port
        Who is who.
    """

    def __init__(self, segments: Sequence[Segment], keys: Keys, relay_port: int, coordinator_port: int) -> None:
        self.connections = connections(segments)
        known = {random for _, random in keys}
        opened = [one for one in self.connections if one.sent[11:43] in known]
        self.to_relay = [request for one in opened if one.server[1] == relay_port for request in requests(one, keys)]
        self.to_coordinator = [request for one in opened if one.server[1] == coordinator_port for request in requests(one, keys)]

    def batches(self, study: str) -> list[tuple[Request, bytes]]:
        """The sealed packets that have come to the coordinator, in their order, each with the request that brought it."""
        route = study_route(study, "batches")
        batches = sorted((one for one in self.to_coordinator if one.path == route), key=lambda one: one.time)
        return [(one, packet) for one in batches for packet in from_cbor(one.body, Batch).packets]

    def opened(self, gateway: Gateway) -> list[tuple[Request, bhttp.Request]]:
        """The requests that have come to the gateway, sealed and opened."""
        sealed = sorted((one for one in self.to_coordinator if one.path == GATEWAY), key=lambda one: one.time)
        return [(one, bhttp.Request.from_bytes(gateway.open(one.body)[0])) for one in sealed]

    def posted(self, study: str) -> list[Request]:
        """The sealed packets that have come to the relay."""
        return [one for one in self.to_relay if one.path == f"{PACKETS}/{study}"]


def gateway_of(store: str) -> Gateway:
    """The gateway of a coordinator, from its file."""
    with open_store(store) as opened:
        secrets, _ = first_start(opened, SystemEntropy())
    return Gateway.from_seed(CoordinatorKeys(secrets.signing_seed).gateway)


def trace_of(kind: str, request: Request, size: int, headers: tuple[tuple[str, str], ...] | None = None) -> Trace:
    """What whoever receives a request sees of it."""
    link, shown = request.connection, request.headers if headers is None else headers
    return Trace(kind, request.time, link.client[0], link.name, size, shown, request.until)


def known_of(
    study: str, people: Sequence[Sent], asked: Iterable[tuple[Request, str, tuple[tuple[str, str], ...]]]
) -> list[tuple[str, Trace]]:
    """What a coordinator has of participants: all that they asked for under their names, and reads under none that seem to be theirs.

    Parameters
    ----------
    study, people
        The study, and who has what key.
    asked
        Requests, and the path and headers of each.
    """
    keys = {one.key.hex(): one.who for one in people}
    named, reads = list[tuple[str, Trace]](), {kind: list[Trace]() for kind in READS}
    for request, path, headers in asked:
        signed = next((value for name, value in headers if name.lower() == "authorization"), "")
        named += [(who, trace_of("enrolment", request, len(request.body), headers)) for key, who in keys.items() if key in signed]
        for kind, found in reads.items():
            if path.partition("?")[0] == study_route(study, kind):
                found.append(trace_of(kind, request, len(request.body), headers))
    assert {who for who, _ in named} == set(keys.values()) and reads["board"]
    # Each kind of read follows its own: who waits for news of the board may look at a list meanwhile.
    chains = [(who, trace) for found in reads.values() for who, trace in chained(named, found) if trace.kind != "enrolment"]
    return sorted([*named, *chains], key=lambda pair: pair[1].time or 0.0)


def files_of(*homes: Path) -> dict[str, bytes]:
    """All bytes in some directories, but not in those below them."""
    return {path.name: path.read_bytes() for home in homes for path in home.iterdir() if path.is_file()}
