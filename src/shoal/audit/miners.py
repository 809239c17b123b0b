"""A hostile miner of SDQ, the databases that help it, and the two tables that it would tell apart.

It pretends to have learned what leads the course along the unit's own cells, so that every round tells of it, and at the end it asks its
last question again. Its helpers put nothing into the sums, where the miner would only take it away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shoal.entropy import Entropy
from shoal.privacy.events import Event
from shoal.protocols.sdq.messages import Ask
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.script import Answers, Course, Round, Script

_MANY = 1 << 40
"""Rows that the miner pretends to have found with the unit."""


def hostile_courses(script: Script) -> tuple[Course, ...]:
    """The course of every round, and its end, if the unit has the first cell everywhere and the miner follows it to the last level.

    A choice is pretended to fall on the narrowest candidate, the last of equal ones: that is the course which the label prices.
    """
    arities = script.params.arities
    courses: list[Course] = [Course()]
    answers: Answers = ()
    while asked := script.round(courses[-1]):
        made_up = np.arange(asked.size)[:, np.newaxis] if asked.is_choice else np.where(np.arange(asked.size) == 0, _MANY, 0)[np.newaxis]
        following = [script.advance(courses[-1], (*answers, answer)) for answer in made_up]
        chosen = max(range(len(following)), key=lambda i: (-arities[following[i].choices[-1]], i)) if asked.is_choice else 0
        courses, answers = [*courses, following[chosen]], (*answers, made_up[chosen])
    return tuple(courses)


def neighbours(params: Params, path: tuple[int, ...]) -> tuple[Table, Table]:
    """The rows of the unit's database without it, and with it.

    The unit's rows have the first cell everywhere and the first class. In the cells of the attributes of the path up to each choice the
    second class outnumbers theirs, and in the cells of other candidates it does not. So they raise the scores of all candidates but the
    one of the path, as far as scores can be raised. At the first choice that one is as far ahead without them.

    Notes
    -----
    For a set S of attributes, let f(S) be by how much the second class outnumbers the first in the unit's cells of S. It is to be max_rows
    where S is a beginning of the path, and 0 otherwise. f(S) is the sum, over all sets that contain S, of the rows that agree with the
    unit there and nowhere else; these come from f by the inversion of Möbius.
    """
    k, n_features = len(path), len(params.arities)
    cells, labels = [], []
    for agreeing in range(1 << k):
        weight = sum((-1) ** (i - agreeing.bit_count()) for i in range(max(1, agreeing.bit_length()), k + 1))
        # Every feature of a study has a second cell.
        row = np.ones(n_features, np.int64)
        row[[path[i] for i in range(k) if agreeing >> i & 1]] = 0
        cells += [row] * abs(weight) * params.max_rows
        labels += [int(weight > 0)] * abs(weight) * params.max_rows
    without = Table(np.reshape(cells, (-1, n_features)).astype(np.int64), np.array(labels, np.int64))
    unit = np.zeros((params.max_rows, n_features), np.int64)
    return without, Table(np.concatenate([without.cells, unit]), np.concatenate([without.labels, unit[:, 0]]))


def elsewhere(params: Params) -> Table:
    """The rows of every other database: one that has nothing in common with the unit."""
    return Table(np.ones((1, len(params.arities)), np.int64), np.array([1]))


class Pretence(Script):
    """A script whose miner takes no notice of answers.

    Parameters
    ----------
    script
        The study's.
    courses
        The course of every round, and its end.
    """

    def __init__(self, script: Script, courses: tuple[Course, ...]) -> None:
        super().__init__(script.params)
        self.script = script
        self.courses = courses

    @property
    def prices(self) -> Mapping[str, Event]:
        return self.script.prices

    @property
    def dearest(self) -> tuple[tuple[str, int], ...]:
        return self.script.dearest

    def round(self, course: Course) -> Round | None:
        return self.script.round(course)

    def advance(self, course: Course, answers: Answers) -> Course:  # noqa: ARG002
        return self.courses[len(answers)]

    def model(self, course: Course, answers: Answers) -> None:  # noqa: ARG002
        return None


class Helper(SDQPeer):
    """A colluder: puts nothing into the sums, and takes part as often as it is asked, whatever its ledger has seen."""

    def _round(self, ask: Ask) -> Round:
        asked = super()._round(ask)
        return replace(asked, question=f"{asked.question} {ask.round}")

    def price(self, question: str) -> Event:
        return super().price(question.partition(" ")[0])

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:  # noqa: ARG002
        return np.zeros(asked.size, np.int64)
