"""Numbers as places between cuts."""

from __future__ import annotations

import numpy as np

from shoal.audit.looks import ranked

RNG = np.random.default_rng(3)


def test_places_keep_the_order_and_are_few():
    first, second = RNG.normal(0, 1, 4000), RNG.normal(1, 1, 4000)
    keys = ranked(first, second)
    assert len(np.unique(np.concatenate(keys))) <= 66
    both, places = np.concatenate([first, second]), np.concatenate(keys)
    assert np.all(np.diff(places[np.argsort(both)]) >= 0)
    assert np.bincount(places).max() < 8000 / 32


def test_equal_numbers_share_a_place_of_their_own():
    first = np.array([0.0, 5.0, 5.0, 5.0] * 50)
    second = np.array([0.0, 4.9, 0.0, 5.1] * 50)
    one, other = ranked(first, second)
    assert len({*one[first == 5], *other[second == 4.9]}) == 2
    assert {*one[first == 5]}.isdisjoint({*other[second == 5.1]})


def test_cuts_are_those_of_the_first_halves():
    first, second = RNG.normal(size=200), RNG.normal(size=200)
    changed = np.concatenate([first[:100], first[100:] * 1000])
    assert np.array_equal(ranked(first, second)[1], ranked(changed, second)[1])
