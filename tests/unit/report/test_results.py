"""Results of coordinators: counts, model and label; no scores."""

from __future__ import annotations

import pytest

from shoal.errors import SpecError
from shoal.report import make_report
from shoal.report.views import read_result_statement
from tests.support.coordinator import HOSTED
from tests.unit.report.cases import check_inert, make_result_document


@pytest.mark.parametrize("name", HOSTED)
def test_result_page_has_counts_and_label_but_no_scores(name: str) -> None:
    document = make_result_document(name)
    page = check_inert(make_report([document]))
    shown = [one.removeprefix("part-1-") for one in page.sections]
    assert shown[:2] == ["headline", "participation"] and shown[-3:] == [
        "card",
        "label",
        "reproduce",
    ]
    assert ("tree" in shown) == (document["model"]["kind"] == "tree")
    assert ("weights" in shown) == (document["model"]["kind"] != "tree")
    assert "It is not known how well the model predicts" in page.text
    assert "accuracy" not in page.text.lower() and "simulation:" not in page.text
    assert document["study"] in page.text


@pytest.mark.parametrize("name", HOSTED)
def test_result_statement_equals_the_stored_one(name: str) -> None:
    document = make_result_document(name)
    assert read_result_statement(document, "x").to_dict() == document["statement"]


def test_free_counts_are_shown_with_their_deviation() -> None:
    document = make_result_document("sdq")
    page = check_inert(make_report([document]))
    table = document["queries"][0][0]
    assert "part-1-asked" in page.sections
    assert f"standard deviation of {table['deviation']:.3g}" in page.text
    for row in table["counts"]:
        assert f"{row['count']:,.0f}" in page.text


def test_long_lists_of_counts_are_cut() -> None:
    document = make_result_document("sdq")
    document["counts"] = {f"k{i}": i for i in range(80)} | {
        "nested": {"a": 1},
        "empty": [],
        "truth": True,
    }
    table = document["queries"][0][0]
    table["counts"] = [{"cells": ["x"], "count": float(i)} for i in range(70)]
    assert check_inert(make_report([document])).text.count("And ") == 2


def test_result_without_shared_data_has_no_model() -> None:
    document = make_result_document("pfds paper") | {"model": None}
    page = check_inert(make_report([document]))
    assert "without a model: nothing was shared" in page.text


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": -1.0},
        {"unit": "planet"},
        {"releases": [{}]},
        {"releases": 3},
        {"closes": "soon"},
        {"title": None},
        {"epsilon": 1e-9},
    ],
)
def test_report_rejects_inconsistent_statements(change: dict[str, object]) -> None:
    document = make_result_document("anonml")
    document["statement"] |= change
    with pytest.raises(SpecError) as caught:
        make_report([document])
    assert caught.value.code == "REPORT-002"


def test_report_rejects_an_invalid_model() -> None:
    document = make_result_document("anonml")
    document["model"] = {"kind": "additive"}
    with pytest.raises(SpecError) as caught:
        make_report([document])
    assert caught.value.code == "MODEL-001"
