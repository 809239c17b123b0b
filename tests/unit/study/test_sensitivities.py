"""Sensitivities of priced releases, with one row or several rows per person."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.study.loader import parse_study_text
from shoal.study.plan import make_plan
from shoal.study.spec import Study
from shoal.study.starters import read_starter
from shoal.study.validation import parse_study

N_FEATURES = 3
ROWS = 5


def make_study(protocol: str, **changes: Any) -> Study:
    """Return a study with three binary features."""
    tables = {
        "ddml": {"clip": 2.0, "learning_rate": 0.5, "fraction_bits": 10},
        "sdq": {"n_databases": 10, "depth": 2},
        "pfds": {"n_holders": 10},
    }
    document = {
        "title": "t",
        "purpose": "p",
        "contact": "c",
        "protocol": protocol,
        "label": {"name": "y", "values": ["no", "yes"]},
        "feature": [
            {"name": f"x{i}", "values": ["a", "b"], "missing": False} for i in range(N_FEATURES)
        ],
        "privacy": {"epsilon": 1.0},
        "participation": {"minimum": 10, "size": 100_000},
        **({protocol: tables[protocol]} if protocol in tables else {}),
    }
    if protocol == "ddml":
        document["participation"] = {"minimum": 100, "size": 100_000}
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    return parse_study(document)


def list_sensitivities(one: Study) -> list[float]:
    return [release.event.parameters["sensitivity"] for release in make_plan(one).releases]


PERSON = {"data": {"person": "patient", "max_rows_per_person": ROWS}}
PAPER = {"variant": "paper"}


@pytest.mark.parametrize(
    ("protocol", "changes", "expected"),
    [
        ("sdq", {}, [1, 1]),
        ("sdq", {"sdq": {"choice": "sums"}}, [N_FEATURES, 1]),
        ("sdq", {"sdq": {"depth": None, "learner": "naive-bayes"}}, [N_FEATURES]),
        # For each attribute the values, and the values by class.
        ("sdq", PAPER, [1, 2 * N_FEATURES]),
        ("pfds", {}, [256 * N_FEATURES]),
        ("pfds", PAPER, [1, 1, 1]),
        ("pfds", {"trust": "secure-sum"}, [256 * N_FEATURES, 256, 128 * N_FEATURES, 256]),
    ],
)
def test_sensitivity_of_counts_grows_with_rows_of_a_person(
    protocol: str, changes: dict[str, Any], expected: list[float]
) -> None:
    assert list_sensitivities(make_study(protocol, **changes)) == expected
    assert list_sensitivities(make_study(protocol, **changes, **PERSON)) == [
        ROWS * each for each in expected
    ]


def test_sensitivity_of_gaussian_sums_is_the_l2_norm() -> None:
    changes = {"trust": "secure-sum", "privacy": {"epsilon": 1.0, "delta": 1e-6}}
    root = math.sqrt(N_FEATURES)
    alone = list_sensitivities(make_study("pfds", **changes))
    assert alone == pytest.approx([256 * root, 256, 128 * root, 256])
    assert list_sensitivities(make_study("pfds", **changes, **PERSON)) == pytest.approx(
        [ROWS * each for each in alone]
    )


def test_sensitivity_of_an_update_is_twice_its_clip() -> None:
    largest = 0.5 * 2.0 * 2**10
    assert list_sensitivities(make_study("ddml", privacy={"epsilon": 1.0, "unit": "weight"})) == [
        2 * largest
    ]
    # Four inputs that are 0 or 1: L1 norm 4, L2 norm 2.
    assert list_sensitivities(make_study("ddml", variant="paper")) == [2 * 2 * largest]


def test_paper_epsilon_includes_free_questions() -> None:
    table = {"n_partitions": 2, "n_subsets": 2, "subset_size": 1}
    queries = {"features": ["x0"], "n_queries": 5, "epsilon_release": 1.0}
    plain = make_plan(make_study("anonml", **PAPER, anonml=table)).make_statement().paper_epsilon
    asked = (
        make_plan(make_study("anonml", **PAPER, anonml=table, queries=queries))
        .make_statement()
        .paper_epsilon
    )
    assert plain is not None and asked is not None
    assert asked == pytest.approx(plain + 5)


def test_shuffled_number_without_bins_is_cut_by_a_public_grid() -> None:
    text = (
        read_starter("anonml")
        .replace('trust = "local"', 'trust = "shuffled"')
        .replace("bins = [0, 2, 10]\n", "")
    )
    text = text.replace("epsilon = 2.0 ", "delta = 1e-6\nepsilon = 2.0 ").replace(
        "minimum = 2000 ", "honest_share = 0.9\nminimum = 2000 "
    )
    forecasts = [forecast.what for forecast in make_plan(parse_study_text(text)).forecasts]
    # The lowest value, three cuts between four equal widths and three between growing ones: eight
    # bins, each with two labels.
    assert any("16 cells" in what for what in forecasts)
    assert not any(" 2 cells" in what for what in forecasts)
