"""A coordinator behind an HTTP client in one process, and captures of loopback traffic.

The coordinator has a real service, a real store and a fixed clock. The capture is a raw socket of
this process; it reassembles TCP connections and decrypts TLS 1.3 with logged keys.
"""

from __future__ import annotations

import ctypes
import math
import socket
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from httpx2 import Response
from starlette.testclient import TestClient

from shoal.clock import ManualClock
from shoal.coordinator.app import make_app
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.publishing import draw_invitations, load_or_create_secrets
from shoal.coordinator.scheduler import LEASE_SECONDS
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import Store
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.messages import codec
from shoal.messages.base import Array
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.protocols.pfds.messages import HolderTables
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.transport.api import CBOR, JSON, STUDIES, Enrolment, study_route, to_json
from shoal.transport.signing import sign_request
from tests.support.coordinator import publish_manifest

TEMPLATES = Path(__file__).parents[2] / "src/shoal/study/starters"

MANIFESTS = {
    name: Manifest(load_study(TEMPLATES / f"{name}.toml")) for name in ("anonml", "pfds", "ddml")
}
ANONML, PFDS, DDML = (MANIFESTS[name].digest.hex() for name in ("anonml", "pfds", "ddml"))


def participant(i: int = 0) -> Identity:
    return Identity.from_seed(SeededEntropy("participants").spawn(i).bytes(32))


def ticket(i: int = 0) -> bytes:
    return SeededEntropy("tickets").spawn(i).bytes(32)


def tables(seed: int = 0, manifest: Manifest = MANIFESTS["pfds"]) -> bytes:
    """Return a holder's message with unsuitable content, for the aggregator to reject."""
    return codec.encode(
        HolderTables(study=manifest.digest, counts=Array.from_values(np.array([seed], np.int64)))
    )


def answer(i: int = 0, **changes: Any) -> bytes:
    fields = {
        "study": MANIFESTS["anonml"].digest,
        "ticket": ticket(i),
        "phase": 0,
        "question": 0,
        "report": b"\x00",
    }
    return codec.encode(AnonMLAnswer(**{**fields, **changes}))


