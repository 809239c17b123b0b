"""SDQ's benchmarks on few rows: names, targets and printed tables of measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure
from benchmarks.paper import plots, sdq
from benchmarks.paper.sdq import budgets as sdq_budgets
from benchmarks.paper.sdq import collusion as sdq_collusion
from benchmarks.paper.sdq import data as sdq_data
from benchmarks.paper.sdq import declared_size as sdq_declared
from benchmarks.paper.sdq import exactness as sdq_exact
from benchmarks.paper.sdq import figures as sdq_figures
from benchmarks.paper.sdq import held_out as sdq_held_out
from benchmarks.paper.sdq import random_rules as rdg
from benchmarks.paper.sdq import synthetic as sdq_synthetic
from benchmarks.paper.sdq import trials as sdq_trials
from benchmarks.paper.sdq.data import Rows
from benchmarks.paper.sdq.trials import Accuracy
from shoal.entropy import SeededEntropy


def make_rows(n: int, seed: int = 0, drawn: float = 0.1) -> Rows:
    """Return rows of class c1 if two attributes are true; some rows have a random class."""
    schema, rng = rdg.SCHEMA, np.random.default_rng(seed)
    cells = rng.integers(0, 2, (n, rdg.N_ATTRIBUTES))
    labels = np.where(rng.random(n) < drawn, rng.integers(0, 2, n), cells[:, 0] & cells[:, 1])
    return Rows(schema, dict(zip(schema.names, cells.T, strict=True)), labels)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Replace each table by few rows."""
    rows = make_rows(600)
    for module in (sdq_budgets, sdq_held_out, sdq_declared, sdq_exact, sdq_figures):
        monkeypatch.setattr(module, "example", lambda table: rows)
        if module is not sdq_figures:
            monkeypatch.setattr(module, "is_there", lambda table: True)
    monkeypatch.setattr(
        sdq_synthetic, "make_synthetic", lambda number, n: make_rows(n // 40, number)
    )
    monkeypatch.setattr(sdq_synthetic, "N_SETS", 2)
    monkeypatch.setattr(sdq_trials, "N_FOLDS", 3)
    return rows


def index_measures(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {
        "sdq"
    }
    return {one.measure: one for one in found}


def assign_by_hand(rows: list[list[int]], entropy: SeededEntropy) -> list[int]:
    """Return classes of the decision list as Weka runs it, row by row."""
    rules: list[tuple[list[int], list[int]]] = []
    found = []
    for row in rows:
        met = [i for i, (tested, values) in enumerate(rules) if [row[j] for j in tested] == values]
        if not met:
            order = np.argsort(entropy.words(rdg.N_ATTRIBUTES, np.uint64)).tolist()
            tested = order[: 1 + entropy.below(9)]
            met = [len(rules)]
            rules.append((tested, [row[j] for j in tested]))
        found.append(met[0] % 2)
    return found


def test_assign_classes_equals_a_list_that_grows_by_rows() -> None:
    drawn = np.random.default_rng(3).integers(0, 2, (400, rdg.N_ATTRIBUTES))
    for seed in range(5):
        assert rdg.assign_classes(drawn, SeededEntropy(seed)).tolist() == assign_by_hand(
            drawn.tolist(), SeededEntropy(seed)
        )


def test_make_rows_draws_one_value_in_ten_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, labels = rdg.make_rows(20_000, SeededEntropy(1))
    assert set(np.unique(labels)) == {0, 1} and abs(cells.mean() - 0.5) < 0.01
    monkeypatch.setattr(rdg, "ONE_IN", 1 << 32)
    clean, same = rdg.make_rows(20_000, SeededEntropy(1))
    assert np.array_equal(labels, same) and abs(float((cells != clean).mean()) - 0.05) < 0.002


def test_make_synthetic_extends_shorter_sets() -> None:
    few, many = sdq_data.make_synthetic(3, 200), sdq_data.make_synthetic(3, 500)
    assert np.array_equal(few.cells, many.cells[:200]) and np.array_equal(
        few.labels, many.labels[:200]
    )
    assert not np.array_equal(few.labels, sdq_data.make_synthetic(4, 200).labels)


def test_split_held_out_separates_a_quarter() -> None:
    rows = make_rows(400)
    rows.columns["a9"][:] = np.arange(400)
    asked, unseen = sdq_data.split_held_out(rows)
    assert (len(asked), len(unseen)) == (300, 100)
    assert sorted([*asked.columns["a9"], *unseen.columns["a9"]]) == list(range(400))


def test_cross_validate_predicts_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(200)
    rows.columns["a9"][:] = np.arange(200)
    seen: list[tuple[set[int], set[int], int, int, tuple[int, ...]]] = []

    def right(
        learner: object,
        asked: Rows,
        unseen: Rows,
        epsilon: float,
        n: int,
        size: int,
        path: tuple[int, ...],
    ) -> int:
        seen.append(
            (set(asked.columns["a9"].tolist()), set(unseen.columns["a9"].tolist()), n, size, path)
        )
        return path[0]

    monkeypatch.setattr(sdq_trials, "_count_right", right)
    found = sdq_trials.cross_validate(sdq_trials.PLUS, rows, 1.0, 2, 7, declared=0.5)
    assert found.runs == [0.0, 100 * 10 / 200] and found.deviation > 0
    for seed in range(2):
        mine = [one for one in seen if one[4][0] == seed]
        assert len(mine) == 10 and set.union(*(unseen for _, unseen, *_ in mine)) == set(range(200))
        assert all(
            asked | unseen == set(range(200)) and len(unseen) == 20 for asked, unseen, *_ in mine
        )
    assert {(n, size) for _, _, n, size, _ in seen} == {(7, 90)} and len(
        {path for *_, path in seen}
    ) == 20
    assert seen[0][1] != seen[10][1], "another run has other folds"


def test_learners_have_the_parameters_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, unseen = make_rows(300), make_rows(100, 1)
    taken = []
    honest = sdq_trials.make_sdq_script
    monkeypatch.setattr(
        sdq_trials, "make_sdq_script", lambda params: taken.append(params) or honest(params)
    )
    for learner in (
        sdq_trials.SULQ,
        sdq_trials.PAPER_C3,
        sdq_trials.SUMS_C5,
        sdq_trials.BAYES,
        sdq_trials.ID3,
        sdq_trials.PLUS,
    ):
        sdq_trials.score(learner, asked, unseen, 2.0, 1)
    sulq, paper, sums, bayes, id3, plus = taken
    assert (sulq.variant, sulq.trust, sulq.n_honest, sulq.depth) == ("paper", "local", 1, 4)
    assert (paper.variant, paper.trust, paper.n_honest, paper.epsilon) == (
        "paper",
        "secure-sum",
        7,
        2.0,
    )
    assert (sums.variant, sums.choice, sums.n_honest) == (
        "plus",
        "sums",
        5,
    ) and bayes.learner == "naive-bayes"
    assert id3.epsilon == math.inf and (plus.choice, plus.n_honest, plus.size) == ("mpc", 10, 300)


def test_id3_without_noise_learns_the_rule() -> None:
    asked, unseen = make_rows(2_000), make_rows(1_000, 1)
    reached = sdq_trials.score(sdq_trials.ID3, asked, unseen, math.inf, 1)
    assert (
        93 < reached.value < 97
        and sdq_trials.majority(unseen) < 75
        and reached.deviation == 0
        and reached.to_text().startswith("9")
    )
    assert Accuracy([90.0, 92.0]).to_text() == "91.0 (1.4)"


def test_budget_measures_have_targets_and_distances(
    small: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({row.name for row in sdq_budgets.ROWS}) == len(sdq_budgets.ROWS)
    monkeypatch.setattr(sdq_budgets, "EPSILONS", (0.5, 1.0))
    found = index_measures(sdq.measures(seeds=2, only="nursery"))
    assert (
        found["nursery_majority"].value == sdq_trials.majority(small) < found["nursery_id3"].value
    )
    assert {
        f"nursery_{key}_eps1"
        for key in ("sulq", "paper", "paper_c3", "plus_c0", "plus_c3", "sums_c5", "bayes_c0")
    } <= set(found)
    plus, paper = found["nursery_plus_c3_eps0.5"], found["nursery_paper_eps0.5"]
    assert (
        plus.target == 90 and paper.target is None and found["nursery_plus_c3_eps0.5_sd"].value > 0
    )
    distance = found["nursery_paper_eps0.5_distance"]
    assert distance.value == pytest.approx(abs(paper.value - 75)) and (
        distance.target,
        distance.better,
    ) == (4, "lower")
    above = found["nursery_paper_eps0.5_above_sulq"]
    assert above.value == pytest.approx(paper.value - found["nursery_sulq_eps0.5"].value) and (
        above.target,
        above.better,
    ) == (0, "higher")
    assert set(index_measures(sdq.measures(seeds=1, only="adult_plus_c0_eps1"))) == {
        "adult_plus_c0_eps1"
    }
    assert {
        name.split("_eps")[0] for name in index_measures(sdq.measures(seeds=1, only="adult_paper"))
    } == {"adult_paper"}


def test_budget_tables_print_missed_targets_in_bold(
    small: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdq_budgets, "EPSILONS", (0.5, 1.0))
    lines = list(sdq.markdown(seeds=1, only="nursery_plus"))
    assert (
        lines[0] == "| Nursery | 0.5 | 1 |"
        and lines[2] == f"| most common class | {sdq_trials.majority(small):.1f} |  |"
    )
    assert lines[3].startswith("| `plus`, no collusion | ") and lines[5:] == [""]
    row = next(row for row in sdq_budgets.ROWS if row.name == "nursery_plus_c0")
    assert (
        sdq_budgets._cell(row, 1.0, Accuracy([91.9])) == "**91.9**"
        and sdq_budgets._cell(row, 1.0, Accuracy([92.0])) == "92.0"
    )
    paper = next(row for row in sdq_budgets.ROWS if row.name == "nursery_paper")
    assert (
        sdq_budgets._cell(paper, 1.0, Accuracy([84.1])) == "**84.1**"
        and sdq_budgets._cell(paper, 1.0, Accuracy([76.1])) == "76.1"
    )


def test_held_out_measures_equal_scores_of_held_out_rows(
    small: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdq_held_out, "EPSILONS", (1.0,))
    asked, unseen = sdq_data.split_held_out(small)
    found = index_measures(sdq.measures(seeds=2, only="held_out_nursery"))
    assert len(found) == 8
    known = sdq_trials.score(sdq_trials.BAYES, asked, unseen, 1.0, 2)
    assert found["held_out_nursery_bayes_c0_eps1"].value == known.value
    assert found["held_out_nursery_bayes_c0_eps1_sd"].value == known.deviation
    assert list(sdq.markdown(seeds=2, only="held_out_adult_bayes"))[2].startswith(
        "| Adult, naive Bayes, no collusion | "
    )
    assert len(index_measures(sdq.measures(seeds=1, only="held_out_adult_plus_c3"))) == 1


def test_declared_size_measures_declare_another_size(
    small: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdq_declared, "EPSILONS", (1.0,))
    taken = []
    honest = sdq_trials.make_sdq_script
    monkeypatch.setattr(
        sdq_trials, "make_sdq_script", lambda params: taken.append(params.size) or honest(params)
    )
    assert set(index_measures(sdq.measures(seeds=1, only="declared_0.5"))) == {
        "declared_0.5_nursery_plus_c0_eps1"
    }
    assert set(taken) == {200}
    assert [line.split(" |")[0] for line in sdq.markdown(seeds=1, only="declared")][2:5] == [
        "| 0.5",
        "| 0.75",
        "| 1",
    ]


def test_synthetic_measures_vary_the_number_of_databases(
    small: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdq_synthetic, "EPSILON", 8.0)
    found = index_measures(sdq.measures(seeds=1, only="synthetic"))
    few, many = found["synthetic_sulq_n10"].value, found["synthetic_sulq_n500"].value
    assert few > many + 3 and found["synthetic_sulq_fall"].value == pytest.approx(few - many)
    assert (found["synthetic_sulq_fall"].better, found["synthetic_sulq_fall"].target) == (
        "higher",
        1.5,
    )
    each = [sdq_synthetic.accuracies(sdq_trials.SULQ, 8.0, 1, n_databases=n) for n in (10, 500)]
    assert found["synthetic_sulq_fall_se"].value == pytest.approx(
        np.std(np.subtract(*each), ddof=1) / math.sqrt(2)
    )
    change = found["synthetic_plus_c0_change"]
    assert change.value == pytest.approx(
        abs(found["synthetic_plus_c0_n10"].value - found["synthetic_plus_c0_n500"].value)
    )
    assert (change.better, change.target) == ("lower", 1.5)
    assert found["synthetic_majority"].value == np.mean(
        [sdq_trials.majority(make_rows(250, i)) for i in range(2)]
    )
    lines = list(sdq.markdown(seeds=1, only="synthetic"))
    assert lines[
        0
    ] == "| 10,000 synthetic rows, B = .1 | N = 10 | N = 50 | N = 100 | N = 500 | lost |" and lines[
        2
    ].endswith(" | | | | |")
    assert [line.count("|") for line in lines[:-1]] == [7] * 8 and lines[-1] == ""


def test_exact_measures_compare_with_a_central_tree(
    small: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = make_rows(600, drawn=0.7)
    monkeypatch.setattr(sdq_exact, "example", lambda table: mixed)
    found = index_measures(sdq.measures(only="exact"))
    assert (
        found["exact_predictions"].value,
        found["exact_differing"].value,
        found["exact_differing"].target,
    ) == (600, 0, 0)
    central = sdq_exact.learn_central_tree(small)
    assert isinstance(central, tuple) and central[0] in (0, 1)
    assert 0.9 < (sdq_exact.predict(central, small.cells) == small.labels).mean() < 1
    monkeypatch.setattr(
        sdq_exact.NoiselessPeer, "draw_noisy_answer", lambda self, asked, *_: np.arange(asked.size)
    )
    lines = list(sdq.markdown(only="exact"))
    assert lines[2].startswith("| 600 | ") and lines[2] != "| 600 | 0 |" and lines[3:] == [""]


def test_each_part_receives_only_its_options(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sdq_collusion,
        "measures",
        lambda only="": iter([Measure("sdq", f"{only}_a", 1.0, "x", "lower")]),
    )
    assert set(index_measures(sdq.measures(seeds=9, only="collusion_selected"))) == {
        "collusion_selected_a"
    }
    monkeypatch.setattr(sdq_budgets, "EPSILONS", (1.0,))
    monkeypatch.setattr(
        sdq_budgets,
        "ROWS",
        tuple(row for row in sdq_budgets.ROWS if row.learner is sdq_trials.BAYES),
    )
    titles = [line.split(" |")[0] for line in sdq_budgets.markdown(seeds=1)]
    assert titles[:6] == [
        "| Nursery",
        "|---|---:|",
        "| most common class",
        "| naive Bayes, no collusion",
        "",
        "| Adult",
    ]
    assert titles[6:] == titles[1:4]


def test_every_listed_module_exists() -> None:
    for module, _ in [*command.BENCHMARKS.values(), *command.FIGURES.values()]:
        assert find_spec(module), module


def test_missing_tables_are_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sdq_data, "DATA", tmp_path)
    assert (
        not list(sdq_budgets.measures())
        and not list(sdq_held_out.measures())
        and not list(sdq_exact.measures())
    )
    assert not list(sdq_declared.measures()) and "adult.csv.gz is not in" in capsys.readouterr().err


def test_figure_3_has_its_lines_and_is_drawn(
    small: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "EPSILONS": (0.5, 1.0),
        "ROWS": (500, 1000),
        "DATABASES": (10, 20),
        "N_SETS": 2,
    }.items():
        monkeypatch.setattr(sdq_figures, name, value)
    figures = {letter: sdq_figures.figure(f"sdq-3{letter}", 1) for letter in "abcd"}
    for letter, figure in figures.items():
        (panel,) = figure.panels
        assert [line.style for line in panel.lines] == ["solid"] * 3 + [
            "dashed",
            "dotted",
        ] and panel.title.startswith(f"Figure 3{letter}")
        assert len({line.colour for line in panel.lines}) == 5 and (
            panel.x_label == sdq_figures.EPSILON_AXIS
        ) == (letter in "bd")
    assert list(figures["a"].panels[0].lines[3].x) == [500, 1000] and list(
        figures["c"].panels[0].lines[3].x
    ) == [0]
    known = sdq_trials.cross_validate(sdq_trials.SULQ, small, 1.0, 2).value
    assert figures["d"].panels[0].lines[2].y[1] == known
    few, _ = figures["a"].panels[0].lines[3].y
    assert few == np.mean(
        [
            sdq_trials.cross_validate(sdq_trials.ID3, make_rows(125, i), 0.1, 1).value
            for i in range(2)
        ]
    )
    by_hand = [
        sdq_trials.cross_validate(sdq_trials.PLUS, make_rows(250, i), 0.1, 1, 20).value
        for i in range(2)
    ]
    assert figures["c"].panels[0].lines[0].y[1] == pytest.approx(np.mean(by_hand))
    pytest.importorskip("matplotlib", reason="matplotlib (the group dev) is not installed")
    assert "direct secure sum" in plots.draw(figures["a"], tmp_path / "three.svg").read_text()
