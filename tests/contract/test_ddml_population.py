"""The two ways of running DDML have one law: real messages between machines, and a simulated population.

A few devices send an update each, many times over, and what comes of it is compared by the Kolmogorov-Smirnov test in some figures: the
model and an instance along fixed directions, how far instances and model have moved, and how far instances lie apart.
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

from ddml_cases import STUDIES, in_turn, make, people
from shoal.entropy import SeededEntropy
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.ddml import population
from shoal.protocols.ddml.blocks import Draws
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.population import Devices, Traffic, simulate
from shoal.protocols.ddml.rows import Rows
from shoal.protocols.ddml.supply import Supply
from statistical.harness import statistical

Figures = npt.NDArray[np.float64]
Run = Callable[[Params, SeededEntropy], Figures]

ALPHA = 1e-9
N_DEVICES, N_ROWS, N_RUNS, N_SIMULATED = 6, 3, 150, 600
IN_TURN = np.arange(N_DEVICES)

ONE = {"n_instances": 1, "n_updates": 1, "merge": "discard"}
"""With one instance, which begins at zero, steps and noise show best."""
KINDS = {
    "closest": replace(STUDIES["closest"], epsilon=16.0, **ONE),
    "gaussian": replace(STUDIES["gaussian"], **ONE),
    "classes": replace(STUDIES["classes"], epsilon=24.0, batch_size=2, **ONE),
    "weight": replace(STUDIES["weight"], epsilon=8.0, **ONE),
    "several": replace(STUDIES["laplace"], epsilon=40.0, n_instances=3, n_updates=1),
    "blend": replace(STUDIES["weight"], epsilon=8.0, n_instances=2, n_updates=1),
}


def figures(instances: npt.NDArray[Any], model: Figures) -> Figures:
    """What is compared; instances that were drawn and replaced by chance are alike, so that the first stands for each."""
    rng = np.random.default_rng(1)
    along = rng.normal(size=(2, instances.shape[1]))
    floats = instances * 2.0**-20
    apart = [np.linalg.norm(one - other) for i, one in enumerate(floats) for other in floats[:i]]
    sizes = [np.linalg.norm(floats[0]), np.linalg.norm(model), np.linalg.norm(floats.mean(axis=0))]
    return np.array([*(along @ floats[0]), *(along @ model.ravel()), *sizes, min(apart, default=0), max(apart, default=0)])


def by_messages(params: Params, entropy: SeededEntropy, run: Callable[..., Any] = in_turn) -> Figures:
    aggregator, peers = make(params, N_DEVICES, n_rows=N_ROWS)
    outcome = run(aggregator, peers, entropy)
    assert not outcome.failed and not outcome.rejected and not outcome.aborted
    learned = outcome.results[AGGREGATOR]
    assert learned.n_merged == N_DEVICES
    return figures(learned.instances, learned.model.weights)


@cache
def devices(params: Params) -> Devices:
    columns, labels = people(params.schema, N_DEVICES * N_ROWS)
    return Devices.of(params, columns, labels, np.repeat(IN_TURN, N_ROWS))


def by_population(params: Params, entropy: SeededEntropy, in_flight: int = 0, **options: Any) -> Figures:
    trained = simulate(params, devices(params), entropy, traffic=Traffic(in_flight, IN_TURN), **options)
    assert trained.n_merged == N_DEVICES or options
    return figures(trained.instances, trained.model.weights)


def sample(run: Run, params: Params, entropy: SeededEntropy, n: int) -> Figures:
    seed = entropy.word()
    return np.array([run(params, SeededEntropy(seed).spawn(i)) for i in range(n)])


def same_law(one: Figures, other: Figures, alpha: float = ALPHA) -> bool:
    """Whether two samples of figures could have one law, at a rate of false alarms of at most alpha in all."""
    return all(stats.ks_2samp(one[:, i], other[:, i]).pvalue >= alpha / one.shape[1] for i in range(one.shape[1]))


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_messages_and_population_have_one_law(kind: str, entropy: SeededEntropy) -> None:
    params = KINDS[kind]
    assert same_law(sample(by_messages, params, entropy, N_RUNS), sample(by_population, params, entropy, N_SIMULATED))


@statistical(alpha=ALPHA)
def test_all_may_draw_before_anyone_answers(entropy: SeededEntropy) -> None:
    """`run_local` hands out an instance to everyone first; so does a population with all others under way."""
    params = KINDS["several"]
    messages = sample(lambda *given: by_messages(*given, run_local), params, entropy, N_RUNS)
    assert same_law(messages, sample(lambda *given: by_population(*given, in_flight=N_DEVICES - 1), params, entropy, N_SIMULATED))
    assert not same_law(messages, sample(by_population, params, entropy, N_SIMULATED)), "a mutant: nobody waits"


# Mutants: each changes the law of the population, and the comparison must notice.


@cache
def honest(kind: str) -> Figures:
    return sample(by_messages, KINDS[kind], SeededEntropy("honest"), N_RUNS)


def is_caught(kind: str, params: Params, **options: Any) -> bool:
    return not same_law(honest(kind), sample(lambda *given: by_population(*given, **options), params, SeededEntropy("mutant"), N_SIMULATED))


@pytest.mark.parametrize("kind", ["closest", "classes", "several"])
def test_another_step_is_caught(kind: str) -> None:
    params = KINDS[kind]
    assert is_caught(kind, replace(params, learning_rate=1.5 * params.rates.learning_rate))


@pytest.mark.parametrize("kind", ["several", "weight", "blend"])
def test_another_budget_is_caught(kind: str) -> None:
    params = KINDS[kind]
    # At the same learning rate: by the rule it would fall with epsilon, and the noise would stay as it is.
    rates = params.rates
    assert is_caught(kind, replace(params, epsilon=params.epsilon / 4, learning_rate=rates.learning_rate, clip=rates.clip))


@pytest.mark.parametrize("kind", ["closest", "classes"])
def test_a_gradient_the_wrong_way_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest(kind)
    true = Rows.gradient
    monkeypatch.setattr(Rows, "gradient", lambda self, *given: -true(self, *given))
    assert is_caught(kind, KINDS[kind])


@pytest.mark.parametrize("strategy", ["same", "average"])
def test_another_strategy_is_caught(strategy: str) -> None:
    assert is_caught("several", KINDS["several"], strategy=strategy)


@pytest.mark.parametrize("kind", ["gaussian"])
def test_noise_that_all_updates_share_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(Supply):
        def take(self, n: int) -> Draws:
            return super().take(n)._replace(offsets=np.zeros(n, np.int64), signs=np.ones(n))

    monkeypatch.setattr(population, "Supply", Shared)
    assert is_caught(kind, KINDS[kind])
