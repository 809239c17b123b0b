"""The quality report: from released rows and charged queries, and a reader can compute it again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from release_cases import NOT_MISSING, NUMBER, PAPER, release_of
from shoal.releases.learning import taken
from shoal.releases.quality import LEARNED, agree, findings, report


def test_every_figure_says_where_it_comes_from_and_none_comes_from_real_rows() -> None:
    for edits in ((), (NUMBER,), (PAPER, NOT_MISSING)):
        for finding in report(release_of(*edits)):
            assert finding.source.startswith("the released rows") and "real" not in str(finding)


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
    assert mean.value == np.mean(release_of(NUMBER).dataset.labels) and mean.beside == {"lowest": -1, "highest": 1}


def test_a_regression_learns_more_than_nothing() -> None:
    for edits in ((), (NUMBER,)):
        last = report(release_of(*edits))[-1]
        [trivial] = last.beside.values()
        assert last.what == LEARNED and last.value < trivial


def test_a_report_agrees_with_its_release_only() -> None:
    release = release_of()
    whole = report(release)
    assert agree(release, whole) and agree(release, whole[:-1])
    assert not agree(release, whole[1:]) and not agree(release, whole[:-2]) and not agree(release, (*whole, whole[-1]))
    assert not agree(replace(release, dataset=taken(release.dataset, slice(499))), whole)
    assert not agree(release, (*whole[:-1], whole[0]))
