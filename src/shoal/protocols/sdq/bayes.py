"""Naive Bayes by one secure sum: the table of every attribute with the label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import numpy as np

from shoal.privacy.events import Event
from shoal.privacy.rounding import share
from shoal.protocols.anonml.model import AdditiveModel
from shoal.protocols.sdq.counting import table_counts
from shoal.protocols.sdq.growth import impossible
from shoal.protocols.sdq.labelling import Floats, class_shares, likelihoods
from shoal.protocols.sdq.noise import deviation_of, price_of
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.script import Answers, Course, Part, Round, Script

TABLES = "tables"
"""The question for the tables of all attributes."""


def tables_round(params: Params, epsilon: float) -> Round:
    """Ask for the table of every attribute with the label; a row counts once in each of them."""

    def count(table: Table) -> Ints:
        return np.concatenate([table_counts(table, [j], params.arities, params.n_classes) for j in range(len(params.arities))])

    return Round(TABLES, (Part(count, sum(params.arities) * params.n_classes, epsilon, len(params.arities)),))


def price_of_tables(params: Params, epsilon: float) -> Event:
    """What they cost one unit."""
    return price_of(params, epsilon, len(params.arities)).reading(*params.columns)


def read_tables(params: Params, noisy_sums: Ints, epsilon: float) -> tuple[Floats, list[Floats]]:
    """Shares of the classes, and P(cell | class) of every attribute, by the sums of a `tables_round`.

    Notes
    -----
    Every table has counted the classes; the sum over its cells has their noise, so the fewer the better: tables weigh by 1 / cells.
    """
    tables = np.split(noisy_sums.reshape(-1, params.n_classes).astype(np.float64), np.cumsum(params.arities)[:-1])
    deviation = deviation_of(params, epsilon, len(params.arities))
    weights = 1 / np.array(params.arities)
    classes = np.average([table.sum(axis=0) for table in tables], axis=0, weights=weights)
    shares = class_shares(classes, deviation / math.sqrt(weights.sum()))
    return shares, [likelihoods(table, deviation) for table in tables]


class BayesScript(Script):
    """Learner ``naive-bayes``.

    Parameters
    ----------
    params
        The public figures of the study.

    Privacy
    -------
    The scope of the parameters; B for the one round.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Categorical(name, ["a", "b"]) for name in "xyz"], label=Categorical("ill", ["no", "yes"]))
    >>> script = BayesScript(Params(schema, epsilon=0.1, size=1000, learner="naive-bayes"))
    >>> script.round(Course()).size, {question: event.epsilon for question, event in script.prices.items()}
    (18, {'tables': 0.1})
    """

    @property
    def _epsilon(self) -> float:
        return math.inf if self.params.is_bare else share(self.params.epsilon, Fraction(1))

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        return {TABLES: price_of_tables(self.params, self._epsilon)}

    @property
    def dearest(self) -> tuple[tuple[str, int], ...]:
        return ((TABLES, 1),)

    def round(self, course: Course) -> Round | None:
        if course not in (Course(), Course(step=1)):
            raise impossible("there is one round, and nothing to decide")
        return None if course.step else tables_round(self.params, self._epsilon)

    def advance(self, course: Course, answers: Answers) -> Course:
        return course.replace(step=course.step + 1)

    def model(self, course: Course, answers: Answers) -> AdditiveModel:
        shares, given = read_tables(self.params, answers[0], self._epsilon)
        scores = tuple(np.log(one / (one @ shares)[:, np.newaxis]).T for one in given)
        return AdditiveModel(self.params.schema, shares, scores)
