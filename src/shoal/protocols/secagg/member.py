"""State machine of a member.

The peer of a protocol with secure sums keeps a `MemberState` in its own state and calls a
`SumMember`.

======  ======================  ===================================================================
phase   waits for               then
======  ======================  ===================================================================
keys    ``SumKeyList``          checks its own entry; shares its secrets among the listed members
shares  ``SumBoxes``            checks every dealer's signature; opens its shares
ready   the ledger, which its   ``mask_values`` masks the vector, ``mark_released`` continues: the
        peer asks               cost is due when the vector is sent
masked  ``SumSurvivors``        signs the list, the only one that it signs in the round
agreed  ``SumAgreement``        checks that enough others have signed the same list; reveals one
                                share for each dealer
over    nothing                 has erased all secrets of the round
======  ======================  ===================================================================

Late or repeated messages, and messages for other members, are dropped. A message that no honest
collector sends raises `RemoteProtocolError`. A member that was too slow or lost its state waits for
the next round.

The state is saved, so secrets are erased from it as soon as possible. A member must sign at most
one list of survivors in a round, and reveal at most one share of each dealer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shoal.crypto.identity import SIGNATURE_BYTES, Identity
from shoal.crypto.secagg.context import (
    DIGEST_BYTES,
    MemberPublicKeys,
    RoundContext,
    digest_key_list,
    encode_box_statement,
    encode_survivors_statement,
)
from shoal.crypto.secagg.key_shares import (
    BOX_BYTES,
    MemberSecrets,
    check_public_keys,
    derive_public_keys,
    draw_secrets,
    open_key_shares,
    reveal_share,
    share_keys,
)
from shoal.crypto.secagg.masking import mask_vector
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Digest, Message, Record
from shoal.protocols.effects import AGGREGATOR, Send
from shoal.protocols.secagg.messages import (
    Members,
    Natural,
    SumAgreed,
    SumAgreement,
    SumBoxes,
    SumKeyList,
    SumKeys,
    SumMasked,
    SumParameters,
    SumShares,
    SumSurvivors,
    SumUnmask,
    keys_statement,
    masked_statement,
    read_keys,
    shares_statement,
    split_row,
    unmask_statement,
)

Secret = Annotated[bytes, Field(repr=False)]


class MemberState(Record):
    """A member's state in one round.

    Parameters
    ----------
    round, query, phase
        The round, the digest of its question, and the phase.
    mask, own, box
        The member's secrets of this round; empty when they are no longer needed.
    published
        The keys that it has sent, concatenated.
    listed, digest
        The accepted list of keys, and its digest, which all later signatures refer to.
    kept
        The shares of its secrets that the member itself holds.
    dealers, shares
        The members that have shared secrets, including this one, and the shares it holds of each.
    survivors
        The list of survivors that it has signed.
    """

    round: Natural
    query: Digest
    phase: Literal["keys", "shares", "ready", "masked", "agreed", "over"] = "keys"
    mask: Secret = b""
    own: Secret = b""
    box: Secret = b""
    published: bytes = b""
    listed: SumKeyList | None = None
    digest: bytes = b""
    kept: Secret = b""
    dealers: Members = ()
    shares: Annotated[tuple[bytes, ...], Field(repr=False)] = ()
    survivors: Members = ()

    @property
    def is_ready(self) -> bool:
        """True if the vector can be masked: it is time to ask the ledger."""
        return self.phase == "ready"

    @property
    def is_over(self) -> bool:
        """True if the round is over for this member."""
        return self.phase == "over"

    def end(self) -> MemberState:
        """Return the state after the end of the round, with all secrets erased.

        The member has done its part, its ledger refused, or it was left out.
        """
        return MemberState(round=self.round, query=self.query, phase="over")

    @property
    def secrets(self) -> MemberSecrets:
        """The member's secrets."""
        return MemberSecrets(self.mask, self.own, self.box)

    @property
    def public_keys(self) -> dict[int, MemberPublicKeys]:
        """The list of keys, by member."""
        return {} if self.listed is None else read_keys(self.listed)


Sends = tuple[Send, ...]


