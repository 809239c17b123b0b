"""How updates enter the instances; Theorem 1 by enumeration, with exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import BLEND, LIMIT, add, initial, merged, part_of, steady_variance, to_grid

BETAS = [Fraction(1), Fraction(1, 2), Fraction(1, 10)]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_the_grid_rounds_to_the_nearest_and_ends_where_32_bits_do() -> None:
    found = to_grid(np.array([0.4, -0.6, 1.5, 2.5, 1e12, -1e12]))
    assert found.dtype == np.int32 and found.tolist() == [0, -1, 2, 2, LIMIT, -LIMIT]


def test_a_step_is_added_and_stays_in_range() -> None:
    found = add(ints(5, LIMIT - 1, -LIMIT), np.array([-7, 1 << 40, -(1 << 40)]))
    assert found.dtype == np.int32 and found.tolist() == [-2, LIMIT, -LIMIT]


def test_an_update_replaces_an_instance_or_pulls_it_a_tenth_of_the_way() -> None:
    instance, update = ints(100, -100, LIMIT, 7), ints(200, -95, -LIMIT, 7)
    assert part_of("discard") == 1 and part_of("blend") == BLEND == 0.1
    assert merged(instance, update, 1.0) is update
    pulled = merged(instance, update, 0.1)
    # Half a unit goes to the even neighbour; the whole way from one end of the range to the other does not overflow.
    assert pulled.dtype == np.int32 and pulled.tolist() == [110, -100, round(0.8 * LIMIT), 7]


def after_one_update(instances: list[Fraction], beta: Fraction) -> list[tuple[list[Fraction], bool]]:
    """The instances after every draw, every discard and noise of plus or minus 1, and whether the drawn one was also discarded."""
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
def test_the_variance_goes_by_the_formula_whatever_the_instances_are(k: int, beta: Fraction) -> None:
    instances = [Fraction(value) for value in (3, -1, 4, 1, -5)[:k]]
    apart = 2 * variance(instances)
    assert apart == sum(((a - b) ** 2 for a, b in combinations(instances, 2)), Fraction(0)) / (k * (k - 1) // 2)
    ends = after_one_update(instances, beta)
    expected = apart + Fraction(2, k) * (beta**2 - apart * beta * (k * (1 - beta) + beta) / k)
    assert 2 * sum(variance(end) for end, _ in ends) / len(ends) == expected
    steady = k * beta / (2 * (k * (1 - beta) + beta))
    assert steady_variance(k, float(beta)) == pytest.approx(float(steady))
    assert (variance(instances) - expected / 2) * (variance(instances) - steady) > 0, "it moves towards the steady variance"
    # The mean moves by beta / k of noise and of the distance of what was drawn from what was discarded.
    moved = sum((sum(end) - sum(instances)) ** 2 for end, _ in ends) / len(ends) / k**2
    assert moved == (beta / k) ** 2 * (1 + apart * (k - 1) / k)


@pytest.mark.parametrize("k", [3, 4, 5])
def test_the_two_cases_of_theorem_1_are_the_papers_and_one_line_of_its_proof_is_misprinted(k: int) -> None:
    # Two instances apart by more than the rest, scaled so that their variance is k/2: any set with that variance will do.
    instances = [Fraction(0)] * (k - 2) + [Fraction(-1), Fraction(1)]
    ends = after_one_update(instances, Fraction(1))
    scale = Fraction(k, 2) / variance(instances)

    def expected(same: bool) -> Fraction:
        chosen = [end for end, is_same in ends if is_same == same]
        # Instances and noise grow alike: the noise's part is what remains when the instances' part is scaled.
        total = sum(variance(end) for end in chosen) / len(chosen)
        still = after_one_update([Fraction(0)] * k, Fraction(1))
        noise = [variance(end) for end, is_same in still if is_same == same]
        return (total - sum(noise) / len(noise)) * scale + sum(noise) / len(noise)

    assert expected(True) == Fraction(k, 2) + Fraction(1, k)
    assert expected(False) == Fraction(k**3 - k**2 - 2, 2 * k * (k - 1))
    common = 2 * k - 2 + k * (k - 2) * (k - 1) + 2 * (k - 2) ** 2
    assert common + 4 * k - 8 == k**3 - k**2 - 2 != common + 4 * k - 4


def test_a_single_instance_has_no_spread() -> None:
    assert steady_variance(1, 1.0) == 0 == steady_variance(1, BLEND)
    assert [steady_variance(k, 1.0) for k in (2, 20, 30)] == [1, 10, 15]


def test_instances_begin_around_zero_with_the_variance_asked_for() -> None:
    found = initial(20, 2000, 1e6, SeededEntropy(1))
    assert found.shape == (20, 2000) and found.dtype == np.int32
    assert abs(found.mean()) < 25 and found.var() == pytest.approx(1e6, rel=0.05)
    assert len({row.tobytes() for row in found}) == 20
    assert not initial(3, 4, 0.9, SeededEntropy(1)).any()
