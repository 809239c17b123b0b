"""Who adds which part of the noise, what it costs, and how large it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sdq_cases import STUDIES, pooled
from shoal.entropy import SeededEntropy
from shoal.mechanisms.shares import SharedLaplace, SharedMax
from shoal.protocols.sdq.noise import ADDS, SUBTRACTS, deviation_of, mechanism_of, noisy, price_of, price_of_choice, summed_noise
from shoal.protocols.sdq.script import Part, Round

SIZE = 4
TABLE = pooled()


def part(epsilon: float = 1.0, n_tables: int = 1, size: int = SIZE) -> Part:
    return Part(lambda table: np.full(size, len(table)), size, epsilon, n_tables)


@pytest.mark.parametrize("name, n_honest", [("paper", 3), ("selected", 1), ("local", 1), ("plus", 3)])
def test_every_sum_has_the_noise_of_its_price(name: str, n_honest: int) -> None:
    params = replace(STUDIES[name], max_rows=2, unit="person")
    found = mechanism_of(params, part(0.5, 3))
    assert isinstance(found, SharedLaplace)
    assert (found.n_honest, found.sensitivity, found.epsilon) == (n_honest, 6, 0.5)
    assert price_of(params, 0.5, 3) == found.event()
    assert found.event().scope == params.scope


def test_a_choice_has_one_sided_noise() -> None:
    params = replace(STUDIES["plus"], max_rows=2, unit="person")
    found = mechanism_of(params, part(0.5), is_choice=True)
    assert isinstance(found, SharedMax)
    assert found.n_honest == 3 and found.score.max_rows == 2
    assert price_of_choice(params, 0.5) == found.event()


def test_no_noise_is_no_mechanism() -> None:
    params = STUDIES["paper"]
    assert mechanism_of(params, part(math.inf)) is None
    assert deviation_of(params, math.inf) == 0
    asked = Round("tables", (part(math.inf), part(1.0)))
    drawn = summed_noise(params, asked, 5, SeededEntropy(1))
    assert drawn.shape == (2 * SIZE,) and not drawn[:SIZE].any() and drawn[SIZE:].any()
    with pytest.raises(AssertionError, match="price"):
        noisy(params, part(math.inf), TABLE, False, None, SeededEntropy(1))


@pytest.mark.parametrize("name, n_shares", [("paper", 5), ("selected", 1), ("local", 5)])
def test_the_deviation_is_that_of_all_shares_in_a_sum(name: str, n_shares: int) -> None:
    params = STUDIES[name]
    found = mechanism_of(params, part(0.1, 2))
    assert isinstance(found, SharedLaplace)
    assert deviation_of(params, 0.1, 2) == math.sqrt(found.variance(n_shares))
    n = 4000
    drawn = summed_noise(params, Round("tables", (part(0.1, 2, n),)), 5, SeededEntropy(3))
    assert drawn.std() == pytest.approx(deviation_of(params, 0.1, 2), rel=0.15)


def test_noise_of_a_sum_without_parts_is_empty() -> None:
    assert summed_noise(STUDIES["paper"], Round("tables", ()), 5, SeededEntropy(1)).shape == (0,)


@pytest.mark.parametrize("name", ["paper", "local"])
def test_a_database_adds_its_share_whatever_its_role(name: str) -> None:
    params, entropy = STUDIES[name], SeededEntropy(2)
    found = mechanism_of(params, part())
    assert found is not None
    for role in (None, ADDS):
        drawn = noisy(params, part(), TABLE, False, role, entropy.spawn(1))
        assert drawn.tolist() == (len(TABLE) + found.share(SIZE, entropy.spawn(1))).tolist()


def test_a_selected_database_adds_or_subtracts_and_the_others_do_nothing() -> None:
    params, wide = STUDIES["selected"], part(0.05, size=50)
    plus, minus, nothing = (noisy(params, wide, TABLE, False, role, SeededEntropy(5)) - len(TABLE) for role in (ADDS, SUBTRACTS, 0))
    assert plus.min() >= 0 and plus.max() > 0
    assert minus.tolist() == (-plus).tolist(), "the same draw, on the other side"
    assert not nothing.any()
    with pytest.raises(AssertionError, match="selected"):
        noisy(params, wide, TABLE, False, None, SeededEntropy(5))


def test_scores_get_shares_of_one_sided_noise() -> None:
    drawn = noisy(STUDIES["plus"], part(0.05, size=50), TABLE, True, None, SeededEntropy(5)) - len(TABLE)
    assert drawn.min() >= 0 and drawn.max() > 0