@dataclass(frozen=True)
class SumMember:
    """One member.

    Parameters
    ----------
    sum_params
        Parameters that all parties agree on.
    me
        Its position on the roster.
    identity
        Its signing key on the roster.

    Notes
    -----
    Ref: SDQ §IV-B; errata S-08, S-12.

    Privacy
    -------
    The collector learns the sum of at least ``threshold`` vectors, or nothing. No messages of the
    collector make the members reveal both a member's own seed and its mask key, if 2 t > N + C for
    the C members that collude with it. The information in the sum itself depends on its noise.

    Examples
    --------
    >>> from shoal.crypto.identity import Roster
    >>> from shoal.entropy import SeededEntropy
    >>> identities = [Identity.from_seed(bytes([i]) * 32) for i in range(3)]
    >>> params = SumParameters(
    ...     bytes(32),
    ...     Roster(("north", "south", "west"), tuple(one.public_key for one in identities)),
    ...     threshold=2,
    ... )
    >>> state, (send,) = SumMember(params, 0, identities[0]).begin(
    ...     None, 1, bytes(32), SeededEntropy(1)
    ... )
    >>> state.phase, send.message.type_name
    ('keys', 'sum.keys')
    """

    sum_params: SumParameters
    me: int
    identity: Identity

    def __post_init__(self) -> None:
        if self.sum_params.roster.keys[self.me] != self.identity.public_key:
            raise LocalProtocolError(
                "SUM-001",
                f"Member {self.me} of the roster has another key than the given signing key.",
            )

    def begin(
        self, state: MemberState | None, number: int, query: bytes, entropy: Entropy
    ) -> tuple[MemberState, Sends]:
        """Begin a round, unless it or a later one has begun; erase the rest of an earlier round.

        Parameters
        ----------
        state
            The latest round, None before the first.
        number, query
            The round, and the digest of its question, which the member has computed from the
            question it received.
        """
        if state is not None and number <= state.round:
            if number == state.round and query != state.query:
                raise _collector_error(f"The question of round {number} has changed.")
            return state, ()
        secrets, context = draw_secrets(entropy), self.sum_params.make_context(number, query)
        keys = derive_public_keys(secrets, context, self.me)
        signature = self.identity.sign(keys_statement(context, self.me, keys))
        message = SumKeys(
            study=self.sum_params.study,
            round=number,
            query=query,
            **keys._asdict(),
            signature=signature,
        )
        return MemberState(
            round=number, query=query, **secrets._asdict(), published=b"".join(keys)
        ), (Send(AGGREGATOR, message),)

    def handle_message(
        self, state: MemberState, message: Message, entropy: Entropy
    ) -> tuple[MemberState, Sends]:
        """Process an untrusted message of the collector."""
        if not isinstance(message, SumKeyList | SumBoxes | SumSurvivors | SumAgreement):
            raise RemoteProtocolError(
                "PROTO-003", f"A collector does not send a {message.type_name}."
            )
        if message.round != state.round or state.is_over:
            return state, ()
        match message:
            case SumKeyList():
                return self._handle_key_list(state, message, entropy)
            case SumBoxes():
                return self._handle_boxes(state, message)
            case SumSurvivors():
                return self._handle_survivors(state, message)
            case _:
                return self._handle_agreement(state, message)

    def mask_values(self, state: MemberState, values: npt.NDArray[np.int64]) -> SumMasked:
        """Return the masked vector, which the ledger has granted.

        Parameters
        ----------
        values
            ``(n,)`` integers that contain the member's noise.
        """
        assert state.is_ready
        keys = state.public_keys
        dealt = {dealer: keys[dealer] for dealer in state.dealers}
        vector = Array.from_values(
            mask_vector(values, state.secrets, self._make_context(state), self.me, dealt)
        )
        signature = self.identity.sign(self._make_masked_statement(state, vector))
        return SumMasked(
            study=self.sum_params.study, round=state.round, vector=vector, signature=signature
        )

    def mark_released(self, state: MemberState, stored: SumMasked) -> MemberState:
        """Continue after the vector is stored.

        If the stored vector was made before the member lost its state, it does not belong to this
        round, and the round ends.
        """
        # Ed25519 signatures are deterministic.
        if not state.is_ready or stored.signature != self.identity.sign(
            self._make_masked_statement(state, stored.vector)
        ):
            return state.end()
        return state.replace(phase="masked", mask=b"", own=b"", box=b"", kept=b"")

    def _handle_key_list(
        self, state: MemberState, listed: SumKeyList, entropy: Entropy
    ) -> tuple[MemberState, Sends]:
        if state.listed is not None:
            return self._check_repeat(state, state.listed == listed, "keys")
        context, keys = self._make_context(state), read_keys(listed)
        self._check_list(listed.members, range(len(self.sum_params.roster)), "keys")
        if self.me not in keys:
            return state.end(), ()
        if b"".join(keys[self.me]) != state.published:
            raise _collector_error(
                f"The list of keys of round {state.round} contains wrong keys of this member."
            )
        for member, key in keys.items():
            check_public_keys(key, member)
        dealing = share_keys(
            state.secrets, context, self.me, keys, self.sum_params.threshold, entropy
        )
        digest = digest_key_list(context, keys)
        statements = (
            encode_box_statement(context, self.me, to, digest, box, dealing.commitments[to])
            for to, box in dealing.boxes.items()
        )
        rows = (
            b"".join(dealing.boxes.values()),
            b"".join(dealing.commitments.values()),
            b"".join(map(self.identity.sign, statements)),
        )
        signature = self.identity.sign(shares_statement(context, self.me, digest, *rows))
        boxes, commitments, signatures = rows
        message = SumShares(
            study=self.sum_params.study,
            round=state.round,
            boxes=boxes,
            commitments=commitments,
            signatures=signatures,
            signature=signature,
        )
        return state.replace(
            phase="shares", listed=listed, digest=digest, kept=dealing.own_shares
        ), (Send(AGGREGATOR, message),)

    def _handle_boxes(self, state: MemberState, message: SumBoxes) -> tuple[MemberState, Sends]:
        dealers = tuple(sorted({*message.dealers, self.me}))
        if state.dealers:
            return self._check_repeat(state, state.dealers == dealers, "dealers")
        if state.listed is None or self.me in message.dealers:
            raise _collector_error(
                "The boxes are for a member that has shared no secrets, or come from the member "
                "itself."
            )
        self._check_list(dealers, state.listed.members, "dealers")
        context = self._make_context(state)
        boxes = split_row(message.boxes, BOX_BYTES, message.dealers, "boxes")
        commitments = split_row(message.commitments, DIGEST_BYTES, message.dealers, "commitments")
        signatures = split_row(message.signatures, SIGNATURE_BYTES, message.dealers, "signatures")
        for dealer in message.dealers:
            statement = encode_box_statement(
                context, dealer, self.me, state.digest, boxes[dealer], commitments[dealer]
            )
            self.sum_params.roster.check_signature(dealer, signatures[dealer], statement)
        dealt = {dealer: (boxes[dealer], commitments[dealer]) for dealer in message.dealers}
        shares = open_key_shares(state.secrets, context, self.me, dealt) | {self.me: state.kept}
        held = tuple(shares[dealer] for dealer in dealers)
        return state.replace(phase="ready", dealers=dealers, shares=held, box=b"", kept=b""), ()

    def _handle_survivors(
        self, state: MemberState, message: SumSurvivors
    ) -> tuple[MemberState, Sends]:
        if not self._is_named(state, message.survivors):
            return state.end(), ()
        if state.survivors:
            return state, ()
        signature = self.identity.sign(
            encode_survivors_statement(self._make_context(state), message.survivors, state.dealers)
        )
        agreed = SumAgreed(study=self.sum_params.study, round=state.round, signature=signature)
        return state.replace(phase="agreed", survivors=message.survivors), (
            Send(AGGREGATOR, agreed),
        )

    def _handle_agreement(
        self, state: MemberState, message: SumAgreement
    ) -> tuple[MemberState, Sends]:
        """Reveal shares if enough have signed; an agreement may overtake its list of survivors."""
        if not self._is_named(state, message.survivors):
            return state.end(), ()
        self._check_list(message.signers, message.survivors, "signers")
        context = self._make_context(state)
        statement = encode_survivors_statement(context, message.survivors, state.dealers)
        for signer, signature in split_row(
            message.signatures, SIGNATURE_BYTES, message.signers, "signatures"
        ).items():
            self.sum_params.roster.check_signature(signer, signature, statement)
        survivors = set(message.survivors)
        shares = b"".join(
            reveal_share(plain, "own" if dealer in survivors else "mask")
            for dealer, plain in zip(state.dealers, state.shares, strict=True)
        )
        signature = self.identity.sign(unmask_statement(context, self.me, shares))
        revealed = SumUnmask(
            study=self.sum_params.study, round=state.round, shares=shares, signature=signature
        )
        return state.end(), (Send(AGGREGATOR, revealed),)

    def _is_named(self, state: MemberState, survivors: Members) -> bool:
        """Return whether this member is among the survivors; raise if the list cannot be right."""
        if state.survivors not in ((), survivors):
            raise _collector_error(
                f"Round {state.round} has two lists of survivors.",
                "Only the list that this member has signed may be opened.",
            )
        if self.me not in survivors:
            return False
        if state.phase not in ("masked", "agreed"):
            raise _collector_error(
                f"The list of survivors of round {state.round} contains this member, which has "
                "sent no vector."
            )
        self._check_list(survivors, state.dealers, "survivors")
        return True

    def _check_list(self, members: Members, among: Members | range, what: str) -> None:
        unknown = sorted(set(members).difference(among))
        if unknown:
            raise _collector_error(
                f"The list of {what} contains member {unknown[0]}, which cannot be in it."
            )
        if len(members) < self.sum_params.threshold:
            raise _collector_error(
                f"The list of {what} has {len(members)} members; {self.sum_params.threshold} are "
                "needed.",
                "Fewer members cannot hide their single vectors, and add less noise than the "
                "study promises.",
            )

    def _check_repeat(
        self, state: MemberState, is_same: bool, what: str
    ) -> tuple[MemberState, Sends]:
        """Drop a repeated list; raise if it differs from the first."""
        if not is_same:
            raise _collector_error(f"Round {state.round} has two lists of {what}.")
        return state, ()

    def _make_context(self, state: MemberState) -> RoundContext:
        return self.sum_params.make_context(state.round, state.query)

    def _make_masked_statement(self, state: MemberState, vector: Array) -> bytes:
        return masked_statement(
            self._make_context(state), self.me, state.digest, state.dealers, vector.data
        )


def _collector_error(what: str, why: str | None = None) -> RemoteProtocolError:
    return RemoteProtocolError("SUM-102", what, why=why)
