"""One round of a secure sum: every member's numbers go under masks that cancel, and only their sum comes out.

Every pair of members agrees on a mask, which one adds and the other takes away; and every member adds a mask of its own. Both secrets of
a member, its mask key and the seed of its own mask, are shared among all. When the masked numbers of the survivors are summed, the others
reveal their shares of the survivors' own seeds, and of the mask keys of those that dropped out; never of both for one member, since both
together open its numbers. All secrets are of one round: a member that survives one round and drops out of the next would else have the
first one opened.

::

    fresh_secrets, keys_of       1  publish keys and a commitment to the seed
    deal                         2  shares for every member of the list of keys, each in a signed box
    open_all                     3  read the shares of the dealers
    mask                         4  hide the numbers: this is what leaves
    survivors_statement          5  sign who is left
    shares_to_reveal, unmask     6  one share for each dealer, and the sum

Nothing here is sent or stored. Members are counted from 0, in the order of the roster.

Notes
-----
Ref: SDQ §IV-B; errata S-08, S-12. The scheme is that of Bonawitz et al. (2017), with keys that are fresh in every round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.crypto.context import Context, Keys
from shoal.crypto.dealing import REVEALED_BYTES, Secrets, Which, check_revealed, is_committed
from shoal.crypto.masks import Words, add_masks, agree_all, derive
from shoal.crypto.roster import misfit
from shoal.crypto.shamir import SHARE_BYTES, recombine_many
from shoal.errors import LocalProtocolError, RemoteProtocolError

Values = npt.NDArray[np.int64]

LARGEST = 1 << 62
"""Most that a sum may be in absolute value: half of what 64 bits hold, so that one that is too large shows."""


def limit(n_members: int) -> int:
    """Most that one member's number may be in absolute value, so that no sum of all can overflow."""
    return LARGEST // n_members


def mask(values: Values, secrets: Secrets, context: Context, me: int, keys: Mapping[int, Keys]) -> Words:
    """A member's numbers under all of its masks.

    Parameters
    ----------
    values
        ``(n,)`` none larger in absolute value than `limit` of the number of members.
    keys
        Of all members that have dealt, itself included.

    Privacy
    -------
    What comes out is uniform to everyone who lacks either the own seed or the pairwise keys with all honest members. Members that have
    revealed make the sum known; only the noise that is already in ``values`` protects the sum itself.
    """
    if values.size and max(int(values.max()), -int(values.min())) > limit(len(keys)):
        raise LocalProtocolError(
            "SUM-002", f"A value is beyond {limit(len(keys)):,}, the most that one of {len(keys)} members may add to a sum."
        )
    total = values.astype(np.uint64)
    add_masks(total, [(_own_key(secrets.own, context, me), True)])
    others = [member for member in sorted(keys) if member != me]
    add_masks(total, _pair_masks(secrets.mask, context, me, keys, others))
    return total


def unmask(
    total: Words,
    context: Context,
    keys: Mapping[int, Keys],
    dealt: Mapping[int, Mapping[int, bytes]],
    survivors: Collection[int],
    revealed: Mapping[int, Mapping[int, bytes]],
    threshold: int,
) -> Values:
    """The sum of the survivors' numbers, from the sum of their masked numbers and the shares that were revealed.

    Parameters
    ----------
    total
        ``(n,)`` sum of the masked numbers of exactly the survivors, modulo 2^64.
    dealt
        Every member that has dealt, with its commitments by holder.
    revealed
        For every dealer what each holder has revealed: the share of its own seed if it has survived, otherwise of its mask key. The
        first ``threshold`` holders count.

    Notes
    -----
    Ref: SDQ §IV-B; errata S-08. A secret that is recovered wrongly is noticed by its hash or its public key, and whose fault it is by the
    dealer's commitments to single shares: a holder that reveals another share is named, otherwise the dealer.
    """
    if len(survivors) < threshold:
        raise RemoteProtocolError("SUM-003", f"{len(survivors)} members are left; a sum of fewer than {threshold} is not opened.")
    secrets = _recovered(context, keys, dealt, frozenset(survivors), revealed, threshold)
    opened = total.copy()
    add_masks(opened, ((_own_key(secrets[member], context, member), False) for member in survivors))
    for member in dealt.keys() - set(survivors):
        # What a survivor added for this pair is what this member would have taken away.
        add_masks(opened, _pair_masks(secrets[member], context, member, keys, tuple(survivors)))
    values = opened.view(np.int64)
    if values.size and not -LARGEST <= int(values.min()) <= int(values.max()) <= LARGEST:
        raise RemoteProtocolError(
            "SUM-004",
            f"A sum is beyond {LARGEST:,} in absolute value.",
            why="Some member has added more than it may, or other masks than agreed.",
        )
    return values


def _recovered(
    context: Context,
    keys: Mapping[int, Keys],
    dealt: Mapping[int, Mapping[int, bytes]],
    survivors: frozenset[int],
    revealed: Mapping[int, Mapping[int, bytes]],
    threshold: int,
) -> dict[int, bytes]:
    """The own seed of every survivor, and the mask key of every other dealer."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for owner in dealt:
        holders = tuple(sorted(revealed.get(owner, ()))[:threshold])
        if len(holders) < threshold:
            raise RemoteProtocolError("SUM-003", f"{len(holders)} shares of member {owner}'s secret were revealed; {threshold} are needed.")
        alike.setdefault(holders, []).append(owner)
    secrets = {}
    for holders, owners in alike.items():
        rows = [[revealed[owner][holder] for holder in holders] for owner in owners]
        for owner, row, secret in zip(owners, rows, recombine_many(holders, [list(map(_share, row)) for row in rows]), strict=True):
            which: Which = "own" if owner in survivors else "mask"
            if secret is None or not is_committed(secret, context, owner, keys[owner], which):
                for holder, share in zip(holders, row, strict=True):
                    check_revealed(context, owner, holder, which, share, dealt[owner][holder])
                raise misfit(owner, f"The shares that member {owner} has dealt do not give the secret that it committed to.")
            secrets[owner] = secret
    return secrets


def _pair_masks(private: bytes, context: Context, me: int, keys: Mapping[int, Keys], others: Sequence[int]) -> Iterator[tuple[bytes, bool]]:
    """The masks that a member has with others, and whether it is this member that adds them."""

    def info(other: int) -> bytes:
        low, high = sorted((me, other))
        return context.bind("pair", low, high, keys[low].mask, keys[high].mask)

    agreed = agree_all(private, ((keys[other].mask, info(other)) for other in others))
    for other in others:
        try:
            yield next(agreed), me < other
        except RemoteProtocolError as error:
            raise misfit(other, f"Member {other} has published a key that cannot be used.", error.what) from None


def _own_key(seed: bytes, context: Context, member: int) -> bytes:
    return derive(seed, context.bind("own mask", member))


def _share(revealed: bytes) -> bytes:
    """The share in what was revealed; of another length it is made one that cannot fit, so that its holder is found like any other."""
    return revealed[:SHARE_BYTES] if len(revealed) == REVEALED_BYTES else b"\xff" * SHARE_BYTES
