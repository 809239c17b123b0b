"""Documents are read strictly: a sentence for whatever is missing, of another kind, or does not fit together."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import SpecError
from shoal.report.details import Mean
from shoal.report.documents import read_audit, read_document
from shoal.report.figures import figure, interval, interval_words, main_measure, number, t_quantile
from shoal.report.views import view_of
from unit.report.cases import audit_document, compared_document, point, result_document, run_document, with_details


def refusal(document: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read = read_document(document, "run.json")
        view_of(read, "run.json")  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("document", [{}, {"simulated": True}, {"simulated": True, "model": {}}, {"error": {"code": "X"}}, {"model": {}}])
def test_something_else_is_said_to_be_something_else(document: dict[str, Any]) -> None:
    error = refusal(document)
    assert error.code == "REPORT-001" and error.what.startswith("run.json is neither a run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": []}, "points"),
        ({"points": [{}]}, "points.0.settings"),
        ({"seed": "7"}, "seed"),
        ({"repeats": 0}, "repeats"),
        ({"protocol": "other"}, "protocol"),
        ({"rows": None}, "rows"),
        ({"points": [point(1.0, 0.5, settings={"moon\x1b": 1.0})]}, "It varies moon\N{REPLACEMENT CHARACTER}"),
        ({"points": [point(float("nan"), 0.5)]}, "points.0.total.epsilon"),
        ({"points": [point(1.0, 0.5), point(1.0, 0.5, scores={"rmse": {"value": 1.0, "error": None}})]}, "other measures"),
    ],
)
def test_a_run_that_lacks_something_is_refused_with_its_name(change: dict[str, Any], said: str) -> None:
    error = refusal(run_document() | change)
    assert error.code == "REPORT-002" and said in (error.why or "") and error.fix == "Make it again."


def test_a_run_of_a_later_version_is_said_to_be_one() -> None:
    document = run_document(versions={"shoal": "9.1.0"})
    document["study"]["spec"] = 2
    error = refusal(document)
    assert error.code == "REPORT-002" and "written by shoal 9.1.0" in (error.why or "") and "Upgrade" in (error.fix or "")
    document = run_document(versions={"shoal": "9.1.0"})
    del document["points"][0]["scores"]
    assert "written by shoal 9.1.0" in (refusal(document).why or "")


def test_what_a_later_version_adds_is_passed_over() -> None:
    document = run_document(weather="fine")
    document["points"][0]["details"] = {"moon": "full"}
    assert read_document(document) == read_document(run_document())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("histograms", {"estimated": [[0.5, 0.5]]}),
        ("histograms", {"true": [[0.5], [0.5]]}),
        ("marginals", {"released": [1.0]}),
        ("weights", {"error": -1.0}),
        ("spread", {"measured": [[1.0]]}),
        ("exposure", {"claimed": 1}),
    ],
)
def test_details_that_do_not_fit_together_are_refused(name: str, change: dict[str, Any]) -> None:
    document = with_details(name)
    found = document["points"][0]["details"][name]
    (found[0] if isinstance(found, list) else found).update(change)
    assert refusal(document).code == "REPORT-002"


def test_a_comparison_and_a_result_are_checked_too() -> None:
    for document in (compared_document(entries=[]), compared_document(measure="rmse"), result_document("sdq") | {"study": "XYZ"}):
        with pytest.raises(SpecError) as caught:
            read_document(document)
        assert caught.value.code == "REPORT-002"
    spoilt = result_document("sdq")
    spoilt["queries"][0][0]["features"] = []
    with pytest.raises(SpecError):
        read_document(spoilt)


def test_an_audit_is_checked() -> None:
    for document, code in ((run_document(), "REPORT-001"), (audit_document(bound="1"), "REPORT-002")):
        with pytest.raises(SpecError) as caught:
            read_audit(document, "audit.json")
        assert caught.value.code == code and "audit.json" in caught.value.what


def test_intervals_are_student_s() -> None:
    stats = pytest.importorskip("scipy.stats")
    for n in (*range(2, 60), 100, 1000, 10_000):
        assert abs(t_quantile(n) - stats.t.ppf(0.975, n - 1)) < 1e-4
    assert interval("accuracy", Mean(value=0.9, error=0.1), 2) == (0.0, 1.0)
    assert interval("rmse", Mean(value=1.0, error=1.0), 2) == (0.0, 1.0 + t_quantile(2))
    assert interval("r_squared", Mean(value=0.0, error=1.0), 3) == (-t_quantile(3), t_quantile(3))
    assert interval("accuracy", Mean(value=0.9, error=None), 1) is None and interval_words("accuracy", None) == ""


def test_figures_are_written_for_people() -> None:
    assert (
        figure("accuracy", 0.98765) == "98.8 %"
        and figure("f1", 0.5) == "0.500"
        and figure("mean_absolute_error", 1234.5) == "1234"
        and figure("r_squared", -1e-5) == "0.000"
    )
    assert number(3.0) == "3" and number(12345.6) == "12,346" and number(0.012345) == "0.01235"
    assert main_measure({"auc": 1, "rmse": 2}) == "rmse" and main_measure({"novel": 1}) == "novel"
