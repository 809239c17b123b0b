"""`shoal check`: validate, price, print the label, and hold data against the schema without repeating a value."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.check import check
from shoal.cli.check_view import assumptions, forecast_lines, is_promising
from shoal.cli.main import run
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.templates import PROTOCOLS, example_csv, study_text


def write(tmp_path: Path, protocol: str = "anonml", *edits: tuple[str, str]) -> Path:
    text = study_text(protocol)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prints_digest_prices_and_label(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, protocol)
    check(path)
    printed = capsys.readouterr().out
    assert f"ok   digest {Manifest(load(path)).short}" in printed
    assert "release   " in printed and "total     epsilon" in printed and "PRIVACY LABEL" in printed
    command = printed.rpartition("next      shoal ")[2].split()
    assert command == ["audit", "study", str(path)]


def test_the_label_is_worded_as_the_study_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "anonml")
    check(path)
    printed = capsys.readouterr().out
    assert "one packet: a token without your name" in printed and "ticket" not in printed and "704 bytes" in printed
    remark = "a coordinator adds its keys, and what it serves has a digest of its own, on the label that participants read"
    assert f"digest    of the study without keys; {remark}" in printed
    check(path, tickets=True)
    printed = capsys.readouterr().out
    assert "one packet: a ticket without your name" in printed and "without keys" not in printed
    for tickets in (False, True):
        check(path, tickets=tickets, json=True)
        told = json.loads(capsys.readouterr().out)
        assert told["label"]["digest"] == told["short"] == Manifest(load(path)).short
        assert (told["digest_remark"] is None) is tickets


def test_shows_what_the_paper_expects_of_other_adversaries_as_no_guarantee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(write(tmp_path, "ddml"))
    printed, label = capsys.readouterr().out.split("┌ PRIVACY LABEL")
    assert "an expected loss, not a guarantee" in printed and "forecast  noise of a weight" in printed
    assert "expected loss" not in label


def test_a_large_model_is_not_sent_to_an_audit_that_takes_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    examples = Path(__file__).parents[3] / "examples"
    for name, command in (("ranking", "next      shoal audit mechanism k-closest"), ("phishing-ddml", "next      shoal audit study")):
        check(examples / f"{name}.toml")
        assert command in capsys.readouterr().out


def test_a_weight_by_itself_is_not_what_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path, "ddml", ('unit = "update"', 'unit = "weight"'), ("n_updates = 1", "n_updates = 4"), ("epsilon = 4.0", "epsilon = 1.0")
    )
    check(path)
    printed, label = capsys.readouterr().out.split("┌ PRIVACY LABEL")
    assert "note      Everything you send: 29 weights of 4 updates, epsilon 29.0, which is what the ledger counts." in printed
    assert "Each weight of one update, seen by itself: epsilon 0.25. Such figures do not add up over updates" in printed
    assert "Guarantee   epsilon 29.0, delta 0 for everything you send" in label
    check(path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["plan"]["total"]["epsilon"], told["plan"]["charged"]["epsilon"]) == (0.25, 29)
    assert (told["label"]["epsilon"], told["label"]["everything"]) == (0.25, {"epsilon": 29, "delta": 0})
    assert [odds["epsilon"] for odds in told["label"]["odds"]] == [29, 0.25]


def test_says_what_is_asked_of_whom_and_shows_the_worst_forecasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "".join(f'[[feature]]\nname = "f{n}"\nvalues = {[str(i) for i in range(n)]}\n' for n in (10, 20, 30))
    path = write(tmp_path, "anonml", ("[privacy]", f"{more}[privacy]"))
    check(path)
    printed = capsys.readouterr().out
    assert "note      Everyone answers one question: 100 % of the people answer tables of one feature and the label." in printed
    assert printed.count("forecast  ") == 4 and "table of 62 cells" in printed and "table of 8 cells" not in printed
    check(path, json=True)
    assert len(json.loads(capsys.readouterr().out)["plan"]["forecasts"]) == 5


def test_leads_on_to_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("hours_watched,homework_mean,forum_posts,country,passed\n10,50,3,DE,no\n")
    check(write(tmp_path), data=str(tmp_path / "rows.csv"))
    assert f"next      shoal simulate {tmp_path}/study.toml --data {tmp_path}/rows.csv" in capsys.readouterr().out


def test_json_holds_the_plan_and_the_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    check(path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["digest"] == Manifest(load(path)).digest.hex() and told["plan"]["total"]["epsilon"] == 2.0
    assert told["label"]["unit"] == "person" and "data" not in told


def test_shows_what_a_crowd_adds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edits = (
        ('trust = "local"', 'trust = "shuffled"'),
        ("epsilon = 2.0", "delta = 1e-6\nepsilon = 2.0"),
        ("size =", "honest_share = 0.9\nsize ="),
    )
    check(write(tmp_path, "anonml", *edits))
    printed = capsys.readouterr().out
    assert "crowd     epsilon 0.39" in printed and "In a crowd" in printed


def test_counts_the_rows_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("patient,age,ward,nights,lives_alone,readmitted\n" + "p,30,surgery,2,no,yes\n" * 5)
    check(write(tmp_path, "sdq"), data=str(data))
    printed = capsys.readouterr().out
    assert "rows.csv: 2 rows fit the study; left out by the limit per person: 3 more" in printed
    assert f"next      shoal simulate {tmp_path}/study.toml --data {data}" in printed


def test_the_chance_that_selected_databases_collude_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edits = ('variant = "plus"', 'variant = "paper"'), ("all-contribute", "two-selected")
    check(write(tmp_path, "sdq", *edits))
    printed, label = capsys.readouterr().out.split("┌ PRIVACY LABEL")
    label = " ".join(label.replace("│", " ").split())
    for text in (printed, label):
        assert "with chance 6.67 % both selected ones do" in text and "with chance 46.7 % one of them does" in text
        assert "At least once both do with chance 29.2 %, and one or both with chance 97.8 %" in text
    assert "against the miner, if no database tells it anything" in printed and "up to 3 colluding databases" not in label
    check(write(tmp_path, "sdq", *edits), json=True)
    told = json.loads(capsys.readouterr().out)
    assert any("6.67 %" in item for item in told["label"]["not_covered"]) and len(told["label"]["rests_on"]) == 3


@pytest.mark.parametrize(
    ("old", "new", "code", "fix"),
    [
        ("minimum = 10", "minimum = 6", "SPEC-021", "minimum = 7, or max_colluders = 1"),
        ("depth = 4", 'choice = "mpc"\ndepth = 4\n#', "SPEC-021", 'choice = "sums", or max_colluders = 4'),
        ('learner = "tree"', 'learner = "naive-bayes"', "SPEC-022", 'Remove depth, or learner = "tree"'),
        ("n_databases = 10", "n_databases = 2", "SPEC-021", "n_databases = 3"),
        ('"all-contribute"', '"two-selected"', "SPEC-022", 'noise = "all-contribute"'),
    ],
)
def test_a_bad_study_of_databases_gets_a_sentence(
    old: str, new: str, code: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [("max_colluders = 3", "max_colluders = 5")] if "mpc" in new else []
    assert run(["check", str(write(tmp_path, "sdq", (old, new), *more))]) == 3
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
def test_data_that_does_not_fit_is_refused_without_its_value(
    row: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.csv"
    data.write_text(f"hours_watched,homework_mean,forum_posts,country,passed\n10,50,3,DE,no\n{row}\n")
    for option in ("data", "like"):
        with pytest.raises(ShoalError) as error:
            check(write(tmp_path), **{option: str(data)})  # type: ignore[arg-type]
        assert error.value.code == code and "7771" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_rows_are_numbered_as_in_the_file_where_some_are_left_out(tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("patient,age,ward,nights,lives_alone,readmitted\n" + "p,30,surgery,2,no,yes\n" * 5 + "q,30,surgery,2,no,x7771\n")
    with pytest.raises(ShoalError) as error:
        check(write(tmp_path, "sdq"), data=str(data))
    assert "row 6 has" in error.value.what


@pytest.mark.parametrize("text", ["39,State-gov,SECRET\n50,Private,FLU\n", "39;State-gov;SECRET\n", "39,SECRET,39\n", "\x1b[2JSECRET,b\n"])
def test_a_table_without_names_of_columns_is_not_repeated(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert run(["check", str(write(tmp_path)), "--data", str(tmp_path / "rows.csv")]) == 3
    error = capsys.readouterr().err
    assert not any(word in error for word in ("SECRET", "State-gov", "39", "\x1b"))


def test_one_row_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("hours_watched,homework_mean,forum_posts,country,passed\n10,50,3,DE,no\n")
    check(write(tmp_path), data=str(tmp_path / "rows.csv"))
    assert "rows.csv: 1 row fits the study\n" in capsys.readouterr().out


def test_hopeless_and_finished_studies_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edits = ("minimum = 2000", "minimum = 1"), ("size = 20000", "size = 1"), ("closes = 2031", "closes = 2001")
    check(write(tmp_path, "anonml", *edits))
    printed = capsys.readouterr().out
    assert printed.count("WARNING   ") == 2 and "is 2.25" in printed and "closed on 2001-01-31 12:00 UTC" in printed
    check(write(tmp_path, "anonml", *edits), json=True)
    told = json.loads(capsys.readouterr().out)
    assert len(told["warnings"]) == 2 and told["label"]["closes"] == "2001-01-31T12:00:00+00:00"


def test_what_was_read_from_the_data_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(write(tmp_path, "anonml", ("# public knowledge", "# READ FROM THE DATA")))
    printed = capsys.readouterr().out
    assert "WARNING   What stands on line 17 was read from the data, perhaps from private rows" in printed


def test_paths_are_safe_to_print_and_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "a b; rm -rf x\x1b[31m"
    home.mkdir()
    path = write(home)
    (home / "rows.csv").write_text("hours_watched,homework_mean,forum_posts,country,passed\n")
    check(path, data=str(home / "rows.csv"))
    check(path)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "next      shoal audit study $'" in printed and "rm -rf x\\x1b[31m/study.toml'\n" in printed


def test_what_cannot_be_priced_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ddml", ("[ddml]", '[queries]\nfeatures = ["hour"]\nn_queries = 1\nepsilon_release = 1.0\n[ddml]'))
    assert run(["check", str(path)]) == 3
    assert "PLAN-001" in capsys.readouterr().err


def test_exit_codes_and_json_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "anonml", ("epsilon = 2.0", 'epsilon = "2"'))
    assert run(["check", str(path), "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "SPEC-012" and error["fix"] == "epsilon = 2.0"
    assert run(["check", str(tmp_path / "none.toml")]) == 3
    assert run(["check", str(write(tmp_path)), "--data", str(tmp_path / "none.csv")]) == 3
    assert run(["check", str(write(tmp_path))]) == 0
    assert run(["check", str(write(tmp_path)), "--data", ""]) == 2
    assert run(["check", "--study", str(write(tmp_path))]) == 2


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def with_rows(home: Path, protocol: str, n: int, *edits: tuple[str, str]) -> tuple[Path, Path]:
    """A starter study with a size that is quickly simulated, and a public table for it."""
    path = write(home, protocol, *edits)
    data = home / "public.csv"
    data.write_text(example_csv(load(path), n, SeededEntropy(1)))
    return path, data


SMALL = ("minimum = 2000", "minimum = 100"), ("size = 20000", "size = 300")


def test_public_rows_give_a_forecast_with_intervals_beside_guessing_and_no_privacy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = with_rows(tmp_path, "anonml", 600, *SMALL)
    check(path, like=str(public), target="accuracy=0.6", sizes="150,300", epsilons="1,8")
    printed = capsys.readouterr().out
    words = unwrapped(printed)
    assert f"learns simulated on 600 public rows of {public}; nothing private was read" in words
    assert "accuracy on rows that it has not seen, expected, and in brackets a 90 % prediction interval; 16 runs each" in words
    assert "people  epsilon 1.0" in printed and "epsilon 8.0" in printed and "\n             150  0." in printed
    assert "epsilon: all of it, of one person, relation replace, against everyone" in words
    assert "study as it is (300 people, epsilon 2.0): accuracy 0." in words and "guessing the most common class: accuracy 0." in words
    assert "to reach  accuracy 0.6: " in printed and "matters   " in printed and "epsilon 2 -> 4" in printed
    assert "assumes   Those who take part are like the public rows" in printed and "drawn with replacement" in words
    assert f"next      shoal simulate {path} --data {public}\n" in printed  # the worse end is not better than guessing


def test_a_promising_study_leads_on_to_serving_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, public = with_rows(tmp_path, "sdq", 2000, ("size = 20000", "size = 900"), ("epsilon = 1.0", "epsilon = 20.0"))
    check(path, like=str(public), sizes="900", epsilons="20")
    assert f"next      shoal serve {path}\n" in capsys.readouterr().out


def test_a_forecast_in_json_is_the_same_for_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, public = with_rows(tmp_path, "anonml", 600, *SMALL)
    told = []
    for seed in (1, 1, 2):
        check(path, like=str(public), sizes="150", epsilons="8", level=0.8, seed=seed, json=True)
        told.append(json.loads(capsys.readouterr().out)["forecast"])
    assert told[0] == told[1] != told[2]
    assert told[0]["from"] == {"kind": "like", "file": str(public), "rows": 600} and told[0]["level"] == 0.8
    assert told[0]["points"][0]["scores"]["accuracy"].keys() == {"value", "low", "high"} and told[0]["assumes"]


def test_public_tables_stand_for_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"hours_watched": 5, "homework_mean": 4, "forum_posts": 4}
    text = '[[table]]\nlabel = "passed"\nshares = { no = 0.4, yes = 0.6 }\n'
    for name, n in names.items():
        text += f'[[table]]\nfeature = "{name}"\nshares.no = {[n - i for i in range(n)]}\nshares.yes = {[i + 1 for i in range(n)]}\n'
    text += '[[table]]\nfeature = "country"\n' + "".join(
        f"shares.{one} = {{ north = 1, centre = 1, other = 1 }}\n" for one in ("no", "yes")
    )
    (tmp_path / "tables.toml").write_text(text)
    path = write(tmp_path, "anonml", *SMALL)
    check(path, tables=tmp_path / "tables.toml", sizes="300", epsilons="8", target="auc=0.99")
    printed = unwrapped(capsys.readouterr().out)
    assert f"simulated on made-up rows that have the public tables of {tmp_path}/tables.toml; nothing private was read" in printed
    assert "assumes Features are taken as independent given the label" in printed and "better or worse than any interval" in printed
    assert "to reach AUC 0.99: not" in printed
    assert run(["check", str(path), "--tables", str(tmp_path / "none.toml")]) == 3
    assert "FORECAST-001" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_rows_only_errors_are_forecast_and_no_accuracy(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(write(tmp_path, protocol), target="error=0.3", epsilons="1,2", sizes="1000,5000")
    printed = unwrapped(capsys.readouterr().out.split("┌ PRIVACY LABEL")[0])
    assert "from public figures alone: no accuracy can be said" in printed and "learns " not in printed and "accuracy 0" not in printed
    assert "to reach error 0.3: about " in printed and "epsilon: all of it, of one " in printed
    check(write(tmp_path, protocol), json=True)
    told = json.loads(capsys.readouterr().out)["forecast"]
    assert told["from"] == {"kind": "figures"} and told["measure"] == "error" and len(told["points"]) == 12
    assert told["is_promising"] is None


def test_a_number_is_forecast_in_its_own_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edits = ('name = "doubtful"\nvalues = ["no", "yes"]', 'name = "doubtful"\nrange = [0, 1000]'), ("size = 40000", "size = 300")
    path, public = with_rows(tmp_path, "pfds", 400, *edits)
    check(path, like=str(public), sizes="300", epsilons="1", target="rmse=1")
    printed = unwrapped(capsys.readouterr().out)
    assert "RMSE on rows that it has not seen" in printed and "guessing the mean: RMSE" in printed
    assert "to reach RMSE 1: not reached at any number of rows; without privacy it has" in printed
    assert "Rows are dealt to databases and holders at random" in printed


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--like", "{public}", "--tables", "x.toml"], "from --like or from --tables, not from both"),
        (["--like", "{public}", "--target", "rmse=3"], "--target rmse=3 is not a measure of this study"),
        (["--target", "accuracy=0.8"], "--target accuracy=0.8 is not a measure of this study"),
        (["--like", "{public}", "--sizes", "100,x"], "--sizes takes whole numbers above 0 with commas between, not 100,x."),
        (["--sizes", "1_000"], "--sizes takes whole numbers"),
        (["--sizes", ""], "--sizes takes whole numbers above 0 with commas between, not nothing."),
        (["--epsilons", "0.5,-1"], "--epsilons takes numbers above 0"),
        (["--epsilons", "nan"], "--epsilons takes numbers above 0"),
        (["--like", "{public}", "--sizes", "9000000"], "9,000,000 rows is not simulated"),
        (["--like", "{public}", "--level", "1"], "--level 1 is not a chance"),
        (["--like", "{public}", "--jobs", "0"], "--jobs 0 leaves nobody"),
    ],
)
def test_a_forecast_that_cannot_be_made_gets_a_sentence(
    options: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = with_rows(tmp_path, "anonml", 200, *SMALL)
    assert run(["check", str(path), *(option.format(public=public) for option in options)]) == 2
    assert what in " ".join(capsys.readouterr().err.split())


def test_an_epsilon_that_no_study_may_have_and_too_few_public_rows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, public = with_rows(tmp_path, "anonml", 200, *SMALL)
    assert run(["check", str(path), "--epsilons", "900"]) == 3
    assert "SPEC-013" in capsys.readouterr().err
    public.write_text("\n".join(public.read_text().splitlines()[:6]) + "\n")
    assert run(["check", str(path), "--like", str(public)]) == 3
    assert "SIM-003" in capsys.readouterr().err


def told_of(**more: Any) -> dict[str, Any]:
    """A forecast as the view is given it."""
    score = {"value": 0.7, "low": 0.6, "high": 0.8}
    point = {"size": 100, "epsilon": 1.0, "rows": 100, "repeated": False, "scores": {"accuracy": score}}
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
    return {**told, "assumes": assumptions(told, "anonml")}


@pytest.mark.parametrize(
    ("n", "low", "high", "beyond", "words"),
    [
        (1234, 987, 5678, False, "about 1,200 people (990 to 5,700)"),
        (1234, 100, None, False, "about 1,200 people (fewer than 100 to more than 9,000)"),
        (100, 100, 350, False, "100 people or fewer; surely 350"),
        (None, None, None, True, "not reached at any number of people; without privacy it has 0.750"),
        (None, None, None, False, "not expected of up to 9,000 people; without privacy it has 0.750"),
        (None, 300, None, False, "not expected of up to 9,000 people, though within the interval; without privacy it has 0.750"),
    ],
)
def test_how_many_are_needed_is_told_in_words(n: int | None, low: int | None, high: int | None, beyond: bool, words: str) -> None:
    target = {"measure": "accuracy", "value": 0.8, "n": n, "low": low, "high": high, "smallest": 100, "largest": 9000}
    lines = forecast_lines(told_of(target={**target, "without_privacy": 0.75, "is_beyond": beyond}), "anonml")
    assert f"to reach accuracy 0.8: {words} " in unwrapped("\n".join(lines))


def test_effects_are_better_worse_or_not_clear_and_strange_names_do_no_harm() -> None:
    matters = [
        {"key": key, "before": 1, "after": 2, "effect": effect, "error": 0.01} for key, effect in (("a", 0.05), ("b", -0.04), ("c", 0.015))
    ]
    text = "\n".join(forecast_lines(told_of(matters=matters), "anonml"))
    assert (
        "a 1 -> 2: better, accuracy +0.050 ± 0.010" in text
        and "b 1 -> 2: worse, accuracy -0.040" in text
        and "c 1 -> 2: no clear effect" in text
    )
    assert "\x1b" not in text and "ID3 without privacy: accuracy 0.750" in text


def test_what_stands_in_for_the_study_is_told() -> None:
    point = {**told_of()["study"], "repeated": True, "rows": 5000}
    lines = told_of(study=point, declared=7, pessimistic_by={"accuracy": 0.02})["assumes"]
    assert any("5,000 rows and more" in line and "by about 0.020" in line for line in lines)
    assert any("declared size of 7 is not simulated: 100 stand for it" in line for line in lines)
    assert any("too little to be seen" in line for line in told_of(study=point, pessimistic_by={"accuracy": 0.0})["assumes"])


def test_a_study_is_promising_where_even_the_worse_end_beats_guessing() -> None:
    assert is_promising(told_of()) and not is_promising(told_of(yardsticks={"most_common": {"accuracy": 0.65}}))
    point = {**told_of()["study"], "scores": {"rmse": {"value": 7, "low": 6, "high": 8}}}
    for mean, expected in ((9, True), (7.5, False)):
        assert (
            is_promising(told_of(measure="rmse", study=point, points=[point], matters=[], yardsticks={"mean_label": {"rmse": mean}}))
            is expected
        )


def test_a_person_at_a_terminal_sees_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, public = with_rows(tmp_path, "anonml", 200, *SMALL)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    check(path, like=str(public), sizes="100", epsilons="2")
    seen = capsys.readouterr()
    assert "of 84 runs" in seen.err and "84 runs" not in seen.out and "nothing private was read" in unwrapped(seen.out)
