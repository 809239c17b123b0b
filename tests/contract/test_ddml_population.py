"""DDML by messages and by the simulated population: the distributions are equal.

A few devices send one update each, in many runs. The results are compared by the Kolmogorov-Smirnov
test in some figures: the model and an instance along fixed directions, how far instances and model
have moved, and the distance between instances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from shoal.entropy import SeededEntropy
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.ddml import population
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import TrainingRows
from shoal.protocols.ddml.population import DevicePopulation, Traffic, simulate
from shoal.protocols.ddml.population.arrays import NoiseDraws
from shoal.protocols.ddml.population.noise import NoiseStream
from tests.statistical.harness import statistical
from tests.support.ddml import STUDIES, in_turn, make, people

Figures = npt.NDArray[np.float64]
Run = Callable[[DDMLParams, SeededEntropy], Figures]

ALPHA = 1e-9
N_DEVICES, N_ROWS, N_RUNS, N_SIMULATED = 6, 3, 150, 600
IN_TURN = np.arange(N_DEVICES)

ONE = {"n_instances": 1, "n_updates": 1, "merge": "discard"}
"""One instance, which begins at zero, shows steps and noise best."""
KINDS = {
    "closest": replace(STUDIES["closest"], epsilon=16.0, **ONE),
    "gaussian": replace(STUDIES["gaussian"], **ONE),
    "classes": replace(STUDIES["classes"], epsilon=24.0, batch_size=2, **ONE),
    "weight": replace(STUDIES["weight"], epsilon=8.0, **ONE),
    "several": replace(STUDIES["laplace"], epsilon=40.0, n_instances=3, n_updates=1),
    "blend": replace(STUDIES["weight"], epsilon=8.0, n_instances=2, n_updates=1),
}


def compute_figures(instances: npt.NDArray[Any], model: Figures) -> Figures:
    """Return the figures to compare.

    Instances are drawn and replaced at random and so have equal distributions; the first represents
    each.
    """
    rng = np.random.default_rng(1)
    along = rng.normal(size=(2, instances.shape[1]))
    floats = instances * 2.0**-20
    apart = [np.linalg.norm(one - other) for i, one in enumerate(floats) for other in floats[:i]]
    sizes = [np.linalg.norm(floats[0]), np.linalg.norm(model), np.linalg.norm(floats.mean(axis=0))]
    return np.array(
        [
            *(along @ floats[0]),
            *(along @ model.ravel()),
            *sizes,
            min(apart, default=0),
            max(apart, default=0),
        ]
    )


def run_by_messages(
    params: DDMLParams, entropy: SeededEntropy, run: Callable[..., Any] = in_turn
) -> Figures:
    aggregator, peers = make(params, N_DEVICES, n_rows=N_ROWS)
    outcome = run(aggregator, peers, entropy)
    assert not outcome.failed and not outcome.rejected and not outcome.aborted
    learned = outcome.results[AGGREGATOR]
    assert learned.n_merged == N_DEVICES
    return compute_figures(learned.instances, learned.model.weights)


@cache
def make_devices(params: DDMLParams) -> DevicePopulation:
    columns, labels = people(params.schema, N_DEVICES * N_ROWS)
    return DevicePopulation.from_columns(params, columns, labels, np.repeat(IN_TURN, N_ROWS))


def run_by_population(
    params: DDMLParams, entropy: SeededEntropy, in_flight: int = 0, **options: Any
) -> Figures:
    trained = simulate(
        params, make_devices(params), entropy, traffic=Traffic(in_flight, IN_TURN), **options
    )
    assert trained.n_merged == N_DEVICES or options
    return compute_figures(trained.instances, trained.model.weights)


def sample(run: Run, params: DDMLParams, entropy: SeededEntropy, n: int) -> Figures:
    seed = entropy.word()
    return np.array([run(params, SeededEntropy(seed).spawn(i)) for i in range(n)])


def have_equal_distributions(one: Figures, other: Figures, alpha: float = ALPHA) -> bool:
    """Return whether two samples of figures could have equal distributions.

    The false-positive rate is at most alpha in all.
    """
    return all(
        stats.ks_2samp(one[:, i], other[:, i]).pvalue >= alpha / one.shape[1]
        for i in range(one.shape[1])
    )


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_ddml_messages_and_population_have_equal_distributions(
    kind: str, entropy: SeededEntropy
) -> None:
    params = KINDS[kind]
    assert have_equal_distributions(
        sample(run_by_messages, params, entropy, N_RUNS),
        sample(run_by_population, params, entropy, N_SIMULATED),
    )


@statistical(alpha=ALPHA)
def test_ddml_population_with_all_in_flight_matches_run_local(entropy: SeededEntropy) -> None:
    """Compare runs in which every device draws before the first update arrives.

    `run_local` gives an instance to every device first; so does a population with all other updates
    in flight.
    """
    params = KINDS["several"]
    messages = sample(lambda *given: run_by_messages(*given, run_local), params, entropy, N_RUNS)
    assert have_equal_distributions(
        messages,
        sample(
            lambda *given: run_by_population(*given, in_flight=N_DEVICES - 1),
            params,
            entropy,
            N_SIMULATED,
        ),
    )
    assert not have_equal_distributions(
        messages, sample(run_by_population, params, entropy, N_SIMULATED)
    ), "a mutant: no update is in flight"


# Mutants: each changes the distribution of the population, and the comparison must reject it.


@cache
def sample_honest_runs(kind: str) -> Figures:
    return sample(run_by_messages, KINDS[kind], SeededEntropy("honest"), N_RUNS)


def is_caught(kind: str, params: DDMLParams, **options: Any) -> bool:
    return not have_equal_distributions(
        sample_honest_runs(kind),
        sample(
            lambda *given: run_by_population(*given, **options),
            params,
            SeededEntropy("mutant"),
            N_SIMULATED,
        ),
    )


@pytest.mark.parametrize("kind", ["closest", "classes", "several"])
def test_comparison_catches_other_step(kind: str) -> None:
    params = KINDS[kind]
    assert is_caught(kind, replace(params, learning_rate=1.5 * params.rates.learning_rate))


@pytest.mark.parametrize("kind", ["several", "weight", "blend"])
def test_comparison_catches_other_budget(kind: str) -> None:
    params = KINDS[kind]
    # The learning rate is the same: by the rule it would fall with epsilon, and the noise would not
    # change.
    rates = params.rates
    assert is_caught(
        kind,
        replace(
            params, epsilon=params.epsilon / 4, learning_rate=rates.learning_rate, clip=rates.clip
        ),
    )


@pytest.mark.parametrize("kind", ["closest", "classes"])
def test_comparison_catches_negated_gradient(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_honest_runs(kind)
    true = TrainingRows.gradient
    monkeypatch.setattr(TrainingRows, "gradient", lambda self, *given: -true(self, *given))
    assert is_caught(kind, KINDS[kind])


@pytest.mark.parametrize("strategy", ["same", "average"])
def test_comparison_catches_other_merge_strategy(strategy: str) -> None:
    assert is_caught("several", KINDS["several"], strategy=strategy)


@pytest.mark.parametrize("kind", ["gaussian"])
def test_comparison_catches_shared_noise(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(NoiseStream):
        def take(self, n: int) -> NoiseDraws:
            return super().take(n)._replace(offsets=np.zeros(n, np.int64), signs=np.ones(n))

    monkeypatch.setattr(population, "NoiseStream", Shared)
    assert is_caught(kind, KINDS[kind])
