"""A round of a secure sum in one place, by the functions of `shoal.crypto`, with members that leave at any phase."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.crypto.context import Context, Keys
from shoal.crypto.dealing import Dealing, Secrets, deal, fresh_secrets, keys_of, open_all, shares_to_reveal
from shoal.crypto.secure_sum import mask, unmask
from shoal.entropy import SeededEntropy

STUDY, ROSTER, QUERY = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32


def context(number: int = 1) -> Context:
    return Context(STUDY, ROSTER, number, QUERY)


@dataclass
class Round:
    """All that the members of a round know and have sent."""

    context: Context
    threshold: int
    secrets: dict[int, Secrets]
    keys: dict[int, Keys]
    dealings: dict[int, Dealing]
    shares: dict[int, dict[int, bytes]]

    @property
    def dealt_keys(self) -> dict[int, Keys]:
        return {dealer: self.keys[dealer] for dealer in self.dealings}

    @property
    def commitments(self) -> dict[int, dict[int, bytes]]:
        return {dealer: dealing.commitments for dealer, dealing in self.dealings.items()}

    def masked(self, member: int, values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        return mask(np.asarray(values, np.int64), self.secrets[member], self.context, member, self.dealt_keys)

    def revealed(self, survivors: Collection[int], holders: Iterable[int]) -> dict[int, dict[int, bytes]]:
        """By owner and holder, from shares of the own seed for survivors and of the mask key for all other dealers."""
        return {
            owner: {holder: shares_to_reveal(self.shares[holder][owner], "own" if owner in survivors else "mask") for holder in holders}
            for owner in self.dealings
        }

    def opened(
        self, total: npt.NDArray[np.uint64], survivors: Collection[int], revealed: Mapping[int, Mapping[int, bytes]]
    ) -> npt.NDArray[np.int64]:
        return unmask(total, self.context, self.dealt_keys, self.commitments, survivors, revealed, self.threshold)

    def summed(self, values: Mapping[int, npt.ArrayLike], holders: Iterable[int] | None = None) -> npt.NDArray[np.int64]:
        """The sum of those that have values, opened by some of them."""
        total = np.sum([self.masked(member, one) for member, one in values.items()], axis=0, dtype=np.uint64)
        return self.opened(total, tuple(values), self.revealed(tuple(values), values if holders is None else holders))


def begin(
    n: int, threshold: int, *, keyed: Iterable[int] | None = None, dealing: Iterable[int] | None = None, number: int = 1, seed: int = 1
) -> Round:
    """A round of ``n`` members up to where masked numbers leave; some may publish no keys, and some deal nothing."""
    entropy = SeededEntropy(seed).spawn(number)
    about = context(number)
    secrets = {member: fresh_secrets(entropy) for member in (range(n) if keyed is None else keyed)}
    return deal_all(about, secrets, threshold, secrets if dealing is None else dealing, entropy)


def deal_all(about: Context, secrets: dict[int, Secrets], threshold: int, dealing: Iterable[int], entropy: SeededEntropy) -> Round:
    keys = {member: keys_of(own, about, member) for member, own in secrets.items()}
    dealings = {member: deal(secrets[member], about, member, keys, threshold, entropy) for member in dealing}
    shares = {}
    for member in dealings:
        others = {dealer: (one.boxes[member], one.commitments[member]) for dealer, one in dealings.items() if dealer != member}
        shares[member] = {member: dealings[member].kept, **open_all(secrets[member], about, member, others)}
    return Round(about, threshold, secrets, keys, dealings, shares)


def flips(data: bytes) -> Iterable[bytes]:
    """The same bytes with one bit changed, for every bit."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
