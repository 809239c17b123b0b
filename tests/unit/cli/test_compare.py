"""`shoal compare`: a table and a chart with the same numbers, and errors as sentences."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from shoal.cli import compare as compare_view
from shoal.cli.main import run
from shoal.entropy import SeededEntropy
from shoal.report import make_report
from shoal.report.formatting import compute_t_quantile
from shoal.simulation.alternatives import ALTERNATIVES
from shoal.study.loader import parse_study_text
from shoal.study.starters import make_example_csv, read_starter
from tests.support.simulation import edited

N = 240
ERRORS = {"rmse": 9.0, "mean_absolute_error": 7.0, "r_squared": -1.0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a study with all kinds of columns, and rows that fit it."""
    folder = tmp_path_factory.mktemp("compare")
    text = edited(
        read_starter("ddml"), ("minimum = 1000", "minimum = 100"), ("size = 50000", "size = 200")
    )
    (folder / "study.toml").write_text(text)
    study = parse_study_text(text)
    rows = make_example_csv(study, N, SeededEntropy(1)).splitlines()
    lines = [rows[0] + ",site", *(f"{row},s{i % 4}" for i, row in enumerate(rows[1:]))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder


def compare(home: Path, *options: str, repeats: str = "2") -> int:
    return run(
        [
            "compare",
            str(home / "study.toml"),
            "--data",
            str(home / "rows.csv"),
            "--repeats",
            repeats,
            "--holders",
            "3",
            *options,
        ]
    )


@pytest.fixture(scope="module")
def written(home: Path) -> dict[str, Any]:
    assert compare(home, "--out", str(home / "out")) == 0
    told: dict[str, Any] = json.loads((home / "out" / "compare.json").read_text())
    return told


def test_compare_file_has_the_documented_fields(home: Path, written: dict[str, Any]) -> None:
    assert sorted(path.name for path in (home / "out").iterdir()) == ["compare.json", "compare.svg"]
    assert (
        written["compared"]
        and written["simulated"]
        and written["command"].startswith("shoal compare ")
    )
    assert {"shoal", "python", "numpy"} <= written["versions"].keys()
    assert {entry["name"] for entry in written["entries"]} | {
        one["name"] for one in written["left_out"]
    } == {way.name for way in ALTERNATIVES}
    assert {entry["protocol"] for entry in written["entries"]} == {"anonml", "ddml", "sdq", "pfds"}
    [tree] = [
        entry for entry in written["entries"] if entry["name"] == "SDQ plus, secure sums, tree"
    ]
    assert tree["bytes"] > 10_000 and tree["messages"] > 10, (
        "the joint computation is measured where it can be"
    )


def test_written_command_repeats_the_comparison(
    home: Path, written: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*written["command"].split()[1:], "--jobs", "2", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert _repeatable(again) == _repeatable(written)


def _repeatable(told: dict[str, Any]) -> dict[str, Any]:
    """Remove times, and the message volume of committees, which is random."""
    entries = [
        {key: value for key, value in entry.items() if key != "cpu_seconds"}
        for entry in told["entries"]
    ]
    return told | {
        "entries": [
            entry | {"bytes": 0, "messages": 0} if "tree" in entry["name"] else entry
            for entry in entries
        ]
    }


def test_table_shows_each_alternative_within_a_hundred_columns(
    written: dict[str, Any],
) -> None:
    text = compare_view.format_comparison(written)
    assert max(map(len, text.splitlines())) <= compare_view.COLUMNS
    words = " ".join(text.split())
    for entry in written["entries"]:
        score = entry["scores"]["accuracy"]
        assert f"{entry['name']} {100 * score['value']:.1f} %" in words
        assert f"per {entry['unit']} ({entry['relation']}), against {entry['adversary']}" in words
        assert entry["trusted"] in words
    assert (
        "most common class" in words and "without privacy" in words and "not on one scale" in words
    )
    assert "best of all: " in words and "best without any trust: " in words


def test_intervals_are_students(written: dict[str, Any]) -> None:
    entry = written["entries"][0]
    score = entry["scores"]["accuracy"]
    low, high = compare_view._compute_entry_interval("accuracy", entry, 2) or (0.0, 0.0)
    reach = compute_t_quantile(2) * score["error"]
    assert (low, high) == (max(0.0, score["value"] - reach), min(1.0, score["value"] + reach))


def test_chart_is_well_formed_with_a_row_for_each_alternative(
    home: Path, written: dict[str, Any]
) -> None:
    root = ElementTree.fromstring((home / "out" / "compare.svg").read_text())
    texts = " ".join(root.itertext())
    assert "…" not in texts, "every name has room"
    assert all(
        entry["name"].replace("secure sums", "sums") in texts
        and f"per {entry['unit']} ({entry['relation']})" in texts
        for entry in written["entries"]
    )
    assert len([one for one in root.iter() if one.tag.endswith("circle")]) == len(
        written["entries"]
    )


def test_report_accepts_a_comparison(
    home: Path, written: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    page = make_report([json.loads((home / "out" / "compare.json").read_text())])
    assert all(entry["name"] in page for entry in written["entries"])
    assert run(["report", str(home / "out")]) == 0
    capsys.readouterr()
    (home / "out" / "report.html").unlink()


def test_several_epsilons_have_separate_parts_of_the_table(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(home, "--epsilon", "0.5, 2", "--jobs", "2", repeats="1") == 0
    out = capsys.readouterr().out
    assert "\nepsilon 0.5 per unit\n" in out and "\nepsilon 2.0 per unit\n" in out
    assert (
        "WARNING   One run does not show" in out
        and "next      shoal compare " in out
        and "--out compared" in out
    )


def test_compare_reads_holders_from_a_column(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        [
            "compare",
            str(home / "study.toml"),
            "--data",
            str(home / "rows.csv"),
            "--repeats",
            "1",
            "--holder",
            "site",
            "--json",
        ]
    )
    told = json.loads(capsys.readouterr().out)
    assert code == 0 and "--holder site" in told["command"]
    assert {
        entry["n_participants"] for entry in told["entries"] if entry["protocol"] == "pfds"
    } == {4}


def result(**changes: Any) -> dict[str, Any]:
    """Return a small comparison of another study."""
    entry = {
        "name": "PFDS plus, local",
        "protocol": "pfds",
        "trusted": "nobody else",
        "epsilon": 1.0,
        "delta": 0.0,
        "unit": "record",
        "relation": "add-remove",
        "adversary": "all",
        "central": None,
        "n_participants": 3,
        "bytes": None,
        "messages": None,
        "cpu_seconds": 0.1,
        "study": {"privacy": {"epsilon": 1.0}, "participation": {"size": 100}},
        "scores": {name: {"value": value, "error": 0.1} for name, value in ERRORS.items()},
    }
    baseline = {"rmse": 5.0, "mean_absolute_error": 4.0, "r_squared": 0.0}
    plain: dict[str, Any] = {
        "title": "Bicycles",
        "short": "1-2-3",
        "remark": "a simulation",
        "rows": {"asked": 90, "unseen": 30, "declared": 100},
        "repeats": 3,
        "measure": "rmse",
        "yardsticks": {"mean_label": baseline},
        "left_out": [],
        "entries": [entry | changes],
    }
    return plain


def test_numeric_label_prefers_less_and_unmeasured_volume_is_unknown() -> None:
    text = compare_view.format_comparison(result())
    assert max(map(len, text.splitlines())) <= compare_view.COLUMNS
    assert (
        "WORSE THAN GUESSING (mean of the label)" in " ".join(text.split())
        and "?" in text
        and "MAE is the mean absolute error" in text
    )
    good = result()["entries"][0]["scores"] | {"rmse": {"value": 4.0, "error": 0.1}}
    assert "guessing (" not in compare_view.format_comparison(result(scores=good))
    assert "best      without any trust" in text.replace(
        "\n", " "
    ) and "1.23 MB" in compare_view.format_comparison(result(bytes=1_234_567.0, messages=2.0))
    assert "456 B" in compare_view.format_comparison(
        result(bytes=456.0, messages=2.0)
    ) and "4.56 kB" in compare_view.format_comparison(result(bytes=4560.0))
    trusting = compare_view.format_comparison(result(trusted="each organisation"))
    assert "without any trust" not in trusting
    assert "lower is better" in compare_view.draw_comparison(result())


@pytest.mark.parametrize(
    ("rmse", "error", "said"),
    [
        (5.5, 0.1, "; WORSE THAN GUESSING (mean of the label): 5.5 against 5"),
        (
            5.4,
            0.1,
            "; not shown to be better than guessing (mean of the label): 5.4 against 5, over 3 "
            "runs",
        ),
        (
            4.9,
            0.1,
            "; not shown to be better than guessing (mean of the label): 4.9 against 5, over 3 "
            "runs",
        ),
        (
            5.0,
            0.0,
            "; not shown to be better than guessing (mean of the label): 5 against 5, over 3 runs",
        ),
        (5.0001, 0.0, "; WORSE THAN GUESSING (mean of the label): 5.0001 against 5"),
    ],
)
def test_only_an_interval_wholly_worse_than_guessing_is_called_worse(
    rmse: float, error: float, said: str
) -> None:
    scores = result()["entries"][0]["scores"] | {"rmse": {"value": rmse, "error": error}}
    text = " ".join(compare_view.format_comparison(result(scores=scores)).split())
    assert said in text and ("WORSE" in text) is ("WORSE" in said)


def test_best_is_shown_with_guessing_and_no_privacy() -> None:
    def told(free: float) -> str:
        plain = result(
            scores=result()["entries"][0]["scores"] | {"rmse": {"value": 4.0, "error": 0.1}}
        )
        plain["yardsticks"]["without_privacy"] = {
            "rmse": free,
            "mean_absolute_error": 1.0,
            "r_squared": 0.5,
        }
        return " ".join(compare_view.format_comparison(plain).split())

    assert told(3.0).count(
        "RMSE 4; guessing 5, without privacy 3 "
    ) == 2 and "better than without privacy" not in told(3.0)
    above = (
        "RMSE 4; guessing 5, without privacy 4.00002; better than without privacy; the cause may "
        "be chance in the 30 held-out rows"
    )
    assert told(4.00002).count(above) == 2


def test_size_far_from_the_rows_has_a_warning() -> None:
    assert "WARNING" not in compare_view.format_comparison(result())
    far = compare_view.format_comparison(
        result(study={"privacy": {"epsilon": 1.0}, "participation": {"size": 10_000}})
    )
    assert "WARNING   The study declares" in far


def test_hostile_study_text_is_escaped_in_table_and_chart() -> None:
    hostile = result() | {
        "title": "a\x1b[2J<script>",
        "left_out": [{"name": "AnonML", "why": "x\x1b[2J is a text"}],
    }
    assert "\x1b" not in compare_view.format_comparison(hostile)
    ElementTree.fromstring(compare_view.draw_comparison(hostile))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilon", "x"), "not x"),
        (("--epsilon", ""), "--epsilon takes numbers above 0, separated by commas, not nothing"),
        (("--epsilon", "1_0"), "not 1_0"),
        (("--epsilon", "1,1"), "the same value twice"),
        (("--epsilon", ",".join(map(str, range(1, 30)))), "too many values"),
        (("--epsilon", "0"), "--epsilon takes numbers above 0"),
        (("--epsilon", "nan"), "--epsilon takes numbers above 0"),
        (("--epsilon", "1e9"), "--epsilon 1e+09 is out of range"),
        (("--repeats", "0"), "--repeats 0"),
        (("--jobs", "0"), "--jobs 0"),
        (("--holders", "0"), "--holders 0"),
        (("--holders", "3", "--holder", "site"), "exclude each other"),
    ],
)
def test_compare_rejects_invalid_options_before_it_reads(
    options: tuple[str, ...], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(home / "study.toml"), "--data", "nowhere.csv", *options]) == 2
    told = capsys.readouterr()
    assert words in told.err and "Traceback" not in told.err and not told.out


def test_compare_names_missing_files_and_columns(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(home / "none.toml"), "--data", str(home / "rows.csv")]) == 3
    assert run(["compare", str(home / "study.toml"), "--data", str(home / "none.csv")]) != 0
    assert (
        run(
            [
                "compare",
                str(home / "study.toml"),
                "--data",
                str(home / "rows.csv"),
                "--holder",
                "clinic",
            ]
        )
        == 3
    )
    assert run(["compare", str(home / "study.toml"), "--data", " "]) == 2
    told = capsys.readouterr()
    assert (
        "none.toml" in told.err and "none.csv" in told.err and "clinic" in told.err and not told.out
    )


