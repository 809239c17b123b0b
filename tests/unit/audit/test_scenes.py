"""Hostile aggregators: instances that push two rows apart, and one that copies the last update into the next instance."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.scenes import corners, make_scenes
from shoal.protocols.ddml.links import means
from shoal.protocols.ddml.rows import Rows
from shoal.study.ddml import params_of
from unit.audit.ddml_studies import NUMBER, STUDIES, THREE, make_study

NAMES = list(STUDIES)


def gradients(params, scene, instance):
    return [Rows.of(params, *scene.device(which)).gradient(params, instance) for which in (0, 1)]


def predictions(params, scene, instance):
    weights = instance.reshape(params.n_outputs, -1) * 2.0**-params.fraction_bits
    return means(params.link, params.design.inputs(scene.columns).times(weights))


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", NAMES)
def test_where_the_model_is_undecided_gradients_are_opposite(name):
    params = params_of(STUDIES[name])
    undecided, _ = make_scenes(params)
    instance, again = undecided.instances[0]
    assert instance is again, "nothing was told yet"
    first, second = gradients(params, undecided, instance)
    middle = 0.5 if params.n_outputs == 1 else 1 / params.n_outputs
    assert predictions(params, undecided, instance)[:, -1] == pytest.approx([middle, middle], abs=1e-5)
    assert cosine(first, second) < (-0.999 if params.n_outputs == 1 else -0.45)


@pytest.mark.parametrize("name", NAMES)
def test_where_the_model_is_certain_it_is_wrong_about_both(name):
    params = params_of(STUDIES[name])
    undecided, certain = make_scenes(params)
    first, second = predictions(params, certain, certain.instances[0][0])
    assert first[-1] > 0.999 and second[-1] < 0.001
    assert params.n_outputs == 1 or second[0] > 0.999
    first, second = gradients(params, certain, certain.instances[0][0])
    assert cosine(first, second) < -0.5
    largest = [np.linalg.norm(gradient) for gradient in gradients(params, undecided, undecided.instances[0][0])]
    assert min(np.linalg.norm(first), np.linalg.norm(second)) > 1.1 * max(largest) * (0.9 if params.n_outputs > 1 else 1)


def test_from_a_second_update_on_one_row_has_its_gradient_again_and_the_other_none():
    params = params_of(make_study(2.0, n_updates=2))
    _, certain = make_scenes(params)
    first, second = (gradients(params, certain, instance) for instance, _ in certain.instances)
    assert first[0] == pytest.approx(second[0]) and np.abs(second[1]).max() < 1e-9 < np.abs(first[1]).max()
    assert len(make_scenes(params_of(make_study(2.0)))[1].instances) == 1


@pytest.mark.parametrize("more", [{}, {"label": THREE}, {"label": NUMBER}, {"label": NUMBER, "ddml": {"link": "log"}}, {"unit": "weight"}])
def test_the_undecided_aggregator_goes_on_with_the_label_that_it_was_told(more):
    params = params_of(make_study(2.0, n_updates=2, **more))
    undecided, certain = make_scenes(params)
    for told, instance in enumerate(undecided.instances[1]):
        moves = [np.linalg.norm(gradient) for gradient in gradients(params, undecided, instance)]
        assert moves[told] < 1e-5 < 0.9 < moves[1 - told]
    differ = np.flatnonzero(undecided.instances[1][0] != undecided.instances[1][1])
    assert set(differ % params.design.width) == {0}, "the constant's weight alone tells"
    assert (certain.instances[1][0] == undecided.instances[1][1]).all()


def test_corners_are_low_where_they_are_named():
    schema = params_of(STUDIES["texts"]).schema
    columns = corners(schema, ("hour", "words"))
    assert columns["hour"].tolist() == [24, 0] and columns["topic"].tolist() == [1, 1]
    assert [grams.tolist() for grams in columns["words"]] == [[0], []]
    assert [grams.tolist() for grams in corners(schema, ())["words"]] == [[0], [0]]


def test_the_column_that_turns_is_in_few_crosses():
    features = [{"name": name, "values": ["a", "b"], "missing": False} for name in ("one", "two", "three")]
    study = make_study(2.0, feature=features, ddml={"crosses": [["one", "two"], ["one", "three"]]})
    assert make_scenes(params_of(study))[1].rows[1] == "highest values but for two, and last label"
