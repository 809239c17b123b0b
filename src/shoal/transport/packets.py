"""The packet in which an anonymous answer travels: a token, the answer, and zeros up to the one size that all packets of a study have.

======================  ===================================================
bytes                   what
======================  ===================================================
1                       the version, 1
`TOKEN_BYTES`           the token
4                       the place that the token discloses, big-endian
4                       how long the answer is, big-endian
...                     the answer, a message in its one encoding
...                     zeros
======================  ===================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.crypto.tokens import TOKEN_BYTES
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocols.anonml.analysis import packet_bytes
from shoal.study.anonml import script_of
from shoal.study.manifest import Manifest

VERSION = 1
HEAD_BYTES = 1 + TOKEN_BYTES + 4 + 4
GRAIN = 64
"""Packets are a multiple of so many bytes."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One answer with its token.

    Parameters
    ----------
    token, place
        What shows that the sender may send it, and the place that it discloses.
    answer
        The message's bytes.
    """

    token: bytes
    place: int
    answer: bytes

    def to_bytes(self, size: int) -> bytes:
        """The packet in a study whose packets have this size."""
        head = bytes([VERSION]) + self.token + self.place.to_bytes(4, "big") + len(self.answer).to_bytes(4, "big")
        if len(head) != HEAD_BYTES or len(head) + len(self.answer) > size:
            raise LocalProtocolError("MSG-007", f"An answer of {len(self.answer)} bytes does not fit into a packet of {size}.")
        return (head + self.answer).ljust(size, b"\x00")

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> Packet:
        """The packet that some bytes are; ``MSG-005`` for bytes of any other form or size."""
        n = int.from_bytes(data[HEAD_BYTES - 4 : HEAD_BYTES], "big")
        if len(data) != size or data[:1] != bytes([VERSION]) or HEAD_BYTES + n > size or any(data[HEAD_BYTES + n :]):
            raise RemoteProtocolError("MSG-005", f"{len(data)} bytes are not a packet of {size}.")
        place = int.from_bytes(data[HEAD_BYTES - 8 : HEAD_BYTES - 4], "big")
        return cls(data[1 : 1 + TOKEN_BYTES], place, data[HEAD_BYTES : HEAD_BYTES + n])


def packet_size(manifest: Manifest) -> int:
    """The one size of all packets of an AnonML study."""
    return -(-(HEAD_BYTES + packet_bytes(script_of(manifest.study, manifest.digest))) // GRAIN) * GRAIN
