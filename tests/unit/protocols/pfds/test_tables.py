"""Local trust: assignment of tables, prices, and the pooled model."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.protocols.pfds.params import GRID, PFDSParams, PFDSRows
from shoal.protocols.pfds.tables import (
    PooledTables,
    assign_attributes,
    check_tables,
    choose_n_tables,
    compute_tables_size,
    count_tables,
    draw_answers,
    draw_tables,
    fit_tempered_model,
    make_consistent,
    pool_tables,
    price_tables,
)

DIGEST = bytes(range(32))
TWO, THREE, NUMBER = (
    Categorical("y", ["0", "1"]),
    Categorical("y", ["0", "1", "2"]),
    Numeric("y", 0, 8),
)


def make_params(
    label: Feature = TWO,
    epsilon: float = 1.0,
    size: int = 3000,
    n_features: int = 7,
    **figures: Any,
) -> PFDSParams:
    features = [
        Categorical(f"a{j}", [str(i) for i in range(2 + j % 3)], missing=False)
        for j in range(n_features)
    ]
    return PFDSParams(Schema(features, label), epsilon, size, **{"n_holders": 20, **figures})


def make_rows(params: PFDSParams, n: int = 3000, seed: int = 1) -> PFDSRows:
    """Return rows in which only attribute 0 is correlated with the label."""
    generator = np.random.default_rng(seed)
    columns = {f"a{j}": generator.integers(0, arity, n) for j, arity in enumerate(params.arities)}
    labels = np.where(generator.random(n) < 0.8, columns["a0"], generator.integers(0, 2, n))
    return PFDSRows.from_columns(
        params,
        columns,
        8.0 * labels if params.is_number else labels,
        generator.integers(0, params.n_holders, n),
    )


def test_choose_n_tables_follows_from_declared_figures() -> None:
    wide = make_params(n_features=14, n_holders=100, size=43_957)
    assert [
        choose_n_tables(replace(wide, epsilon=epsilon))
        for epsilon in (1.0, 0.5, 0.1, 50.0, math.inf)
    ] == [7, 3, 1, 14, 14]
    assert choose_n_tables(make_params(n_holders=3, epsilon=0.1)) == 5
    assert choose_n_tables(make_params(n_holders=1, epsilon=0.1)) == 7
    assert choose_n_tables(make_params(n_holders=1000, size=1)) == 1


@pytest.mark.parametrize(("n_holders", "epsilon"), [(20, 1.0), (21, 1.0), (7, 2.0), (3, 0.1)])
def test_attributes_are_assigned_evenly_to_holders(n_holders: int, epsilon: float) -> None:
    params = make_params(n_holders=n_holders, epsilon=epsilon)
    q, answered = choose_n_tables(params), Counter[int]()
    for holder in range(n_holders):
        attributes = assign_attributes(params, DIGEST, holder)
        assert len(set(attributes)) == q and list(attributes) == sorted(attributes)
        answered.update(attributes)
    # Each attribute has two holders or more, and the numbers of holders differ by at most one.
    assert set(answered) == set(range(7)) and min(answered.values()) >= 2
    assert max(answered.values()) - min(answered.values()) <= 1


def test_assignment_of_tables_depends_on_the_digest_only() -> None:
    params = make_params()
    orders = {
        digest: [assign_attributes(params, digest, holder) for holder in range(20)]
        for digest in (DIGEST, bytes(32))
    }
    assert orders[DIGEST] != orders[bytes(32)]
    assert orders[DIGEST] == [
        assign_attributes(replace(params, max_rows=3), DIGEST, holder) for holder in range(20)
    ]
    # The assignment is fixed across versions: holders of one study may run several.
    assert orders[DIGEST][:5] == [(0, 1), (1, 2), (3, 5), (3, 5), (0, 6)]


def test_count_tables_counts_every_row_once() -> None:
    params = make_params(THREE)
    rows = PFDSRows.from_columns(
        params, {f"a{j}": np.array([0, 1, 1]) for j in range(7)}, np.array([2, 0, 0])
    )
    assert count_tables(params, rows, (0, 1)).tolist() == [
        0,
        0,
        256,
        512,
        0,
        0,
        0,
        0,
        256,
        512,
        0,
        0,
        0,
        0,
        0,
    ]
    assert count_tables(params, rows, ()).size == 0 == compute_tables_size(params, ())
    many = make_rows(make_params(NUMBER))
    counts = count_tables(make_params(NUMBER), many, range(7))
    assert (
        counts.dtype == np.int64
        and counts.size
        == compute_tables_size(make_params(NUMBER), range(7))
        == 2 * make_params().n_cells
    )
    assert counts.sum() == 7 * GRID * len(many)
    half = PFDSRows.from_columns(
        make_params(NUMBER), {f"a{j}": np.array([0]) for j in range(7)}, np.array([2.0])
    )
    assert count_tables(make_params(NUMBER), half, (0,)).tolist() == [192, 64, 0, 0]


def test_price_tables_is_the_whole_budget() -> None:
    for label in (TWO, THREE, NUMBER):
        event = price_tables(make_params(label, 0.7, max_rows=3, unit="person"))
        q = choose_n_tables(make_params(label, 0.7))
        assert (event.mechanism, event.epsilon, event.delta, q) == ("discrete-laplace", 0.7, 0.0, 2)
        assert event.parameters == {
            "sensitivity": q * GRID * 3,
            "scale": pytest.approx(q * GRID * 3 / 0.7),
        }
        assert event.reads == ("a0", "a1", "a2", "a3", "a4", "a5", "a6", "y")
        assert str(event.scope) == "person, add-remove, against all who read the release"


@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
def test_row_changes_an_answer_by_the_priced_sensitivity(label: Feature) -> None:
    params = make_params(label)
    rows = make_rows(params, 50)
    for holder in range(5):
        attributes = assign_attributes(params, DIGEST, holder)
        without = count_tables(params, rows.take(np.arange(1, 50)), attributes)
        assert (
            np.abs(count_tables(params, rows, attributes) - without).sum()
            == price_tables(params).parameters["sensitivity"]
        )


def test_draw_tables_adds_noise_to_counts() -> None:
    params = make_params()
    rows, attributes = make_rows(params), assign_attributes(params, DIGEST, 3)
    noise = DiscreteLaplace(1.0, CellCounts(choose_n_tables(params), GRID), params.scope)
    noisy = draw_tables(params, rows, attributes, SeededEntropy(5))
    assert (
        noisy.tolist()
        == noise.randomise_many(count_tables(params, rows, attributes), SeededEntropy(5)).tolist()
    )
    bare = replace(params, epsilon=math.inf)
    assert (
        draw_tables(bare, rows, range(7), SeededEntropy(5)).tolist()
        == count_tables(bare, rows, range(7)).tolist()
    )


def test_draw_tables_rejects_more_tables_than_priced() -> None:
    params = make_params()
    with pytest.raises(AssertionError, match="more than their price"):
        draw_tables(params, make_rows(params), range(7), SeededEntropy(1))


def test_check_tables_rejects_impossible_answers() -> None:
    params = make_params()
    attributes = assign_attributes(params, DIGEST, 3)
    honest = draw_tables(params, make_rows(params), attributes, SeededEntropy(1))
    check_tables(params, attributes, honest)
    wide = 64 * float(price_tables(params).parameters["scale"])
    for fault in (honest[:-1], honest.reshape(-1, 2), np.append(honest, 0)):
        with pytest.raises(RemoteProtocolError, match="unusable") as error:
            check_tables(params, attributes, fault)
        assert error.value.code == "PFDS-001"
    for number, is_fair in (
        (-wide, True),
        (-wide - 1, False),
        (16 * 3000 * GRID + wide, True),
        (16 * 3000 * GRID + wide + 1, False),
    ):
        strange = np.where(np.arange(len(honest)) == 2, int(number), honest)
        if is_fair:
            check_tables(params, attributes, strange)
        else:
            with pytest.raises(RemoteProtocolError, match="larger than 16 times"):
                check_tables(params, attributes, strange)
    for number in (2**63 - 1, -(2**63)):
        with pytest.raises(RemoteProtocolError):
            check_tables(params, attributes, np.full_like(honest, number))
    bare = replace(params, epsilon=math.inf)
    check_tables(bare, range(7), count_tables(bare, make_rows(bare), range(7)))
    with pytest.raises(RemoteProtocolError):
        check_tables(bare, range(7), count_tables(bare, make_rows(bare), range(7)) - 2**20)


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_pooled_model_without_noise_equals_model_of_all_rows(label: Feature) -> None:
    params = make_params(label, math.inf)
    rows = make_rows(params)
    model = pool_tables(
        params, DIGEST, draw_answers(params, DIGEST, rows, range(20), SeededEntropy(1))
    )
    whole = fit_tempered_model(
        params,
        PooledTables.from_sums(
            params, count_tables(params, rows, range(7)).reshape(-1, 2) / GRID, np.zeros(7)
        ),
    )
    assert np.allclose(model.weights, whole.weights) and np.allclose(model.shares, whole.shares)
    assert not model.variances.any()
    # Only attribute 0 is informative.
    sizes = np.add.reduceat(np.abs(model.weights[:, 0]), params.starts[:-1])
    assert sizes[0] > 4 * sizes[1:].max()


def test_each_table_is_pooled_from_answering_holders() -> None:
    params = make_params(epsilon=2.0)
    rows = make_rows(params)
    answers = draw_answers(params, DIGEST, rows, range(0, 20, 2), SeededEntropy(1))
    assert sorted(answers) == list(range(0, 20, 2))
    sums, noise = np.zeros((params.n_cells, 2)), np.zeros(7)
    for holder, noisy in answers.items():
        tables = iter(noisy.reshape(-1, 2))
        for a in assign_attributes(params, DIGEST, holder):
            noise[a] += (
                DiscreteLaplace(
                    2.0, CellCounts(choose_n_tables(params), GRID), params.scope
                ).variance()
                / GRID**2
            )
            for cell in range(params.starts[a], params.starts[a + 1]):
                sums[cell] += next(tables) / GRID
    assert (noise > 0).all()
    expected = fit_tempered_model(params, PooledTables.from_sums(params, sums, noise))
    model = pool_tables(params, DIGEST, answers)
    for part in ("weights", "intercepts", "variances", "shares"):
        assert np.allclose(getattr(model, part), getattr(expected, part))


def test_draw_answers_uses_own_rows_of_each_holder() -> None:
    params = make_params(epsilon=math.inf)
    rows = make_rows(params)
    assert rows.owners is not None
    answers = draw_answers(params, DIGEST, rows, [4, 19, 0], SeededEntropy(1))
    for holder in (0, 4, 19):
        own = rows.take(np.flatnonzero(rows.owners == holder))
        assert answers[holder].tolist() == count_tables(params, own, range(7)).tolist()


def test_draw_answers_draws_separate_noise_for_each_holder() -> None:
    params = make_params(size=3)
    nobody = make_rows(params).take(np.zeros(0, np.int64))
    answers = draw_answers(params, DIGEST, nobody, range(20), SeededEntropy(1))
    assert (
        all(noisy.any() for noisy in answers.values())
        and len({noisy.tobytes() for noisy in answers.values()}) == 20
    )


def test_unanswered_attributes_have_no_weight() -> None:
    params = make_params()
    model = pool_tables(params, DIGEST, {})
    assert not model.weights.any() and np.allclose(model.intercepts, 0)
    answers = draw_answers(params, DIGEST, make_rows(params), [0], SeededEntropy(1))
    model, answered = pool_tables(params, DIGEST, answers), assign_attributes(params, DIGEST, 0)
    for a in range(7):
        table = slice(params.starts[a], params.starts[a + 1])
        assert model.weights[table].any() == (a in answered)
        assert model.variances[table].min() > 0.33 or a in answered


@pytest.mark.untraced
@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
@given(st.data())
def test_any_accepted_answers_give_a_finite_model(label: Feature, data: st.DataObject) -> None:
    params = make_params(label, n_features=3, n_holders=4)
    most = 16 * params.size * GRID
    numbers = (
        st.integers(-200_000, most) | st.sampled_from([0, most, -200_000]) | st.integers(-3, 3)
    )
    answers = {}
    for holder in data.draw(st.sets(st.integers(0, 3))):
        size = compute_tables_size(params, assign_attributes(params, DIGEST, holder))
        answers[holder] = np.array(
            data.draw(st.lists(numbers, min_size=size, max_size=size)), np.int64
        )
        check_tables(
            params, assign_attributes(params, DIGEST, holder), np.maximum(answers[holder], -1000)
        )
    model = pool_tables(params, DIGEST, answers)
    for part in (model.weights, model.intercepts, model.variances, model.shares):
        assert np.isfinite(part).all()


def test_pooled_model_is_better_with_a_larger_budget() -> None:
    errors = []
    for epsilon in (0.02, 2.0):
        params = make_params(epsilon=epsilon)
        rows, fresh = make_rows(params), make_rows(params, seed=2)
        model = pool_tables(
            params, DIGEST, draw_answers(params, DIGEST, rows, range(20), SeededEntropy(4))
        )
        errors.append(
            float(np.mean((model.compute_scores(fresh.cells)[:, 0] > 0) != (fresh.sides[:, 1] > 0)))
        )
    assert errors[1] < 0.12 < errors[0]


def test_pooled_model_has_shares_of_cells_and_classes() -> None:
    params = make_params(THREE, math.inf)
    rows = make_rows(make_params(THREE, math.inf))
    model = pool_tables(
        params, DIGEST, draw_answers(params, DIGEST, rows, range(20), SeededEntropy(1))
    )
    sums = count_tables(params, rows, range(7)).reshape(-1, 3) / GRID
    shares = make_consistent(params, PooledTables.from_sums(params, sums, np.zeros(7)))
    assert np.allclose(model.shares, shares.f)
    # The third class has no rows: its share is the smallest possible one.
    assert model.intercepts[2] == pytest.approx(math.log(0.02 / 1.02 / (1 - 0.02 / 1.02)))
