"""PFDS by holders and by the simulated population: the distributions are equal.

An opened sum is the sum of the holders' counts, each with its share of the noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.messages import PFDSScriptState
from shoal.protocols.pfds.params import Ints
from shoal.protocols.pfds.population import draw_sum, simulate
from shoal.protocols.pfds.script import Answers, SecureSumScript
from tests.statistical.harness import catches, statistical
from tests.support.pfds import LABELS, followed, make_params, make_rows, parted

ALPHA = 1e-9
DIGEST = bytes(32)


@pytest.mark.parametrize("label", LABELS)
def test_noiseless_pfds_population_opens_sums_of_holders(label: str) -> None:
    params = make_params(LABELS[label], epsilon=math.inf)
    rows, script = make_rows(params), SecureSumScript(params)
    state, answers = script.initial_state, Answers()
    while script.find_question(state):
        answers = (
            *answers,
            np.sum([script.count(state, own) for own in parted(params, rows)], axis=0),
        )
        state = script.advance(state, answers)
    learned = simulate(params, rows, DIGEST, SeededEntropy(1))
    assert [one.tolist() for one in learned.answers] == [one.tolist() for one in answers]
    assert learned.model.to_plain() == script.build_model(answers).to_plain()


def sum_by_holders(script: SecureSumScript, state: PFDSScriptState, entropy: SeededEntropy) -> Ints:
    """Return the sum of the noise shares of six of eight holders."""
    mechanism = script.find_mechanism(script.questions[state.step])
    assert mechanism is not None
    size = script.compute_size(script.questions[state.step])
    return np.sum(
        [mechanism.draw_share(size, entropy.spawn(holder)) for holder in range(6)], axis=0
    )


def have_equal_distributions(one: Ints, other: Ints) -> bool:
    """Return whether two samples of integers could have equal distributions.

    It is a chi-square test of two rows of cells with enough counts in each.
    """
    cuts = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0, 1, 21)[1:-1]))
    rows = [
        np.bincount(np.searchsorted(cuts, sample), minlength=len(cuts) + 1)
        for sample in (one, other)
    ]
    kept = np.array(rows)[:, np.sum(rows, axis=0) > 0]
    return bool(stats.chi2_contingency(kept).pvalue >= ALPHA)


def draw_samples(
    figures: dict[str, Any], entropy: SeededEntropy, n_answering: int = 6, n_runs: int = 25
) -> tuple[Ints, Ints]:
    """Return the noise of every question by holders and by population, in deviations."""
    params = make_params(minimum=6, max_colluders=1, size=100_000, **figures)
    rows, script = make_rows(params, 400), SecureSumScript(params)
    one, other = [], []
    for state, counted in list(followed(script, rows))[:-1]:
        scale = 20 / 256 / script.compute_deviation(script.questions[state.step])
        for i in range(n_runs):
            by_holders = sum_by_holders(script, state, entropy.spawn("holders", state.step, i))
            opened = draw_sum(
                script, state, rows, n_answering, entropy.spawn("population", state.step, i)
            )
            one.append(np.rint(scale * by_holders))
            other.append(np.rint(scale * (opened - counted)))
    return np.concatenate(one), np.concatenate(other)


@statistical(alpha=2 * ALPHA)
def test_pfds_holders_and_population_have_equal_noise(entropy: SeededEntropy) -> None:
    for figures in ({}, {"delta": 1e-6}):
        assert have_equal_distributions(*draw_samples(figures, SeededEntropy(entropy.word())))
        # A mutant: half of the noise is missing.
        assert catches(
            lambda figures=figures: have_equal_distributions(
                *draw_samples(figures, SeededEntropy(entropy.word()), n_answering=3)
            )
        )
