"""Mask a vector; unmask the sum.

One round of secure aggregation (Bonawitz et al. 2017). Members and the collector
(`shoal.protocols.secagg`) call it. Nothing here sends or stores. Members are counted from 0, in
the order of the roster.

Each pair of members agrees on a mask, which one adds and the other subtracts. Each member also
adds a self mask. Both secrets of a member, its mask key and the seed of its self mask, are shared
among all members. When the masked vectors of the survivors are summed, members reveal their shares
of the survivors' seeds, and of the mask keys of members that dropped out. They never reveal both
for one member, since both together open its vector. All secrets belong to one round: if a member
survived one round and dropped out of the next, reused secrets would open its vector of the first.

The steps of a round and their functions:

1. `draw_secrets`, `derive_public_keys`: publish keys and a commitment to the seed.
2. `share_keys`: share both secrets with each member of the list of keys, in signed boxes.
3. `open_key_shares`: read the shares from the dealers.
4. `mask_vector`: hide the numbers; only the masked vector leaves.
5. `encode_survivors_statement`: sign the list of survivors.
6. `reveal_share`, `unmask_sum`: reveal one share for each dealer, and compute the sum.

Notes
-----
Ref: SDQ §IV-B; errata S-08, S-12. The scheme is that of Bonawitz et al. (2017), with keys that are
fresh in every round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.crypto.identity import member_error
from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext
from shoal.crypto.secagg.key_agreement import Words, add_masks, agree_keys, derive_key
from shoal.crypto.secagg.key_shares import (
    REVEALED_BYTES,
    MemberSecrets,
    SecretKind,
    check_revealed_share,
    is_committed,
)
from shoal.crypto.shamir import SHARE_BYTES, recombine_secrets
from shoal.errors import LocalProtocolError, RemoteProtocolError

Values = npt.NDArray[np.int64]

MAX_SUM = 1 << 62
"""Largest absolute value of a sum: half of 63 bits, so that a larger one is detected."""


def compute_value_limit(n_members: int) -> int:
    """Return the largest absolute value of one member's number at which no sum can overflow."""
    return MAX_SUM // n_members


def mask_vector(
    values: Values,
    secrets: MemberSecrets,
    context: RoundContext,
    me: int,
    keys: Mapping[int, MemberPublicKeys],
) -> Words:
    """Return a member's numbers with all its masks added.

    Parameters
    ----------
    values
        ``(n,)``, none larger in absolute value than `compute_value_limit` of the number of members.
    keys
        Of all dealers, the member itself included.

    Privacy
    -------
    The result is uniform to every party that lacks either the seed or the pairwise keys with all
    honest members. After enough members have revealed their shares the sum is known; only the noise
    that is already in ``values`` protects the sum itself.
    """
    if values.size and max(int(values.max()), -int(values.min())) > compute_value_limit(len(keys)):
        raise LocalProtocolError(
            "SUM-002",
            f"A value exceeds {compute_value_limit(len(keys)):,}, the limit for each of "
            f"{len(keys)} members of a sum.",
        )
    total = values.astype(np.uint64)
    add_masks(total, [(_derive_own_mask_key(secrets.own, context, me), True)])
    others = [member for member in sorted(keys) if member != me]
    add_masks(total, _derive_pair_masks(secrets.mask, context, me, keys, others))
    return total


