"""Passes over weights: as compiled, as plain Python and as NumPy has them, they are the same."""

from __future__ import annotations

import importlib.util
import math
from itertools import product

import numpy as np
import pytest

from shoal.coordinator.serving import _moments
from shoal.protocols.ddml import passes
from shoal.protocols.ddml.honest import centre_and_spread, scales
from shoal.protocols.ddml.merging import LIMIT, merged
from shoal.protocols.ddml.passes import Passes, Weights

PLAIN = Passes(passes.blend, passes.moments, passes.units, passes.deviations)


def both() -> list[Passes]:
    built = passes.compiled()
    assert built is not None
    return [PLAIN, built]


def some(k: int, p: int, seed: int = 7) -> Weights:
    """Instances that cannot be written to, as they come out of a store."""
    rows = np.random.default_rng(seed).integers(-LIMIT, LIMIT, (k, p), endpoint=True, dtype=np.int32)
    return np.frombuffer(rows.tobytes(), np.int32).reshape(k, p)


@pytest.mark.parametrize("part", [0.1, 0.5, 1 / 3])
def test_an_instance_after_an_update_is_the_same_to_the_last_unit(part: float) -> None:
    ends = np.array([-LIMIT, LIMIT, 0, 5, -5, 15], np.int32)
    instance, update = np.concatenate([ends, some(2, 3_000)[0]]), np.concatenate([ends[::-1], some(2, 3_000)[1]])
    wanted = merged(instance, update, part)
    for one in both():
        found = np.empty(instance.size, np.int32)
        one.blend(instance, update, part, found)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("k", [1, 2, 4, 5, 7, 20])
def test_mean_and_spread_of_instances(k: int) -> None:
    instances = some(k, 2_050)  # two blocks
    centre, spread = centre_and_spread(instances.astype(np.float64))
    for one in both():
        mean, deviation = passes.moments_by(one, instances)
        assert np.array_equal(mean, instances.sum(axis=0, dtype=np.int64) / k)
        np.testing.assert_allclose(mean, centre, rtol=1e-12)
        np.testing.assert_allclose(deviation, spread, rtol=1e-9)


def test_the_spread_of_close_instances_far_from_zero_is_not_lost() -> None:
    instances = (LIMIT - 10 + np.arange(8).reshape(4, 2)).astype(np.int32)
    for one in both():
        np.testing.assert_allclose(passes.moments_by(one, instances)[1], instances.std(axis=0, ddof=1), rtol=1e-12)


def test_the_units_of_deviations() -> None:
    spread = np.abs(np.random.default_rng(2).normal(size=3_000)) * 1e6
    for one in both():
        parts = np.empty(3_000, np.float32)
        one.units(spread, 17.0, parts)
        np.testing.assert_allclose(parts, 1 / np.sqrt(scales(spread**2, 0.0, math.sqrt(17.0))), rtol=1e-6)


def test_deviations_and_the_lowest_weight() -> None:
    weights, random = some(1, 3_000)[0], np.random.default_rng(1)
    centre, parts = (1e9 * random.normal(size=3_000)).astype(np.float32), random.random(3_000).astype(np.float32) / 1e9
    z = (weights.astype(np.float32) - centre) * parts
    for one, limit in product(both(), (0.5, 2.0, 1e9)):
        square, n_beyond, lowest = one.deviations(weights, centre, parts, limit)
        assert square == pytest.approx(float(z @ z), rel=1e-4)
        assert (n_beyond, lowest) == (np.count_nonzero(z * z > limit), weights.min())


def test_weights_that_lie_otherwise_are_copied() -> None:
    held = b"\x00" + some(1, 50)[0].tobytes()
    odd = np.frombuffer(held, np.int32, offset=1)
    assert not odd.flags.aligned and passes.in_one_piece(odd).flags.aligned
    assert np.array_equal(passes.in_one_piece(odd), odd)
    assert passes.in_one_piece(some(2, 50)[:, 3]).flags.c_contiguous


@pytest.mark.parametrize("is_there", [True, False])
def test_large_models_alone_are_worth_it_and_numba_is_not_needed(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    passes.compiled.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr(passes, "find_spec", lambda name: find(name) if is_there else None)
    assert passes.passes_for(passes.WORTH_COMPILING - 1) is None
    assert (passes.passes_for(passes.WORTH_COMPILING) is not None) == is_there
    passes.compiled.cache_clear()


def test_large_instances_are_merged_and_looked_at_by_them() -> None:
    instances, update = some(3, passes.WORTH_COMPILING), some(1, passes.WORTH_COMPILING, seed=8)[0]
    n = passes.WORTH_COMPILING - 1  # by NumPy
    assert np.array_equal(merged(instances[0], update, 0.1)[:n], merged(instances[0, :n], update[:n], 0.1))
    large, small = _moments(instances), _moments(np.ascontiguousarray(instances[:, :n]))
    assert np.array_equal(large[0][:n], small[0])
    np.testing.assert_allclose(large[1][:n], small[1], rtol=1e-9)
