"""The benchmarks' frame: it lists them, measures print as the objects that readers rely on, and figures are numbers before pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure, rate
from benchmarks.paper import anonml, anonml_data, anonml_errors, plots
from benchmarks.paper.figure import PALETTE, Figure, Line, Panel
from benchmarks.speed.anonml import SCHEMA, make_people
from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.anonml.params import Paper
from shoal.sim.runs import Split
from shoal.study.load import load

ROOT = Path(__file__).parent.parent.parent
FIGURE = Figure(
    "toy", [Panel("a", "x", "y", [Line("b", [1, 2], [0.5, 0.75]), Line("c", [0], [0.5], "dotted", PALETTE["grey"])])], columns=1
)


def test_lists_benchmarks_and_figures() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "list"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    named = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"samplers", "anonml", "anonml-speed", "anonml-2", "anonml-7", "ddml", "ddml-speed", "ddml-2", "ddml-5"} <= named


def test_a_measure_is_one_json_object() -> None:
    measure = Measure("samplers", "laplace_vs_opendp", 440.0, "x", "higher", 100, "opendp", 440.0)
    assert list(json.loads(measure.to_json())) == ["bench", "measure", "value", "unit", "better", "target", "peer", "ratio"]
    assert "440 x opendp" in measure.to_text()
    assert measure.to_text().endswith("met")


def test_a_missed_target_is_said() -> None:
    assert Measure("install", "core_mb", 130, "MB", "lower", target=100).to_text().endswith("NOT MET")
    assert json.loads(Measure("install", "core_mb", 130, "MB", "lower").to_json())["target"] is None


def test_rate_counts_work_by_processor_time() -> None:
    assert rate(lambda: sum(range(20_000)), 20_000, seconds=0.01) > 0


def test_an_option_that_a_benchmark_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "run", "samplers", "--seeds", "3"])
    with pytest.raises(SystemExit):
        command.main()
    assert "samplers takes no --seeds" in capsys.readouterr().err


def test_a_benchmark_becomes_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.speed.install.measures", lambda: iter([Measure("install", "core_mb", 61.5, "MB", "lower", 100)]))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "run", "install", "--markdown"])
    command.main()
    assert capsys.readouterr().out.splitlines()[2] == "| core mb | 61.5 | MB | at most 100 |"


def test_every_row_has_a_study_and_a_name_of_its_own() -> None:
    assert len({row.key for row in anonml.ROWS}) == len(anonml.ROWS)
    examples = {path.stem for path in (ROOT / "examples").glob("*.toml") if load(path).protocol == "anonml"}
    assert {row.study for row in anonml.ROWS} == set(anonml_data.FILES) == examples
    assert all(row.goals == {e: pytest.approx(known - 0.01) for e, known in row.known.items()} for row in anonml.ROWS if row.known)


def test_rows_are_chosen_scored_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = people()
    monkeypatch.setattr(anonml, "example", lambda study: given)
    monkeypatch.setattr(anonml, "EPSILONS", (2.0, 64.0))
    found = {one.measure: one for one in anonml.measures(seeds=2, only="5_3_2_plain")}
    start = "adult_paper_5_3_2_plain_auc_eps"
    assert found[f"{start}2"].target == pytest.approx(0.806) and found[f"{start}2_distance"].target == 0.01
    assert found[f"{start}64"].value > found[f"{start}2"].value > 0.5
    assert found[f"{start}2_se"].value > 0
    assert found["adult_paper_5_3_2_plain_auc_trivial"].value == 0.5
    assert found["adult_paper_5_3_2_plain_auc_no_privacy"].value > found[f"{start}64"].value - 0.02
    head, _, row = anonml.markdown(seeds=1, only="5_3_2_plain")
    assert head == "| | 2 | 64 | no privacy |" and row.startswith("| Adult, `paper` 5/3/2, plain sum | ")


def test_a_score_below_its_target_stands_out() -> None:
    row = anonml.Row("a", "A", "adult", {1.0: 0.8})
    assert anonml._cell(row, 1.0, anonml.Mean(0.79, 0.004)) == "**.790 (.004)**"
    assert anonml._cell(row, 1.0, anonml.Mean(0.81, None)) == ".810"


def test_a_table_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(anonml_data, "DATA", tmp_path)
    assert not anonml_data.is_there("nursery")
    with pytest.raises(SystemExit, match=r"nursery\.csv\.gz is not in .*make data"):
        anonml_data.example.__wrapped__("nursery")


def people(n: int = 3000) -> anonml_data.Example:
    """People whose label follows from six features."""
    rng = np.random.default_rng(1)
    features = [Numeric(f"n{i}", 0, 1) for i in range(5)] + [Categorical("c", ["x", "y", "z"], groups={"a": ["x", "y"], "b": ["z"]})]
    columns = {f"n{i}": rng.random(n) for i in range(5)} | {"c": rng.integers(-1, 3, n)}
    columns["n0"][:10] = np.nan
    labels = (np.nan_to_num(columns["n0"]) + columns["n1"] + (columns["c"] == 2) + rng.normal(size=n) / 4 > 1.4).astype(np.int64)
    schema = Schema(features, Categorical("label", ["no", "yes"]))
    half = {name: column[n // 2 :] for name, column in columns.items()}
    split = Split({name: column[: n // 2] for name, column in columns.items()}, labels[: n // 2], half, labels[n // 2 :])
    return anonml_data.Example(Paper(schema, 1.0, n // 2), split)


def test_bins_are_all_that_is_left_of_a_row() -> None:
    given = people()
    binned = anonml_data.in_bins(given)
    assert [len(feature.values) for feature in binned.schema.features] == [3, 3, 3, 3, 3, 3]
    assert np.bincount(binned.split.asked["n1"]).tolist() == [750, 750]
    assert binned.split.asked["n0"][:10].tolist() == [2] * 10
    assert set(binned.split.unseen["c"][given.split.unseen["c"] == 2]) == {1}
    assert binned.params.unbinned == ()


def test_a_million_people_can_be_made_up() -> None:
    columns, labels = make_people(1000)
    assert SCHEMA.names == tuple(columns) and len(SCHEMA.names) == 12
    assert all(np.unique(column).size > 1 and not np.array_equal(column, labels) for column in columns.values())


def test_the_best_chances_begin_at_rappor_and_end_at_a_half() -> None:
    p, q, rappor_p, rappor_q = anonml_errors.figure("anonml-2", 1).panels[0].lines
    assert (p.y[0], q.y[0]) == pytest.approx((rappor_p.y[0], rappor_q.y[0]))
    assert p.y[-1] == pytest.approx(0.5, abs=0.02) and all(np.diff(p.y) < 0) and all(np.diff(q.y) < 0)


def test_errors_order_the_mechanisms_as_the_paper_does() -> None:
    by_epsilon, by_cells = anonml_errors.figure("anonml-3", 1).panels
    for panel in (by_epsilon, by_cells):
        error = {line.name: np.array(line.y) for line in panel.lines}
        assert (error["pq"] <= error["rappor"] * (1 + 1e-9)).all()
        assert (error["subset-selection"] <= error["pq"] * (1 + 1e-9)).all()
    assert error["random-response"][0] < error["pq"][0] and error["random-response"][-1] > error["pq"][-1]


def test_a_figure_is_lines_of_numbers() -> None:
    first, second = FIGURE.lines(as_json=True)
    assert json.loads(first) == {"figure": "toy", "panel": "a", "line": "b", "style": "solid", "x": [1, 2], "y": [0.5, 0.75]}
    assert json.loads(second)["style"] == "dotted"
    assert next(FIGURE.lines(as_json=False)) == "a; b (solid)  1: 0.5  2: 0.75"


def test_a_figure_without_a_drawing_library_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="pip install matplotlib"):
        plots.pyplot()


def test_a_drawing_is_made_small() -> None:
    svg = '<g id="line2d_3">\n    <path id="m1f" d="M 1.234567 2"/>\n   <text transform="rotate(-0 1.5 2.5)">a 2.5</text>\n</g>'
    assert plots._slim(svg) == '<g>\n<path id="m1f" d="M 1.23 2"/>\n<text>a 2.5</text>\n</g>'


def test_a_drawing_is_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (the group dev) is not installed")
    first, second = (plots.draw(FIGURE, tmp_path / name).read_text() for name in ("a.svg", "new/b.svg"))
    assert first == second and ">guessing" not in first and ">b</text>" in first
