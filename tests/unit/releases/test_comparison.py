"""Comparison of a release with real rows, which must stay with their holder."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import SpecError, StoreError, UsageError
from shoal.releases import quality
from shoal.releases.artifact import write_signed_release
from shoal.releases.comparison import NOTICE, Comparison, compare_release
from shoal.releases.content import PFDSRelease
from tests.support.releases import NORTH, NOT_MISSING, NUMBER, PAPER, make_release, real_rows


def compare_with_real_rows(release: PFDSRelease) -> dict[str, tuple[float, dict[str, float]]]:
    comparison = compare_release(release, real_rows(release.manifest.study), SeededEntropy(1))
    return {finding.what: (finding.value, finding.beside) for finding in comparison.findings}


@pytest.mark.parametrize("edits", [(), (NUMBER,), (PAPER, NOT_MISSING)])
def test_comparison_contains_sizes_marginals_partitions_and_regression(
    edits: tuple[tuple[str, str], ...],
) -> None:
    release = make_release(*edits)
    found = compare_with_real_rows(release)
    assert found["rows released"] == (len(release.dataset), {"real rows": 2000})
    assert (
        "total variation of kind" in found
        and "Wasserstein distance of kind, as a share of its range" not in found
    )
    assert 0 < found["Wasserstein distance of amount, as a share of its range"][0] < 0.2
    assert ("total variation of doubtful" in found) is (NUMBER not in edits)
    assert "Wasserstein distance over 50 random partitions into 64 cells, on average" in found
    error, beside = found[
        "error of a regression on a quarter of the real rows, learned from the released rows"
    ]
    by_real, trivial = beside.values()
    assert by_real < error and by_real < trivial


def test_distances_grow_if_a_column_is_constant() -> None:
    good = make_release()
    spoiled = replace(
        good,
        dataset=replace(
            good.dataset, columns={**good.dataset.columns, "amount": np.full(500, 50000.0)}
        ),
    )
    one, other = compare_with_real_rows(good), compare_with_real_rows(spoiled)
    for what in (
        "total variation of amount",
        "Wasserstein distance over 50 random partitions into 64 cells, on average",
    ):
        assert one[what][0] < other[what][0] / 3


def test_real_rows_have_distance_zero() -> None:
    release = make_release()
    columns = real_rows(release.manifest.study)
    same = replace(
        release.dataset,
        columns=release.schema.encode(columns),
        labels=release.schema.encode_label(columns),
    )
    found = compare_with_real_rows(replace(release, dataset=same))
    assert all(
        value == 0
        for what, (value, _) in found.items()
        if what.startswith(("total", "Wasserstein"))
    )


def test_halves_of_a_sorted_table_are_drawn_at_random() -> None:
    release = make_release()
    columns = real_rows(release.manifest.study)
    order = np.argsort(columns["doubtful"].astype(str), kind="stable")
    comparison = compare_release(
        release, {name: column[order] for name, column in columns.items()}, SeededEntropy(1)
    )
    [halves] = [finding.beside for finding in comparison.findings if "partitions" in finding.what]
    assert halves["between two halves of the real rows"] < 0.03


def test_release_without_rows_has_sizes_only() -> None:
    release = make_release(n_rows=0)
    assert list(compare_with_real_rows(release)) == ["rows released"]


def test_column_without_numbers_has_no_wasserstein_distance() -> None:
    release = make_release()
    columns = real_rows(release.manifest.study) | {"days_to_report": np.full(2000, None)}
    found = {
        finding.what for finding in compare_release(release, columns, SeededEntropy(1)).findings
    }
    assert (
        "total variation of days_to_report" in found
        and "Wasserstein distance of days_to_report, as a share of its range" not in found
    )


def test_comparison_omits_regression_of_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MAX_WEIGHTS", 1)
    assert not [what for what in compare_with_real_rows(make_release()) if "regression" in what]


def test_compare_release_rejects_rows_that_do_not_fit() -> None:
    release = make_release()
    with pytest.raises(SpecError):
        compare_release(
            release,
            real_rows(release.manifest.study) | {"amount": np.full(2000, -1)},
            SeededEntropy(1),
        )


@pytest.fixture
def comparison() -> Comparison:
    return compare_release(
        make_release(n_rows=0), real_rows(make_release().manifest.study), SeededEntropy(1)
    )


def test_comparison_file_is_private_and_begins_with_a_notice(
    comparison: Comparison, tmp_path: Path
) -> None:
    comparison.write(tmp_path / "mine.txt")
    assert stat.S_IMODE((tmp_path / "mine.txt").stat().st_mode) == 0o600
    assert (tmp_path / "mine.txt").read_text().splitlines()[0] == NOTICE
    assert comparison.to_dict()["notice"] == NOTICE
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_comparison_is_never_written_into_a_release(comparison: Comparison, tmp_path: Path) -> None:
    write_signed_release(tmp_path / "it", make_release(), "north", NORTH, is_inferred=False)
    (tmp_path / "link").symlink_to("it")
    (tmp_path / "it/inner").mkdir()
    (tmp_path / "deep").symlink_to("it/inner")
    before = sorted(tmp_path.rglob("*"))
    for path in (
        "it/mine.txt",
        "it/inner/mine.txt",
        "link/mine.txt",
        "deep/mine.txt",
        "it/../it/mine.txt",
    ):
        with pytest.raises(UsageError) as caught:
            comparison.write(tmp_path / path)
        assert caught.value.code == "REL-010"
    assert sorted(tmp_path.rglob("*")) == before


def test_unwritable_comparison_file_raises_rel_010(comparison: Comparison, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written") as caught:
        comparison.write(tmp_path / "none/mine.txt")
    assert caught.value.code == "REL-010" and not list(tmp_path.iterdir())


def test_comparison_overwrites_nothing(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("the real rows")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("rows.csv")
    (tmp_path / "nowhere").symlink_to("none.txt")
    before = sorted(tmp_path.iterdir())
    for path in ("rows.csv", "directory", "link", "nowhere"):
        with pytest.raises(UsageError, match="already exists") as caught:
            comparison.write(tmp_path / path)
        assert caught.value.code == "REL-010"
    assert (
        sorted(tmp_path.iterdir()) == before
        and (tmp_path / "rows.csv").read_text() == "the real rows"
    )
    assert (tmp_path / "link").is_symlink() and (tmp_path / "nowhere").is_symlink()
