"""A member's side of a secure sum: state and functions that a protocol's peer has among its own.

=========  ================================  ==================================================================================
phase      waits for                         then
=========  ================================  ==================================================================================
keys       ``SumKeyList``                    checks its own entry; shares its secrets among the list
shares     ``SumBoxes``                      checks every dealer's signature; opens its shares
ready      the ledger, which its peer asks   ``masked`` hides the vector, ``released`` goes on: the cost is due when it leaves
masked     ``SumSurvivors``                  signs the list, the only one that it signs in the round
agreed     ``SumAgreement``                  checks that enough others have signed the same; reveals one share for each dealer
over       nothing                           has erased all secrets of the round
=========  ================================  ==================================================================================

What is late, comes again or is meant for others is dropped. What no honest collector sends is refused, with what is wrong about it. A
member that has dropped out of a round, because it was slow or has lost its state, waits for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.crypto.context import DIGEST_BYTES, Context, box_statement, list_digest, survivors_statement
from shoal.crypto.dealing import BOX_BYTES, check_keys, deal, fresh_secrets, keys_of, open_all, shares_to_reveal
from shoal.crypto.roster import SIGNATURE_BYTES, Identity
from shoal.crypto.secure_sum import mask
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.protocols.effects import AGGREGATOR, Send
from shoal.protocols.sums.messages import (
    Members,
    SumAgreed,
    SumAgreement,
    SumBoxes,
    SumKeyList,
    SumKeys,
    SumMasked,
    SumShares,
    SumSurvivors,
    SumUnmask,
    cut,
)
from shoal.protocols.sums.sitting import Sitting
from shoal.protocols.sums.terms import Terms, keys_statement, masked_statement, read_keys, shares_statement, unmask_statement

Sends = tuple[Send, ...]


@dataclass(frozen=True)
class Member:
    """One member.

    Parameters
    ----------
    terms
        What all parties agree on.
    me
        Its position on the roster.
    identity
        Its key on the roster.

    Notes
    -----
    Ref: SDQ §IV-B; errata S-08, S-12.

    Privacy
    -------
    The collector learns the sum of at least ``threshold`` vectors, or nothing. Whatever it sends, no member's own seed and mask key are
    both revealed, as long as 2 t > N + C for the C members that side with it. What the sum itself says is a matter of the noise in it.

    Examples
    --------
    >>> from shoal.crypto.roster import Roster
    >>> from shoal.entropy import SeededEntropy
    >>> identities = [Identity.from_seed(bytes([i]) * 32) for i in range(3)]
    >>> terms = Terms(bytes(32), Roster(("north", "south", "west"), tuple(one.public for one in identities)), threshold=2)
    >>> sitting, (send,) = Member(terms, 0, identities[0]).begin(None, 1, bytes(32), SeededEntropy(1))
    >>> sitting.phase, send.message.type_name
    ('keys', 'sum.keys')
    """

    terms: Terms
    me: int
    identity: Identity

    def __post_init__(self) -> None:
        if self.terms.roster.keys[self.me] != self.identity.public:
            raise LocalProtocolError("SUM-001", f"Member {self.me} of the roster has another key than the one that is to sign for it.")

    def begin(self, sitting: Sitting | None, number: int, query: bytes, entropy: Entropy) -> tuple[Sitting, Sends]:
        """Take part in a round, unless it has begun before or an even later one has. What is left of an earlier round is erased.

        Parameters
        ----------
        sitting
            The latest round, None before the first.
        number, query
            The round, and the digest of what is asked in it, which the member has computed by itself.
        """
        if sitting is not None and number <= sitting.round:
            if number == sitting.round and query != sitting.query:
                raise _objection(f"Round {number} has begun, and is now to be about something else.")
            return sitting, ()
        secrets, context = fresh_secrets(entropy), self.terms.context(number, query)
        keys = keys_of(secrets, context, self.me)
        signature = self.identity.sign(keys_statement(context, self.me, keys))
        message = SumKeys(study=self.terms.study, round=number, query=query, **keys._asdict(), signature=signature)
        return Sitting(round=number, query=query, **secrets._asdict(), published=b"".join(keys)), (Send(AGGREGATOR, message),)

    def received(self, sitting: Sitting, message: Message, entropy: Entropy) -> tuple[Sitting, Sends]:
        """Take a message of the collector, which may lie."""
        if not isinstance(message, SumKeyList | SumBoxes | SumSurvivors | SumAgreement):
            raise RemoteProtocolError("PROTO-003", f"A collector does not send a {message.type_name}.")
        if message.round != sitting.round or sitting.is_over:
            return sitting, ()
        match message:
            case SumKeyList():
                return self._listed(sitting, message, entropy)
            case SumBoxes():
                return self._dealt(sitting, message)
            case SumSurvivors():
                return self._survived(sitting, message)
            case _:
                return self._agreement(sitting, message)

    def masked(self, sitting: Sitting, values: npt.NDArray[np.int64]) -> SumMasked:
        """The vector under all masks: what the ledger has granted.

        Parameters
        ----------
        values
            ``(n,)`` with the member's noise in them.
        """
        assert sitting.is_ready
        keys = sitting.public_keys
        dealt = {dealer: keys[dealer] for dealer in sitting.dealers}
        vector = Array.of(mask(values, sitting.secrets, self._context(sitting), self.me, dealt))
        signature = self.identity.sign(self._masked_statement(sitting, vector))
        return SumMasked(study=self.terms.study, round=sitting.round, vector=vector, signature=signature)

    def released(self, sitting: Sitting, stored: SumMasked) -> Sitting:
        """Go on once the vector is stored. One that was made before the member lost its state is not of this sitting, which then ends."""
        # Ed25519 signs the same bytes in the same way.
        if not sitting.is_ready or stored.signature != self.identity.sign(self._masked_statement(sitting, stored.vector)):
            return sitting.ended()
        return sitting.replace(phase="masked", mask=b"", own=b"", box=b"", kept=b"")

    def _listed(self, sitting: Sitting, listed: SumKeyList, entropy: Entropy) -> tuple[Sitting, Sends]:
        if sitting.listed is not None:
            return self._again(sitting, sitting.listed == listed, "keys")
        context, keys = self._context(sitting), read_keys(listed)
        self._check_list(listed.members, range(len(self.terms.roster)), "keys")
        if self.me not in keys:
            return sitting.ended(), ()
        if b"".join(keys[self.me]) != sitting.published:
            raise _objection(f"The list of keys of round {sitting.round} has other keys of this member than it sent.")
        for member, one in keys.items():
            check_keys(one, member)
        dealing = deal(sitting.secrets, context, self.me, keys, self.terms.threshold, entropy)
        digest = list_digest(context, keys)
        statements = (box_statement(context, self.me, to, digest, box, dealing.commitments[to]) for to, box in dealing.boxes.items())
        rows = (b"".join(dealing.boxes.values()), b"".join(dealing.commitments.values()), b"".join(map(self.identity.sign, statements)))
        signature = self.identity.sign(shares_statement(context, self.me, digest, *rows))
        boxes, commitments, signatures = rows
        message = SumShares(
            study=self.terms.study,
            round=sitting.round,
            boxes=boxes,
            commitments=commitments,
            signatures=signatures,
            signature=signature,
        )
        return sitting.replace(phase="shares", listed=listed, digest=digest, kept=dealing.kept), (Send(AGGREGATOR, message),)

    def _dealt(self, sitting: Sitting, message: SumBoxes) -> tuple[Sitting, Sends]:
        dealers = tuple(sorted({*message.dealers, self.me}))
        if sitting.dealers:
            return self._again(sitting, sitting.dealers == dealers, "dealers")
        if sitting.listed is None or self.me in message.dealers:
            raise _objection("Boxes came for a member that has not dealt, or from itself.")
        self._check_list(dealers, sitting.listed.members, "dealers")
        context = self._context(sitting)
        boxes = cut(message.boxes, BOX_BYTES, message.dealers, "boxes")
        commitments = cut(message.commitments, DIGEST_BYTES, message.dealers, "commitments")
        signatures = cut(message.signatures, SIGNATURE_BYTES, message.dealers, "signatures")
        for dealer in message.dealers:
            statement = box_statement(context, dealer, self.me, sitting.digest, boxes[dealer], commitments[dealer])
            self.terms.roster.check(dealer, signatures[dealer], statement)
        dealt = {dealer: (boxes[dealer], commitments[dealer]) for dealer in message.dealers}
        shares = open_all(sitting.secrets, context, self.me, dealt) | {self.me: sitting.kept}
        held = tuple(shares[dealer] for dealer in dealers)
        return sitting.replace(phase="ready", dealers=dealers, shares=held, box=b"", kept=b""), ()

    def _survived(self, sitting: Sitting, message: SumSurvivors) -> tuple[Sitting, Sends]:
        if not self._is_named(sitting, message.survivors):
            return sitting.ended(), ()
        if sitting.survivors:
            return sitting, ()
        signature = self.identity.sign(survivors_statement(self._context(sitting), message.survivors, sitting.dealers))
        agreed = SumAgreed(study=self.terms.study, round=sitting.round, signature=signature)
        return sitting.replace(phase="agreed", survivors=message.survivors), (Send(AGGREGATOR, agreed),)

    def _agreement(self, sitting: Sitting, message: SumAgreement) -> tuple[Sitting, Sends]:
        """Reveal, once enough have signed; an agreement may overtake the list that it is about."""
        if not self._is_named(sitting, message.survivors):
            return sitting.ended(), ()
        self._check_list(message.signers, message.survivors, "signers")
        context = self._context(sitting)
        statement = survivors_statement(context, message.survivors, sitting.dealers)
        for signer, signature in cut(message.signatures, SIGNATURE_BYTES, message.signers, "signatures").items():
            self.terms.roster.check(signer, signature, statement)
        held, survivors = zip(sitting.dealers, sitting.shares, strict=True), set(message.survivors)
        shares = b"".join(shares_to_reveal(plain, "own" if dealer in survivors else "mask") for dealer, plain in held)
        signature = self.identity.sign(unmask_statement(context, self.me, shares))
        revealed = SumUnmask(study=self.terms.study, round=sitting.round, shares=shares, signature=signature)
        return sitting.ended(), (Send(AGGREGATOR, revealed),)

    def _is_named(self, sitting: Sitting, survivors: Members) -> bool:
        """Whether this member is among the survivors; a list that it cannot stand by is refused."""
        if sitting.survivors not in ((), survivors):
            raise _objection(
                f"Round {sitting.round} has two lists of survivors.", "Only the one that this member has signed may be opened."
            )
        if self.me not in survivors:
            return False
        if sitting.phase not in ("masked", "agreed"):
            raise _objection(f"A list of survivors of round {sitting.round} names this member, which has sent no vector.")
        self._check_list(survivors, sitting.dealers, "survivors")
        return True

    def _check_list(self, members: Members, among: Members | range, what: str) -> None:
        strangers = sorted(set(members).difference(among))
        if strangers:
            raise _objection(f"A list of {what} names member {strangers[0]}, which cannot be in it.")
        if len(members) < self.terms.threshold:
            raise _objection(
                f"A list of {what} has {len(members)} members; {self.terms.threshold} are needed.",
                "Fewer could not hide what each of them adds, nor hold as much noise as was promised.",
            )

    def _again(self, sitting: Sitting, is_same: bool, what: str) -> tuple[Sitting, Sends]:
        """A list that has come before is dropped; another one in its place is refused."""
        if not is_same:
            raise _objection(f"Round {sitting.round} has two lists of {what}.")
        return sitting, ()

    def _context(self, sitting: Sitting) -> Context:
        return self.terms.context(sitting.round, sitting.query)

    def _masked_statement(self, sitting: Sitting, vector: Array) -> bytes:
        return masked_statement(self._context(sitting), self.me, sitting.digest, sitting.dealers, vector.data)


def _objection(what: str, why: str | None = None) -> RemoteProtocolError:
    return RemoteProtocolError("SUM-102", what, why=why)
