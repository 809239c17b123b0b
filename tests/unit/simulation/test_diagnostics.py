"""Details of runs: the parts that all protocols share; they do not change a run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Categorical, Feature, Numeric
from shoal.entropy import SeededEntropy
from shoal.models.weights import name_cells
from shoal.protocols.anonml.params import AnonMLPlusParams
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.sdq.params import SDQParams
from shoal.simulation.diagnostics import (
    MAX_CELLS,
    MAX_WEIGHTS,
    compute_calibration,
    compute_model_calibration,
    describe_participation,
    list_scored_classes,
    list_weights,
    make_count_histogram,
    round_values,
)
from shoal.simulation.metrics import ClassificationScores
from shoal.simulation.registry import run
from shoal.simulation.run import RunOutcome, RunTask, Split

N = 1500
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
STUDIES: dict[str, tuple[Any, set[str]]] = {
    "anonml": (
        AnonMLPlusParams(SCHEMA, 4.0, N),
        {"participation", "calibration", "histograms", "weights"},
    ),
    "ddml": (DDMLParams(SCHEMA, 12.0, N), {"participation", "calibration", "weights", "spread"}),
    "sdq": (
        SDQParams(SCHEMA, 1.0, N, max_colluders=3),
        {"participation", "calibration", "histograms", "exposure"},
    ),
    "pfds": (
        PFDSParams(SCHEMA, 4.0, N, trust="secure-sum", max_colluders=3),
        {
            "participation",
            "calibration",
            "histograms",
            "weights",
            "exposure",
            "marginals",
            "train_on_released",
        },
    ),
}


@pytest.mark.parametrize("name", STUDIES)
def test_only_the_first_run_of_a_point_has_details(name: str) -> None:
    params, parts = STUDIES[name]
    details = run(RunTask(params, 1, dropout=0.0), SPLIT).details
    assert details.keys() == parts
    assert json.loads(json.dumps(details, allow_nan=False)) == details, (
        "plain data, which a file and a process give back as it is"
    )
    assert run(RunTask(params, 1, repeat=1), SPLIT).details == {}


@pytest.mark.parametrize("name", STUDIES)
def test_details_do_not_change_other_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without details gets the entropy of repeat 0."""
    params = STUDIES[name][0]
    first = run(RunTask(params, 1), SPLIT)
    entropy = RunTask(params, 1).entropy
    monkeypatch.setattr(RunTask, "entropy", property(lambda _: entropy))
    assert run(RunTask(params, 1, repeat=1), SPLIT) == replace(first, details={})


def test_empty_details_are_left_out() -> None:
    outcome = RunOutcome(ClassificationScores(1.0, 1.0, 1.0), 1, (1,), {})
    assert outcome.with_details({"weights": [], "spread": {}, "histograms": [1]}).details == {
        "histograms": [1]
    }


def test_dropped_participants_are_counted() -> None:
    told = describe_participation(10, 8, [("a", 3), ("b", 5), ("a", 1)])
    assert told == {
        "asked": 10,
        "answered": 8,
        "dropped": 2,
        "phases": [{"name": "a", "n": 3}, {"name": "b", "n": 5}, {"name": "a", "n": 1}],
        "refused": {},
    }


class TestCalibration:
    def test_calibration_of_two_classes_is_that_of_the_second(self) -> None:
        second = np.array([0.0, 0.05, 0.55, 0.59, 1.0])
        told = compute_calibration(
            ["no", "yes"], np.stack([1 - second, second], axis=1), np.array([0, 1, 1, 0, 1])
        )
        assert told == {
            "of": "yes",
            "bins": [
                {"low": 0.0, "high": 0.1, "predicted": 0.025, "observed": 0.5, "n": 2},
                {"low": 0.5, "high": 0.6, "predicted": 0.57, "observed": 0.5, "n": 2},
                {"low": 0.9, "high": 1.0, "predicted": 1.0, "observed": 1.0, "n": 1},
            ],
        }

    def test_calibration_of_several_classes_is_that_of_the_most_likely(self) -> None:
        chances = np.array([[0.2, 0.5, 0.3], [0.5, 0.2, 0.3], [0.02, 0.03, 0.95]])
        told = compute_calibration(["a", "b", "c"], chances, np.array([1, 1, 2]))
        assert told["of"] == "the predicted class"
        assert [
            (one["low"], one["predicted"], one["observed"], one["n"]) for one in told["bins"]
        ] == [
            (0.5, 0.5, 0.5, 2),
            (0.9, 0.95, 1.0, 1),
        ]

    def test_calibration_of_true_probabilities_is_a_diagonal(self) -> None:
        people = make_people(200_000, SeededEntropy(1))
        told = compute_calibration(
            ["no", "yes"], np.stack([1 - people.chances, people.chances], axis=1), people.labels
        )
        assert sum(one["n"] for one in told["bins"]) == 200_000
        # Six standard deviations of the smallest bin.
        worst = max(
            abs(one["predicted"] - one["observed"]) * 2 * one["n"] ** 0.5 for one in told["bins"]
        )
        assert worst < 6

    def test_calibration_of_a_numeric_label_is_none(self) -> None:
        class Model:
            schema = replace(SCHEMA, label=Numeric("hours", 0, 12))

        assert compute_model_calibration(Model(), {}, np.zeros(1, np.int64)) == {}


