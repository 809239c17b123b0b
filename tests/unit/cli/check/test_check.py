"""`shoal check`: validation, prices, label, and checks of data without repeating a value."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.check import check
from shoal.cli.check.view import format_forecast, is_promising, list_assumptions
from shoal.cli.main import run
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.study.starters import STARTER_PROTOCOLS, make_example_csv, read_starter


def write_study(tmp_path: Path, protocol: str = "anonml", *edits: tuple[str, str]) -> Path:
    text = read_starter(protocol)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_check_prints_digest_prices_and_label(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path, protocol)
    check(path)
    printed = capsys.readouterr().out
    assert f"ok   digest {Manifest(load_study(path)).short_digest}" in printed
    assert "release   " in printed and "total     epsilon" in printed and "PRIVACY LABEL" in printed
    command = printed.rpartition("next      shoal ")[2].split()
    assert command == ["audit", "study", str(path)]


def test_check_prints_label_of_the_served_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path, "anonml")
    check(path)
    printed = capsys.readouterr().out
    assert (
        "one packet: a token without your name" in printed
        and "ticket" not in printed
        and "704 bytes" in printed
    )
    remark = (
        "a coordinator adds its keys, and the served study has another digest, on the "
        "label that participants read"
    )
    assert f"digest    of the study without keys; {remark}" in printed
    check(path, tickets=True)
    printed = capsys.readouterr().out
    assert "one packet: a ticket without your name" in printed and "without keys" not in printed
    for tickets in (False, True):
        check(path, tickets=tickets, json=True)
        told = json.loads(capsys.readouterr().out)
        assert told["label"]["digest"] == told["short"] == Manifest(load_study(path)).short_digest
        assert (told["digest_remark"] is None) is tickets


def test_expected_losses_of_the_paper_are_not_on_the_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(write_study(tmp_path, "ddml"))
    printed, label = capsys.readouterr().out.split("┌ PRIVACY LABEL")
    assert "expected losses, not guarantees" in printed and "forecast  noise in a weight" in printed
    assert "expected loss" not in label


def test_check_of_a_large_model_suggests_audit_of_its_mechanism(
    capsys: pytest.CaptureFixture[str],
) -> None:
    examples = Path(__file__).parents[4] / "examples"
    for name, command in (
        ("ranking", "next      shoal audit mechanism k-closest"),
        ("phishing-ddml", "next      shoal audit study"),
    ):
        check(examples / f"{name}.toml")
        assert command in capsys.readouterr().out


def test_unit_weight_shows_epsilon_of_everything_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(
        tmp_path,
        "ddml",
        ('unit = "update"', 'unit = "weight"'),
        ("n_updates = 1", "n_updates = 4"),
        ("epsilon = 4.0", "epsilon = 1.0"),
    )
    check(path)
    printed, label = capsys.readouterr().out.split("┌ PRIVACY LABEL")
    assert (
        "note      Everything you send: 29 weights of 4 updates, epsilon 29.0. The ledger counts "
        "this." in printed
    )
    assert (
        "Each weight of one update, seen alone: epsilon 0.25. Such figures do not add up over "
        "updates" in printed
    )
    assert "Guarantee   epsilon 29.0, delta 0 for everything you send" in label
    check(path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["plan"]["total"]["epsilon"], told["plan"]["charged"]["epsilon"]) == (0.25, 29)
    assert (told["label"]["epsilon"], told["label"]["everything"]) == (
        0.25,
        {"epsilon": 29, "delta": 0},
    )
    assert [odds["epsilon"] for odds in told["label"]["odds"]] == [29, 0.25]


def test_check_prints_questions_and_the_worst_forecasts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "".join(
        f'[[feature]]\nname = "f{n}"\nvalues = {[str(i) for i in range(n)]}\n' for n in (10, 20, 30)
    )
    path = write_study(tmp_path, "anonml", ("[privacy]", f"{more}[privacy]"))
    check(path)
    printed = capsys.readouterr().out
    assert (
        "note      Everyone answers one question: 100 % of the people answer tables of one "
        "feature and the label." in printed
    )
    assert (
        printed.count("forecast  ") == 4
        and "table of 62 cells" in printed
        and "table of 8 cells" not in printed
    )
    check(path, json=True)
    assert len(json.loads(capsys.readouterr().out)["plan"]["forecasts"]) == 5


def test_check_with_data_suggests_simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text(
        "hours_watched,homework_mean,forum_posts,country,passed\n10,50,3,DE,no\n"
    )
    check(write_study(tmp_path), data=str(tmp_path / "rows.csv"))
    assert (
        f"next      shoal simulate {tmp_path}/study.toml --data {tmp_path}/rows.csv"
        in capsys.readouterr().out
    )


def test_check_json_contains_plan_and_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path)
    check(path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert (
        told["digest"] == Manifest(load_study(path)).digest.hex()
        and told["plan"]["total"]["epsilon"] == 2.0
    )
    assert told["label"]["unit"] == "person" and "data" not in told


def test_check_of_shuffled_study_shows_amplified_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = (
        ('trust = "local"', 'trust = "shuffled"'),
        ("epsilon = 2.0", "delta = 1e-6\nepsilon = 2.0"),
        ("size =", "honest_share = 0.9\nsize ="),
    )
    check(write_study(tmp_path, "anonml", *edits))
    printed = capsys.readouterr().out
    assert "shuffled  epsilon 0.39" in printed and "Shuffled" in printed


def test_check_counts_rows_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.csv"
    data.write_text(
        "patient,age,ward,nights,lives_alone,readmitted\n" + "p,30,surgery,2,no,yes\n" * 5
    )
    check(write_study(tmp_path, "sdq"), data=str(data))
    printed = capsys.readouterr().out
    assert "rows.csv: 2 rows fit the study; the limit per person leaves out 3 more" in printed
    assert f"next      shoal simulate {tmp_path}/study.toml --data {data}" in printed


def test_check_prints_chance_that_selected_databases_collude(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = ('variant = "plus"', 'variant = "paper"'), ("all-contribute", "two-selected")
    check(write_study(tmp_path, "sdq", *edits))
    printed, label = capsys.readouterr().out.split("┌ PRIVACY LABEL")
    label = " ".join(label.replace("│", " ").split())
    for text in (printed, label):
        assert (
            "both selected ones do with chance 6.67 %" in text
            and "one of them does with chance 46.7 %" in text
        )
        assert (
            "At least once both do with chance 29.2 %, and one or both with chance 97.8 %" in text
        )
    assert (
        "against the miner, if no database tells it anything" in printed
        and "up to 3 colluding databases" not in label
    )
    check(write_study(tmp_path, "sdq", *edits), json=True)
    told = json.loads(capsys.readouterr().out)
    assert (
        any("6.67 %" in item for item in told["label"]["not_covered"])
        and len(told["label"]["rests_on"]) == 3
    )


@pytest.mark.parametrize(
    ("old", "new", "code", "fix"),
    [
        ("minimum = 10", "minimum = 6", "SPEC-021", "minimum = 7, or max_colluders = 1"),
        (
            "depth = 4",
            'choice = "mpc"\ndepth = 4\n#',
            "SPEC-021",
            'choice = "sums", or max_colluders = 4',
        ),
        (
            'learner = "tree"',
            'learner = "naive-bayes"',
            "SPEC-022",
            'Remove depth, or learner = "tree"',
        ),
        ("n_databases = 10", "n_databases = 2", "SPEC-021", "n_databases = 3"),
        ('"all-contribute"', '"two-selected"', "SPEC-022", 'noise = "all-contribute"'),
    ],
)
def test_invalid_sdq_study_prints_code_and_fix(
    old: str, new: str, code: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [("max_colluders = 3", "max_colluders = 5")] if "mpc" in new else []
    assert run(["check", str(write_study(tmp_path, "sdq", (old, new), *more))]) == 3
    error = capsys.readouterr().err
    assert code in error and fix in " ".join(error.split())


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("7771,50,3,DE,yes", "DATA-002"),
        ("x7771,50,3,DE,yes", "DATA-004"),
        (",50,3,DE,yes", "DATA-005"),
        ("10,50,3,X7771,yes", "DATA-003"),
        ("10,50,3,DE,x7771", "DATA-003"),
        ("10,50,3,DE,", "DATA-005"),
        ("10,50,3,DE", "DATA-007"),
    ],
)
def test_check_rejects_invalid_cells_without_repeating_them(
    row: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.csv"
    data.write_text(
        f"hours_watched,homework_mean,forum_posts,country,passed\n10,50,3,DE,no\n{row}\n"
    )
    for option in ("data", "like"):
        with pytest.raises(ShoalError) as error:
            check(write_study(tmp_path), **{option: str(data)})  # type: ignore[arg-type]
        assert error.value.code == code and "7771" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_errors_number_rows_as_in_the_file(tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text(
        "patient,age,ward,nights,lives_alone,readmitted\n"
        + "p,30,surgery,2,no,yes\n" * 5
        + "q,30,surgery,2,no,x7771\n"
    )
    with pytest.raises(ShoalError) as error:
        check(write_study(tmp_path, "sdq"), data=str(data))
    assert "row 6 has" in error.value.what


@pytest.mark.parametrize(
    "text",
    [
        "39,State-gov,SECRET\n50,Private,FLU\n",
        "39;State-gov;SECRET\n",
        "39,SECRET,39\n",
        "\x1b[2JSECRET,b\n",
    ],
)
def test_table_without_header_is_rejected_without_repeating_cells(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert run(["check", str(write_study(tmp_path)), "--data", str(tmp_path / "rows.csv")]) == 3
    error = capsys.readouterr().err
    assert not any(word in error for word in ("SECRET", "State-gov", "39", "\x1b"))


def test_check_counts_a_single_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text(
        "hours_watched,homework_mean,forum_posts,country,passed\n10,50,3,DE,no\n"
    )
    check(write_study(tmp_path), data=str(tmp_path / "rows.csv"))
    assert "rows.csv: 1 row fits the study\n" in capsys.readouterr().out


def test_check_warns_of_noisy_and_closed_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = (
        ("minimum = 2000", "minimum = 1"),
        ("size = 20000", "size = 1"),
        ("closes = 2031", "closes = 2001"),
    )
    check(write_study(tmp_path, "anonml", *edits))
    printed = capsys.readouterr().out
    assert (
        printed.count("WARNING   ") == 2
        and "is 2.25" in printed
        and "closed on 2001-01-31 12:00 UTC" in printed
    )
    check(write_study(tmp_path, "anonml", *edits), json=True)
    told = json.loads(capsys.readouterr().out)
    assert len(told["warnings"]) == 2 and told["label"]["closes"] == "2001-01-31T12:00:00+00:00"


def test_check_warns_of_values_read_from_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(write_study(tmp_path, "anonml", ("# public knowledge", "# READ FROM THE DATA")))
    printed = capsys.readouterr().out
    assert "WARNING   The value on line 17 was read from data that may be private" in printed


def test_check_quotes_and_escapes_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "a b; rm -rf x\x1b[31m"
    home.mkdir()
    path = write_study(home)
    (home / "rows.csv").write_text("hours_watched,homework_mean,forum_posts,country,passed\n")
    check(path, data=str(home / "rows.csv"))
    check(path)
    printed = capsys.readouterr().out
    assert (
        "\x1b" not in printed
        and "next      shoal audit study $'" in printed
        and "rm -rf x\\x1b[31m/study.toml'\n" in printed
    )


def test_check_rejects_studies_without_a_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(
        tmp_path,
        "ddml",
        ("[ddml]", '[queries]\nfeatures = ["hour"]\nn_queries = 1\nepsilon_release = 1.0\n[ddml]'),
    )
    assert run(["check", str(path)]) == 3
    assert "PLAN-001" in capsys.readouterr().err


def test_check_returns_exit_codes_and_json_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path, "anonml", ("epsilon = 2.0", 'epsilon = "2"'))
    assert run(["check", str(path), "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "SPEC-012" and error["fix"] == "epsilon = 2.0"
    assert run(["check", str(tmp_path / "none.toml")]) == 3
    assert run(["check", str(write_study(tmp_path)), "--data", str(tmp_path / "none.csv")]) == 3
    assert run(["check", str(write_study(tmp_path))]) == 0
    assert run(["check", str(write_study(tmp_path)), "--data", ""]) == 2
    assert run(["check", "--study", str(write_study(tmp_path))]) == 2


def unwrap_text(text: str) -> str:
    return " ".join(text.split())


def write_study_and_rows(
    home: Path, protocol: str, n: int, *edits: tuple[str, str]
) -> tuple[Path, Path]:
    """Write a starter study with a small size, and a public table for it."""
    path = write_study(home, protocol, *edits)
    data = home / "public.csv"
    data.write_text(make_example_csv(load_study(path), n, SeededEntropy(1)))
    return path, data


SMALL = ("minimum = 2000", "minimum = 100"), ("size = 20000", "size = 300")


def test_check_like_prints_forecast_with_intervals_and_baselines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = write_study_and_rows(tmp_path, "anonml", 600, *SMALL)
    check(path, like=str(public), target="accuracy=0.6", sizes="150,300", epsilons="1,8")
    printed = capsys.readouterr().out
    words = unwrap_text(printed)
    assert f"learns simulated on 600 public rows of {public}; nothing private was read" in words
    assert (
        "expected accuracy on unseen rows; in brackets a 90 % prediction "
        "interval; 16 runs each" in words
    )
    assert (
        "people  epsilon 1.0" in printed
        and "epsilon 8.0" in printed
        and "\n             150  0." in printed
    )
    assert "epsilon: the total of one person, relation replace, against everyone" in words
    assert (
        "study unchanged (300 people, epsilon 2.0): accuracy 0." in words
        and "guessing the most common class: accuracy 0." in words
    )
    assert (
        "to reach  accuracy 0.6: " in printed
        and "matters   " in printed
        and "epsilon 2 -> 4" in printed
    )
    assert (
        "assumes   Participants are like the public rows" in printed
        and "drawn with replacement" in words
    )
    assert (
        f"next      shoal simulate {path} --data {public}\n" in printed
    )  # the worse end is not better than guessing


def test_check_of_promising_study_suggests_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = write_study_and_rows(
        tmp_path, "sdq", 2000, ("size = 20000", "size = 900"), ("epsilon = 1.0", "epsilon = 20.0")
    )
    check(path, like=str(public), sizes="900", epsilons="20")
    assert f"next      shoal serve {path}\n" in capsys.readouterr().out


def test_forecast_is_repeatable_with_a_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = write_study_and_rows(tmp_path, "anonml", 600, *SMALL)
    told = []
    for seed in (1, 1, 2):
        check(path, like=str(public), sizes="150", epsilons="8", level=0.8, seed=seed, json=True)
        told.append(json.loads(capsys.readouterr().out)["forecast"])
    assert told[0] == told[1] != told[2]
    assert (
        told[0]["from"] == {"kind": "like", "file": str(public), "rows": 600}
        and told[0]["level"] == 0.8
    )
    assert (
        told[0]["points"][0]["scores"]["accuracy"].keys() == {"value", "low", "high"}
        and told[0]["assumes"]
    )


def test_check_tables_forecasts_from_public_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"hours_watched": 5, "homework_mean": 4, "forum_posts": 4}
    text = '[[table]]\nlabel = "passed"\nshares = { no = 0.4, yes = 0.6 }\n'
    for name, n in names.items():
        text += (
            f'[[table]]\nfeature = "{name}"\nshares.no = '
            f"{[n - i for i in range(n)]}\nshares.yes = {[i + 1 for i in range(n)]}\n"
        )
    text += '[[table]]\nfeature = "country"\n' + "".join(
        f"shares.{one} = {{ north = 1, centre = 1, other = 1 }}\n" for one in ("no", "yes")
    )
    (tmp_path / "tables.toml").write_text(text)
    path = write_study(tmp_path, "anonml", *SMALL)
    check(path, tables=tmp_path / "tables.toml", sizes="300", epsilons="8", target="auc=0.99")
    printed = unwrap_text(capsys.readouterr().out)
    assert (
        f"simulated on made-up rows that have the public tables of {tmp_path}/tables.toml; "
        "nothing private was read" in printed
    )
    assert (
        "assumes Features are independent given the label" in printed
        and "better or worse results than any interval" in printed
    )
    assert "to reach AUC 0.99: not" in printed
    assert run(["check", str(path), "--tables", str(tmp_path / "none.toml")]) == 3
    assert "FORECAST-001" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_forecast_without_rows_gives_errors_but_no_accuracy(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(write_study(tmp_path, protocol), target="error=0.3", epsilons="1,2", sizes="1000,5000")
    printed = unwrap_text(capsys.readouterr().out.split("┌ PRIVACY LABEL")[0])
    assert (
        "from public figures alone, which give no accuracy" in printed
        and "learns " not in printed
        and "accuracy 0" not in printed
    )
    assert "to reach error 0.3: about " in printed and "epsilon: the total of one " in printed
    check(write_study(tmp_path, protocol), json=True)
    told = json.loads(capsys.readouterr().out)["forecast"]
    assert (
        told["from"] == {"kind": "figures"}
        and told["measure"] == "error"
        and len(told["points"]) == 12
    )
    assert told["is_promising"] is None


def test_forecast_of_a_number_gives_rmse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = (
        ('name = "doubtful"\nvalues = ["no", "yes"]', 'name = "doubtful"\nrange = [0, 1000]'),
        ("size = 40000", "size = 300"),
    )
    path, public = write_study_and_rows(tmp_path, "pfds", 400, *edits)
    check(path, like=str(public), sizes="300", epsilons="1", target="rmse=1")
    printed = unwrap_text(capsys.readouterr().out)
    assert "expected RMSE on unseen rows" in printed and "guessing the mean: RMSE" in printed
    assert "to reach RMSE 1: not reached at any number of rows; without privacy it is" in printed
    assert "Rows are distributed to holders at random" in printed


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            ["--like", "{public}", "--tables", "x.toml"],
            "--like and --tables cannot be used together",
        ),
        (
            ["--like", "{public}", "--target", "rmse=3"],
            "--target rmse=3 is not a measure of this study",
        ),
        (["--target", "accuracy=0.8"], "--target accuracy=0.8 is not a measure of this study"),
        (
            ["--like", "{public}", "--sizes", "100,x"],
            "--sizes takes whole numbers above 0, separated by commas, not 100,x.",
        ),
        (["--sizes", "1_000"], "--sizes takes whole numbers"),
        (["--sizes", ""], "--sizes takes whole numbers above 0, separated by commas, not nothing."),
        (["--epsilons", "0.5,-1"], "--epsilons takes numbers above 0"),
        (["--epsilons", "nan"], "--epsilons takes numbers above 0"),
        (
            ["--like", "{public}", "--sizes", "9000000"],
            "9,000,000 rows is too large for a forecast",
        ),
        (["--like", "{public}", "--level", "1"], "--level 1 is not between 0.5 and 0.999"),
        (["--like", "{public}", "--jobs", "0"], "--jobs 0 is less than 1"),
    ],
)
def test_invalid_forecast_options_print_an_error(
    options: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = write_study_and_rows(tmp_path, "anonml", 200, *SMALL)
    assert run(["check", str(path), *(option.format(public=public) for option in options)]) == 2
    assert what in " ".join(capsys.readouterr().err.split())


def test_forecast_rejects_invalid_epsilon_and_too_few_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = write_study_and_rows(tmp_path, "anonml", 200, *SMALL)
    assert run(["check", str(path), "--epsilons", "900"]) == 3
    assert "SPEC-013" in capsys.readouterr().err
    public.write_text("\n".join(public.read_text().splitlines()[:6]) + "\n")
    assert run(["check", str(path), "--like", str(public)]) == 3
    assert "SIM-003" in capsys.readouterr().err


def make_forecast(**more: Any) -> dict[str, Any]:
    """Return a forecast as the view receives it."""
    score = {"value": 0.7, "low": 0.6, "high": 0.8}
    point = {
        "size": 100,
        "epsilon": 1.0,
        "rows": 100,
        "repeated": False,
        "scores": {"accuracy": score},
    }
    point["total"] = {"unit": "person", "relation": "replace", "adversary": "everyone"}
    told = {
        "from": {"kind": "like", "file": "public\x1b[2J.csv", "rows": 9},
        "level": 0.9,
        "repeats": 8,
        "measure": "accuracy",
        "declared": 100,
        "study": point,
        "points": [point],
        "yardsticks": {"most_common": {"accuracy": 0.5}, "id3": {"accuracy": 0.75}},
        "pessimistic_by": None,
        "matters": [{"key": "size", "before": 100, "after": 200, "effect": 0.05, "error": 0.01}],
        "target": None,
        **more,
    }
    return {**told, "assumes": list_assumptions(told, "anonml")}


@pytest.mark.parametrize(
    ("n", "low", "high", "beyond", "words"),
    [
        (1234, 987, 5678, False, "about 1,200 people (990 to 5,700)"),
        (1234, 100, None, False, "about 1,200 people (fewer than 100 to more than 9,000)"),
        (100, 100, 350, False, "100 people or fewer; at most 350"),
        (
            None,
            None,
            None,
            True,
            "not reached at any number of people; without privacy it is 0.750",
        ),
        (
            None,
            None,
            None,
            False,
            "not expected with up to 9,000 people; without privacy it is 0.750",
        ),
        (
            None,
            300,
            None,
            False,
            "not expected with up to 9,000 people, but possible within the interval; without "
            "privacy it is 0.750",
        ),
    ],
)
def test_format_forecast_describes_the_required_size(
    n: int | None, low: int | None, high: int | None, beyond: bool, words: str
) -> None:
    target = {
        "measure": "accuracy",
        "value": 0.8,
        "n": n,
        "low": low,
        "high": high,
        "smallest": 100,
        "largest": 9000,
    }
    lines = format_forecast(
        make_forecast(target={**target, "without_privacy": 0.75, "is_beyond": beyond}), "anonml"
    )
    assert f"to reach accuracy 0.8: {words} " in unwrap_text("\n".join(lines))


def test_format_forecast_describes_effects_and_escapes_names() -> None:
    matters = [
        {"key": key, "before": 1, "after": 2, "effect": effect, "error": 0.01}
        for key, effect in (("a", 0.05), ("b", -0.04), ("c", 0.015))
    ]
    text = "\n".join(format_forecast(make_forecast(matters=matters), "anonml"))
    assert (
        "a 1 -> 2: better, accuracy +0.050 ± 0.010" in text
        and "b 1 -> 2: worse, accuracy -0.040" in text
        and "c 1 -> 2: no clear effect" in text
    )
    assert "\x1b" not in text and "ID3 without privacy: accuracy 0.750" in text


def test_assumptions_name_repeated_rows_and_replaced_size() -> None:
    point = {**make_forecast()["study"], "repeated": True, "rows": 5000}
    lines = make_forecast(study=point, declared=7, pessimistic_by={"accuracy": 0.02})["assumes"]
    assert any("5,000 rows and more" in line and "by about 0.020" in line for line in lines)
    assert any("declared size of 7 is not simulated: 100 replace it" in line for line in lines)
    assert any(
        "by too little to be visible" in line
        for line in make_forecast(study=point, pessimistic_by={"accuracy": 0.0})["assumes"]
    )


def test_is_promising_if_the_worse_end_beats_guessing() -> None:
    assert is_promising(make_forecast()) and not is_promising(
        make_forecast(yardsticks={"most_common": {"accuracy": 0.65}})
    )
    point = {**make_forecast()["study"], "scores": {"rmse": {"value": 7, "low": 6, "high": 8}}}
    for mean, expected in ((9, True), (7.5, False)):
        assert (
            is_promising(
                make_forecast(
                    measure="rmse",
                    study=point,
                    points=[point],
                    matters=[],
                    yardsticks={"mean_label": {"rmse": mean}},
                )
            )
            is expected
        )


def test_forecast_shows_progress_at_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, public = write_study_and_rows(tmp_path, "anonml", 200, *SMALL)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    check(path, like=str(public), sizes="100", epsilons="2")
    seen = capsys.readouterr()
    assert (
        "of 84 runs" in seen.err
        and "84 runs" not in seen.out
        and "nothing private was read" in unwrap_text(seen.out)
    )
