"""A round of a secure sum in one process, by the functions of `shoal.crypto`.

Members may leave at any phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext
from shoal.crypto.secagg.key_shares import (
    KeyShares,
    MemberSecrets,
    derive_public_keys,
    draw_secrets,
    open_key_shares,
    reveal_share,
    share_keys,
)
from shoal.crypto.secagg.masking import mask_vector, unmask_sum
from shoal.entropy import SeededEntropy

STUDY, ROSTER, QUERY = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32


def context(number: int = 1) -> RoundContext:
    return RoundContext(STUDY, ROSTER, number, QUERY)


@dataclass
class Round:
    """All secrets and messages of the members of a round."""

    context: RoundContext
    threshold: int
    secrets: dict[int, MemberSecrets]
    keys: dict[int, MemberPublicKeys]
    dealings: dict[int, KeyShares]
    shares: dict[int, dict[int, bytes]]

    @property
    def dealt_keys(self) -> dict[int, MemberPublicKeys]:
        return {dealer: self.keys[dealer] for dealer in self.dealings}

    @property
    def commitments(self) -> dict[int, dict[int, bytes]]:
        return {dealer: dealing.commitments for dealer, dealing in self.dealings.items()}

    def masked(self, member: int, values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        return mask_vector(
            np.asarray(values, np.int64),
            self.secrets[member],
            self.context,
            member,
            self.dealt_keys,
        )

    def revealed(
        self, survivors: Collection[int], holders: Iterable[int]
    ) -> dict[int, dict[int, bytes]]:
        """Return revealed shares by owner and holder.

        They are of the own seed for survivors and of the mask key for all other dealers.
        """
        return {
            owner: {
                holder: reveal_share(
                    self.shares[holder][owner], "own" if owner in survivors else "mask"
                )
                for holder in holders
            }
            for owner in self.dealings
        }

    def opened(
        self,
        total: npt.NDArray[np.uint64],
        survivors: Collection[int],
        revealed: Mapping[int, Mapping[int, bytes]],
    ) -> npt.NDArray[np.int64]:
        return unmask_sum(
            total,
            self.context,
            self.dealt_keys,
            self.commitments,
            survivors,
            revealed,
            self.threshold,
        )

    def summed(
        self, values: Mapping[int, npt.ArrayLike], holders: Iterable[int] | None = None
    ) -> npt.NDArray[np.int64]:
        """Return the sum of the members with values, opened by some of them."""
        total = np.sum(
            [self.masked(member, one) for member, one in values.items()], axis=0, dtype=np.uint64
        )
        return self.opened(
            total,
            tuple(values),
            self.revealed(tuple(values), values if holders is None else holders),
        )


def begin(
    n: int,
    threshold: int,
    *,
    keyed: Iterable[int] | None = None,
    dealing: Iterable[int] | None = None,
    number: int = 1,
    seed: int = 1,
) -> Round:
    """Return a round of ``n`` members before masked vectors are sent.

    Some may publish no keys, and some may share nothing.
    """
    entropy = SeededEntropy(seed).spawn(number)
    about = context(number)
    secrets = {member: draw_secrets(entropy) for member in (range(n) if keyed is None else keyed)}
    return deal_all(about, secrets, threshold, secrets if dealing is None else dealing, entropy)


def deal_all(
    about: RoundContext,
    secrets: dict[int, MemberSecrets],
    threshold: int,
    dealing: Iterable[int],
    entropy: SeededEntropy,
) -> Round:
    keys = {member: derive_public_keys(own, about, member) for member, own in secrets.items()}
    dealings = {
        member: share_keys(secrets[member], about, member, keys, threshold, entropy)
        for member in dealing
    }
    shares = {}
    for member in dealings:
        others = {
            dealer: (one.boxes[member], one.commitments[member])
            for dealer, one in dealings.items()
            if dealer != member
        }
        shares[member] = {
            member: dealings[member].own_shares,
            **open_key_shares(secrets[member], about, member, others),
        }
    return Round(about, threshold, secrets, keys, dealings, shares)


def flips(data: bytes) -> Iterable[bytes]:
    """Yield the same bytes with one bit changed, for every bit."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
