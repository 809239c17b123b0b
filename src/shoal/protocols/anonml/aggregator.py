"""The aggregator of AnonML: opens one phase after the other, counts what comes in, and learns from the counts.

==============  =======================================================================================================
state           what happens
==============  =======================================================================================================
phase p open    an answer of phase p, to the sender's own question, is counted; one of an earlier phase is late
phase p over    when time is up, or as soon as all that are expected have answered: phase p + 1 opens, with what was
                learned so far; after the last one the model is the result
==============  =======================================================================================================

Reports are folded into counts when they come, and nothing else of them is kept. Who drops out is simply not counted.
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
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask, Natural, Publication
from shoal.protocols.anonml.model import Model
from shoal.protocols.anonml.questions import Tally
from shoal.protocols.anonml.script import Script, Tallies
from shoal.protocols.base import EVERYONE, START, Abort, Aggregator, Effects, Finish, Moment, Send, WakeAt

_A_DAY = timedelta(days=1)


class Counted(Record):
    """A tally as it is saved."""

    n: Natural
    counts: Array

    @classmethod
    def of(cls, tally: Tally) -> Counted:
        return cls(n=tally.n, counts=Array.of(tally.counts))

    def tally(self) -> Tally:
        return Tally(self.n, self.counts.expect("int64", self.counts.count))


class Collecting(Record):
    """The aggregator's state: the open phase (one more than there are once all is over), and all counts so far."""

    phase: Annotated[int, Field(ge=-1)] = -1
    deadline: Moment = START
    publication: Publication = Publication()
    counted: tuple[tuple[Counted, ...], ...] = ()
    late: Natural = 0

    def tallies(self) -> Tallies:
        """All counts, by phase and question."""
        return tuple(tuple(one.tally() for one in phase) for phase in self.counted)


@dataclass(frozen=True)
class Learned:
    """The result of a study.

    Parameters
    ----------
    model
        What was learned.
    answers
        Answers that were counted, by phase.
    late
        Answers that came after their phase was closed, and were not counted.
    """

    model: Model
    answers: tuple[int, ...]
    late: int = 0


class AnonMLAggregator(Aggregator[Collecting]):
    """The untrusted side.

    Parameters
    ----------
    study
        Digest of the manifest.
    script
        The course of the study.
    minimum
        Fewest answers to learn from.
    patience
        How long a phase stays open at most.
    expected
        Answers that can come in each phase, once it is known who takes part; None for as long as it is not.
    """

    messages = MESSAGES

    def __init__(
        self, study: bytes, script: Script, minimum: int = 1, patience: timedelta = _A_DAY, expected: tuple[int, ...] | None = None
    ) -> None:
        self.study = study
        self.script = script
        self.minimum = minimum
        self.patience = patience
        self.expected = expected

    def initial(self) -> Collecting:
        return Collecting()

    def started(self, state: Collecting, now: datetime, entropy: Entropy) -> tuple[Collecting, Effects]:
        return self._next(state, now, entropy)

    def received(self, state: Collecting, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Collecting, Effects]:
        if not isinstance(message, Answer) or not 0 <= message.phase <= min(state.phase, self.script.n_phases - 1):
            raise RemoteProtocolError("PROTO-003", f"{sender} answers what was not asked.")
        words = words_of(self.study, message.ticket)
        group = int(self.script.group_of(message.phase, words)[0])
        if message.question not in self.script.asked(message.phase, group):
            raise RemoteProtocolError(
                "ANONML-001",
                f"{sender} answers question {message.question} of phase {message.phase}, which is not its own.",
                why="Which question is whose follows from the ticket.",
            )
        if message.phase < state.phase:
            return state.replace(late=state.late + 1), ()
        asked = self.script.questions(state.phase, state.publication)[message.question]
        mechanism = asked.mechanism
        assert mechanism is not None
        try:
            reports = mechanism.stack([mechanism.decode(message.report)])
        except MechanismError as error:
            raise RemoteProtocolError("MSG-005", error.what, why=error.why) from None
        open_phase = list(state.counted[-1])
        open_phase[message.question] = Counted.of(open_phase[message.question].tally() + Tally(1, asked.count(reports, words)))
        state = state.replace(counted=(*state.counted[:-1], tuple(open_phase)))
        return self._next(state, now, entropy) if self._is_complete(state) else (state, ())

    def ticked(self, state: Collecting, now: datetime, entropy: Entropy) -> tuple[Collecting, Effects]:
        is_open = 0 <= state.phase < self.script.n_phases
        return self._next(state, now, entropy) if is_open and (now >= state.deadline or self._is_complete(state)) else (state, ())

    def _is_complete(self, state: Collecting) -> bool:
        """Whether all have answered who can in the open phase."""
        return self.expected is not None and sum(one.n for one in state.counted[-1]) >= self.expected[state.phase]

    def _next(self, state: Collecting, now: datetime, entropy: Entropy) -> tuple[Collecting, Effects]:
        phase = state.phase + 1
        if phase == self.script.n_phases:
            return state.replace(phase=phase), (self._end(state, entropy),)
        publication = self.script.publish(state.tallies())
        nothing = tuple(Counted.of(question.empty()) for question in self.script.questions(phase, publication))
        deadline = now + self.patience
        state = state.replace(phase=phase, deadline=deadline, publication=publication, counted=(*state.counted, nothing))
        wake = now if self._is_complete(state) else deadline
        ask = Ask(study=self.study, phase=phase, publication=publication, opened=now, closes=deadline)
        return state, (Send(EVERYONE, ask), WakeAt(wake))

    def _end(self, state: Collecting, entropy: Entropy) -> Finish | Abort:
        tallies = state.tallies()
        answers = answers_by_phase(tallies)
        if sum(answers) < self.minimum:
            return Abort(
                RemoteProtocolError(
                    "ANONML-002",
                    f"{sum(answers)} answers came in; the study needs {self.minimum}.",
                    why="Too few people answered in time. What they sent is spent.",
                )
            )
        return Finish(Learned(self.script.learn(tallies, entropy), answers, state.late))


def answers_by_phase(tallies: Tallies) -> tuple[int, ...]:
    """How many answers were counted in each phase."""
    return tuple(int(np.sum([tally.n for tally in phase])) for phase in tallies)
