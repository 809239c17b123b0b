"""Findings of a quality report, and distances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from shoal.data.schema import Categorical, Numeric
from shoal.entropy import SeededEntropy
from shoal.releases.quality import (
    QualityFinding,
    compute_noise_distance,
    compute_sampling_distance,
    compute_shares,
    compute_total_variation,
    compute_wasserstein_distance,
)

BASE = QualityFinding(what="rows", value=12.0, beside={"declared": 14.5}, source="rows")


def test_finding_text_names_its_source() -> None:
    assert str(BASE) == "rows: 12 (declared: 14.5); from rows"
    assert (
        str(QualityFinding(what="x", value=12345.6, beside={}, source="y\x1b"))
        == "x: 12,346; from 'y\\x1b'"
    )


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
def test_is_close_to_ignores_only_the_last_digits(changes: dict[str, object], agrees: bool) -> None:
    assert BASE.is_close_to(BASE.replace(**changes)) is agrees


def test_total_variation_is_between_0_and_1() -> None:
    assert compute_total_variation(np.array([0.5, 0.5]), np.array([0.5, 0.5])) == 0
    assert compute_total_variation(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1


def test_sampling_and_noise_distances_match_simulations() -> None:
    shares, entropy = np.array([0.1, 0.2, 0.3, 0.4]), SeededEntropy("chance")
    places = (entropy.words(400 * 300, np.uint64) / 2.0**64).reshape(300, 400)
    drawn = np.stack(
        [
            np.bincount(np.searchsorted(np.cumsum(shares), one), minlength=5)[:4] / 400
            for one in places
        ]
    )
    found = np.mean([compute_total_variation(one, shares) for one in drawn])
    assert compute_sampling_distance(shares, 400) == pytest.approx(found, rel=0.1)
    pairs = np.mean(
        [
            compute_total_variation(one, other)
            for one, other in zip(drawn[::2], drawn[1::2], strict=True)
        ]
    )
    assert compute_sampling_distance(shares, 400, 400) == pytest.approx(pairs, rel=0.1)
    assert compute_noise_distance(4, 0.01) == pytest.approx(4 / 2 * 0.01 * np.sqrt(2 / np.pi))


def test_wasserstein_distance_equals_scipy() -> None:
    entropy = SeededEntropy("numbers")
    for n, m in ((1, 1), (7, 3), (50, 80)):
        one, other = (entropy.below_many(20, size) / 4 for size in (n, m))
        assert compute_wasserstein_distance(one, other) == pytest.approx(
            stats.wasserstein_distance(one, other), abs=1e-12
        )


def test_compute_shares_counts_missing_values_last() -> None:
    assert compute_shares(
        Numeric("a", 0, 9, bins=[5]), np.array([1.0, 5.0, 6.0, np.nan])
    ).tolist() == [0.5, 0.25, 0.25]
    assert compute_shares(
        Categorical("a", ["x", "y"], missing=False), np.array([0, 0, 1, -1])
    ).tolist() == [0.5, 0.5]
