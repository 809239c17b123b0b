"""The command of the benchmarks, measures, AnonML's rows, and figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure, rate
from benchmarks.paper import anonml, plots
from benchmarks.paper.anonml import data as anonml_data
from benchmarks.paper.anonml import errors as anonml_errors
from benchmarks.paper.figure import PALETTE, Figure, Line, Panel
from benchmarks.speed.anonml import SCHEMA, make_people
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.protocols.anonml.params import AnonMLPaperParams
from shoal.simulation.run import Split
from shoal.study.loader import load_study

ROOT = Path(__file__).parents[3]
FIGURE = Figure(
    "toy",
    [
        Panel(
            "a",
            "x",
            "y",
            [Line("b", [1, 2], [0.5, 0.75]), Line("c", [0], [0.5], "dotted", PALETTE["grey"])],
        )
    ],
    columns=1,
)


def test_list_names_benchmarks_and_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "list"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0
    named = {line.split()[0] for line in done.stdout.splitlines()}
    assert {
        "samplers",
        "anonml",
        "anonml-speed",
        "anonml-2",
        "anonml-7",
        "ddml",
        "ddml-speed",
        "ddml-2",
        "ddml-5",
    } <= named


def test_measure_is_one_json_object() -> None:
    measure = Measure("samplers", "laplace_vs_opendp", 440.0, "x", "higher", 100, "opendp", 440.0)
    assert list(json.loads(measure.to_json())) == [
        "bench",
        "measure",
        "value",
        "unit",
        "better",
        "target",
        "peer",
        "ratio",
    ]
    assert "440 x opendp" in measure.to_text()
    assert measure.to_text().endswith("met")


def test_measure_says_if_its_target_is_not_met() -> None:
    assert (
        Measure("install", "core_mb", 130, "MB", "lower", target=100).to_text().endswith("NOT MET")
    )
    assert json.loads(Measure("install", "core_mb", 130, "MB", "lower").to_json())["target"] is None


def test_rate_is_positive() -> None:
    assert rate(lambda: sum(range(20_000)), 20_000, seconds=0.01) > 0


def test_run_rejects_options_that_a_benchmark_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "run", "samplers", "--seeds", "3"])
    with pytest.raises(SystemExit):
        command.main()
    assert "samplers takes no --seeds" in capsys.readouterr().err


def test_run_markdown_prints_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "benchmarks.speed.install.measures",
        lambda: iter([Measure("install", "core_mb", 61.5, "MB", "lower", 100)]),
    )
    monkeypatch.setattr(sys, "argv", ["benchmarks", "run", "install", "--markdown"])
    command.main()
    assert capsys.readouterr().out.splitlines()[2] == "| core mb | 61.5 | MB | at most 100 |"


def test_rows_of_anonml_have_unique_names_and_studies() -> None:
    assert len({row.key for row in anonml.ROWS}) == len(anonml.ROWS)
    examples = {
        path.stem
        for path in (ROOT / "examples").glob("*.toml")
        if load_study(path).protocol == "anonml"
    }
    assert {row.study for row in anonml.ROWS} == set(anonml_data.FILES) == examples
    assert all(
        row.goals == {e: pytest.approx(known - 0.01) for e, known in row.known.items()}
        for row in anonml.ROWS
        if row.known
    )


def test_rows_of_anonml_are_selected_scored_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = make_people_rows()
    monkeypatch.setattr(anonml, "example", lambda study: given)
    monkeypatch.setattr(anonml, "EPSILONS", (2.0, 64.0))
    found = {one.measure: one for one in anonml.measures(seeds=2, only="5_3_2_plain")}
    start = "adult_paper_5_3_2_plain_auc_eps"
    assert (
        found[f"{start}2"].target == pytest.approx(0.806)
        and found[f"{start}2_distance"].target == 0.01
    )
    assert found[f"{start}64"].value > found[f"{start}2"].value > 0.5
    assert found[f"{start}2_se"].value > 0
    assert found["adult_paper_5_3_2_plain_auc_trivial"].value == 0.5
    assert found["adult_paper_5_3_2_plain_auc_no_privacy"].value > found[f"{start}64"].value - 0.02
    head, _, row = anonml.markdown(seeds=1, only="5_3_2_plain")
    assert head == "| | 2 | 64 | no privacy |" and row.startswith(
        "| Adult, `paper` 5/3/2, plain sum | "
    )


def test_score_below_its_target_is_bold() -> None:
    row = anonml.Row("a", "A", "adult", {1.0: 0.8})
    assert anonml._cell(row, 1.0, anonml.RunMean(0.79, 0.004)) == "**.790 (.004)**"
    assert anonml._cell(row, 1.0, anonml.RunMean(0.81, None)) == ".810"


def test_missing_table_of_anonml_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(anonml_data, "DATA", tmp_path)
    assert not anonml_data.is_there("nursery")
    with pytest.raises(SystemExit, match=r"nursery\.csv\.gz is not in .*make data"):
        anonml_data.example.__wrapped__("nursery")


def make_people_rows(n: int = 3000) -> anonml_data.Example:
    """Return people whose label follows from six features."""
    rng = np.random.default_rng(1)
    features = [Numeric(f"n{i}", 0, 1) for i in range(5)] + [
        Categorical("c", ["x", "y", "z"], groups={"a": ["x", "y"], "b": ["z"]})
    ]
    columns = {f"n{i}": rng.random(n) for i in range(5)} | {"c": rng.integers(-1, 3, n)}
    columns["n0"][:10] = np.nan
    labels = (
        np.nan_to_num(columns["n0"]) + columns["n1"] + (columns["c"] == 2) + rng.normal(size=n) / 4
        > 1.4
    ).astype(np.int64)
    schema = Schema(features, Categorical("label", ["no", "yes"]))
    half = {name: column[n // 2 :] for name, column in columns.items()}
    split = Split(
        {name: column[: n // 2] for name, column in columns.items()},
        labels[: n // 2],
        half,
        labels[n // 2 :],
    )
    return anonml_data.Example(AnonMLPaperParams(schema, 1.0, n // 2), split)


def test_in_bins_replaces_values_by_bins() -> None:
    given = make_people_rows()
    binned = anonml_data.in_bins(given)
    assert [len(feature.values) for feature in binned.schema.features] == [3, 3, 3, 3, 3, 3]
    assert np.bincount(binned.split.train_columns["n1"]).tolist() == [750, 750]
    assert binned.split.train_columns["n0"][:10].tolist() == [2] * 10
    assert set(binned.split.test_columns["c"][given.split.test_columns["c"] == 2]) == {1}
    assert binned.params.unbinned == ()


def test_make_people_returns_the_columns_of_the_schema() -> None:
    columns, labels = make_people(1000)
    assert SCHEMA.names == tuple(columns) and len(SCHEMA.names) == 12
    assert all(
        np.unique(column).size > 1 and not np.array_equal(column, labels)
        for column in columns.values()
    )


def test_figure_2_begins_at_rappor_and_ends_at_a_half() -> None:
    p, q, rappor_p, rappor_q = anonml_errors.figure("anonml-2", 1).panels[0].lines
    assert (p.y[0], q.y[0]) == pytest.approx((rappor_p.y[0], rappor_q.y[0]))
    assert (
        p.y[-1] == pytest.approx(0.5, abs=0.02) and all(np.diff(p.y) < 0) and all(np.diff(q.y) < 0)
    )


def test_figure_3_orders_mechanisms_as_the_paper() -> None:
    by_epsilon, by_cells = anonml_errors.figure("anonml-3", 1).panels
    for panel in (by_epsilon, by_cells):
        error = {line.name: np.array(line.y) for line in panel.lines}
        assert (error["pq"] <= error["rappor"] * (1 + 1e-9)).all()
        assert (error["subset-selection"] <= error["pq"] * (1 + 1e-9)).all()
    assert (
        error["random-response"][0] < error["pq"][0]
        and error["random-response"][-1] > error["pq"][-1]
    )


def test_figure_prints_lines_of_numbers() -> None:
    first, second = FIGURE.lines(as_json=True)
    assert json.loads(first) == {
        "figure": "toy",
        "panel": "a",
        "line": "b",
        "style": "solid",
        "x": [1, 2],
        "y": [0.5, 0.75],
    }
    assert json.loads(second)["style"] == "dotted"
    assert next(FIGURE.lines(as_json=False)) == "a; b (solid)  1: 0.5  2: 0.75"


def test_drawing_without_matplotlib_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="pip install matplotlib"):
        plots.load_pyplot()


def test_shorten_svg_removes_ids_and_digits() -> None:
    svg = (
        '<g id="line2d_3">\n    <path id="m1f" d="M 1.234567 2"/>\n   <text '
        'transform="rotate(-0 1.5 2.5)">a 2.5</text>\n</g>'
    )
    assert plots._shorten_svg(svg) == '<g>\n<path id="m1f" d="M 1.23 2"/>\n<text>a 2.5</text>\n</g>'


def test_drawing_is_deterministic(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (the group dev) is not installed")
    first, second = (
        plots.draw(FIGURE, tmp_path / name).read_text() for name in ("a.svg", "new/b.svg")
    )
    assert first == second and ">guessing" not in first and ">b</text>" in first
