"""Table 2 and figures of the PFDS paper on few rows: names, values and comparisons."""

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
from benchmarks.paper import plots
from benchmarks.paper.figure import Figure, Line, Panel
from benchmarks.paper.pfds import baselines as pfds_baselines
from benchmarks.paper.pfds import data as pfds_data
from benchmarks.paper.pfds import diffgen as pfds_diffgen
from benchmarks.paper.pfds import figures as pfds_figures
from benchmarks.paper.pfds import table2 as pfds_table
from benchmarks.paper.pfds.data import Rows, Split
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper.population import simulate_paper
from shoal.protocols.pfds.params import PFDSParams

FEATURES = [
    Numeric("age", 0, 80, missing=False),
    Numeric("hours", 0, 99, missing=False),
    Categorical("sex", ["Female", "Male"], missing=False),
    Categorical("race", pfds_data.task("adult").schema["race"].values, missing=False),
]
CLASSES = Schema(FEATURES, label=Categorical("ill", ["no", "yes"]))
NUMBERS = Schema(FEATURES, label=Numeric("score", -1, 3))


def make_people(n: int, seed: int, schema: Schema) -> Rows:
    """Return people whose label follows from sex and age, plus noise."""
    rng = np.random.default_rng(seed)
    columns = {
        "age": rng.integers(0, 81, n).astype(np.float64),
        "hours": rng.integers(35, 45, n).astype(np.float64),
        "sex": rng.integers(0, 2, n),
        "race": rng.integers(0, 5, n),
    }
    score = np.clip(columns["age"] / 80 + columns["sex"] + rng.normal(size=n) / 10, -1, 3)
    return Rows(
        schema,
        columns,
        score if schema is NUMBERS else (score > 1).astype(np.int64),
        columns["age"] / 80,
    )


