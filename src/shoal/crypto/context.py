"""What a round of a secure sum is about, the keys that its members publish, and what they sign."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

DIGEST_BYTES = 32


def _encoded(parts: Iterable[int | bytes]) -> bytes:
    """Each part with its kind and its length before it, so that they can be told apart again."""
    return b"".join(
        [b"i" + part.to_bytes(8, "big") if isinstance(part, int) else b"b" + len(part).to_bytes(8, "big") + part for part in parts]
    )


@dataclass(frozen=True)
class Context:
    """What a round is about; it enters every key, signature and box, so that none of them means anything elsewhere.

    Parameters
    ----------
    study, roster, query
        Digests of the study's manifest, of its roster, and of all that is asked in this round.
    round
        Number of the round; it only rises.

    Examples
    --------
    >>> context = Context(study=bytes(32), roster=bytes(32), round=1, query=bytes(32))
    >>> context.bind("keys", 12, b"34") != context.bind("keys", 1, b"234")
    True
    """

    study: bytes
    roster: bytes
    round: int
    query: bytes

    @cached_property
    def _head(self) -> bytes:
        return b"shoal secure sum 1\x00" + _encoded((self.study, self.roster, self.round, self.query))

    def bind(self, purpose: str, *parts: int | bytes) -> bytes:
        """Bytes that no other context, purpose or parts give."""
        return self._head + _encoded((purpose.encode(), *parts))


class Keys(NamedTuple):
    """What a member publishes for one round: two X25519 keys, and the hash of the seed of its own mask."""

    mask: bytes
    box: bytes
    commitment: bytes


def list_digest(context: Context, keys: Mapping[int, Keys]) -> bytes:
    """The whole list of keys as a member saw it, in 32 bytes."""
    parts = [part for member in sorted(keys) for part in (member, *keys[member])]
    return hashlib.sha256(context.bind("list of keys", *parts)).digest()


def box_statement(context: Context, dealer: int, recipient: int, digest: bytes, box: bytes, commitment: bytes) -> bytes:
    """What a dealer signs with each of its boxes; ``digest`` is that of the list of keys which it dealt to.

    Notes
    -----
    The signature also vouches for the keys, so that they need none of their own. An honest member deals only to a list that has its own
    keys in it, and masks only against dealers whose signature covers the digest of its own list. So the keys of all honest dealers are
    theirs in the lists of all honest members, before any masked vector leaves.

    A coordinator may still put keys of its own in the places of k honest members and so read the shares that are meant for them. Those k
    see a wrong list and do not sign this one. Of the at least t dealers that a member waits for, at most C collude, and the others are
    among the N - C - k honest ones that saw the same list; so k <= N - t, and at most C + N - t shares are read. That is fewer than t,
    and says nothing, because a study has 2 t > N + C.
    """
    return context.bind("box statement", dealer, recipient, digest, box, commitment)


def survivors_statement(context: Context, survivors: Collection[int], dealt: Collection[int]) -> bytes:
    """What every survivor signs before anyone reveals a share: who sent masked numbers, and who had dealt.

    Notes
    -----
    A member signs one list in a round, and reveals when t members have signed the same. Two different lists would need 2 t signatures, of
    which the C colluding members give two each and the others one: 2 t <= N + C, which no study has. So nobody's seed is revealed by
    some and its mask key by others.
    """
    return context.bind("survivors", *(np.array(sorted(members), ">u4").tobytes() for members in (survivors, dealt)))
