"""Required sizes: crossings of curves, the range of the search, unreachable targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from shoal.errors import UsageError
from shoal.simulation.forecast.intervals import PredictionInterval
from shoal.simulation.forecast.target import (
    MAX_SEARCH_ROWS,
    Target,
    find_required_size,
    fit_isotonic,
    parse_target,
)
from shoal.simulation.sweep import Settings
from shoal.study.spec import Study
from tests.support.simulation import small

STUDY = small("anonml")


class Curve:
    """Points with intervals that are a known function of the size."""

    def __init__(self, expected: Callable[[int], float], half: float, study: Study = STUDY) -> None:
        self.study, self._expected, self._half = study, expected, half
        self.added: set[int] = set()

    def add(self, several: Sequence[Settings]) -> None:
        self.added |= {int(settings["size"]) for settings in several}

    def compute_intervals(
        self, measure: str, several: Sequence[Settings]
    ) -> list[PredictionInterval]:
        values = [self._expected(int(settings["size"])) for settings in several]
        return [
            PredictionInterval(value, value - self._half, value + self._half) for value in values
        ]


def log_curve(size: int) -> float:
    """Return 0.6 at 100, and 0.05 more for each doubling."""
    return 0.6 + 0.05 * math.log2(size / 100)


def test_required_size_is_between_tried_sizes() -> None:
    found = find_required_size(
        Curve(log_curve, 0.05), Target("accuracy", 0.775), [200, 800, 3200], 0.99
    )  # type: ignore[arg-type]
    assert found.n == pytest.approx(100 * 2**3.5, rel=0.01)
    assert found.low == pytest.approx(100 * 2**2.5, rel=0.01) and found.high == pytest.approx(
        100 * 2**4.5, rel=0.01
    )
    assert (found.smallest, found.largest, found.is_beyond, found.without_privacy) == (
        200,
        3200,
        False,
        0.99,
    )


def test_search_doubles_and_halves_sizes() -> None:
    up = Curve(log_curve, 0.05)
    found = find_required_size(up, Target("accuracy", 0.79999), [200, 400], 0.99)  # type: ignore[arg-type]
    assert (
        found.n == 1600
        and found.high == 3200
        and found.low == 800
        and up.added == {200, 400, 800, 1600, 3200}
    )
    down = Curve(log_curve, 0.05)
    found = find_required_size(down, Target("accuracy", 0.6), [800, 1600], 0.99)  # type: ignore[arg-type]
    assert found.n == 100 and found.low == 50 and found.high == 200 and min(down.added) <= 50


def test_target_of_an_error_is_reached_from_above() -> None:
    found = find_required_size(
        Curve(lambda size: 1000 / size, 0.5), Target("rmse", 2.0), [250, 500, 1000], 0.5
    )  # type: ignore[arg-type]
    assert (
        found.n == 500
        and found.low is not None
        and found.low < 500
        and found.high is not None
        and found.high > 500
    )


def test_target_better_than_no_privacy_is_not_searched() -> None:
    curve = Curve(lambda size: 0.8, 0.01)
    found = find_required_size(curve, Target("accuracy", 0.95), [100, 200], 0.9)  # type: ignore[arg-type]
    assert (
        found.n is None
        and found.low is None
        and found.high is None
        and found.is_beyond
        and curve.added == {100, 200}
    )


def test_study_better_than_its_baseline_is_searched() -> None:
    curve = Curve(log_curve, 0.2)
    found = find_required_size(curve, Target("accuracy", 0.75), [100, 200], 0.7)  # type: ignore[arg-type]
    assert found.n == 800 and not found.is_beyond


def test_unknown_baseline_puts_no_target_out_of_reach() -> None:
    found = find_required_size(Curve(lambda size: 0.8, 0.01), Target("accuracy", 0.95), [100], None)  # type: ignore[arg-type]
    assert found.n is None and not found.is_beyond and found.largest == 100 * 2**8


def test_search_ends_at_the_largest_population_or_an_impossible_size() -> None:
    found = find_required_size(
        Curve(lambda size: 0.8, 0.01), Target("accuracy", 0.85), [MAX_SEARCH_ROWS // 3], 0.9
    )  # type: ignore[arg-type]
    assert found.largest == 2 * (MAX_SEARCH_ROWS // 3) and found.n is None and not found.is_beyond
    tiny = find_required_size(Curve(lambda size: 0.8, 0.01), Target("accuracy", 0.5), [30], 0.9)  # type: ignore[arg-type]
    assert tiny.n == tiny.low == tiny.high == tiny.smallest == 30
    crowded = small(
        "anonml",
        ('trust = "local"', 'trust = "shuffled"'),
        ("size =", "honest_share = 0.9\nsize ="),
        ("epsilon = 2.0", "delta = 1e-6\nepsilon = 2.0"),
    )
    assert (
        find_required_size(Curve(log_curve, 0.01, crowded), Target("accuracy", 0.7), [400], 0.9).n
        == 400
    )  # type: ignore[arg-type]


def test_fit_isotonic_removes_falls() -> None:
    assert (
        fit_isotonic([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
        and fit_isotonic([1.0, 2.0]) == [1.0, 2.0]
        and fit_isotonic([]) == []
    )
    values = {100: 0.6, 200: 0.7, 400: 0.68, 800: 0.9}
    found = find_required_size(
        Curve(values.__getitem__, 0.0), Target("accuracy", 0.69), [100, 200, 400, 800], 0.95
    )  # type: ignore[arg-type]
    assert found.n == 200


def test_parse_target_reads_a_measure_and_a_number() -> None:
    assert parse_target(" auc = 0.75", ["accuracy", "auc"]) == Target("auc", 0.75)


@pytest.mark.parametrize(
    "text",
    [
        "accuracy",
        "accuracy=",
        "accuracy=high",
        "accuracy=1_0",
        "accuracy=nan",
        "rmse=3",
        "=0.8",
        "\x1b[2J=1",
    ],
)
def test_parse_target_rejects_other_text(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_target(text, ["accuracy", "auc"])
    assert "accuracy=NUMBER" in (error.value.fix or "") and "\x1b" not in str(error.value)
