"""Models of every kind with random numbers, and rows at and outside the edges of a schema."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from hypothesis import strategies as st

from shoal.data.cells import as_column, to_numbers, to_texts
from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.models import Model, read_model, to_onnx
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml.ensemble import PartitionClassifier, WeightedVote
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.sdq.model import DecisionTree

STATEMENT = {
    "title": "Who is ill?",
    "unit": "person",
    "relation": "replace",
    "adversary": "everyone",
    "epsilon": 2.0,
    "delta": 0.0,
    "how": "plain sum of 1 release",
    "everything": {"epsilon": 2.0, "delta": 0.0},
}
KINDS = ("additive", "vote", "tree", "linear", "pooled")
NAMES = ("age", "label", "probabilities", "größe (cm)", "c.0", "a/b", "label_")
"""Names of features; a graph might use some of them for its outputs."""
VALUES = ("Männer", "x, y", "=1+1", "no", "-1", "two words", "0", "NaN")

Columns = dict[str, npt.NDArray[Any]]


@st.composite
def features(draw: st.DrawFn, name: str, *, binned: bool) -> Feature:
    missing = draw(st.sampled_from([True, False]))
    if draw(st.booleans()):
        values = draw(st.lists(st.sampled_from(VALUES), min_size=2, max_size=5, unique=True))
        if len(values) > 2 and draw(st.booleans()):
            return Categorical(name, values, {"one": values[:1], "others": values[1:]}, missing)
        return Categorical(name, values, None, missing)
    low = draw(st.sampled_from([-5, 0, 0.1, 1e-9, 17, -1e15]))
    high = low + draw(st.sampled_from([1, 0.3, 73, 1e6]))
    shares = draw(
        st.lists(st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9]), max_size=4, unique=True)
    )
    bins = sorted(
        {cut for cut in (low + share * (high - low) for share in shares) if low <= cut < high}
    )
    return Numeric(name, low, high, bins if binned or draw(st.booleans()) else None, missing)


@st.composite
def schemas(draw: st.DrawFn, *, binned: bool = True, number: bool = False) -> Schema:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    parts = [draw(features(name, binned=binned)) for name in names]
    if number:
        return Schema(
            parts, Numeric("target", -3, draw(st.sampled_from([-2.5, 4, 1e6])), missing=False)
        )
    n_classes = draw(st.integers(2, 4))
    return Schema(
        parts, Categorical("target", [f"class {i}" for i in range(n_classes)], missing=False)
    )


def _draw_shares(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float64]:
    drawn = rng.integers(1, 6, shape).astype(np.float64)
    shares: npt.NDArray[np.float64] = drawn / drawn.sum(axis=-1, keepdims=True)
    return shares


@st.composite
def models(draw: st.DrawFn, kind: str) -> Model:
    """Return a model of a kind; weights are few and coarse, so that ties occur."""
    number = kind in ("linear", "pooled") and draw(st.booleans())
    schema = draw(schemas(binned=kind != "linear", number=number))
    # Tables of numbers are generated from a seed, which is faster than drawing each number.
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_labels = 0 if number else len(schema.label.values)  # type: ignore[union-attr]
    sizes = [feature.n_bins or 0 for feature in schema.features]

    def weights(*shape: int) -> npt.NDArray[np.float64]:
        return rng.integers(-8, 9, shape) / (40 if number else 4)

    if kind == "additive":
        return _read_model(
            AdditiveModel(
                schema,
                _draw_shares(rng, n_labels),
                tuple(weights(n_labels, size) for size in sizes),
            )
        )
    if kind == "pooled":
        n_models = 1 if number or n_labels == 2 else n_labels
        shares = np.concatenate([_draw_shares(rng, size) for size in sizes])
        params = PFDSParams(schema, epsilon=math.inf, size=1)
        return _read_model(
            PooledModel(
                params,
                weights(sum(sizes), n_models),
                weights(n_models),
                np.abs(weights(sum(sizes), n_models)),
                shares,
            )
        )
    if kind == "vote":
        return _read_model(
            VoteModel(
                schema,
                WeightedVote(
                    tuple(_make_classifiers(rng, sizes, n_labels, draw(st.integers(0, 5)))),
                    n_labels,
                ),
            )
        )
    if kind == "tree":
        return _read_model(_make_tree(rng, schema, sizes, n_labels))
    links = (
        ("identity", "log")
        if number
        else ("logit", "multinomial")
        if n_labels == 2
        else ("multinomial",)
    )
    link, names = draw(st.sampled_from(links)), schema.names
    pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    crosses = tuple(pair for pair in pairs if draw(st.booleans()))
    rows = n_labels if link == "multinomial" else 1
    return _read_model(
        GLM(
            schema,
            link,
            crosses,
            weights(rows, InputDesign(schema, crosses).width),
            centred=draw(st.booleans()),
        )
    )


def _read_model(learned: Any) -> Model:
    return read_model(learned.to_plain())


def _make_classifiers(
    rng: np.random.Generator, sizes: list[int], n_labels: int, n: int
) -> list[PartitionClassifier]:
    made = []
    for _ in range(n):
        chosen = rng.permutation(len(sizes))[: rng.integers(1, len(sizes) + 1)].tolist()
        n_bins = tuple(sizes[j] for j in chosen)
        made.append(
            PartitionClassifier(
                tuple(chosen),
                n_bins,
                _draw_shares(rng, math.prod(n_bins), n_labels),
                int(rng.integers(0, 3)) / 4,
            )
        )
    return made


def _make_tree(
    rng: np.random.Generator, schema: Schema, sizes: list[int], n_labels: int
) -> DecisionTree:
    splits, firsts, free = [-1], [-1], [frozenset(range(len(sizes)))]
    for node in range(40):
        if node < len(splits) and free[node] and rng.random() < 0.8:
            split = sorted(free[node])[rng.integers(len(free[node]))]
            splits[node], firsts[node] = split, len(splits)
            for _ in range(sizes[split]):
                splits.append(-1)
                firsts.append(-1)
                free.append(free[node] - {split})
    counts = rng.integers(0, 9, (len(splits), n_labels)).astype(np.float64)
    return DecisionTree(
        schema,
        np.array(splits),
        np.array(firsts),
        counts,
        _draw_shares(rng, len(splits), n_labels),
        (1.0, 2.0),
    )


@st.composite
def draw_columns(draw: st.DrawFn, schema: Schema, n: int = 12) -> Columns:
    """Return raw columns: at and next to cuts, outside the range, missing if allowed, unknown."""
    columns: Columns = {}
    for feature in schema.features:
        if isinstance(feature, Numeric):
            cuts = [float(cut) for cut in (feature.low, feature.high, *(feature.bins or ()))]
            near = [math.nextafter(cut, way) for cut in cuts for way in (-math.inf, math.inf)]
            inside = st.floats(float(feature.low), float(feature.high))
            some = st.sampled_from(
                [
                    *cuts,
                    *near,
                    feature.low - 1.5,
                    feature.high + 1e9,
                ]
            )
            gone = st.just(math.nan) if feature.missing else inside
            columns[feature.name] = np.array(
                draw(st.lists(some | inside | gone, min_size=n, max_size=n)), np.float64
            )
        else:
            cells = st.sampled_from(
                [*feature.values, "never declared", *([""] if feature.missing else [])]
            )
            columns[feature.name] = np.array(draw(st.lists(cells, min_size=n, max_size=n)), object)
    return columns


def make_session(model: Model) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )


def run_onnx(model: Model, columns: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return the outputs of onnxruntime for raw columns."""
    outputs: list[npt.NDArray[Any]] = make_session(model).run(
        None, {name: column.reshape(-1, 1) for name, column in columns.items()}
    )
    return outputs


