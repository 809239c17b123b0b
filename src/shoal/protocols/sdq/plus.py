"""The improved learner: choose one attribute for each level of a tree, then ask for one joint table of those that were chosen.

==========  ===================================================================================================================
question    what is asked
==========  ===================================================================================================================
choice/i    which attribute is best next, by noisy scores that nobody sees; where one attribute is left, it is not asked
table       rows of each class in every joint cell of the chosen attributes, with all that the choices leave of the budget
==========  ===================================================================================================================

How many cells and choices there are follows from the declared size and the noise, never from the data. What each question costs is the
same on every course, so that no miner, whichever courses it makes up, can ask for more than the budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from shoal.privacy.events import Event
from shoal.privacy.rounding import share
from shoal.protocols.sdq.counting import local_scores, table_counts
from shoal.protocols.sdq.growth import MAX_COUNTS, impossible
from shoal.protocols.sdq.labelling import class_shares, level_tree, marginal_likelihoods, spread
from shoal.protocols.sdq.model import Tree
from shoal.protocols.sdq.noise import deviation_of, price_of, price_of_choice
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.script import Answers, Course, Part, Round, Script

_FOR_CHOICES = Fraction(35, 100)
"""What all choices together cost, of the whole budget."""
_ROWS_OF_A_CELL = 3.4
"""Rows of a joint cell, all classes, on average, in standard deviations of the noise on one count."""
_LEVELS_SPARED = 0.4
"""By how much fewer levels are paid for than would fill the cells: fewer choices are surer ones."""


def most_cells(params: Params, epsilon: float) -> int:
    """Most joint cells of a table at this price: a cell should have some rows for each standard deviation of its noise.

    Notes
    -----
    At least as many as the smallest attribute has, so that something can be learned; and no more counts than a round may have.
    """
    worthwhile = int(params.size / (_ROWS_OF_A_CELL * spread(deviation_of(params, epsilon))))
    return min(max(worthwhile, min(_useful(params), default=1)), MAX_COUNTS // params.n_classes)


def candidates(params: Params, path: Sequence[int], n_cells: int) -> tuple[int, ...]:
    """The attributes that may come next in a table of at most so many cells, none of them useless."""
    if len(path) >= params.depth:
        return ()
    room = n_cells // math.prod(params.arities[attribute] for attribute in path)
    return tuple(j for j, arity in enumerate(params.arities) if 1 < arity <= room and j not in path)


def _useful(params: Params) -> list[int]:
    """Cells of the attributes with more than one, in order of size."""
    return sorted(arity for arity in params.arities if arity > 1)


class PlusScript(Script):
    """Variant ``plus``, with splits chosen jointly.

    Parameters
    ----------
    params
        The public figures of the study.

    Notes
    -----
    A choice's score is how many rows the local majority of their cell would predict, summed over databases: one row more raises each score
    by 0 or 1, so one-sided noise without a factor 2 does (`SharedMax`). Candidates whose cells would be too many are left out. The tree
    splits on the same attribute everywhere in a level, and all its counts are sums of the one table.

    The three constants were chosen with those of `labelling`, on development rows only: three quarters of Nursery, Adult, Bank Marketing,
    Phishing Websites and a MOOC's drop-outs, and four random decision lists.

    Ref: SDQ Algorithm 3, from which it departs; Friedman and Schuster 2010 for the score; errata S-09.

    Privacy
    -------
    The scope of the parameters. Each choice costs an equal part of 0.35 B, and the table what the most choices leave: B in all. All
    questions together cost B, so that it does not matter in which order or on which courses they are asked.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Categorical(name, ["a", "b"]) for name in "xyz"], label=Categorical("ill", ["no", "yes"]))
    >>> script = PlusScript(Params(schema, epsilon=0.1, size=10_000))
    >>> script.round(Course()).question, script.dearest, script.prices["table"].epsilon
    ('choice/0', (('choice/0', 2), ('table', 1)), 0.076666666666)
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.n_cells = most_cells(params, self._part(1 - _FOR_CHOICES))
        self.n_levels = self._most_levels()
        self.n_choices = self._most_choices()

    def _part(self, part: Fraction) -> float:
        return math.inf if self.params.is_bare else share(self.params.epsilon, part)

    def _most_levels(self) -> int:
        """Levels that attributes of usual size would fill the cells with; what a narrower attribute leaves over stays empty."""
        arities = _useful(self.params)
        usual = arities[: max(3, len(arities) * 2 // 3)]
        if not usual:
            return 1
        level = math.fsum(map(math.log, usual)) / len(usual)
        return max(1, min(self.params.depth, len(arities), int(math.log(self.n_cells) / level - _LEVELS_SPARED)))

    def _most_choices(self) -> int:
        """Choices on the course that takes the smallest attribute each time.

        Notes
        -----
        No course has more. Where another one of i attributes leaves room for two more, x <= y, this one does too: of those i + 2, two are
        not among the i smallest; x and y have room here, since the i smallest have the least product; and s, taken in place of a
        smaller y that is among them, has room because i - 1 others than y and s have at least the product of the i smallest without y.
        """
        chosen: tuple[int, ...] = ()
        while left := self._follow(chosen)[1]:
            chosen = (*chosen, min(left, key=lambda attribute: self.params.arities[attribute]))
        return len(chosen)

    @property
    def _epsilon_of_choice(self) -> float:
        return self._part(_FOR_CHOICES / self.n_levels)

    @property
    def _epsilon_of_table(self) -> float:
        return self._part(1 - self.n_choices * _FOR_CHOICES / self.n_levels)

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        prices = {f"choice/{i}": price_of_choice(self.params, self._epsilon_of_choice) for i in range(self.n_choices)}
        prices["table"] = price_of(self.params, self._epsilon_of_table)
        return {question: event.reading(*self.params.columns) for question, event in prices.items()}

    @property
    def dearest(self) -> tuple[tuple[str, int], ...]:
        choices = (("choice/0", self.n_choices),) if self.n_choices else ()
        return (*choices, ("table", 1))

    def _follow(self, chosen: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """The attributes of all levels that these choices lead to, those without a choice included, and who stands for the next choice."""
        path: list[int] = []
        n_followed = 0
        while len(path) < self.n_levels and (left := candidates(self.params, path, self.n_cells)):
            if len(left) == 1:
                path.append(left[0])
                continue
            if n_followed == len(chosen):
                return path, left
            if chosen[n_followed] not in left:
                raise impossible("an attribute was chosen that did not stand for choice")
            path.append(chosen[n_followed])
            n_followed += 1
        if n_followed < len(chosen):
            raise impossible("more was chosen than there are choices")
        return path, ()

    def _at(self, course: Course) -> tuple[list[int], tuple[int, ...], bool]:
        """As `_follow`, and whether the table has been asked for too."""
        path, left = self._follow(course.choices)
        is_done = course.step == len(course.choices) + 1
        if course.leaves or course.step not in (len(course.choices), len(course.choices) + 1) or (is_done and left):
            raise impossible("its choices do not fit its step")
        return path, left, is_done

    def round(self, course: Course) -> Round | None:
        path, left, is_done = self._at(course)
        arities, n_classes = self.params.arities, self.params.n_classes
        if is_done:
            return None
        if left:
            part = Part(lambda table: local_scores(table, path, left, arities, n_classes), len(left), self._epsilon_of_choice)
            return Round(f"choice/{len(course.choices)}", (part,), is_choice=True)
        size = math.prod(arities[attribute] for attribute in path) * n_classes
        part = Part(lambda table: table_counts(table, path, arities, n_classes), size, self._epsilon_of_table)
        return Round("table", (part,))

    def advance(self, course: Course, answers: Answers) -> Course:
        _, left, _ = self._at(course)
        chosen = (left[int(answers[-1].item())],) if left else ()
        return course.replace(step=course.step + 1, choices=(*course.choices, *chosen))

    def model(self, course: Course, answers: Answers) -> Tree:
        path, _, _ = self._at(course)
        joint = answers[-1].reshape(-1, self.params.n_classes).astype(np.float64)
        deviation = deviation_of(self.params, self._epsilon_of_table)
        shares = class_shares(joint.sum(axis=0), deviation * math.sqrt(len(joint)))
        given = marginal_likelihoods(joint, [self.params.arities[attribute] for attribute in path], deviation)
        return level_tree(self.params.schema, path, joint, deviation, shares, given)
