"""The peer of SDQ: a database that answers the rounds of its study, each once and each priced by itself.

=============================  =========================================================================================================
given                          done
=============================  =========================================================================================================
``Ask``                        check that the course is one of the study's; begin the round
sum, all contribute            take part in the secure sum; when its keys and shares are there, put the question to the ledger
sum, two selected              select jointly first, once for each level; then as above
choice                         publish a key; with those of the committee there, put the question to the ledger
trust local                    put the question to the ledger
granted                        count, add noise, and mask, share or send
``Contributions``              (committee) add up the shares that it was dealt; compute which candidate is chosen, or name a bad dealer
joint computation broken       tell the aggregator, and name the party that the computation names
``Ended``                      finish, or give up for the reason that it says; answer nothing more
=============================  =========================================================================================================

A round that has begun is left when another one is asked; what is answered stays answered, and is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np

from shoal.crypto.context import Context
from shoal.crypto.masks import public_of
from shoal.crypto.roster import MemberError
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.names import shown
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, Abort, Broken, Effects, Emitted, Finish, Peer, Progress, Send, unpriced
from shoal.protocols.joint import party
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.sdq.following import Following
from shoal.protocols.sdq.joining import (
    check_contributions,
    check_terms,
    digest_of,
    key_statement,
    keys_of,
    level_of,
    n_parties,
    read_keys,
    seal_scores,
    seated,
    sum_shares,
)
from shoal.protocols.sdq.messages import (
    MAX_REASON,
    MESSAGES,
    Ask,
    BrokenOff,
    Contributions,
    Counts,
    Ended,
    JointKey,
    JointKeys,
    Scores,
    Settled,
    Unusable,
)
from shoal.protocols.sdq.noise import ADDS, SUBTRACTS, noisy
from shoal.protocols.sdq.params import Ints, Table
from shoal.protocols.sdq.queries import Free, free_price, query_round
from shoal.protocols.sdq.script import Round, Script
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.messages import SumMasked, SumMessage


class SDQPeer(Peer[Following]):
    """One database's side.

    Parameters
    ----------
    script
        The course of the study, by which this peer prices and checks by itself.
    member
        Its place on the roster, and the key with which it signs; it carries the digest of the study.
    table
        The database's rows, at most as many of one unit as the study allows.
    free
        What the study's ``[queries]`` allow, if it has some.

    Notes
    -----
    Ref: SDQ §V, Algorithms 1 to 3; errata S-01 to S-12.

    Privacy
    -------
    The scope of the study's parameters. Every question costs what the script says, whatever course the aggregator makes up, and is
    answered once; all questions together cost the study's epsilon at most, and the free counts what the study says of them. The cost is
    due when the masked numbers leave, whether or not the sum is ever opened.
    """

    messages = MESSAGES

    def __init__(self, script: Script, member: Member, table: Table, free: Free | None = None) -> None:
        check_terms(script.params, member.terms)
        self.study = member.terms.study
        self.script = script
        self.params = script.params
        self.member = member
        self.free = free
        self._table = Private(table)
        self._prices = self.prices()

    def prices(self) -> Mapping[str, Event]:
        """What every question costs."""
        if self.params.is_bare:
            raise LocalProtocolError(
                "PROTO-001",
                "A peer was to answer without noise.",
                why="Such an answer has no price, and no participant can agree to it.",
                fix="Give the study an epsilon; what is possible without noise can be simulated.",
            )
        if sum(grains_up(event.epsilon) for event in self.script.prices.values()) > grains_up(self.params.epsilon):
            raise LocalProtocolError(
                "PROTO-001",
                "The questions of a script cost more together than its study says.",
                why="An aggregator may ask all of them, whatever the course.",
            )
        free = self.free
        queries = {} if free is None else {f"query/{number}": free_price(self.params, free) for number in range(free.n_queries)}
        return {**self.script.prices, **queries}

    def initial(self) -> Following:
        return Following()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced(question)
        return self._prices[question]

    def received(self, state: Following, message: Message, now: datetime, entropy: Entropy) -> tuple[Following, Effects]:
        if state.is_over:
            return state, ()
        match message:
            case Ask():
                return self._asked(state, message, entropy)
            case JointKeys():
                return self._keys(state, message)
            case Contributions():
                return self._contributions(state, message)
            case JointFrame():
                return self._frame(state, message)
            case SumMessage():
                return self._summing(state, message, entropy)
            case Ended(reason=reason):
                return state.left().replace(role=None, is_over=True), (_ending(state, reason),)
        raise RemoteProtocolError("PROTO-003", f"An aggregator does not send a {message.type_name}.")

    def _asked(self, state: Following, ask: Ask, entropy: Entropy) -> tuple[Following, Effects]:
        before = state.asked_for
        if before is not None and ask.round <= before.round:
            if ask.round == before.round and ask != before:
                raise RemoteProtocolError("SDQ-003", f"Round {ask.round} has begun, and is now to be about something else.")
            return state, ()
        asked = self._round(ask)
        self.price(asked.question)
        level = level_of(asked.question)
        role = state.role if level != asked.question and state.selected[-1:] == (level,) else None
        state = state.left().replace(asked_for=ask, role=role)
        if asked.question in state.asked:
            return state, ()
        if self.params.trust == "local":
            return self.ask(state, asked.question)
        if asked.is_choice:
            return self._seated(state, entropy)
        if self.params.noise != "two-selected" or role is not None:
            return self._sum(state, entropy)
        if level != asked.question:
            # The level's selection is not known here: this database cannot say what to add, and stays away.
            return state, ()
        if level in state.selected:
            raise RemoteProtocolError(
                "SDQ-003",
                f"Two databases were to be selected for {level} before.",
                why="Who may select again and again can wait until two that collude are selected.",
            )
        return self._seated(state.replace(selected=(*state.selected, level)), entropy)

    def _seated(self, state: Following, entropy: Entropy) -> tuple[Following, Effects]:
        """Publish a key, and wait for who computes jointly."""
        ask = state.asked_for
        assert ask is not None
        state = state.replace(seat=party.Seat(round=ask.round))
        private = entropy.bytes(32)
        box = public_of(private)
        signature = self.member.identity.sign(key_statement(self._context(ask), self.member.me, box))
        return state.replace(box=private), (self._send(JointKey(study=self.study, round=ask.round, box=box, signature=signature)),)

    def _keys(self, state: Following, message: JointKeys) -> tuple[Following, Effects]:
        ask, seat = state.asked_for, state.seat
        if ask is None or message.round != ask.round or seat is None or seat.is_over or state.keys is not None:
            return state, ()
        asked, context = self._round(ask), self._context(ask)
        keys = read_keys(message, context, self.member.terms.roster, n_parties(self.params, asked.is_choice))
        is_party = self.member.me in keys
        if is_party and keys[self.member.me].box != public_of(state.box):
            raise RemoteProtocolError("SDQ-003", f"The keys of round {ask.round} have another key of this database than it sent.")
        state = state.replace(keys=message, box=state.box if is_party else b"")
        if asked.is_choice:
            return self.ask(state, asked.question)
        terms = party.Terms(context, "select", tuple(keys))
        seat, effects = party.begin(seat, terms, self.member.me, state.box, keys, ())
        return state.replace(seat=seat), effects

    def _contributions(self, state: Following, message: Contributions) -> tuple[Following, Effects]:
        ask, seat, me = state.asked_for, state.seat, self.member.me
        if ask is None or message.round != ask.round or seat is None or state.keys is None or seat.links:
            return state, ()
        asked, context = self._round(ask), self._context(ask)
        keys = keys_of(state.keys)
        if not asked.is_choice or me not in keys:
            raise RemoteProtocolError("SDQ-003", f"Shares of scores came for round {ask.round}, in which this database computes nothing.")
        dealt_in = seated(context, state.keys.keys)
        dealers = check_contributions(message, dealt_in, self.member.terms.roster, me, keys[me].box, self.params.minimum)
        try:
            shares = sum_shares(message, dealt_in, me, state.box, asked.size)
        except MemberError as error:
            return state.closed(), (self._send(Unusable(study=self.study, round=ask.round, dealer=error.member)),)
        terms = party.Terms(context, "argmax", tuple(keys), dealers)
        seat, effects = party.begin(seat, terms, me, state.box, keys, shares)
        return state.replace(seat=seat), effects

    def _frame(self, state: Following, message: JointFrame) -> tuple[Following, Effects]:
        if state.seat is None:
            return state, ()
        seat, effects = party.received(state.seat, message)
        return state.replace(seat=seat), effects

    def _summing(self, state: Following, message: Message, entropy: Entropy) -> tuple[Following, Effects]:
        ask = state.asked_for
        if state.sitting is None or ask is None:
            return state, ()
        sitting, sends = self.member.received(state.sitting, message, entropy)
        state = state.replace(sitting=sitting)
        if not sitting.is_ready:
            return state, sends
        state, effects = self.ask(state, self._round(ask).question)
        return state, (*sends, *effects)

    def computing(self, state: Following, given: Progress, now: datetime, entropy: Entropy) -> tuple[Following, Effects]:
        ask, seat = state.asked_for, state.seat
        if ask is None or seat is None or not seat.links or given.task != seat.task:
            return state, ()
        if isinstance(given, Emitted):
            seat, effects = party.emitted(seat, given, self.study)
            return state.replace(seat=seat), effects
        assert state.keys is not None
        asked, keys, state = self._round(ask), state.keys.keys, state.closed()
        possible = range(asked.size) if asked.is_choice else (0, ADDS, SUBTRACTS)
        if isinstance(given, Broken) or len(given.result) != 1 or given.result[0] not in possible:
            blamed = given.party if isinstance(given, Broken) else None
            named = None if blamed is None else keys[blamed].party
            return state, (self._send(BrokenOff(study=self.study, round=ask.round, party=named)),)
        (result,) = given.result
        if asked.is_choice:
            return state, (self._send(Settled(study=self.study, round=ask.round, position=result)),)
        return self._sum(state.replace(role=result), entropy)

    def answer(self, state: Following, question: str, entropy: Entropy) -> Message:
        ask = state.asked_for
        assert ask is not None
        asked = self._round(ask)
        values = self.noisy(asked, self._table.reveal(), state.role, entropy)
        if self.params.trust == "local":
            return Counts(study=self.study, round=ask.round, counts=Array.of(values))
        if asked.is_choice:
            assert state.keys is not None
            context, n = seated(self._context(ask), state.keys.keys), self.params.n_databases
            boxes = seal_scores(values, context, self.member.me, self.member.identity, keys_of(state.keys), n, entropy)
            return Scores(study=self.study, round=ask.round, boxes=boxes)
        assert state.sitting is not None
        return self.member.masked(state.sitting, values)

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:
        """What this database answers: its counts, with its part of the noise."""
        values = [noisy(self.params, part, table, asked.is_choice, role, entropy) for part in asked.parts]
        return np.concatenate(values).astype(np.int64)

    def released(self, state: Following, question: str, message: Message) -> tuple[Following, Effects]:
        if not isinstance(message, SumMasked):
            return state, ()
        assert state.sitting is not None
        # The answers of a level follow its sizes; after them nobody needs to know who was selected, and nobody shall.
        role = state.role if question.startswith("sizes/") else None
        return state.replace(sitting=self.member.released(state.sitting, message), role=role), ()

    def _round(self, ask: Ask) -> Round:
        """What is asked, by the study; `RemoteProtocolError` where the study does not ask it."""
        if ask.query is not None:
            if self.free is None:
                raise unpriced(f"query/{ask.number}")
            return query_round(self.params, self.free, ask.query, ask.number)
        asked = self.script.round(ask.course)
        if asked is None:
            raise RemoteProtocolError("SDQ-001", "The aggregator asks for a round beyond the end of its course.")
        return asked

    def _sum(self, state: Following, entropy: Entropy) -> tuple[Following, Effects]:
        ask = state.asked_for
        assert ask is not None
        sitting, sends = self.member.begin(state.sitting, ask.round, digest_of(ask), entropy)
        return state.replace(sitting=sitting), sends

    def _context(self, ask: Ask) -> Context:
        return self.member.terms.context(ask.round, digest_of(ask))

    def _send(self, message: Message) -> Send:
        return Send(AGGREGATOR, message)


def _ending(state: Following, reason: str | None) -> Finish | Abort:
    """How a database ends when the miner asks no more. The reason is a stranger's words."""
    if reason is None:
        return Finish(len(state.answered))
    what = f"The miner ends the study without a result. It says: {shown(reason)[:MAX_REASON]}"
    return Abort(RemoteProtocolError("SDQ-004", what, why="What was sent is spent."))
