"""What a coordinator has published: counts, what was learned, the label; no score, which nobody can know."""

from __future__ import annotations

import pytest

from coordinator_cases import HOSTED
from shoal.errors import SpecError
from shoal.report import report_of
from shoal.report.labels import statement_of_result
from unit.report.cases import check_inert, result_document


@pytest.mark.parametrize("name", HOSTED)
def test_a_result_has_counts_a_label_and_no_scores(name: str) -> None:
    document = result_document(name)
    page = check_inert(report_of([document]))
    shown = [one.removeprefix("part-1-") for one in page.sections]
    assert shown[:2] == ["headline", "participation"] and shown[-3:] == ["card", "label", "reproduce"]
    assert ("tree" in shown) == (document["model"]["kind"] == "tree")
    assert ("weights" in shown) == (document["model"]["kind"] != "tree")
    assert "How well the model predicts is not known" in page.text
    assert "accuracy" not in page.text.lower() and "simulation:" not in page.text
    assert document["study"] in page.text


@pytest.mark.parametrize("name", HOSTED)
def test_the_label_of_a_result_is_the_one_that_it_carries(name: str) -> None:
    document = result_document(name)
    assert statement_of_result(document, "x").to_dict() == document["statement"]


def test_free_counts_are_shown_with_their_noise() -> None:
    document = result_document("sdq")
    page = check_inert(report_of([document]))
    table = document["queries"][0][0]
    assert "part-1-asked" in page.sections
    assert f"standard deviation of {table['deviation']:.3g}" in page.text
    for row in table["counts"]:
        assert f"{row['count']:,.0f}" in page.text


def test_long_counts_are_cut() -> None:
    document = result_document("sdq")
    document["counts"] = {f"k{i}": i for i in range(80)} | {"nested": {"a": 1}, "empty": [], "truth": True}
    table = document["queries"][0][0]
    table["counts"] = [{"cells": ["x"], "count": float(i)} for i in range(70)]
    assert check_inert(report_of([document])).text.count("And ") == 2


def test_a_study_that_shared_nothing_has_no_model() -> None:
    document = result_document("pfds paper") | {"model": None}
    page = check_inert(report_of([document]))
    assert "there is no model: nothing was shared" in page.text


@pytest.mark.parametrize(
    "change",
    [{"epsilon": -1.0}, {"unit": "planet"}, {"releases": [{}]}, {"releases": 3}, {"closes": "soon"}, {"title": None}, {"epsilon": 1e-9}],
)
def test_a_statement_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    document = result_document("anonml")
    document["statement"] |= change
    with pytest.raises(SpecError) as caught:
        report_of([document])
    assert caught.value.code == "REPORT-002"


def test_a_model_that_is_none_is_refused() -> None:
    document = result_document("anonml")
    document["model"] = {"kind": "additive"}
    with pytest.raises(SpecError) as caught:
        report_of([document])
    assert caught.value.code == "MODEL-001"
