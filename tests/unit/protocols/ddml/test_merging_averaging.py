"""The average over time."""

from __future__ import annotations

import math

import numpy as np

from shoal.protocols.ddml.merging import update_average


def test_update_average_replaces_average_by_first_mean() -> None:
    assert update_average(np.array([9.0, -4.0]), np.array([1.0, 2.0]), 1).tolist() == [1.0, 2.0]


def test_update_average_keeps_constant() -> None:
    average = np.array([3.0])
    for n in range(1, 50):
        average = update_average(average, np.array([3.0]), n)
    assert average.tolist() == [3.0]


def test_update_average_weights_grow_as_third_power() -> None:
    """The n-th of N means weighs as much as there are ways to choose three of n + 2."""
    n_means = 20
    weights = []
    for n in range(1, n_means + 1):
        average = np.zeros(1)
        for time in range(1, n_means + 1):
            average = update_average(average, np.array([float(time == n)]), time)
        weights.append(float(average[0]))
    ways = np.array([math.comb(n + 2, 3) for n in range(1, n_means + 1)], float)
    assert np.allclose(weights, ways / ways.sum())
