"""Small studies of SDQ, and databases that reveal more than they should."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.mechanisms.distributed_laplace import DistributedLaplace, DistributedNoisyMax
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.sensitivity import CellCounts
from shoal.protocols.sdq.peer import SDQPeer
from shoal.study.spec import Study
from shoal.study.validation import parse_study

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 90], "bins": [30, 60], "missing": False},
    {"name": "ward", "values": ["a", "b"], "missing": False},
    {"name": "alone", "values": ["no", "yes"], "missing": False},
]


def make_study(
    epsilon: float, *, n: int = 5, minimum: int = 4, max_colluders: int = 2, **more: Any
) -> Study:
    """Return a study of two classes and three features, with two noise shares."""
    settings = {"n_databases": n, "max_colluders": max_colluders, **more.pop("sdq", {})}
    return parse_study(
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
    "two selected": make_study(
        2.0, minimum=5, variant="paper", sdq={"noise": "two-selected", "depth": 1}
    ),
    "local": make_study(2.0, max_colluders=0, variant="paper", trust="local", sdq={"depth": 1}),
}


class OtherNoise(SDQPeer):
    """A database that draws its noise by another rule than its price states."""

    @abstractmethod
    def mechanism(self, part, is_choice):
        """Return the mechanism of the noise."""

    def draw_noisy_answer(self, asked, table, role, entropy):
        drawn = []
        for part in asked.parts:
            mechanism = self.mechanism(part, asked.is_choice)
            if role is None:
                noise = mechanism.draw_share(part.size, entropy)
            else:
                noise = (0, 1, -1)[role] * mechanism.draw_side(part.size, entropy)
            drawn.append(part.count(table) + noise)
        return np.concatenate(drawn)

    def made_for(self, part, is_choice, epsilon, n_honest):
        if is_choice:
            return DistributedNoisyMax(
                epsilon, CountScore(self.params.max_rows), self.params.scope, n_honest
            )
        return DistributedLaplace(
            epsilon, CellCounts(part.n_tables, self.params.max_rows), self.params.scope, n_honest
        )


class HalfNoise(OtherNoise):
    """A database that draws its noise for twice the epsilon that it pays."""

    def mechanism(self, part, is_choice):
        n_honest = 1 if self.params.noise == "two-selected" else self.params.n_honest
        return self.made_for(part, is_choice, 2 * part.epsilon, n_honest)


class ForEveryone(OtherNoise):
    """A database that draws a share as if all databases were present and honest."""

    def mechanism(self, part, is_choice):
        return self.made_for(part, is_choice, part.epsilon, self.params.n_databases)


class SureOfItself(SDQPeer):
    """A database that adds no noise to the scores of candidates."""

    def draw_noisy_answer(self, asked, table, role, entropy):
        return (
            asked.parts[0].count(table)
            if asked.is_choice
            else super().draw_noisy_answer(asked, table, role, entropy)
        )


class Careless(SDQPeer):
    """A database that adds no noise to the first size."""

    def draw_noisy_answer(self, asked, table, role, entropy):
        return (
            asked.parts[0].count(table)
            if asked.question == "sizes/0"
            else super().draw_noisy_answer(asked, table, role, entropy)
        )


class Unlimited(SDQPeer):
    """A database that counts each row twice."""

    def draw_noisy_answer(self, asked, table, role, entropy):
        twice = [
            replace(part, count=lambda table, count=part.count: 2 * count(table))
            for part in asked.parts
        ]
        return super().draw_noisy_answer(replace(asked, parts=tuple(twice)), table, role, entropy)


class Forgetful(SDQPeer):
    """A database that answers repeated questions, each under a different name in its ledger."""

    def _make_round(self, ask):
        asked = super()._make_round(ask)
        return replace(asked, question=f"{asked.question}, {ask.round}")

    def price(self, question):
        return super().price(question.partition(",")[0])


class Cheap(SDQPeer):
    """A database that reserves less in its ledger than it spends."""

    def price(self, question):
        return replace(super().price(question), epsilon=0.01)


class Shy(SDQPeer):
    """A database that uses its rows to decide whether to take part."""

    def on_message(self, state, message, now, entropy):
        rows = self._table.reveal()
        return (
            (state, ())
            if (rows.cells[:, 0] == 0).any()
            else super().on_message(state, message, now, entropy)
        )
