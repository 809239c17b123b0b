"""Logistic regression with the 33 known weights of §V-C, and Figure 5: errors of weights.

The paper does not state the distribution of its predictors. Here D is uniform over its range, I
over 0 to 4, and categories over their values. Two million rows are generated and read once for each
update of a device, in a new order each time: weights of greatest likelihood on them have a root
mean square error of .015.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.measure import Measure
from benchmarks.paper.anonml.data import ROOT
from benchmarks.paper.ddml.mnist import ENGINE
from benchmarks.paper.figure import PALETTE, Figure, Line, Panel
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.design_matrix import Floats
from shoal.protocols.ddml.links import predict_means
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import DevicePopulation, simulate
from shoal.study.ddml import build_params
from shoal.study.loader import load_study

TRIALS = 1
N_DEVICES = 2_000_000

# fmt: off
TRUE = np.array([
    0.34, -1.18, 1.05, 1.6, -1.51, 0.72, 1.36, -1.41, -1.67,  # constant, B, E1, E2, D, I
    -1.14, 1.3, 1.72, 0.18, -1.52, 1.72, -1.17,  # B with E1, E2, D, I
    -0.12, -0.53, 1.00, -0.42, -1.64, -1.53, 0.64, 0.48, -0.17, 0.44,  # E1 with E2, D, I
    -0.51, -0.68, 1.65, 0.51, -1.64, 0.57, -0.80,  # E2 with D, I; D with I
])
# fmt: on
"""True weights in the order of the study's crosses, as printed.

The exception is the second list for B and E2, which is read as that of D and E2 (errata D-12).
"""


@dataclass(frozen=True)
class Case:
    """One run: changes to the study, number of passes over the rows, and the target error."""

    name: str
    changes: dict[str, Any]
    n_passes: int
    goal: float | None = None


_BARE: dict[str, Any] = {"epsilon": math.inf, "merge": "discard", "learning_rate": 0.005}
_NOISY: dict[str, Any] = {**_BARE, "epsilon": 5 * math.log(32)}
"""The paper's learning rate. A row is read five times, and its device sends five updates."""
CASES = (
    Case("known_bare_1e7", _BARE, 5),
    Case("known_bare_1e8", _BARE, 50, 0.05),
    Case("known_log32_blend_1e7", {**_NOISY, "merge": "blend", "learning_rate": 0.05}, 5, 0.3),
    Case("known_log32_discard_1e7", _NOISY, 5),
)


@dataclass(frozen=True, eq=False)
class Learned:
    """The weights ``(33,)`` of the mean of the last instances, and of the average over time."""

    last: Floats
    averaged: Floats


def params_for(case: Case, n_devices: int = N_DEVICES) -> DDMLParams:
    """Return the study of `examples/`, with each weight clipped to the paper's [-1, 1]."""
    study = build_params(load_study(ROOT / "examples" / "ddml-known.toml"))
    fixed: dict[str, Any] = {
        "unit": "weight",
        "clip": 1.0,
        "fraction_bits": 24,
        "centred": False,
        "averaging": True,
    }
    return replace(study, size=n_devices, n_updates=case.n_passes, **fixed, **case.changes)


@cache
def devices(n: int = N_DEVICES, seed: int = 5) -> DevicePopulation:
    """Return devices with one synthetic row each."""
    params, rng = params_for(CASES[0], n), np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "B": rng.integers(0, 2, n),
        "E1": rng.integers(0, 3, n),
        "E2": rng.integers(0, 4, n),
    }
    columns |= {"D": 3 * rng.random(n), "I": rng.integers(0, 5, n).astype(np.float64)}
    chances = predict_means("logit", params.design.make_inputs(columns).multiply(TRUE[np.newaxis]))[
        :, 0
    ]
    return DevicePopulation.from_columns(
        params, columns, (rng.random(n) < chances).astype(np.int64)
    )


def learn(case: Case, given: DevicePopulation, seed: int = 0) -> Learned:
    """Return the weights of one run."""
    params = params_for(case, len(given))
    trained = simulate(params, given, SeededEntropy(seed).spawn(case.name), engine=ENGINE)
    return Learned(
        trained.instances.mean(axis=0) * 2.0**-params.fraction_bits, trained.model.weights[0]
    )


def error(learned: Floats) -> float:
    """Return the root mean square distance from the true weights."""
    return float(np.sqrt(np.mean((learned - TRUE) ** 2)))


def measures(seeds: int = 3, only: str = "") -> Iterator[Measure]:
    """Yield the error of the weights in each case, and properties of the rows."""
    if "known_rows".startswith(only):
        rows = devices()
        chances = predict_means("logit", rows.inputs.multiply(TRUE[np.newaxis]))[:, 0]
        yield Measure(
            "ddml", "known_rows_positive", float(rows.targets.mean()), "of rows", "higher"
        )
        yield Measure(
            "ddml",
            "known_rows_best_accuracy",
            float(np.maximum(chances, 1 - chances).mean()),
            "accuracy",
            "higher",
        )
    for case in CASES:
        if case.name.startswith(only):
            runs = [learn(case, devices(), seed) for seed in range(seeds)]
            yield Measure(
                "ddml",
                f"{case.name}_rmse",
                float(np.mean([error(run.last) for run in runs])),
                "weight",
                "lower",
                case.goal,
            )
            averaged = float(np.mean([error(run.averaged) for run in runs]))
            yield Measure(
                "ddml", f"{case.name}_averaged_rmse", averaged, "weight", "lower", case.goal
            )


def figure(name: str, trials: int) -> Figure:
    """Return Figure 5: each learned weight by the true one, the mean over the trials."""
    order = np.argsort(TRUE)
    true = TRUE[order].tolist()
    panels = []
    for case in CASES[1:]:
        runs = [learn(case, devices(), seed) for seed in range(trials)]
        lines = [
            Line("true", true, true, "dashed", PALETTE["black"]),
            Line(
                "learned, last instances",
                true,
                np.mean([run.last for run in runs], axis=0)[order].tolist(),
                "points",
                PALETTE["orange"],
            ),
            Line(
                "learned, averaged",
                true,
                np.mean([run.averaged for run in runs], axis=0)[order].tolist(),
                "points",
                PALETTE["blue"],
            ),
        ]
        panels.append(Panel(_title(case), "true weight", "learned weight", lines))
    return Figure(name, panels, columns=3)


def _title(case: Case) -> str:
    params = params_for(case)
    noise = "no noise" if params.is_noiseless else "log 32 per weight"
    return f"{params.merge}, {noise}, {params.n_expected:,} updates"
