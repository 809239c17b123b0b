"""`shoal simulate` of SDQ: databases and their rows, the tree, and named databases."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.model import from_plain as additive_from_plain
from shoal.protocols.sdq.model import from_plain
from shoal.study.loader import parse_study_text
from shoal.study.starters import make_example_csv, read_starter
from tests.support.simulation import edited, simulate, told

FITTING = ("size = 20000", "size = 1000")
PAPER = ('variant = "plus"', 'variant = "paper"')
LOCAL = ('trust = "secure-sum"', 'trust = "local"')
SETTINGS: dict[str, str | None] = {"n_databases": "10", "depth": "4", "max_colluders": "3"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path, FITTING)
    return tmp_path


def write(home: Path, *edits: tuple[str, str], **settings: str | None) -> None:
    """Write the starter study with another [sdq] table, and rows; None removes a key."""
    table = [
        f"{key} = {value}" for key, value in (SETTINGS | settings).items() if value is not None
    ]
    text = "\n".join([read_starter("sdq").partition("[sdq]")[0], "[sdq]", *table, ""])
    text = edited(text, *edits)
    (home / "study.toml").write_text(text)
    (home / "rows.csv").write_text(make_example_csv(parse_study_text(text), 1200, SeededEntropy(1)))


def without_people(home: Path, *edits: tuple[str, str]) -> None:
    """Return the study with rows as its unit."""
    text = read_starter("sdq")
    begin, end = text.index("[data]"), text.index("[privacy]")
    write(home, (text[begin:end], ""), *edits)


def name_databases(home: Path, n: int) -> None:
    rows = (home / "rows.csv").read_text().splitlines()
    named = [rows[0] + ",hospital", *(f"{row},h{i % n}" for i, row in enumerate(rows[1:]))]
    (home / "rows.csv").write_text("\n".join(named) + "\n")


def test_sdq_prints_databases_rows_price_and_the_tree(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    [point] = told(home, capsys)["points"]
    n_unseen = told(home, capsys)["rows"]["unseen"]
    assert (
        f"rows      10 databases with {point['n_rows']:,} rows took part, {n_unseen} rows were "
        "set aside for testing" in printed
    )
    assert (
        "model     a tree of depth 4 at most, splits chosen jointly; a share of the noise from "
        "each of 10, enough if 7 are honest" in printed
    )
    assert (
        "price     epsilon 1.0 by plain sum of " in printed
        and "(unit person, relation add-remove, against the miner and up to 3" in printed
    )
    assert (
        f"answers   {sum(point['answers']):,} noisy figures learned in {len(point['answers'])} "
        "rounds (first run)" in printed
    )
    rows = [
        line
        for line in printed.splitlines()
        if line.startswith(
            (
                "this study ",
                "most common class ",
                "ID3 without privacy ",
                "logistic regression without privacy ",
            )
        )
    ]
    assert len(rows) == 4
    assert (
        "tree      of the first run, upper levels; --out writes the whole tree\n  "
        + point["tree"].splitlines()[0]
        in printed
    )
    assert "WARNING" not in printed.replace("WARNING   Accuracy is", "")


def test_person_is_on_one_side_and_counts_up_to_the_limit(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = (home / "rows.csv").read_text().splitlines()
    # Ten patients with 120 rows each, twelve in every database.
    (home / "rows.csv").write_text(
        "\n".join([head, *(f"p{i // 120},{row.partition(',')[2]}" for i, row in enumerate(rows))])
        + "\n"
    )
    name_databases(home, 10)
    result = told(home, capsys, "--holder", "hospital")
    assert (result["rows"]["asked"], result["rows"]["unseen"], result["points"][0]["n_rows"]) == (
        960,
        240,
        8 * 10 * 2,
    )


def test_tree_is_written_to_separate_files(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = told(home, capsys, "--out", str(home / "one"))
    model = json.loads((home / "one" / "model.json").read_text())
    tree = from_plain(model["model"])
    assert (
        model["simulated"] is True
        and (home / "one" / "tree.txt").read_text()
        == tree.to_text(width=None, n_classes=None) + "\n"
    )
    shown = result["points"][0]["tree"].splitlines()
    assert len(shown) <= 40 and shown[0] == tree.to_text().splitlines()[0]
    assert ElementTree.parse(home / "one" / "tree.svg").getroot().tag.endswith("svg")
    assert json.loads((home / "one" / "run.json").read_text()) == result
    told(home, capsys, "--sweep", "epsilon=0.5,1", "--out", str(home / "two"))
    names = {
        str(path.relative_to(home / "two"))
        for path in (home / "two").rglob("*.*")
        if path.is_file()
    }
    assert {
        "run.json",
        "epsilon=0.5/model.json",
        "epsilon=0.5/tree.txt",
        "epsilon=1/tree.svg",
    } <= names


def test_output_names_all_written_files(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(home, "--out", str(home / "one")) == 0
    assert (
        f"wrote     {home}/one: run.json, model.json, tree.txt, tree.svg\n"
        in capsys.readouterr().out
    )
    assert simulate(home, "--sweep", "epsilon=0.5,1", "--out", str(home / "two")) == 0
    assert (
        f"wrote     {home}/two: run.json; for each point a directory with model.json, tree.svg, "
        "tree.txt\n" in capsys.readouterr().out
    )


def test_no_noise_is_described_as_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(home, "--without-perturbation") == 0
    printed = capsys.readouterr().out
    assert (
        "noisy" not in printed
        and "noise (standard deviation)" not in printed
        and " figures learned in " in printed
    )
    assert simulate(home) == 0
    assert "noise (standard deviation): " in capsys.readouterr().out


def test_two_selected_databases_reject_dropout(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, FITTING, PAPER, noise='"two-selected"')
    assert told(home, capsys)["points"][0]["n_honest"] is None
    assert simulate(home, "--dropout", "0.1") == 2
    error = capsys.readouterr().err
    assert (
        "no party knows whether one of them is gone" in error
        and 'Remove --dropout, or set noise = "all-contribute" under [sdq].' in error
    )


def test_naive_bayes_has_no_tree(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, FITTING, learner='"naive-bayes"', depth=None)
    result = told(home, capsys, "--out", str(home / "one"))
    assert "tree" not in result["points"][0] and sorted(
        path.name for path in (home / "one").iterdir()
    ) == ["model.json", "run.json"]
    assert additive_from_plain(
        json.loads((home / "one" / "model.json").read_text())["model"]
    ).classes == ("no", "yes")
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    assert (
        "model     naive Bayes; a share of the noise" in printed
        and "\nnaive Bayes without privacy " in printed
    )
    assert "\ntree " not in printed and "learned in 1 round (first run)" in printed


@pytest.mark.parametrize(
    ("edits", "settings", "options", "words"),
    [
        (
            (),
            {},
            ("--without-perturbation",),
            "a tree of depth 4 at most, splits chosen jointly; no noise\n",
        ),
        (
            (),
            {"max_colluders": "6"},
            (),
            "a tree of depth 4 at most, splits chosen by sums alone; a share of the noise from "
            "each of 10, enough if 4",
        ),
        (
            (PAPER,),
            {"noise": '"two-selected"'},
            (),
            "a tree of depth 4 at most; noise by two selected databases\n",
        ),
        (
            (PAPER, LOCAL),
            {"max_colluders": None},
            (),
            "a tree of depth 4 at most; all of the noise from each database\n",
        ),
        (
            (),
            {},
            ("--sweep", "depth=1,3"),
            "a tree of depth 1 at most, splits chosen jointly or a tree of depth 3 at most",
        ),
        (
            (),
            {},
            ("--sweep", "max_colluders=0,1"),
            "model     a tree of depth 4 at most, splits chosen jointly\n",
        ),
    ],
)
def test_sdq_describes_the_learner_and_its_noise(
    edits: tuple[tuple[str, str], ...],
    settings: dict[str, str | None],
    options: tuple[str, ...],
    words: str,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(home, FITTING, *edits, **settings)
    assert simulate(home, *options) == 0
    assert words in capsys.readouterr().out


def test_sweep_of_databases_keeps_the_number_that_may_drop_out(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, FITTING, ("minimum = 10", "minimum = 9"))
    points = told(home, capsys, "--sweep", "n_databases=8,20")["points"]
    assert [(point["n_databases"], point["minimum"], point["people"]) for point in points] == [
        (8, 7, 8),
        (20, 19, 20),
    ]


def test_databases_may_be_named_by_a_column(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_people(home, FITTING)
    name_databases(home, 10)
    result = told(home, capsys, "--holder", "hospital")
    assert (
        result["points"][0]["people"],
        result["points"][0]["n_rows"],
        result["rows"]["unseen"],
    ) == (10, 900, 300)
    assert result["holder"] == "hospital" and result["command"].endswith("--holder hospital")
    assert simulate(home, "--holder", "clinic") == 3
    assert "DATA-001  The data has no column clinic." in capsys.readouterr().err
    name_databases(home, 4)
    assert simulate(home, "--holder", "hospital") == 3


def test_number_of_named_databases_must_be_that_of_the_study(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_databases(home, 4)
    assert simulate(home, "--holder", "hospital") == 3
    error = capsys.readouterr().err
    assert (
        error.startswith("SIM-007  The table names 4 databases; the study has n_databases = 10.")
        and "assigned at random" in error
    )


def test_databases_drop_out_down_to_the_minimum(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, FITTING, ("minimum = 10", "minimum = 8"))
    result = told(home, capsys, "--dropout", "0.2")
    assert (
        result["points"][0]["people"] == 8
        and result["points"][0]["n_rows"] < 0.9 * result["rows"]["asked"]
    )
    assert simulate(home, "--dropout", "0.3") == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "SUM-003  With a dropout of 0.3, 7 of 10 databases are left; a sum of fewer than 8 is not "
        "opened."
    )


def test_size_far_from_the_rows_has_a_warning(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home)
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    assert (
        "WARNING   The study declares 20,000 rows, and " in printed
        and "is chosen for the declared size. Try --sweep size=" in printed
    )


def test_tree_is_printed_to_the_level_that_fits(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, FITTING, PAPER)
    result = told(home, capsys, "--without-perturbation", "--out", str(home / "one"))
    whole = (home / "one" / "tree.txt").read_text().splitlines()
    shown = result["points"][0]["tree"].splitlines()
    assert 1 < len(shown) <= 40 < len(whole) and sum("below" in line for line in shown) > 0


@pytest.mark.parametrize(
    "options", [("--device", "hospital"), ("--in-flight", "2"), ("--order", "given")]
)
def test_sdq_rejects_options_for_devices(
    options: tuple[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, *options) == 2
    assert "are for studies of ddml; the protocol of this study is sdq" in capsys.readouterr().err


def test_anonml_rejects_a_column_of_databases(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "study.toml").write_text(read_starter("anonml"))
    assert simulate(home, "--holder", "hospital") == 2
    assert (
        "USAGE-001  --holder is for studies of sdq and pfds; the protocol of this study is "
        "anonml." in capsys.readouterr().err
    )
