"""`shoal simulate` of PFDS: holders, personal models, and releases marked as simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import run
from shoal.cli.simulate.view import VIEWS
from shoal.entropy import SeededEntropy
from shoal.errors import StoreError
from shoal.protocols.pfds.model import from_plain
from shoal.releases.artifact import read_signed_release
from shoal.study.loader import parse_study_text
from shoal.study.starters import make_example_csv, read_starter
from tests.support.simulation import edited, simulate, told

FITTING = (
    ("size = 40000", "size = 900"),
    ("n_holders = 20", "n_holders = 8"),
    ("minimum = 15", "minimum = 6"),
)
SUMS = ('trust = "local"', 'trust = "secure-sum"')
DELTA = ("epsilon = 1.0", "delta = 1e-6\nepsilon = 1.0")
PAPER = ('variant = "plus"', 'variant = "paper"')
FEW = ("n_holders = 8", "n_holders = 6\nmax_depth = 3")
ENOUGH = ("minimum = 6", "minimum = 5")
WHOLE = ("range = [0, 730]", "range = [0, 730]\nmissing = false")
TREES = (PAPER, FEW, ENOUGH, WHOLE)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def write(home: Path, *edits: tuple[str, str]) -> None:
    """Write the starter study, and rows that fit it."""
    text = edited(read_starter("pfds"), *FITTING, *edits)
    (home / "study.toml").write_text(text)
    (home / "rows.csv").write_text(make_example_csv(parse_study_text(text), 1200, SeededEntropy(1)))


def add_column(home: Path, name: str, n: int) -> None:
    rows = (home / "rows.csv").read_text().splitlines()
    named = [f"{rows[0]},{name}", *(f"{row},h{i % n}" for i, row in enumerate(rows[1:]))]
    (home / "rows.csv").write_text("\n".join(named) + "\n")


def printed(home: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert simulate(home, *options) == 0
    return capsys.readouterr().out


def test_pfds_prints_holders_price_and_personal_models(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(home, capsys)
    [point] = told(home, capsys)["points"]
    n_figures = sum(point["answers"])
    assert (
        "rows      8 holders with 900 rows took part, 300 rows were set aside for testing; "
        "declared size 900" in text
    )
    assert (
        "model     the pooled tables of 8 holders, each of 2 attributes with all of the noise"
        in text
    )
    assert (
        "price     epsilon 1.0 by plain sum of 1 release (unit record, relation add-remove, "
        "against all who read the release)" in text
    )
    assert f"answers   {n_figures:,} noisy figures shared by 8 holders (first run)" in text
    gain = point["at_home"]["gain"]["value"]
    than = (
        "predict more accurately with the release than with their own rows alone (over 2 runs; "
        "a tie is not a gain)"
    )
    assert f"personal  {100 * gain:.0f} % of 8 holders {than}\n" in text
    heads = (
        "this study ",
        "personal models, mean of 8 holders ",
        "own rows alone, mean of 8 holders ",
        "most common class ",
        "without privacy ",
    )
    assert [
        line.startswith(head)
        for head, line in zip(
            heads, [row for row in text.splitlines() if row.startswith(heads)], strict=True
        )
    ] == [True] * 5


def test_record_has_the_personal_models(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [point] = told(home, capsys)["points"]
    at_home = point["at_home"]
    assert (
        set(at_home) == {"home", "own", "gain", "n_holders", "runs"} and len(at_home["runs"]) == 2
    )
    for key in ("home", "own"):
        assert list(at_home[key]) == ["accuracy", "auc", "f1"]
        mean = sum(one[key]["accuracy"] for one in at_home["runs"]) / 2
        assert (
            at_home[key]["accuracy"]["value"] == pytest.approx(mean)
            and at_home[key]["accuracy"]["error"] is not None
        )
    assert at_home["gain"]["value"] == pytest.approx(
        sum(one["gain"] for one in at_home["runs"]) / 2
    )


def test_sweep_has_columns_of_the_personal_models(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(home, capsys, "--sweep", "epsilon=0.5,8")
    [head] = [line for line in text.splitlines() if line.startswith("epsilon  ")]
    assert (
        head.split("  ")[-1] == "gain"
        and "plain sum  accuracy" in head
        and "personal accuracy" in head
        and "own rows alone" in head
    )
    rows = [line for line in text.splitlines() if line.startswith(("0.5 ", "8 "))]
    assert len(rows) == 2 and all(row.endswith(" %") for row in rows)
    assert (
        "\npersonal  gain is the share of 8 holders that predict more accurately with the release "
        "than" in text
    )


@pytest.mark.parametrize(
    ("edits", "options", "words"),
    [
        (
            (SUMS,),
            (),
            "model     sums over 8 holders; a share of the noise from each, enough if 3 are "
            "honest\n",
        ),
        ((SUMS,), ("--without-perturbation",), "model     sums over 8 holders; no noise\n"),
        (
            (),
            ("--without-perturbation",),
            "model     the pooled tables of 8 holders, each of 4 attributes without noise\n",
        ),
        ((), ("--without-perturbation",), " figures shared by 8 holders (first run)"),
        (
            (),
            ("--dropout", "0.25"),
            "model     the pooled tables of 6 of 8 holders, each of 2 attributes with all of the "
            "noise\n",
        ),
        (
            (SUMS,),
            ("--dropout", "0.25"),
            "model     sums over 6 of 8 holders; a share of the noise from each, enough if 3 "
            "are honest\n",
        ),
        (
            (("n_holders = 8", "n_holders = 24"),),
            (),
            " % of 20 holders drawn from 24 predict more accurately with",
        ),
        ((), ("--sweep", "n_holders=4,8"), "gain is the share of 4 to 8 holders that predict"),
        (
            (),
            ("--sweep", "n_holders=4,24"),
            "gain is the share of 4 to 20 holders drawn from 24 that predict",
        ),
        (
            (SUMS,),
            ("--sweep", "delta=0,1e-6"),
            "price     epsilon by plain sum or zero-concentrated sum, as below",
        ),
        ((SUMS, DELTA), (), "price     epsilon 1.0, delta 1e-06 by zero-concentrated sum of "),
        (
            (SUMS, DELTA),
            ("--sweep", "epsilon=0.5,1"),
            "price     epsilon by zero-concentrated sum, as below (unit record",
        ),
        (
            TREES,
            (),
            "model     a regression on synthetic rows from private trees of 3 levels, and labelled "
            "by all trees\n",
        ),
        (TREES, (), " synthetic rows shared by 6 holders (first run)"),
        (
            (*TREES, ("max_depth = 3", 'max_depth = 3\nlabelling = "own"\nprojection = false')),
            (),
            "private trees of 3 levels, without projection of counts, and labelled by the tree "
            "that they come from\n",
        ),
    ],
    ids=str,
)
def test_pfds_describes_the_release_and_its_noise(
    edits: tuple[tuple[str, str], ...],
    options: tuple[str, ...],
    words: str,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(home, *edits)
    assert words in printed(home, capsys, *options)


def test_numeric_label_is_scored_by_errors(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, SUMS, ('values = ["no", "yes"]', "range = [0, 10]"))
    text = printed(home, capsys)
    [point] = told(home, capsys)["points"]
    assert list(point["at_home"]["home"]) == ["rmse", "mean_absolute_error", "r_squared"]
    assert (
        " % of 8 holders have a smaller RMSE with the release than with their own rows alone "
        "(over 2 runs;" in text
    )
    assert "\nmean of the label " in text and "\npersonal models, mean of 8 holders " in text


class TestFiles:
    def test_pool_writes_a_signed_release_marked_as_simulated(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = told(home, capsys, "--out", str(home / "one"))
        signed = read_signed_release(home / "one" / "release")
        release = signed.release
        assert (
            release.is_simulated
            and release.statement.simulated
            and release.statement.epsilon == 1.0
        )
        assert (
            signed.signer.name == "simulated holder 0"
            and len(release.dataset) == 900
            and release.noisy_count is not None
        )
        model = json.loads((home / "one" / "model.json").read_text())
        assert model["simulated"] is True and release.model is not None
        assert release.model.to_plain() == model["model"] == from_plain(model["model"]).to_plain()
        assert abs(release.noisy_count.rows - 900) < 8 * release.noisy_count.deviation
        assert json.loads((home / "one" / "run.json").read_text()) == result
        assert run(["release", "check", str(home / "one" / "release")]) == 0

    def test_trees_write_one_release_for_each_holder(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(home, *TREES)
        assert f"wrote     {home}/one: run.json, model.json, release-0 to release-5\n" in printed(
            home, capsys, "--out", str(home / "one")
        )
        [point] = told(home, capsys)["points"]
        signed = [read_signed_release(home / "one" / f"release-{i}") for i in range(6)]
        assert [len(one.release.dataset) for one in signed] == point["answers"]
        assert (
            len({one.signer.key for one in signed}) == 6
            and signed[3].signer.name == "simulated holder 3"
        )
        assert all(one.release.model is None for one in signed)

    def test_absent_holders_write_no_release(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(home, *TREES)
        told(home, capsys, "--dropout", "0.1", "--out", str(home / "one"))
        assert len(list((home / "one").glob("release-*"))) == 5

    @pytest.mark.parametrize("edits", [(), TREES], ids=["plus", "paper"])
    def test_failed_study_writes_no_release(
        self, edits: tuple[tuple[str, str], ...], home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(home, *edits)
        text = printed(home, capsys, "--dropout", "0.5", "--out", str(home / "one"))
        assert sorted(path.name for path in (home / "one").iterdir()) == ["model.json", "run.json"]
        assert (
            "participants; nothing is released; the scores are those of a study without a "
            "minimum.\n" in text
        )
        assert f"wrote     {home}/one: run.json, model.json\n" in text

    def test_sweep_writes_releases_only_for_points_that_succeed(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = printed(
            home,
            capsys,
            "--dropout",
            "0.2",
            "--sweep",
            "n_holders=8,16",
            "--out",
            str(home / "two"),
        )
        assert (home / "two" / "n_holders=8" / "release").is_dir() and not (
            home / "two" / "n_holders=16" / "release"
        ).exists()
        assert (
            "WARNING   1 of 2 points learns nothing from fewer than 14 participants; nothing is "
            "released" in text
        )

    def test_sweep_writes_releases_by_point(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = printed(home, capsys, "--sweep", "epsilon=0.5,1", "--out", str(home / "two"))
        assert (
            f"wrote     {home}/two: run.json; for each point a directory with model.json, release\n"
            in text
        )
        epsilons = [
            read_signed_release(
                home / "two" / f"epsilon={name}" / "release"
            ).release.statement.epsilon
            for name in ("0.5", "1")
        ]
        assert epsilons == [0.5, 1.0]

    def test_no_noise_writes_no_release(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        told(home, capsys, "--without-perturbation", "--out", str(home / "one"))
        assert sorted(path.name for path in (home / "one").iterdir()) == ["model.json", "run.json"]


class TestHolders:
    def test_holders_may_be_named_by_a_column(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        add_column(home, "insurer", 8)
        result = told(home, capsys, "--holder", "insurer")
        assert (
            result["points"][0]["people"] == 8
            and result["holder"] == "insurer"
            and result["command"].endswith("--holder insurer")
        )

    def test_number_of_named_holders_must_be_that_of_the_study(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        add_column(home, "insurer", 4)
        assert simulate(home, "--holder", "insurer") == 3
        assert capsys.readouterr().err.startswith(
            "SIM-007  The table names 4 holders; the study has n_holders = 8."
        )

    def test_holders_of_sums_drop_out_down_to_the_minimum(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(home, SUMS)
        assert told(home, capsys, "--dropout", "0.25")["points"][0]["people"] == 6
        assert simulate(home, "--dropout", "0.3") == 2
        assert capsys.readouterr().err.startswith(
            "SUM-003  With a dropout of 0.3, 5 of 8 holders are left; a sum of fewer than 6"
        )

    def test_too_few_sharing_holders_are_reported(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "WARNING   The study learns nothing from fewer than 6 participants" in printed(
            home, capsys, "--dropout", "0.5"
        )


def test_person_is_on_one_side_and_counts_up_to_the_limit(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, ('unit = "record"                     # a [data] table makes it the person', ""))
    text = (home / "study.toml").read_text()
    (home / "study.toml").write_text(text + '\n[data]\nperson = "who"\nmax_rows_per_person = 2\n')
    add_column(home, "who", 120)
    result = told(home, capsys)
    assert result["rows"]["unseen"] == 300 and result["points"][0]["n_rows"] < 900
    assert result["points"][0]["total"]["unit"] == "person"


def test_size_far_from_the_rows_has_a_warning(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, ("size = 900", "size = 5000"))
    text = printed(home, capsys)
    assert (
        "WARNING   The study declares 5,000 rows, and 900 took part: the questions to each holder "
        "are chosen for the declared size." in text
    )


@pytest.mark.parametrize(
    "options", [("--device", "insurer"), ("--in-flight", "2"), ("--order", "given")]
)
def test_pfds_rejects_options_for_devices(
    options: tuple[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, *options) == 2
    assert "are for studies of ddml; the protocol of this study is pfds" in capsys.readouterr().err


def test_no_noise_rejects_a_sweep_of_delta(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, SUMS)
    assert simulate(home, "--without-perturbation", "--sweep", "delta=1e-6,1e-8") == 2
    assert "there is no epsilon or delta to vary" in capsys.readouterr().err


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    ("trouble", "code"),
    [(KeyboardInterrupt(), 130), (StoreError("REL-001", "The disk is full."), 1)],
)
def test_interruption_between_releases_leaves_no_files(
    trouble: BaseException,
    code: int,
    is_there: bool,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = VIEWS["pfds"]
    real = view.write_releases
    assert real is not None

    def break_off_at_the_second(directory: Path, *arguments: Any) -> None:
        if directory.name == "epsilon=2":
            raise trouble
        real(directory, *arguments)

    broken = replace(view, write_releases=break_off_at_the_second)
    monkeypatch.setitem(VIEWS, "pfds", broken)  # type: ignore[arg-type]
    if is_there:
        (home / "one").mkdir()
    before = sorted(home.rglob("*"))
    assert simulate(home, "--sweep", "epsilon=1,2", "--out", str(home / "one")) == code
    assert sorted(home.rglob("*")) == before
    assert "wrote" not in capsys.readouterr().out
