"""The context of a round, the keys it publishes, and the statements members sign.

Members and the collector (`shoal.protocols.secagg`) encode and verify with these functions. A
change must keep: two different contexts, purposes or lists of parts never encode to the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

DIGEST_BYTES = 32


def _encode_parts(parts: Iterable[int | bytes]) -> bytes:
    """Return the parts, each after its kind and length, so that the encoding is unique."""
    return b"".join(
        [
            b"i" + part.to_bytes(8, "big")
            if isinstance(part, int)
            else b"b" + len(part).to_bytes(8, "big") + part
            for part in parts
        ]
    )


@dataclass(frozen=True)
class RoundContext:
    """The identity of a round.

    It enters each key, signature and box, so that none of them is valid elsewhere.

    Parameters
    ----------
    study, roster, query
        Digests of the study's manifest, of its roster, and of the query of this round.
    round
        Number of the round; it only increases.

    Examples
    --------
    >>> context = RoundContext(study=bytes(32), roster=bytes(32), round=1, query=bytes(32))
    >>> context.bind("keys", 12, b"34") != context.bind("keys", 1, b"234")
    True
    """

    study: bytes
    roster: bytes
    round: int
    query: bytes

    @cached_property
    def _head(self) -> bytes:
        return b"shoal secure sum 1\x00" + _encode_parts(
            (self.study, self.roster, self.round, self.query)
        )

    def bind(self, purpose: str, *parts: int | bytes) -> bytes:
        """Return bytes that are unique to this context, purpose and parts."""
        return self._head + _encode_parts((purpose.encode(), *parts))


class MemberPublicKeys(NamedTuple):
    """The values that a member publishes for one round.

    Two X25519 keys, and the hash of the seed of its self mask.
    """

    mask: bytes
    box: bytes
    commitment: bytes


def digest_key_list(context: RoundContext, keys: Mapping[int, MemberPublicKeys]) -> bytes:
    """Return the digest, 32 bytes, of the whole list of keys as a member received it."""
    parts = [part for member in sorted(keys) for part in (member, *keys[member])]
    return hashlib.sha256(context.bind("list of keys", *parts)).digest()


def encode_box_statement(
    context: RoundContext, dealer: int, recipient: int, digest: bytes, box: bytes, commitment: bytes
) -> bytes:
    """Return what a dealer signs with each of its boxes.

    ``digest`` is that of the list of keys for which it made the shares.

    Notes
    -----
    The signature also authenticates the keys, so that they need no signatures. An honest member
    shares its keys only for a list that contains its own keys, and masks only with dealers that
    have signed the digest of the list that it received. So the lists of all honest members have
    the right keys of all honest dealers before any masked vector leaves.

    A coordinator may still replace the keys of k honest members by its own and read the shares
    for them. Those k receive a wrong list and do not sign this one. Of the at least t dealers that
    a member waits for, at most C collude, and the others are among the N - C - k honest ones that
    received the same list; so k <= N - t, and the coordinator reads at most C + N - t shares. That
    is fewer than t, and independent of the secret, because a study has 2 t > N + C.
    """
    return context.bind("box statement", dealer, recipient, digest, box, commitment)


def encode_survivors_statement(
    context: RoundContext, survivors: Collection[int], dealt: Collection[int]
) -> bytes:
    """Return what each survivor signs first: the survivors and the dealers.

    Notes
    -----
    A member signs one list in a round, and reveals its shares when t members have signed the same
    list. Two different lists would need 2 t signatures, of which the C colluding members give two
    each and the others one: 2 t <= N + C, which no study has. So members never reveal both the
    seed and the mask key of the same member.
    """
    return context.bind(
        "survivors", *(np.array(sorted(members), ">u4").tobytes() for members in (survivors, dealt))
    )
