"""Number of sums and price of each, which follow from declared figures only."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from shoal.mechanisms.distributed_gaussian import DistributedGaussian
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.mechanisms.sensitivity import CellCounts, SignedCells
from shoal.privacy.accountant import compose_sequential, compose_zcdp, epsilon_to_rho
from shoal.privacy.events import Relation
from shoal.privacy.rounding import delta_grains_down, delta_grains_up, grains_down, grains_up
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.pfds.script import (
    SecureSumScript,
    choose_budget,
    compute_affordable_budget,
    compute_sum_size,
    make_budget,
    make_mechanism,
    make_query,
)
from tests.support.pfds import ARITIES, LABELS, NUMBER, THREE, make_params

K = len(ARITIES)


@pytest.mark.parametrize(
    ("noise", "has_delta", "n_rounds", "step"),
    [
        (0.0, False, 1, 0.7),
        (0.004, False, 1, 0.7),
        (0.00401, False, 0, 0.0),
        (0.0005, True, 6, 0.4),
        (0.00051, True, 3, 0.5),
        (0.002, True, 3, 0.5),
        (0.0021, True, 1, 0.7),
        (0.005, True, 1, 0.7),
        (0.0051, True, 0, 0.0),
    ],
)
def test_make_budget_has_more_rounds_with_less_noise(
    noise: float, has_delta: bool, n_rounds: int, step: float
) -> None:
    planned = make_budget(noise, has_delta)
    assert (planned.n_rounds, planned.step) == (n_rounds, step)
    assert sum(planned.parts) == 1 and len(planned.parts) == len(planned.questions)


def test_make_budget_divides_the_budget_among_questions() -> None:
    twentieth = Fraction(1, 20)
    assert make_budget(0.003, False).parts == (
        8 * twentieth,
        twentieth,
        9 * twentieth,
        2 * twentieth,
    )
    assert make_budget(0.003, True).parts == (
        8 * twentieth,
        twentieth,
        9 * twentieth,
        2 * twentieth,
    )
    assert make_budget(0.001, True).parts == (
        4 * twentieth,
        twentieth,
        *[13 * twentieth / 3] * 3,
        2 * twentieth,
    )
    assert make_budget(0.1, True).parts == (Fraction(8, 9), Fraction(1, 9))
    assert make_budget(0.001, True).questions == (
        "tables",
        "calibration",
        "residuals/0",
        "residuals/1",
        "residuals/2",
        "search",
    )
    assert make_budget(0.1, True).questions == ("tables", "calibration")


def test_choose_budget_compares_noise_with_declared_rows() -> None:
    # Pure: sqrt 2 k / (epsilon n) at most .004.
    edge = math.sqrt(2) * K / 0.004
    assert choose_budget(make_params(size=math.ceil(edge) + 1)).n_rounds == 1
    assert choose_budget(make_params(size=math.floor(edge) - 1)).n_rounds == 0
    # With a delta: sqrt k sigma / n, sigma = 1 / sqrt(2 rho).
    edge = math.sqrt(K / (2 * epsilon_to_rho(1.0, 1e-6))) / 0.002
    assert choose_budget(make_params(size=math.ceil(edge) + 1, delta=1e-6)).n_rounds == 3
    assert choose_budget(make_params(size=math.floor(edge) - 1, delta=1e-6)).n_rounds == 1


def test_choose_budget_has_fewer_rounds_with_colluders_or_more_rows() -> None:
    few = make_params(size=2000)
    assert choose_budget(few).n_rounds == 1
    assert choose_budget(replace(few, max_colluders=4)).n_rounds == 0
    assert choose_budget(replace(few, max_rows=2)).n_rounds == 0


def test_choose_budget_without_noise_and_with_several_classes() -> None:
    assert choose_budget(make_params(epsilon=math.inf)).n_rounds == 6
    assert choose_budget(make_params(THREE)).questions == ("tables",)
    assert choose_budget(make_params(THREE)).parts == (1,)
    # The affordable budget does not depend on the label.
    assert compute_affordable_budget(make_params(THREE, epsilon=math.inf)).n_rounds == 6
    assert (
        compute_affordable_budget(make_params(THREE))
        == compute_affordable_budget(make_params())
        == choose_budget(make_params())
    )


@pytest.mark.parametrize("label", LABELS)
def test_queries_state_the_sensitivity_of_one_row(label: str) -> None:
    params = make_params(LABELS[label], max_rows=3)
    assert make_query(params, "tables") == CellCounts(K, 3 * 256)
    assert (
        make_query(params, "calibration") == make_query(params, "search") == CellCounts(1, 3 * 256)
    )
    clip = 64 if label == "number" else 128
    assert make_query(params, "residuals/5") == SignedCells(K, clip, 3)
    assert make_query(params, "residuals/5").l2_squared(Relation.ADD_REMOVE) == K * (3 * clip) ** 2
    assert [compute_sum_size(params, one) for one in ("calibration", "residuals/0", "search")] == [
        32,
        params.n_cells,
        200,
    ]
    assert compute_sum_size(params, "tables") == params.n_cells * params.n_sides


STUDIES = [
    make_params(),
    make_params(epsilon=0.1),
    make_params(NUMBER, epsilon=1 / 3),
    make_params(THREE),
    make_params(size=10**6, epsilon=math.pi),
    make_params(max_colluders=3, minimum=6, max_rows=2, unit="person"),
]


@pytest.mark.parametrize("params", STUDIES)
def test_pure_prices_add_up_to_the_budget(params: PFDSParams) -> None:
    script = SecureSumScript(params)
    assert tuple(script.prices) == script.questions
    spent = sum(grains_up(event.epsilon) for event in script.prices.values())
    assert (
        grains_down(params.epsilon) - len(script.questions) <= spent <= grains_down(params.epsilon)
    )
    loss = compose_sequential(list(script.prices.values()))
    assert (loss.delta, loss.scope) == (0.0, params.scope)
    for question, event in script.prices.items():
        mechanism = script.find_mechanism(question)
        assert isinstance(mechanism, DistributedLaplace) and mechanism.n_honest == params.n_honest
        assert event.mechanism == "laplace-shares" and event.reads == tuple(sorted(params.columns))


@pytest.mark.parametrize("delta", [1e-6, 1e-9, 3.3e-5])
@pytest.mark.parametrize("params", STUDIES)
def test_prices_with_a_delta_compose_to_the_budget(params: PFDSParams, delta: float) -> None:
    script = SecureSumScript(replace(params, delta=delta))
    events = list(script.prices.values())
    loss = compose_zcdp(events, delta)
    assert params.epsilon * (1 - 1e-4) <= loss.epsilon <= params.epsilon
    assert sum(delta_grains_up(event.delta) for event in events) <= delta_grains_down(delta)
    parts = [
        event.rho / epsilon_to_rho(params.epsilon, delta)
        for event in events
        if event.rho is not None
    ]
    assert parts == pytest.approx([float(part) for part in script.budget.parts], rel=1e-4)
    assert all(event.mechanism == "gaussian-shares" for event in events)


def test_gaussian_mechanism_has_dimension_and_share_of_delta() -> None:
    noise = make_mechanism(make_params(delta=1e-6), "search", Fraction(1, 10), 4)
    assert isinstance(noise, DistributedGaussian)
    assert (noise.dimension, noise.n_honest, noise.delta) == (200, 8, 2.5e-7)


def test_noiseless_script_has_no_prices() -> None:
    script = SecureSumScript(make_params(epsilon=math.inf))
    assert (
        not script.prices
        and script.find_mechanism("tables") is None
        and script.compute_deviation("tables") == 0.0
    )
