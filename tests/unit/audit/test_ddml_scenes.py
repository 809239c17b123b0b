"""Hostile aggregators of DDML: their instances and the two rows that they separate."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.ddml import make_adversaries, make_extreme_rows
from shoal.protocols.ddml.links import predict_means
from shoal.protocols.ddml.peer import TrainingRows
from shoal.study.ddml import build_params
from tests.unit.audit.ddml_studies import NUMBER, STUDIES, THREE, make_study

NAMES = list(STUDIES)


def gradients(params, scene, instance):
    return [
        TrainingRows.from_columns(params, *scene.select_device(which)).gradient(params, instance)
        for which in (0, 1)
    ]


def predictions(params, scene, instance):
    weights = instance.reshape(params.n_outputs, -1) * 2.0**-params.fraction_bits
    return predict_means(params.link, params.design.make_inputs(scene.columns).multiply(weights))


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", NAMES)
def test_undecided_model_gives_opposite_gradients(name):
    params = build_params(STUDIES[name])
    undecided, _ = make_adversaries(params)
    instance, again = undecided.instances[0]
    assert instance is again, "nothing was told yet"
    first, second = gradients(params, undecided, instance)
    middle = 0.5 if params.n_outputs == 1 else 1 / params.n_outputs
    assert predictions(params, undecided, instance)[:, -1] == pytest.approx(
        [middle, middle], abs=1e-5
    )
    assert cosine(first, second) < (-0.999 if params.n_outputs == 1 else -0.45)


@pytest.mark.parametrize("name", NAMES)
def test_certain_model_is_wrong_about_both_rows(name):
    params = build_params(STUDIES[name])
    undecided, certain = make_adversaries(params)
    first, second = predictions(params, certain, certain.instances[0][0])
    assert first[-1] > 0.999 and second[-1] < 0.001
    assert params.n_outputs == 1 or second[0] > 0.999
    first, second = gradients(params, certain, certain.instances[0][0])
    assert cosine(first, second) < -0.5
    largest = [
        np.linalg.norm(gradient)
        for gradient in gradients(params, undecided, undecided.instances[0][0])
    ]
    assert min(np.linalg.norm(first), np.linalg.norm(second)) > 1.1 * max(largest) * (
        0.9 if params.n_outputs > 1 else 1
    )


def test_second_update_gives_one_row_a_gradient_and_the_other_none():
    params = build_params(make_study(2.0, n_updates=2))
    _, certain = make_adversaries(params)
    first, second = (gradients(params, certain, instance) for instance, _ in certain.instances)
    assert (
        first[0] == pytest.approx(second[0])
        and np.abs(second[1]).max() < 1e-9 < np.abs(first[1]).max()
    )
    assert len(make_adversaries(build_params(make_study(2.0)))[1].instances) == 1


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"label": THREE},
        {"label": NUMBER},
        {"label": NUMBER, "ddml": {"link": "log"}},
        {"unit": "weight"},
    ],
)
def test_undecided_aggregator_continues_with_the_supported_label(more):
    params = build_params(make_study(2.0, n_updates=2, **more))
    undecided, certain = make_adversaries(params)
    for told, instance in enumerate(undecided.instances[1]):
        moves = [np.linalg.norm(gradient) for gradient in gradients(params, undecided, instance)]
        assert moves[told] < 1e-5 < 0.9 < moves[1 - told]
    differ = np.flatnonzero(undecided.instances[1][0] != undecided.instances[1][1])
    assert set(differ % params.design.width) == {0}, "the constant's weight alone tells"
    assert (certain.instances[1][0] == undecided.instances[1][1]).all()


def test_extreme_rows_are_low_in_the_named_columns():
    schema = build_params(STUDIES["texts"]).schema
    columns = make_extreme_rows(schema, ("hour", "words"))
    assert columns["hour"].tolist() == [24, 0] and columns["topic"].tolist() == [1, 1]
    assert [grams.tolist() for grams in columns["words"]] == [[0], []]
    assert [grams.tolist() for grams in make_extreme_rows(schema, ())["words"]] == [[0], [0]]


def test_turned_column_is_in_few_crosses():
    features = [
        {"name": name, "values": ["a", "b"], "missing": False} for name in ("one", "two", "three")
    ]
    study = make_study(2.0, feature=features, ddml={"crosses": [["one", "two"], ["one", "three"]]})
    assert (
        make_adversaries(build_params(study))[1].rows[1]
        == "highest values but for two, and last label"
    )
