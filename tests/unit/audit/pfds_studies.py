"""Small studies of PFDS, and holders that reveal more than they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shoal.messages.base import Array
from shoal.protocols.pfds.messages import LevelCounts
from shoal.protocols.pfds.paper.peer import PaperPeer
from shoal.protocols.pfds.paper.script import make_node_mechanism
from shoal.protocols.pfds.peer import LocalPeer, SecureSumPeer
from shoal.protocols.pfds.script import make_mechanism
from shoal.study.spec import Study
from shoal.study.validation import parse_study

AGE: dict[str, Any] = {"name": "age", "range": [0, 90], "missing": False}
PAY: dict[str, Any] = {"name": "pay", "range": [100, 900], "missing": False}
WARD: dict[str, Any] = {"name": "ward", "values": ["a", "b"], "missing": False}
TOWN: dict[str, Any] = {"name": "town", "values": ["x", "y", "z"]}


def make_study(epsilon: float, features: list[dict[str, Any]], **more: Any) -> Study:
    """Return a study of two classes among five holders, with changes."""
    settings = {"n_holders": 5, **more.pop("pfds", {})}
    return parse_study(
        {
            "title": "Falls",
            "purpose": "Who falls?",
            "contact": "a@example.org",
            "protocol": "pfds",
            "label": {"name": "falls", "values": ["no", "yes"]},
            "feature": features,
            "privacy": {"epsilon": epsilon},
            "participation": {"minimum": 4, "size": 10_000},
            **more,
            "pfds": settings,
        }
    )


PERSON = {"person": "patient", "max_rows_per_person": 3}
CLASSES = {"name": "falls", "values": ["no", "once", "often"]}
NUMBER = {"name": "falls", "range": [0, 20]}


def paper(epsilon: float, features: list[dict[str, Any]], **more: Any) -> Study:
    return make_study(epsilon, features, variant="paper", **more)


def sums(epsilon: float, features: list[dict[str, Any]], **more: Any) -> Study:
    """Return a study of secure sums with two noise shares."""
    return make_study(epsilon, features, trust="secure-sum", pfds={"max_colluders": 2}, **more)


STUDIES = {
    "paper": paper(4.0, [AGE, PAY, WARD]),
    "paper, thrifty": paper(1.0, [AGE, PAY, WARD]),
    "paper, numbers": paper(12.0, [AGE, PAY, {**PAY, "name": "rent"}], pfds={"n_levels": 2}),
    "paper, categories": paper(4.0, [WARD, TOWN, {**WARD, "name": "0"}]),
    "paper, person": paper(3.0, [WARD, AGE], data=PERSON),
    "paper, number": paper(4.0, [TOWN, AGE], label=NUMBER, pfds={"labelling": "own"}),
    "paper, no projection": paper(2.0, [AGE, PAY], pfds={"projection": False}),
    "local": make_study(2.0, [WARD]),
    "local, three": make_study(3.0, [AGE, WARD, TOWN], label=CLASSES),
    "local, person": make_study(3.0, [AGE, WARD], label=NUMBER, data=PERSON),
    "sums": sums(4.0, [WARD]),
    "sums, person": sums(4.0, [WARD, TOWN], data=PERSON),
    "sums, number": sums(4.0, [AGE, WARD], label=NUMBER),
    "sums, classes": sums(2.0, [WARD], label=CLASSES),
    "gaussian": sums(2.0, [WARD], privacy={"epsilon": 2.0, "delta": 1e-6}),
    "gaussian, classes": sums(2.0, [WARD], label=CLASSES, privacy={"epsilon": 2.0, "delta": 1e-6}),
    "gaussian, number": sums(
        1.0, [AGE, TOWN], label=NUMBER, privacy={"epsilon": 1.0, "delta": 1e-6}
    ),
}


def kinds(*names: str) -> list[str]:
    """Return the studies with names that begin with one of these."""
    return [name for name in STUDIES if name.startswith(names)]


class Sharing(PaperPeer):
    """A holder that answers some questions with other parameters than its price states."""

    asked: tuple[str, ...] = ("split", "leaves", "count")
    times = 2.0

    def answer(self, state, question, entropy):
        if not question.startswith(self.asked):
            return super().answer(state, question, entropy)
        # Prices are not checked twice: they are the honest ones.
        other = PaperPeer(self.params, self.study, self.name, self._points.reveal())
        other.params = replace(self.params, epsilon=self.times * self.params.epsilon)
        return other.answer(state, question, entropy)


class HalfNoise(Sharing):
    """A holder that draws all noise for twice the epsilon that it pays."""


class BareLeaves(Sharing):
    """A holder that adds no noise to its leaves."""

    asked, times = ("leaves",), np.inf


class BareRoot(Sharing):
    """A holder that adds no noise to the number of its rows."""

    asked, times = ("count/1",), np.inf


class Eager(Sharing):
    """A holder that chooses split values at twice the rate."""

    asked = ("split",)


class ReusedDraw(PaperPeer):
    """A holder that uses one draw of noise for the counts of all levels."""

    noise = np.zeros(0, np.int64)

    def answer(self, state, question, entropy):
        if not question.startswith("count"):
            return super().answer(state, question, entropy)
        bare = Sharing(self.params, self.study, self.name, self._points.reveal())
        bare.times = np.inf
        message = bare.answer(state, question, entropy)
        counts = message.counts.expect("int64", message.counts.count)
        more = np.zeros(max(0, counts.size - self.noise.size), np.int64)
        self.noise = np.concatenate(
            [self.noise, make_node_mechanism(self.params).randomise_many(more, entropy)]
        )
        return LevelCounts(
            study=self.study,
            level=message.level,
            counts=Array.from_values(counts + self.noise[: counts.size]),
        )


class FromItsRows(PaperPeer):
    """A holder that makes its data from its true rows, not from its releases."""

    def advance(self, state, entropy):
        bare = Sharing(self.params, self.study, self.name, self._points.reveal())
        bare.times = np.inf
        true = [
            bare.answer(state, question, entropy)
            for question in self.questions
            if not question.startswith("split")
        ]
        other, effects = super().advance(
            state.replace(own=(*state.own[: -len(true)], *true)), entropy
        )
        return state.replace(data=other.data), effects


class Coy(PaperPeer):
    """A holder that shares no data with an even number of rows, as with a unit of one row."""

    def advance(self, state, entropy):
        return super().advance(state, entropy) if len(self._points.reveal()) % 2 else (state, ())


class Again(PaperPeer):
    """A holder that releases its leaves a second time with fresh noise."""

    def __init__(self, params, study, name, points):
        super().__init__(params, study, name, points)
        self._again = f"{self.questions[-1]}/again"

    def price(self, question):
        return super().price("leaves") if question == self._again else super().price(question)

    def answer(self, state, question, entropy):
        return super().answer(state, "leaves" if question == self._again else question, entropy)

    def on_answer_stored(self, state, question, message):
        if question == self._again:
            return state, ()
        state, effects = super().on_answer_stored(state, question, message)
        return (state, effects) if effects else self.ask(state, self._again)


def cheap(peer):
    """Return a subclass of a peer that reserves less in its ledger than it spends."""

    class Cheap(peer):
        def price(self, question):
            return replace(super().price(question), epsilon=0.01, rho=None)

    return Cheap


def shy(peer):
    """Return a subclass of a peer that does not answer with an even number of rows.

    The number is even with a unit of one row.
    """

    class Shy(peer):
        def ask(self, state, question):
            rows = self._rows if isinstance(self, SecureSumPeer | LocalPeer) else self._points
            return (state, ()) if len(rows.reveal()) % 2 == 0 else super().ask(state, question)

    return Shy


class HalfTables(LocalPeer):
    """A holder that draws the noise of its tables for twice the epsilon that it pays."""

    def answer(self, state, question, entropy):
        other = LocalPeer(self.params, self.study, 0, self._rows.reveal())
        other.params = replace(self.params, epsilon=2 * self.params.epsilon)
        return other.answer(state, question, entropy)


class Twice(LocalPeer):
    """A holder that counts each row twice."""

    def __init__(self, params, study, holder, rows):
        super().__init__(params, study, holder, rows.take(np.repeat(np.arange(len(rows)), 2)))


class OtherShares(SecureSumPeer):
    """A holder that draws its shares with other parameters than its price states."""

    def figures(self):
        """Return the changed parameters of its study."""
        return self.params

    def draw_noisy_answer(self, course, rows, entropy):
        counts, question = self.script.count(course, rows), self._find_question(course)
        plan = self.script.budget
        return counts + make_mechanism(
            self.figures(), question, plan.parts[course.step], len(plan.questions)
        ).draw_share(len(counts), entropy)


class HalfShares(OtherShares):
    """A holder that draws its shares for twice the epsilon that it pays."""

    def figures(self):
        return replace(self.params, epsilon=2 * self.params.epsilon)


class ForEveryone(OtherShares):
    """A holder that draws a share as if all holders were present and honest."""

    def figures(self):
        return replace(self.params, minimum=self.params.n_holders, max_colluders=0)


class Careless(SecureSumPeer):
    """A holder that adds no noise to the scores."""

    def draw_noisy_answer(self, course, rows, entropy):
        return (
            self.script.count(course, rows)
            if self._find_question(course) == "calibration"
            else super().draw_noisy_answer(course, rows, entropy)
        )


class Unlimited(SecureSumPeer):
    """A holder that counts each row twice."""

    def draw_noisy_answer(self, course, rows, entropy):
        return super().draw_noisy_answer(course, rows, entropy) + self.script.count(course, rows)
