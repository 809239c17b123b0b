"""The peer of variant plus with secure sums: a holder that counts what the course says, each question once, and trains at home.

=====================  =================================================================================================================
given                  done
=====================  =================================================================================================================
``Ask``                check that one can count with its course; begin the round, unless its question was put to the ledger before
``Sum...``             take part in the secure sum; when its keys and shares are there, put the question to the ledger
granted                count the rows, add a share of the noise, mask
``SharedModel``        train the home model and finish (`shoal.protocols.pfds.reader`)
``Ended``              answer nothing more
=====================  =================================================================================================================

Rounds only rise, and round i asks question i. One that has begun is left when a later one is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.privacy.events import Event
from shoal.protocols.base import Effects, unpriced
from shoal.protocols.pfds.joining import check_terms, checked_prices, digest_of
from shoal.protocols.pfds.messages import Ask
from shoal.protocols.pfds.params import Ints, Rows
from shoal.protocols.pfds.reader import Hearer, Hearing
from shoal.protocols.pfds.sums import Course, SumScript
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.messages import SumMasked, SumMessage
from shoal.protocols.sums.sitting import Sitting


class Answering(Hearing):
    """The round that is open.

    Parameters
    ----------
    asked_for
        What was asked last.
    sitting
        The secure sum.
    """

    asked_for: Ask | None = None
    sitting: Sitting | None = None

    def left(self) -> Self:
        """The round is left: all secrets of it are erased, and what still comes of it is dropped."""
        return self.replace(sitting=None if self.sitting is None else self.sitting.ended())

    def over(self) -> Self:
        return super().over().left()


class SummingPeer(Hearer[Answering]):
    """One holder's side.

    Parameters
    ----------
    script
        The questions of the study, by which this peer prices and checks by itself.
    member
        Its place on the roster, and the key with which it signs; it carries the digest of the study.
    rows
        The holder's rows, at most as many of one unit as the study allows.

    Notes
    -----
    Ref: errata P-03; the secure sum is that of SDQ, errata S-12.

    Privacy
    -------
    The scope of the study's parameters. Every question costs what the script says, whatever weights the aggregator makes up, and is
    answered once; all of them together cost the study's epsilon, or its epsilon and delta, at most. The cost is due when the masked
    numbers leave, whether or not the sum is ever opened.
    """

    def __init__(self, script: SumScript, member: Member, rows: Rows) -> None:
        check_terms(script.params, member.terms)
        super().__init__(script.params, member.terms.study, rows)
        self.script = script
        self.member = member
        self._prices = self.prices()

    def prices(self) -> Mapping[str, Event]:
        """What every question costs."""
        return checked_prices(self.params, self.script.prices)

    def initial(self) -> Answering:
        return Answering()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced(question)
        return self._prices[question]

    def heard(self, state: Answering, message: Message, entropy: Entropy) -> tuple[Answering, Effects]:
        if not isinstance(message, Ask | SumMessage):
            return super().heard(state, message, entropy)
        if state.is_over:
            return state, ()
        return self._asked(state, message, entropy) if isinstance(message, Ask) else self._summing(state, message, entropy)

    def _asked(self, state: Answering, ask: Ask, entropy: Entropy) -> tuple[Answering, Effects]:
        before = state.asked_for
        if before is not None and ask.round <= before.round:
            if ask.round == before.round and ask != before:
                raise _not_due(f"Round {ask.round} has begun, and is now to be about something else")
            return state, ()
        question = self._question(ask.course)
        if ask.round != ask.course.step:
            raise _not_due(f"Round {ask.round} has the course of another one")
        self.price(question)
        state = state.left().replace(asked_for=ask)
        if question in state.asked:
            return state, ()
        sitting, sends = self.member.begin(state.sitting, ask.round, digest_of(ask), entropy)
        return state.replace(sitting=sitting), sends

    def _summing(self, state: Answering, message: Message, entropy: Entropy) -> tuple[Answering, Effects]:
        ask = state.asked_for
        if state.sitting is None or ask is None:
            return state, ()
        sitting, sends = self.member.received(state.sitting, message, entropy)
        state = state.replace(sitting=sitting)
        if not sitting.is_ready:
            return state, sends
        state, effects = self.ask(state, self._question(ask.course))
        return state, (*sends, *effects)

    def answer(self, state: Answering, question: str, entropy: Entropy) -> Message:
        assert state.asked_for is not None and state.sitting is not None and self._rows is not None
        return self.member.masked(state.sitting, self.noisy(state.asked_for.course, self._rows.reveal(), entropy))

    def noisy(self, course: Course, rows: Rows, entropy: Entropy) -> Ints:
        """What this holder answers: its counts, with its share of the noise."""
        counts, mechanism = self.script.count(course, rows), self.script.mechanism(self._question(course))
        assert mechanism is not None, "what has a price has noise"
        return counts + mechanism.share(len(counts), entropy)

    def released(self, state: Answering, question: str, message: Message) -> tuple[Answering, Effects]:
        assert state.sitting is not None and isinstance(message, SumMasked)
        return state.replace(sitting=self.member.released(state.sitting, message)), ()

    def _question(self, course: Course) -> str:
        """What is asked, by the study; `RemoteProtocolError` where the study does not ask it."""
        question = self.script.question(course)
        if question is None:
            raise RemoteProtocolError("PFDS-002", "The aggregator asks for a round beyond the end of its course.")
        return question


def _not_due(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("PFDS-003", f"{what}.")
