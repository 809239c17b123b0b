"""The aggregator of variant plus with secure sums: it asks question after question, learns from noisy sums, and publishes the model.

Every question is a secure sum (`shoal.protocols.sums`), which up to N - minimum holders may miss. One that fails ends the study: what
was sent is spent, and the same question is not asked again. Nobody trusts this side.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.protocols.base import EVERYONE, Effects, Send
from shoal.protocols.pfds.joining import check_terms, digest_of
from shoal.protocols.pfds.messages import Ask, Left
from shoal.protocols.pfds.params import Ints
from shoal.protocols.pfds.publishing import Published, Publisher, Publishing
from shoal.protocols.pfds.sums import Answers, SumScript
from shoal.protocols.sums.collector import Collector
from shoal.protocols.sums.gathering import Gathering
from shoal.protocols.sums.messages import Members, SumMessage
from shoal.protocols.sums.terms import Terms


class Summing(Publishing):
    """What was learned so far, and the round that is open.

    Parameters
    ----------
    ask, gathering
        What is asked, and its secure sum; None before the first.
    answers, survivors
        The noisy sums of every question so far, and who is in them.
    """

    ask: Ask | None = None
    gathering: Gathering | None = None
    answers: tuple[Array, ...] = ()
    survivors: tuple[Members, ...] = ()

    @property
    def learned(self) -> Answers:
        """The noisy sums of every question so far."""
        return tuple(_ints(answer) for answer in self.answers)


class SummingAggregator(Publisher[Summing]):
    """The side of those who read the sums.

    Parameters
    ----------
    script
        The questions of the study.
    terms
        The study's digest, its roster, and the fewest holders that make a sum.
    patience
        How long it waits for each step of a round.
    """

    def __init__(self, script: SumScript, terms: Terms, patience: timedelta) -> None:
        check_terms(script.params, terms)
        super().__init__(script.params, terms.study, terms.roster.names, patience)
        self.script = script
        self.terms = terms
        self._collector = Collector(terms, patience)

    def initial(self) -> Summing:
        return Summing()

    def started(self, state: Summing, now: datetime, entropy: Entropy) -> tuple[Summing, Effects]:
        return self._next(state, Ask(study=self.study, round=0, course=self.script.start), now) if state.ask is None else (state, ())

    def received(self, state: Summing, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Summing, Effects]:
        if not isinstance(message, SumMessage):
            raise RemoteProtocolError("PROTO-003", f"A holder does not send a {message.type_name} in this study.")
        if state.is_over:
            return state, ()
        if state.gathering is None:
            raise RemoteProtocolError("PFDS-003", f"{sender} sends a {message.type_name} before anything was asked.")
        gathering, effects = self._collector.received(state.gathering, sender, message, now)
        return self._summed(state, gathering, effects, now)

    def waited(self, state: Summing, now: datetime) -> tuple[Summing, Effects]:
        if state.gathering is None:
            return state, ()
        gathering, effects = self._collector.ticked(state.gathering, now)
        return self._summed(state, gathering, effects, now)

    def _next(self, state: Summing, ask: Ask, now: datetime) -> tuple[Summing, Effects]:
        """Ask a round of a course that is not at its end."""
        question = self.script.question(ask.course)
        assert question is not None
        gathering, effects = self._collector.begin(ask.round, digest_of(ask), self.script.size(question), now)
        return state.replace(ask=ask, gathering=gathering), (Send(EVERYONE, ask), *effects)

    def _summed(self, state: Summing, gathering: Gathering, effects: Effects, now: datetime) -> tuple[Summing, Effects]:
        """Go on with an open round; with the next, if it is over; or to the end."""
        if not gathering.is_over:
            return state.replace(gathering=gathering), effects
        if gathering.failed is not None:
            return self.give_up(state.replace(gathering=None), gathering.failed, now)
        ask = state.ask
        assert ask is not None
        answers, survivors = (*state.answers, Array.of(gathering.total)), (*state.survivors, gathering.survivors)
        state = state.replace(gathering=None, answers=answers, survivors=survivors)
        course = self.script.advance(ask.course, state.learned)
        if self.script.question(course) is None:
            return self._published(state)
        state, more = self._next(state, Ask(study=self.study, round=course.step, course=course), now)
        return state, (*effects, *more)

    def _published(self, state: Summing) -> tuple[Summing, Effects]:
        model, n_answering = self.script.model(state.learned), tuple(map(len, state.survivors))
        return self.publish(state, Published(model, state.learned, n_answering, tuple(self._left_out(state))))

    def _left_out(self, state: Summing) -> list[Left]:
        """Who is missing in some of the sums, and in which."""
        left = []
        for member, name in enumerate(self.names):
            missed = [question for question, there in zip(self.script.questions, state.survivors, strict=True) if member not in there]
            if missed:
                left.append(Left(holder=name, reason=f"its rows are not in: {', '.join(missed)}"))
        return left


def _ints(array: Array) -> Ints:
    numbers: Ints = array.expect("int64", array.count)
    return numbers
