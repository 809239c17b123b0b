"""Channels: what two members send each other through a coordinator that can neither read, change, repeat nor reorder it unnoticed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from shoal.crypto.context import Context
from shoal.crypto.masks import agree_all, public_of
from shoal.errors import RemoteProtocolError

OVERHEAD = 16
"""Bytes by which a sealed payload is longer than the payload."""


def channel_keys(private: bytes, theirs: bytes, context: Context, me: int, other: int) -> tuple[bytes, bytes]:
    """The keys of a channel between two members: for what goes out, and for what comes in.

    Parameters
    ----------
    private, theirs
        Our private box key of this round, and the other member's public one.
    """
    mine = public_of(private)
    ways = (context.bind("channel", me, other, mine, theirs), context.bind("channel", other, me, theirs, mine))
    key_out, key_in = agree_all(private, [(theirs, way) for way in ways])
    return key_out, key_in


@dataclass(frozen=True)
class Channel:
    """One end of a channel, as a value: sealing and opening give the channel as it is afterwards.

    Parameters
    ----------
    key_out, key_in
        As `channel_keys` gives them. A key serves one channel only, and a channel that was saved is never used again from an earlier state.
    sent, received
        Payloads so far; they number the next one.

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
        """The next payload for the other end."""
        sealed = ChaCha20Poly1305(self.key_out).encrypt(_nonce(self.sent), payload, None)
        return replace(self, sent=self.sent + 1), sealed

    def open(self, sealed: bytes) -> tuple[Channel, bytes]:
        """The next payload from the other end; one that was altered, or is not the next, is refused and changes nothing."""
        try:
            payload = ChaCha20Poly1305(self.key_in).decrypt(_nonce(self.received), sealed, None)
        except InvalidTag:
            raise RemoteProtocolError(
                "CRYPTO-001",
                f"What came as payload {self.received} of a channel does not open.",
                why="It was altered, repeated or put out of order, or is for somebody else.",
            ) from None
        return replace(self, received=self.received + 1), payload


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
