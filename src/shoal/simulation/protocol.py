"""The interface between simulations and one protocol.

`shoal.simulation.anonml`, `ddml`, `sdq` and `pfds` each define a `SimulatedProtocol` under the
name ``PROTOCOL``; `shoal.simulation.registry` has the table of them. Runs, sweeps, forecasts and
comparisons call its functions and compare no protocol's name. What a study's file and label need
to know about a protocol is in `shoal.study.protocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from shoal.simulation.metrics import BaselineScores
from shoal.simulation.run import RunOutcome, RunTask, Split
from shoal.study.plan import Plan
from shoal.study.spec import Study

Engine = Literal["numba", "numpy"]
"""The code that simulates DDML; both give the same result."""


@dataclass(frozen=True)
class MessageVolume:
    """Bytes and messages that one participant sends, on average over all participants."""

    bytes: float
    messages: float


@dataclass(frozen=True)
class Alternative:
    """A protocol, variant and trust level that may answer the question of a study.

    Parameters
    ----------
    name
        Text for people.
    learner
        SDQ: what is learned.
    has_delta
        Whether the guarantee has a delta.
    is_given
        Whether this is the given study, which matches no alternative of its protocol.
    """

    name: str
    protocol: str
    variant: str
    trust: str
    learner: str | None = None
    has_delta: bool = False
    is_given: bool = False


class MakeParams(Protocol):
    """A function that returns the parameters of a study, with or without noise."""

    def __call__(self, study: Study, *, without_perturbation: bool) -> Any: ...


class MeasureMessages(Protocol):
    """A function that returns what one participant sends; None if that is not known."""

    def __call__(
        self, plan: Plan, task: RunTask, split: Split, *, joint: bool
    ) -> MessageVolume | None: ...


def has_same_delta(alternative: Alternative, study: Study) -> bool:
    """Return whether a study has a delta exactly if the alternative has one."""
    return bool(study.privacy.delta) == alternative.has_delta


def keep_content(alternative: Alternative, study: Study, content: dict[str, Any]) -> None:
    """Add nothing to the content of a study."""


def keep_rows(split: Split) -> Split:
    """Return the rows unchanged."""
    return split


def count_participants(study: Study) -> int:
    """Return the declared size: one row for each participant, or the number of rows."""
    return study.participation.size


def list_no_keys(study: Study) -> frozenset[str]:
    """Return no keys."""
    del study
    return frozenset()


def choose_numpy(trials: Sequence[tuple[Any, int]]) -> Engine:
    """Return the engine of protocols that have only one."""
    del trials
    return "numpy"


@dataclass(frozen=True)
class SimulatedProtocol:
    """Everything that simulations need to know about one protocol.

    Parameters
    ----------
    name
        As in the study file.
    params_types
        Classes of the protocol's parameters.
    make_params
        Return the parameters of a study, with or without noise.
    describe_params
        Return the facts about a run that follow from its parameters, as plain data.
    score_baselines
        Return the scores of a trivial predictor and of models without privacy.
    run
        Simulate one run with all its details.
    learn_model
        Return the model of one run in which every participant answers.
    measure_messages
        Return what one participant sends.
    sized_settings
        Settings that follow from the declared size: subject and verb of a sentence.
    sweep_keys
        Numbers of the protocol's table that a sweep may vary, with their type.
    alternatives
        Forms of the protocol that a comparison tries, in the order of its table.
    matches
        Return whether a study of the same protocol, variant and trust is this alternative.
    complete_content
        Add to the content of a study what an alternative needs in the protocol's table.
    adapt_rows
        Return the rows as the protocol uses them in a comparison.
    count_rows
        Return the rows of all participants at the declared size.
    list_derived_keys
        Return the keys of a study's table that have the value of their default rule. A sweep
        computes them again.
    choose_engine
        Return the faster engine for several trials, given their parameters and rows.
    """

    name: str
    params_types: tuple[type[Any], ...]
    make_params: MakeParams
    describe_params: Callable[[Any], dict[str, Any]]
    score_baselines: Callable[[Any, Split], BaselineScores]
    run: Callable[[RunTask, Split], RunOutcome]
    learn_model: Callable[[RunTask, Split, Engine], Any]
    measure_messages: MeasureMessages
    sized_settings: str
    sweep_keys: Mapping[str, type[float]]
    alternatives: tuple[Alternative, ...]
    matches: Callable[[Alternative, Study], bool] = has_same_delta
    complete_content: Callable[[Alternative, Study, dict[str, Any]], None] = keep_content
    adapt_rows: Callable[[Split], Split] = keep_rows
    count_rows: Callable[[Study], int] = count_participants
    list_derived_keys: Callable[[Study], frozenset[str]] = list_no_keys
    choose_engine: Callable[[Sequence[tuple[Any, int]]], Engine] = choose_numpy
