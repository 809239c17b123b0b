"""One run of a PFDS study: those who share release what they have, and the release, and what holders make of it at home, are tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import SeededEntropy
from shoal.protocols.pfds import local
from shoal.protocols.pfds.dataset import Dataset, draw
from shoal.protocols.pfds.fitting import own_model, released_model, ridge_model
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.model import KeptModel, Model
from shoal.protocols.pfds.paper_population import simulate_paper
from shoal.protocols.pfds.params import Ints, Params, Rows
from shoal.protocols.pfds.population import simulate
from shoal.protocols.pfds.tree import depth_of
from shoal.sim.details import calibration_of, participation
from shoal.sim.details_exposure import pfds_exposure
from shoal.sim.details_pfds import MOST_ROWS, histograms, marginals, model_weights, questions, regression
from shoal.sim.holders import holders_of, is_used, who_answers
from shoal.sim.runs import Outcome, Split, Task
from shoal.sim.scores import (
    AtHome,
    Errors,
    Scores,
    Yardsticks,
    errors_of,
    is_better,
    mean_label,
    mean_scores,
    most_common,
    scores_of,
)
from shoal.study.conditions_sums import Members
from shoal.study.pfds import params_of
from shoal.study.spec import Study

MOST_HOMES = 20
"""So many holders, drawn at random, are followed home."""
_DIGEST_BYTES = 32


def params_for(study: Study, *, without_perturbation: bool) -> Params:
    """The parameters of a study that is to be simulated, with or without noise."""
    params = params_of(study)
    return replace(params, epsilon=math.inf) if without_perturbation else params


def facts(params: Params) -> dict[str, Any]:
    """What the parameters say about a run, as plain data."""
    is_paper = params.variant == "paper"
    return {
        "variant": params.variant,
        "trust": params.trust,
        "noise": None if params.is_bare else "own" if params.trust == "local" else "shares",
        "n_holders": params.n_holders,
        "max_colluders": params.max_colluders,
        "n_honest": params.n_honest,
        "n_tables": local.n_tables(params) if params.trust == "local" and not is_paper else None,
        "depth": depth_of(params) if is_paper else None,
        "labelling": params.labelling if is_paper else None,
        "projection": params.projection if is_paper else None,
    }


def yardsticks(params: Params, split: Split) -> Yardsticks:
    """The trivial predictor, and logistic or ridge regression on all rows themselves, in the public coding."""
    if params.is_number:
        guessed: Yardsticks = {"mean_label": mean_label(split.labels, split.unseen_labels)}
    else:
        guessed = {"most_common": most_common(params.n_sides, split.labels, split.unseen_labels)}
    return {**guessed, "without_privacy": _scores(params, ridge_model(params, Rows.of(params, split.asked, split.labels)), split)}


@dataclass(frozen=True, eq=False)
class Shared:
    """What the holders of one run share.

    Parameters
    ----------
    model
        What is learned from the release alone: the pooled model, or a regression on all released rows.
    answers
        Variant plus: the noisy sums of every question, or the tables of each sharer.
    datasets
        Variant paper: the released rows of each sharer. Those of variant plus are drawn from its model.
    sharers
        Who shares.
    rows
        All rows to learn from, in the public coding, with whose they are.
    used
        ``(n,)`` which of them the sharers used.
    """

    model: Model
    answers: tuple[Ints, ...]
    datasets: tuple[Dataset, ...]
    sharers: tuple[int, ...]
    rows: Rows
    used: npt.NDArray[np.bool_]

    @property
    def whose(self) -> Ints:
        """``(n,)`` the holder of each row."""
        assert self.rows.whose is not None
        return self.rows.whose

    @property
    def n_rows(self) -> int:
        """How many rows the sharers used."""
        return int(self.used.sum())

    def released(self, params: Params, task: Task) -> tuple[Dataset, ...]:
        """The released rows: of the pool as many as were declared, or those of each sharer."""
        return self.datasets or (draw(self.model, params.size, task.entropy.spawn("rows")),)


def share(task: Task, split: Split) -> Shared:
    """The release of one run: holders who do not drop out share what the study asks, of the rows that they may use."""
    params = task.params
    assert isinstance(params, Params)
    members = Members("pfds", "n_holders", "holders", params.n_holders, params.minimum, params.max_colluders)
    whose = holders_of(members, len(split.labels), split.holders, split.n_holders, task.entropy.spawn("holders"))
    there = who_answers(members, task, is_sum=params.trust == "secure-sum")
    sharers = tuple(np.flatnonzero(there).tolist())
    used = is_used(whose, split.people, params.max_rows)
    rows, by_sharers = Rows.of(params, split.asked, split.labels, whose), used & there[whose]
    if params.variant == "paper":
        columns = {name: column[used] for name, column in split.asked.items()}
        datasets = simulate_paper(params, columns, split.labels[used], whose[used], task.entropy.spawn("answers"), sharers).datasets
        return Shared(released_model(params, _together(params, datasets)), (), datasets, sharers, rows, by_sharers)
    learned = simulate(params, rows.take(used), _digest(task), task.entropy.spawn("answers"), sharers=sharers)
    return Shared(learned.model, learned.answers, (), sharers, rows, by_sharers)


def _digest(task: Task) -> bytes:
    """What stands for the digest of the manifest, which is not known before its keys are."""
    return task.entropy.spawn("digest").bytes(_DIGEST_BYTES)


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run; what is released, and some home models, are tried on the rows set aside."""
    params, shared = task.params, share(task, split)
    assert isinstance(params, Params)
    sizes = tuple(map(len, shared.datasets or shared.answers))
    followed = homes(params, split, shared, task.entropy.spawn("homes"))
    scores = _scores(params, shared.model, split)
    outcome = Outcome(scores, len(shared.sharers), sizes, shared.model.to_plain(), shared.n_rows, followed)
    return outcome if task.repeat else outcome.with_details(_details(params, task, split, shared))


