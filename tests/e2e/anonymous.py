"""Anonymous studies between real processes: coordinator, relay, fleet, capture and cheats.

The tests of `test_anonymous_*` and `test_token_crashes` use this module. A study here has one
window in real time; `run_with_retries` repeats it with a longer window if the machine was too slow.
"""

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

from shoal.attacks.linker import Trace, assign_reads
from shoal.clock import SystemClock
from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.publishing import load_or_create_secrets
from shoal.coordinator.store import open_store
from shoal.coordinator.studies import encode_result
from shoal.crypto.credentials.issuance import Credential, Issuer, Registration
from shoal.crypto.credentials.tokens import read_pseudonym
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.messages.codec import decode, encode
from shoal.participant.client import Client, RefusedError
from shoal.participant.keys import derive_identity
from shoal.participant.network import parse_via
from shoal.protocols.anonml.aggregator import AnonMLAggregator, AnonMLResult
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk
from shoal.protocols.base import START, Finish
from shoal.study.anonml import build_script
from shoal.study.delivery import TokenSlots, compute_scope, hash_pseudonym
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.schedule import PhaseWindow
from shoal.transport import bhttp
from shoal.transport.api import (
    GATEWAY,
    PACKETS,
    Enrolment,
    MessagePage,
    PacketBatch,
    SignedManifest,
    from_cbor,
    study_route,
)
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import Packet
from tests.support.http import Keys, Request, Segment, connections, requests
from tests.support.participants import compute_packet_size
from tests.support.servers import ENVIRONMENT, PATIENCE, Coordinator, Participant
from tests.support.tls import Certificates

R, T = TypeVar("R"), TypeVar("T")

N_ATTEMPTS = 4
READS = ("board", "members", "received")
"""Unsigned requests of participants."""
_LAST = 10**15 - 1
_N_TRIES = 5
"""Requests of a cheat that may time out within the time it has."""


class TooSlowError(Exception):
    """The machine was too busy: something that belongs into a study's window came too late."""


def run_with_retries(run: Callable[[Path, float], R], window: float) -> R:
    """Run a study, again with a longer window if the machine was too busy for the last one.

    Raise `TooSlowError` if the last attempt was too slow too.

    Parameters
    ----------
    run
        Receives an empty directory and the length of the window.
    window
        Seconds of the first window; each later one is twice as long.
    """
    for attempt in range(N_ATTEMPTS):
        try:
            with temporary_folder() as home:
                return run(home, window * 2**attempt)
        except TooSlowError as error:
            print(f"{window * 2**attempt:g} s are too few: {error}")
            if attempt == N_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt has ended")


class Relay:
    """A process of ``shoal relay`` that listens; it logs the TLS keys of its connections."""

    def __init__(self, home: Path, port: int, to: str, tls: Certificates) -> None:
        self.home, self.keys = home, home / "relay-keys"
        words = (
            "--to",
            to,
            "--port",
            str(port),
            "--ca",
            tls.ca,
            "--tls-cert",
            tls.certificate,
            "--tls-key",
            tls.key,
            "--json",
        )
        command = [sys.executable, "-m", "shoal", "relay", *map(str, words)]
        environment = {**ENVIRONMENT, "SSLKEYLOGFILE": str(self.keys)}
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE)[1]
        self.notice: dict[str, Any] = json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def end(self) -> tuple[int, str]:
        """Stop the process; return its exit code and its standard error."""
        self.process.terminate()
        _, trouble = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, trouble


