"""Small studies of DDML, and peers that send more than they should."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.messages.base import Array
from shoal.protocols.ddml.merging import add_step
from shoal.protocols.ddml.messages import read_weights
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.study.spec import Study
from shoal.study.validation import parse_study

FEATURES: list[dict[str, Any]] = [
    {"name": "hour", "range": [0, 24], "missing": False},
    {"name": "topic", "values": ["news", "bill"], "missing": False},
]


def make_study(
    epsilon: float, *, n_updates: int = 1, unit: str = "update", delta: float = 0.0, **more: Any
) -> Study:
    """A study of two classes and three weights."""
    return parse_study(
        {
            "title": "Reminders",
            "purpose": "Which are opened?",
            "contact": "a@example.org",
            "protocol": "ddml",
            "label": {"name": "opened", "values": ["no", "yes"]},
            "feature": FEATURES,
            "privacy": {"epsilon": epsilon, "n_updates": n_updates, "unit": unit, "delta": delta},
            "participation": {"minimum": 100, "size": 10_000},
            **more,
        }
    )


TEXTS = [*FEATURES, {"name": "words", "buckets": 8}]
THREE = {"name": "kind", "values": ["a", "b", "c"]}
NUMBER = {"name": "price", "range": [10, 20]}
STUDIES = {
    "plus": make_study(2.0),
    "paper": make_study(2.0, variant="paper"),
    "weight": make_study(1.0, unit="weight"),
    "delta": make_study(
        64.0,
        delta=1e-2,
        feature=[{"name": f"f{i}", "range": [0, 1], "missing": False} for i in range(199)],
    ),
    "three updates": make_study(3.0, n_updates=3, variant="paper"),
    "crosses": make_study(2.0, ddml={"crosses": [["hour", "topic"]]}),
    "texts": make_study(2.0, feature=TEXTS, ddml={"crosses": [["words", "topic"]]}),
    "classes": make_study(2.0, label=THREE),
    "number": make_study(2.0, label=NUMBER),
    "counts": make_study(2.0, label=NUMBER, ddml={"link": "log"}),
}


class HalfNoise(DDMLPeer):
    """A peer that draws its noise for twice the epsilon that it pays."""

    factor = 2

    def answer(self, state, question, entropy):
        honest, rates, step = self.params, self.params.rates, self._step
        self.params = replace(
            honest,
            epsilon=self.factor * honest.epsilon,
            learning_rate=rates.learning_rate,
            clip=rates.clip,
        )
        self._step = partial(make_step, self.params)
        try:
            return super().answer(state, question, entropy)
        finally:
            self.params, self._step = honest, step


class TenthNoise(HalfNoise):
    """A peer that draws its noise for ten times the epsilon that it pays."""

    factor = 10


class Unclipped(DDMLPeer):
    """A peer that adds the right noise to an unclipped gradient."""

    def answer(self, state, question, entropy):
        honest = super().answer(state, question, entropy)
        step, weights = make_step(self.params), read_weights(state.instance.weights, self.params)
        moved = np.rint(
            -step.scale * self._rows.reveal().draw_batch(entropy).gradient(self.params, weights)
        ).astype(np.int64)
        return honest.replace(
            weights=Array.from_values(add_step(weights, step.noise.randomise_many(moved, entropy)))
        )


class Repetitive(DDMLPeer):
    """A peer that draws its noise once, and uses it for each update."""

    seed = None

    def answer(self, state, question, entropy):
        self.seed = entropy.word() if self.seed is None else self.seed
        return super().answer(state, question, SeededEntropy(self.seed))


class Proud(DDMLPeer):
    """A peer that takes a longer step if its gradient exceeds the clip."""

    def answer(self, state, question, entropy):
        honest = super().answer(state, question, entropy)
        weights = read_weights(state.instance.weights, self.params)
        size = np.linalg.norm(
            self._rows.reveal().draw_batch(entropy).gradient(self.params, weights)
        )
        step = read_weights(honest.weights, self.params).astype(np.int64) - weights
        return honest.replace(
            weights=Array.from_values(
                add_step(weights, step * (10 + (size > self.params.rates.clip)) // 10)
            )
        )


class Shy(DDMLPeer):
    """A peer that uses its label to decide whether to draw again."""

    def on_answer_stored(self, state, question, message):
        state, effects = super().on_answer_stored(state, question, message)
        return state, effects if self._rows.reveal().take(slice(1)).targets[0] else ()


class Eager(DDMLPeer):
    """A peer that continues after its last update, up to four times the number."""

    def __init__(self, study, params, columns, labels):
        super().__init__(
            study,
            replace(params, n_updates=4 * params.n_updates, epsilon=4 * params.epsilon),
            columns,
            labels,
        )


class Cheap(DDMLPeer):
    """A peer that reserves less in its ledger than it spends."""

    def price(self, question):
        return replace(super().price(question), epsilon=0.1)
