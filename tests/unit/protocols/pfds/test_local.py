"""Trust local: who answers what, what it costs, and what is pooled from it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import Histogram
from shoal.protocols.pfds.local import answer, answers_of, attributes_of, check, count, n_tables, pooled, price, size_of
from shoal.protocols.pfds.params import GRID, Params, Rows
from shoal.protocols.pfds.pooling import Tables, clean, tempered

DIGEST = bytes(range(32))
TWO, THREE, NUMBER = Categorical("y", ["0", "1"]), Categorical("y", ["0", "1", "2"]), Numeric("y", 0, 8)


def params_of(label: Feature = TWO, epsilon: float = 1.0, size: int = 3000, n_features: int = 7, **figures: Any) -> Params:
    features = [Categorical(f"a{j}", [str(i) for i in range(2 + j % 3)], missing=False) for j in range(n_features)]
    return Params(Schema(features, label), epsilon, size, **{"n_holders": 20, **figures})


def rows_of(params: Params, n: int = 3000, seed: int = 1) -> Rows:
    """Attribute 0 goes with the label, the others do not."""
    generator = np.random.default_rng(seed)
    columns = {f"a{j}": generator.integers(0, arity, n) for j, arity in enumerate(params.arities)}
    labels = np.where(generator.random(n) < 0.8, columns["a0"], generator.integers(0, 2, n))
    return Rows.of(params, columns, 8.0 * labels if params.is_number else labels, generator.integers(0, params.n_holders, n))


def test_tables_follow_from_the_declared_figures() -> None:
    wide = params_of(n_features=14, n_holders=100, size=43_957)
    assert [n_tables(replace(wide, epsilon=epsilon)) for epsilon in (1.0, 0.5, 0.1, 50.0, math.inf)] == [7, 3, 1, 14, 14]
    assert n_tables(params_of(n_holders=3, epsilon=0.1)) == 5
    assert n_tables(params_of(n_holders=1, epsilon=0.1)) == 7
    assert n_tables(params_of(n_holders=1000, size=1)) == 1


@pytest.mark.parametrize(("n_holders", "epsilon"), [(20, 1.0), (21, 1.0), (7, 2.0), (3, 0.1)])
def test_attributes_go_round_among_the_holders(n_holders: int, epsilon: float) -> None:
    params = params_of(n_holders=n_holders, epsilon=epsilon)
    q, answered = n_tables(params), Counter[int]()
    for holder in range(n_holders):
        attributes = attributes_of(params, DIGEST, holder)
        assert len(set(attributes)) == q and list(attributes) == sorted(attributes)
        answered.update(attributes)
    # None is answered by fewer holders than two, or by two fewer than another.
    assert set(answered) == set(range(7)) and min(answered.values()) >= 2
    assert max(answered.values()) - min(answered.values()) <= 1


def test_the_digest_alone_says_who_answers_what() -> None:
    params = params_of()
    orders = {digest: [attributes_of(params, digest, holder) for holder in range(20)] for digest in (DIGEST, bytes(32))}
    assert orders[DIGEST] != orders[bytes(32)]
    assert orders[DIGEST] == [attributes_of(replace(params, max_rows=3), DIGEST, holder) for holder in range(20)]
    # Across the versions of shoal, too: holders of one study may run several.
    assert orders[DIGEST][:5] == [(0, 1), (1, 2), (3, 5), (3, 5), (0, 6)]


def test_tables_count_every_row_once() -> None:
    params = params_of(THREE)
    rows = Rows.of(params, {f"a{j}": np.array([0, 1, 1]) for j in range(7)}, np.array([2, 0, 0]))
    assert count(params, rows, (0, 1)).tolist() == [0, 0, 256, 512, 0, 0, 0, 0, 256, 512, 0, 0, 0, 0, 0]
    assert count(params, rows, ()).size == 0 == size_of(params, ())
    many = rows_of(params_of(NUMBER))
    counts = count(params_of(NUMBER), many, range(7))
    assert counts.dtype == np.int64 and counts.size == size_of(params_of(NUMBER), range(7)) == 2 * params_of().n_cells
    assert counts.sum() == 7 * GRID * len(many)
    half = Rows.of(params_of(NUMBER), {f"a{j}": np.array([0]) for j in range(7)}, np.array([2.0]))
    assert count(params_of(NUMBER), half, (0,)).tolist() == [192, 64, 0, 0]


def test_tables_cost_the_whole_budget_and_no_more() -> None:
    for label in (TWO, THREE, NUMBER):
        event = price(params_of(label, 0.7, max_rows=3, unit="person"))
        q = n_tables(params_of(label, 0.7))
        assert (event.mechanism, event.epsilon, event.delta, q) == ("discrete-laplace", 0.7, 0.0, 2)
        assert event.parameters == {"sensitivity": q * GRID * 3, "scale": pytest.approx(q * GRID * 3 / 0.7)}
        assert event.reads == ("a0", "a1", "a2", "a3", "a4", "a5", "a6", "y")
        assert str(event.scope) == "person, add-remove, against all who read the release"


@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
def test_a_row_changes_an_answer_by_no_more_than_is_paid_for(label: Feature) -> None:
    params = params_of(label)
    rows = rows_of(params, 50)
    for holder in range(5):
        attributes = attributes_of(params, DIGEST, holder)
        without = count(params, rows.take(np.arange(1, 50)), attributes)
        assert np.abs(count(params, rows, attributes) - without).sum() == price(params).parameters["sensitivity"]


def test_an_answer_is_counts_and_noise() -> None:
    params = params_of()
    rows, attributes = rows_of(params), attributes_of(params, DIGEST, 3)
    noise = DiscreteLaplace(1.0, Histogram(n_tables(params), GRID), params.scope)
    noisy = answer(params, rows, attributes, SeededEntropy(5))
    assert noisy.tolist() == noise.randomise_many(count(params, rows, attributes), SeededEntropy(5)).tolist()
    bare = replace(params, epsilon=math.inf)
    assert answer(bare, rows, range(7), SeededEntropy(5)).tolist() == count(bare, rows, range(7)).tolist()


def test_more_tables_are_not_answered_for_the_price() -> None:
    params = params_of()
    with pytest.raises(AssertionError, match="more than their price"):
        answer(params, rows_of(params), range(7), SeededEntropy(1))


def test_absurd_answers_are_refused() -> None:
    params = params_of()
    attributes = attributes_of(params, DIGEST, 3)
    honest = answer(params, rows_of(params), attributes, SeededEntropy(1))
    check(params, attributes, honest)
    wide = 64 * float(price(params).parameters["scale"])
    for fault in (honest[:-1], honest.reshape(-1, 2), np.append(honest, 0)):
        with pytest.raises(RemoteProtocolError, match="not used") as error:
            check(params, attributes, fault)
        assert error.value.code == "PFDS-001"
    for number, is_fair in ((-wide, True), (-wide - 1, False), (16 * 3000 * GRID + wide, True), (16 * 3000 * GRID + wide + 1, False)):
        strange = np.where(np.arange(len(honest)) == 2, int(number), honest)
        if is_fair:
            check(params, attributes, strange)
        else:
            with pytest.raises(RemoteProtocolError, match="larger than 16 times"):
                check(params, attributes, strange)
    for number in (2**63 - 1, -(2**63)):
        with pytest.raises(RemoteProtocolError):
            check(params, attributes, np.full_like(honest, number))
    bare = replace(params, epsilon=math.inf)
    check(bare, range(7), count(bare, rows_of(bare), range(7)))
    with pytest.raises(RemoteProtocolError):
        check(bare, range(7), count(bare, rows_of(bare), range(7)) - 2**20)


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_without_noise_the_model_is_that_of_all_rows(label: Feature) -> None:
    params = params_of(label, math.inf)
    rows = rows_of(params)
    model = pooled(params, DIGEST, answers_of(params, DIGEST, rows, range(20), SeededEntropy(1)))
    whole = tempered(params, Tables.of(params, count(params, rows, range(7)).reshape(-1, 2) / GRID, np.zeros(7)))
    assert np.allclose(model.weights, whole.weights) and np.allclose(model.shares, whole.shares)
    assert not model.variances.any()
    # Attribute 0 alone says something.
    sizes = np.add.reduceat(np.abs(model.weights[:, 0]), params.starts[:-1])
    assert sizes[0] > 4 * sizes[1:].max()


def test_each_table_is_pooled_from_those_who_answer_it() -> None:
    params = params_of(epsilon=2.0)
    rows = rows_of(params)
    answers = answers_of(params, DIGEST, rows, range(0, 20, 2), SeededEntropy(1))
    assert sorted(answers) == list(range(0, 20, 2))
    sums, noise = np.zeros((params.n_cells, 2)), np.zeros(7)
    for holder, noisy in answers.items():
        tables = iter(noisy.reshape(-1, 2))
        for a in attributes_of(params, DIGEST, holder):
            noise[a] += DiscreteLaplace(2.0, Histogram(n_tables(params), GRID), params.scope).variance() / GRID**2
            for cell in range(params.starts[a], params.starts[a + 1]):
                sums[cell] += next(tables) / GRID
    assert (noise > 0).all()
    expected = tempered(params, Tables.of(params, sums, noise))
    model = pooled(params, DIGEST, answers)
    for part in ("weights", "intercepts", "variances", "shares"):
        assert np.allclose(getattr(model, part), getattr(expected, part))


def test_a_holder_answers_its_own_rows_alone() -> None:
    params = params_of(epsilon=math.inf)
    rows = rows_of(params)
    assert rows.whose is not None
    answers = answers_of(params, DIGEST, rows, [4, 19, 0], SeededEntropy(1))
    for holder in (0, 4, 19):
        own = rows.take(np.flatnonzero(rows.whose == holder))
        assert answers[holder].tolist() == count(params, own, range(7)).tolist()


def test_holders_have_noise_of_their_own() -> None:
    params = params_of(size=3)
    nobody = rows_of(params).take(np.zeros(0, np.int64))
    answers = answers_of(params, DIGEST, nobody, range(20), SeededEntropy(1))
    assert all(noisy.any() for noisy in answers.values()) and len({noisy.tobytes() for noisy in answers.values()}) == 20


def test_attributes_that_nobody_answers_say_nothing() -> None:
    params = params_of()
    model = pooled(params, DIGEST, {})
    assert not model.weights.any() and np.allclose(model.intercepts, 0)
    answers = answers_of(params, DIGEST, rows_of(params), [0], SeededEntropy(1))
    model, answered = pooled(params, DIGEST, answers), attributes_of(params, DIGEST, 0)
    for a in range(7):
        table = slice(params.starts[a], params.starts[a + 1])
        assert model.weights[table].any() == (a in answered)
        assert model.variances[table].min() > 0.33 or a in answered


@pytest.mark.untraced
@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
@given(st.data())
def test_any_answers_that_pass_give_a_finite_model(label: Feature, data: st.DataObject) -> None:
    params = params_of(label, n_features=3, n_holders=4)
    most = 16 * params.size * GRID
    numbers = st.integers(-200_000, most) | st.sampled_from([0, most, -200_000]) | st.integers(-3, 3)
    answers = {}
    for holder in data.draw(st.sets(st.integers(0, 3))):
        size = size_of(params, attributes_of(params, DIGEST, holder))
        answers[holder] = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.int64)
        check(params, attributes_of(params, DIGEST, holder), np.maximum(answers[holder], -1000))
    model = pooled(params, DIGEST, answers)
    for part in (model.weights, model.intercepts, model.variances, model.shares):
        assert np.isfinite(part).all()


def test_a_model_learns_more_with_a_larger_budget() -> None:
    errors = []
    for epsilon in (0.02, 2.0):
        params = params_of(epsilon=epsilon)
        rows, fresh = rows_of(params), rows_of(params, seed=2)
        model = pooled(params, DIGEST, answers_of(params, DIGEST, rows, range(20), SeededEntropy(4)))
        errors.append(float(np.mean((model.scores(fresh.cells)[:, 0] > 0) != (fresh.sides[:, 1] > 0))))
    assert errors[1] < 0.12 < errors[0]


def test_shares_are_those_of_the_classes() -> None:
    params = params_of(THREE, math.inf)
    rows = rows_of(params_of(THREE, math.inf))
    model = pooled(params, DIGEST, answers_of(params, DIGEST, rows, range(20), SeededEntropy(1)))
    sums = count(params, rows, range(7)).reshape(-1, 3) / GRID
    shares = clean(params, Tables.of(params, sums, np.zeros(7)))
    assert np.allclose(model.shares, shares.f)
    # Nobody is of the third class: its share is the least that there is.
    assert model.intercepts[2] == pytest.approx(math.log(0.02 / 1.02 / (1 - 0.02 / 1.02)))
