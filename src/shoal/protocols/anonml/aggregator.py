"""The aggregator: opens one phase after another, counts answers, and learns from them.

``phase p open``
    Counts an answer of phase p to the sender's own question; an answer of an earlier phase is late.
``phase p over``
    At the deadline, or when all expected answers have arrived: opens phase p + 1 with the results
    so far. After the last phase the model is the result. If the study has a schedule, each phase
    opens and closes at its scheduled times, and only the last one can end early.

Reports are added to the counts on arrival, and nothing else is kept of them. A person who drops out
is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import numpy as np
from pydantic import Field

from shoal.entropy import Entropy
from shoal.errors import MechanismError, RemoteProtocolError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.additive_model import ClassificationModel
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import (
    MESSAGES,
    AnonMLAnswer,
    AnonMLAsk,
    AnonMLPublication,
    Natural,
)
from shoal.protocols.anonml.questions import Tally
from shoal.protocols.anonml.script import AnonMLScript, Tallies
from shoal.protocols.base import (
    EVERYONE,
    START,
    Abort,
    Aggregator,
    Effects,
    Finish,
    Moment,
    Send,
    WakeAt,
)

_A_DAY = timedelta(days=1)


class SavedTally(Record):
    """A tally in the saved state."""

    n: Natural
    counts: Array

    @classmethod
    def from_tally(cls, tally: Tally) -> SavedTally:
        return cls(n=tally.n, counts=Array.from_values(tally.counts))

    def to_tally(self) -> Tally:
        return Tally(self.n, self.counts.expect("int64", self.counts.count))


class AnonMLAggregatorState(Record):
    """The aggregator's state: the open phase, and all counts so far.

    After the end, ``phase`` is the number of phases.
    """

    phase: Annotated[int, Field(ge=-1)] = -1
    deadline: Moment = START
    publication: AnonMLPublication = AnonMLPublication()
    counted: tuple[tuple[SavedTally, ...], ...] = ()
    late: Natural = 0

    def to_tallies(self) -> Tallies:
        """Return all counts, by phase and question."""
        return tuple(tuple(counts.to_tally() for counts in phase) for phase in self.counted)


@dataclass(frozen=True)
class AnonMLResult:
    """The result of a study.

    Parameters
    ----------
    answers
        Number of counted answers, by phase.
    late
        Number of answers that arrived after the end of their phase, and were not counted.
    """

    model: ClassificationModel
    answers: tuple[int, ...]
    late: int = 0


class AnonMLAggregator(Aggregator[AnonMLAggregatorState]):
    """The untrusted side.

    Parameters
    ----------
    study
        Digest of the manifest.
    minimum
        Smallest number of answers to learn from.
    phase_timeout
        Longest time that a phase is open.
    expected
        Largest number of answers in each phase; None until it is known who takes part.
    opens
        When the first phase opens, if the study has a schedule: phase p then lasts from ``opens`` +
        p x ``phase_timeout`` to ``opens`` + (p + 1) x ``phase_timeout``. None for a study without
        one: each phase opens when the one before is over.
    """

    messages = MESSAGES

    def __init__(
        self,
        study: bytes,
        script: AnonMLScript,
        minimum: int = 1,
        phase_timeout: timedelta = _A_DAY,
        expected: tuple[int, ...] | None = None,
        opens: datetime | None = None,
    ) -> None:
        self.study = study
        self.script = script
        self.minimum = minimum
        self.phase_timeout = phase_timeout
        self.expected = expected
        self.opens = opens

    def initial_state(self) -> AnonMLAggregatorState:
        return AnonMLAggregatorState()

    def on_start(
        self, state: AnonMLAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[AnonMLAggregatorState, Effects]:
        if self.opens is not None and now < self.opens:
            return state, (WakeAt(self.opens),)
        return self._open_next_phase(state, now, entropy)

    def on_message(
        self,
        state: AnonMLAggregatorState,
        sender: str,
        message: Message,
        now: datetime,
        entropy: Entropy,
    ) -> tuple[AnonMLAggregatorState, Effects]:
        if not isinstance(message, AnonMLAnswer) or not 0 <= message.phase <= min(
            state.phase, self.script.n_phases - 1
        ):
            raise RemoteProtocolError(
                "PROTO-003", f"{sender} answered a question that was not asked."
            )
        words = ticket_words(self.study, message.ticket)
        group = int(self.script.assign_groups(message.phase, words)[0])
        if message.question not in self.script.list_question_numbers(message.phase, group):
            raise RemoteProtocolError(
                "ANONML-001",
                f"{sender} answered question {message.question} of phase {message.phase}, which "
                "is not assigned to its ticket.",
                why="The ticket determines a sender's questions.",
            )
        if message.phase < state.phase:
            return state.replace(late=state.late + 1), ()
        question = self.script.questions(state.phase, state.publication)[message.question]
        mechanism = question.mechanism
        assert mechanism is not None
        try:
            reports = mechanism.stack([mechanism.decode(message.report)])
        except MechanismError as error:
            raise RemoteProtocolError("MSG-005", error.what, why=error.why) from None
        open_phase = list(state.counted[-1])
        open_phase[message.question] = SavedTally.from_tally(
            open_phase[message.question].to_tally() + Tally(1, question.count(reports, words))
        )
        state = state.replace(counted=(*state.counted[:-1], tuple(open_phase)))
        return (
            self._open_next_phase(state, now, entropy) if self._is_complete(state) else (state, ())
        )

    def on_tick(
        self, state: AnonMLAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[AnonMLAggregatorState, Effects]:
        if state.phase < 0 and self.opens is not None:
            return self.on_start(state, now, entropy)
        is_open = 0 <= state.phase < self.script.n_phases
        return (
            self._open_next_phase(state, now, entropy)
            if is_open and (now >= state.deadline or self._is_complete(state))
            else (state, ())
        )

    def _is_complete(self, state: AnonMLAggregatorState) -> bool:
        """Return whether a phase can end because all expected answers have arrived.

        A scheduled phase does not open early, so the one before it does not end early.
        """
        return (
            self.expected is not None
            and (self.opens is None or state.phase == self.script.n_phases - 1)
            and sum(counts.n for counts in state.counted[-1]) >= self.expected[state.phase]
        )

    def _open_next_phase(
        self, state: AnonMLAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[AnonMLAggregatorState, Effects]:
        phase = state.phase + 1
        if phase == self.script.n_phases:
            return state.replace(phase=phase), (self._finish(state, entropy),)
        publication = self.script.publish(state.to_tallies())
        empty = tuple(
            SavedTally.from_tally(question.make_empty_tally())
            for question in self.script.questions(phase, publication)
        )
        opened = now if self.opens is None else self.opens + phase * self.phase_timeout
        deadline = opened + self.phase_timeout
        state = state.replace(
            phase=phase,
            deadline=deadline,
            publication=publication,
            counted=(*state.counted, empty),
        )
        wake = now if self._is_complete(state) else deadline
        ask = AnonMLAsk(
            study=self.study, phase=phase, publication=publication, opened=opened, closes=deadline
        )
        return state, (Send(EVERYONE, ask), WakeAt(wake))

    def _finish(self, state: AnonMLAggregatorState, entropy: Entropy) -> Finish | Abort:
        tallies = state.to_tallies()
        answers = count_answers(tallies)
        if sum(answers) < self.minimum:
            return Abort(
                RemoteProtocolError(
                    "ANONML-002",
                    f"{sum(answers)} answers arrived; the study needs {self.minimum}.",
                    why="Too few people answered in time. The budget of those answers is spent.",
                )
            )
        return Finish(AnonMLResult(self.script.learn(tallies, entropy), answers, state.late))


def count_answers(tallies: Tallies) -> tuple[int, ...]:
    """Return the number of counted answers in each phase."""
    return tuple(int(np.sum([tally.n for tally in phase])) for phase in tallies)
