"""The update rule of the instances; Theorem 1 by enumeration, with exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import (
    BLEND,
    EPOCH_WINDOW,
    MAX_WEIGHT,
    OUT_OF_RANGE,
    add_step,
    compute_moments,
    draw_instances,
    find_blend_factor,
    find_content_fault,
    find_epoch_fault,
    is_average_due,
    merge_update,
    round_to_grid,
    steady_variance,
)

BETAS = [Fraction(1), Fraction(1, 2), Fraction(1, 10)]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_round_to_grid_rounds_to_nearest_and_clips_to_range() -> None:
    found = round_to_grid(np.array([0.4, -0.6, 1.5, 2.5, 1e12, -1e12]))
    assert found.dtype == np.int32 and found.tolist() == [0, -1, 2, 2, MAX_WEIGHT, -MAX_WEIGHT]


def test_add_step_stays_in_range() -> None:
    found = add_step(ints(5, MAX_WEIGHT - 1, -MAX_WEIGHT), np.array([-7, 1 << 40, -(1 << 40)]))
    assert found.dtype == np.int32 and found.tolist() == [-2, MAX_WEIGHT, -MAX_WEIGHT]


def test_merge_update_replaces_instance_or_moves_it_a_tenth() -> None:
    instance, update = ints(100, -100, MAX_WEIGHT, 7), ints(200, -95, -MAX_WEIGHT, 7)
    assert find_blend_factor("discard") == 1 and find_blend_factor("blend") == BLEND == 0.1
    assert merge_update(instance, update, 1.0) is update
    pulled = merge_update(instance, update, 0.1)
    # Half a unit goes to the even neighbour; the whole way from one end of the range to the other
    # does not overflow.
    assert pulled.dtype == np.int32 and pulled.tolist() == [110, -100, round(0.8 * MAX_WEIGHT), 7]


def after_one_update(
    instances: list[Fraction], beta: Fraction
) -> list[tuple[list[Fraction], bool]]:
    """The instances after every draw, every discard and noise of plus or minus 1, and whether the
    drawn one was also discarded.
    """
    found = []
    for i, j, noise in product(range(len(instances)), range(len(instances)), (-1, 1)):
        after = list(instances)
        after[j] += beta * (instances[i] + noise - after[j])
        found.append((after, i == j))
    return found


def variance(instances: list[Fraction]) -> Fraction:
    mean = sum(instances) / len(instances)
    return sum((one - mean) ** 2 for one in instances) / (len(instances) - 1)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("k", [2, 3, 5])
def test_variance_after_update_follows_formula(k: int, beta: Fraction) -> None:
    instances = [Fraction(value) for value in (3, -1, 4, 1, -5)[:k]]
    apart = 2 * variance(instances)
    assert apart == sum(((a - b) ** 2 for a, b in combinations(instances, 2)), Fraction(0)) / (
        k * (k - 1) // 2
    )
    ends = after_one_update(instances, beta)
    expected = apart + Fraction(2, k) * (beta**2 - apart * beta * (k * (1 - beta) + beta) / k)
    assert 2 * sum(variance(end) for end, _ in ends) / len(ends) == expected
    steady = k * beta / (2 * (k * (1 - beta) + beta))
    assert steady_variance(k, float(beta)) == pytest.approx(float(steady))
    assert (variance(instances) - expected / 2) * (variance(instances) - steady) > 0, (
        "it moves towards the steady variance"
    )
    # The mean moves by beta / k of noise and of the distance of what was drawn from what was
    # discarded.
    moved = sum((sum(end) - sum(instances)) ** 2 for end, _ in ends) / len(ends) / k**2
    assert moved == (beta / k) ** 2 * (1 + apart * (k - 1) / k)


@pytest.mark.parametrize("k", [3, 4, 5])
def test_steady_variance_matches_theorem_1_despite_misprint(
    k: int,
) -> None:
    # Two instances apart by more than the rest, scaled so that their variance is k/2: any set with
    # that variance will do.
    instances = [Fraction(0)] * (k - 2) + [Fraction(-1), Fraction(1)]
    ends = after_one_update(instances, Fraction(1))
    scale = Fraction(k, 2) / variance(instances)

    def expected(same: bool) -> Fraction:
        chosen = [end for end, is_same in ends if is_same == same]
        # Instances and noise grow alike: the noise's part is what remains when the instances' part
        # is scaled.
        total = sum(variance(end) for end in chosen) / len(chosen)
        still = after_one_update([Fraction(0)] * k, Fraction(1))
        noise = [variance(end) for end, is_same in still if is_same == same]
        return (total - sum(noise) / len(noise)) * scale + sum(noise) / len(noise)

    assert expected(True) == Fraction(k, 2) + Fraction(1, k)
    assert expected(False) == Fraction(k**3 - k**2 - 2, 2 * k * (k - 1))
    common = 2 * k - 2 + k * (k - 2) * (k - 1) + 2 * (k - 2) ** 2
    assert common + 4 * k - 8 == k**3 - k**2 - 2 != common + 4 * k - 4


def test_steady_variance_of_single_instance_is_zero() -> None:
    assert steady_variance(1, 1.0) == 0 == steady_variance(1, BLEND)
    assert [steady_variance(k, 1.0) for k in (2, 20, 30)] == [1, 10, 15]


def test_draw_instances_has_given_variance_around_zero() -> None:
    found = draw_instances(20, 2000, 1e6, SeededEntropy(1))
    assert found.shape == (20, 2000) and found.dtype == np.int32
    assert abs(found.mean()) < 25 and found.var() == pytest.approx(1e6, rel=0.05)
    assert len({row.tobytes() for row in found}) == 20
    assert not draw_instances(3, 4, 0.9, SeededEntropy(1)).any()


def test_find_epoch_fault_accepts_window_only() -> None:
    now = 20
    found = [find_epoch_fault(now + age, now) for age in (1, 0, -EPOCH_WINDOW, -EPOCH_WINDOW - 1)]
    assert found == ["early", None, None, "stale"]


class FixedTest:
    """A test with a fixed reason that records the epochs it is given."""

    def __init__(self, reason: str | None) -> None:
        self.reason = reason
        self.epochs: list[int] = []

    def find_fault(self, weights: np.ndarray, epoch: int) -> str | None:
        self.epochs.append(epoch)
        return self.reason


def test_find_content_fault_without_update_test_tests_range() -> None:
    assert find_content_fault(ints(-MAX_WEIGHT, MAX_WEIGHT), 0, None) is None
    assert find_content_fault(ints(0, -MAX_WEIGHT - 1), 0, None) == "range"


@pytest.mark.parametrize(
    ("reason", "fault"), [(None, None), (OUT_OF_RANGE, "range"), ("spam", "spam")]
)
def test_find_content_fault_returns_reason_of_update_test(
    reason: str | None, fault: str | None
) -> None:
    update_test = FixedTest(reason)
    assert find_content_fault(ints(0), 7, update_test) == fault
    assert update_test.epochs == [7]


def test_is_average_due_after_every_k_updates() -> None:
    assert [is_average_due(n, 5) for n in (4, 5, 6, 10)] == [False, True, False, True]
    assert not is_average_due(5, 0)


def test_compute_moments_of_one_instance_has_zero_spread() -> None:
    centre, deviation = compute_moments(np.array([[3, -4]], np.int32))
    assert (centre.tolist(), deviation.tolist()) == ([3.0, -4.0], [0.0, 0.0])
