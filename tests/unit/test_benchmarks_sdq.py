"""SDQ's benchmarks on rows small enough for a unit test: what is run, under which name, and against what."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure
from benchmarks.paper import (
    plots,
    rdg,
    sdq,
    sdq_budgets,
    sdq_collusion,
    sdq_data,
    sdq_declared,
    sdq_exact,
    sdq_figures,
    sdq_held_out,
    sdq_synthetic,
    sdq_trials,
)
from benchmarks.paper.sdq_data import Rows
from benchmarks.paper.sdq_trials import Accuracy
from shoal.entropy import SeededEntropy


def rows_of(n: int, seed: int = 0, drawn: float = 0.1) -> Rows:
    """Rows of class c1 where the first two attributes are both true, but for some rows, whose class is drawn."""
    schema, rng = rdg.SCHEMA, np.random.default_rng(seed)
    cells = rng.integers(0, 2, (n, rdg.N_ATTRIBUTES))
    labels = np.where(rng.random(n) < drawn, rng.integers(0, 2, n), cells[:, 0] & cells[:, 1])
    return Rows(schema, dict(zip(schema.names, cells.T, strict=True)), labels)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Few rows in the place of every table."""
    rows = rows_of(600)
    for module in (sdq_budgets, sdq_held_out, sdq_declared, sdq_exact, sdq_figures):
        monkeypatch.setattr(module, "example", lambda table: rows)
        if module is not sdq_figures:
            monkeypatch.setattr(module, "is_there", lambda table: True)
    monkeypatch.setattr(sdq_synthetic, "made_up", lambda number, n: rows_of(n // 40, number))
    monkeypatch.setattr(sdq_synthetic, "N_SETS", 2)
    monkeypatch.setattr(sdq_trials, "N_FOLDS", 3)
    return rows


def named(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {"sdq"}
    return {one.measure: one for one in found}


def by_hand(rows: list[list[int]], entropy: SeededEntropy) -> list[int]:
    """The decision list as Weka runs it: row after row."""
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


def test_made_up_classes_are_those_of_a_list_that_grows_row_by_row() -> None:
    drawn = np.random.default_rng(3).integers(0, 2, (400, rdg.N_ATTRIBUTES))
    for seed in range(5):
        assert rdg.classes(drawn, SeededEntropy(seed)).tolist() == by_hand(drawn.tolist(), SeededEntropy(seed))


def test_one_made_up_value_in_ten_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, labels = rdg.made(20_000, SeededEntropy(1))
    assert set(np.unique(labels)) == {0, 1} and abs(cells.mean() - 0.5) < 0.01
    monkeypatch.setattr(rdg, "ONE_IN", 1 << 32)
    clean, same = rdg.made(20_000, SeededEntropy(1))
    assert np.array_equal(labels, same) and abs(float((cells != clean).mean()) - 0.05) < 0.002


def test_more_made_up_rows_go_on_where_fewer_end() -> None:
    few, many = sdq_data.made_up(3, 200), sdq_data.made_up(3, 500)
    assert np.array_equal(few.cells, many.cells[:200]) and np.array_equal(few.labels, many.labels[:200])
    assert not np.array_equal(few.labels, sdq_data.made_up(4, 200).labels)


def test_a_quarter_is_held_apart() -> None:
    rows = rows_of(400)
    rows.columns["a9"][:] = np.arange(400)
    asked, unseen = sdq_data.held_apart(rows)
    assert (len(asked), len(unseen)) == (300, 100)
    assert sorted([*asked.columns["a9"], *unseen.columns["a9"]]) == list(range(400))


def test_every_row_is_predicted_once_by_the_other_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(200)
    rows.columns["a9"][:] = np.arange(200)
    seen: list[tuple[set[int], set[int], int, int, tuple[int, ...]]] = []

    def right(learner: object, asked: Rows, unseen: Rows, epsilon: float, n: int, size: int, path: tuple[int, ...]) -> int:
        seen.append((set(asked.columns["a9"].tolist()), set(unseen.columns["a9"].tolist()), n, size, path))
        return path[0]

    monkeypatch.setattr(sdq_trials, "_right", right)
    found = sdq_trials.cross_validated(sdq_trials.PLUS, rows, 1.0, 2, 7, declared=0.5)
    assert found.runs == [0.0, 100 * 10 / 200] and found.deviation > 0
    for seed in range(2):
        mine = [one for one in seen if one[4][0] == seed]
        assert len(mine) == 10 and set.union(*(unseen for _, unseen, *_ in mine)) == set(range(200))
        assert all(asked | unseen == set(range(200)) and len(unseen) == 20 for asked, unseen, *_ in mine)
    assert {(n, size) for _, _, n, size, _ in seen} == {(7, 90)} and len({path for *_, path in seen}) == 20
    assert seen[0][1] != seen[10][1], "another run has other folds"


def test_a_learner_is_what_its_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, unseen = rows_of(300), rows_of(100, 1)
    taken = []
    honest = sdq_trials.script_of
    monkeypatch.setattr(sdq_trials, "script_of", lambda params: taken.append(params) or honest(params))
    for learner in (sdq_trials.SULQ, sdq_trials.PAPER_C3, sdq_trials.SUMS_C5, sdq_trials.BAYES, sdq_trials.ID3, sdq_trials.PLUS):
        sdq_trials.tried(learner, asked, unseen, 2.0, 1)
    sulq, paper, sums, bayes, id3, plus = taken
    assert (sulq.variant, sulq.trust, sulq.n_honest, sulq.depth) == ("paper", "local", 1, 4)
    assert (paper.variant, paper.trust, paper.n_honest, paper.epsilon) == ("paper", "secure-sum", 7, 2.0)
    assert (sums.variant, sums.choice, sums.n_honest) == ("plus", "sums", 5) and bayes.learner == "naive-bayes"
    assert id3.epsilon == math.inf and (plus.choice, plus.n_honest, plus.size) == ("mpc", 10, 300)


def test_without_noise_almost_all_that_can_be_learned_is() -> None:
    asked, unseen = rows_of(2_000), rows_of(1_000, 1)
    reached = sdq_trials.tried(sdq_trials.ID3, asked, unseen, math.inf, 1)
    assert 93 < reached.value < 97 and sdq_trials.majority(unseen) < 75 and reached.deviation == 0 and reached.to_text().startswith("9")
    assert Accuracy([90.0, 92.0]).to_text() == "91.0 (1.4)"


def test_rows_of_a_table_have_names_targets_and_distances(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({row.name for row in sdq_budgets.ROWS}) == len(sdq_budgets.ROWS)
    monkeypatch.setattr(sdq_budgets, "EPSILONS", (0.5, 1.0))
    found = named(sdq.measures(seeds=2, only="nursery"))
    assert found["nursery_majority"].value == sdq_trials.majority(small) < found["nursery_id3"].value
    assert {f"nursery_{key}_eps1" for key in ("sulq", "paper", "paper_c3", "plus_c0", "plus_c3", "sums_c5", "bayes_c0")} <= set(found)
    plus, paper = found["nursery_plus_c3_eps0.5"], found["nursery_paper_eps0.5"]
    assert plus.target == 90 and paper.target is None and found["nursery_plus_c3_eps0.5_sd"].value > 0
    distance = found["nursery_paper_eps0.5_distance"]
    assert distance.value == pytest.approx(abs(paper.value - 75)) and (distance.target, distance.better) == (4, "lower")
    above = found["nursery_paper_eps0.5_above_sulq"]
    assert above.value == pytest.approx(paper.value - found["nursery_sulq_eps0.5"].value) and (above.target, above.better) == (0, "higher")
    assert set(named(sdq.measures(seeds=1, only="adult_plus_c0_eps1"))) == {"adult_plus_c0_eps1"}
    assert {name.split("_eps")[0] for name in named(sdq.measures(seeds=1, only="adult_paper"))} == {"adult_paper"}


def test_tables_are_printed_and_a_missed_target_stands_out(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdq_budgets, "EPSILONS", (0.5, 1.0))
    lines = list(sdq.markdown(seeds=1, only="nursery_plus"))
    assert lines[0] == "| Nursery | 0.5 | 1 |" and lines[2] == f"| most common class | {sdq_trials.majority(small):.1f} |  |"
    assert lines[3].startswith("| `plus`, nobody colludes | ") and lines[5:] == [""]
    row = next(row for row in sdq_budgets.ROWS if row.name == "nursery_plus_c0")
    assert sdq_budgets._cell(row, 1.0, Accuracy([91.9])) == "**91.9**" and sdq_budgets._cell(row, 1.0, Accuracy([92.0])) == "92.0"
    paper = next(row for row in sdq_budgets.ROWS if row.name == "nursery_paper")
    assert sdq_budgets._cell(paper, 1.0, Accuracy([84.1])) == "**84.1**" and sdq_budgets._cell(paper, 1.0, Accuracy([76.1])) == "76.1"


def test_rows_that_nothing_was_chosen_on_are_only_predicted(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdq_held_out, "EPSILONS", (1.0,))
    asked, unseen = sdq_data.held_apart(small)
    found = named(sdq.measures(seeds=2, only="held_out_nursery"))
    assert len(found) == 8
    known = sdq_trials.tried(sdq_trials.BAYES, asked, unseen, 1.0, 2)
    assert found["held_out_nursery_bayes_c0_eps1"].value == known.value
    assert found["held_out_nursery_bayes_c0_eps1_sd"].value == known.deviation
    assert list(sdq.markdown(seeds=2, only="held_out_adult_bayes"))[2].startswith("| Adult, naive Bayes, nobody colludes | ")
    assert len(named(sdq.measures(seeds=1, only="held_out_adult_plus_c3"))) == 1


def test_a_wrong_size_is_declared(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdq_declared, "EPSILONS", (1.0,))
    taken = []
    honest = sdq_trials.script_of
    monkeypatch.setattr(sdq_trials, "script_of", lambda params: taken.append(params.size) or honest(params))
    assert set(named(sdq.measures(seeds=1, only="declared_0.5"))) == {"declared_0.5_nursery_plus_c0_eps1"}
    assert set(taken) == {200}
    assert [line.split(" |")[0] for line in sdq.markdown(seeds=1, only="declared")][2:5] == ["| 0.5", "| 0.75", "| 1"]


def test_made_up_rows_are_dealt_to_ever_more_databases(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdq_synthetic, "EPSILON", 8.0)
    found = named(sdq.measures(seeds=1, only="synthetic"))
    few, many = found["synthetic_sulq_n10"].value, found["synthetic_sulq_n500"].value
    assert few > many + 3 and found["synthetic_sulq_fall"].value == pytest.approx(few - many)
    assert (found["synthetic_sulq_fall"].better, found["synthetic_sulq_fall"].target) == ("higher", 1.5)
    each = [sdq_synthetic.accuracies(sdq_trials.SULQ, 8.0, 1, n_databases=n) for n in (10, 500)]
    assert found["synthetic_sulq_fall_se"].value == pytest.approx(np.std(np.subtract(*each), ddof=1) / math.sqrt(2))
    change = found["synthetic_plus_c0_change"]
    assert change.value == pytest.approx(abs(found["synthetic_plus_c0_n10"].value - found["synthetic_plus_c0_n500"].value))
    assert (change.better, change.target) == ("lower", 1.5)
    assert found["synthetic_majority"].value == np.mean([sdq_trials.majority(rows_of(250, i)) for i in range(2)])
    lines = list(sdq.markdown(seeds=1, only="synthetic"))
    assert lines[0] == "| 10,000 made-up rows, B = .1 | N = 10 | N = 50 | N = 100 | N = 500 | lost |" and lines[2].endswith(" | | | | |")
    assert [line.count("|") for line in lines[:-1]] == [7] * 8 and lines[-1] == ""


def test_the_summed_tree_is_that_of_all_rows_in_one_place(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = rows_of(600, drawn=0.7)
    monkeypatch.setattr(sdq_exact, "example", lambda table: mixed)
    found = named(sdq.measures(only="exact"))
    assert (found["exact_predictions"].value, found["exact_differing"].value, found["exact_differing"].target) == (600, 0, 0)
    central = sdq_exact.central_tree(small)
    assert isinstance(central, tuple) and central[0] in (0, 1)
    assert 0.9 < (sdq_exact.decided(central, small.cells) == small.labels).mean() < 1
    monkeypatch.setattr(sdq_exact.Bare, "noisy", lambda self, asked, *_: np.arange(asked.size))
    lines = list(sdq.markdown(only="exact"))
    assert lines[2].startswith("| 600 | ") and lines[2] != "| 600 | 0 |" and lines[3:] == [""]


def test_a_part_is_given_the_options_that_it_has(small: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdq_collusion, "measures", lambda only="": iter([Measure("sdq", f"{only}_a", 1.0, "x", "lower")]))
    assert set(named(sdq.measures(seeds=9, only="collusion_selected"))) == {"collusion_selected_a"}
    monkeypatch.setattr(sdq_budgets, "EPSILONS", (1.0,))
    monkeypatch.setattr(sdq_budgets, "ROWS", tuple(row for row in sdq_budgets.ROWS if row.learner is sdq_trials.BAYES))
    titles = [line.split(" |")[0] for line in sdq_budgets.markdown(seeds=1)]
    assert titles[:6] == ["| Nursery", "|---|---:|", "| most common class", "| naive Bayes, nobody colludes", "", "| Adult"]
    assert titles[6:] == titles[1:4]


def test_all_that_is_listed_is_there() -> None:
    for module, _ in [*command.BENCHMARKS.values(), *command.FIGURES.values()]:
        assert find_spec(module), module


def test_a_table_that_is_not_there_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sdq_data, "DATA", tmp_path)
    assert not list(sdq_budgets.measures()) and not list(sdq_held_out.measures()) and not list(sdq_exact.measures())
    assert not list(sdq_declared.measures()) and "adult.csv.gz is not in" in capsys.readouterr().err


def test_figure_three_is_drawn(small: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"EPSILONS": (0.5, 1.0), "ROWS": (500, 1000), "DATABASES": (10, 20), "N_SETS": 2}.items():
        monkeypatch.setattr(sdq_figures, name, value)
    figures = {letter: sdq_figures.figure(f"sdq-3{letter}", 1) for letter in "abcd"}
    for letter, figure in figures.items():
        (panel,) = figure.panels
        assert [line.style for line in panel.lines] == ["solid"] * 3 + ["dashed", "dotted"] and panel.title.startswith(f"Figure 3{letter}")
        assert len({line.colour for line in panel.lines}) == 5 and (panel.x_label == sdq_figures.EPSILON_AXIS) == (letter in "bd")
    assert list(figures["a"].panels[0].lines[3].x) == [500, 1000] and list(figures["c"].panels[0].lines[3].x) == [0]
    known = sdq_trials.cross_validated(sdq_trials.SULQ, small, 1.0, 2).value
    assert figures["d"].panels[0].lines[2].y[1] == known
    few, _ = figures["a"].panels[0].lines[3].y
    assert few == np.mean([sdq_trials.cross_validated(sdq_trials.ID3, rows_of(125, i), 0.1, 1).value for i in range(2)])
    by_hand = [sdq_trials.cross_validated(sdq_trials.PLUS, rows_of(250, i), 0.1, 1, 20).value for i in range(2)]
    assert figures["c"].panels[0].lines[0].y[1] == pytest.approx(np.mean(by_hand))
    pytest.importorskip("matplotlib", reason="matplotlib (the group dev) is not installed")
    assert "direct secure sum" in plots.draw(figures["a"], tmp_path / "three.svg").read_text()
