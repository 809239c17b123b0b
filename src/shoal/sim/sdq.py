"""One run of an SDQ study: the databases count, their sums carry noise, and what is learned is tried on the rows set aside."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import SpecError, UsageError
from shoal.names import counted
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.rows import deal
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.runs import Outcome, Split, Task
from shoal.sim.scores import Ints, Scores, Yardsticks, most_common, scores_of, without_privacy
from shoal.study.sdq import params_of
from shoal.study.spec import Study
from shoal.tables import limit_rows


def params_for(study: Study, *, without_perturbation: bool) -> Params:
    """The parameters of a study that is to be simulated, with or without noise."""
    params = params_of(study)
    return replace(params, epsilon=math.inf) if without_perturbation else params


def facts(params: Params) -> dict[str, Any]:
    """What the parameters say about a run, as plain data."""
    is_tree = params.learner == "tree"
    return {
        "learner": params.learner,
        "depth": params.depth if is_tree else None,
        "choice": params.choice if is_tree and params.variant == "plus" else None,
        "noise": None if params.is_bare else params.noise,
        "n_databases": params.n_databases,
        "max_colluders": params.max_colluders,
        "n_honest": None if params.noise == "two-selected" else params.n_honest,
    }


def yardsticks(params: Params, split: Split) -> Yardsticks:
    """The trivial predictor, the study's kind of learner on the rows themselves, and logistic regression on them.

    Notes
    -----
    A tree is held against ID3 of the same bins and depth: the paper's learner, where sums carry no noise.
    """
    central, name = replace(params, epsilon=math.inf), "naive_bayes"
    if params.learner == "tree":
        central, name = replace(central, variant="paper", noise="all-contribute"), "id3"
    table = Table.of(central, split.asked, split.labels, np.zeros(len(split.labels), np.int64))
    # Where there is no noise, nothing is drawn.
    model = simulate(script_of(central), table, SeededEntropy(0)).model
    return {
        "most_common": most_common(params.n_classes, split.labels, split.unseen_labels),
        name: _scores(model, split),
        "without_privacy": without_privacy(params.schema, split.asked, split.labels, split.unseen, split.unseen_labels),
    }


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run: databases that do not drop out count the rows that they may use."""
    params = task.params
    assert isinstance(params, Params)
    whose = databases_of(params, len(split.labels), split.holders, split.n_holders, task.entropy.spawn("databases"))
    answers = who_answers(params, task)
    used = answers[whose] & is_used(whose, split.people, params.max_rows)
    columns = {name: column[used] for name, column in split.asked.items()}
    table = Table.of(params, columns, split.labels[used], whose[used])
    trained = simulate(script_of(params), table, task.entropy.spawn("answers"), int(answers.sum()))
    learned = tuple(map(len, trained.answers))
    return Outcome(_scores(trained.model, split), int(answers.sum()), learned, trained.model.to_plain(), len(table))


def databases_of(params: Params, n_rows: int, holders: Ints | None, n_holders: int, entropy: Entropy) -> Ints:
    """The database of each row: the one that the table names, or one to which it is dealt.

    Parameters
    ----------
    params
        How many databases the study has.
    n_rows
        How many rows there are.
    holders, n_holders
        ``(n_rows,)`` the database of each, and how many the table names; None where it names none.
    entropy
        By which rows are dealt.

    Raises
    ------
    SpecError
        ``SIM-007``: the table does not name as many databases as the study has.
    """
    if holders is None:
        return deal(n_rows, params.n_databases, entropy)
    if n_holders != params.n_databases:
        raise SpecError(
            "SIM-007",
            f"The table names {counted(n_holders, 'database')}, and the study has n_databases = {params.n_databases}.",
            why="Every database on the roster adds its share of the noise.",
            fix=f"n_databases = {n_holders} under [sdq], or do not say who holds which row, and they are dealt at random.",
        )
    return holders


def who_answers(params: Params, task: Task) -> npt.NDArray[np.bool_]:
    """Which databases do not drop out: all but the task's share of them, rounded up, drawn at random.

    Raises
    ------
    UsageError
        ``SUM-003``: fewer are left than a sum needs.
    """
    n, minimum = params.n_databases, params.minimum
    n_answering = n - math.ceil(round(task.dropout * n, 9))
    if n_answering < minimum:
        why = "The noise is made for that many shares. The others refuse to open it, and what they sent is spent."
        fix = "A smaller --dropout, or a smaller minimum under [participation]."
        if params.noise == "two-selected":
            why = "Two databases add all of the noise, and nobody knows whether one of them is missing."
            fix = 'No --dropout, or noise = "all-contribute" under [sdq].'
        raise UsageError(
            "SUM-003",
            f"With a dropout of {task.dropout}, {n_answering} of {n} databases are left; a sum of fewer than {minimum} is not opened.",
            why=why,
            fix=fix,
        )
    return deal(n, n, task.entropy.spawn("dropout")) < n_answering


def is_used(whose: Ints, people: Ints | None, max_rows: int) -> npt.NDArray[np.bool_]:
    """Which rows the databases use: of each person the first ones, as many as the study allows, in each database.

    Parameters
    ----------
    whose
        ``(n,)`` the database of each row.
    people
        ``(n,)`` the person of each row; None where every row is by itself.
    max_rows
        Most rows of one person.
    """
    rows = np.arange(len(whose))
    if people is None:
        return np.ones(len(rows), bool)
    # To each database a person is another one: it cannot know of the others.
    people_of = whose * (int(people.max(initial=0)) + 1) + people
    return np.isin(rows, limit_rows({"row": rows, "person": people_of}, "person", max_rows)[0]["row"])


def _scores(model: Any, split: Split) -> Scores:
    return scores_of(model.probabilities(split.unseen), model.decide(split.unseen), split.unseen_labels)