class TestHistograms:
    feature = Categorical("wind", ["weak", "strong"], missing=False)

    def test_histogram_of_counts_has_shares_of_all_rows(self) -> None:
        told = make_count_histogram(
            self.feature,
            ["no", "yes"],
            np.array([[50, 30], [20, 100]]),
            2.0,
            np.array([[48, 32], [20, 100]]),
        )
        assert told is not None
        assert (told["feature"], told["cells"], told["classes"]) == (
            "wind",
            ["weak", "strong"],
            ["no", "yes"],
        )
        assert told["estimated"] == [[0.25, 0.15], [0.1, 0.5]] and told["true"] == [
            [0.24, 0.16],
            [0.1, 0.5],
        ]
        f = 0.25
        assert told["error"][0][0] == pytest.approx(
            2 / 200 * (1 - 2 * f + 4 * f**2) ** 0.5, rel=1e-5
        )

    def test_histogram_without_noise_has_no_error(self) -> None:
        counts = np.array([[50, 30], [20, 100]])
        told = make_count_histogram(self.feature, ["no", "yes"], counts, 0.0, counts)
        assert (
            told is not None
            and told["estimated"] == told["true"]
            and told["error"] == [[0.0, 0.0], [0.0, 0.0]]
        )

    @pytest.mark.parametrize(
        ("noisy", "deviation"), [([[5, 3], [2, 0]], 1.0), ([[-50, 3], [2, 0]], 0.0)]
    )
    def test_histogram_with_too_much_noise_is_none(
        self, noisy: list[list[int]], deviation: float
    ) -> None:
        assert (
            make_count_histogram(
                self.feature, ["no", "yes"], np.array(noisy), deviation, np.array([[5, 3], [2, 0]])
            )
            is None
        )

    def test_histogram_without_rows_or_with_too_many_cells_is_none(self) -> None:
        assert (
            make_count_histogram(
                self.feature, ["no", "yes"], np.ones((2, 2)), 0.0, np.zeros((2, 2))
            )
            is None
        )
        large = np.ones((MAX_CELLS + 1, 2))
        many = Categorical("town", [str(i) for i in range(MAX_CELLS + 1)], missing=False)
        assert make_count_histogram(many, ["no", "yes"], large, 0.0, large) is None
        assert make_count_histogram(many, ["no", "yes"], large[1:], 0.0, large[1:]) is not None


def test_largest_weights_come_first() -> None:
    values = np.array([[0.1, -3.0], [2.0, 0.0], [-0.5, 0.25]])
    told = list_weights(["a", "b", "c"], ["no", "yes"], values)
    assert [(one["name"], one["class"], one["value"]) for one in told[:3]] == [
        ("a", "yes", -3.0),
        ("b", "no", 2.0),
        ("c", "no", -0.5),
    ]
    assert len(told) == 6 and all(one["error"] is None for one in told)
    assert len(list_weights([str(i) for i in range(100)], ["y"], np.ones((100, 1)))) == MAX_WEIGHTS


def test_cells_have_readable_names() -> None:
    features: list[Feature] = [
        Numeric("age", 0, 90, bins=[40.5, 60]),
        Categorical("sex", ["f", "m"], missing=False),
    ]
    assert name_cells(features) == [
        "age <= 40.5",
        "age 40.5 to 60",
        "age > 60",
        "age missing",
        "sex = f",
        "sex = m",
    ]


def test_scores_are_for_a_class_or_for_a_number() -> None:
    assert list_scored_classes(Categorical("y", ["no", "yes"])) == ("yes",) and list_scored_classes(
        Categorical("y", ["a", "b", "c"])
    ) == (
        "a",
        "b",
        "c",
    )
    assert list_scored_classes(Numeric("pain", 0, 10)) == ("pain",)


def test_numbers_have_few_digits() -> None:
    assert round_values(np.array([[1 / 3, 1e-9 / 7], [2.0, -1e7 / 3]])) == [
        [0.333333, 1.42857e-10],
        [2.0, -3333330.0],
    ]
    assert round_values(np.float64(0.1234567)) == 0.123457 and type(round_values(1)) is float
