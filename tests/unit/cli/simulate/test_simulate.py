"""`shoal simulate`: its output, its files, and options that it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import simulate as command
from shoal.cli.main import run
from shoal.cli.simulate.view import format_runs
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.model import from_plain
from shoal.study.loader import load_study, parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.starters import make_example_csv, read_starter
from tests.support.simulation import edited, simulate, told

PAPER = (
    ('variant = "plus"', 'variant = "paper"'),
    ("[privacy]", "[anonml]\nn_partitions = 2\nn_subsets = 2\nsubset_size = 1\n[privacy]"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(
        make_example_csv(parse_study_text(read_starter("anonml")), 800, SeededEntropy(1))
    )
    write(tmp_path)
    return tmp_path


def write(home: Path, *edits: tuple[str, str], protocol: str = "anonml") -> None:
    (home / "study.toml").write_text(edited(read_starter(protocol), *edits))


def test_simulate_prints_scores_with_guessing_and_no_privacy(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    assert f"digest {Manifest(load_study(home / 'study.toml')).short_digest}" in printed
    assert (
        "rows      600 people took part, 200 rows were set aside for testing; declared size 20,000"
        in printed
    )
    assert (
        "price     epsilon 2.0 by plain sum of 1 release (unit person, relation replace, against "
        "everyone)" in printed
    )
    assert "answers   answers 600 (first run)" in printed
    assert (
        "note      this is a simulation: nothing was sent, and it does not protect these rows; "
        "scores, baselines and details were" in printed
    )
    assert "measures  f1 is that of class yes\n" in printed
    rows = [
        line
        for line in printed.splitlines()
        if line.startswith(("this study ", "most common class ", "without privacy "))
    ]
    assert len(rows) == 3 and "±" in rows[0] and rows[1].split()[-2:] == ["0.500", "0.000"]
    assert "seconds   " in printed and "for 2 runs; ± is the standard error" in printed
    assert printed.rstrip().endswith("--sweep epsilon=0.5,1,2,4")


def test_simulate_warns_if_the_size_is_far_from_the_rows(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    assert (
        "WARNING   The study declares 20,000 people, and 600 took part" in printed
        and "Try --sweep size=600" in printed
    )
    assert "WARNING   The study learns nothing from fewer than 2,000 participants" in printed
    write(home, ("size = 20000", "size = 700"), ("minimum = 2000", "minimum = 600"))
    assert simulate(home) == 0
    assert "WARNING   The study" not in capsys.readouterr().out


def test_simulate_learns_from_these_rows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = told(home, capsys, "--sweep", "epsilon=8")
    [point] = result["points"]
    assert result["without_privacy"]["auc"] > point["scores"]["auc"]["value"] - 0.02 > 0.6
    assert [run["auc"] for run in point["runs"]] != [point["scores"]["auc"]["value"]] * 2


def test_simulate_depends_on_the_seed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (told(home, capsys, "--seed", seed) for seed in ("1", "1", "2"))
    assert first["points"] == again["points"] and first["points"] != other["points"]
    assert first["without_privacy"] == again["without_privacy"] != other["without_privacy"]


def test_sweep_point_equals_the_study_with_that_value(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = told(home, capsys, "--sweep", "epsilon=1,2")["points"]
    [alone] = told(home, capsys)["points"]
    assert swept[1]["scores"] == alone["scores"] and swept[0]["scores"] != alone["scores"]
    assert [point["total"]["epsilon"] for point in swept] == [1.0, 2.0]


def test_grid_is_a_table_with_a_line_for_each_point(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, "--sweep", "epsilon=1,2", "--sweep", "size=1000,2000") == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("epsilon "))
    assert [line.split()[:2] for line in lines[head : head + 5]] == [
        ["epsilon", "size"],
        *([epsilon, size] for epsilon in ("1", "2") for size in ("1000", "2000")),
    ]
    assert lines[-1].startswith("next      shoal check ")


def test_sweep_omits_what_holds_for_one_point_only(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, "--sweep", "size=600,1234567", "--sweep", "epsilon=2.123456789") == 0
    printed = capsys.readouterr().out
    assert "declared size 600 to 1,234,567" in printed and "\nanswers" not in printed
    assert "WARNING   1 of 2 points declares 1,234,567 people, and 600 took part" in printed
    assert "WARNING   1 of 2 points learns nothing from fewer than 2,000 participants" in printed
    rows = [
        line.split()[:3] for line in printed.splitlines() if "2.123456789" in line and "±" in line
    ]
    assert rows == [["600", "2.123456789", "2.124"], ["1234567", "2.123456789", "2.124"]]


def result_with(accuracy: float, error: float | None, n_points: int = 1) -> dict[str, Any]:
    scores = {
        measure: {"value": value, "error": error}
        for measure, value in (("accuracy", accuracy), ("auc", 0.71), ("f1", 0.0))
    }
    settings = [{"epsilon": float(i + 1)} for i in range(n_points)] if n_points > 1 else [{}]
    points = [
        {
            "settings": one,
            "scores": scores,
            "people": 10,
            "declared": 10,
            "minimum": 1,
            "total": None,
            "charged": None,
            "paper_epsilon": None,
            "central": None,
        }
        | {"phases": ["answers"], "answers": [10]}
        for one in settings
    ]
    yardstick = {"accuracy": 0.8, "auc": 0.5, "f1": 0.0}
    told = {
        "title": "t",
        "protocol": "anonml",
        "short": "d",
        "remark": "r",
        "rows": {"unseen": 3},
        "dropout": 0.0,
        "repeats": 1 + bool(error),
        "seconds": 1.0,
    }
    return told | {
        "points": points,
        "most_common": yardstick,
        "without_privacy": yardstick,
        "f1_of": None,
    }


@pytest.mark.parametrize(
    ("accuracy", "error", "said"),
    [
        (
            0.7,
            0.007,
            "below guessing the most common class, 0.800 (0.700, with an AUC of 0.710), with all "
            "of the 95 % interval over 2 runs",
        ),
        (
            0.7,
            0.05,
            "no better than guessing the most common class, 0.800 (0.700, with an AUC of 0.710), "
            "by the evidence of 2 runs: decide",
        ),
        (
            0.8,
            0.01,
            "no better than guessing the most common class, 0.800 (0.800, with an AUC of 0.710), "
            "by the evidence of 2 runs: decide",
        ),
        (
            0.85,
            0.01,
            "0.800 (0.850, with an AUC of 0.710), by the evidence of 2 runs: more --repeats may "
            "show a difference.",
        ),
        (
            0.7999,
            None,
            "0.8000 (0.7999, with an AUC of 0.710), by the evidence of 1 run: decide by rank",
        ),
        (0.9, 0.001, None),
        (0.81, None, None),
    ],
)
def test_score_below_guessing_has_a_warning_with_the_auc(
    accuracy: float, error: float | None, said: str | None
) -> None:
    printed = format_runs(result_with(accuracy, error))
    assert ("WARNING" in printed) is (said is not None) and (said or "") in printed
    assert ("below guessing" in printed) is (
        accuracy == 0.7 and error == 0.007
    ) and "AUC and f1 are means over the classes" in printed


def test_points_below_guessing_are_named() -> None:
    printed = format_runs(result_with(0.7, 0.001, n_points=6))
    assert (
        "epsilon=1: 0.700" in printed
        and "epsilon=4: 0.700, with an AUC of 0.710; and 2 other points)" in printed
    )


def test_paper_variant_shows_both_totals(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, *PAPER, ("bins = [0, 2, 10]\n", ""))
    plan = make_plan(load_study(home / "study.toml"))
    [point] = told(home, capsys)["points"]
    assert (
        point["total"]["epsilon"] == plan.loss.epsilon
        and point["paper_epsilon"] == plan.make_statement().paper_epsilon
    )
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    assert (
        "epsilon 2.0 by plain sum of 3 releases" in printed
        and "by equation 6, which takes features for independent, 1.334" in printed
    )
    assert "answers   placing 600 in 15 phases, answers 1,200 (first run)" in printed
    assert simulate(home, "--sweep", "epsilon=1,2") == 0
    printed = capsys.readouterr().out
    assert (
        "epsilon by plain sum, and by equation 6, as below" in printed
        and "plain sum  equation 6" in printed
    )


def test_simulate_without_perturbation_has_no_price(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, *PAPER)
    assert simulate(home, "--without-perturbation") == 0
    assert "price     none: without perturbation nothing is protected" in capsys.readouterr().out
    [point] = told(home, capsys, "--without-perturbation")["points"]
    assert point["total"] is None and point["paper_epsilon"] is None


def test_shuffled_study_has_a_central_price(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        home,
        ('trust = "local"', 'trust = "shuffled"'),
        ("epsilon = 2.0", "delta = 1e-6\nepsilon = 2.0"),
        ("size =", "honest_share = 0.9\nsize ="),
    )
    assert simulate(home) == 0
    assert "central: epsilon 0.39" in capsys.readouterr().out
    assert simulate(home, "--sweep", "epsilon=1,2") == 0
    printed = capsys.readouterr().out
    assert "price     epsilon by plain sum, and central epsilon, as below" in printed
    rows = [
        line.split() for line in printed.splitlines() if line.startswith(("epsilon ", "1 ", "2 "))
    ]
    assert rows[0][:7] == ["epsilon", "plain", "sum", "central", "epsilon", "central", "delta"]
    assert [row[:2] for row in rows[1:]] == [["1", "1.0"], ["2", "2.0"]] and rows[2][2].startswith(
        "0.39"
    )
    assert rows[1][2] < rows[2][2] and {row[3] for row in rows[1:]} == {"1e-06"}


def test_dropout_removes_people(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = told(home, capsys, "--dropout", "0.5")
    [point] = result["points"]
    assert (
        200 < point["people"] == sum(point["answers"]) < 400
        and "--dropout 0.5" in result["command"]
    )
    assert simulate(home, "--dropout", "0.5") == 0
    printed = capsys.readouterr().out
    assert (
        "took part in the first run" in printed
        and "the baselines use all rows, including those of participants that dropped out"
        in printed
    )


def test_one_run_has_no_standard_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "simulate",
                str(home / "study.toml"),
                "--data",
                str(home / "rows.csv"),
                "--repeats",
                "1",
            ]
        )
        == 0
    )
    assert "±" not in capsys.readouterr().out


def test_simulate_writes_the_run_and_the_first_models(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, "--out", str(home / "one")) == 0
    printed = capsys.readouterr().out
    assert f"wrote     {home}/one: run.json, model.json" in printed and printed.endswith(
        f"\nnext      shoal report {home}/one\n"
    )
    written = json.loads((home / "one" / "run.json").read_text())
    assert (
        written["digest"] == Manifest(load_study(home / "study.toml")).digest.hex()
        and written["seed"] == 0
    )
    assert {"shoal", "python", "numpy", "scikit-learn"} <= set(written["versions"])
    model = json.loads((home / "one" / "model.json").read_text())
    assert (
        written["simulated"] is model["simulated"] is True
        and "does not protect" in written["remark"]
    )
    assert from_plain(model["model"]).classes == ("no", "yes")
    assert {name: model[name] for name in ("protocol", "variant", "title", "study")} == {
        "protocol": "anonml",
        "variant": "plus",
        "title": written["title"],
        "study": written["digest"],
    }
    assert run(["model", "show", str(home / "one" / "model.json")]) == 0
    shown = capsys.readouterr().out
    assert (
        f"study     {written['title']}\n" in shown
        and "protocol  anonml, variant plus\n" in shown
        and written["digest"] in shown
    )
    (home / "two").mkdir()
    result = told(home, capsys, "--sweep", "epsilon=0.5,1", "--out", str(home / "two"))
    assert sorted(path.name for path in (home / "two").iterdir()) == [
        "epsilon=0.5",
        "epsilon=1",
        "run.json",
    ]
    models = [json.loads((home / "two" / point["model"]).read_text()) for point in result["points"]]
    assert len({model["study"] for model in models} | {result["digest"]}) == 3, (
        "each point is a study of its own"
    )


def test_each_point_has_the_details_of_its_first_run(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = told(
        home, capsys, "--sweep", "epsilon=0.5,4", "--dropout", "0.25", "--out", str(home / "one")
    )
    for point in swept["points"]:
        details = point["details"]
        assert details.keys() == {"participation", "calibration", "histograms", "weights"}
        assert (
            details["participation"]["asked"] == 600
            and details["participation"]["answered"] == point["people"]
        )
        assert sum(one["n"] for one in details["calibration"]["bins"]) == swept["rows"]["unseen"]
    assert swept["points"][0]["details"] != swept["points"][1]["details"]
    [alone] = told(home, capsys, "--sweep", "epsilon=4", "--dropout", "0.25")["points"]
    assert alone["details"] == swept["points"][1]["details"]


def test_written_command_repeats_the_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sweep", "epsilon=0.5,1", "--seed", "9", "--dropout", "0.1")
    first = told(home, capsys, *options, "--out", str(home / "one"))
    written = json.loads((home / "one" / "run.json").read_text())
    assert written == first
    assert run([*written["command"].split()[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "seconds": 0} == {**first, "seconds": 0}


def test_simulate_never_overwrites(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_all", None)  # refused before anything runs
    (home / "full").mkdir()
    (home / "full" / "run.json").write_text("mine")
    (home / "empty").mkdir()
    (home / "link").symlink_to(home / "empty")
    before = sorted(home.rglob("*"))
    for out in (home / "full", home / "link", home / "rows.csv", home / "none" / "run"):
        assert simulate(home, "--out", str(out)) == 2
        assert "NEW-001" in capsys.readouterr().err
    assert simulate(home, "--out", str(home / "none" / "run"), "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["fix"] == f"mkdir -p -- {home}/none"
    assert (home / "full" / "run.json").read_text() == "mine" and sorted(home.rglob("*")) == before


@pytest.mark.parametrize("name", ["a\0b", "a" * 300])
def test_simulate_rejects_an_invalid_directory_name_before_it_runs(
    name: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_all", None)
    assert simulate(home, "--out", str(home / name)) == 1
    assert capsys.readouterr().err.startswith("NEW-001  ")
    assert simulate(home, "--out", str(home / name), "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "NEW-001"


def test_simulate_accepts_the_longest_directory_name(home: Path) -> None:
    command.try_output_directory(home / ("a" * 255))
    assert not (home / ("a" * 255)).exists()


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_simulate_prints_results_that_cannot_be_written(
    flags: tuple[str, ...],
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = command.run_all

    def someone_is_quicker(*arguments: Any) -> Any:
        (home / "one").write_text("theirs")
        return real(*arguments)

    monkeypatch.setattr(command, "run_all", someone_is_quicker)
    assert simulate(home, "--out", str(home / "one"), *flags) == 2
    printed = capsys.readouterr()
    if flags:
        result = json.loads(printed.out)
        assert (
            result["error"]["code"] == "NEW-001"
            and result["points"][0]["scores"]
            and printed.err == ""
        )
    else:
        assert (
            "this study " in printed.out
            and "wrote" not in printed.out
            and printed.err.startswith("NEW-001")
        )
        assert "shoal report" not in printed.out
    assert (home / "one").read_text() == "theirs"


def test_interrupted_simulate_leaves_no_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> str:
        raise KeyboardInterrupt

    real = command.run_all

    def break_off_after(*arguments: Any) -> Any:
        monkeypatch.setattr(Path, "rename", interrupt)
        return real(*arguments)

    monkeypatch.setattr(command, "run_all", break_off_after)
    before = sorted(home.iterdir())
    assert simulate(home, "--out", str(home / "one")) == 130
    assert sorted(home.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "code", "exit_code"),
    [
        (("--jobs", "0"), "USAGE-001", 2),
        (("--repeats", "0"), "USAGE-001", 2),
        (("--dropout", "1"), "USAGE-001", 2),
        (("--dropout", "-0.1"), "USAGE-001", 2),
        (("--dropout", "nan"), "USAGE-001", 2),
        (("--engine", "cloud"), "USAGE-001", 2),
        (("--engine", "dask:tcp://10.0.0.7:8786"), "SIM-005", 2),
        (("--sweep", "colour=1"), "SIM-004", 2),
        (("--sweep", "n_partitions=3"), "SPEC-022", 3),
        (("--sweep", "epsilon=0"), "SPEC-013", 3),
        (("--without-perturbation",), "SIM-002", 2),
        (("--without-perturbation", "--sweep", "epsilon=1"), "USAGE-001", 2),
        (("--data", "none.csv"), "DATA-006", 3),
        (("--data", ""), "USAGE-001", 2),
        (("--engine", "dask:"), "SIM-005", 2),
        (("--in-flight", "3"), "USAGE-001", 2),
        (("--order", "given"), "USAGE-001", 2),
        (("--order", "sorted"), "USAGE-001", 2),
        (("--device", "country"), "USAGE-001", 2),
        (("--in-flight", "-1"), "USAGE-001", 2),
        (("--sweep", "epsilon="), "SIM-004", 2),
    ],
)
def test_simulate_rejects_invalid_options(
    options: tuple[str, ...],
    code: str,
    exit_code: int,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = () if "--data" in options else ("--data", str(home / "rows.csv"))
    assert run(["simulate", str(home / "study.toml"), *data, *options]) == exit_code
    printed = capsys.readouterr()
    assert printed.err.startswith(code) and printed.out == ""


HEADER = "hours_watched,homework_mean,forum_posts,country,passed\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (HEADER, "SIM-003"),
        (HEADER + "10,50,3,DE,no\n" * 9, "SIM-003"),
        (HEADER + "10,50,3,DE,no\n10,50,3,DE,yes\n", "SIM-003"),
        ("hours_watched,passed\n1,no\n", "DATA-001"),
        (HEADER + "7771,50,3,DE,no\n", "DATA-002"),
        ("", "DATA-007"),
    ],
)
def test_simulate_rejects_invalid_tables_without_showing_a_value(
    text: str, code: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "rows.csv").write_text(text)
    assert simulate(home) == 3
    error = capsys.readouterr().err
    assert error.startswith(code) and "7771" not in error


def test_versions_name_only_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise command.PackageNotFoundError(name)

    monkeypatch.setattr(command, "version", nothing)
    assert set(command.list_versions()) == {"shoal", "python", "numpy"}
