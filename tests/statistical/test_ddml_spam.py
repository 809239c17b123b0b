"""How often an honest update is refused: by the real noise, in independent populations, judged by the filter itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.honest import sigma_of
from shoal.protocols.ddml.merging import part_of, steady_variance
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.spam import Filter, calibrate
from shoal.protocols.ddml.step import AdditiveStep, make_step
from statistical.harness import catches, statistical

ALPHA = 1e-9
MOST = 0.01


def study(p: int, merge: str) -> Params:
    schema = Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(p - 1)], label=Categorical("y", ["no", "yes"]))
    return Params(schema, 4.0, 100_000, variant="paper", merge=merge, n_instances=6, fraction_bits=24)


def verdicts(params: Params, spam: Filter, n: int, entropy: SeededEntropy) -> int:
    """How many of n updates are refused, each from a population of its own that 40 others came to, two of them on the way with it."""
    k, p, part, step = params.n_instances, params.n_weights, part_of(params.merge), make_step(params)
    assert isinstance(step, AdditiveStep)
    slope = np.zeros(p)
    slope[0] = -params.rates.clip
    each, push = np.arange(n), step.clipped(slope)

    def move() -> np.ndarray:
        return step.noise.randomise_many(np.tile(push, n), entropy).reshape(n, p)

    start = stats.norm(scale=math.sqrt(steady_variance(k, part)) * sigma_of(step)).ppf(
        entropy.below_many(1 << 20, k * n * p) / 2**20 + 2**-21
    )
    instances, pending = start.reshape(k, n, p), []
    for i in range(42):
        pending.append(instances[entropy.below_many(k, n), each] + move())
        if len(pending) == 3:
            update, slot = pending.pop(0), entropy.below_many(k, n)
            before = instances.copy() if i == 41 else instances
            instances[slot, each] += part * (update - instances[slot, each])
    return sum(spam.judge_all(np.rint(update[i]).astype(np.int32), np.rint(before[:, i]).astype(np.int32)) is not None for i in each)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(("p", "merge", "n"), [(8, "discard", 4_000), (64, "blend", 2_000)])
def test_at_most_one_honest_update_of_a_hundred_is_refused(p: int, merge: str, n: int, entropy: SeededEntropy) -> None:
    params = study(p, merge)
    thresholds = calibrate(params, 2)

    def is_rare(spam: Filter) -> bool:
        return bool(stats.binomtest(verdicts(params, spam, n, entropy), n, MOST, alternative="greater").pvalue >= ALPHA)

    assert is_rare(Filter(params, thresholds))
    # The mutant's thresholds are half of what they should be.
    mutant = replace(thresholds, largest=0.5 * thresholds.largest, rms=0.5 * thresholds.rms)
    assert catches(lambda: is_rare(Filter(params, mutant)), tries=1)
