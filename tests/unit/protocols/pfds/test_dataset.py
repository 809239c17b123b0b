"""Released rows: drawn inside their cells, labelled by the model, readable by the schema."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.dataset import Dataset, draw_dataset, draw_uniform, place_values
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import PFDSParams, code_feature, encode_cells

FEATURES = (
    Numeric("age", 17, 90),
    Numeric("hour", 0, 23, missing=False),
    Numeric("gain", 0, 12800, missing=False),
    Numeric("balance", -6400, 3000),
    Categorical("town", ["x", "y", "z"], groups={"near": ["x", "z"], "far": ["y"]}),
    Categorical("wet", ["no", "yes"], missing=False),
)
TWO, THREE, NUMBER = (
    Categorical("y", ["0", "1"]),
    Categorical("y", ["0", "1", "2"]),
    Numeric("y", 10, 30),
)
N = 20_000


class ConstantEntropy(SeededEntropy):
    """A source whose bits are all equal: the smallest and the largest draws."""

    def __init__(self, byte: bytes) -> None:
        super().__init__(0)
        self.byte = byte

    def bytes(self, n: int) -> bytes:
        return self.byte * n


LOWEST, HIGHEST = ConstantEntropy(b"\0"), ConstantEntropy(b"\xff")


def make_model(label: Feature, size: float = 1.0) -> PooledModel:
    params = PFDSParams(Schema(FEATURES, label), 1.0, 100)
    generator = np.random.default_rng(1)
    shape = (params.n_cells, params.n_models)
    shares = np.concatenate([generator.dirichlet(np.ones(arity)) for arity in params.arities])
    return PooledModel(
        params,
        size * generator.normal(size=shape),
        generator.normal(size=shape[1]),
        np.zeros(shape),
        shares,
    )


def test_draw_uniform_is_from_0_to_below_1() -> None:
    numbers = draw_uniform(N, SeededEntropy(1))
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.02
    assert draw_uniform(1, LOWEST).tolist() == [0] and draw_uniform(1, HIGHEST).tolist() == [
        1 - 2.0**-53
    ]


def test_cells_are_drawn_with_the_shares_of_the_model() -> None:
    model = make_model(TWO)
    dataset = draw_dataset(model, N, SeededEntropy(2))
    assert len(dataset) == N
    shares = (
        np.bincount(
            encode_cells(model.params, dataset.columns).ravel(), minlength=model.params.n_cells
        )
        / N
    )
    assert np.abs(shares - model.shares).max() < 0.02


def test_cell_without_a_share_is_never_drawn() -> None:
    model = make_model(TWO)
    shares = model.shares.copy()
    for start, end in zip(model.params.starts[:-1], model.params.starts[1:], strict=True):
        shares[start:end] = 0
        # Shares in a file need not add up exactly.
        shares[end - 1 if end - start == 2 else end - 2] = 0.9999999
    few = replace(model, shares=shares)
    for entropy in (SeededEntropy(2), LOWEST, HIGHEST):
        cells = encode_cells(model.params, draw_dataset(few, 100, entropy).columns)
        assert (shares[cells] > 0).all()


def test_rounding_never_draws_an_unknown_class() -> None:
    model, generator, n_short = make_model(THREE), np.random.default_rng(2), 0
    for _ in range(100):
        other = replace(model, intercepts=generator.normal(size=3))
        drawn = draw_dataset(other, 1, HIGHEST)
        n_short += bool(other.probabilities(drawn.columns).cumsum()[-1] < 1)
        assert drawn.labels.tolist() == [2]
    assert n_short > 5


@pytest.mark.parametrize("label", [TWO, THREE])
def test_classes_are_drawn_with_the_probabilities_of_the_model(label: Feature) -> None:
    model = make_model(label)
    dataset = draw_dataset(model, N, SeededEntropy(2))
    assert dataset.labels.dtype == np.int64
    chances = model.probabilities(dataset.columns)
    for label in range(chances.shape[1]):
        for group in (chances[:, label] < 0.3, chances[:, label] >= 0.3):
            shares = (dataset.labels[group] == label).mean(), chances[group, label].mean()
            assert abs(shares[0] - shares[1]) < 0.03


def test_certain_class_is_always_drawn() -> None:
    model = make_model(TWO, size=1e5)
    dataset = draw_dataset(model, 500, SeededEntropy(2))
    assert dataset.labels.tolist() == model.decide(dataset.columns).tolist()


def test_numeric_label_is_the_prediction_of_the_model() -> None:
    model = make_model(NUMBER)
    dataset = draw_dataset(model, 100, SeededEntropy(2))
    assert dataset.labels.tolist() == model.predict(dataset.columns).tolist()


def test_draws_differ_by_seed_and_may_be_empty() -> None:
    model = make_model(TWO)
    one, other = (
        draw_dataset(model, 50, SeededEntropy(1)),
        draw_dataset(model, 50, SeededEntropy(2)),
    )
    assert one.columns["age"].tolist() != other.columns["age"].tolist()
    assert (
        one.columns["gain"].tolist()
        == draw_dataset(model, 50, SeededEntropy(1)).columns["gain"].tolist()
    )
    assert len(draw_dataset(model, 0, SeededEntropy(1))) == 0


@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
def test_schema_encodes_decoded_rows_exactly(label: Feature) -> None:
    model = make_model(label)
    schema = model.params.schema
    dataset = draw_dataset(model, 2000, SeededEntropy(3))
    table = dataset.decode(schema)
    assert list(table) == [*schema.names, "y"]
    for name, column in schema.encode(table).items():
        assert np.array_equal(column, dataset.columns[name], equal_nan=name in ("age", "balance"))
    assert np.array_equal(schema.encode_label(table), dataset.labels)
    assert {None, "x", "y", "z"} == set(table["town"].tolist()) and np.isnan(table["age"]).any()


def test_decode_accepts_datasets_of_other_sources() -> None:
    schema = Schema([FEATURES[0], FEATURES[4]], THREE)
    table = Dataset(
        {"age": np.array([20, 30]), "town": np.array([-1, 2])}, np.array([1, 0])
    ).decode(schema)
    assert {name: column.tolist() for name, column in table.items()} == {
        "age": [20.0, 30.0],
        "town": [None, "z"],
        "y": ["1", "0"],
    }


def test_place_values_keeps_whole_numbers_whole() -> None:
    places = draw_uniform(400, SeededEntropy(4))
    hour = code_feature(FEATURES[1])
    assert set(place_values(hour, np.arange(400) % 24, places).tolist()) == set(range(24))
    own = Numeric("age", 17, 90, bins=[29.5, 45.5])
    drawn = place_values(own, np.arange(400) % 3, places)
    assert (drawn % 1 == 0).all() and set(own.cut(drawn)) == {0, 1, 2}
    assert (drawn.min(), drawn.max()) == (17, 90) and len(set(drawn[np.arange(400) % 3 == 0])) == 13
    for other in (
        Numeric("x", 17, 90, bins=[29.5, 45]),
        Numeric("x", 17, 90.5, bins=[29.5]),
        Numeric("x", 0.5, 9, bins=[2.5]),
    ):
        assert (place_values(other, np.zeros(9, np.int64), places[:9]) % 1 != 0).any()
    assert (
        place_values(Numeric("x", 0, 9, bins=[]), np.zeros(9, np.int64), places[:9]) % 1 != 0
    ).any()


def test_place_values_spreads_values_over_cells() -> None:
    places = np.array([0.0, 0.25, 1 - 2.0**-53])
    age = Numeric("age", 0, 80, bins=[20, 40])
    assert place_values(age, np.array([1, 1, 1]), places).tolist() == pytest.approx([40, 35, 20])
    assert place_values(age, np.array([0, 2, 0]), places).tolist() == pytest.approx([20, 70, 0])
    assert np.isnan(place_values(age, np.array([3, 3, 3]), places)).all()
    gain = place_values(code_feature(FEATURES[2]), np.zeros(3, np.int64), places)
    assert gain.tolist() == [0, 0, 0]
    balance = code_feature(FEATURES[3])
    zero = int(balance.cut(np.array([0.0]))[0])
    drawn = place_values(balance, np.full(300, zero), np.tile(places, 100))
    assert not drawn.any()


def test_place_values_draws_members_of_a_group_equally() -> None:
    town = FEATURES[4]
    assert place_values(
        town, np.array([0, 0, 0, 0, 1, 1, 2, 2]), np.array([0, 0.49, 0.5, 0.99, 0, 0.99, 0, 0.99])
    ).tolist() == [
        0,
        0,
        2,
        2,
        1,
        1,
        -1,
        -1,
    ]
    assert place_values(FEATURES[5], np.array([0, 1]), np.array([0.0, 0.999])).tolist() == [0, 1]


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.data())
def test_place_values_stays_in_the_cell_for_any_range(
    low: float, width: float, data: st.DataObject
) -> None:
    high = low + width
    if low < high:
        feature = code_feature(Numeric("x", low, high))
        cells = data.draw(
            st.lists(st.integers(0, (feature.n_bins or 1) - 1), min_size=1, max_size=5)
        )
        places = data.draw(
            st.lists(
                st.sampled_from([0.0, 0.5, 1 - 2.0**-53]) | st.floats(0, 0.999),
                min_size=5,
                max_size=5,
            )
        )
        values = place_values(feature, np.array(cells), np.array(places)[: len(cells)])
        assert feature.cut(values).tolist() == cells
        assert all(math.isnan(value) or low <= value <= high for value in values.tolist())
