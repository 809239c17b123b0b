"""The quality report: from released rows and charged queries, and a reader can compute it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from release_cases import NOT_MISSING, NUMBER, PAPER, real_rows, release_of
from shoal.releases.content import Counted
from shoal.releases.learning import taken
from shoal.releases.quality import ASKED, COUNTED, LEARNED, agree, findings, report


def test_every_figure_says_where_it_comes_from_and_none_comes_from_real_rows() -> None:
    for edits in ((), (NUMBER,), (PAPER, NOT_MISSING)):
        for finding in report(release_of(*edits)):
            assert finding.source.startswith("the released rows")
            assert "real" not in str(finding).replace("which says nothing of real rows", "")


def test_marginals_are_near_the_charged_tables_and_noise_stands_beside_them() -> None:
    release = release_of()
    found = [finding for finding in findings(release) if finding.what.startswith("total variation")]
    assert len(found) == len(release.schema.features)
    for finding in found:
        by_drawing, by_noise = finding.beside.values()
        assert finding.value < 3 * by_drawing and 0 < by_noise < 0.2


def test_rows_that_another_model_made_stand_out() -> None:
    release = release_of()
    columns = {**release.dataset.columns, "amount": np.full(500, 50000.0)}
    spoiled = replace(release, dataset=replace(release.dataset, columns=columns))
    amount = next(finding for finding in findings(spoiled) if " amount " in finding.what)
    assert amount.value > 10 * amount.beside["by drawing so many rows"]


def test_sizes_stand_beside_what_was_declared_and_counted() -> None:
    [plus], [paper] = (findings(release)[:1] for release in (release_of(), release_of(PAPER, NOT_MISSING)))
    assert plus.value == 500 and plus.beside["declared"] == 2000 and abs(plus.beside["counted with noise"] - 2000) < 200
    assert list(paper.beside.values()) == [100]


def test_the_label_stands_beside_the_model() -> None:
    release = release_of()
    shares = [finding for finding in findings(release) if finding.what.startswith("share of doubtful")]
    assert sum(finding.value for finding in shares) == 1
    assert all(abs(finding.value - finding.beside["by the model, on the same rows"]) < 0.1 for finding in shares)
    assert [finding.beside for finding in findings(release_of(PAPER, NOT_MISSING))[1:]] == [{}, {}]
    mean = findings(release_of(NUMBER))[-1]
    assert mean.value == np.mean(release_of(NUMBER).dataset.labels) and (mean.beside["lowest"], mean.beside["highest"]) == (-1, 1)


def test_the_label_stands_beside_the_charged_count_of_the_rows_that_were_asked() -> None:
    release, number = release_of(), release_of(NUMBER)
    asked, [values] = real_rows(release.manifest.study)["doubtful"], [release.params.label.values]  # type: ignore[union-attr]
    for value, finding in zip(values, findings(release)[-2:], strict=True):
        assert abs(finding.beside[ASKED] - np.mean(asked == value)) < 0.06
        assert finding.source == f"the released rows, the model and {COUNTED}"
    [mean] = findings(number)[-1:]
    assert abs(mean.beside[ASKED] - real_rows(number.manifest.study)["doubtful"].astype(float).mean()) < 0.12
    assert mean.source == f"the released rows and {COUNTED}"
    other = Counted(rows=1.0, deviation=1.0, shares=[0.75, 0.25])
    assert [finding.beside[ASKED] for finding in findings(replace(release, counted=other))[-2:]] == [0.75, 0.25]
    assert findings(replace(number, counted=other))[-1].beside[ASKED] == -0.5
    paper = findings(release_of(PAPER, NOT_MISSING, NUMBER))[-1]
    assert paper.source == "the released rows" and ASKED not in paper.beside
    uncounted = findings(replace(release, counted=None))
    assert all(ASKED not in finding.beside for finding in uncounted) and uncounted[-1].source == "the released rows and the model"


def test_a_regression_learns_more_than_nothing() -> None:
    last = report(release_of())[-1]
    [trivial] = last.beside.values()
    assert last.what == LEARNED and last.value < trivial and "says nothing of real rows" in str(last)
    assert str(last).endswith("by the signer's word")


def test_no_regression_is_shown_the_very_numbers_that_a_model_has_put_down() -> None:
    number = release_of(NUMBER)
    assert report(number) == findings(number)
    told = report(release_of())[-1]
    assert not agree(number, (*findings(number), told.model_copy(update={"beside": {"always the mean": 0.5}})))
    paper = release_of(PAPER, NOT_MISSING, NUMBER)
    assert report(paper)[-1].what == LEARNED and list(report(paper)[-1].beside) == ["always the mean"]
    assert agree(paper, report(paper))


def test_a_report_agrees_with_its_release_only() -> None:
    release = release_of()
    whole = report(release)
    assert agree(release, whole) and agree(release, whole[:-1])
    assert not agree(release, whole[1:]) and not agree(release, whole[:-2]) and not agree(release, (*whole, whole[-1]))
    assert not agree(replace(release, dataset=taken(release.dataset, slice(499))), whole)
    assert not agree(release, (*whole[:-1], whole[0]))


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
def test_a_signer_has_no_words_of_its_own_for_what_a_regression_learned(lie: dict[str, Any]) -> None:
    release = release_of()
    *rest, last = report(release)
    assert agree(release, (*rest, last.model_copy(update={"value": 0.0})))
    assert not agree(release, (*rest, last.model_copy(update=lie)))
