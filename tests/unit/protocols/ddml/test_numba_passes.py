"""Passes over weights give the same result compiled, in Python and with NumPy."""

from __future__ import annotations

import importlib.util
import math
from itertools import product

import numpy as np
import pytest

from shoal.protocols.ddml import numba_passes
from shoal.protocols.ddml.merging import MAX_WEIGHT, compute_moments, merge_update
from shoal.protocols.ddml.numba_passes import CompiledPasses, Weights
from shoal.protocols.ddml.spam_calibration import compute_centre_and_deviation, pool_variances

PLAIN = CompiledPasses(
    numba_passes.blend,
    numba_passes.compute_moments,
    numba_passes.compute_scales,
    numba_passes.sum_deviations,
)


def both() -> list[CompiledPasses]:
    built = numba_passes.compile_passes()
    assert built is not None
    return [PLAIN, built]


def some(k: int, p: int, seed: int = 7) -> Weights:
    """Instances that cannot be written to, as they come out of a store."""
    rows = np.random.default_rng(seed).integers(
        -MAX_WEIGHT, MAX_WEIGHT, (k, p), endpoint=True, dtype=np.int32
    )
    return np.frombuffer(rows.tobytes(), np.int32).reshape(k, p)


@pytest.mark.parametrize("part", [0.1, 0.5, 1 / 3])
def test_blend_equals_merge_update(part: float) -> None:
    ends = np.array([-MAX_WEIGHT, MAX_WEIGHT, 0, 5, -5, 15], np.int32)
    instance, update = (
        np.concatenate([ends, some(2, 3_000)[0]]),
        np.concatenate([ends[::-1], some(2, 3_000)[1]]),
    )
    wanted = merge_update(instance, update, part)
    for one in both():
        found = np.empty(instance.size, np.int32)
        one.blend(instance, update, part, found)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("k", [1, 2, 4, 5, 7, 20])
def test_compute_moments_equals_numpy(k: int) -> None:
    instances = some(k, 2_050)  # two blocks
    centre, expected = compute_centre_and_deviation(instances.astype(np.float64))
    for one in both():
        mean, deviation = numba_passes.run_moments(one, instances)
        assert np.array_equal(mean, instances.sum(axis=0, dtype=np.int64) / k)
        np.testing.assert_allclose(mean, centre, rtol=1e-12)
        np.testing.assert_allclose(deviation, expected, rtol=1e-9)


def test_compute_moments_keeps_small_deviation_far_from_zero() -> None:
    instances = (MAX_WEIGHT - 10 + np.arange(8).reshape(4, 2)).astype(np.int32)
    for one in both():
        np.testing.assert_allclose(
            numba_passes.run_moments(one, instances)[1], instances.std(axis=0, ddof=1), rtol=1e-12
        )


def test_compute_scales_equals_numpy() -> None:
    deviation = np.abs(np.random.default_rng(2).normal(size=3_000)) * 1e6
    for one in both():
        parts = np.empty(3_000, np.float32)
        one.compute_scales(deviation, 17.0, parts)
        np.testing.assert_allclose(
            parts, 1 / np.sqrt(pool_variances(deviation**2, 0.0, math.sqrt(17.0))), rtol=1e-6
        )


def test_sum_deviations_equals_numpy() -> None:
    weights, random = some(1, 3_000)[0], np.random.default_rng(1)
    centre, parts = (
        (1e9 * random.normal(size=3_000)).astype(np.float32),
        random.random(3_000).astype(np.float32) / 1e9,
    )
    z = (weights.astype(np.float32) - centre) * parts
    for one, limit in product(both(), (0.5, 2.0, 1e9)):
        square, n_beyond, lowest = one.sum_deviations(weights, centre, parts, limit)
        assert square == pytest.approx(float(z @ z), rel=1e-4)
        assert (n_beyond, lowest) == (np.count_nonzero(z * z > limit), weights.min())


def test_make_contiguous_copies_only_other_layouts() -> None:
    held = b"\x00" + some(1, 50)[0].tobytes()
    odd = np.frombuffer(held, np.int32, offset=1)
    assert not odd.flags.aligned and numba_passes.make_contiguous(odd).flags.aligned
    assert np.array_equal(numba_passes.make_contiguous(odd), odd)
    assert numba_passes.make_contiguous(some(2, 50)[:, 3]).flags.c_contiguous


@pytest.mark.parametrize("is_there", [True, False])
def test_load_passes_needs_large_model_and_numba(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numba_passes.compile_passes.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr(numba_passes, "find_spec", lambda name: find(name) if is_there else None)
    assert numba_passes.load_passes(numba_passes.WORTH_COMPILING - 1) is None
    assert (numba_passes.load_passes(numba_passes.WORTH_COMPILING) is not None) == is_there
    numba_passes.compile_passes.cache_clear()


def test_large_models_use_compiled_passes() -> None:
    instances, update = (
        some(3, numba_passes.WORTH_COMPILING),
        some(1, numba_passes.WORTH_COMPILING, seed=8)[0],
    )
    n = numba_passes.WORTH_COMPILING - 1  # by NumPy
    assert np.array_equal(
        merge_update(instances[0], update, 0.1)[:n], merge_update(instances[0, :n], update[:n], 0.1)
    )
    large, small = (
        compute_moments(instances),
        compute_moments(np.ascontiguousarray(instances[:, :n])),
    )
    assert np.array_equal(large[0][:n], small[0])
    np.testing.assert_allclose(large[1][:n], small[1], rtol=1e-9)
