"""Share a member's mask key and seed among all members.

Members and the collector (`shoal.protocols.secagg`) call it. Each pair of shares travels in a
sealed box with a commitment. The commitment is a hash of the hashes of both shares, so that either
share can be revealed and checked without the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shoal.crypto.hpke import OVERHEAD, open_boxes, seal
from shoal.crypto.identity import member_error
from shoal.crypto.secagg.context import DIGEST_BYTES, MemberPublicKeys, RoundContext
from shoal.crypto.secagg.key_agreement import KEY_BYTES, derive_public_key, is_usable_public_key
from shoal.crypto.shamir import SHARE_BYTES, are_shares, split_secrets
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError

SecretKind = Literal["own", "mask"]

PLAIN_BYTES = 2 * SHARE_BYTES
BOX_BYTES = PLAIN_BYTES + OVERHEAD
REVEALED_BYTES = SHARE_BYTES + DIGEST_BYTES


class MemberSecrets(NamedTuple):
    """The secrets of a member for one round.

    Its private mask key, the seed of its self mask, and its private box key.
    """

    mask: bytes
    own: bytes
    box: bytes


@dataclass(frozen=True)
class KeyShares:
    """A member's shares for all members of the list of keys.

    Parameters
    ----------
    boxes
        For each other member, the box with its shares.
    commitments
        For each member, the dealer included, the hash of its shares.
    own_shares
        The dealer's own shares.
    """

    boxes: dict[int, bytes]
    commitments: dict[int, bytes]
    own_shares: bytes = field(repr=False)


def draw_secrets(entropy: Entropy) -> MemberSecrets:
    """Draw the secrets of one member for one round."""
    return MemberSecrets(
        entropy.bytes(KEY_BYTES), entropy.bytes(KEY_BYTES), entropy.bytes(KEY_BYTES)
    )


def derive_public_keys(secrets: MemberSecrets, context: RoundContext, me: int) -> MemberPublicKeys:
    """Return the values that a member publishes."""
    return MemberPublicKeys(
        derive_public_key(secrets.mask),
        derive_public_key(secrets.box),
        _commit_seed(secrets.own, context, me),
    )


def check_public_keys(keys: MemberPublicKeys, member: int) -> None:
    """Raise ``CRYPTO-001`` for keys with which no secret can be agreed on.

    The collector calls it, so that one member cannot stop all others.
    """
    if not (is_usable_public_key(keys.mask) and is_usable_public_key(keys.box)):
        raise member_error(
            member,
            f"Member {member} published an invalid key.",
            "Anyone could compute the secrets that are agreed on with it.",
        )


def share_keys(
    secrets: MemberSecrets,
    context: RoundContext,
    me: int,
    keys: Mapping[int, MemberPublicKeys],
    threshold: int,
    entropy: Entropy,
) -> KeyShares:
    """Share both secrets of a member among all members of the list of keys, itself included.

    Parameters
    ----------
    keys
        The whole list; the caller has checked that its own entry is right.
    threshold
        t: the number of members that must reveal before a secret can be recovered.
    """
    if not threshold <= len(keys):
        raise LocalProtocolError(
            "SUM-001",
            f"Secrets shared among {len(keys)} members could never be recovered with a threshold "
            f"of {threshold}.",
        )
    rows = split_secrets((secrets.own, secrets.mask), threshold, max(keys) + 1, entropy)
    plain = {member: b"".join(rows[member]) for member in sorted(keys)}
    boxes = {
        member: _seal_shares(
            member, keys[member].box, shares, _encode_box_info(context, me, member)
        )
        for member, shares in plain.items()
        if member != me
    }
    commitments = {
        member: _commit_shares(context, me, member, *_hash_shares(shares))
        for member, shares in plain.items()
    }
    return KeyShares(boxes, commitments, plain[me])


def open_key_shares(
    secrets: MemberSecrets, context: RoundContext, me: int, dealt: Mapping[int, tuple[bytes, bytes]]
) -> dict[int, bytes]:
    """Return the shares in the boxes of dealers, each box given with its commitment.

    The caller has verified the signatures.

    Raises
    ------
    MemberError
        ``CRYPTO-001``, naming the dealer: its box cannot be decrypted, or does not contain the
        shares of the commitment.
    """
    opened = open_boxes(
        secrets.box,
        ((box, _encode_box_info(context, dealer, me)) for dealer, (box, _) in dealt.items()),
    )
    plain = {}
    for dealer, (_, commitment) in dealt.items():
        try:
            shares = next(opened)
        except RemoteProtocolError as error:
            raise member_error(
                dealer,
                f"The box from member {dealer} for member {me} cannot be decrypted.",
                error.why,
            ) from None
        if not are_shares(shares, 2):
            raise member_error(
                dealer, f"The box from member {dealer} for member {me} does not contain shares."
            )
        if _commit_shares(context, dealer, me, *_hash_shares(shares)) != commitment:
            raise member_error(
                dealer,
                f"The shares from member {dealer} for member {me} do not match its commitment.",
            )
        plain[dealer] = shares
    return plain


def reveal_share(plain: bytes, which: SecretKind) -> bytes:
    """Return one of the two shares from a dealer, with the hash of the other.

    The hash is needed to check the share against the commitment.
    """
    own, other = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
    return own + _hash_share(other) if which == "own" else other + _hash_share(own)


def check_revealed_share(
    context: RoundContext,
    owner: int,
    holder: int,
    which: SecretKind,
    revealed: bytes,
    commitment: bytes,
) -> None:
    """Raise ``CRYPTO-001`` if a holder reveals another share than the owner committed to."""
    share, other = revealed[:SHARE_BYTES], revealed[SHARE_BYTES:]
    leaves = (_hash_share(share), other) if which == "own" else (other, _hash_share(share))
    if _commit_shares(context, owner, holder, *leaves) != commitment:
        raise member_error(
            holder,
            f"Member {holder} revealed a share of member {owner}'s secret that does not match "
            "the commitment.",
        )


def is_committed(
    secret: bytes, context: RoundContext, owner: int, keys: MemberPublicKeys, which: SecretKind
) -> bool:
    """Return whether a recovered secret matches its owner's published hash or public key."""
    if which == "own":
        return _commit_seed(secret, context, owner) == keys.commitment
    return derive_public_key(secret) == keys.mask


def _commit_seed(seed: bytes, context: RoundContext, member: int) -> bytes:
    return hashlib.sha256(context.bind("seed", member, seed)).digest()


def _encode_box_info(context: RoundContext, dealer: int, recipient: int) -> bytes:
    return context.bind("box", dealer, recipient)


def _hash_share(share: bytes) -> bytes:
    return hashlib.sha256(share).digest()


def _hash_shares(plain: bytes) -> tuple[bytes, bytes]:
    return _hash_share(plain[:SHARE_BYTES]), _hash_share(plain[SHARE_BYTES:])


def _commit_shares(
    context: RoundContext, dealer: int, holder: int, own_leaf: bytes, mask_leaf: bytes
) -> bytes:
    """Return the hash of both shares, of which either can be shown without the other."""
    return hashlib.sha256(context.bind("shares", dealer, holder, own_leaf, mask_leaf)).digest()


def _seal_shares(member: int, public: bytes, plain: bytes, info: bytes) -> bytes:
    try:
        return seal(public, plain, info)
    except RemoteProtocolError as error:
        raise member_error(
            member, f"Member {member} published an invalid key.", error.what
        ) from None