@dataclass
class Coordinator:
    """A coordinator, and what tests do to it and read from it."""

    http: TestClient
    service: CoordinatorService
    store: Store
    clock: ManualClock
    key: str
    invitations: tuple[str, ...] = ()
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy("nonces"))

    def call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine of the service in its event loop."""
        assert self.http.portal is not None
        return self.http.portal.call(work, *arguments)

    def get(self, study: str, what: str = "", **options: Any) -> Response:
        return self.http.get(study_route(study, what), **options)

    def header(
        self, target: str, body: bytes, who: Identity, method: str = "POST", late: float = 0
    ) -> str:
        time = int((self.clock.now().timestamp() - late) * 1000)
        return sign_request(who, method, target, body, time, self.entropy)

    def post(
        self, study: str, what: str, body: bytes = b"", kind: str | None = None, **headers: str
    ) -> Response:
        given = {**({"content-type": kind} if kind else {}), **headers}
        return self.http.post(study_route(study, what), content=body, headers=given)

    def signed(
        self,
        study: str,
        what: str,
        body: bytes = b"",
        kind: str | None = JSON,
        who: Identity | None = None,
    ) -> Response:
        header = self.header(study_route(study, what), body, who or participant())
        return self.post(study, what, body, kind, authorization=header)

    def enrol(self, study: str, i: int = 0, **form: Any) -> Response:
        if study == ANONML:
            form = {"ticket": ticket(i).hex(), **form}
        return self.signed(study, "enrolments", to_json(Enrolment(**form)), who=participant(i))

    def message(self, body: bytes, i: int = 0, study: str = PFDS) -> Response:
        return self.signed(study, "messages", body, CBOR, participant(i))

    def publish(self, manifest: Manifest, **options: Any) -> Response:
        headers = {"authorization": f"Bearer {self.key}", "content-type": CBOR}
        return self.http.post(STUDIES, content=manifest.to_bytes(), headers=headers, **options)

    def totals(self, study: str) -> tuple[int, int, dict[str, int]]:
        """Return enrolled, accepted and rejected counts, after a flush."""
        self.call(self.service.get_progress, study)
        found = self.store.count_totals(study)
        return found.enrolled, found.accepted, dict(found.refused)


@contextmanager
def coordinator(
    folder: Path, *studies: str, n_invitations: int = 0, is_stepped: bool = False
) -> Iterator[Coordinator]:
    """Yield a coordinator with some studies; unless it steps them, input stays as accepted."""
    url, clock, entropy = f"sqlite:{folder / 'store.db'}", ManualClock(), SeededEntropy("office")
    with open_store(url) as store, open_instance_store(None, url) as models:
        _, key = load_or_create_secrets(store, entropy)
        assert key is not None
        invitations = draw_invitations(n_invitations, entropy)
        for name in studies:
            publish_manifest(
                store, MANIFESTS[name], int(clock.now().timestamp() * 1000), invitations=invitations
            )
        service = CoordinatorService(store, models, clock, entropy, "the only worker")
        with TestClient(make_app(service), raise_server_exceptions=True) as http:
            found = Coordinator(http, service, store, clock, key, invitations)
            if not is_stepped:
                # The lease is somebody else's, who is alive: it ends long after a test does.
                for name in studies:
                    digest = MANIFESTS[name].digest.hex()
                    now = int(clock.now().timestamp() * 1000)
                    assert (
                        store.lease(
                            digest, "another worker", now, now + round(1000 * LEASE_SECONDS)
                        )
                        is not None
                    )
            found.call(service.start)
            try:
                yield found
            finally:
                found.call(service.stop)


def read_problem(answer: Response) -> tuple[int, str]:
    """Return status and code of a valid problem document."""
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == answer.status_code
    assert found["title"]
    return answer.status_code, found["code"]


End = tuple[str, int]
"""Address and port."""

_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _SOL_PACKET, _PACKET_STATISTICS = (
    26,
    33,
    35,
    263,
    6,
)
_IPV4, _ARRIVES = 0x0800, 0
_BUFFER = 1 << 26
_LOOK_SECONDS = 0.1
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16


@dataclass(frozen=True)
class Segment:
    """One TCP segment; `time` is in seconds since 1970, by the kernel."""

    time: float
    source: End
    target: End
    sequence: int
    flags: int
    payload: bytes


@dataclass
class Connection:
    """A reassembled TCP connection: opening, bytes of both sides, and their times.

    `closed` is when either side first closed it, or None. `name` is unique; ports may be reused.
    """

    client: End
    server: End
    opened: float
    closed: float | None = None
    sent: bytes = b""
    answered: bytes = b""
    sent_at: list[tuple[float, int]] = field(default_factory=list)
    answered_at: list[tuple[float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.client[0]}:{self.client[1]} at {self.opened}"


def why_not() -> str | None:
    """Return why a capture is not possible here, or None."""
    try:
        _listen(()).close()
    except (OSError, AttributeError) as error:
        return (
            f"a capture on loopback needs Linux and root (or CAP_NET_RAW): {type(error).__name__}"
        )
    return None


@contextmanager
def capture(*ports: int) -> Iterator[list[Segment]]:
    """Capture all TCP segments over loopback from and to some ports; complete at the end.

    Skip the test if that is not allowed.
    """
    if reason := why_not():
        pytest.skip(reason)
    segments: list[Segment] = []
    done = threading.Event()
    with _listen(ports) as link:

        def listen() -> None:
            while True:
                try:
                    data, extra, _, sender = link.recvmsg(1 << 17, 64)
                except TimeoutError:
                    if done.is_set():
                        return
                    continue
                # On loopback every packet is seen twice: as it leaves, and as it arrives.
                if sender[2] == _ARRIVES:
                    segments.append(_segment(data, extra))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield segments
        finally:
            done.set()
            thread.join()
        _, n_lost = struct.unpack("II", link.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        assert n_lost == 0, f"{n_lost} packets were not captured"


def connections(segments: Sequence[Segment]) -> list[Connection]:
    """Return the connections of some segments in the order of opening."""
    found: list[Connection] = []
    open_ones: dict[tuple[End, End], _Stream] = {}
    for segment in segments:
        ends = segment.source, segment.target
        if segment.flags & (_SYN | _ACK) == _SYN and not (
            ends in open_ones and open_ones[ends].start == segment.sequence
        ):
            found.append(Connection(*ends, segment.time))
            open_ones[ends] = _Stream(segment.sequence)
            open_ones[ends[::-1]] = _Stream(None)
            open_ones[ends].of = open_ones[ends[::-1]].of = found[-1]
        elif ends in open_ones:
            open_ones[ends].take(segment)
            if segment.flags & (_FIN | _RST) and open_ones[ends].of.closed is None:
                open_ones[ends].of.closed = segment.time
    return found


@dataclass
class _Stream:
    """One direction of a connection: bytes in order, and segments that came early."""

    start: int | None
    of: Connection = field(init=False)
    n: int = 0
    ahead: dict[int, bytes] = field(default_factory=dict)

    def take(self, segment: Segment) -> None:
        if self.start is None:
            self.start = segment.sequence
        if not segment.payload:
            return
        self.ahead[(segment.sequence - self.start - 1) % (1 << 32)] = segment.payload
        while more := [(at, data) for at, data in self.ahead.items() if at <= self.n]:
            at, data = more[0]
            del self.ahead[at]
            if new := data[self.n - at :]:
                self.n += len(new)
                self._append(segment, new)

    def _append(self, segment: Segment, data: bytes) -> None:
        if segment.source == self.of.client:
            self.of.sent += data
            self.of.sent_at.append((segment.time, self.n))
        else:
            self.of.answered += data
            self.of.answered_at.append((segment.time, self.n))


def _listen(ports: Collection[int]) -> socket.socket:
    """Open a socket for IPv4 over loopback, filtered by port in the kernel."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IPV4))
    try:
        program = _program(ports)
        buffer = ctypes.create_string_buffer(program)
        link.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_FILTER,
            struct.pack("HP", len(program) // 8, ctypes.addressof(buffer)),
        )
        link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        link.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        link.bind(("lo", _IPV4))
        link.settimeout(_LOOK_SECONDS)
    except BaseException:
        link.close()
        raise
    return link


