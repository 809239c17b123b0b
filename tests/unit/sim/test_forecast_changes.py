"""Which figures matter: all that a study has, each changed by itself, ranked by what that does."""

from __future__ import annotations

import numpy as np
import pytest

from forecast_cases import small
from shoal.sim.forecast_changes import Change, changes_of, effects
from shoal.sim.forecast_interval import Repeated
from shoal.sim.forecast_runs import Tried
from shoal.sim.sweep import Settings
from shoal.study.load import parse
from shoal.study.templates import study_text


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [
        ("anonml", ["epsilon", "size"]),
        ("ddml", ["epsilon", "size", "n_updates", "n_instances", "learning_rate", "clip", "batch_size"]),
        ("sdq", ["epsilon", "size", "n_databases", "max_colluders", "depth"]),
        ("pfds", ["epsilon", "size", "n_holders"]),
    ],
)
def test_all_figures_of_a_protocol_are_changed(protocol: str, keys: list[str]) -> None:
    study = parse(study_text(protocol))
    found = changes_of(study)
    assert [change.key for change in found] == keys
    assert all(change.after == 2 * change.before and change.settings == {change.key: change.after} for change in found)


def test_delta_is_changed_tenfold_and_what_cannot_be_doubled_is_halved() -> None:
    edits = ('trust = "local"', 'trust = "secure-sum"'), ("epsilon = 1.0", "epsilon = 40.0\ndelta = 1e-6")
    found = {change.key: change for change in changes_of(small("pfds", *edits))}
    assert found["epsilon"].after == 20.0 and found["delta"].after == pytest.approx(1e-5) and found["max_colluders"].after == 3


class Made:
    """Runs by what was changed."""

    def __init__(self, scores: dict[str, list[float]]) -> None:
        self.scores = scores

    def __getitem__(self, settings: Settings) -> Made:
        self.runs = Repeated(9, [Tried({"accuracy": one}, (), 9) for one in self.scores[next(iter(settings), "")]])
        return self


def test_the_largest_effect_comes_first_with_its_error_over_the_same_parts() -> None:
    made = Made({"": [0.70, 0.80], "epsilon": [0.71, 0.81], "size": [0.60, 0.72]})
    changes = [Change("epsilon", 1.0, 2.0), Change("size", 10, 20)]
    (first, worse), (second, better) = effects(made, changes, "accuracy")  # type: ignore[arg-type]
    assert (first.key, second.key) == ("size", "epsilon")
    assert worse.value == pytest.approx(-0.09) and worse.error == pytest.approx(np.std([-0.1, -0.08], ddof=1) / np.sqrt(2))
    assert better.value == pytest.approx(0.01) and better.error == pytest.approx(0.0)
