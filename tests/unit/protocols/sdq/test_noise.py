"""Noise of sums and choices: shares of databases, prices, and deviation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, SpecError
from shoal.mechanisms.distributed_laplace import DistributedLaplace, DistributedNoisyMax
from shoal.protocols.mpc.shares import SUM_BITS, split
from shoal.protocols.sdq.noise import (
    ADDS,
    SUBTRACTS,
    compute_deviation,
    draw_noisy_counts,
    draw_summed_noise,
    make_mechanism,
    price_choice,
    price_sum,
)
from shoal.protocols.sdq.script import RoundPart, SDQRound
from tests.support.sdq import STUDIES, pooled

SIZE = 4
TABLE = pooled()


def make_part(epsilon: float = 1.0, n_tables: int = 1, size: int = SIZE) -> RoundPart:
    return RoundPart(lambda table: np.full(size, len(table)), size, epsilon, n_tables)


@pytest.mark.parametrize(
    "name, n_honest", [("paper", 3), ("selected", 1), ("local", 1), ("plus", 3)]
)
def test_sum_has_the_mechanism_of_its_price(name: str, n_honest: int) -> None:
    params = replace(STUDIES[name], max_rows=2, unit="person")
    found = make_mechanism(params, make_part(0.5, 3))
    assert isinstance(found, DistributedLaplace)
    assert (found.n_honest, found.sensitivity, found.epsilon) == (n_honest, 6, 0.5)
    assert price_sum(params, 0.5, 3) == found.event()
    assert found.event().scope == params.scope


def test_choice_has_the_one_sided_mechanism_of_its_price() -> None:
    params = replace(STUDIES["plus"], max_rows=2, unit="person")
    found = make_mechanism(params, make_part(0.5), is_choice=True)
    assert isinstance(found, DistributedNoisyMax)
    assert found.n_honest == 3 and found.score.max_rows == 2
    assert price_choice(params, 0.5) == found.event()


def test_choice_rejects_noise_that_a_joint_computation_cannot_hold() -> None:
    params, entropy = replace(STUDIES["plus"], size=1000, max_rows=1000), SeededEntropy(1)
    most = (1 << SUM_BITS) // params.n_databases
    smallest = 70 * params.max_rows / (most - params.size)
    price_choice(params, 1.1 * smallest)
    with pytest.raises(SpecError) as caught:
        price_choice(params, 0.9 * smallest)
    assert caught.value.code == "SPEC-021" and 'choice = "sums"' in (caught.value.fix or "")
    with pytest.raises(SpecError, match="SPEC-021"):
        price_choice(replace(params, size=most), 1.0)

    def deal(epsilon: float) -> None:
        mechanism = make_mechanism(params, make_part(epsilon), is_choice=True)
        assert isinstance(mechanism, DistributedNoisyMax)
        noise = mechanism.draw_share(1000, entropy)
        split((noise + params.size).tolist(), 3, entropy, params.n_databases)

    deal(1.1 * smallest)
    with pytest.raises(LocalProtocolError, match="JOINT-003"):
        deal(0.01 * smallest)


def test_infinite_epsilon_has_no_mechanism() -> None:
    params = STUDIES["paper"]
    assert make_mechanism(params, make_part(math.inf)) is None
    assert compute_deviation(params, math.inf) == 0
    asked = SDQRound("tables", (make_part(math.inf), make_part(1.0)))
    drawn = draw_summed_noise(params, asked, 5, SeededEntropy(1))
    assert drawn.shape == (2 * SIZE,) and not drawn[:SIZE].any() and drawn[SIZE:].any()
    with pytest.raises(AssertionError, match="price"):
        draw_noisy_counts(params, make_part(math.inf), TABLE, False, None, SeededEntropy(1))


@pytest.mark.parametrize("name, n_shares", [("paper", 5), ("selected", 1), ("local", 5)])
def test_deviation_is_that_of_all_shares_in_a_sum(name: str, n_shares: int) -> None:
    params = STUDIES[name]
    found = make_mechanism(params, make_part(0.1, 2))
    assert isinstance(found, DistributedLaplace)
    assert compute_deviation(params, 0.1, 2) == math.sqrt(found.variance(n_shares))
    n = 4000
    drawn = draw_summed_noise(
        params, SDQRound("tables", (make_part(0.1, 2, n),)), 5, SeededEntropy(3)
    )
    assert drawn.std() == pytest.approx(compute_deviation(params, 0.1, 2), rel=0.15)


def test_noise_of_a_sum_without_parts_is_empty() -> None:
    assert draw_summed_noise(
        STUDIES["paper"], SDQRound("tables", ()), 5, SeededEntropy(1)
    ).shape == (0,)


@pytest.mark.parametrize("name", ["paper", "local"])
def test_database_adds_its_share_in_any_role(name: str) -> None:
    params, entropy = STUDIES[name], SeededEntropy(2)
    found = make_mechanism(params, make_part())
    assert found is not None
    for role in (None, ADDS):
        drawn = draw_noisy_counts(params, make_part(), TABLE, False, role, entropy.spawn(1))
        assert drawn.tolist() == (len(TABLE) + found.draw_share(SIZE, entropy.spawn(1))).tolist()


def test_selected_database_adds_or_subtracts_and_others_do_nothing() -> None:
    params, wide = STUDIES["selected"], make_part(0.05, size=50)
    plus, minus, nothing = (
        draw_noisy_counts(params, wide, TABLE, False, role, SeededEntropy(5)) - len(TABLE)
        for role in (ADDS, SUBTRACTS, 0)
    )
    assert plus.min() >= 0 and plus.max() > 0
    assert minus.tolist() == (-plus).tolist(), "the same draw, on the other side"
    assert not nothing.any()
    with pytest.raises(AssertionError, match="selected"):
        draw_noisy_counts(params, wide, TABLE, False, None, SeededEntropy(5))


def test_scores_get_shares_of_one_sided_noise() -> None:
    drawn = draw_noisy_counts(
        STUDIES["plus"], make_part(0.05, size=50), TABLE, True, None, SeededEntropy(5)
    ) - len(TABLE)
    assert drawn.min() >= 0 and drawn.max() > 0
