"""Anonymous packets: format, sealing, batch sizes.

Participants make packets, a relay batches sealed ones, the coordinator opens and reads them. All
packets of a study have the same size, and so have all sealed packets: a change must keep this,
because a size could identify a sender. A packet contains:

======================  ===================================================
bytes                   content
======================  ===================================================
1                       the version, 1
`TOKEN_BYTES`           the token
4                       the partition that the token discloses, big-endian
4                       the length of the answer, big-endian
...                     the answer, a message in its only encoding
...                     zeros up to the size of the study's packets
======================  ===================================================

A sealed packet is a request of Oblivious HTTP without a response. It contains the POST of a packet
to the study's submissions, always with the same headers, so that its length depends only on the
packet's length.

A relay sends a batch in several requests of nearly equal size if one cannot contain it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.crypto.credentials.tokens import TOKEN_BYTES
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import MAX_BYTES
from shoal.study.delivery import HEAD_BYTES
from shoal.study.handle import StudyHandle
from shoal.transport import ohttp
from shoal.transport.api import RAW, study_route
from shoal.transport.bhttp import MAX_HEADER_BYTES, PADDING_MULTIPLE, BinaryRequest

PACKET_VERSION = 1


@dataclass(frozen=True, slots=True)
class Packet:
    """One answer with its token.

    Parameters
    ----------
    token, partition
        Proof that the sender is a member, and the partition that it discloses.
    answer
        The encoded message.
    """

    token: bytes
    partition: int
    answer: bytes

    def to_bytes(self, size: int) -> bytes:
        """Encode the packet, with zeros up to ``size``; ``MSG-007`` if the answer is too long."""
        head = (
            bytes([PACKET_VERSION])
            + self.token
            + self.partition.to_bytes(4, "big")
            + len(self.answer).to_bytes(4, "big")
        )
        if len(head) != HEAD_BYTES or len(head) + len(self.answer) > size:
            raise LocalProtocolError(
                "MSG-007",
                f"An answer of {len(self.answer)} bytes does not fit into a packet of {size}.",
            )
        return (head + self.answer).ljust(size, b"\x00")

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> Packet:
        """Decode a packet; raise ``MSG-005`` for bytes of any other form or size."""
        n = int.from_bytes(data[HEAD_BYTES - 4 : HEAD_BYTES], "big")
        if (
            len(data) != size
            or data[:1] != bytes([PACKET_VERSION])
            or HEAD_BYTES + n > size
            or any(data[HEAD_BYTES + n :])
        ):
            raise RemoteProtocolError("MSG-005", f"{len(data)} bytes are not a packet of {size}.")
        partition = int.from_bytes(data[HEAD_BYTES - 8 : HEAD_BYTES - 4], "big")
        return cls(data[1 : 1 + TOKEN_BYTES], partition, data[HEAD_BYTES : HEAD_BYTES + n])


_HEADERS = (("content-type", RAW),)


def seal_packet(gateway_key: bytes, study: str, packet: bytes) -> bytes:
    """Seal a packet for the gateway; the bytes are different each time.

    Parameters
    ----------
    gateway_key
        The gateway's key from the manifest.
    study
        The digest in hexadecimal.

    Examples
    --------
    >>> gateway = ohttp.Gateway.from_seed(bytes(range(32)))
    >>> sealed = seal_packet(gateway.key, "7f" * 32, bytes(640))
    >>> (
    ...     len(sealed) == compute_sealed_size(640),
    ...     open_packet(gateway, "7f" * 32, sealed) == bytes(640),
    ... )
    (True, True)
    """
    return ohttp.seal_request(gateway_key, _make_submission(study, packet).to_bytes())


def open_packet(gateway: ohttp.Gateway, study: str, sealed: bytes) -> bytes:
    """Open a sealed packet; raise ``CRYPTO-001`` or ``MSG-005`` if it is not of this study."""
    request = BinaryRequest.from_bytes(gateway.open_one_way(sealed))
    if request != _make_submission(study, request.body):
        raise RemoteProtocolError(
            "MSG-005", "A sealed packet contains another request than a submission to its study."
        )
    return request.body


def compute_sealed_size(packet_size: int) -> int:
    """Return the length of a sealed packet; it is the same for every study and key."""
    return ohttp.REQUEST_OVERHEAD + len(_make_submission("0" * 64, bytes(packet_size)).to_bytes())


def _make_submission(study: str, packet: bytes) -> BinaryRequest:
    # The authority is empty: the name under which a sender reaches the coordinator would
    # distinguish senders.
    return BinaryRequest("POST", study_route(study, "submissions"), _HEADERS, packet)


MAX_REQUEST_PACKETS = 4_096
"""Most packets in one request; the coordinator verifies them in a few seconds."""

_FRAME_BYTES = 64
_PACKET_FRAME_BYTES = 8
"""Most bytes that encoding adds to all packets together, and to each packet."""


def compute_max_part(packet_size: int) -> int:
    """Return how many packets of a study fit into one request.

    Examples
    --------
    >>> compute_max_part(1024), compute_max_part(1 << 20)
    (4096, 15)
    """
    return min(
        MAX_REQUEST_PACKETS,
        (MAX_BYTES - _FRAME_BYTES) // (compute_sealed_size(packet_size) + _PACKET_FRAME_BYTES),
    )


def compute_min_part(packet_size: int, minimum: int) -> int:
    """Return the fewest packets in a request of a batch with at least ``minimum`` packets.

    Examples
    --------
    >>> compute_min_part(1024, 100), compute_min_part(1024, 20_000)
    (100, 2048)
    """
    return min(minimum, compute_max_part(packet_size) // 2)


_BATCH_HEAD = b"\xa1\x67packets"
_BYTES, _ARRAY = 2, 4
"""Major types of CBOR."""


class PacketBatchParser:
    """Decode a `PacketBatch` piece by piece, so that no more than some packets are in memory.

    Only the deterministic encoding is accepted, as everywhere. A packet that is longer than the
    study's sealed packets becomes empty bytes, without being kept.

    Parameters
    ----------
    size
        Bytes of a sealed packet.
    most
        Most packets.

    Examples
    --------
    >>> from shoal.transport.api import PacketBatch, to_cbor
    >>> parser = PacketBatchParser(size=3, most=2)
    >>> data = to_cbor(PacketBatch(packets=(b"one", b"two")))
    >>> parser.feed(data[:-1]), parser.feed(data[-1:]), parser.is_complete
    ([b'one'], [b'two'], True)
    """

    def __init__(self, size: int, most: int) -> None:
        self._size, self._most = size, most
        self._rest, self._n_left, self._n_skipped = bytearray(), -1, 0

    @property
    def is_complete(self) -> bool:
        """Whether the batch has ended."""
        return self._n_left == 0 and not self._n_skipped

    def feed(self, data: bytes) -> list[bytes]:
        """Return the packets that are complete; raise ``MSG-005`` for other bytes than a batch."""
        n = min(self._n_skipped, len(data))
        self._n_skipped -= n
        self._rest += memoryview(data)[n:]
        if self._n_left < 0 and not self._read_batch_head():
            return []
        packets, position = [], 0
        while self._n_left and not self._n_skipped:
            head = _read_cbor_head(self._rest, position, _BYTES)
            if head is None:
                break
            start, length = head
            if length > self._size:
                packets.append(b"")
                position = min(start + length, len(self._rest))
                self._n_skipped = start + length - position
            elif start + length <= len(self._rest):
                packets.append(bytes(self._rest[start : start + length]))
                position = start + length
            else:
                break
            self._n_left -= 1
        del self._rest[:position]
        if self._rest and self.is_complete:
            raise _not_batch_error()
        return packets

    def _read_batch_head(self) -> bool:
        """Read the map and the head of its array; return False if more bytes are needed."""
        n = min(len(self._rest), len(_BATCH_HEAD))
        if self._rest[:n] != _BATCH_HEAD[:n]:
            raise _not_batch_error()
        head = _read_cbor_head(self._rest, len(_BATCH_HEAD), _ARRAY)
        if head is None:
            return False
        start, self._n_left = head
        if self._n_left > self._most:
            raise RemoteProtocolError(
                "MSG-005",
                f"A batch of {self._n_left:,} packets is too large.",
                why=f"The limit is {self._most:,}.",
            )
        del self._rest[:start]
        return True


def _read_cbor_head(data: bytearray, position: int, kind: int) -> tuple[int, int] | None:
    """Return the end of a head and its number, in the shortest form; None if it is cut off."""
    if position >= len(data):
        return None
    first, low = data[position], data[position] & 0x1F
    if first >> 5 != kind or low > _LONGEST_HEAD:
        raise _not_batch_error()
    if low < _FIRST_HEAD:
        return position + 1, low
    n = 1 << (low - _FIRST_HEAD)
    if position + 1 + n > len(data):
        return None
    number = int.from_bytes(data[position + 1 : position + 1 + n], "big")
    if number < (_FIRST_HEAD if n == 1 else 1 << (4 * n)):
        raise _not_batch_error()
    return position + 1 + n, number


_FIRST_HEAD, _LONGEST_HEAD = 24, 27
"""Values of a head's low bits that announce a number of 1 to 8 bytes."""