def assert_same(model: Model, columns: Columns, outputs: list[npt.NDArray[Any]]) -> None:
    """Compare chances to 1e-6, numbers to 1e-9 of their range, decisions except for ties."""
    if not model.classes:
        assert isinstance(model.label, Numeric)
        [numbers] = outputs
        np.testing.assert_allclose(
            numbers,
            model.predict(columns),
            rtol=0,
            atol=1e-9 * (model.label.high - model.label.low),
        )
        return
    label, chances = outputs
    expected = model.probabilities(columns)
    np.testing.assert_allclose(chances, expected, rtol=0, atol=1e-6)
    differs = label != model.predict(columns)
    if model.kind == "linear":
        best = np.sort(expected, axis=1)
        # Chances that are equal but for the last bits may be decided either way.
        differs &= best[:, -1] - best[:, -2] > 1e-12
    assert not differs.any()


def make_onnx_inputs(schema: Schema, table: Mapping[str, npt.NDArray[Any]]) -> Columns:
    """Return the columns of a table as inputs of a graph.

    Numbers are doubles, NaN if missing; texts are empty if missing.
    """
    columns: Columns = {}
    for feature in schema.features:
        cells = as_column(feature.name, table[feature.name])
        if isinstance(feature, Numeric):
            columns[feature.name] = to_numbers(feature.name, cells)
        else:
            columns[feature.name] = np.array(
                [text or "" for text in to_texts(feature.name, cells)], object
            )
    return columns
