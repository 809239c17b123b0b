"""The aggregator of SDQ: the miner's side, which asks round after round and learns from noisy sums. Nobody trusts it.

==============  ================================================================================================================
round           how it is answered
==============  ================================================================================================================
sum             by a secure sum (`shoal.protocols.sums`); with two selected databases they are selected first, once for each level
choice          by a committee (`shoal.protocols.sdq.committee`)
trust local     by the counts of all databases, or of enough of them when the time is up
==============  ================================================================================================================

A round that fails ends the study: what was sent is spent, and the same question is not asked again. Everyone is told why, and has as
long to hear of it as for any other step; then the aggregator gives up, and with it what has not left by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from shoal.crypto.secure_sum import limit
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.base import EVERYONE, Abort, Aggregator, Effects, Finish, Moment, Send, WakeAt
from shoal.protocols.sdq.committee import Committee, FromParty, Joint, too_few, unexpected
from shoal.protocols.sdq.joining import check_terms, digest_of, level_of
from shoal.protocols.sdq.messages import MAX_REASON, MESSAGES, Ask, Counts, Ended, Natural
from shoal.protocols.sdq.params import Ints
from shoal.protocols.sdq.queries import Counted, Free, Query, query_round, read
from shoal.protocols.sdq.script import Answers, Course, Round, Script
from shoal.protocols.sums.collector import Collector
from shoal.protocols.sums.gathering import Failure, Gathering
from shoal.protocols.sums.messages import SumMessage
from shoal.protocols.sums.terms import Terms


class Counting(Record):
    """Trust local: whose counts are in the sum so far."""

    deadline: Moment
    members: tuple[Natural, ...] = ()
    total: Array


class Mining(Record):
    """The course so far, what was learned on it, and the round that is open.

    Parameters
    ----------
    ask
        The open round; None before the first.
    course, answers
        What was decided, and the noisy sums of every round of the course.
    counted
        The noisy sums of the free counts.
    n_answering
        How many databases were in each sum.
    gathering, joint, counting
        The open round's secure sum, joint computation, or open counts.
    is_over
        Whether nothing more is asked.
    failed, until
        Why nothing was learned, and until when others may hear of it.
    """

    ask: Ask | None = None
    course: Course
    answers: tuple[Array, ...] = ()
    counted: tuple[Array, ...] = ()
    n_answering: tuple[Natural, ...] = ()
    gathering: Gathering | None = None
    joint: Joint | None = None
    counting: Counting | None = None
    is_over: bool = False
    failed: Failure | None = None
    until: Moment | None = None

    @property
    def learned(self) -> Answers:
        """The noisy sums of every round."""
        return tuple(_ints(answer) for answer in self.answers)


@dataclass(frozen=True)
class Mined:
    """What a study has come to.

    Parameters
    ----------
    model
        What was learned.
    course, answers
        What was decided on the way, and the noisy sums of every round.
    counted
        The free counts, in words.
    n_answering
        How many databases were in each sum.
    """

    model: Any
    course: Course
    answers: Answers
    counted: tuple[tuple[Counted, ...], ...]
    n_answering: tuple[int, ...]


class SDQAggregator(Aggregator[Mining]):
    """The miner's side.

    Parameters
    ----------
    script
        The course of the study.
    terms
        The study's digest, its roster, and the fewest databases that make a sum.
    patience
        How long it waits for each step of a round.
    free, queries
        What the study's ``[queries]`` allow, and what is asked of it, after the model.

    Notes
    -----
    Ref: SDQ Algorithm 3.
    """

    messages = MESSAGES

    def __init__(
        self, script: Script, terms: Terms, patience: timedelta, free: Free | None = None, queries: tuple[Query, ...] = ()
    ) -> None:
        check_terms(script.params, terms)
        self.study = terms.study
        self.script = script
        self.params = script.params
        self.terms = terms
        self.patience = patience
        self.free = free
        self.queries = queries
        self._collector = Collector(terms, patience)
        self._committee = Committee(self.params, terms, patience)
        self._check_queries()

    def _check_queries(self) -> None:
        """Find out at once what no database would answer."""
        if self.queries and self.free is None:
            raise SpecError("SDQ-002", "This study allows no free counts.", fix="Add [queries] to the study, or ask none.")
        for number, query in enumerate(self.queries):
            try:
                self._round(Ask(study=self.study, round=0, course=Course(), query=query, number=number))
            except RemoteProtocolError as error:
                raise SpecError(error.code, error.what, why=error.why) from None

    def initial(self) -> Mining:
        return Mining(course=Course())

    def started(self, state: Mining, now: datetime, entropy: Entropy) -> tuple[Mining, Effects]:
        return self._next(state, now) if state.ask is None else (state, ())

    def received(self, state: Mining, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Mining, Effects]:
        if not isinstance(message, SumMessage | FromParty | Counts):
            raise RemoteProtocolError("PROTO-003", f"A database does not send a {message.type_name}.")
        open_round = -1 if state.ask is None else state.ask.round
        if message.round < open_round or state.is_over:
            return state, ()
        if message.round == open_round:
            if isinstance(message, SumMessage) and state.gathering is not None:
                gathering, effects = self._collector.received(state.gathering, sender, message, now)
                return self._summed(state.replace(gathering=gathering), effects, now)
            if isinstance(message, FromParty) and state.joint is not None:
                joint, effects = self._committee.received(state.joint, sender, message, now)
                return self._joined(state.replace(joint=joint), effects, now)
            if isinstance(message, Counts) and state.counting is not None:
                return self._counted(state, state.counting, sender, message, now)
        raise unexpected(sender, message)

    def ticked(self, state: Mining, now: datetime, entropy: Entropy) -> tuple[Mining, Effects]:
        if state.failed is not None and state.until is not None and now >= state.until:
            return state, (Abort(RemoteProtocolError(state.failed.code, state.failed.what, why=state.failed.why)),)
        if state.is_over:
            return state, ()
        if state.counting is not None:
            return self._added(state, state.counting, now) if now >= state.counting.deadline else (state, ())
        if state.gathering is not None:
            gathering, effects = self._collector.ticked(state.gathering, now)
            return self._summed(state.replace(gathering=gathering), effects, now)
        if state.joint is not None:
            joint, effects = self._committee.ticked(state.joint, now)
            return self._joined(state.replace(joint=joint), effects, now)
        return state, ()

    def _round(self, ask: Ask) -> Round:
        if ask.query is not None:
            assert self.free is not None
            return query_round(self.params, self.free, ask.query, ask.number)
        asked = self.script.round(ask.course)
        assert asked is not None
        return asked

    def _next(self, state: Mining, now: datetime) -> tuple[Mining, Effects]:
        """Ask the next round of the course, then the free counts; or end."""
        number, n_counted = 0 if state.ask is None else state.ask.round + 1, len(state.counted)
        if self.script.round(state.course) is not None:
            ask = Ask(study=self.study, round=number, course=state.course)
        elif n_counted < len(self.queries):
            ask = Ask(study=self.study, round=number, course=state.course, query=self.queries[n_counted], number=n_counted)
        else:
            return self._end(state)
        asked, query = self._round(ask), digest_of(ask)
        state, effects = state.replace(ask=ask, gathering=None, joint=None, counting=None), (Send(EVERYONE, ask),)
        if self.params.trust == "local":
            deadline, nothing = now + self.patience, Array.of(np.zeros(asked.size, np.int64))
            return state.replace(counting=Counting(deadline=deadline, total=nothing)), (*effects, WakeAt(deadline))
        if asked.is_choice or (self.params.noise == "two-selected" and level_of(asked.question) == asked.question):
            joint, more = self._committee.begin(number, query, asked.size if asked.is_choice else 0, now)
            return state.replace(joint=joint), (*effects, *more)
        gathering, more = self._collector.begin(number, query, asked.size, now)
        return state.replace(gathering=gathering), (*effects, *more)

    def _answered(self, state: Mining, answer: Ints, n_answering: int, now: datetime) -> tuple[Mining, Effects]:
        ask = state.ask
        assert ask is not None
        state = state.replace(n_answering=(*state.n_answering, n_answering))
        if ask.query is not None:
            return self._next(state.replace(counted=(*state.counted, Array.of(answer))), now)
        state = state.replace(answers=(*state.answers, Array.of(answer)))
        return self._next(state.replace(course=self.script.advance(state.course, state.learned)), now)

    def _end(self, state: Mining) -> tuple[Mining, Effects]:
        model = self.script.model(state.course, state.learned)
        counted: tuple[tuple[Counted, ...], ...] = ()
        if self.free is not None:
            sums = zip(self.queries, state.counted, strict=True)
            counted = tuple(read(self.params, self.free, query, _ints(total)) for query, total in sums)
        mined = Mined(model, state.course, state.learned, counted, state.n_answering)
        state = state.replace(gathering=None, joint=None, counting=None, is_over=True)
        return state, (Send(EVERYONE, Ended(study=self.study)), Finish(mined))

    def _given_up(self, state: Mining, failed: Failure, now: datetime) -> tuple[Mining, Effects]:
        until, ended = now + self.patience, Ended(study=self.study, reason=failed.what[:MAX_REASON])
        state = state.replace(gathering=None, joint=None, counting=None, is_over=True, failed=failed, until=until)
        return state, (Send(EVERYONE, ended), WakeAt(until))

    def _summed(self, state: Mining, effects: Effects, now: datetime) -> tuple[Mining, Effects]:
        gathering = state.gathering
        assert gathering is not None
        if not gathering.is_over:
            return state, effects
        if gathering.failed is not None:
            return self._given_up(state, gathering.failed, now)
        state, more = self._answered(state, gathering.total, len(gathering.survivors), now)
        return state, (*effects, *more)

    def _joined(self, state: Mining, effects: Effects, now: datetime) -> tuple[Mining, Effects]:
        joint = state.joint
        assert joint is not None
        if joint.failed is not None:
            return self._given_up(state, joint.failed, now)
        if joint.position is not None:
            return self._answered(state, np.array([joint.position]), len(joint.dealt), now)
        if joint.is_choice or joint.phase == "keys" or state.gathering is not None:
            return state, effects
        # Two are being selected; whoever knows whether it is one of them takes part in the sum.
        assert state.ask is not None
        gathering, more = self._collector.begin(joint.round, joint.query, self._round(state.ask).size, now)
        return state.replace(gathering=gathering), (*effects, *more)

    def _counted(self, state: Mining, counting: Counting, sender: str, message: Counts, now: datetime) -> tuple[Mining, Effects]:
        member = self.terms.roster.position(sender)
        if member in counting.members:
            raise unexpected(sender, message)
        counts, most = message.counts.expect("int64", counting.total.count), limit(self.params.n_databases)
        if counts.size and not (-most <= int(counts.min()) and int(counts.max()) <= most):
            raise RemoteProtocolError(
                "MSG-005", f"{sender} sends a count beyond {most:,} in absolute value, with which a sum could overflow."
            )
        total = Array.of(_ints(counting.total) + counts)
        counting = counting.replace(members=(*counting.members, member), total=total)
        state = state.replace(counting=counting)
        return self._added(state, counting, now) if len(counting.members) == self.params.n_databases else (state, ())

    def _added(self, state: Mining, counting: Counting, now: datetime) -> tuple[Mining, Effects]:
        assert state.ask is not None
        n = len(counting.members)
        if n < self.params.minimum:
            return self._given_up(state, too_few(state.ask.round, n, self.params.minimum, "counts"), now)
        return self._answered(state, _ints(counting.total), n, now)


def _ints(array: Array) -> Ints:
    numbers: Ints = array.expect("int64", array.count)
    return numbers
