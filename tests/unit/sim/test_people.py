"""The made-up population: inside its schema, reproducible, and as likely to sleep badly as it says."""

from __future__ import annotations

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.sim.people import SCHEMA, make_people


def test_everyone_fits_the_schema():
    people = make_people(5_000, SeededEntropy(3))
    assert set(people.columns) == set(SCHEMA.names)
    for feature in SCHEMA.features:
        column = people.columns[feature.name]
        assert column.shape == (5_000,)
        texts = column if not hasattr(feature, "values") else np.array(feature.values, object)[column]
        assert np.array_equal(feature.encode(texts), column)
    assert set(np.unique(people.labels).tolist()) == {0, 1}


def test_labels_follow_the_chances():
    people = make_people(50_000, SeededEntropy(4))
    for low in np.arange(0, 1, 0.25):
        here = (people.chances >= low) & (people.chances < low + 0.25)
        assert here.sum() > 500
        assert abs(people.labels[here].mean() - people.chances[here].mean()) < 0.05


def test_the_same_seed_makes_the_same_people():
    first, again, other = make_people(100, SeededEntropy(1)), make_people(100, SeededEntropy(1)), make_people(100, SeededEntropy(2))
    assert all(np.array_equal(first.columns[name], again.columns[name]) for name in SCHEMA.names)
    assert not np.array_equal(first.chances, other.chances)
