"""The rate of honest updates that the spam filter rejects.

The updates have the real noise and come from independent populations.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import find_blend_factor, steady_variance
from shoal.protocols.ddml.noisy_step import AdditiveStep, make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.spam_calibration import noise_deviation
from shoal.protocols.ddml.spam_filter import SpamFilter, calibrate_thresholds
from tests.statistical.harness import catches, statistical

ALPHA = 1e-9
MAX_RATE = 0.01


def make_params(p: int, merge: str) -> DDMLParams:
    schema = Schema(
        [Numeric(f"x{i}", 0, 1, missing=False) for i in range(p - 1)],
        label=Categorical("y", ["no", "yes"]),
    )
    return DDMLParams(
        schema, 4.0, 100_000, variant="paper", merge=merge, n_instances=6, fraction_bits=24
    )


def count_rejected(params: DDMLParams, spam: SpamFilter, n: int, entropy: SeededEntropy) -> int:
    """Return how many of n honest updates the filter rejects.

    Each update is from a separate population with 40 other updates; two of them are in flight with
    it.
    """
    k, p, part, step = (
        params.n_instances,
        params.n_weights,
        find_blend_factor(params.merge),
        make_step(params),
    )
    assert isinstance(step, AdditiveStep)
    slope = np.zeros(p)
    slope[0] = -params.rates.clip
    each, push = np.arange(n), step.clip_gradient(slope)

    def draw_updates() -> np.ndarray:
        return step.noise.randomise_many(np.tile(push, n), entropy).reshape(n, p)

    start = stats.norm(scale=math.sqrt(steady_variance(k, part)) * noise_deviation(step)).ppf(
        entropy.below_many(1 << 20, k * n * p) / 2**20 + 2**-21
    )
    instances, pending = start.reshape(k, n, p), []
    for i in range(42):
        pending.append(instances[entropy.below_many(k, n), each] + draw_updates())
        if len(pending) == 3:
            update, slot = pending.pop(0), entropy.below_many(k, n)
            before = instances.copy() if i == 41 else instances
            instances[slot, each] += part * (update - instances[slot, each])
    return sum(
        spam.find_fault_among(
            np.rint(update[i]).astype(np.int32), np.rint(before[:, i]).astype(np.int32)
        )
        is not None
        for i in each
    )


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(("p", "merge", "n"), [(8, "discard", 4_000), (64, "blend", 2_000)])
def test_spam_filter_rejects_at_most_one_percent_of_honest_updates(
    p: int, merge: str, n: int, entropy: SeededEntropy
) -> None:
    params = make_params(p, merge)
    thresholds = calibrate_thresholds(params, 2)

    def is_rare(spam: SpamFilter) -> bool:
        return bool(
            stats.binomtest(
                count_rejected(params, spam, n, entropy), n, MAX_RATE, alternative="greater"
            ).pvalue
            >= ALPHA
        )

    assert is_rare(SpamFilter(params, thresholds))
    # The thresholds of the mutant are half as large.
    mutant = replace(thresholds, largest=0.5 * thresholds.largest, rms=0.5 * thresholds.rms)
    assert catches(lambda: is_rare(SpamFilter(params, mutant)), tries=1)
