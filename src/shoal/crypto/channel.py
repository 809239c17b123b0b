"""Authenticated channels between two members, relayed by the coordinator.

The parties of a joint computation (`shoal.protocols.mpc`) use them. A change must keep: the
coordinator cannot read a payload, and cannot change, repeat or reorder payloads unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from shoal.crypto.secagg.context import RoundContext
from shoal.crypto.secagg.key_agreement import agree_keys, derive_public_key
from shoal.errors import RemoteProtocolError

OVERHEAD = 16
"""Bytes that sealing adds to a payload."""


def derive_channel_keys(
    private: bytes, theirs: bytes, context: RoundContext, me: int, other: int
) -> tuple[bytes, bytes]:
    """Return the keys of a channel: for outgoing and for incoming payloads.

    Parameters
    ----------
    private, theirs
        Our private box key of this round, and the other member's public one.
    """
    mine = derive_public_key(private)
    infos = (
        context.bind("channel", me, other, mine, theirs),
        context.bind("channel", other, me, theirs, mine),
    )
    key_out, key_in = agree_keys(private, [(theirs, info) for info in infos])
    return key_out, key_in


@dataclass(frozen=True)
class Channel:
    """One end of a channel, as a value: `seal` and `open` return the next state.

    Parameters
    ----------
    key_out, key_in
        As `derive_channel_keys` returns them. A key serves one channel only. A saved channel is
        never used again from an earlier state.
    sent, received
        Number of payloads so far; they number the next one.

    Examples
    --------
    >>> here, there = Channel(bytes(32), bytes([1]) * 32), Channel(bytes([1]) * 32, bytes(32))
    >>> here, sealed = here.seal(b"frame")
    >>> there, payload = there.open(sealed)
    >>> payload, here.sent, there.received
    (b'frame', 1, 1)
    """

    key_out: bytes = field(repr=False)
    key_in: bytes = field(repr=False)
    sent: int = 0
    received: int = 0

    def seal(self, payload: bytes) -> tuple[Channel, bytes]:
        """Return the channel and the sealed next payload for the other end."""
        sealed = ChaCha20Poly1305(self.key_out).encrypt(_make_nonce(self.sent), payload, None)
        return replace(self, sent=self.sent + 1), sealed

    def open(self, sealed: bytes) -> tuple[Channel, bytes]:
        """Return the channel and the next payload from the other end.

        Raise ``CRYPTO-001`` if the bytes were altered or are not the next payload; the channel is
        unchanged.
        """
        try:
            payload = ChaCha20Poly1305(self.key_in).decrypt(
                _make_nonce(self.received), sealed, None
            )
        except InvalidTag:
            raise RemoteProtocolError(
                "CRYPTO-001",
                f"Payload {self.received} of a channel cannot be decrypted.",
                why="It was altered, repeated or reordered, or is for another recipient.",
            ) from None
        return replace(self, received=self.received + 1), payload


def _make_nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
