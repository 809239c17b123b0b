"""The collector's side of a secure sum: state and functions that a protocol's aggregator has among its own.

=========  =============  ==========================  ==================================================================
phase      waits for      of                          then publishes
=========  =============  ==========================  ==================================================================
keys       ``SumKeys``    the roster                  ``SumKeyList``
shares     ``SumShares``  the list                    to each dealer its ``SumBoxes``
masked     ``SumMasked``  those that dealt            ``SumSurvivors``; vectors are added up as they come
agreed     ``SumAgreed``  t of the survivors          ``SumAgreement``
unmask     ``SumUnmask``  t of the survivors          opens the sum
over       nothing                                    has the sum, or why there is none
=========  =============  ==========================  ==================================================================

When the time of a phase is up it goes on with those that are there, if they are t. So up to N - t members may vanish in all, at
any time, and one more ends the round. What is late is dropped; what an honest member does not send is refused and blamed on its sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.crypto.context import DIGEST_BYTES, Context, Keys, list_digest, survivors_statement
from shoal.crypto.dealing import BOX_BYTES, REVEALED_BYTES, check_keys, check_revealed
from shoal.crypto.roster import SIGNATURE_BYTES
from shoal.crypto.secure_sum import unmask
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.protocols.effects import EVERYONE, Send, WakeAt
from shoal.protocols.machines import Effects
from shoal.protocols.sums.gathering import Came, Failure, Gathering, Phase
from shoal.protocols.sums.messages import (
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
from shoal.protocols.sums.terms import Terms, keys_statement, masked_statement, read_keys, shares_statement, unmask_statement

FromMember = SumKeys | SumShares | SumMasked | SumAgreed | SumUnmask

_PHASES: tuple[Phase, ...] = ("keys", "shares", "masked", "agreed", "unmask", "over")
_KINDS: tuple[type[FromMember], ...] = (SumKeys, SumShares, SumMasked, SumAgreed, SumUnmask)
_NEEDS_ENOUGH = ("agreed", "unmask")
"""Phases in which nobody beyond the first t is waited for."""


@dataclass(frozen=True)
class Collector:
    """The untrusted side.

    Parameters
    ----------
    terms
        What all parties agree on.
    patience
        How long each phase waits.

    Notes
    -----
    Ref: SDQ §IV-B; errata S-12. It checks what members send to find out whose fault it is when a sum does not open; members need not
    trust that it does.
    """

    terms: Terms
    patience: timedelta

    def begin(self, number: int, query: bytes, size: int, now: datetime) -> tuple[Gathering, Effects]:
        """Open a round for ``size`` numbers; the question itself is for the aggregator to send."""
        deadline, everyone = now + self.patience, tuple(range(len(self.terms.roster)))
        return Gathering(round=number, query=query, size=size, deadline=deadline, expected=everyone), (WakeAt(deadline),)

    def received(self, gathering: Gathering, sender: str, message: Message, now: datetime) -> tuple[Gathering, Effects]:
        """Take a message of a member, which may lie."""
        member = self.terms.roster.position(sender)
        if not isinstance(message, FromMember):
            raise RemoteProtocolError("PROTO-003", f"A member does not send a {message.type_name}.")
        here, there = _PHASES.index(gathering.phase), _KINDS.index(type(message))
        if (message.round, there) < (gathering.round, here):
            return gathering, ()
        if (message.round, there) > (gathering.round, here) or member not in gathering.expected or member in gathering.present:
            raise RemoteProtocolError("SUM-101", f"{sender} sends a {message.type_name} of round {message.round} that is not due.")
        match message:
            case SumKeys():
                gathering = _came(gathering, member, self._keys(gathering, member, message))
            case SumShares():
                gathering = _came(gathering, member, *self._shares(gathering, member, message))
            case SumMasked():
                gathering = _came(self._added(gathering, member, message), member)
            case SumAgreed():
                statement = survivors_statement(self._context(gathering), gathering.survivors, gathering.dealers)
                self.terms.roster.check(member, message.signature, statement)
                gathering = _came(gathering, member, message.signature)
            case _:
                gathering = _came(gathering, member, self._revealed(gathering, member, message))
        n_due = self.terms.threshold if gathering.phase in _NEEDS_ENOUGH else len(gathering.expected)
        return self._next(gathering, now) if len(gathering.came) == n_due else (gathering, ())

    def ticked(self, gathering: Gathering, now: datetime) -> tuple[Gathering, Effects]:
        """A moment has come: if the phase's time is up, go on with those that are there, or give up."""
        if gathering.is_over or now < gathering.deadline:
            return gathering, ()
        if len(gathering.came) >= self.terms.threshold:
            return self._next(gathering, now)
        due = _KINDS[_PHASES.index(gathering.phase)].type_name
        what = f"Round {gathering.round} of a secure sum is given up: {len(gathering.came)} members sent a {due} in time."
        why = f"{self.terms.threshold} of {len(self.terms.roster)} are needed. Members whose vectors have left have spent them."
        return gathering.ended(failed=Failure(code="SUM-103", what=what, why=why)), ()

    def _next(self, gathering: Gathering, now: datetime) -> tuple[Gathering, Effects]:
        """Close a phase with those that are there, and open the next."""
        study, number, present, rows = self.terms.study, gathering.round, gathering.present, gathering.rows
        found: dict[str, object]
        message: Message
        match gathering.phase:
            case "keys":
                message = SumKeyList(study=study, round=number, members=present, entries=b"".join(rows[member][0] for member in present))
                found = {"listed": message, "digest": list_digest(self._context(gathering), read_keys(message)), "expected": present}
            case "shares":
                found = {"dealers": present, "commitments": tuple(rows[dealer][1] for dealer in present), "expected": present}
            case "masked":
                message = SumSurvivors(study=study, round=number, survivors=present)
                found = {"survivors": present, "expected": present}
            case "agreed":
                signatures = b"".join(rows[member][0] for member in present)
                message = SumAgreement(study=study, round=number, survivors=gathering.survivors, signers=present, signatures=signatures)
                found = {}
            case _:
                return self._opened(gathering), ()
        sends = self._forwarded(gathering) if gathering.phase == "shares" else (Send(EVERYONE, message),)
        phase, deadline = _PHASES[_PHASES.index(gathering.phase) + 1], now + self.patience
        return gathering.replace(phase=phase, deadline=deadline, came=(), **found), (*sends, WakeAt(deadline))

    def _keys(self, gathering: Gathering, member: int, message: SumKeys) -> bytes:
        if message.query != gathering.query:
            raise RemoteProtocolError(
                "SUM-101",
                f"Member {member} takes part in round {gathering.round} with another query.",
                why="It was asked something else, or holds another study.",
            )
        keys = Keys(message.mask, message.box, message.commitment)
        self.terms.roster.check(member, message.signature, keys_statement(self._context(gathering), member, keys))
        check_keys(keys, member)
        return b"".join(keys)

    def _shares(self, gathering: Gathering, dealer: int, message: SumShares) -> tuple[bytes, ...]:
        others = tuple(member for member in gathering.expected if member != dealer)
        cut(message.boxes, BOX_BYTES, others, "boxes")
        cut(message.commitments, DIGEST_BYTES, gathering.expected, "commitments")
        cut(message.signatures, SIGNATURE_BYTES, others, "signatures")
        rows = (message.boxes, message.commitments, message.signatures)
        statement = shares_statement(self._context(gathering), dealer, gathering.digest, *rows)
        self.terms.roster.check(dealer, message.signature, statement)
        return rows

    def _forwarded(self, gathering: Gathering) -> tuple[Send, ...]:
        """To each dealer all that the others have dealt to it."""
        place = {member: at for at, member in enumerate(gathering.expected)}
        rows = dict(sorted(gathering.rows.items()))
        sends = []
        for to in rows:
            others = tuple(dealer for dealer in rows if dealer != to)
            # A dealer has no box for itself, so that what comes after it in the list stands one place earlier.
            places = {dealer: place[to] - (to > dealer) for dealer in others}
            message = SumBoxes(
                study=self.terms.study,
                round=gathering.round,
                dealers=others,
                boxes=b"".join(_piece(rows[dealer][0], BOX_BYTES, places[dealer]) for dealer in others),
                commitments=b"".join(_piece(rows[dealer][1], DIGEST_BYTES, place[to]) for dealer in others),
                signatures=b"".join(_piece(rows[dealer][2], SIGNATURE_BYTES, places[dealer]) for dealer in others),
            )
            sends.append(Send(self.terms.roster.names[to], message))
        return tuple(sends)

    def _added(self, gathering: Gathering, member: int, message: SumMasked) -> Gathering:
        vector = message.vector.expect("uint64", gathering.size)
        statement = masked_statement(self._context(gathering), member, gathering.digest, gathering.dealers, message.vector.data)
        self.terms.roster.check(member, message.signature, statement)
        return gathering.replace(vectors=Array.of(gathering.summed + vector))

    def _revealed(self, gathering: Gathering, holder: int, message: SumUnmask) -> bytes:
        context, survivors = self._context(gathering), set(gathering.survivors)
        self.terms.roster.check(holder, message.signature, unmask_statement(context, holder, message.shares))
        shares = cut(message.shares, REVEALED_BYTES, gathering.dealers, "shares")
        for owner, commitment in gathering.committed_to(holder).items():
            check_revealed(context, owner, holder, "own" if owner in survivors else "mask", shares[owner], commitment)
        return message.shares

    def _opened(self, gathering: Gathering) -> Gathering:
        """The sum; or, where some dealer's shares do not fit together, who it was."""
        held = {holder: cut(row, REVEALED_BYTES, gathering.dealers, "shares") for holder, (row,) in gathering.rows.items()}
        revealed = {owner: {holder: held[holder][owner] for holder in held} for owner in gathering.dealers}
        commitments = {holder: gathering.committed_to(holder) for holder in held}
        dealt = {owner: {holder: commitments[holder][owner] for holder in held} for owner in gathering.dealers}
        context, keys, survivors = self._context(gathering), gathering.public_keys, gathering.survivors
        try:
            total = unmask(gathering.summed, context, keys, dealt, survivors, revealed, self.terms.threshold)
        except RemoteProtocolError as error:
            # Whoever is to blame, it is not the member that has just spoken.
            return gathering.ended(failed=Failure(code=error.code, what=error.what, why=error.why))
        return gathering.ended(survivors=survivors, vectors=Array.of(total))

    def _context(self, gathering: Gathering) -> Context:
        return self.terms.context(gathering.round, gathering.query)


def _came(gathering: Gathering, member: int, *rows: bytes) -> Gathering:
    return gathering.replace(came=(*gathering.came, Came(member=member, rows=rows)))


def _piece(row: bytes, size: int, place: int) -> bytes:
    return row[size * place : size * (place + 1)]
