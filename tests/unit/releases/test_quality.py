"""The quality report: computed from released rows and charged queries, and repeatable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.releases.content import NoisyRowCount
from shoal.releases.quality import (
    CHARGED_COUNT,
    REGRESSION_ERROR,
    STATED_COUNT,
    compute_findings,
    is_report_consistent,
    make_quality_report,
    select_rows,
)
from tests.support.releases import NOT_MISSING, NUMBER, PAPER, make_release, real_rows


def test_every_finding_comes_from_released_rows_only() -> None:
    for edits in ((), (NUMBER,), (PAPER, NOT_MISSING)):
        for finding in make_quality_report(make_release(*edits)):
            assert finding.source.startswith("the released rows")
            assert "real" not in str(finding).replace("which says nothing of real rows", "")


def test_marginals_are_near_the_charged_tables() -> None:
    release = make_release()
    found = [
        finding
        for finding in compute_findings(release)
        if finding.what.startswith("total variation")
    ]
    assert len(found) == len(release.schema.features)
    for finding in found:
        by_drawing, by_noise = finding.beside.values()
        assert finding.value < 3 * by_drawing and 0 < by_noise < 0.2


def test_rows_of_another_model_have_a_large_distance() -> None:
    release = make_release()
    columns = {**release.dataset.columns, "amount": np.full(500, 50000.0)}
    spoiled = replace(release, dataset=replace(release.dataset, columns=columns))
    amount = next(finding for finding in compute_findings(spoiled) if " amount " in finding.what)
    assert amount.value > 10 * amount.beside["by drawing so many rows"]


def test_row_finding_shows_declared_and_counted_rows() -> None:
    [plus], [paper] = (
        compute_findings(release)[:1]
        for release in (make_release(), make_release(PAPER, NOT_MISSING))
    )
    assert (
        plus.value == 500
        and plus.beside["declared"] == 2000
        and abs(plus.beside["counted with noise"] - 2000) < 200
    )
    assert list(paper.beside.values()) == [100]


def test_label_findings_show_shares_of_the_model() -> None:
    release = make_release()
    shares = [
        finding
        for finding in compute_findings(release)
        if finding.what.startswith("share of doubtful")
    ]
    assert sum(finding.value for finding in shares) == 1
    assert all(
        abs(finding.value - finding.beside["by the model, on the same rows"]) < 0.1
        for finding in shares
    )
    assert [
        finding.beside for finding in compute_findings(make_release(PAPER, NOT_MISSING))[1:]
    ] == [
        {},
        {},
    ]
    mean = compute_findings(make_release(NUMBER))[-1]
    assert mean.value == np.mean(make_release(NUMBER).dataset.labels) and (
        mean.beside["lowest"],
        mean.beside["highest"],
    ) == (-1, 1)


def test_label_findings_show_the_charged_count() -> None:
    release, number = make_release(), make_release(NUMBER)
    asked, [values] = real_rows(release.manifest.study)["doubtful"], [release.params.label.values]  # type: ignore[union-attr]
    for value, finding in zip(values, compute_findings(release)[-2:], strict=True):
        assert abs(finding.beside[CHARGED_COUNT] - np.mean(asked == value)) < 0.06
        assert finding.source == f"the released rows, the model and {STATED_COUNT}"
    [mean] = compute_findings(number)[-1:]
    assert (
        abs(
            mean.beside[CHARGED_COUNT]
            - real_rows(number.manifest.study)["doubtful"].astype(float).mean()
        )
        < 0.12
    )
    assert mean.source == f"the released rows and {STATED_COUNT}"
    other = NoisyRowCount(rows=1.0, deviation=1.0, shares=[0.75, 0.25])
    assert [
        finding.beside[CHARGED_COUNT]
        for finding in compute_findings(replace(release, noisy_count=other))[-2:]
    ] == [0.75, 0.25]
    assert compute_findings(replace(number, noisy_count=other))[-1].beside[CHARGED_COUNT] == -0.5
    paper = compute_findings(make_release(PAPER, NOT_MISSING, NUMBER))[-1]
    assert paper.source == "the released rows" and CHARGED_COUNT not in paper.beside
    uncounted = compute_findings(replace(release, noisy_count=None))
    assert (
        all(CHARGED_COUNT not in finding.beside for finding in uncounted)
        and uncounted[-1].source == "the released rows and the model"
    )


def test_regression_finding_is_better_than_the_baseline() -> None:
    last = make_quality_report(make_release())[-1]
    [trivial] = last.beside.values()
    assert (
        last.what == REGRESSION_ERROR
        and last.value < trivial
        and "says nothing of real rows" in str(last)
    )
    assert str(last).endswith("by the signer's word")


def test_numeric_plus_release_has_no_regression_finding() -> None:
    number = make_release(NUMBER)
    assert make_quality_report(number) == compute_findings(number)
    told = make_quality_report(make_release())[-1]
    assert not is_report_consistent(
        number,
        (*compute_findings(number), told.model_copy(update={"beside": {"always the mean": 0.5}})),
    )
    paper = make_release(PAPER, NOT_MISSING, NUMBER)
    assert make_quality_report(paper)[-1].what == REGRESSION_ERROR and list(
        make_quality_report(paper)[-1].beside
    ) == ["always the mean"]
    assert is_report_consistent(paper, make_quality_report(paper))


def test_report_is_consistent_with_its_release_only() -> None:
    release = make_release()
    whole = make_quality_report(release)
    assert is_report_consistent(release, whole) and is_report_consistent(release, whole[:-1])
    assert (
        not is_report_consistent(release, whole[1:])
        and not is_report_consistent(release, whole[:-2])
        and not is_report_consistent(release, (*whole, whole[-1]))
    )
    assert not is_report_consistent(
        replace(release, dataset=select_rows(release.dataset, slice(499))), whole
    )
    assert not is_report_consistent(release, (*whole[:-1], whole[0]))


@pytest.mark.parametrize(
    "lie",
    [
        {"what": "error on real rows"},
        {"value": -0.01},
        {"value": 1.01},
        {"beside": {}},
        {"beside": {"the best there is": 0.5}},
        {"beside": {"always the most common class": 1.5}},
        {"beside": {"always the most common class": 0.5, "more": 0.5}},
        {"source": "the real rows"},
    ],
)
def test_regression_finding_with_changed_fields_is_inconsistent(
    lie: dict[str, Any],
) -> None:
    release = make_release()
    *rest, last = make_quality_report(release)
    assert is_report_consistent(release, (*rest, last.model_copy(update={"value": 0.0})))
    assert not is_report_consistent(release, (*rest, last.model_copy(update=lie)))
