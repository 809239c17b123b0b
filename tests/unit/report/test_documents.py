"""Strict reading of documents: errors for absent, invalid and inconsistent fields."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import SpecError
from shoal.report.documents import ScoreMean, read_audit, read_document
from shoal.report.formatting import (
    choose_main_measure,
    compute_interval,
    compute_t_quantile,
    format_interval,
    format_measure,
    format_number,
)
from shoal.report.views import make_run_view
from tests.unit.report.cases import (
    make_audit_document,
    make_comparison_document,
    make_point,
    make_result_document,
    make_run_document,
    make_run_with_details,
)


def catch_error(document: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read = read_document(document, "run.json")
        make_run_view(read, "run.json")  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"simulated": True},
        {"simulated": True, "model": {}},
        {"error": {"code": "X"}},
        {"model": {}},
    ],
)
def test_read_document_rejects_other_documents(document: dict[str, Any]) -> None:
    error = catch_error(document)
    assert error.code == "REPORT-001" and error.what.startswith("run.json is not a run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": []}, "points"),
        ({"points": [{}]}, "points.0.settings"),
        ({"seed": "7"}, "seed"),
        ({"repeats": 0}, "repeats"),
        ({"protocol": "other"}, "protocol"),
        ({"rows": None}, "rows"),
        (
            {"points": [make_point(1.0, 0.5, settings={"moon\x1b": 1.0})]},
            "It varies moon\N{REPLACEMENT CHARACTER}",
        ),
        ({"points": [make_point(float("nan"), 0.5)]}, "points.0.total.epsilon"),
        (
            {
                "points": [
                    make_point(1.0, 0.5),
                    make_point(1.0, 0.5, scores={"rmse": {"value": 1.0, "error": None}}),
                ]
            },
            "different measures",
        ),
    ],
)
def test_read_document_names_the_invalid_field(change: dict[str, Any], said: str) -> None:
    error = catch_error(make_run_document() | change)
    assert (
        error.code == "REPORT-002" and said in (error.why or "") and error.fix == "Write it again."
    )


def test_error_names_a_later_version_of_shoal() -> None:
    document = make_run_document(versions={"shoal": "9.1.0"})
    document["study"]["spec"] = 2
    error = catch_error(document)
    assert (
        error.code == "REPORT-002"
        and "written by shoal 9.1.0" in (error.why or "")
        and "Upgrade" in (error.fix or "")
    )
    document = make_run_document(versions={"shoal": "9.1.0"})
    del document["points"][0]["scores"]
    assert "written by shoal 9.1.0" in (catch_error(document).why or "")


def test_read_document_ignores_unknown_fields() -> None:
    document = make_run_document(weather="fine")
    document["points"][0]["details"] = {"moon": "full"}
    assert read_document(document) == read_document(make_run_document())


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
def test_read_document_rejects_inconsistent_details(name: str, change: dict[str, Any]) -> None:
    document = make_run_with_details(name)
    found = document["points"][0]["details"][name]
    (found[0] if isinstance(found, list) else found).update(change)
    assert catch_error(document).code == "REPORT-002"


def test_read_document_checks_comparisons_and_results() -> None:
    for document in (
        make_comparison_document(entries=[]),
        make_comparison_document(measure="rmse"),
        make_result_document("sdq") | {"study": "XYZ"},
    ):
        with pytest.raises(SpecError) as caught:
            read_document(document)
        assert caught.value.code == "REPORT-002"
    spoilt = make_result_document("sdq")
    spoilt["queries"][0][0]["features"] = []
    with pytest.raises(SpecError):
        read_document(spoilt)


def test_read_audit_rejects_invalid_audits() -> None:
    for document, code in (
        (make_run_document(), "REPORT-001"),
        (make_audit_document(bound="1"), "REPORT-002"),
    ):
        with pytest.raises(SpecError) as caught:
            read_audit(document, "audit.json")
        assert caught.value.code == code and "audit.json" in caught.value.what


def test_intervals_use_students_t() -> None:
    stats = pytest.importorskip("scipy.stats")
    for n in (*range(2, 60), 100, 1000, 10_000):
        assert abs(compute_t_quantile(n) - stats.t.ppf(0.975, n - 1)) < 1e-4
    assert compute_interval("accuracy", ScoreMean(value=0.9, error=0.1), 2) == (0.0, 1.0)
    assert compute_interval("rmse", ScoreMean(value=1.0, error=1.0), 2) == (
        0.0,
        1.0 + compute_t_quantile(2),
    )
    assert compute_interval("r_squared", ScoreMean(value=0.0, error=1.0), 3) == (
        -compute_t_quantile(3),
        compute_t_quantile(3),
    )
    assert (
        compute_interval("accuracy", ScoreMean(value=0.9, error=None), 1) is None
        and format_interval("accuracy", None) == ""
    )


def test_numbers_and_measures_are_formatted() -> None:
    assert (
        format_measure("accuracy", 0.98765) == "98.8 %"
        and format_measure("f1", 0.5) == "0.500"
        and format_measure("mean_absolute_error", 1234.5) == "1234"
        and format_measure("r_squared", -1e-5) == "0.000"
    )
    assert (
        format_number(3.0) == "3"
        and format_number(12345.6) == "12,346"
        and format_number(0.012345) == "0.01235"
    )
    assert (
        choose_main_measure({"auc": 1, "rmse": 2}) == "rmse"
        and choose_main_measure({"novel": 1}) == "novel"
    )
