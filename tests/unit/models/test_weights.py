"""Weights by name: the largest first, with the class that each speaks for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.domain import Categorical, Numeric, Schema
from shoal.models import Model
from shoal.models.weights import Weight, constants, label_shares, largest
from shoal.protocols.anonml.classifiers import PartitionClassifier
from shoal.protocols.anonml.model import AdditiveModel, VoteModel
from shoal.protocols.anonml.vote import Vote
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import Model as PooledModel
from shoal.protocols.pfds.params import Params
from shoal.protocols.sdq.model import Tree
from unit.models.model_cases import KINDS, models

AGE, TOWN = Numeric("age", 0, 90, [30, 60]), Categorical("town", ["x", "y"], missing=False)
ILL, HEIGHT = Categorical("ill", ["no", "yes"], missing=False), Numeric("height", 0, 2, missing=False)


def test_scores_of_cells_speak_for_a_class() -> None:
    scores = (np.array([[0.0, 0.5, -1.0, 0.0], [0.0, 0.0, 2.0, 0.25]]), np.array([[0.0, 0.0], [0.0, -3.0]]))
    model = Model(AdditiveModel(Schema([AGE, TOWN], ILL), np.array([0.75, 0.25]), scores))
    assert largest(model) == [
        Weight("town = y", "yes", -3.0),
        Weight("age > 60", "yes", 2.0),
        Weight("age > 60", "no", -1.0),
        Weight("age 30 to 60", "no", 0.5),
        Weight("age missing", "yes", 0.25),
    ]
    assert largest(model, 1) == [Weight("town = y", "yes", -3.0)]
    assert [(one.of, one.value) for one in constants(model)] == [("no", math.log(0.75)), ("yes", math.log(0.25))]
    assert label_shares(model) == {"no": 0.75, "yes": 0.25}


def test_one_score_is_that_of_the_second_class_or_of_a_number() -> None:
    weights = np.array([[0.1, 1.0, -2.0, 0.0, 3.0]])
    for label, link, of in ((ILL, "logit", "yes"), (HEIGHT, "identity", None)):
        model = Model(GLM(Schema([AGE, TOWN], label), link, (), weights))  # type: ignore[arg-type]
        assert [weight.to_dict() for weight in largest(model)] == [
            {"name": "town = y", "class": of, "value": 3.0, "error": None},
            {"name": "age > 60", "class": of, "value": -2.0, "error": None},
            {"name": "age > 30", "class": of, "value": 1.0, "error": None},
        ]
        assert constants(model) == [Weight("constant", of, 0.1)] and label_shares(model) is None


def test_pooled_weights_are_those_of_cells() -> None:
    params = Params(Schema([TOWN], HEIGHT), epsilon=math.inf, size=1)
    learned = PooledModel(params, np.array([[1.5], [-0.5]]), np.array([0.25]), np.array([[4.0], [0.25]]), np.array([0.5, 0.5]))
    model = Model(learned)
    assert largest(model) == [Weight("town = x", None, 1.5), Weight("town = y", None, -0.5)]
    assert constants(model) == [Weight("constant", None, 0.25)]


def test_a_vote_has_the_weights_of_its_classifiers_and_a_tree_none() -> None:
    schema, even = Schema([AGE, TOWN], ILL), np.full((8, 2), 0.5)
    vote = Model(VoteModel(schema, Vote((PartitionClassifier((1, 0), (2, 4), even, 0.75),), 2)))
    assert largest(vote) == [Weight("town and age", None, 0.75)] and constants(vote) == [] and label_shares(vote) is None
    tree = Model(Tree(schema, np.array([-1]), np.array([-1]), even[:1], np.array([[0.25, 0.75]])))
    assert largest(tree) == [] and constants(tree) == [] and label_shares(tree) == {"no": 0.25, "yes": 0.75}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_every_model_has_them_in_order(kind: str, data: st.DataObject) -> None:
    model = data.draw(models(kind))
    sizes = [abs(weight.value) for weight in largest(model, 7)]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) <= 7 and all(sizes)