def make_split(number: int, schema: Schema = CLASSES) -> Split:
    """Return a split with seven holders; the last one has no rows."""
    return Split(
        make_people(480, number, schema),
        make_people(200, 100 + number, schema),
        np.arange(480) % 6,
        7,
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace each table by few rows."""

    def splits(name: str, n: int, seed: int = 0) -> Iterator[Split]:
        return (
            make_split(number, NUMBERS if pfds_data.task(name).is_number else CLASSES)
            for number in range(seed, seed + n)
        )

    for module in (pfds_table, pfds_figures):
        monkeypatch.setattr(module, "splits", splits)
    monkeypatch.setattr(pfds_table, "is_there", lambda task: True)
    monkeypatch.setattr(pfds_figures, "PARTITIONS", 5)
    monkeypatch.setattr(pfds_figures, "CELLS", 8)
    monkeypatch.setattr(pfds_figures, "DEPTHS", (2, 3))
    monkeypatch.setattr(pfds_figures, "SHARERS", (1, 7))
    pfds_figures.fidelity.cache_clear()
    pfds_figures.sharing.cache_clear()


def index_measures(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {
        "pfds"
    }
    return {one.measure: one for one in found}


def test_table_has_24_rows_of_the_paper_and_8_without_noise() -> None:
    rows = [
        pfds_table.Row(name, kind, epsilon)
        for name, kind in pfds_table.PRINTED
        for epsilon in pfds_table.EPSILONS
    ]
    printed = [row for row in rows if row.printed]
    assert (
        len(printed) == 24
        and len(rows) == 32
        and all(row.epsilon == math.inf for row in rows if row not in printed)
    )
    # In the paper PFDS is best in each row, and never worse with a larger budget.
    assert all(min(row.printed, key=row.printed.__getitem__) == "pfds" for row in printed)
    assert pfds_table.Row("adult", "svm", 0.1).printed == {
        "np_agt": 0.283,
        "dp_pred": 0.269,
        "pfds_s": 0.268,
        "pfds": 0.239,
    }
    for name, kind in pfds_table.PRINTED:
        by_budget = [
            pfds_table.Row(name, kind, epsilon).printed["pfds"] for epsilon in (1.0, 0.5, 0.1)
        ]
        assert by_budget == sorted(by_budget)


def test_measures_compare_with_the_figures_of_the_paper(small: None) -> None:
    found = index_measures(pfds_table.measures(seeds=2, only="paper_bike"))
    assert len(found) == 4 * (len(pfds_table.COLUMNS) + 1)
    pfds = found["paper_bike_linear_eps1_pfds"]
    assert (
        pfds.unit == "MSE"
        and pfds.competitor == "the paper's 0.127"
        and pfds.ratio == pytest.approx(pfds.value / 0.127)
    )
    assert (
        found["paper_bike_linear_eps1_trivial"].competitor is None
        and found["paper_bike_linear_epsinf_pfds"].competitor is None
    )
    assert found["paper_bike_linear_eps0.5_pfds_se"].value > 0
    assert 0 <= found["paper_bike_linear_eps0.1_gain"].value <= 1
    once = index_measures(pfds_table.measures(seeds=1, only="paper_retinopathy_svm_eps0.5"))
    assert len(once) == len(pfds_table.COLUMNS) and {one.unit for one in once.values()} == {
        "error",
        "share",
    }


def test_table_prints_none_for_rows_without_noise(small: None) -> None:
    head, line, *rows = pfds_table.markdown(seeds=2, only="paper_news")
    assert {text.count("|") for text in (head, line, *rows)} == {
        len(pfds_table.METHODS) + len(pfds_table.COLUMNS) + 3
    }
    assert [row.split("|")[1:3] for row in rows] == [
        [" news, linear ", f" {epsilon} "] for epsilon in ("1", "0.5", "0.1", "none")
    ]
    assert (
        rows[0].split("|")[3:7] == [" .194 ", " .176 ", " .121 ", " .079 "]
        and rows[3].split("|")[3:7] == ["  "] * 4
    )


def test_rows_of_a_missing_table_are_skipped(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pfds_table, "is_there", lambda task: task.name != "bike")
    monkeypatch.setattr(pfds_table, "EPSILONS", (0.5,))
    assert {row.task for row in pfds_table.rows(1, "paper_b")} == {"bank"}


def test_baselines_do_not_depend_on_epsilon_and_errors_do() -> None:
    split = make_split(0)
    found = pfds_table.errors(split, {("logistic", 0.1), ("logistic", math.inf)}, 0)
    noisy, bare = found["logistic", 0.1], found["logistic", math.inf]
    known = pfds_baselines.own_and_pooled("logistic", split)
    for column, value in {
        "trivial": known.trivial,
        "np_pred": known.pooled,
        "np_agt": np.mean(known.own),
    }.items():
        assert noisy[column] == bare[column] == pytest.approx(value)
    # Without noise the trees of 80 rows each learn the rule; noise of scale 80 on leaves with a
    # dozen rows hides it.
    assert bare["pfds"] < known.trivial / 2 and noisy["pfds"] > bare["pfds"]
    assert (
        pfds_table.errors(split, {("logistic", 0.1)}, 0)["logistic", 0.1]["pfds"] == noisy["pfds"]
    )


def test_gain_counts_agents_with_less_error_than_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = make_split(0)
    own = pfds_baselines.own_and_pooled("logistic", split).own
    agents: list[int] = []

    def home_errors(
        self: pfds_table.Released, kind: str, chosen: list[int], method: str
    ) -> list[float]:
        agents[:] = chosen
        # Slightly better than the own rows for the first two, slightly worse for the others.
        return [own[agent] + (-1e-9 if i < 2 else 1e-9) for i, agent in enumerate(chosen)]

    monkeypatch.setattr(pfds_table.Released, "home_errors", home_errors)
    found = pfds_table.errors(split, {("logistic", 1.0)}, 0)["logistic", 1.0]
    assert (
        found["gain"] == 2 / pfds_table.AGENTS
        and len(set(agents)) == pfds_table.AGENTS
        and 6 not in agents
    )


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("schema", [CLASSES, NUMBERS])
def test_labels_of_both_methods_equal_simulate_paper(schema: Schema, epsilon: float) -> None:
    split = make_split(0, schema)
    released = pfds_table.Released.of(split, epsilon, SeededEntropy(1))
    training = split.training
    params = PFDSParams(schema, epsilon, 480, n_holders=7, minimum=7, variant="paper")
    for method, labelling in (("pfds", "shared"), ("pfds_s", "own")):
        # The same draws of rows; numbers are drawn again inside their buckets.
        shared = simulate_paper(
            replace(params, labelling=labelling),
            training.columns,
            training.labels,
            split.owners,
            SeededEntropy(1),
        )
        labels = np.concatenate([dataset.labels for dataset in shared.datasets])
        expected = pfds_baselines.targets(schema, labels)
        off = np.abs(released.y[method] - expected).max()
        assert off == 0 if schema is CLASSES else off < 2 / params.n_buckets
    assert (released.y["pfds"] != released.y["pfds_s"]).any()


def test_agent_trains_on_shared_data_and_own_rows() -> None:
    split = make_split(0)
    nothing = pfds_table.Released(split, np.empty((0, 9)), {"pfds": np.empty(0)})
    own = pfds_baselines.own_and_pooled("logistic", split).own
    assert nothing.home_errors("logistic", [4, 0], "pfds") == [own[4], own[0]]
    wrong = (
        pfds_baselines.design(CLASSES, split.test.columns),
        1 - pfds_baselines.targets(CLASSES, split.test.labels),
    )
    many = pfds_table.Released(
        split,
        *(
            np.repeat(part, 50, axis=0) if i == 0 else {"pfds": np.repeat(part, 50)}
            for i, part in enumerate(wrong)
        ),
    )
    assert min(many.home_errors("logistic", [4, 0], "pfds")) > 0.8


def test_synthesise_all_covers_the_requested_agents() -> None:
    split = make_split(0)
    made = dict(pfds_figures.synthesise_all(split, [1, 4], 4, SeededEntropy(1)))
    assert set(made) == {1, 4}
    for agent, methods in made.items():
        assert (
            set(methods) == {"pfds", "pfds_minus", "diffgen"}
            and len(split.select_holder(agent)) == 80
        )
        # The noise of the root has scale 6. Without the projection the noise of all leaves adds
        # up, clipped at 0.
        assert abs(methods["pfds"].size - 80) < 30 < methods["pfds_minus"].size - 80
        assert all(one.seconds > 0 and len(one.dataset) > 0 for one in methods.values())
        # shoal draws at most the rows that the study expects.
        assert len(methods["pfds_minus"].dataset) <= 480 + 60


def test_diffgen_has_one_step_per_level_of_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []

    def release(*given: object) -> pfds_diffgen.Released:
        taken.append(given[3:5])
        return pfds_diffgen.Released({}, np.zeros(3, np.int64))

    monkeypatch.setattr(pfds_diffgen, "release", release)
    list(pfds_figures.synthesise_all(make_split(0), [1], 3, SeededEntropy(1)))
    assert taken == [(1.0, 3)]


def test_guessed_rows_are_uniform_in_the_schema() -> None:
    for schema in (CLASSES, NUMBERS):
        rows = pfds_figures.guess(schema, 4000, SeededEntropy(1))
        for feature, column in zip(
            (*schema.features, schema.label), (*rows.columns.values(), rows.labels), strict=True
        ):
            low, high = (
                (0, len(feature.values) - 1)
                if isinstance(feature, Categorical)
                else (feature.low, feature.high)
            )
            assert low <= column.min() and column.max() <= high
            assert np.mean(column) == pytest.approx((low + high) / 2, abs=0.05 * (high - low))


def test_figure_3b_shows_distances_of_halves_and_guesses(small: None) -> None:
    figures = pfds_figures.fidelity(0, 2)
    assert len(figures) == 6
    assert np.mean([one["halves", "distance"] for one in figures]) < np.mean(
        [one["guess", "distance"] for one in figures]
    )
    panel = pfds_figures.figure("pfds-3b", 1).panels[0]
    lines = {line.name: line for line in panel.lines}
    assert (
        lines["uniform rows"].style == "dotted" and lines["real rows, two halves"].style == "dashed"
    )
    assert lines["PFDS"].y[0] == pytest.approx(
        np.mean([one["pfds", "distance"] for one in figures])
    )


@pytest.mark.parametrize("name", ["pfds-3a", "pfds-3c"])
def test_figures_3a_and_3c_have_a_logarithmic_scale(small: None, name: str) -> None:
    (panel,) = pfds_figures.figure(name, 2).panels
    assert panel.has_log_y and [line.name for line in panel.lines] == ["PFDS", "PFDS-", "DiffGen"]
    assert all(
        line.x == (2, 3) and len(line.y) == 2 and min(line.y) > 0 and line.style == "solid"
        for line in panel.lines
    )


def test_figure_4_has_intervals_and_baselines(small: None) -> None:
    figure = pfds_figures.figure("pfds-4", 2)
    assert len(figure.panels) == 3 and [panel.y_label.split()[0] for panel in figure.panels] == [
        "share",
        "share",
        "mean",
    ]
    assert [panel.has_log_y for panel in figure.panels] == [False, False, True]
    for panel in figure.panels:
        styles = {line.name: line.style for line in panel.lines}
        assert list(styles.values()) == ["solid"] * 3 + ["dashed"] * 2 + ["dotted"]
        assert all(len(line.spread) == 2 and max(line.spread) > 0 for line in panel.lines[:3])
    both = [pfds_figures.sharing("adult", number)["svm"]["dp_pred", 7] for number in (0, 1)]
    assert figure.panels[1].lines[2].y[1] == pytest.approx(np.mean(both))
    assert figure.panels[1].lines[4].y == [
        pytest.approx(
            np.mean([pfds_baselines.own_and_pooled("svm", make_split(i)).pooled for i in (0, 1)])
        )
    ]


def test_figure_4_passes_sharers_to_both_methods(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    # The single sharer is the first one and has rows; the holder without rows is last.
    assert one == everyone[:1] and sorted(everyone) == list(range(7)) and everyone[-1] == 6
    assert seen["predictors"] == seen["trees"]


def test_interval_uses_students_t() -> None:
    assert pfds_figures._interval([1.0, 3.0]) == (2.0, pytest.approx(12.7062, abs=1e-3))
    assert pfds_figures._interval([1.0]) == (1.0, 0.0)


def test_figure_prints_and_draws_intervals(tmp_path: Path) -> None:
    with_interval, without = (
        Line("a", [1, 2], [3, 4], spread=[0.5, 0.25]),
        Line("b", [1, 2], [3, 4]),
    )
    figure = Figure("f", [Panel("t", "x", "y", [with_interval, without])], columns=1)
    first, second = figure.lines(as_json=True)
    assert '"spread": [0.5, 0.25]' in first and "spread" not in second
    if find_spec("matplotlib"):
        bare = Figure("f", [Panel("t", "x", "y", [without, without])], columns=1)
        shaded, plain = (
            plots.draw(one, tmp_path / name).read_text()
            for one, name in ((figure, "a.svg"), (bare, "b.svg"))
        )
        assert "opacity" in shaded and "opacity" not in plain


def test_shorten_svg_does_not_round_visible_numbers() -> None:
    given = '<path d="M 1.23456 2"/><text x="7.891">0.325</text><text>\u221212.3251 a</text>'
    assert (
        plots._shorten_svg(given)
        == '<path d="M 1.23 2"/><text x="7.89">0.325</text><text>\u221212.3251 a</text>'
    )


def test_figures_of_pfds_are_registered() -> None:
    names = {name for name in command.FIGURES if name.startswith("pfds")}
    assert names == {"pfds-3a", "pfds-3b", "pfds-3c", "pfds-4"}
    assert {command.FIGURES[name][0] for name in names} == {"benchmarks.paper.pfds.figures"}
