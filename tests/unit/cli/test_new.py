"""`shoal new`: its files pass `shoal check`, and a failure leaves no file."""

from __future__ import annotations

import csv
import json
import subprocess
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from shoal.cli import new as command
from shoal.cli.check import check
from shoal.cli.new import new
from shoal.cli.simulate import simulate
from shoal.cli.simulate.view import format_runs
from shoal.clock import ManualClock
from shoal.errors import ShoalError
from shoal.study.loader import load_study
from shoal.study.starters import STARTER_PROTOCOLS, read_starter


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_new_study_passes_check(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "study"
    new(home, protocol=protocol)  # type: ignore[arg-type]
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()) == [
        "README.md",
        "data/example.csv",
        "study.toml",
    ]
    assert "shoal check study.toml --data data/example.csv" in capsys.readouterr().out
    check(
        home / "study.toml",
        data=str(home / "data/example.csv"),
        like=str(home / "data/example.csv"),
        sizes="600",
        epsilons="4",
        json=True,
    )
    checked = json.loads(capsys.readouterr().out)
    assert (
        checked["data"] == checked["like"]
        and checked["data"]["rows"] + checked["data"]["left_out"] == 600
    )
    assert list(tmp_path.iterdir()) == [home]


def test_example_rows_are_repeatable_and_can_be_learned(tmp_path: Path) -> None:
    for name in ("a", "b"):
        new(tmp_path / name, protocol="anonml", json=True)
    first, second = ((tmp_path / name / "data/example.csv").read_text() for name in ("a", "b"))
    assert first == second
    rows = list(csv.DictReader(first.splitlines()))
    hours = {
        answer: [float(row["hours_watched"]) for row in rows if row["passed"] == answer]
        for answer in ("no", "yes")
    }
    assert sum(hours["yes"]) / len(hours["yes"]) > 1.2 * sum(hours["no"]) / len(hours["no"])
    assert any(row["homework_mean"] == "" for row in rows) and all(
        row["hours_watched"] for row in rows
    )


def test_new_json_lists_the_written_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new(tmp_path / "s", protocol="sdq", json=True)
    written = json.loads(capsys.readouterr().out)
    assert (
        written["files"] == ["study.toml", "data/example.csv", "README.md"]
        and written["warnings"] == []
    )


def test_new_study_closes_in_thirty_days_at_noon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        command, "SystemClock", lambda: ManualClock(datetime(2027, 12, 20, 23, 59, tzinfo=UTC))
    )
    (tmp_path / "rows.csv").write_text(TestFrom.ROWS)
    new(tmp_path / "s", protocol="anonml")
    new(tmp_path / "t", protocol="anonml", from_=str(tmp_path / "rows.csv"))
    for name in ("s", "t"):
        assert load_study(tmp_path / name / "study.toml").participation.closes == datetime(
            2028, 1, 19, 12, tzinfo=UTC
        )
    assert "closes = 2031-" in read_starter("anonml")


def test_new_fills_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    new(tmp_path / "s", protocol="ddml")
    assert (tmp_path / "s/study.toml").exists()


def test_new_fills_the_working_directory_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    new(Path(), protocol="ddml")
    assert tmp_path.stat().st_ino == before and sorted(
        path.name for path in Path.cwd().iterdir()
    ) == ["README.md", "data", "study.toml"]
    with pytest.raises(ShoalError) as error:
        new(Path(), protocol="ddml")
    assert error.value.code == "NEW-001" and ". already exists" in error.value.what


@pytest.mark.parametrize("name", ["a b; rm -rf x", "it's", "a\x1b[31m", "-y"])
def test_next_command_of_new_can_be_pasted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new(Path(name), protocol="sdq")
    printed = capsys.readouterr().out
    step = printed.rpartition("next      ")[2].partition(" && ")[0]
    assert "\x1b" not in printed
    assert (
        subprocess.run(
            ["bash", "-c", f"{step} && pwd"], capture_output=True, check=True
        ).stdout.decode()
        == f"{tmp_path / name}\n"
    )


