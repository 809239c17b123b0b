"""`shoal check`: validate, price, print the label, and hold data against the schema without repeating a value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.check import check
from shoal.cli.main import run
from shoal.errors import ShoalError
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.templates import PROTOCOLS, study_text


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
