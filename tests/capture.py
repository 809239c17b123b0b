"""What goes over loopback, packet by packet, as anyone on the wire sees it: a raw socket of this process, without any other program."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

End = tuple[str, int]
"""Address and port."""

_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _SOL_PACKET, _PACKET_STATISTICS = 26, 33, 35, 263, 6
_IPV4, _ARRIVES = 0x0800, 0
_BUFFER = 1 << 26
_LOOK_SECONDS = 0.1
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16


@dataclass(frozen=True)
class Segment:
    """One TCP segment.

    Parameters
    ----------
    time
        Seconds since 1970, by the kernel.
    source, target
        From whom to whom.
    sequence, flags, payload
        Of TCP.
    """

    time: float
    source: End
    target: End
    sequence: int
    flags: int
    payload: bytes


@dataclass
class Connection:
    """A TCP connection put together: who opened it when, what either side has sent, and when how many bytes of it were there.

    It was closed when either side first said so; None where neither has. An end may be used again: ``name`` is of one connection alone.
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
    """Why nothing can be captured here; None where it can."""
    try:
        _listen(()).close()
    except (OSError, AttributeError) as error:
        return f"a capture on loopback needs Linux and root (or CAP_NET_RAW): {type(error).__name__}"
    return None


@contextmanager
def capture(*ports: int) -> Iterator[list[Segment]]:
    """All TCP segments over loopback from and to some ports, meanwhile; the list is whole at the end. Skips where that is not allowed."""
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
    """The connections that some segments belong to, in the order in which they were opened; each from its first segment."""
    found: list[Connection] = []
    open_ones: dict[tuple[End, End], _Stream] = {}
    for segment in segments:
        ends = segment.source, segment.target
        if segment.flags & (_SYN | _ACK) == _SYN and not (ends in open_ones and open_ones[ends].start == segment.sequence):
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
    """One direction of a connection: what has come in order, and what came ahead of it."""

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
    """A socket that hears IPv4 over loopback, of some ports only, by a program in the kernel."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IPV4))
    try:
        program = _program(ports)
        buffer = ctypes.create_string_buffer(program)
        link.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(buffer)))
        link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        link.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        link.bind(("lo", _IPV4))
        link.settimeout(_LOOK_SECONDS)
    except BaseException:
        link.close()
        raise
    return link


def _program(ports: Collection[int]) -> bytes:
    """Of packets that begin with their IPv4 header: TCP from or to some ports. In the kernel's classic language."""
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
    seconds, nanoseconds = struct.unpack("qq", next(stamp for level, kind, stamp in extra if kind == _SO_TIMESTAMPNS))
    n_all = int.from_bytes(data[2:4], "big") or len(data)
    ip = 4 * (data[0] & 15)
    source, target, sequence, _, offset, flags = struct.unpack_from("!HHIIBB", data, ip)
    source_address, target_address = socket.inet_ntoa(data[12:16]), socket.inet_ntoa(data[16:20])
    payload = data[ip + 4 * (offset >> 4) : n_all]
    return Segment(seconds + nanoseconds / 1e9, (source_address, source), (target_address, target), sequence, flags, payload)