def test_fix_of_missing_parent_can_be_pasted(tmp_path: Path) -> None:
    with pytest.raises(ShoalError) as error:
        new(tmp_path / "a; b\x1b/c", protocol="sdq")
    assert error.value.fix == f"mkdir -p -- $'{tmp_path}/a; b\\x1b'" and "\x1b" not in str(
        error.value
    )


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for target in (
        tmp_path / "full",
        tmp_path / "file",
        tmp_path / "link",
        tmp_path / "none/below",
        Path("/"),
        tmp_path / "a\0b",
    ):
        with pytest.raises(ShoalError) as error:
            new(target, protocol="anonml")
        assert error.value.code == "NEW-001"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()

    def full_disk(handle: int) -> None:
        if next(calls) % 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(ShoalError) as error:
        new(tmp_path / "s", protocol="anonml")
    assert error.value.code == "NEW-001" and "No space left" in error.value.what
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShoalError):
        new(tmp_path / "empty", protocol="anonml")
    assert list((tmp_path / "empty").iterdir()) == []


def test_failed_rename_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "study.toml" and target.parent == tmp_path:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ShoalError):
        new(tmp_path, protocol="anonml")
    assert list(tmp_path.iterdir()) == []


class TestFrom:
    ROWS = "id,age,city,note,passed\n" + "".join(
        f"k{i},{20 + i % 40},{'Rome' if i % 3 else 'Oslo'},{i * 0.37},{'yes' if i % 2 else 'no'}\n"
        for i in range(200)
    )

    def write(self, tmp_path: Path, text: str) -> str:
        (tmp_path / "rows.csv").write_text(text)
        return str(tmp_path / "rows.csv")

    @pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
    def test_new_from_table_infers_columns_and_warns(
        self, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        new(tmp_path / "s", protocol=protocol, from_=self.write(tmp_path, self.ROWS))  # type: ignore[arg-type]
        printed = capsys.readouterr().out
        assert (
            "WARNING   Ranges, values, the number of rows and the reasons to leave columns out "
            "were read from the data"
            in printed
            and "identifiers: id." in printed
        )
        assert printed.endswith(
            f"next      shoal check {tmp_path}/s/study.toml --data {tmp_path}/rows.csv\n"
        )
        text = (tmp_path / "s/study.toml").read_text()
        assert (
            "range = [20, 59]    # READ FROM THE DATA" in text
            and '# READ FROM THE DATA: left out, because they look like names or identifiers: "id"'
            in text
        )
        study = load_study(tmp_path / "s/study.toml")
        assert (
            study.schema().names == ("age", "city", "note")
            and study.label.values == ("no", "yes")
            and study.data is None
        )
        check(tmp_path / "s/study.toml", data=self.write(tmp_path, self.ROWS))
        check(tmp_path / "s/study.toml", data=str(tmp_path / "s/data/example.csv"))
        example = (tmp_path / "s/data/example.csv").read_text().splitlines()
        real = {line.partition(",")[2] for line in self.ROWS.splitlines()[1:]}
        assert len(real & set(example)) == 0

    def test_new_from_accepts_numeric_label_if_the_protocol_does(self, tmp_path: Path) -> None:
        source = self.write(
            tmp_path, "age,price\n" + "".join(f"{i % 30},{i * 1.5}\n" for i in range(50))
        )
        new(tmp_path / "s", protocol="pfds", from_=source)
        assert load_study(tmp_path / "s/study.toml").label.range == (0.0, 73.5)
        with pytest.raises(ShoalError) as error:
            new(tmp_path / "t", protocol="anonml", from_=source)
        assert error.value.code == "DATA-007" and not (tmp_path / "t").exists()
        assert error.value.fix is not None and "--protocol pfds" in error.value.fix

    def test_new_from_uses_the_named_label(self, tmp_path: Path) -> None:
        source = self.write(tmp_path, self.ROWS)
        new(tmp_path / "s", protocol="anonml", from_=source, label="city")
        assert load_study(tmp_path / "s/study.toml").label.values == ("Oslo", "Rome")
        with pytest.raises(ShoalError) as error:
            new(tmp_path / "t", protocol="anonml", from_=source, label="town")
        assert (
            error.value.code == "DATA-001"
            and "town" in error.value.what
            and "city" not in str(error.value)
        )
        with pytest.raises(ShoalError) as error:
            new(tmp_path / "t", protocol="anonml", from_=source, label="pased")
        assert error.value.fix == "--label passed"
        with pytest.raises(ShoalError) as error:
            new(tmp_path / "t", protocol="anonml", label="city")
        assert error.value.code == "USAGE-001" and error.value.fix == "--from rows.csv"

    def test_new_from_missing_file_raises_data_006(self, tmp_path: Path) -> None:
        with pytest.raises(ShoalError) as error:
            new(tmp_path / "s", protocol="anonml", from_=str(tmp_path / "none.csv"))
        assert (
            error.value.code == "DATA-006"
            and "no such file" in error.value.what
            and not (tmp_path / "s").exists()
        )

    @pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
    def test_new_from_writes_a_study_that_can_be_simulated(
        self, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = self.write(tmp_path, self.ROWS)
        new(tmp_path / "s", protocol=protocol, from_=source)  # type: ignore[arg-type]
        capsys.readouterr()
        simulate(tmp_path / "s/study.toml", data=source, repeats=1, json=True)
        told = json.loads(capsys.readouterr().out)

        # The number of participants is the declared size, and at least the minimum.
        (point,) = told["points"]
        assert point["people"] >= point["minimum"] and "WARNING   The study" not in format_runs(
            told
        )

    @pytest.mark.parametrize(
        "text",
        [
            "a\n1\n",
            "id,y\n" + "".join(f"k{i},{i % 2}\n" for i in range(200)),
            "a,y\n" + "1,x\n2,x\n" * 9,
            "a,y\n" + "1,\x1b\n2,x\n" * 9,
            "a\x1b,y\n" + "1,x\n2,z\n" * 9,
            'a,c,y\n1,"SECRET\nDIAG",no\n2,v,yes\n',
            "a,c,y\n" + "1,u,SECRET\x1b\n2,v,x\n" * 9,
            "39,SECRET,y\n" + "40,u,no\n50,v,yes\n" * 5,
            "a,y\n",
            "a,y\n1,x\n2,x\n",
            "",
        ],
    )
    def test_new_from_rejects_unusable_tables_without_repeating_cells(
        self, text: str, tmp_path: Path
    ) -> None:
        for protocol in STARTER_PROTOCOLS:
            with pytest.raises(ShoalError) as error:
                new(tmp_path / "s", protocol=protocol, from_=self.write(tmp_path, text))  # type: ignore[arg-type]
            assert "SECRET" not in str(error.value) and "study.toml" not in str(error.value)
        assert not (tmp_path / "s").exists()

    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    def test_new_from_strips_spaces_around_names_and_values(
        self, suffix: str, tmp_path: Path
    ) -> None:
        source = tmp_path / f"rows{suffix}"
        if suffix == ".csv":
            source.write_text('" a ",c,y\n' + '1," u",no \n2,"v ", yes\n' * 9)
        else:
            parquet.write_table(
                pa.table({" a ": [1, 2] * 9, "c": [" u", "v "] * 9, "y": ["no ", " yes"] * 9}),
                source,
            )
        new(tmp_path / "s", protocol="anonml", from_=str(source))
        for data in (source, tmp_path / "s/data/example.csv"):
            check(tmp_path / "s/study.toml", data=str(data))
        assert load_study(tmp_path / "s/study.toml").label.values == ("no", "yes")


class TestWithoutProtocol:
    def run_new(self, *words: str) -> ShoalError:
        with pytest.raises(ShoalError) as error:
            new(Path("s"), **dict(zip(words[::2], words[1::2], strict=True)))  # type: ignore[arg-type]
        return error.value

    def test_error_suggests_a_protocol_that_fits(self, tmp_path: Path) -> None:
        error = self.run_new()
        assert (
            error.code == "USAGE-001"
            and "one row each" in (error.why or "")
            and (error.fix or "").endswith("shoal new s --protocol anonml")
        )
        (tmp_path / "rows.csv").write_text(TestFrom.ROWS)
        error = self.run_new("from_", str(tmp_path / "rows.csv"), "label", "city")
        assert "which has classes as its label" in error.what
        assert (error.fix or "").endswith(
            f"shoal new s --protocol anonml --from {tmp_path}/rows.csv --label city"
        )
        (tmp_path / "prices.csv").write_text(
            "age,price\n" + "".join(f"{i % 30},{i * 1.5}\n" for i in range(50))
        )
        error = self.run_new("from_", str(tmp_path / "prices.csv"))
        assert "a number" in error.what and (error.fix or "").endswith(
            f"--protocol pfds --from {tmp_path}/prices.csv"
        )

    def test_unusable_table_raises_data_007(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
        assert self.run_new("from_", str(tmp_path / "rows.csv")).code == "DATA-007"


def test_new_is_a_command_of_shoal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli.main import run

    assert run(["new", str(tmp_path / "s"), "--protocol", "anonml"]) == 0
    assert run(["new", str(tmp_path / "s"), "--protocol", "anonml"]) == 2
    assert run(["new", str(tmp_path / "t"), "--protocol", "nope"]) == 2
    assert "NEW-001" in capsys.readouterr().err
    assert command.EXAMPLE_ROWS == 600
