"""How many sums are asked, and what each costs, by the declared figures alone."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from pfds_sums import ARITIES, LABELS, NUMBER, THREE, params_of
from shoal.mechanisms.sensitivity import Histogram, SignedCells
from shoal.mechanisms.shared_gaussian import SharedGaussian
from shoal.mechanisms.shares import SharedLaplace
from shoal.privacy.accountant import by_zcdp, sequential
from shoal.privacy.events import Relation
from shoal.privacy.rounding import delta_grains_down, delta_grains_up, grains_down, grains_up
from shoal.privacy.zcdp import epsilon_to_rho
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.spending import affordable, noise_of, plan, plan_of, query_of, size_of
from shoal.protocols.pfds.sums import SumScript

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
def test_the_less_noise_the_more_rounds(noise: float, has_delta: bool, n_rounds: int, step: float) -> None:
    planned = plan(noise, has_delta)
    assert (planned.n_rounds, planned.step) == (n_rounds, step)
    assert sum(planned.parts) == 1 and len(planned.parts) == len(planned.questions)


def test_where_the_budget_goes() -> None:
    twentieth = Fraction(1, 20)
    assert plan(0.003, False).parts == (8 * twentieth, twentieth, 9 * twentieth, 2 * twentieth)
    assert plan(0.003, True).parts == (8 * twentieth, twentieth, 9 * twentieth, 2 * twentieth)
    assert plan(0.001, True).parts == (4 * twentieth, twentieth, *[13 * twentieth / 3] * 3, 2 * twentieth)
    assert plan(0.1, True).parts == (Fraction(8, 9), Fraction(1, 9))
    assert plan(0.001, True).questions == ("tables", "calibration", "residuals/0", "residuals/1", "residuals/2", "search")
    assert plan(0.1, True).questions == ("tables", "calibration")


def test_noise_is_judged_as_a_share_of_the_declared_rows() -> None:
    # Pure: sqrt 2 k / (epsilon n) at most .004.
    edge = math.sqrt(2) * K / 0.004
    assert plan_of(params_of(size=math.ceil(edge) + 1)).n_rounds == 1
    assert plan_of(params_of(size=math.floor(edge) - 1)).n_rounds == 0
    # With a delta: sqrt k sigma / n, sigma = 1 / sqrt(2 rho).
    edge = math.sqrt(K / (2 * epsilon_to_rho(1.0, 1e-6))) / 0.002
    assert plan_of(params_of(size=math.ceil(edge) + 1, delta=1e-6)).n_rounds == 3
    assert plan_of(params_of(size=math.floor(edge) - 1, delta=1e-6)).n_rounds == 1


def test_more_shares_than_are_counted_on_are_more_noise() -> None:
    few = params_of(size=2000)
    assert plan_of(few).n_rounds == 1
    assert plan_of(replace(few, max_colluders=4)).n_rounds == 0
    assert plan_of(replace(few, max_rows=2)).n_rounds == 0


def test_without_noise_all_rounds_are_asked_and_with_more_classes_only_tables() -> None:
    assert plan_of(params_of(epsilon=math.inf)).n_rounds == 6
    assert plan_of(params_of(THREE)).questions == ("tables",)
    assert plan_of(params_of(THREE)).parts == (1,)
    # What the noise would allow does not depend on the label.
    assert affordable(params_of(THREE, epsilon=math.inf)).n_rounds == 6
    assert affordable(params_of(THREE)) == affordable(params_of()) == plan_of(params_of())


@pytest.mark.parametrize("label", LABELS)
def test_what_one_row_can_change(label: str) -> None:
    params = params_of(LABELS[label], max_rows=3)
    assert query_of(params, "tables") == Histogram(K, 3 * 256)
    assert query_of(params, "calibration") == query_of(params, "search") == Histogram(1, 3 * 256)
    clip = 64 if label == "number" else 128
    assert query_of(params, "residuals/5") == SignedCells(K, clip, 3)
    assert query_of(params, "residuals/5").l2_squared(Relation.ADD_REMOVE) == K * (3 * clip) ** 2
    assert [size_of(params, one) for one in ("calibration", "residuals/0", "search")] == [32, params.n_cells, 200]
    assert size_of(params, "tables") == params.n_cells * params.n_sides


STUDIES = [
    params_of(),
    params_of(epsilon=0.1),
    params_of(NUMBER, epsilon=1 / 3),
    params_of(THREE),
    params_of(size=10**6, epsilon=math.pi),
    params_of(max_colluders=3, minimum=6, max_rows=2, unit="person"),
]


@pytest.mark.parametrize("params", STUDIES)
def test_pure_prices_add_up_to_the_budget(params: Params) -> None:
    script = SumScript(params)
    assert tuple(script.prices) == script.questions
    spent = sum(grains_up(event.epsilon) for event in script.prices.values())
    assert grains_down(params.epsilon) - len(script.questions) <= spent <= grains_down(params.epsilon)
    loss = sequential(list(script.prices.values()))
    assert (loss.delta, loss.scope) == (0.0, params.scope)
    for question, event in script.prices.items():
        mechanism = script.mechanism(question)
        assert isinstance(mechanism, SharedLaplace) and mechanism.n_honest == params.n_honest
        assert event.mechanism == "laplace-shares" and event.reads == tuple(sorted(params.columns))


@pytest.mark.parametrize("delta", [1e-6, 1e-9, 3.3e-5])
@pytest.mark.parametrize("params", STUDIES)
def test_prices_with_a_delta_compose_to_the_budget(params: Params, delta: float) -> None:
    script = SumScript(replace(params, delta=delta))
    events = list(script.prices.values())
    loss = by_zcdp(events, delta)
    assert params.epsilon * (1 - 1e-4) <= loss.epsilon <= params.epsilon
    assert sum(delta_grains_up(event.delta) for event in events) <= delta_grains_down(delta)
    parts = [event.rho / epsilon_to_rho(params.epsilon, delta) for event in events if event.rho is not None]
    assert parts == pytest.approx([float(part) for part in script.plan.parts], rel=1e-4)
    assert all(event.mechanism == "gaussian-shares" for event in events)


def test_a_noise_knows_its_vector() -> None:
    noise = noise_of(params_of(delta=1e-6), "search", Fraction(1, 10), 4)
    assert isinstance(noise, SharedGaussian)
    assert (noise.dimension, noise.n_honest, noise.delta) == (200, 8, 2.5e-7)


def test_without_noise_there_are_no_prices() -> None:
    script = SumScript(params_of(epsilon=math.inf))
    assert not script.prices and script.mechanism("tables") is None and script.deviation("tables") == 0.0