def unmask_sum(
    total: Words,
    context: RoundContext,
    keys: Mapping[int, MemberPublicKeys],
    dealt: Mapping[int, Mapping[int, bytes]],
    survivors: Collection[int],
    revealed: Mapping[int, Mapping[int, bytes]],
    threshold: int,
) -> Values:
    """Return the sum of the survivors' numbers.

    Parameters
    ----------
    total
        ``(n,)`` sum of the masked numbers of exactly the survivors, modulo 2^64.
    dealt
        Each dealer, with its commitments by holder.
    revealed
        For each dealer, the share that each holder has revealed: of the seed if the dealer
        survived, otherwise of its mask key. The first ``threshold`` holders count.

    Notes
    -----
    Ref: SDQ §IV-B; errata S-08. A wrongly recovered secret does not match its hash or its public
    key. The dealer's commitments to single shares then identify the party at fault: a holder that
    reveals another share, otherwise the dealer.
    """
    if len(survivors) < threshold:
        raise RemoteProtocolError(
            "SUM-003",
            f"{len(survivors)} members are left; a sum needs at least {threshold}.",
        )
    secrets = _recover_secrets(context, keys, dealt, frozenset(survivors), revealed, threshold)
    opened = total.copy()
    add_masks(
        opened,
        ((_derive_own_mask_key(secrets[member], context, member), False) for member in survivors),
    )
    for member in dealt.keys() - set(survivors):
        # The survivor added what this member would have subtracted for this pair.
        add_masks(
            opened, _derive_pair_masks(secrets[member], context, member, keys, tuple(survivors))
        )
    values = opened.view(np.int64)
    if values.size and not -MAX_SUM <= int(values.min()) <= int(values.max()) <= MAX_SUM:
        raise RemoteProtocolError(
            "SUM-004",
            f"A sum exceeds {MAX_SUM:,} in absolute value.",
            why="A member added a value beyond its limit, or a wrong mask.",
        )
    return values


def _recover_secrets(
    context: RoundContext,
    keys: Mapping[int, MemberPublicKeys],
    dealt: Mapping[int, Mapping[int, bytes]],
    survivors: frozenset[int],
    revealed: Mapping[int, Mapping[int, bytes]],
    threshold: int,
) -> dict[int, bytes]:
    """Return the seed of each survivor, and the mask key of each other dealer."""
    owners_by_holders: dict[tuple[int, ...], list[int]] = {}
    for owner in dealt:
        holders = tuple(sorted(revealed.get(owner, ()))[:threshold])
        if len(holders) < threshold:
            raise RemoteProtocolError(
                "SUM-003",
                f"{len(holders)} shares of member {owner}'s secret were revealed; {threshold} are "
                "needed.",
            )
        owners_by_holders.setdefault(holders, []).append(owner)
    secrets = {}
    for holders, owners in owners_by_holders.items():
        rows = [[revealed[owner][holder] for holder in holders] for owner in owners]
        for owner, row, secret in zip(
            owners,
            rows,
            recombine_secrets(holders, [list(map(_extract_share, row)) for row in rows]),
            strict=True,
        ):
            which: SecretKind = "own" if owner in survivors else "mask"
            if secret is None or not is_committed(secret, context, owner, keys[owner], which):
                for holder, share in zip(holders, row, strict=True):
                    check_revealed_share(context, owner, holder, which, share, dealt[owner][holder])
                raise member_error(
                    owner,
                    f"The shares from member {owner} give another secret than it committed to.",
                )
            secrets[owner] = secret
    return secrets


def _derive_pair_masks(
    private: bytes,
    context: RoundContext,
    me: int,
    keys: Mapping[int, MemberPublicKeys],
    others: Sequence[int],
) -> Iterator[tuple[bytes, bool]]:
    """Yield a member's mask keys with others, and whether it adds that mask."""

    def info(other: int) -> bytes:
        low, high = sorted((me, other))
        return context.bind("pair", low, high, keys[low].mask, keys[high].mask)

    agreed = agree_keys(private, ((keys[other].mask, info(other)) for other in others))
    for other in others:
        try:
            yield next(agreed), me < other
        except RemoteProtocolError as error:
            raise member_error(
                other, f"Member {other} published an invalid key.", error.what
            ) from None


def _derive_own_mask_key(seed: bytes, context: RoundContext, member: int) -> bytes:
    return derive_key(seed, context.bind("own mask", member))


def _extract_share(revealed: bytes) -> bytes:
    """Return the share in revealed bytes.

    For bytes of another length, return a share that cannot fit, so that its holder is found like
    any other.
    """
    return revealed[:SHARE_BYTES] if len(revealed) == REVEALED_BYTES else b"\xff" * SHARE_BYTES
