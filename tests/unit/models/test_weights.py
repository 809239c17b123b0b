"""Weights by name: the largest first, each with its class."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.models import Model
from shoal.models.weights import NamedWeight, get_label_shares, list_constants, list_largest_weights
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml.ensemble import PartitionClassifier, WeightedVote
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.sdq.model import DecisionTree
from tests.unit.models.model_cases import KINDS, models

AGE, TOWN = Numeric("age", 0, 90, [30, 60]), Categorical("town", ["x", "y"], missing=False)
ILL, HEIGHT = (
    Categorical("ill", ["no", "yes"], missing=False),
    Numeric("height", 0, 2, missing=False),
)


def test_additive_weights_are_named_by_cell_and_class() -> None:
    scores = (
        np.array([[0.0, 0.5, -1.0, 0.0], [0.0, 0.0, 2.0, 0.25]]),
        np.array([[0.0, 0.0], [0.0, -3.0]]),
    )
    model = Model(AdditiveModel(Schema([AGE, TOWN], ILL), np.array([0.75, 0.25]), scores))
    assert list_largest_weights(model) == [
        NamedWeight("town = y", "yes", -3.0),
        NamedWeight("age > 60", "yes", 2.0),
        NamedWeight("age > 60", "no", -1.0),
        NamedWeight("age 30 to 60", "no", 0.5),
        NamedWeight("age missing", "yes", 0.25),
    ]
    assert list_largest_weights(model, 1) == [NamedWeight("town = y", "yes", -3.0)]
    assert [(one.class_name, one.value) for one in list_constants(model)] == [
        ("no", math.log(0.75)),
        ("yes", math.log(0.25)),
    ]
    assert get_label_shares(model) == {"no": 0.75, "yes": 0.25}


def test_single_score_belongs_to_second_class_or_to_the_number() -> None:
    weights = np.array([[0.1, 1.0, -2.0, 0.0, 3.0]])
    for label, link, of in ((ILL, "logit", "yes"), (HEIGHT, "identity", None)):
        model = Model(GLM(Schema([AGE, TOWN], label), link, (), weights))  # type: ignore[arg-type]
        assert [weight.to_dict() for weight in list_largest_weights(model)] == [
            {"name": "town = y", "class": of, "value": 3.0, "error": None},
            {"name": "age > 60", "class": of, "value": -2.0, "error": None},
            {"name": "age > 30", "class": of, "value": 1.0, "error": None},
        ]
        assert (
            list_constants(model) == [NamedWeight("constant", of, 0.1)]
            and get_label_shares(model) is None
        )


def test_pooled_weights_are_named_by_cell() -> None:
    params = PFDSParams(Schema([TOWN], HEIGHT), epsilon=math.inf, size=1)
    learned = PooledModel(
        params,
        np.array([[1.5], [-0.5]]),
        np.array([0.25]),
        np.array([[4.0], [0.25]]),
        np.array([0.5, 0.5]),
    )
    model = Model(learned)
    assert list_largest_weights(model) == [
        NamedWeight("town = x", None, 1.5),
        NamedWeight("town = y", None, -0.5),
    ]
    assert list_constants(model) == [NamedWeight("constant", None, 0.25)]


def test_vote_has_weights_of_classifiers_and_tree_has_none() -> None:
    schema, even = Schema([AGE, TOWN], ILL), np.full((8, 2), 0.5)
    vote = Model(
        VoteModel(schema, WeightedVote((PartitionClassifier((1, 0), (2, 4), even, 0.75),), 2))
    )
    assert (
        list_largest_weights(vote) == [NamedWeight("town and age", None, 0.75)]
        and list_constants(vote) == []
        and get_label_shares(vote) is None
    )
    tree = Model(
        DecisionTree(schema, np.array([-1]), np.array([-1]), even[:1], np.array([[0.25, 0.75]]))
    )
    assert (
        list_largest_weights(tree) == []
        and list_constants(tree) == []
        and get_label_shares(tree) == {"no": 0.25, "yes": 0.75}
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_largest_weights_are_sorted_for_every_kind(kind: str, data: st.DataObject) -> None:
    model = data.draw(models(kind))
    sizes = [abs(weight.value) for weight in list_largest_weights(model, 7)]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) <= 7 and all(sizes)