def _program(ports: Collection[int]) -> bytes:
    """Return a classic BPF program for TCP from or to some ports, after the IPv4 header."""
    load_byte, load_half, load_length, equals, give = 0x30, 0x48, 0xB1, 0x15, 0x06
    lines: list[tuple[int, int, int, int]] = [(load_byte, 0, 0, 9)]
    n = len(ports)
    # The last two lines are: nothing, everything.
    lines.append((equals, 0, 3 + 2 * n, socket.IPPROTO_TCP))
    lines.append((load_length, 0, 0, 0))
    for offset in (0, 2):
        lines.append((load_half, 0, 0, offset))
        for port in ports:
            to_end = 5 + 2 * n - len(lines)
            lines.append((equals, to_end, 0, port))
    lines += [(give, 0, 0, 0), (give, 0, 0, 1 << 18)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _segment(data: bytes, extra: Sequence[tuple[int, int, bytes]]) -> Segment:
    seconds, nanoseconds = struct.unpack(
        "qq", next(stamp for level, kind, stamp in extra if kind == _SO_TIMESTAMPNS)
    )
    n_all = int.from_bytes(data[2:4], "big") or len(data)
    ip = 4 * (data[0] & 15)
    source, target, sequence, _, offset, flags = struct.unpack_from("!HHIIBB", data, ip)
    source_address, target_address = socket.inet_ntoa(data[12:16]), socket.inet_ntoa(data[16:20])
    payload = data[ip + 4 * (offset >> 4) : n_all]
    return Segment(
        seconds + nanoseconds / 1e9,
        (source_address, source),
        (target_address, target),
        sequence,
        flags,
        payload,
    )


Keys = Mapping[tuple[str, bytes], bytes]
"""Secrets by what they are for and by the client's random bytes, which name the connection."""

_HANDSHAKE, _APPLICATION, _FINISHED = 22, 23, 20
_SUITES = {
    0x1301: (SHA256, AESGCM, 16),
    0x1302: (SHA384, AESGCM, 32),
    0x1303: (SHA256, ChaCha20Poly1305, 32),
}
_RESUMED = 41
"""The extension by which a client says that it was here before."""


@dataclass(frozen=True)
class Request:
    """A request as its receiver sees it.

    `time` is when it was complete, `until` when it was answered or its connection closed, or None.
    Names of headers have their original spelling.
    """

    time: float
    until: float | None
    connection: Connection
    first_line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def path(self) -> str:
        return self.first_line.split(" ")[1]

    @property
    def head(self) -> tuple[object, ...]:
        """All except the body."""
        return self.first_line, self.headers


def read_keys(log: Path) -> Keys:
    """Return the TLS secrets that a process has logged."""
    lines = (
        line.split() for line in log.read_text().splitlines() if line and not line.startswith("#")
    )
    return {
        (label, bytes.fromhex(random)): bytes.fromhex(secret) for label, random, secret in lines
    }


def is_resumed(connection: Connection) -> bool:
    """Return whether a TLS client refers to an earlier session, which links the two connections."""
    hello = connection.sent[9:]
    at = 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 1 + hello[at]
    end = at + 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 2
    kinds = []
    while at < end:
        kinds.append(int.from_bytes(hello[at : at + 2], "big"))
        at += 4 + int.from_bytes(hello[at + 2 : at + 4], "big")
    return _RESUMED in kinds


def requests(connection: Connection, keys: Keys | None = None) -> list[Request]:
    """Return all requests of a connection in order; decrypt them if there are keys."""
    chunks, answered = (list(_heard(connection, side, keys)) for side in ("CLIENT", "SERVER"))
    data, ends, total = b"", [], 0
    for _, chunk in chunks:
        total += len(chunk)
        ends.append(total)
        data += chunk
    found, at = [], 0
    while (end := data.find(b"\r\n\r\n", at)) >= 0:
        first, *lines = data[at:end].decode("latin-1").split("\r\n")
        headers = tuple(
            (name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
        )
        n = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
        at = end + 4 + n
        if at > len(data):
            break
        found.append(
            Request(
                chunks[bisect_left(ends, at)][0],
                None,
                connection,
                first,
                headers,
                data[end + 4 : at],
            )
        )
    nexts = [*(one.time for one in found[1:]), math.inf]
    return [
        replace(
            one,
            until=max(
                (time for time, _ in answered if one.time <= time <= following),
                default=connection.closed,
            ),
        )
        for one, following in zip(found, nexts, strict=False)
    ]


def _heard(connection: Connection, side: str, keys: Keys | None) -> Iterator[tuple[float, bytes]]:
    """Return the bytes of one side; under TLS those after the handshake."""
    stream, at = (
        (connection.sent, connection.sent_at)
        if side == "CLIENT"
        else (connection.answered, connection.answered_at)
    )
    ends = [n for _, n in at]
    if keys is None:
        yield from (
            (time, stream[start:end]) for (time, end), start in zip(at, [0, *ends], strict=False)
        )
        return
    random, suite = connection.sent[11:43], _suite(connection.answered)
    current = _Direction(keys[f"{side}_HANDSHAKE_TRAFFIC_SECRET", random], suite)
    application = _Direction(keys[f"{side}_TRAFFIC_SECRET_0", random], suite)
    for end, kind, head, body in _records(stream):
        if kind != _APPLICATION:
            continue
        inner, data = current.open(head, body)
        if inner == _HANDSHAKE and data[0] == _FINISHED:
            current = application
        elif inner == _APPLICATION:
            yield at[bisect_left(ends, end)][0], data


def _records(stream: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    at = 0
    while at + 5 <= len(stream):
        end = at + 5 + int.from_bytes(stream[at + 3 : at + 5], "big")
        if end > len(stream):
            return
        yield end, stream[at], stream[at : at + 5], stream[at + 5 : end]
        at = end


def _suite(answered: bytes) -> int:
    """Return the cipher suite that the server chose."""
    after_session = 9 + 2 + 32 + 1 + answered[9 + 2 + 32]
    return int.from_bytes(answered[after_session : after_session + 2], "big")


class _Direction:
    """Opens the records of one side under one secret, in order.

    Ref: RFC 8446 sections 5.2, 5.3 and 7.3.
    """

    def __init__(self, secret: bytes, suite: int) -> None:
        hash_kind, cipher, n_key = _SUITES[suite]

        def expand(label: bytes, n: int) -> bytes:
            info = n.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\x00"
            return HKDFExpand(hash_kind(), n, info).derive(secret)

        self._cipher, self._iv, self._n = (
            cipher(expand(b"key", n_key)),
            int.from_bytes(expand(b"iv", 12), "big"),
            0,
        )

    def open(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        nonce = (self._iv ^ self._n).to_bytes(12, "big")
        self._n += 1
        data = self._cipher.decrypt(nonce, body, head).rstrip(b"\x00")
        return data[-1], data[:-1]