def _not_batch_error() -> RemoteProtocolError:
    return RemoteProtocolError("MSG-005", "The body is not a batch of packets.")


DEFAULT_SEALED_BYTES = 1 << 16
"""Limit for a sealed request, unless a study needs more."""


def compute_max_sealed_bytes(handle: StudyHandle) -> int:
    """Return the limit for sealed requests that the participants of a study need."""
    body = handle.packet_size or 0
    if handle.protocol.has_updates:
        body = max(body, _UPDATE_HEAD_BYTES + _WEIGHT_BYTES * handle.params.n_weights)
    needed = body + MAX_HEADER_BYTES + PADDING_MULTIPLE + ohttp.REQUEST_OVERHEAD
    return max(DEFAULT_SEALED_BYTES, needed)


_UPDATE_HEAD_BYTES, _WEIGHT_BYTES = 24, 4
"""Id and epoch of an update, and each of its weights."""


def split_evenly(n: int, max_size: int) -> list[int]:
    """Split ``n`` into the fewest parts up to ``max_size``; their sizes differ by at most one.

    Examples
    --------
    >>> split_evenly(10, 4), split_evenly(3, 4), split_evenly(0, 4)
    ([4, 3, 3], [3], [])
    """
    n_parts = -(-n // max_size)
    return [n // n_parts + (i < n % n_parts) for i in range(n_parts)]
