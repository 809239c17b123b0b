"""One run of a forecast: a population is drawn, the study learns from it, and the model is tried on rows that it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.protocols.anonml.params import Params as AnonMLParams
from shoal.protocols.anonml.population import make_script
from shoal.protocols.anonml.population import simulate as simulate_people
from shoal.protocols.ddml.params import Params as DDMLParams
from shoal.protocols.ddml.population import Devices
from shoal.protocols.ddml.population import simulate as simulate_devices
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.population import simulate as simulate_databases
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.forecast_rows import N_GROUPS, Source, groups_of
from shoal.sim.holders import holders_of, is_used
from shoal.sim.pfds import share
from shoal.sim.protocols import yardsticks
from shoal.sim.runs import Params, Split, Task
from shoal.sim.scores import Errors, Ints, Scores, errors_of, scores_of
from shoal.sim.sdq import members_of

Engine = Literal["numba", "numpy"]
Measures = dict[str, float]


@dataclass(frozen=True)
class Trial:
    """One run that is to be made.

    Parameters
    ----------
    params, n_rows
        The study, and of how many rows its population is.
    seed, repeat
        All randomness follows from them; the rows from the size and the repeat alone.
    part
        Share of the source that the population is drawn from.
    kind
        ``"study"`` runs the protocol, ``"yardsticks"`` what it is held against.
    engine
        How DDML is simulated: what is sooner done, over all runs of the forecast.
    """

    params: Params
    n_rows: int
    seed: int
    repeat: int
    part: float = 1.0
    kind: Literal["study", "yardsticks"] = "study"
    engine: Engine = "numpy"


@dataclass(frozen=True)
class Tried:
    """What came of a trial.

    Parameters
    ----------
    scores
        By the name of each measure; of yardsticks the scores of each by its name.
    without
        The scores without each group of test rows; of yardsticks none.
    n_unseen
        How many test rows there were.
    """

    scores: dict[str, Any]
    without: tuple[Measures, ...]
    n_unseen: int


def try_once(trial: Trial, source: Source) -> Tried:
    """Make one run."""
    split = source.draw(trial.n_rows, trial.repeat, trial.part)
    n_unseen = len(split.unseen_labels)
    if trial.kind == "yardsticks":
        return Tried(_held_against(trial.params, split), (), n_unseen)
    model = _learned(Task(trial.params, trial.seed, trial.repeat), split, trial.engine)
    score = _scorer(model, split)
    group = groups_of(n_unseen)
    return Tried(score(np.arange(n_unseen)), tuple(score(np.flatnonzero(group != one)) for one in range(N_GROUPS)), n_unseen)


def _held_against(params: Params, split: Split) -> dict[str, Measures]:
    """The yardsticks; none where all who were drawn have the same label, from whom no other learner learns anything."""
    if len(np.unique(split.labels)) < 2:
        return {}
    return {name: asdict(scores) for name, scores in yardsticks(params, split).items()}


def _learned(task: Task, split: Split, engine: Engine) -> Any:
    """The model of one run in which everyone answers: what `shoal.sim.protocols.run` tries, without what else it looks at."""
    params, entropy = task.params, task.entropy
    if isinstance(params, AnonMLParams):
        script = make_script(params, entropy.spawn("digest").bytes(32))
        return simulate_people(script, split.asked, split.labels, entropy.spawn("answers")).model
    if isinstance(params, DDMLParams):
        devices = Devices.of(params, split.asked, split.labels)
        return simulate_devices(params, devices, entropy.spawn("updates"), engine=engine).model
    if not isinstance(params, SDQParams):
        return share(task, split).model
    whose = holders_of(members_of(params), len(split.labels), None, 0, entropy.spawn("databases"))
    used = is_used(whose, split.people, params.max_rows)
    columns = {name: column[used] for name, column in split.asked.items()}
    table = Table.of(params, columns, split.labels[used], whose[used])
    return simulate_databases(script_of(params), table, entropy.spawn("answers"), params.n_databases).model


def _scorer(model: Any, split: Split) -> Callable[[Ints], Measures]:
    """A function that scores the model on some of the test rows."""
    labels = split.unseen_labels
    if labels.dtype.kind == "f":
        predicted: npt.NDArray[np.float64] = np.asarray(model.predict(split.unseen), np.float64)
        return lambda rows: _plain(errors_of(predicted[rows], labels[rows]))
    chances, decisions = model.probabilities(split.unseen), model.decide(split.unseen)
    return lambda rows: _plain(scores_of(chances[rows], decisions[rows], labels[rows]))


def _plain(scores: Scores | Errors) -> Measures:
    return {name: float(value) for name, value in asdict(scores).items()}
