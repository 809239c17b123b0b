"""Sharing a member's two secrets of a round among all members, each share in a box of its own and committed to.

The commitment to a pair of shares is a hash of their hashes, so that either share can be shown, and checked, without the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shoal.crypto.boxes import OVERHEAD, open_boxes, seal
from shoal.crypto.context import DIGEST_BYTES, Context, Keys
from shoal.crypto.masks import KEY_BYTES, is_public, public_of
from shoal.crypto.roster import misfit
from shoal.crypto.shamir import SHARE_BYTES, are_shares, split_many
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError

Which = Literal["own", "mask"]

PLAIN_BYTES = 2 * SHARE_BYTES
BOX_BYTES = PLAIN_BYTES + OVERHEAD
REVEALED_BYTES = SHARE_BYTES + DIGEST_BYTES


class Secrets(NamedTuple):
    """What a member keeps to itself for one round: its private mask key, the seed of its own mask, and its private box key."""

    mask: bytes
    own: bytes
    box: bytes


@dataclass(frozen=True)
class Dealing:
    """A member's shares for all members of the list of keys.

    Parameters
    ----------
    boxes
        For every other member the box with its shares.
    commitments
        For every member, the dealer included, the hash of its shares.
    kept
        The dealer's own shares.
    """

    boxes: dict[int, bytes]
    commitments: dict[int, bytes]
    kept: bytes = field(repr=False)


def fresh_secrets(entropy: Entropy) -> Secrets:
    """The secrets of one member for one round."""
    return Secrets(entropy.bytes(KEY_BYTES), entropy.bytes(KEY_BYTES), entropy.bytes(KEY_BYTES))


def keys_of(secrets: Secrets, context: Context, me: int) -> Keys:
    """What a member publishes."""
    return Keys(public_of(secrets.mask), public_of(secrets.box), _seed_commitment(secrets.own, context, me))


def check_keys(keys: Keys, member: int) -> None:
    """Refuse keys with which nothing secret can be agreed on; the collector does, so that one member cannot stop all the others."""
    if not (is_public(keys.mask) and is_public(keys.box)):
        raise misfit(
            member, f"Member {member} has published a key that cannot be used.", "Everyone could agree on the same secrets with it."
        )


def deal(secrets: Secrets, context: Context, me: int, keys: Mapping[int, Keys], threshold: int, entropy: Entropy) -> Dealing:
    """Share both secrets of a member among all members of the list of keys, itself included.

    Parameters
    ----------
    keys
        The whole list; the caller has made sure that its own entry is right.
    threshold
        t: how many members must reveal before a secret can be recovered.
    """
    if not threshold <= len(keys):
        raise LocalProtocolError("SUM-001", f"Shares for {len(keys)} members, of which {threshold} are needed, could never be recovered.")
    rows = split_many((secrets.own, secrets.mask), threshold, max(keys) + 1, entropy)
    plain = {member: b"".join(rows[member]) for member in sorted(keys)}
    boxes = {
        member: _sealed(member, keys[member].box, shares, _box_info(context, me, member))
        for member, shares in plain.items()
        if member != me
    }
    commitments = {member: _commitment(context, me, member, *_leaves(shares)) for member, shares in plain.items()}
    return Dealing(boxes, commitments, plain[me])


def open_all(secrets: Secrets, context: Context, me: int, dealt: Mapping[int, tuple[bytes, bytes]]) -> dict[int, bytes]:
    """The shares in the boxes of some dealers, each box given with its commitment; the caller has checked the signatures.

    A dealer is named whose box does not open, or holds something else than shares, or other shares than were committed to.
    """
    opened = open_boxes(secrets.box, ((box, _box_info(context, dealer, me)) for dealer, (box, _) in dealt.items()))
    plain = {}
    for dealer, (_, commitment) in dealt.items():
        try:
            shares = next(opened)
        except RemoteProtocolError as error:
            raise misfit(dealer, f"The box that member {dealer} has dealt to member {me} does not open.", error.why) from None
        if not are_shares(shares, 2):
            raise misfit(dealer, f"What member {dealer} has dealt to member {me} are no shares.")
        if _commitment(context, dealer, me, *_leaves(shares)) != commitment:
            raise misfit(dealer, f"The shares that member {dealer} has dealt to member {me} are not those it committed to.")
        plain[dealer] = shares
    return plain


def shares_to_reveal(plain: bytes, which: Which) -> bytes:
    """One of the two shares that a dealer gave, with the hash of the other, by which it can be checked against the commitment."""
    own, other = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
    return own + _leaf(other) if which == "own" else other + _leaf(own)


def check_revealed(context: Context, owner: int, holder: int, which: Which, revealed: bytes, commitment: bytes) -> None:
    """Refuse what a holder reveals if it is not what the owner of the secret committed to."""
    share, other = revealed[:SHARE_BYTES], revealed[SHARE_BYTES:]
    leaves = (_leaf(share), other) if which == "own" else (other, _leaf(share))
    if _commitment(context, owner, holder, *leaves) != commitment:
        raise misfit(holder, f"The share of member {owner}'s secret that member {holder} reveals is not the one it was dealt.")


def is_committed(secret: bytes, context: Context, owner: int, keys: Keys, which: Which) -> bool:
    """Whether a recovered secret is the one whose hash, or whose public key, its owner has published."""
    if which == "own":
        return _seed_commitment(secret, context, owner) == keys.commitment
    return public_of(secret) == keys.mask


def _seed_commitment(seed: bytes, context: Context, member: int) -> bytes:
    return hashlib.sha256(context.bind("seed", member, seed)).digest()


def _box_info(context: Context, dealer: int, recipient: int) -> bytes:
    return context.bind("box", dealer, recipient)


def _leaf(share: bytes) -> bytes:
    return hashlib.sha256(share).digest()


def _leaves(plain: bytes) -> tuple[bytes, bytes]:
    return _leaf(plain[:SHARE_BYTES]), _leaf(plain[SHARE_BYTES:])


def _commitment(context: Context, dealer: int, holder: int, own_leaf: bytes, mask_leaf: bytes) -> bytes:
    """The hash of both shares, made so that either can be shown without the other."""
    return hashlib.sha256(context.bind("shares", dealer, holder, own_leaf, mask_leaf)).digest()


def _sealed(member: int, public: bytes, plain: bytes, info: bytes) -> bytes:
    try:
        return seal(public, plain, info)
    except RemoteProtocolError as error:
        raise misfit(member, f"Member {member} has published a key that cannot be used.", error.what) from None