class Fleet:
    """A process with many participants; it logs the TLS keys of all connections.

    With ``--from-addresses`` each participant connects from a different loopback address.
    """

    def __init__(
        self,
        home: Path,
        coordinator: Coordinator,
        data: Path,
        n: int,
        tls: Certificates,
        *words: str,
    ) -> None:
        self.home, self.n, self.keys = home, n, home / "fleet-keys"
        given = (
            coordinator.url,
            "--data",
            data,
            "--participants",
            n,
            "--directory",
            home / "people",
            "--ca",
            tls.ca,
            *words,
        )
        command = [sys.executable, "-m", "shoal.cli.fleet", *map(str, given)]
        environment = {**ENVIRONMENT, "SSLKEYLOGFILE": str(self.keys)}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self, window: float) -> str:
        """Wait for the end of a study with such a window; return the output."""
        said, _ = self.process.communicate(timeout=PATIENCE + window)
        return said

    def check(self, said: str) -> None:
        """Check that all participants have finished, by the last line of the output."""
        assert (
            self.process.returncode == 0
            and said.splitlines()[-1] == f"{self.n} of {self.n}: {self.n} finished"
        ), said[-2000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def people(self) -> list[Participant]:
        return [Participant(self.home / "people", f"participant-{i:05d}") for i in range(self.n)]

    def address(self, i: int) -> str:
        """Return the address from which a participant connects."""
        return f"127.0.{i // 250 + 1}.{i % 250 + 1}"


@dataclass(frozen=True)
class Sent:
    """The one packet that a participant has sent, as stored in its file."""

    who: str
    key: bytes
    ticket: bytes
    packet: Packet

    @property
    def pseudonym(self) -> bytes:
        return read_pseudonym(self.packet.token)

    @property
    def name(self) -> bytes:
        """Name of the packet in the coordinator's store."""
        return hash_pseudonym(self.pseudonym)


def read_sent_packets(people: Sequence[Participant], manifest: Manifest) -> list[Sent]:
    """Return the packets of participants, from their files."""
    found = []
    for one in people:
        with closing(sqlite3.connect(one.ledger)) as db:
            ((packet,),) = db.execute(
                "SELECT packet FROM packets WHERE study = ?", (manifest.digest.hex(),)
            ).fetchall()
        key = derive_identity(manifest, one.seed()).public_key
        opened = Packet.from_bytes(packet, compute_packet_size(manifest))
        answer = decode(opened.answer, MESSAGES, manifest.digest)
        assert isinstance(answer, AnonMLAnswer)
        found.append(Sent(one.name, key, answer.ticket, opened))
    return found


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a directory in memory if possible: each step synchronises files to the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


def fetch_manifest(coordinator: Coordinator) -> Manifest:
    """Return the manifest of a coordinator's first study."""
    return Manifest.from_bytes(
        from_cbor(coordinator.get("manifest").content, SignedManifest).manifest
    )


def fetch_window(coordinator: Coordinator) -> PhaseWindow:
    """Return the window of the first phase of a coordinator's first study."""
    page = from_cbor(coordinator.get("board?after=0&wait=30").content, MessagePage)
    ask = decode(page.letters[0].payload, MESSAGES, bytes.fromhex(coordinator.studies[0]))
    assert isinstance(ask, AnonMLAsk)
    return PhaseWindow(ask.opened, ask.closes)


def wait_for_model(coordinator: Coordinator, window: float) -> bytes:
    """Wait for the end of a study with such a window; return the published model."""
    deadline = time.monotonic() + PATIENCE + window
    while (
        from_cbor(coordinator.get(f"board?after={_LAST}&wait=30").content, MessagePage).status
        == "open"
    ):
        assert time.monotonic() < deadline, "the study did not end"
    return coordinator.get("model").content


def compute_model(manifest: Manifest, packets: Sequence[Packet]) -> bytes:
    """Return the model of some answers, computed in this process."""
    script, entropy = build_script(manifest.study, manifest.digest), SystemEntropy()
    aggregator = AnonMLAggregator(manifest.digest, script, phase_timeout=timedelta(days=1))
    state, _ = aggregator.on_start(aggregator.initial_state(), START, entropy)
    for packet in packets:
        state, _ = aggregator.on_message(
            state, "somebody", decode(packet.answer, MESSAGES, manifest.digest), START, entropy
        )
    _, (end,) = aggregator.on_tick(state, START + timedelta(days=1), entropy)
    assert isinstance(end, Finish) and isinstance(end.result, AnonMLResult)
    return encode_result(StudyHandle(manifest), end.result)


class Cheat:
    """A registered participant that sends invalid packets, and a sender without registration.

    Attributes
    ----------
    sent
        The two packets under one pseudonym, of which one may count.
    n_again
        Number of repeated requests; the first of each may have arrived.
    """

    def __init__(
        self,
        manifest: Manifest,
        coordinator: Coordinator,
        tls: Certificates,
        via: str | None = None,
    ) -> None:
        self.manifest, self.sent, self.n_again = manifest, list[Packet](), 0
        self._slots, self._entropy = TokenSlots(manifest), SystemEntropy()
        self._script = build_script(manifest.study, manifest.digest)
        self._via = parse_via(
            via,
            coordinator.url,
            self._entropy,
            ca=tls.ca,
            manifest=manifest,
            local_address=None if via else "127.0.9.9",
        )
        self._client = Client(coordinator.url, SystemClock(), self._entropy, network_path=self._via)

    def send(self, until: datetime) -> None:
        """Send two answers, one to an unassigned question, and one with a forged credential."""
        now = SystemClock().now
        seconds = max(0.0, (until - now()).total_seconds())
        self._try_seconds = seconds / _N_TRIES
        try:
            asyncio.run(asyncio.wait_for(self._send(), seconds))
        except (TimeoutError, RefusedError) as error:
            if now() < until:
                raise
            raise TooSlowError(
                f"the window ended before the cheats had sent all packets; {self.n_again} "
                "requests were repeated"
            ) from error

    async def _send(self) -> None:
        study, issuer_key = self.manifest.digest.hex(), self.manifest.issuer_key
        assert issuer_key is not None
        scope = compute_scope(self.manifest)
        async with self._client as client, client.open_isolated() as apart:
            await self._insist(partial(self._via.check, StudyHandle(self.manifest)))
            registration = Registration.draw(self._entropy)
            commitment = registration.make_commitment(issuer_key, scope)
            form, identity = (
                Enrolment(commitment=commitment.hex()),
                Identity.from_seed(self._entropy.bytes(32)),
            )
            enrolled = await self._insist(partial(client.enrol, study, identity, form))
            assert enrolled.issued is not None
            credential = registration.accept(issuer_key, scope, bytes.fromhex(enrolled.issued))
            own = self._question(credential)
            self.sent = [self._packet(credential, own, cell) for cell in (0, 1)]
            assert self.sent[0].answer != self.sent[1].answer
            others = [self._packet(credential, 1 - own, 0), self._packet(self._forge(), None, 0)]
            size = compute_packet_size(self.manifest)
            sealed = [
                self._via.seal(study, packet.to_bytes(size)) for packet in (*self.sent, *others)
            ]
            # The same bytes again change nothing.
            for data in (*sealed, sealed[0]):
                await self._insist(partial(self._via.post_packet, study, data, apart))

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until it succeeds; a circuit of Tor may never be built."""

        async def ask_in_time() -> T:
            try:
                return await asyncio.wait_for(ask(), self._try_seconds)
            except TimeoutError:
                raise TransportError("NET-004", "The request timed out.") from None

        def again(_: object) -> None:
            self.n_again += 1

        return await self._client.retry(ask_in_time, again)

    def check(self, refused: Mapping[str, int]) -> None:
        """Check that each invalid packet was rejected and counted, and nothing else."""
        assert set(refused) == {"HOST-005", "ANONML-001", "TOKEN-001"}
        assert len(refused) <= sum(refused.values()) <= len(refused) + self.n_again, refused

    def _forge(self) -> Credential:
        """Return a credential of an issuer that the study does not know."""
        issuer, registration = (
            Issuer.from_seed(self._entropy.bytes(32)),
            Registration.draw(self._entropy),
        )
        scope = compute_scope(self.manifest)
        issued = issuer.issue(
            scope, registration.make_commitment(issuer.key, scope), 0, self._entropy
        )
        return registration.accept(issuer.key, scope, issued)

    def _question(self, credential: Credential) -> int:
        words = ticket_words(self.manifest.digest, self._ticket(credential))
        (question,) = self._script.list_question_numbers(
            0, int(self._script.assign_groups(0, words)[0])
        )
        return question

    def _ticket(self, credential: Credential) -> bytes:
        return self._slots.compute_ticket(
            credential.compute_pseudonym(self._slots.encode_context(0)), credential.partition
        )

    def _packet(self, credential: Credential, question: int | None, cell: int) -> Packet:
        """Return a packet with an answer to a question, by default to the assigned one.

        Reports for different cells differ.
        """
        number = self._question(credential) if question is None else question
        mechanism = self._script.questions(0, self._script.publish(()))[number].mechanism
        assert mechanism is not None
        reports = {mechanism.encode(mechanism.report(cell, self._entropy)) for _ in range(200)}
        report = sorted(reports)[cell]
        answer = AnonMLAnswer(
            study=self.manifest.digest,
            ticket=self._ticket(credential),
            phase=0,
            question=number,
            report=report,
        )
        context = self._slots.encode_context(self._slots.find_question_slot(0, number))
        return Packet(
            credential.mint(context, encode(answer), self._entropy),
            credential.partition,
            encode(answer),
        )


class View:
    """Decrypted requests of a capture: those to the relay, and those to the coordinator.

    Parameters
    ----------
    keys
        TLS keys. Connections without keys are left out.
    """

    def __init__(
        self, segments: Sequence[Segment], keys: Keys, relay_port: int, coordinator_port: int
    ) -> None:
        self.connections = connections(segments)
        known = {random for _, random in keys}
        opened = [one for one in self.connections if one.sent[11:43] in known]
        self.to_relay = [
            request
            for one in opened
            if one.server[1] == relay_port
            for request in requests(one, keys)
        ]
        self.to_coordinator = [
            request
            for one in opened
            if one.server[1] == coordinator_port
            for request in requests(one, keys)
        ]

    def batches(self, study: str) -> list[tuple[Request, bytes]]:
        """Return the sealed packets that the coordinator received, in order, with the requests."""
        route = study_route(study, "batches")
        batches = sorted(
            (one for one in self.to_coordinator if one.path == route), key=lambda one: one.time
        )
        return [
            (one, packet) for one in batches for packet in from_cbor(one.body, PacketBatch).packets
        ]

    def opened(self, gateway: Gateway) -> list[tuple[Request, bhttp.BinaryRequest]]:
        """Return the requests that the gateway received, sealed and opened."""
        sealed = sorted(
            (one for one in self.to_coordinator if one.path == GATEWAY), key=lambda one: one.time
        )
        return [(one, bhttp.BinaryRequest.from_bytes(gateway.open(one.body)[0])) for one in sealed]

    def posted(self, study: str) -> list[Request]:
        """Return the requests with sealed packets that the relay received."""
        return [one for one in self.to_relay if one.path == f"{PACKETS}/{study}"]


def load_gateway(store: str) -> Gateway:
    """Return the gateway of a coordinator, from its store."""
    with open_store(store) as opened:
        secrets, _ = load_or_create_secrets(opened, SystemEntropy())
    return Gateway.from_seed(CoordinatorKeys(secrets.signing_seed).gateway_secret)


def make_trace(
    kind: str, request: Request, size: int, headers: tuple[tuple[str, str], ...] | None = None
) -> Trace:
    """Return what the receiver of a request sees of it."""
    link, shown = request.connection, request.headers if headers is None else headers
    return Trace(kind, request.time, link.client[0], link.name, size, shown, request.until)


def list_known_traces(
    study: str,
    people: Sequence[Sent],
    received: Iterable[tuple[Request, str, tuple[tuple[str, str], ...]]],
) -> list[tuple[str, Trace]]:
    """Return a coordinator's traces of participants: signed requests, and reads assigned to them.

    Parameters
    ----------
    received
        Requests, each with its path and headers.
    """
    keys = {one.key.hex(): one.who for one in people}
    named, reads = list[tuple[str, Trace]](), {kind: list[Trace]() for kind in READS}
    for request, path, headers in received:
        signed = next((value for name, value in headers if name.lower() == "authorization"), "")
        named += [
            (who, make_trace("enrolment", request, len(request.body), headers))
            for key, who in keys.items()
            if key in signed
        ]
        for kind, found in reads.items():
            if path.partition("?")[0] == study_route(study, kind):
                found.append(make_trace(kind, request, len(request.body), headers))
    assert {who for who, _ in named} == set(keys.values()) and reads["board"]
    # Each kind of read is one chain: a participant may read a list while it polls broadcasts.
    chains = [
        (who, trace)
        for found in reads.values()
        for who, trace in assign_reads(named, found)
        if trace.kind != "enrolment"
    ]
    return sorted([*named, *chains], key=lambda pair: pair[1].time or 0.0)


def read_files(*homes: Path) -> dict[str, bytes]:
    """Return the files directly in some directories."""
    return {
        path.name: path.read_bytes() for home in homes for path in home.iterdir() if path.is_file()
    }
