"""State machine of the collector.

The aggregator of a protocol with secure sums keeps a `CollectorState` in its own state and calls a
`SumCollector`.

======  =============  ===================  =================================================
phase   waits for      from                 then publishes
======  =============  ===================  =================================================
keys    ``SumKeys``    the roster           ``SumKeyList``
shares  ``SumShares``  the list             to each dealer its ``SumBoxes``
masked  ``SumMasked``  the dealers          ``SumSurvivors``; vectors are added on arrival
agreed  ``SumAgreed``  t of the survivors   ``SumAgreement``
unmask  ``SumUnmask``  t of the survivors   nothing; it opens the sum
over    nothing                             nothing; it has the sum, or the failure
======  =============  ===================  =================================================

At the deadline of a phase the collector continues with the members that have answered, if they are
at least t. So up to N - t members may drop out, at any time; one more ends the round. Late messages
are dropped. A message that no honest member sends raises `RemoteProtocolError` against its sender.

The state is saved, and contains nothing secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.crypto.identity import SIGNATURE_BYTES
from shoal.crypto.secagg.context import (
    DIGEST_BYTES,
    MemberPublicKeys,
    RoundContext,
    digest_key_list,
    encode_survivors_statement,
)
from shoal.crypto.secagg.key_shares import (
    BOX_BYTES,
    REVEALED_BYTES,
    check_public_keys,
    check_revealed_share,
)
from shoal.crypto.secagg.masking import unmask_sum
from shoal.errors import RemoteProtocolError, ShoalError
from shoal.messages.base import Array, Digest, Message, Record
from shoal.protocols.effects import EVERYONE, Send, WakeAt
from shoal.protocols.machines import Effects, Moment
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

SumPhase = Literal["keys", "shares", "masked", "agreed", "unmask", "over"]


class ReceivedMessage(Record):
    """The message of one member in the open phase."""

    member: Natural
    rows: tuple[bytes, ...] = ()


class RoundFailure(Record):
    """The reason of a failed round."""

    code: str
    what: str
    why: str | None = None


class CollectorState(Record):
    """A collector's state in one round.

    Parameters
    ----------
    round, query, size
        The round, the digest of its question, and the number of summed integers.
    phase, deadline
        The phase, and its end.
    expected, came
        The members that may send in this phase, and the messages received in it.
    listed, digest
        The list of keys, and its digest.
    dealers, commitments
        The members that have shared secrets, and each one's commitments to all its shares.
    survivors
        The members with vectors in the sum.
    vectors
        The sum of the masked vectors; at the end the sum itself.
    failed
        The reason, if the round failed.
    """

    round: Natural
    query: Digest
    size: Natural
    deadline: Moment
    phase: SumPhase = "keys"
    expected: Members = ()
    came: tuple[ReceivedMessage, ...] = ()
    listed: SumKeyList | None = None
    digest: bytes = b""
    dealers: Members = ()
    commitments: tuple[bytes, ...] = ()
    survivors: Members = ()
    vectors: Array | None = None
    failed: RoundFailure | None = None

    @property
    def is_over(self) -> bool:
        """True if there is a sum, or a failure."""
        return self.phase == "over"

    @property
    def total(self) -> npt.NDArray[np.int64]:
        """``(size,)`` the sum, after the end of a round that did not fail."""
        assert self.is_over and self.vectors is not None
        total: npt.NDArray[np.int64] = self.vectors.expect("int64", self.size)
        return total

    @property
    def failure(self) -> ShoalError | None:
        """The error of a failed round."""
        return (
            None
            if self.failed is None
            else RemoteProtocolError(self.failed.code, self.failed.what, why=self.failed.why)
        )

    @property
    def public_keys(self) -> dict[int, MemberPublicKeys]:
        """The list of keys, by member."""
        return {} if self.listed is None else read_keys(self.listed)

    @property
    def rows(self) -> dict[int, tuple[bytes, ...]]:
        """The content of the messages received in this phase, by member."""
        return {came.member: came.rows for came in self.came}

    @property
    def present_members(self) -> tuple[int, ...]:
        """The members that have sent a message in this phase."""
        return tuple(sorted(came.member for came in self.came))

    @property
    def masked_sum(self) -> npt.NDArray[np.uint64]:
        """``(size,)`` sum of the masked vectors so far."""
        if self.vectors is None:
            return np.zeros(self.size, np.uint64)
        summed: npt.NDArray[np.uint64] = self.vectors.expect("uint64", self.size)
        return summed

    def read_commitments(self, holder: int) -> dict[int, bytes]:
        """Return each dealer's commitment to the shares of one holder."""
        assert self.listed is not None
        at = DIGEST_BYTES * self.listed.members.index(holder)
        return {
            dealer: row[at : at + DIGEST_BYTES]
            for dealer, row in zip(self.dealers, self.commitments, strict=True)
        }

    def end(
        self,
        survivors: Members = (),
        vectors: Array | None = None,
        failed: RoundFailure | None = None,
    ) -> CollectorState:
        """Return the state after the end of the round, with a sum or a failure only."""
        number, query, size, deadline = self.round, self.query, self.size, self.deadline
        return CollectorState(
            round=number,
            query=query,
            size=size,
            deadline=deadline,
            phase="over",
            survivors=survivors,
            vectors=vectors,
            failed=failed,
        )


