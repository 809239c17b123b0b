"""Effects of settings: each is changed alone, and the largest comes first."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.simulation.forecast import SettingChange, compute_effects, list_changes
from shoal.simulation.forecast.intervals import RepeatedRuns
from shoal.simulation.forecast.trials import ForecastTrialResult
from shoal.simulation.sweep import Settings
from shoal.study.loader import parse_study_text
from shoal.study.starters import read_starter
from tests.support.simulation import small


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [
        ("anonml", ["epsilon", "size"]),
        (
            "ddml",
            ["epsilon", "size", "n_updates", "n_instances", "learning_rate", "clip", "batch_size"],
        ),
        ("sdq", ["epsilon", "size", "n_databases", "max_colluders", "depth"]),
        ("pfds", ["epsilon", "size", "n_holders"]),
    ],
)
def test_list_changes_has_all_settings_of_a_protocol(protocol: str, keys: list[str]) -> None:
    study = parse_study_text(read_starter(protocol))
    found = list_changes(study)
    assert [change.key for change in found] == keys
    assert all(
        change.after == 2 * change.before and change.settings == {change.key: change.after}
        for change in found
    )


def test_list_changes_multiplies_delta_by_ten_and_halves_what_cannot_double() -> None:
    edits = (
        ('trust = "local"', 'trust = "secure-sum"'),
        ("epsilon = 1.0", "epsilon = 40.0\ndelta = 1e-6"),
    )
    found = {change.key: change for change in list_changes(small("pfds", *edits))}
    assert (
        found["epsilon"].after == 20.0
        and found["delta"].after == pytest.approx(1e-5)
        and found["max_colluders"].after == 3
    )


class Made:
    """Fixed runs by changed setting."""

    def __init__(self, scores: dict[str, list[float]]) -> None:
        self.scores = scores

    def __getitem__(self, settings: Settings) -> Made:
        self.runs = RepeatedRuns(
            9,
            [
                ForecastTrialResult({"accuracy": one}, (), 9)
                for one in self.scores[next(iter(settings), "")]
            ],
        )
        return self


def test_largest_effect_comes_first_with_its_error_over_the_same_folds() -> None:
    made = Made({"": [0.70, 0.80], "epsilon": [0.71, 0.81], "size": [0.60, 0.72]})
    changes = [SettingChange("epsilon", 1.0, 2.0), SettingChange("size", 10, 20)]
    (first, worse), (second, better) = compute_effects(made, changes, "accuracy")  # type: ignore[arg-type]
    assert (first.key, second.key) == ("size", "epsilon")
    assert worse.value == pytest.approx(-0.09) and worse.error == pytest.approx(
        np.std([-0.1, -0.08], ddof=1) / np.sqrt(2)
    )
    assert better.value == pytest.approx(0.01) and better.error == pytest.approx(0.0)
