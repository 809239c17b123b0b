"""The aggregator (the miner).

It asks one round after another and learns from the noisy sums. No party trusts it.

===========  =====================================================================================
round        how it is answered
===========  =====================================================================================
sum          by a secure sum (`shoal.protocols.secagg`); with noise ``two-selected``, two databases
             are selected first, once for each level
choice       by a committee (`shoal.protocols.sdq.committee`)
trust local  by the counts of all databases, or of enough of them at the deadline
===========  =====================================================================================

A failed round ends the study: sent answers are charged, and the same question is not asked again.
The aggregator then broadcasts the reason, waits one more phase so that peers can fetch it, and
aborts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from shoal.crypto.secagg.masking import compute_value_limit
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.base import EVERYONE, Abort, Aggregator, Effects, Finish, Moment, Send, WakeAt
from shoal.protocols.sdq.committee import (
    Committee,
    CommitteeState,
    PartyMessage,
    check_sum_parameters,
    compute_ask_digest,
    find_selection_question,
    too_few_failure,
    unexpected_message_error,
)
from shoal.protocols.sdq.messages import MAX_REASON, MESSAGES, Counts, Natural, SDQAsk, SDQStudyEnd
from shoal.protocols.sdq.params import Ints
from shoal.protocols.sdq.queries import (
    NoisyTable,
    QueryRules,
    SDQQuery,
    make_query_round,
    read_query_tables,
)
from shoal.protocols.sdq.script import Answers, SDQRound, SDQScript, SDQScriptState
from shoal.protocols.secagg.collector import CollectorState, RoundFailure, SumCollector
from shoal.protocols.secagg.messages import SumMessage, SumParameters


class LocalCountsState(Record):
    """Trust local: the sum so far, and the databases in it."""

    deadline: Moment
    members: tuple[Natural, ...] = ()
    total: Array


class SDQAggregatorState(Record):
    """The decisions and answers so far, and the open round.

    Parameters
    ----------
    ask
        The open round; None before the first.
    course, answers
        The script state, and the noisy sums of every round of the script.
    counted
        The noisy sums of the free counts.
    n_answering
        Number of databases in each sum.
    gathering, joint, counting
        The open round's secure sum, joint computation, or open counts.
    is_over
        Whether nothing more is asked.
    failed, until
        Why the study failed, and until when peers can fetch the reason.
    """

    ask: SDQAsk | None = None
    course: SDQScriptState
    answers: tuple[Array, ...] = ()
    counted: tuple[Array, ...] = ()
    n_answering: tuple[Natural, ...] = ()
    gathering: CollectorState | None = None
    joint: CommitteeState | None = None
    counting: LocalCountsState | None = None
    is_over: bool = False
    failed: RoundFailure | None = None
    until: Moment | None = None

    @property
    def noisy_sums(self) -> Answers:
        """The noisy sums of every round."""
        return tuple(_read_ints(answer) for answer in self.answers)


@dataclass(frozen=True)
class SDQResult:
    """The result of a study.

    Parameters
    ----------
    model
        The learned model.
    course, answers
        The final script state, and the noisy sums of every round.
    counted
        The free counts, as labelled tables.
    n_answering
        Number of databases in each sum.
    """

    model: Any
    course: SDQScriptState
    answers: Answers
    query_tables: tuple[tuple[NoisyTable, ...], ...]
    n_answering: tuple[int, ...]


class SDQAggregator(Aggregator[SDQAggregatorState]):
    """The aggregator of an SDQ study.

    Parameters
    ----------
    sum_params
        The study's digest, its roster, and the fewest databases that make a sum.
    phase_timeout
        Waiting time of each phase of a round.
    query_rules, queries
        The study's ``[queries]``, and the free queries, which are asked after the model.

    Notes
    -----
    Ref: SDQ Algorithm 3.
    """

    messages = MESSAGES

    def __init__(
        self,
        script: SDQScript,
        sum_params: SumParameters,
        phase_timeout: timedelta,
        query_rules: QueryRules | None = None,
        queries: tuple[SDQQuery, ...] = (),
    ) -> None:
        check_sum_parameters(script.params, sum_params)
        self.study = sum_params.study
        self.script = script
        self.params = script.params
        self.sum_params = sum_params
        self.phase_timeout = phase_timeout
        self.query_rules = query_rules
        self.queries = queries
        self._collector = SumCollector(sum_params, phase_timeout)
        self._committee = Committee(self.params, sum_params, phase_timeout)
        self._check_queries()

    def _check_queries(self) -> None:
        """Raise `SpecError` for queries that no database would answer."""
        if self.queries and self.query_rules is None:
            raise SpecError(
                "SDQ-002",
                "This study allows no free counts.",
                fix="Add [queries] to the study, or remove the queries.",
            )
        for number, query in enumerate(self.queries):
            try:
                self._make_round(
                    SDQAsk(
                        study=self.study,
                        round=0,
                        course=SDQScriptState(),
                        query=query,
                        number=number,
                    )
                )
            except RemoteProtocolError as error:
                raise SpecError(error.code, error.what, why=error.why) from None

    def initial_state(self) -> SDQAggregatorState:
        return SDQAggregatorState(course=SDQScriptState())

    def on_start(
        self, state: SDQAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[SDQAggregatorState, Effects]:
        return self._ask_next_round(state, now) if state.ask is None else (state, ())

    def on_message(
        self,
        state: SDQAggregatorState,
        sender: str,
        message: Message,
        now: datetime,
        entropy: Entropy,
    ) -> tuple[SDQAggregatorState, Effects]:
        if not isinstance(message, SumMessage | PartyMessage | Counts):
            raise RemoteProtocolError(
                "PROTO-003", f"A database does not send a {message.type_name}."
            )
        open_round = -1 if state.ask is None else state.ask.round
        if message.round < open_round or state.is_over:
            return state, ()
        if message.round == open_round:
            if isinstance(message, SumMessage) and state.gathering is not None:
                gathering, effects = self._collector.handle_message(
                    state.gathering, sender, message, now
                )
                return self._advance_sum(state.replace(gathering=gathering), effects, now)
            if isinstance(message, PartyMessage) and state.joint is not None:
                joint, effects = self._committee.handle_message(state.joint, sender, message, now)
                return self._advance_joint_computation(state.replace(joint=joint), effects, now)
            if isinstance(message, Counts) and state.counting is not None:
                return self._add_counts(state, state.counting, sender, message, now)
        raise unexpected_message_error(sender, message)

    def on_tick(
        self, state: SDQAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[SDQAggregatorState, Effects]:
        if state.failed is not None and state.until is not None and now >= state.until:
            return state, (
                Abort(
                    RemoteProtocolError(state.failed.code, state.failed.what, why=state.failed.why)
                ),
            )
        if state.is_over:
            return state, ()
        if state.counting is not None:
            return (
                self._close_local_round(state, state.counting, now)
                if now >= state.counting.deadline
                else (state, ())
            )
        if state.gathering is not None:
            gathering, effects = self._collector.handle_tick(state.gathering, now)
            return self._advance_sum(state.replace(gathering=gathering), effects, now)
        if state.joint is not None:
            joint, effects = self._committee.handle_tick(state.joint, now)
            return self._advance_joint_computation(state.replace(joint=joint), effects, now)
        return state, ()

    def _make_round(self, ask: SDQAsk) -> SDQRound:
        if ask.query is not None:
            assert self.query_rules is not None
            return make_query_round(self.params, self.query_rules, ask.query, ask.number)
        asked = self.script.make_round(ask.course)
        assert asked is not None
        return asked

    def _ask_next_round(
        self, state: SDQAggregatorState, now: datetime
    ) -> tuple[SDQAggregatorState, Effects]:
        """Ask the next round of the script, then the free counts; or end."""
        number, n_counted = 0 if state.ask is None else state.ask.round + 1, len(state.counted)
        if self.script.make_round(state.course) is not None:
            ask = SDQAsk(study=self.study, round=number, course=state.course)
        elif n_counted < len(self.queries):
            ask = SDQAsk(
                study=self.study,
                round=number,
                course=state.course,
                query=self.queries[n_counted],
                number=n_counted,
            )
        else:
            return self._finish(state)
        asked, query = self._make_round(ask), compute_ask_digest(ask)
        state, effects = (
            state.replace(ask=ask, gathering=None, joint=None, counting=None),
            (Send(EVERYONE, ask),),
        )
        if self.params.trust == "local":
            deadline, nothing = (
                now + self.phase_timeout,
                Array.from_values(np.zeros(asked.size, np.int64)),
            )
            return state.replace(counting=LocalCountsState(deadline=deadline, total=nothing)), (
                *effects,
                WakeAt(deadline),
            )
        if asked.is_choice or (
            self.params.noise == "two-selected"
            and find_selection_question(asked.question) == asked.question
        ):
            joint, more = self._committee.begin(
                number, query, asked.size if asked.is_choice else 0, now
            )
            return state.replace(joint=joint), (*effects, *more)
        gathering, more = self._collector.begin(number, query, asked.size, now)
        return state.replace(gathering=gathering), (*effects, *more)

    def _record_answer(
        self, state: SDQAggregatorState, answer: Ints, n_answering: int, now: datetime
    ) -> tuple[SDQAggregatorState, Effects]:
        ask = state.ask
        assert ask is not None
        state = state.replace(n_answering=(*state.n_answering, n_answering))
        if ask.query is not None:
            return self._ask_next_round(
                state.replace(counted=(*state.counted, Array.from_values(answer))), now
            )
        state = state.replace(answers=(*state.answers, Array.from_values(answer)))
        return self._ask_next_round(
            state.replace(course=self.script.advance(state.course, state.noisy_sums)), now
        )

    def _finish(self, state: SDQAggregatorState) -> tuple[SDQAggregatorState, Effects]:
        model = self.script.build_model(state.course, state.noisy_sums)
        counted: tuple[tuple[NoisyTable, ...], ...] = ()
        if self.query_rules is not None:
            sums = zip(self.queries, state.counted, strict=True)
            counted = tuple(
                read_query_tables(self.params, self.query_rules, query, _read_ints(total))
                for query, total in sums
            )
        mined = SDQResult(model, state.course, state.noisy_sums, counted, state.n_answering)
        state = state.replace(gathering=None, joint=None, counting=None, is_over=True)
        return state, (Send(EVERYONE, SDQStudyEnd(study=self.study)), Finish(mined))

    def _give_up(
        self, state: SDQAggregatorState, failed: RoundFailure, now: datetime
    ) -> tuple[SDQAggregatorState, Effects]:
        until, ended = (
            now + self.phase_timeout,
            SDQStudyEnd(study=self.study, reason=failed.what[:MAX_REASON]),
        )
        state = state.replace(
            gathering=None, joint=None, counting=None, is_over=True, failed=failed, until=until
        )
        return state, (Send(EVERYONE, ended), WakeAt(until))

    def _advance_sum(
        self, state: SDQAggregatorState, effects: Effects, now: datetime
    ) -> tuple[SDQAggregatorState, Effects]:
        gathering = state.gathering
        assert gathering is not None
        if not gathering.is_over:
            return state, effects
        if gathering.failed is not None:
            return self._give_up(state, gathering.failed, now)
        state, more = self._record_answer(state, gathering.total, len(gathering.survivors), now)
        return state, (*effects, *more)

    def _advance_joint_computation(
        self, state: SDQAggregatorState, effects: Effects, now: datetime
    ) -> tuple[SDQAggregatorState, Effects]:
        joint = state.joint
        assert joint is not None
        if joint.failed is not None:
            return self._give_up(state, joint.failed, now)
        if joint.position is not None:
            return self._record_answer(state, np.array([joint.position]), len(joint.dealt), now)
        if joint.is_choice or joint.phase == "keys" or state.gathering is not None:
            return state, effects
        # Two are being selected; each database joins the sum once it knows its role.
        assert state.ask is not None
        gathering, more = self._collector.begin(
            joint.round, joint.query, self._make_round(state.ask).size, now
        )
        return state.replace(gathering=gathering), (*effects, *more)

    def _add_counts(
        self,
        state: SDQAggregatorState,
        counting: LocalCountsState,
        sender: str,
        message: Counts,
        now: datetime,
    ) -> tuple[SDQAggregatorState, Effects]:
        member = self.sum_params.roster.find_position(sender)
        if member in counting.members:
            raise unexpected_message_error(sender, message)
        counts, max_count = (
            message.counts.expect("int64", counting.total.count),
            compute_value_limit(self.params.n_databases),
        )
        if counts.size and not (-max_count <= int(counts.min()) and int(counts.max()) <= max_count):
            raise RemoteProtocolError(
                "MSG-005",
                f"{sender} sent a count larger than {max_count:,} in absolute value; the sum could "
                "overflow.",
            )
        total = Array.from_values(_read_ints(counting.total) + counts)
        counting = counting.replace(members=(*counting.members, member), total=total)
        state = state.replace(counting=counting)
        return (
            self._close_local_round(state, counting, now)
            if len(counting.members) == self.params.n_databases
            else (state, ())
        )

    def _close_local_round(
        self, state: SDQAggregatorState, counting: LocalCountsState, now: datetime
    ) -> tuple[SDQAggregatorState, Effects]:
        assert state.ask is not None
        n = len(counting.members)
        if n < self.params.minimum:
            return self._give_up(
                state, too_few_failure(state.ask.round, n, self.params.minimum, "counts"), now
            )
        return self._record_answer(state, _read_ints(counting.total), n, now)


def _read_ints(array: Array) -> Ints:
    numbers: Ints = array.expect("int64", array.count)
    return numbers
