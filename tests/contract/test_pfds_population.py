"""A simulated population has the law of its holders: what is opened is the sum of what each counts, with its share of the noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pfds_sums import LABELS, followed, params_of, parted, rows_of
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.params import Ints
from shoal.protocols.pfds.population import answer, simulate
from shoal.protocols.pfds.sums import Answers, Course, SumScript
from statistical.harness import catches, statistical

ALPHA = 1e-9
DIGEST = bytes(32)


@pytest.mark.parametrize("label", LABELS)
def test_without_noise_the_population_opens_the_sums_of_its_holders(label: str) -> None:
    params = params_of(LABELS[label], epsilon=math.inf)
    rows, script = rows_of(params), SumScript(params)
    course, answers = script.start, Answers()
    while script.question(course):
        answers = (*answers, np.sum([script.count(course, own) for own in parted(params, rows)], axis=0))
        course = script.advance(course, answers)
    learned = simulate(params, rows, DIGEST, SeededEntropy(1))
    assert [one.tolist() for one in learned.answers] == [one.tolist() for one in answers]
    assert learned.model.to_plain() == script.model(answers).to_plain()


def by_holders(script: SumScript, course: Course, entropy: SeededEntropy) -> Ints:
    """The sum of the shares of noise of six of eight holders."""
    mechanism = script.mechanism(script.questions[course.step])
    assert mechanism is not None
    size = script.size(script.questions[course.step])
    return np.sum([mechanism.share(size, entropy.spawn(holder)) for holder in range(6)], axis=0)


def same_law(one: Ints, other: Ints) -> bool:
    """Whether two samples of whole numbers could have one law, by a chi-square test of two rows of cells with enough in each."""
    cuts = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0, 1, 21)[1:-1]))
    rows = [np.bincount(np.searchsorted(cuts, sample), minlength=len(cuts) + 1) for sample in (one, other)]
    kept = np.array(rows)[:, np.sum(rows, axis=0) > 0]
    return bool(stats.chi2_contingency(kept).pvalue >= ALPHA)


def samples(figures: dict[str, Any], entropy: SeededEntropy, n_answering: int = 6, n_runs: int = 25) -> tuple[Ints, Ints]:
    """The noise of every question by holders and by the population, in units of its deviation."""
    params = params_of(minimum=6, max_colluders=1, size=100_000, **figures)
    rows, script = rows_of(params, 400), SumScript(params)
    one, other = [], []
    for course, counted in list(followed(script, rows))[:-1]:
        scale = 20 / 256 / script.deviation(script.questions[course.step])
        for i in range(n_runs):
            put_in = by_holders(script, course, entropy.spawn("holders", course.step, i))
            opened = answer(script, course, rows, n_answering, entropy.spawn("population", course.step, i))
            one.append(np.rint(scale * put_in))
            other.append(np.rint(scale * (opened - counted)))
    return np.concatenate(one), np.concatenate(other)


@statistical(alpha=2 * ALPHA)
def test_holders_and_population_have_one_law_of_noise(entropy: SeededEntropy) -> None:
    for figures in ({}, {"delta": 1e-6}):
        assert same_law(*samples(figures, SeededEntropy(entropy.word())))
        # A mutant: half of the noise is missing.
        assert catches(lambda figures=figures: same_law(*samples(figures, SeededEntropy(entropy.word()), n_answering=3)))
