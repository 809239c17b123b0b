"""The paper's table and figures of PFDS on rows small enough for a unit test: what is run, under which name, and against what."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure
from benchmarks.paper import pfds_data, pfds_diffgen, pfds_figures, pfds_rivals, pfds_table, plots
from benchmarks.paper.figure import Figure, Line, Panel
from benchmarks.paper.pfds_data import Rows, Split
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper_population import simulate_paper
from shoal.protocols.pfds.params import Params

FEATURES = [
    Numeric("age", 0, 80, missing=False),
    Numeric("hours", 0, 99, missing=False),
    Categorical("sex", ["Female", "Male"], missing=False),
    Categorical("race", pfds_data.task("adult").schema["race"].values, missing=False),
]
CLASSES = Schema(FEATURES, label=Categorical("ill", ["no", "yes"]))
NUMBERS = Schema(FEATURES, label=Numeric("score", -1, 3))


def people(n: int, seed: int, schema: Schema) -> Rows:
    """People whose label follows from sex and age, but for chance."""
    rng = np.random.default_rng(seed)
    columns = {
        "age": rng.integers(0, 81, n).astype(np.float64),
        "hours": rng.integers(35, 45, n).astype(np.float64),
        "sex": rng.integers(0, 2, n),
        "race": rng.integers(0, 5, n),
    }
    score = np.clip(columns["age"] / 80 + columns["sex"] + rng.normal(size=n) / 10, -1, 3)
    return Rows(schema, columns, score if schema is NUMBERS else (score > 1).astype(np.int64), columns["age"] / 80)


def split_of(number: int, schema: Schema = CLASSES) -> Split:
    """Seven holders; the last one has no rows."""
    return Split(people(480, number, schema), people(200, 100 + number, schema), np.arange(480) % 6, 7)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows in the place of every table."""

    def splits(name: str, n: int, seed: int = 0) -> Iterator[Split]:
        return (split_of(number, NUMBERS if pfds_data.task(name).is_number else CLASSES) for number in range(seed, seed + n))

    for module in (pfds_table, pfds_figures):
        monkeypatch.setattr(module, "splits", splits)
    monkeypatch.setattr(pfds_table, "is_there", lambda task: True)
    monkeypatch.setattr(pfds_figures, "PARTITIONS", 5)
    monkeypatch.setattr(pfds_figures, "CELLS", 8)
    monkeypatch.setattr(pfds_figures, "DEPTHS", (2, 3))
    monkeypatch.setattr(pfds_figures, "SHARERS", (1, 7))
    pfds_figures.fidelity.cache_clear()
    pfds_figures.sharing.cache_clear()


