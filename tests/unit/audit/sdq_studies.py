"""Small studies of SDQ, and databases that reveal more than they should."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.sensitivity import Histogram
from shoal.mechanisms.shares import SharedLaplace, SharedMax
from shoal.protocols.sdq.peer import SDQPeer
from shoal.study.spec import Study

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 90], "bins": [30, 60], "missing": False},
    {"name": "ward", "values": ["a", "b"], "missing": False},
    {"name": "alone", "values": ["no", "yes"], "missing": False},
]


def make_study(epsilon: float, *, n: int = 5, minimum: int = 4, max_colluders: int = 2, **more: Any) -> Study:
    """A study of two classes and three features; two shares make the noise."""
    settings = {"n_databases": n, "max_colluders": max_colluders, **more.pop("sdq", {})}
    return Study.model_validate(
        {
            "title": "Falls",
            "purpose": "Who falls?",
            "contact": "a@example.org",
            "protocol": "sdq",
            "label": {"name": "falls", "values": ["no", "yes"]},
            "feature": FEATURES,
            "privacy": {"epsilon": epsilon},
            "participation": {"minimum": minimum, "size": 10_000},
            "sdq": settings,
            **more,
        }
    )


PERSON = {"person": "patient", "max_rows_per_person": 3}
STUDIES = {
    "plus": make_study(2.0),
    "nobody missing": make_study(2.0, minimum=5),
    "three missing": make_study(2.0, n=9, minimum=6, max_colluders=1),
    "person": make_study(2.0, data=PERSON),
    "sums": make_study(2.0, sdq={"choice": "sums"}),
    "bayes": make_study(2.0, sdq={"learner": "naive-bayes"}),
    "paper": make_study(2.0, variant="paper", sdq={"depth": 2}),
    "paper, person": make_study(2.0, variant="paper", data=PERSON),
    "two selected": make_study(2.0, minimum=5, variant="paper", sdq={"noise": "two-selected", "depth": 1}),
    "local": make_study(2.0, max_colluders=0, variant="paper", trust="local", sdq={"depth": 1}),
}


class OtherNoise(SDQPeer):
    """Draws its part of the noise by another rule than its price says."""

    @abstractmethod
    def mechanism(self, part, is_choice):
        """What the noise is drawn from."""

    def noisy(self, asked, table, role, entropy):
        drawn = []
        for part in asked.parts:
            mechanism = self.mechanism(part, asked.is_choice)
            if role is None:
                noise = mechanism.share(part.size, entropy)
            else:
                noise = (0, 1, -1)[role] * mechanism.side(part.size, entropy)
            drawn.append(part.count(table) + noise)
        return np.concatenate(drawn)

    def made_for(self, part, is_choice, epsilon, n_honest):
        if is_choice:
            return SharedMax(epsilon, CountScore(self.params.max_rows), self.params.scope, n_honest)
        return SharedLaplace(epsilon, Histogram(part.n_tables, self.params.max_rows), self.params.scope, n_honest)


class HalfNoise(OtherNoise):
    """Draws its noise for twice the epsilon that it pays."""

    def mechanism(self, part, is_choice):
        n_honest = 1 if self.params.noise == "two-selected" else self.params.n_honest
        return self.made_for(part, is_choice, 2 * part.epsilon, n_honest)


class ForEveryone(OtherNoise):
    """Draws a share as if every database's were in the sum and known to nobody."""

    def mechanism(self, part, is_choice):
        return self.made_for(part, is_choice, part.epsilon, self.params.n_databases)


class SureOfItself(SDQPeer):
    """Adds no noise to the scores of candidates."""

    def noisy(self, asked, table, role, entropy):
        return asked.parts[0].count(table) if asked.is_choice else super().noisy(asked, table, role, entropy)


class Careless(SDQPeer):
    """Adds no noise to the first size."""

    def noisy(self, asked, table, role, entropy):
        return asked.parts[0].count(table) if asked.question == "sizes/0" else super().noisy(asked, table, role, entropy)


class Unlimited(SDQPeer):
    """Counts every row twice."""

    def noisy(self, asked, table, role, entropy):
        twice = [replace(part, count=lambda table, count=part.count: 2 * count(table)) for part in asked.parts]
        return super().noisy(replace(asked, parts=tuple(twice)), table, role, entropy)


class Forgetful(SDQPeer):
    """Answers as often as it is asked; its ledger knows each answer by a name of its own."""

    def _round(self, ask):
        asked = super()._round(ask)
        return replace(asked, question=f"{asked.question}, {ask.round}")

    def price(self, question):
        return super().price(question.partition(",")[0])


class Cheap(SDQPeer):
    """Tells its ledger less than it spends."""

    def price(self, question):
        return replace(super().price(question), epsilon=0.01)


class Shy(SDQPeer):
    """Looks at its rows before it takes part."""

    def received(self, state, message, now, entropy):
        rows = self._table.reveal()
        return (state, ()) if (rows.cells[:, 0] == 0).any() else super().received(state, message, now, entropy)
