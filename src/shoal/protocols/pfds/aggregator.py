"""Aggregators of variant `plus`: local and secure-sum.

Drivers run them (`shoal.protocols.base`); holders do not trust them.

`PublishingAggregator` ends a study: it publishes the model, or reports the failure to everyone.
After a failure it waits for one phase timeout, so that the report can be delivered, and then
aborts; messages that have not been sent by then are lost.

`LocalAggregator` collects the holders' tables, which already contain their noise, pools them and
publishes the model. It waits for all holders; at the deadline it continues with the received
tables, if there are enough. Unusable tables are rejected. A holder without usable tables is left
out by name.

`SecureSumAggregator` asks question after question, learns from noisy sums, and publishes the model.
Every question is a secure sum (`shoal.protocols.secagg`), which up to N - minimum holders may miss.
A failed sum ends the study: its answers are spent, and the same question is not asked again.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.base import EVERYONE, Abort, Aggregator, Effects, Finish, Moment, Send, WakeAt
from shoal.protocols.pfds.messages import (
    MAX_REASON,
    MESSAGES,
    HolderTables,
    LeftOutHolder,
    Natural,
    PFDSAsk,
    PFDSStudyEnd,
    SharedModel,
    compute_ask_digest,
    decode_floats,
    encode_floats,
)
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import Ints, PFDSParams, check_sum_parameters
from shoal.protocols.pfds.script import Answers, SecureSumScript
from shoal.protocols.pfds.tables import (
    assign_attributes,
    check_tables,
    compute_tables_size,
    pool_tables,
)
from shoal.protocols.secagg.collector import CollectorState, RoundFailure, SumCollector
from shoal.protocols.secagg.messages import Members, SumMessage, SumParameters
from shoal.text import format_count

LARGEST_WEIGHT, LARGEST_VARIANCE = 1e6, 1e12
"""Bounds above any learned value; below them no computation of a peer overflows."""
_ROUNDING = 1e-6


def make_shared_model(study: bytes, model: PooledModel) -> SharedModel:
    """Return the model as the message that is published."""
    return SharedModel(
        study=study,
        weights=encode_floats(model.weights.ravel()),
        intercepts=encode_floats(model.intercepts),
        variances=encode_floats(model.variances.ravel()),
        shares=encode_floats(model.shares),
    )


def read_shared_model(params: PFDSParams, message: SharedModel) -> PooledModel:
    """Return the published model if it fits the study, or raise `RemoteProtocolError`."""
    cells, models = params.n_cells, params.n_models
    weights, variances = (
        decode_floats(array, cells * models).reshape(cells, models)
        for array in (message.weights, message.variances)
    )
    intercepts, shares = (
        decode_floats(message.intercepts, models),
        decode_floats(message.shares, cells),
    )
    if max(np.abs(weights).max(), np.abs(intercepts).max()) > LARGEST_WEIGHT:
        raise _impossible_model_error("a weight is larger than any learned weight can be")
    if not 0 <= variances.min() <= variances.max() <= LARGEST_VARIANCE:
        raise _impossible_model_error("a variance is negative, or larger than it can be")
    if (
        shares.min() < 0
        or shares.max() > 1
        or np.abs(np.add.reduceat(shares, params.starts[:-1]) - 1).max() > _ROUNDING
    ):
        raise _impossible_model_error("the shares of the cells of a feature do not sum to 1")
    return PooledModel(params, weights, intercepts, variances, shares)


def check_n_holders(params: PFDSParams, n: int) -> None:
    """Raise unless the number of holders is that of the study."""
    if n != params.n_holders:
        raise SpecError(
            "PFDS-005",
            f"{format_count(n, 'holder')} {'was' if n == 1 else 'were'} given to a study that has "
            f"n_holders = {params.n_holders}.",
            why="The questions and the minimum depend on the number of holders.",
            fix="Pass all holders of the study, including those without rows and absent ones.",
        )


def _impossible_model_error(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "MSG-005", "The published model is impossible.", why=f"In it, {why}."
    )


@dataclass(frozen=True)
class PFDSResult:
    """Result of a study of variant plus.

    Parameters
    ----------
    answers
        The noisy sums of every question; with trust local, the tables of each sharing holder, in
        order.
    n_answering
        Number of holders in each sum; with trust local, number of sharing holders.
    left_out
        Holders with missing answers, and what is missing.
    """

    model: PooledModel
    answers: tuple[Ints, ...]
    n_answering: tuple[int, ...]
    left_out: tuple[LeftOutHolder, ...]


class PFDSAggregatorState(Record):
    """State of an aggregator: its end.

    Parameters
    ----------
    is_over
        Whether the aggregator asks nothing more.
    failed, until
        The reason for a study without a result, and the time until which it is reported.
    """

    is_over: bool = False
    failed: RoundFailure | None = None
    until: Moment | None = None


P = TypeVar("P", bound=PFDSAggregatorState)


class PublishingAggregator(Aggregator[P]):
    """Base class of aggregators that publish a result or report a failure.

    Parameters
    ----------
    study
        Digest of the manifest.
    names
        All holders of the study, in the order of the roster.
    phase_timeout
        Longest wait for each step.

    Raises
    ------
    SpecError
        ``PFDS-005``: the number of names is not the number of holders.
    """

    messages = MESSAGES

    def __init__(
        self, params: PFDSParams, study: bytes, names: tuple[str, ...], phase_timeout: timedelta
    ) -> None:
        check_n_holders(params, len(names))
        self.params = params
        self.study = study
        self.names = names
        self.phase_timeout = phase_timeout

    def on_tick(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        if state.failed is not None and state.until is not None and now >= state.until:
            return state, (
                Abort(
                    RemoteProtocolError(state.failed.code, state.failed.what, why=state.failed.why)
                ),
            )
        return (state, ()) if state.is_over else self.handle_tick(state, now)

    @abstractmethod
    def handle_tick(self, state: P, now: datetime) -> tuple[P, Effects]:
        """Handle an alarm of a study that is not over."""

    def publish(self, state: P, published: PFDSResult) -> tuple[P, Effects]:
        """Publish the model and the list of left-out holders, and finish."""
        missing = {left.holder for left in published.left_out}
        holders = tuple(name for name in self.names if name not in missing)
        ended = PFDSStudyEnd(study=self.study, holders=holders, left_out=published.left_out)
        model = make_shared_model(self.study, published.model)
        return state.replace(is_over=True), (
            Send(EVERYONE, model),
            Send(EVERYONE, ended),
            Finish(published),
        )

    def give_up(self, state: P, failed: RoundFailure, now: datetime) -> tuple[P, Effects]:
        """Report to everyone why there is no result.

        Sent answers remain spent, and their questions are not asked again.
        """
        until, ended = (
            now + self.phase_timeout,
            PFDSStudyEnd(study=self.study, reason=failed.what[:MAX_REASON]),
        )
        return state.replace(is_over=True, failed=failed, until=until), (
            Send(EVERYONE, ended),
            WakeAt(until),
        )


_MISSING = "no usable tables arrived in time"


class ReceivedTables(Record):
    """The tables of one holder."""

    holder: Natural
    counts: Array

    @property
    def numbers(self) -> Ints:
        """The counts, in units of 1/256 of a row."""
        numbers: Ints = self.counts.expect("int64", self.counts.count)
        return numbers


class PFDSLocalAggregatorState(PFDSAggregatorState):
    """State of the local aggregator: the received tables.

    Parameters
    ----------
    deadline
        End of the collection; None before the start.
    held
        The received tables.
    """

    deadline: Moment | None = None
    held: tuple[ReceivedTables, ...] = ()


class LocalAggregator(PublishingAggregator[PFDSLocalAggregatorState]):
    """Aggregator of a study with trust local.

    The tables contain their noise before they arrive, so no holder has to trust it.
    """

    def initial_state(self) -> PFDSLocalAggregatorState:
        return PFDSLocalAggregatorState()

    def on_start(
        self, state: PFDSLocalAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[PFDSLocalAggregatorState, Effects]:
        if state.deadline is not None:
            return state, ()
        deadline = now + self.phase_timeout
        return state.replace(deadline=deadline), (WakeAt(deadline),)

    def on_message(
        self,
        state: PFDSLocalAggregatorState,
        sender: str,
        message: Message,
        now: datetime,
        entropy: Entropy,
    ) -> tuple[PFDSLocalAggregatorState, Effects]:
        if not isinstance(message, HolderTables) or sender not in self.names:
            raise RemoteProtocolError(
                "PROTO-003", f"{sender} does not send a {message.type_name} in this study."
            )
        if state.is_over:
            return state, ()
        holder = self.names.index(sender)
        if any(held.holder == holder for held in state.held):
            raise RemoteProtocolError("PFDS-003", f"{sender} sent its tables a second time.")
        attributes = assign_attributes(self.params, self.study, holder)
        check_tables(
            self.params,
            attributes,
            message.counts.expect("int64", compute_tables_size(self.params, attributes)),
        )
        state = state.replace(
            held=(*state.held, ReceivedTables(holder=holder, counts=message.counts))
        )
        return self._pool_tables(state) if len(state.held) == len(self.names) else (state, ())

    def handle_tick(
        self, state: PFDSLocalAggregatorState, now: datetime
    ) -> tuple[PFDSLocalAggregatorState, Effects]:
        if state.deadline is None or now < state.deadline:
            return state, ()
        n, minimum = len(state.held), self.params.minimum
        if n < minimum:
            what = (
                f"The study failed: {n} holders sent usable tables in time; {minimum} are needed."
            )
            return self.give_up(
                state.replace(held=()),
                RoundFailure(code="PFDS-004", what=what, why="Answers already sent are charged."),
                now,
            )
        return self._pool_tables(state)

    def _pool_tables(
        self, state: PFDSLocalAggregatorState
    ) -> tuple[PFDSLocalAggregatorState, Effects]:
        # The result must not depend on the order of arrival, not even in the last digit.
        answers = {
            held.holder: held.numbers for held in sorted(state.held, key=lambda held: held.holder)
        }
        left_out = tuple(
            LeftOutHolder(holder=name, reason=_MISSING)
            for i, name in enumerate(self.names)
            if i not in answers
        )
        model = pool_tables(self.params, self.study, answers)
        published = PFDSResult(model, tuple(answers.values()), (len(answers),), left_out)
        return self.publish(state.replace(held=()), published)


class PFDSSecureSumAggregatorState(PFDSAggregatorState):
    """State of the secure-sum aggregator: the answers so far, and the open round.

    Parameters
    ----------
    ask, gathering
        The question of the open round, and its secure sum; None before the first.
    answers, survivors
        The noisy sums of every question so far, and the members in them.
    """

    ask: PFDSAsk | None = None
    gathering: CollectorState | None = None
    answers: tuple[Array, ...] = ()
    survivors: tuple[Members, ...] = ()

    @property
    def noisy_sums(self) -> Answers:
        """The noisy sums of every question so far."""
        return tuple(_read_ints(answer) for answer in self.answers)


class SecureSumAggregator(PublishingAggregator[PFDSSecureSumAggregatorState]):
    """Aggregator of a study with secure sums.

    Parameters
    ----------
    sum_params
        The study's digest, its roster, and the smallest number of holders of a sum.
    phase_timeout
        Longest wait for each step of a round.
    """

    def __init__(
        self, script: SecureSumScript, sum_params: SumParameters, phase_timeout: timedelta
    ) -> None:
        check_sum_parameters(script.params, sum_params)
        super().__init__(script.params, sum_params.study, sum_params.roster.names, phase_timeout)
        self.script = script
        self.sum_params = sum_params
        self._collector = SumCollector(sum_params, phase_timeout)

    def initial_state(self) -> PFDSSecureSumAggregatorState:
        return PFDSSecureSumAggregatorState()

    def on_start(
        self, state: PFDSSecureSumAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        return (
            self._ask_round(
                state, PFDSAsk(study=self.study, round=0, course=self.script.initial_state), now
            )
            if state.ask is None
            else (state, ())
        )

    def on_message(
        self,
        state: PFDSSecureSumAggregatorState,
        sender: str,
        message: Message,
        now: datetime,
        entropy: Entropy,
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        if not isinstance(message, SumMessage):
            raise RemoteProtocolError(
                "PROTO-003", f"A holder does not send a {message.type_name} in this study."
            )
        if state.is_over:
            return state, ()
        if state.gathering is None:
            raise RemoteProtocolError(
                "PFDS-003", f"{sender} sent a {message.type_name} before the first question."
            )
        gathering, effects = self._collector.handle_message(state.gathering, sender, message, now)
        return self._advance_sum(state, gathering, effects, now)

    def handle_tick(
        self, state: PFDSSecureSumAggregatorState, now: datetime
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        if state.gathering is None:
            return state, ()
        gathering, effects = self._collector.handle_tick(state.gathering, now)
        return self._advance_sum(state, gathering, effects, now)

    def _ask_round(
        self, state: PFDSSecureSumAggregatorState, ask: PFDSAsk, now: datetime
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        """Ask a round of a script that is not at its end."""
        question = self.script.find_question(ask.course)
        assert question is not None
        gathering, effects = self._collector.begin(
            ask.round, compute_ask_digest(ask), self.script.compute_size(question), now
        )
        return state.replace(ask=ask, gathering=gathering), (Send(EVERYONE, ask), *effects)

    def _advance_sum(
        self,
        state: PFDSSecureSumAggregatorState,
        sum_state: CollectorState,
        effects: Effects,
        now: datetime,
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        """Continue an open round, or start the next one, or end the study."""
        if not sum_state.is_over:
            return state.replace(gathering=sum_state), effects
        if sum_state.failed is not None:
            return self.give_up(state.replace(gathering=None), sum_state.failed, now)
        ask = state.ask
        assert ask is not None
        answers, survivors = (
            (*state.answers, Array.from_values(sum_state.total)),
            (*state.survivors, sum_state.survivors),
        )
        state = state.replace(gathering=None, answers=answers, survivors=survivors)
        script_state = self.script.advance(ask.course, state.noisy_sums)
        if self.script.find_question(script_state) is None:
            return self._publish_model(state)
        state, more = self._ask_round(
            state, PFDSAsk(study=self.study, round=script_state.step, course=script_state), now
        )
        return state, (*effects, *more)

    def _publish_model(
        self, state: PFDSSecureSumAggregatorState
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        model, n_answering = (
            self.script.build_model(state.noisy_sums),
            tuple(map(len, state.survivors)),
        )
        return self.publish(
            state,
            PFDSResult(model, state.noisy_sums, n_answering, tuple(self._list_left_out(state))),
        )

    def _list_left_out(self, state: PFDSSecureSumAggregatorState) -> list[LeftOutHolder]:
        """Return the holders that are missing in some of the sums, with their questions."""
        left = []
        for member, name in enumerate(self.names):
            missed = [
                question
                for question, there in zip(self.script.questions, state.survivors, strict=True)
                if member not in there
            ]
            if missed:
                left.append(
                    LeftOutHolder(holder=name, reason=f"missing in sums: {', '.join(missed)}")
                )
        return left


def _read_ints(array: Array) -> Ints:
    numbers: Ints = array.expect("int64", array.count)
    return numbers