def named(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {"pfds"}
    return {one.measure: one for one in found}


def test_the_table_has_the_24_rows_of_the_paper_and_8_without_noise() -> None:
    rows = [pfds_table.Row(name, kind, epsilon) for name, kind in pfds_table.PRINTED for epsilon in pfds_table.EPSILONS]
    printed = [row for row in rows if row.printed]
    assert len(printed) == 24 and len(rows) == 32 and all(row.epsilon == math.inf for row in rows if row not in printed)
    # The paper claims that PFDS is best in every row, and never says less with more budget.
    assert all(min(row.printed, key=row.printed.__getitem__) == "pfds" for row in printed)
    assert pfds_table.Row("adult", "svm", 0.1).printed == {"np_agt": 0.283, "dp_pred": 0.269, "pfds_s": 0.268, "pfds": 0.239}
    for name, kind in pfds_table.PRINTED:
        by_budget = [pfds_table.Row(name, kind, epsilon).printed["pfds"] for epsilon in (1.0, 0.5, 0.1)]
        assert by_budget == sorted(by_budget)


def test_measures_name_rows_and_columns_and_stand_beside_the_papers_figures(small: None) -> None:
    found = named(pfds_table.measures(seeds=2, only="paper_bike"))
    assert len(found) == 4 * (len(pfds_table.COLUMNS) + 1)
    pfds = found["paper_bike_linear_eps1_pfds"]
    assert pfds.unit == "MSE" and pfds.peer == "the paper's 0.127" and pfds.ratio == pytest.approx(pfds.value / 0.127)
    assert found["paper_bike_linear_eps1_trivial"].peer is None and found["paper_bike_linear_epsinf_pfds"].peer is None
    assert found["paper_bike_linear_eps0.5_pfds_se"].value > 0
    assert 0 <= found["paper_bike_linear_eps0.1_gain"].value <= 1
    once = named(pfds_table.measures(seeds=1, only="paper_retinopathy_svm_eps0.5"))
    assert len(once) == len(pfds_table.COLUMNS) and {one.unit for one in once.values()} == {"error", "share"}


def test_the_table_says_none_where_there_is_no_noise(small: None) -> None:
    head, line, *rows = pfds_table.markdown(seeds=2, only="paper_news")
    assert {text.count("|") for text in (head, line, *rows)} == {len(pfds_table.METHODS) + len(pfds_table.COLUMNS) + 3}
    assert [row.split("|")[1:3] for row in rows] == [[" news, linear ", f" {epsilon} "] for epsilon in ("1", "0.5", "0.1", "none")]
    assert rows[0].split("|")[3:7] == [" .194 ", " .176 ", " .121 ", " .079 "] and rows[3].split("|")[3:7] == ["  "] * 4


def test_a_table_that_is_not_there_is_left_out(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pfds_table, "is_there", lambda task: task.name != "bike")
    monkeypatch.setattr(pfds_table, "EPSILONS", (0.5,))
    assert {row.task for row in pfds_table.rows(1, "paper_b")} == {"bank"}


def test_yardsticks_do_not_depend_on_the_budget_and_noise_does_harm() -> None:
    split = split_of(0)
    found = pfds_table.errors(split, {("logistic", 0.1), ("logistic", math.inf)}, 0)
    noisy, bare = found["logistic", 0.1], found["logistic", math.inf]
    known = pfds_rivals.own_and_pooled("logistic", split)
    for column, value in {"trivial": known.trivial, "np_pred": known.pooled, "np_agt": np.mean(known.own)}.items():
        assert noisy[column] == bare[column] == pytest.approx(value)
    # Without noise the trees of 80 rows each know the rule; noise of scale 80 on leaves of a dozen rows hides it.
    assert bare["pfds"] < known.trivial / 2 and noisy["pfds"] > bare["pfds"]
    assert pfds_table.errors(split, {("logistic", 0.1)}, 0)["logistic", 0.1]["pfds"] == noisy["pfds"]


def test_gain_counts_agents_whom_sharing_leaves_with_less_error(monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_of(0)
    own = pfds_rivals.own_and_pooled("logistic", split).own
    agents: list[int] = []

    def home_errors(self: pfds_table.Released, kind: str, chosen: list[int], method: str) -> list[float]:
        agents[:] = chosen
        # A little better than their own rows for the first two, and a little worse for the others.
        return [own[agent] + (-1e-9 if i < 2 else 1e-9) for i, agent in enumerate(chosen)]

    monkeypatch.setattr(pfds_table.Released, "home_errors", home_errors)
    found = pfds_table.errors(split, {("logistic", 1.0)}, 0)["logistic", 1.0]
    assert found["gain"] == 2 / pfds_table.AGENTS and len(set(agents)) == pfds_table.AGENTS and 6 not in agents


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("schema", [CLASSES, NUMBERS])
def test_both_labellings_are_those_of_the_product(schema: Schema, epsilon: float) -> None:
    split = split_of(0, schema)
    released = pfds_table.Released.of(split, epsilon, SeededEntropy(1))
    training = split.training
    params = Params(schema, epsilon, 480, n_holders=7, minimum=7, variant="paper")
    for method, labelling in (("pfds", "shared"), ("pfds_s", "own")):
        # The same draws as far as rows are concerned; numbers are drawn anew inside their buckets.
        shared = simulate_paper(replace(params, labelling=labelling), training.columns, training.labels, split.whose, SeededEntropy(1))
        labels = np.concatenate([dataset.labels for dataset in shared.datasets])
        expected = pfds_rivals.targets(schema, labels)
        off = np.abs(released.y[method] - expected).max()
        assert off == 0 if schema is CLASSES else off < 2 / params.n_buckets
    assert (released.y["pfds"] != released.y["pfds_s"]).any()


def test_an_agent_trains_on_all_that_is_shared_and_on_its_own_rows_alone() -> None:
    split = split_of(0)
    nothing = pfds_table.Released(split, np.empty((0, 9)), {"pfds": np.empty(0)})
    own = pfds_rivals.own_and_pooled("logistic", split).own
    assert nothing.home_errors("logistic", [4, 0], "pfds") == [own[4], own[0]]
    wrong = pfds_rivals.design(CLASSES, split.test.columns), 1 - pfds_rivals.targets(CLASSES, split.test.labels)
    many = pfds_table.Released(
        split, *(np.repeat(part, 50, axis=0) if i == 0 else {"pfds": np.repeat(part, 50)} for i, part in enumerate(wrong))
    )
    assert min(many.home_errors("logistic", [4, 0], "pfds")) > 0.8


def test_sizes_distances_and_times_are_of_the_agents_asked_for() -> None:
    split = split_of(0)
    made = dict(pfds_figures.synthesised(split, [1, 4], 4, SeededEntropy(1)))
    assert set(made) == {1, 4}
    for agent, methods in made.items():
        assert set(methods) == {"pfds", "pfds_minus", "diffgen"} and len(split.rows_of(agent)) == 80
        # The root's noise is of scale 6. Without it that of every leaf, whatever is below 0 cut off, adds up.
        assert abs(methods["pfds"].size - 80) < 30 < methods["pfds_minus"].size - 80
        assert all(one.seconds > 0 and len(one.dataset) > 0 for one in methods.values())
        # The product draws no more rows than the study expects.
        assert len(methods["pfds_minus"].dataset) <= 480 + 60


def test_diffgen_takes_as_many_steps_as_the_tree_has_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def release(*given: object) -> pfds_diffgen.Released:
        taken.append(given[3:5])
        return pfds_diffgen.Released({}, np.zeros(3, np.int64))

    monkeypatch.setattr(pfds_diffgen, "release", release)
    list(pfds_figures.synthesised(split_of(0), [1], 3, SeededEntropy(1)))
    assert taken == [(1.0, 3)]


def test_guessed_rows_are_anywhere_in_the_schema() -> None:
    for schema in (CLASSES, NUMBERS):
        rows = pfds_figures.guess(schema, 4000, SeededEntropy(1))
        for feature, column in zip((*schema.features, schema.label), (*rows.columns.values(), rows.labels), strict=True):
            low, high = (0, len(feature.values) - 1) if isinstance(feature, Categorical) else (feature.low, feature.high)
            assert low <= column.min() and column.max() <= high
            assert np.mean(column) == pytest.approx((low + high) / 2, abs=0.05 * (high - low))


def test_real_rows_are_nearer_to_each_other_than_to_guesses(small: None) -> None:
    figures = pfds_figures.fidelity(0, 2)
    assert len(figures) == 6
    assert np.mean([one["halves", "distance"] for one in figures]) < np.mean([one["guess", "distance"] for one in figures])
    panel = pfds_figures.figure("pfds-3b", 1).panels[0]
    lines = {line.name: line for line in panel.lines}
    assert lines["uniform rows"].style == "dotted" and lines["real rows, two halves"].style == "dashed"
    assert lines["PFDS"].y[0] == pytest.approx(np.mean([one["pfds", "distance"] for one in figures]))


@pytest.mark.parametrize("name", ["pfds-3a", "pfds-3c"])
def test_sizes_and_times_by_depth_have_a_logarithmic_scale(small: None, name: str) -> None:
    (panel,) = pfds_figures.figure(name, 2).panels
    assert panel.has_log_y and [line.name for line in panel.lines] == ["PFDS", "PFDS-", "DiffGen"]
    assert all(line.x == (2, 3) and len(line.y) == 2 and min(line.y) > 0 and line.style == "solid" for line in panel.lines)


def test_errors_by_sharers_have_intervals_and_yardsticks(small: None) -> None:
    figure = pfds_figures.figure("pfds-4", 2)
    assert len(figure.panels) == 3 and [panel.y_label.split()[0] for panel in figure.panels] == ["share", "share", "mean"]
    assert [panel.has_log_y for panel in figure.panels] == [False, False, True]
    for panel in figure.panels:
        styles = {line.name: line.style for line in panel.lines}
        assert list(styles.values()) == ["solid"] * 3 + ["dashed"] * 2 + ["dotted"]
        assert all(len(line.spread) == 2 and max(line.spread) > 0 for line in panel.lines[:3])
    both = [pfds_figures.sharing("adult", number)["svm"]["dp_pred", 7] for number in (0, 1)]
    assert figure.panels[1].lines[2].y[1] == pytest.approx(np.mean(both))
    assert figure.panels[1].lines[4].y == [pytest.approx(np.mean([pfds_rivals.own_and_pooled("svm", split_of(i)).pooled for i in (0, 1)]))]


def test_only_sharers_share(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[tuple[int, ...]]] = {"trees": [], "predictors": []}

    def simulate(*given: object) -> object:
        seen["trees"].append(tuple(given[-1]))  # type: ignore[call-overload]
        return simulate_paper(*given)  # type: ignore[arg-type]

    def dp_pred(*given: object) -> float:
        seen["predictors"].append(tuple(given[-1]))  # type: ignore[call-overload]
        return 0.25

    monkeypatch.setattr(pfds_table, "simulate_paper", simulate)
    monkeypatch.setattr(pfds_figures, "dp_pred", dp_pred)
    assert pfds_figures.sharing("news_number", 0)["linear"]["dp_pred", 1] == 0.25
    one, everyone = seen["trees"]
    # The one is the first of all, and has rows; who has none comes last.
    assert one == everyone[:1] and sorted(everyone) == list(range(7)) and everyone[-1] == 6
    assert seen["predictors"] == seen["trees"]


def test_an_interval_is_that_of_students_t() -> None:
    assert pfds_figures._interval([1.0, 3.0]) == (2.0, pytest.approx(12.7062, abs=1e-3))
    assert pfds_figures._interval([1.0]) == (1.0, 0.0)


def test_intervals_are_printed_and_drawn(tmp_path: Path) -> None:
    with_interval, without = Line("a", [1, 2], [3, 4], spread=[0.5, 0.25]), Line("b", [1, 2], [3, 4])
    figure = Figure("f", [Panel("t", "x", "y", [with_interval, without])], columns=1)
    first, second = figure.lines(as_json=True)
    assert '"spread": [0.5, 0.25]' in first and "spread" not in second
    if find_spec("matplotlib"):
        bare = Figure("f", [Panel("t", "x", "y", [without, without])], columns=1)
        shaded, plain = (plots.draw(one, tmp_path / name).read_text() for one, name in ((figure, "a.svg"), (bare, "b.svg")))
        assert "opacity" in shaded and "opacity" not in plain


def test_numbers_that_are_read_are_not_rounded() -> None:
    given = '<path d="M 1.23456 2"/><text x="7.891">0.325</text><text>\u221212.3251 a</text>'
    assert plots._slim(given) == '<path d="M 1.23 2"/><text x="7.89">0.325</text><text>\u221212.3251 a</text>'


def test_the_figures_are_registered() -> None:
    names = {name for name in command.FIGURES if name.startswith("pfds")}
    assert names == {"pfds-3a", "pfds-3b", "pfds-3c", "pfds-4"}
    assert {command.FIGURES[name][0] for name in names} == {"benchmarks.paper.pfds_figures"}
