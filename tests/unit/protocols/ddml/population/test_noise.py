"""The noise of a run: each draw once, or passes through a pool."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import ClippedVector
from shoal.protocols.ddml.merging import MAX_WEIGHT
from shoal.protocols.ddml.noisy_step import AdditiveStep, make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import noise as supply
from shoal.protocols.ddml.population.noise import NoiseStream
from tests.support.ddml import STUDIES, TWO

P = 7


def make(name: str, n_updates: int, p: int = P) -> NoiseStream:
    return NoiseStream(make_step(STUDIES[name]), p, n_updates, SeededEntropy(1))


def test_each_draw_is_used_once() -> None:
    source = make("laplace", 1000)
    draws = [source.take(n).noise for n in (600, 400)]
    assert [len(noise) for noise in draws] == [600 * P, 400 * P] and all(
        noise.dtype == np.int32 for noise in draws
    )
    step = make_step(STUDIES["laplace"])
    assert abs(np.concatenate(draws).std() / step.deviation - 1) < 0.1
    assert source.take(3).offsets.tolist() == [0, P, 2 * P]


def test_signs_are_fair() -> None:
    signs = make("laplace", 1000).take(1000).signs
    assert set(signs.tolist()) == {-1.0, 1.0} and abs(signs.sum()) < 150


def test_closest_step_has_normals_alignments_and_coins() -> None:
    draws = make("closest", 4000).take(4000)
    assert draws.noise.size == 0 and draws.normals.dtype == np.float32
    assert abs(draws.normals.std() - 1) < 0.03 and abs(draws.normals.mean()) < 0.03
    step = make_step(STUDIES["closest"])
    assert abs(draws.alignments.mean() - step.mechanism.alignment) < 0.03  # type: ignore[attr-defined]
    assert (
        0 <= draws.coins.min() < 0.01
        and 0.99 < draws.coins.max() < 1
        and abs(draws.coins.mean() - 0.5) < 0.03
    )


def test_noiseless_step_has_no_noise() -> None:
    bare = make_step(DDMLParams(TWO, math.inf, 500))
    draws = NoiseStream(bare, P, 1 << 40, SeededEntropy(1)).take(5)
    assert (
        len(draws.signs) == len(draws.offsets) == 5 and draws.noise.size == draws.normals.size == 0
    )


def test_noise_is_clipped_to_range_of_weights() -> None:
    step = make_step(STUDIES["weight"])
    assert isinstance(step, AdditiveStep)
    wide = DiscreteLaplace(1e-6, ClippedVector(10_000, 1, 1), step.noise.scope)
    noise = NoiseStream(replace(step, noise=wide), P, 10, SeededEntropy(1)).take(10).noise
    assert noise.max() == MAX_WEIGHT and noise.min() == -MAX_WEIGHT


@pytest.mark.parametrize("name", ["laplace", "closest"])
def test_long_run_reuses_pool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "ONCE", 1000)
    monkeypatch.setattr(supply, "POOL", 1000)
    source = make(name, 143)
    blocks = [source.take(50) for _ in range(40)]
    pools = [block.noise if name == "laplace" else block.normals for block in blocks]
    assert all(pool is pools[0] for pool in pools) and len(pools[0]) == 1000 + P
    assert (pools[0][1000:] == pools[0][:P]).all(), (
        "what begins near the end goes on at the beginning"
    )
    offsets = np.array([block.offsets for block in blocks])
    assert offsets.min() >= 0 and offsets.max() < 1000
    assert (np.diff(offsets, axis=1) % 1000 == P).all(), "no draw is used twice in a lap"
    # Two blocks of 350 fit into a lap of 1000; the third begins a lap anywhere.
    assert ((offsets[1::2, 0] - offsets[::2, -1]) % 1000 == P).all()
    assert len(set(offsets[::2, 0].tolist())) > 15


def test_short_run_uses_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "ONCE", 1000)
    monkeypatch.setattr(supply, "POOL", 1000)
    assert len(make("laplace", 142).take(2).noise) == 2 * P
    assert len(make("laplace", 143).take(2).noise) == 1000 + P


def test_updates_that_share_draws_are_uncorrelated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their signs are independent, so that the shared part has mean zero."""
    monkeypatch.setattr(supply, "ONCE", 0)
    monkeypatch.setattr(supply, "POOL", 8 * P)
    source = make("laplace", 10_000)
    vectors = []
    for _ in range(400):
        draws = source.take(8)
        vectors += [
            sign * draws.noise[at : at + P].astype(float)
            for at, sign in zip(draws.offsets, draws.signs, strict=True)
        ]
    matrix = np.array(vectors)
    # Without signs every lap would add up to the same sum; with them a lap's sum has mean zero over
    # the laps.
    laps = matrix.reshape(400, -1).sum(axis=1)
    assert abs(laps.mean()) < 5 * laps.std() / 20
