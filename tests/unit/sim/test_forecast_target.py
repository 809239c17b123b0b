"""How many are needed: where curves cross, how far is searched, and what is out of reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from forecast_cases import small
from shoal.errors import UsageError
from shoal.sim.forecast_interval import Interval
from shoal.sim.forecast_target import SEARCHED_ROWS, Target, parse_target, reach, rising
from shoal.sim.sweep import Settings
from shoal.study.spec import Study

STUDY = small("anonml")


class Curve:
    """Points whose intervals are a known function of the size."""

    def __init__(self, expected: Callable[[int], float], half: float, study: Study = STUDY) -> None:
        self.study, self._expected, self._half = study, expected, half
        self.added: set[int] = set()

    def add(self, several: Sequence[Settings]) -> None:
        self.added |= {int(settings["size"]) for settings in several}

    def intervals(self, measure: str, several: Sequence[Settings]) -> list[Interval]:
        values = [self._expected(int(settings["size"])) for settings in several]
        return [Interval(value, value - self._half, value + self._half) for value in values]


def log_curve(size: int) -> float:
    """0.6 at 100, and 0.05 more each time that there are twice as many."""
    return 0.6 + 0.05 * math.log2(size / 100)


def test_sizes_are_found_between_those_that_were_tried() -> None:
    found = reach(Curve(log_curve, 0.05), Target("accuracy", 0.775), [200, 800, 3200], 0.99)  # type: ignore[arg-type]
    assert found.n == pytest.approx(100 * 2**3.5, rel=0.01)
    assert found.low == pytest.approx(100 * 2**2.5, rel=0.01) and found.high == pytest.approx(100 * 2**4.5, rel=0.01)
    assert (found.smallest, found.largest, found.is_beyond, found.without_privacy) == (200, 3200, False, 0.99)


def test_it_searches_upwards_and_downwards() -> None:
    up = Curve(log_curve, 0.05)
    found = reach(up, Target("accuracy", 0.79999), [200, 400], 0.99)  # type: ignore[arg-type]
    assert found.n == 1600 and found.high == 3200 and found.low == 800 and up.added == {200, 400, 800, 1600, 3200}
    down = Curve(log_curve, 0.05)
    found = reach(down, Target("accuracy", 0.6), [800, 1600], 0.99)  # type: ignore[arg-type]
    assert found.n == 100 and found.low == 50 and found.high == 200 and min(down.added) <= 50


def test_a_number_is_better_where_it_is_smaller() -> None:
    found = reach(Curve(lambda size: 1000 / size, 0.5), Target("rmse", 2.0), [250, 500, 1000], 0.5)  # type: ignore[arg-type]
    assert found.n == 500 and found.low is not None and found.low < 500 and found.high is not None and found.high > 500


def test_what_is_better_than_no_privacy_is_not_searched_for() -> None:
    curve = Curve(lambda size: 0.8, 0.01)
    found = reach(curve, Target("accuracy", 0.95), [100, 200], 0.9)  # type: ignore[arg-type]
    assert found.n is None and found.low is None and found.high is None and found.is_beyond and curve.added == {100, 200}


def test_a_study_that_is_better_than_its_yardstick_is_searched_on() -> None:
    curve = Curve(log_curve, 0.2)
    found = reach(curve, Target("accuracy", 0.75), [100, 200], 0.7)  # type: ignore[arg-type]
    assert found.n == 800 and not found.is_beyond


def test_where_nothing_is_known_without_privacy_nothing_is_beyond() -> None:
    found = reach(Curve(lambda size: 0.8, 0.01), Target("accuracy", 0.95), [100], None)  # type: ignore[arg-type]
    assert found.n is None and not found.is_beyond and found.largest == 100 * 2**8


def test_it_ends_at_the_largest_population_that_is_searched_and_where_a_size_is_impossible() -> None:
    found = reach(Curve(lambda size: 0.8, 0.01), Target("accuracy", 0.85), [SEARCHED_ROWS // 3], 0.9)  # type: ignore[arg-type]
    assert found.largest == 2 * (SEARCHED_ROWS // 3) and found.n is None and not found.is_beyond
    tiny = reach(Curve(lambda size: 0.8, 0.01), Target("accuracy", 0.5), [30], 0.9)  # type: ignore[arg-type]
    assert tiny.n == tiny.low == tiny.high == tiny.smallest == 30
    crowded = small(
        "anonml",
        ('trust = "local"', 'trust = "shuffled"'),
        ("size =", "honest_share = 0.9\nsize ="),
        ("epsilon = 2.0", "delta = 1e-6\nepsilon = 2.0"),
    )
    assert reach(Curve(log_curve, 0.01, crowded), Target("accuracy", 0.7), [400], 0.9).n == 400  # type: ignore[arg-type]


def test_a_curve_that_falls_by_chance_is_straightened() -> None:
    assert rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0] and rising([1.0, 2.0]) == [1.0, 2.0] and rising([]) == []
    values = {100: 0.6, 200: 0.7, 400: 0.68, 800: 0.9}
    found = reach(Curve(values.__getitem__, 0.0), Target("accuracy", 0.69), [100, 200, 400, 800], 0.95)  # type: ignore[arg-type]
    assert found.n == 200


def test_a_target_is_a_measure_and_a_number() -> None:
    assert parse_target(" auc = 0.75", ["accuracy", "auc"]) == Target("auc", 0.75)


@pytest.mark.parametrize("text", ["accuracy", "accuracy=", "accuracy=high", "accuracy=1_0", "accuracy=nan", "rmse=3", "=0.8", "\x1b[2J=1"])
def test_a_target_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_target(text, ["accuracy", "auc"])
    assert "accuracy=NUMBER" in (error.value.fix or "") and "\x1b" not in str(error.value)
