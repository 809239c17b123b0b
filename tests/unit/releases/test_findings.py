"""Figures of a report, and the distances that they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from shoal.domain import Categorical, Numeric
from shoal.entropy import SeededEntropy
from shoal.releases.findings import Finding, by_chance, by_noise, earth_movers, shares_of, total_variation

BASE = Finding(what="rows", value=12.0, beside={"declared": 14.5}, source="rows")


def test_a_finding_says_what_it_was_computed_from() -> None:
    assert str(BASE) == "rows: 12 (declared: 14.5); from rows"
    assert str(Finding(what="x", value=12345.6, beside={}, source="y\x1b")) == "x: 12,346; from 'y\\x1b'"


@pytest.mark.parametrize(
    ("changes", "agrees"),
    [
        ({"value": 12.000001}, True),
        ({"value": 12.1}, False),
        ({"beside": {"declared": 14.6}}, False),
        ({"beside": {}}, False),
        ({"beside": {"declared": 14.5, "more": 1.0}}, False),
        ({"what": "row"}, False),
        ({"source": "other rows"}, False),
    ],
)
def test_findings_agree_but_for_the_last_digits(changes: dict[str, object], agrees: bool) -> None:
    assert BASE.agrees(BASE.replace(**changes)) is agrees


def test_total_variation_goes_from_0_to_1() -> None:
    assert total_variation(np.array([0.5, 0.5]), np.array([0.5, 0.5])) == 0
    assert total_variation(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1


def test_chance_and_noise_are_what_they_are_expected_to_be() -> None:
    shares, entropy = np.array([0.1, 0.2, 0.3, 0.4]), SeededEntropy("chance")
    places = (entropy.words(400 * 300, np.uint64) / 2.0**64).reshape(300, 400)
    drawn = np.stack([np.bincount(np.searchsorted(np.cumsum(shares), one), minlength=5)[:4] / 400 for one in places])
    found = np.mean([total_variation(one, shares) for one in drawn])
    assert by_chance(shares, 400) == pytest.approx(found, rel=0.1)
    pairs = np.mean([total_variation(one, other) for one, other in zip(drawn[::2], drawn[1::2], strict=True)])
    assert by_chance(shares, 400, 400) == pytest.approx(pairs, rel=0.1)
    assert by_noise(4, 0.01) == pytest.approx(4 / 2 * 0.01 * np.sqrt(2 / np.pi))


def test_the_distance_of_numbers_is_scipys() -> None:
    entropy = SeededEntropy("numbers")
    for n, m in ((1, 1), (7, 3), (50, 80)):
        one, other = (entropy.below_many(20, size) / 4 for size in (n, m))
        assert earth_movers(one, other) == pytest.approx(stats.wasserstein_distance(one, other), abs=1e-12)


def test_shares_are_of_cells_with_the_missing_last() -> None:
    assert shares_of(Numeric("a", 0, 9, bins=[5]), np.array([1.0, 5.0, 6.0, np.nan])).tolist() == [0.5, 0.25, 0.25]
    assert shares_of(Categorical("a", ["x", "y"], missing=False), np.array([0, 0, 1, -1])).tolist() == [0.5, 0.5]
