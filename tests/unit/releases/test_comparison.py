"""A release beside real rows: useful to its holder, and kept from everyone else."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from release_cases import NORTH, NOT_MISSING, NUMBER, PAPER, real_rows, release_of
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError, StoreError, UsageError
from shoal.releases import learning
from shoal.releases.artefact import write
from shoal.releases.comparison import NOTICE, Comparison, compare
from shoal.releases.content import Release


def compared(release: Release) -> dict[str, tuple[float, dict[str, float]]]:
    comparison = compare(release, real_rows(release.manifest.study), SeededEntropy(1))
    return {finding.what: (finding.value, finding.beside) for finding in comparison.findings}


@pytest.mark.parametrize("edits", [(), (NUMBER,), (PAPER, NOT_MISSING)])
def test_sizes_marginals_partitions_and_learning(edits: tuple[tuple[str, str], ...]) -> None:
    release = release_of(*edits)
    found = compared(release)
    assert found["rows released"] == (len(release.dataset), {"real rows": 2000})
    assert "total variation of kind" in found and "Wasserstein distance of kind, as a share of its range" not in found
    assert 0 < found["Wasserstein distance of amount, as a share of its range"][0] < 0.2
    assert ("total variation of doubtful" in found) is (NUMBER not in edits)
    assert "Wasserstein distance over 50 random partitions into 64 cells, on average" in found
    error, beside = found["error of a regression on a quarter of the real rows, learned from the released rows"]
    by_real, trivial = beside.values()
    assert by_real < error and by_real < trivial


def test_rows_of_nobody_are_further_from_the_real_ones() -> None:
    good = release_of()
    spoiled = replace(good, dataset=replace(good.dataset, columns={**good.dataset.columns, "amount": np.full(500, 50000.0)}))
    one, other = compared(good), compared(spoiled)
    for what in ("total variation of amount", "Wasserstein distance over 50 random partitions into 64 cells, on average"):
        assert one[what][0] < other[what][0] / 3


def test_the_real_rows_themselves_are_at_no_distance() -> None:
    release = release_of()
    columns = real_rows(release.manifest.study)
    same = replace(release.dataset, columns=release.schema.encode(columns), labels=release.schema.encode_label(columns))
    found = compared(replace(release, dataset=same))
    assert all(value == 0 for what, (value, _) in found.items() if what.startswith(("total", "Wasserstein")))


def test_a_sorted_table_is_not_taken_for_two_kinds_of_rows() -> None:
    release = release_of()
    columns = real_rows(release.manifest.study)
    order = np.argsort(columns["doubtful"].astype(str), kind="stable")
    comparison = compare(release, {name: column[order] for name, column in columns.items()}, SeededEntropy(1))
    [halves] = [finding.beside for finding in comparison.findings if "partitions" in finding.what]
    assert halves["between two halves of the real rows"] < 0.03


def test_without_rows_there_are_sizes_only() -> None:
    release = release_of(n_rows=0)
    assert list(compared(release)) == ["rows released"]


def test_a_column_without_a_known_number_has_no_distance() -> None:
    release = release_of()
    columns = real_rows(release.manifest.study) | {"days_to_report": np.full(2000, None)}
    found = {finding.what for finding in compare(release, columns, SeededEntropy(1)).findings}
    assert "total variation of days_to_report" in found and "Wasserstein distance of days_to_report, as a share of its range" not in found


def test_a_large_model_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_WEIGHTS", 1)
    assert not [what for what in compared(release_of()) if "regression" in what]


def test_real_rows_must_fit_the_study() -> None:
    release = release_of()
    with pytest.raises(SpecError):
        compare(release, real_rows(release.manifest.study) | {"amount": np.full(2000, -1)}, SeededEntropy(1))


@pytest.fixture
def comparison() -> Comparison:
    return compare(release_of(n_rows=0), real_rows(release_of().manifest.study), SeededEntropy(1))


def test_the_file_is_for_its_owner_and_begins_with_a_warning(comparison: Comparison, tmp_path: Path) -> None:
    comparison.write(tmp_path / "mine.txt")
    assert stat.S_IMODE((tmp_path / "mine.txt").stat().st_mode) == 0o600
    assert (tmp_path / "mine.txt").read_text().splitlines()[0] == NOTICE
    assert comparison.to_dict()["notice"] == NOTICE
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_it_is_never_written_into_a_release(comparison: Comparison, tmp_path: Path) -> None:
    write(tmp_path / "it", release_of(), "north", NORTH, inferred=False)
    (tmp_path / "link").symlink_to("it")
    (tmp_path / "it/inner").mkdir()
    (tmp_path / "deep").symlink_to("it/inner")
    before = sorted(tmp_path.rglob("*"))
    for place in ("it/mine.txt", "it/inner/mine.txt", "link/mine.txt", "deep/mine.txt", "it/../it/mine.txt"):
        with pytest.raises(UsageError) as caught:
            comparison.write(tmp_path / place)
        assert caught.value.code == "REL-010"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_cannot_be_written_is_a_sentence(comparison: Comparison, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written") as caught:
        comparison.write(tmp_path / "none/mine.txt")
    assert caught.value.code == "REL-010" and not list(tmp_path.iterdir())


def test_nothing_is_overwritten(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("the real rows")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("rows.csv")
    (tmp_path / "nowhere").symlink_to("none.txt")
    before = sorted(tmp_path.iterdir())
    for place in ("rows.csv", "directory", "link", "nowhere"):
        with pytest.raises(UsageError, match="is already there") as caught:
            comparison.write(tmp_path / place)
        assert caught.value.code == "REL-010"
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "rows.csv").read_text() == "the real rows"
    assert (tmp_path / "link").is_symlink() and (tmp_path / "nowhere").is_symlink()
