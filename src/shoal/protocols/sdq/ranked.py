"""The improved learner by secure sums alone, for when too many may collude to choose jointly: rank the attributes by noisy tables of each.

========  =================================================================================================================
question  what is asked
========  =================================================================================================================
tables    the table of every attribute with the label; the miner ranks the attributes by what they tell of it
table     rows of each class in every joint cell of the best attributes
========  =================================================================================================================

Where the noise is large, half of the budget ranks badly and the other half buys little. Then the tables get all of it, and a tree of
their naive Bayes is what is learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import numpy as np

from shoal.privacy.events import Event
from shoal.privacy.rounding import share
from shoal.protocols.sdq.bayes import TABLES, price_of_tables, read_tables, tables_round
from shoal.protocols.sdq.counting import table_counts
from shoal.protocols.sdq.growth import impossible
from shoal.protocols.sdq.labelling import Floats, level_tree, naive_tree, spread
from shoal.protocols.sdq.model import Tree
from shoal.protocols.sdq.noise import deviation_of, price_of
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.plus import candidates, most_cells
from shoal.protocols.sdq.script import Answers, Course, Part, Round, Script

_FOR_TABLES = Fraction(1, 2)
_ROWS_OF_A_COUNT = 20.0
"""Rows behind a count of a table, on average, in standard deviations of its noise, from which on a joint table pays."""
_MOST_LEAVES = 1 << 14
"""Leaves of a tree of naive Bayes alone, whose cells cost nothing."""


def information(shares: Floats, given: Floats) -> float:
    """What an attribute tells of the class, in nats, by the shares of the classes, ``(L,)``, and P(cell | class), ``(cells, L)``."""
    joint = given * shares
    return float((joint * np.log(given / joint.sum(axis=1, keepdims=True))).sum())


class RankedScript(Script):
    """Variant ``plus``, with splits chosen from sums.

    Parameters
    ----------
    params
        The public figures of the study.

    Notes
    -----
    The attributes are taken in order of their mutual information with the label, as long as their joint cells are not too many. The cells
    back off to the naive Bayes of the tables. Constants were chosen as those of `labelling`.

    Privacy
    -------
    The scope of the parameters; B for the tables, or B / 2 for them and B / 2 for the joint table.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Categorical(name, ["a", "b"]) for name in "xyz"], label=Categorical("ill", ["no", "yes"]))
    >>> [RankedScript(Params(schema, epsilon, size=1000, choice="sums")).dearest for epsilon in (0.1, 1.0)]
    [(('tables', 1),), (('tables', 1), ('table', 1))]
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        n_tables = len(params.arities)
        rows = params.size * n_tables / (sum(params.arities) * params.n_classes)
        self.has_table = rows >= _ROWS_OF_A_COUNT * spread(deviation_of(params, self._part(Fraction(1)), n_tables))
        self.epsilon_tables = self._part(_FOR_TABLES if self.has_table else Fraction(1))
        self.epsilon_table = self._part(1 - _FOR_TABLES)
        self.n_cells = most_cells(params, self.epsilon_table) if self.has_table else _MOST_LEAVES

    def _part(self, part: Fraction) -> float:
        return math.inf if self.params.is_bare else share(self.params.epsilon, part)

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        prices = {TABLES: price_of_tables(self.params, self.epsilon_tables)}
        if self.has_table:
            prices["table"] = price_of(self.params, self.epsilon_table).reading(*self.params.columns)
        return prices

    @property
    def dearest(self) -> tuple[tuple[str, int], ...]:
        return tuple((question, 1) for question in self.prices)

    def round(self, course: Course) -> Round | None:
        self._check(course)
        if course.step == 0:
            return tables_round(self.params, self.epsilon_tables)
        if course.step == 1 and self.has_table:
            arities, n_classes, path = self.params.arities, self.params.n_classes, course.choices
            size = math.prod(arities[attribute] for attribute in path) * n_classes
            return Round("table", (Part(lambda table: table_counts(table, path, arities, n_classes), size, self.epsilon_table),))
        return None

    def _check(self, course: Course) -> None:
        if course.leaves or not 0 <= course.step <= 1 + self.has_table:
            raise impossible("it has more steps than the study")
        for level, attribute in enumerate(course.choices):
            if attribute not in candidates(self.params, course.choices[:level], self.n_cells):
                raise impossible("an attribute was chosen that does not fit")
        # Whatever the ranking, attributes are taken until none fits any more.
        if course.choices if course.step == 0 else candidates(self.params, course.choices, self.n_cells):
            raise impossible("its choices do not fit its step")

    def advance(self, course: Course, answers: Answers) -> Course:
        choices = course.choices if course.step else self._ranked(answers)
        return course.replace(step=course.step + 1, choices=choices)

    def _ranked(self, answers: Answers) -> tuple[int, ...]:
        shares, given = read_tables(self.params, answers[0], self.epsilon_tables)
        worth = [information(shares, one) for one in given]
        path: tuple[int, ...] = ()
        while left := candidates(self.params, path, self.n_cells):
            path = (*path, max(left, key=worth.__getitem__))
        return path

    def model(self, course: Course, answers: Answers) -> Tree:
        shares, given = read_tables(self.params, answers[0], self.epsilon_tables)
        chosen = [given[attribute] for attribute in course.choices]
        if not self.has_table:
            return naive_tree(self.params.schema, course.choices, shares, chosen)
        joint = answers[1].reshape(-1, self.params.n_classes).astype(np.float64)
        return level_tree(self.params.schema, course.choices, joint, deviation_of(self.params, self.epsilon_table), shares, chosen)
