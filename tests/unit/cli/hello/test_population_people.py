"""Synthetic people: they fit the schema, are reproducible, and follow their probabilities."""

from __future__ import annotations

import numpy as np

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.entropy import SeededEntropy


def test_people_fit_the_schema():
    people = make_people(5_000, SeededEntropy(3))
    assert set(people.columns) == set(SCHEMA.names)
    for feature in SCHEMA.features:
        column = people.columns[feature.name]
        assert column.shape == (5_000,)
        texts = (
            column if not hasattr(feature, "values") else np.array(feature.values, object)[column]
        )
        assert np.array_equal(feature.encode(texts), column)
    assert set(np.unique(people.labels).tolist()) == {0, 1}


def test_labels_follow_the_probabilities():
    people = make_people(50_000, SeededEntropy(4))
    for low in np.arange(0, 1, 0.25):
        here = (people.chances >= low) & (people.chances < low + 0.25)
        assert here.sum() > 500
        assert abs(people.labels[here].mean() - people.chances[here].mean()) < 0.05


def test_people_depend_on_the_seed():
    first, again, other = (
        make_people(100, SeededEntropy(1)),
        make_people(100, SeededEntropy(1)),
        make_people(100, SeededEntropy(2)),
    )
    assert all(np.array_equal(first.columns[name], again.columns[name]) for name in SCHEMA.names)
    assert not np.array_equal(first.chances, other.chances)