def _details(params: Params, task: Task, split: Split, shared: Shared) -> dict[str, Any]:
    """What a run shows besides its scores."""
    sharers, real = shared.sharers, shared.rows.take(shared.used)
    released = _together(params, shared.released(replace(params, size=min(params.size, MOST_ROWS)), task))
    # What variant paper learns is that very regression on released rows.
    models = {"synthetic": shared.model if params.variant == "paper" else regression(params, released), "real": regression(params, real)}
    trained = {name: asdict(_scores(params, model, split)) for name, model in models.items() if model is not None}
    return {
        "participation": participation(params.n_holders, len(sharers), [(name, len(sharers)) for name in questions(params)]),
        "calibration": calibration_of(shared.model, split.unseen, split.unseen_labels),
        "histograms": histograms(params, _digest(task), shared.answers, sharers, real),
        "weights": model_weights(shared.model),
        "exposure": pfds_exposure(params),
        "marginals": marginals(params, released, real),
        "train_on_released": trained if len(trained) == len(models) else {},
    }


def homes(params: Params, split: Split, shared: Shared, entropy: SeededEntropy) -> AtHome:
    """How well home models do, those of holders who dropped out among them: they read the release too."""
    followed = np.sort(np.argsort(entropy.words(params.n_holders, np.uint64), kind="stable")[:MOST_HOMES]).tolist()
    rows, released = shared.rows, _together(params, shared.datasets)
    home, own = [], []
    for holder in followed:
        mine = rows.take(shared.whose == holder)
        own.append(_scores(params, own_model(params, mine), split))
        if params.variant == "paper":
            home.append(_scores(params, ridge_model(params, _joined(released, mine)), split))
        else:
            home.append(_scores(params, at_home(shared.model, mine, entropy.spawn(holder)), split))
    gains = [is_better(*pair) for pair in zip(home, own, strict=True)]
    return AtHome(mean_scores(home), mean_scores(own), sum(gains) / len(gains), len(followed))


def _together(params: Params, datasets: Sequence[Dataset]) -> Rows:
    """The rows of all datasets in the public coding."""
    nothing = Rows(np.zeros((0, len(params.arities)), np.int64), np.zeros((0, params.n_sides), np.int64))
    return _joined(nothing, *(Rows.of(params, one.columns, one.labels) for one in datasets))


def _joined(*parts: Rows) -> Rows:
    return Rows(np.concatenate([one.cells for one in parts]), np.concatenate([one.sides for one in parts]))


def _scores(params: Params, model: Model | KeptModel, split: Split) -> Scores | Errors:
    if params.is_number:
        return errors_of(model.predict(split.unseen), split.unseen_labels)
    return scores_of(model.probabilities(split.unseen), model.decide(split.unseen), split.unseen_labels)
