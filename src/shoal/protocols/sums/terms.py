"""What both sides of a secure sum hold before it begins, how its lists travel, and what a member signs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.crypto.context import DIGEST_BYTES, Context, Keys
from shoal.crypto.roster import KEY_BYTES, Roster
from shoal.errors import SpecError
from shoal.protocols.sums.messages import SumKeyList, cut

_ENTRY_BYTES = 2 * KEY_BYTES + DIGEST_BYTES


@dataclass(frozen=True)
class Terms:
    """What all parties agree on.

    Parameters
    ----------
    study
        Digest of the manifest.
    roster
        All members, in order.
    threshold
        t: fewest members whose vectors make a sum, and fewest that must help to open it. More than half, since two lists of survivors
        could else both find enough signatures; a study that expects C colluders has 2 t > N + C.

    Examples
    --------
    >>> from shoal.crypto.roster import Identity
    >>> keys = tuple(Identity.from_seed(bytes([i]) * 32).public for i in range(3))
    >>> Terms(bytes(32), Roster(("north", "south", "west"), keys), threshold=2).context(1, bytes(32)).round
    1
    """

    study: bytes
    roster: Roster
    threshold: int

    def __post_init__(self) -> None:
        if not len(self.roster) < 2 * self.threshold <= 2 * len(self.roster):
            raise SpecError(
                "SUM-001",
                f"A sum of {len(self.roster)} members cannot be opened by {self.threshold}.",
                fix="More than half of the members are needed, and at most all.",
            )

    def context(self, number: int, query: bytes) -> Context:
        """What a round is about, for all that is derived or signed in it."""
        return Context(self.study, self.roster.digest, number, query)


def read_keys(listed: SumKeyList) -> dict[int, Keys]:
    """The keys of a list by member; otherwise the sender's error."""
    entries = cut(listed.entries, _ENTRY_BYTES, listed.members, "keys")
    return {member: Keys(entry[:KEY_BYTES], entry[KEY_BYTES : 2 * KEY_BYTES], entry[2 * KEY_BYTES :]) for member, entry in entries.items()}


def keys_statement(context: Context, member: int, keys: Keys) -> bytes:
    """What a member signs with its keys."""
    return context.bind("member's keys", member, *keys)


def shares_statement(context: Context, dealer: int, digest: bytes, *rows: bytes) -> bytes:
    """What a dealer signs with all of its boxes; ``digest`` is that of the list of keys."""
    return context.bind("all boxes", dealer, digest, *map(_hash, rows))


def masked_statement(context: Context, member: int, digest: bytes, dealers: Sequence[int], vector: bytes) -> bytes:
    """What a member signs with its masked vector: also against whose keys it is masked."""
    return context.bind("masked", member, digest, np.array(dealers, ">u4").tobytes(), _hash(vector))


def unmask_statement(context: Context, member: int, shares: bytes) -> bytes:
    """What a survivor signs with the shares that it reveals."""
    return context.bind("revealed", member, _hash(shares))


def _hash(row: bytes) -> bytes:
    return hashlib.sha256(row).digest()