MemberMessage = SumKeys | SumShares | SumMasked | SumAgreed | SumUnmask

_PHASES: tuple[SumPhase, ...] = ("keys", "shares", "masked", "agreed", "unmask", "over")
_KINDS: tuple[type[MemberMessage], ...] = (SumKeys, SumShares, SumMasked, SumAgreed, SumUnmask)
_NEEDS_ENOUGH = ("agreed", "unmask")
"""Phases that end as soon as t members have answered."""


@dataclass(frozen=True)
class SumCollector:
    """The untrusted collector.

    Parameters
    ----------
    sum_params
        Parameters that all parties agree on.
    phase_timeout
        Waiting time of each phase.

    Notes
    -----
    Ref: SDQ §IV-B; errata S-12. It checks the messages of members to find out who is at fault if a
    sum does not open; members do not have to trust that it does.
    """

    sum_params: SumParameters
    phase_timeout: timedelta

    def begin(
        self, number: int, query: bytes, size: int, now: datetime
    ) -> tuple[CollectorState, Effects]:
        """Open a round for ``size`` integers; the aggregator sends the question itself."""
        deadline, everyone = now + self.phase_timeout, tuple(range(len(self.sum_params.roster)))
        return CollectorState(
            round=number, query=query, size=size, deadline=deadline, expected=everyone
        ), (WakeAt(deadline),)

    def handle_message(
        self, state: CollectorState, sender: str, message: Message, now: datetime
    ) -> tuple[CollectorState, Effects]:
        """Process an untrusted message of a member."""
        member = self.sum_params.roster.find_position(sender)
        if not isinstance(message, MemberMessage):
            raise RemoteProtocolError("PROTO-003", f"A member does not send a {message.type_name}.")
        here, there = _PHASES.index(state.phase), _KINDS.index(type(message))
        if (message.round, there) < (state.round, here):
            return state, ()
        if (
            (message.round, there) > (state.round, here)
            or member not in state.expected
            or member in state.present_members
        ):
            raise RemoteProtocolError(
                "SUM-101",
                f"{sender} sent a {message.type_name} of round {message.round} that is not "
                "expected now.",
            )
        match message:
            case SumKeys():
                state = _record_message(state, member, self._read_keys(state, member, message))
            case SumShares():
                state = _record_message(state, member, *self._read_shares(state, member, message))
            case SumMasked():
                state = _record_message(self._add_vector(state, member, message), member)
            case SumAgreed():
                statement = encode_survivors_statement(
                    self._make_context(state), state.survivors, state.dealers
                )
                self.sum_params.roster.check_signature(member, message.signature, statement)
                state = _record_message(state, member, message.signature)
            case _:
                state = _record_message(state, member, self._read_revealed(state, member, message))
        n_due = self.sum_params.threshold if state.phase in _NEEDS_ENOUGH else len(state.expected)
        return self._close_phase(state, now) if len(state.came) == n_due else (state, ())

    def handle_tick(self, state: CollectorState, now: datetime) -> tuple[CollectorState, Effects]:
        """At the deadline of a phase, continue with the members that have answered, or fail."""
        if state.is_over or now < state.deadline:
            return state, ()
        if len(state.came) >= self.sum_params.threshold:
            return self._close_phase(state, now)
        due = _KINDS[_PHASES.index(state.phase)].type_name
        what = (
            f"Round {state.round} of a secure sum failed: {len(state.came)} members sent "
            f"a {due} in time."
        )
        why = (
            f"{self.sum_params.threshold} of {len(self.sum_params.roster)} are needed. Vectors "
            "already sent are charged."
        )
        return state.end(failed=RoundFailure(code="SUM-103", what=what, why=why)), ()

    def _close_phase(self, state: CollectorState, now: datetime) -> tuple[CollectorState, Effects]:
        """Close a phase with the members that have answered, and open the next."""
        study, number, present, rows = (
            self.sum_params.study,
            state.round,
            state.present_members,
            state.rows,
        )
        changes: dict[str, object]
        message: Message
        match state.phase:
            case "keys":
                message = SumKeyList(
                    study=study,
                    round=number,
                    members=present,
                    entries=b"".join(rows[member][0] for member in present),
                )
                changes = {
                    "listed": message,
                    "digest": digest_key_list(self._make_context(state), read_keys(message)),
                    "expected": present,
                }
            case "shares":
                changes = {
                    "dealers": present,
                    "commitments": tuple(rows[dealer][1] for dealer in present),
                    "expected": present,
                }
            case "masked":
                message = SumSurvivors(study=study, round=number, survivors=present)
                changes = {"survivors": present, "expected": present}
            case "agreed":
                signatures = b"".join(rows[member][0] for member in present)
                message = SumAgreement(
                    study=study,
                    round=number,
                    survivors=state.survivors,
                    signers=present,
                    signatures=signatures,
                )
                changes = {}
            case _:
                return self._open_sum(state), ()
        sends = (
            self._forward_shares(state) if state.phase == "shares" else (Send(EVERYONE, message),)
        )
        phase, deadline = _PHASES[_PHASES.index(state.phase) + 1], now + self.phase_timeout
        return state.replace(phase=phase, deadline=deadline, came=(), **changes), (
            *sends,
            WakeAt(deadline),
        )

    def _read_keys(self, state: CollectorState, member: int, message: SumKeys) -> bytes:
        if message.query != state.query:
            raise RemoteProtocolError(
                "SUM-101",
                f"Member {member} takes part in round {state.round} with another query.",
                why="It received another question, or takes part in another study.",
            )
        keys = MemberPublicKeys(message.mask, message.box, message.commitment)
        self.sum_params.roster.check_signature(
            member, message.signature, keys_statement(self._make_context(state), member, keys)
        )
        check_public_keys(keys, member)
        return b"".join(keys)

    def _read_shares(
        self, state: CollectorState, dealer: int, message: SumShares
    ) -> tuple[bytes, ...]:
        others = tuple(member for member in state.expected if member != dealer)
        split_row(message.boxes, BOX_BYTES, others, "boxes")
        split_row(message.commitments, DIGEST_BYTES, state.expected, "commitments")
        split_row(message.signatures, SIGNATURE_BYTES, others, "signatures")
        rows = (message.boxes, message.commitments, message.signatures)
        statement = shares_statement(self._make_context(state), dealer, state.digest, *rows)
        self.sum_params.roster.check_signature(dealer, message.signature, statement)
        return rows

    def _forward_shares(self, state: CollectorState) -> tuple[Send, ...]:
        """Send to each dealer the shares of all others."""
        place = {member: at for at, member in enumerate(state.expected)}
        rows = dict(sorted(state.rows.items()))
        sends = []
        for to in rows:
            others = tuple(dealer for dealer in rows if dealer != to)
            # A dealer has no box for itself, so later members of the list are one place earlier.
            places = {dealer: place[to] - (to > dealer) for dealer in others}
            message = SumBoxes(
                study=self.sum_params.study,
                round=state.round,
                dealers=others,
                boxes=b"".join(
                    _slice_row(rows[dealer][0], BOX_BYTES, places[dealer]) for dealer in others
                ),
                commitments=b"".join(
                    _slice_row(rows[dealer][1], DIGEST_BYTES, place[to]) for dealer in others
                ),
                signatures=b"".join(
                    _slice_row(rows[dealer][2], SIGNATURE_BYTES, places[dealer])
                    for dealer in others
                ),
            )
            sends.append(Send(self.sum_params.roster.names[to], message))
        return tuple(sends)

    def _add_vector(self, state: CollectorState, member: int, message: SumMasked) -> CollectorState:
        vector = message.vector.expect("uint64", state.size)
        statement = masked_statement(
            self._make_context(state), member, state.digest, state.dealers, message.vector.data
        )
        self.sum_params.roster.check_signature(member, message.signature, statement)
        return state.replace(vectors=Array.from_values(state.masked_sum + vector))

    def _read_revealed(self, state: CollectorState, holder: int, message: SumUnmask) -> bytes:
        context, survivors = self._make_context(state), set(state.survivors)
        self.sum_params.roster.check_signature(
            holder, message.signature, unmask_statement(context, holder, message.shares)
        )
        shares = split_row(message.shares, REVEALED_BYTES, state.dealers, "shares")
        for owner, commitment in state.read_commitments(holder).items():
            check_revealed_share(
                context,
                owner,
                holder,
                "own" if owner in survivors else "mask",
                shares[owner],
                commitment,
            )
        return message.shares

    def _open_sum(self, state: CollectorState) -> CollectorState:
        """Open the sum; or fail with the dealer of inconsistent shares."""
        held = {
            holder: split_row(row, REVEALED_BYTES, state.dealers, "shares")
            for holder, (row,) in state.rows.items()
        }
        revealed = {
            owner: {holder: held[holder][owner] for holder in held} for owner in state.dealers
        }
        commitments = {holder: state.read_commitments(holder) for holder in held}
        dealt = {
            owner: {holder: commitments[holder][owner] for holder in held}
            for owner in state.dealers
        }
        context, keys, survivors = self._make_context(state), state.public_keys, state.survivors
        try:
            total = unmask_sum(
                state.masked_sum,
                context,
                keys,
                dealt,
                survivors,
                revealed,
                self.sum_params.threshold,
            )
        except RemoteProtocolError as error:
            # The sender of the last message is not at fault, so the error is not raised.
            return state.end(failed=RoundFailure(code=error.code, what=error.what, why=error.why))
        return state.end(survivors=survivors, vectors=Array.from_values(total))

    def _make_context(self, state: CollectorState) -> RoundContext:
        return self.sum_params.make_context(state.round, state.query)


def _record_message(state: CollectorState, member: int, *rows: bytes) -> CollectorState:
    return state.replace(came=(*state.came, ReceivedMessage(member=member, rows=rows)))


def _slice_row(row: bytes, size: int, place: int) -> bytes:
    return row[size * place : size * (place + 1)]