def test_compare_rejects_an_existing_directory_before_it_runs(
    home: Path, written: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(home, "--out", str(home / "out")) == 2
    assert (
        "NEW-001" in capsys.readouterr().err
        and (home / "out" / "compare.json").exists()
        and written
    )


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_compare_prints_results_that_cannot_be_written(
    options: tuple[str, ...],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fill(found: dict[str, Any]) -> str:
        (home / "late").mkdir()  # somebody else's, meanwhile
        (home / "late" / "theirs").touch()
        return "<svg/>"

    monkeypatch.setattr("shoal.cli.compare.draw_comparison", fill)
    assert compare(home, "--out", str(home / "late"), *options, repeats="1") == 2
    told = capsys.readouterr()
    assert [path.name for path in (home / "late").iterdir()] == ["theirs"]
    (home / "late" / "theirs").unlink()
    (home / "late").rmdir()
    if options:
        assert json.loads(told.out)["error"]["code"] == "NEW-001" and not told.err
    else:
        assert "PFDS plus, local" in told.out and "NEW-001" in told.err and "wrote" not in told.out


def test_interrupted_compare_leaves_no_directory_and_no_traceback(home: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "shoal",
        "compare",
        "study.toml",
        "--data",
        "rows.csv",
        "--repeats",
        "9999",
        "--out",
        "gone",
    ]
    child = subprocess.Popen(
        command,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        _wait_until_it_works(child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130 and b"USAGE-003" in err and b"Traceback" not in err and not out
    assert not (home / "gone").exists() and not list(home.glob(".gone*"))


def _wait_until_it_works(child: subprocess.Popen[bytes]) -> None:
    """Wait until the process has used more processor time than its start takes."""
    stat = Path(f"/proc/{child.pid}/stat")
    if not stat.exists():
        pytest.skip("this system does not say how long a process has worked")
    while child.poll() is None:
        fields = stat.read_text().rsplit(")", 1)[1].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 2.5:
            return
        time.sleep(0.05)
    raise AssertionError("it ended before it was interrupted")
