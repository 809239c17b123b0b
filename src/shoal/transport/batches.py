"""How many packets a relay hands over in one request: a batch that is larger comes in several, cut evenly."""

from __future__ import annotations

from shoal.messages.codec import MAX_BYTES
from shoal.transport.sealing import sealed_size

MOST_PACKETS = 4_096
"""So many take the coordinator a few seconds to verify."""

_FRAME_BYTES = 64
_HEAD_BYTES = 8
"""Of the form around all packets, and of each of them in it, at most."""


def most_in_batch(packet_size: int) -> int:
    """How many packets of a study fit into one request.

    Examples
    --------
    >>> most_in_batch(1024), most_in_batch(1 << 20)
    (4096, 15)
    """
    return min(MOST_PACKETS, (MAX_BYTES - _FRAME_BYTES) // (sealed_size(packet_size) + _HEAD_BYTES))


def least_in_part(packet_size: int, minimum: int) -> int:
    """How many packets are in each request of a batch of at least so many packets.

    Examples
    --------
    >>> least_in_part(1024, 100), least_in_part(1024, 20_000)
    (100, 2048)
    """
    return min(minimum, most_in_batch(packet_size) // 2)


def even_parts(n: int, most: int) -> list[int]:
    """The sizes of as few parts as it goes, none above a limit, that differ by one at most.

    Examples
    --------
    >>> even_parts(10, 4), even_parts(3, 4), even_parts(0, 4)
    ([4, 3, 3], [3], [])
    """
    n_parts = -(-n // most)
    return [n // n_parts + (i < n % n_parts) for i in range(n_parts)]
