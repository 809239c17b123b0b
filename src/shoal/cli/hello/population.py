"""The synthetic people of ``shoal hello``, and all protocols on them.

The demonstration calls this module. The probability of each label is known, so the best possible
accuracy is known too. All people follow from fixed seeds.
"""

from __future__ import annotations

import csv
import io
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.data.tables import Table
from shoal.entropy import Entropy, SeededEntropy
from shoal.privacy.rounding import format_epsilon
from shoal.simulation.run import Split, split_rows
from shoal.study.loader import parse_study_text
from shoal.study.spec import Study
from shoal.study.starters import read_starter

Floats = npt.NDArray[np.float64]

SCHEMA = Schema(
    [
        Numeric("age", 18, 90, missing=False),
        Numeric("coffee", 0, 8, missing=False),
        Numeric("screen", 0, 12, missing=False),
        Categorical("shifts", ["no", "yes"], missing=False),
        Categorical("children", ["none", "older", "small"], missing=False),
        Categorical("region", ["north", "east", "south", "west"], missing=False),
    ],
    label=Categorical("sleeps_badly", ["no", "yes"], missing=False),
)
"""The columns of a person. The region has no effect on sleep."""


@dataclass(frozen=True)
class SyntheticPeople:
    """Encoded rows, and the probability of each person to sleep badly.

    In reality the probabilities are not known.
    """

    columns: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[np.int64]
    chances: Floats


def make_people(n: int, entropy: Entropy) -> SyntheticPeople:
    """Draw n people.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> people = make_people(10_000, SeededEntropy(1))
    >>> bool(abs(people.labels.mean() - people.chances.mean()) < 0.02)
    True
    """
    age = np.floor(18 + 72 * _draw_uniform(n, entropy))
    coffee = np.floor(9 * _draw_uniform(n, entropy) * _draw_uniform(n, entropy))
    screen = np.round(12 * _draw_uniform(n, entropy) * (1.18 - age / 100), 1)
    shifts = (_draw_uniform(n, entropy) < 0.25).astype(np.int64)
    children = np.where(_draw_uniform(n, entropy) < 0.5, 0, np.where(age < 45, 2, 1))
    region = np.floor(4 * _draw_uniform(n, entropy)).astype(np.int64)
    log_odds = (
        -2.8
        + 0.45 * coffee
        + 0.18 * screen
        + 1.3 * shifts
        + np.array([0.0, 0.3, 1.4])[children]
        + 0.02 * (age - 50)
    )
    chances = 1 / (1 + np.exp(-log_odds))
    labels = (_draw_uniform(n, entropy) < chances).astype(np.int64)
    columns = {
        "age": age,
        "coffee": coffee,
        "screen": screen,
        "shifts": shifts,
        "children": children,
        "region": region,
    }
    return SyntheticPeople(columns, labels, chances)


def _draw_uniform(n: int, entropy: Entropy) -> Floats:
    return entropy.words(n, np.uint32) / 2.0**32


TITLE = "Who sleeps badly?"
ROWS, REPEATS, SEED = 24_000, 5, 0
"""Synthetic people, a quarter of them for testing; runs of each protocol; the seed of all runs."""
MAX_JOBS = 2
LABEL = "sleeps_badly"
ANSWERS = ("no", "yes")


def make_study_text(epsilon: float, *, minimum: int, size: int, title: str = TITLE) -> str:
    """Return the study of the demonstration as TOML."""
    figures = {"epsilon": repr(float(epsilon)), "minimum": minimum, "size": size, "title": title}
    return Template(read_starter("hello")).substitute(figures)


def make_people_table(encoded: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[Any]) -> Table:
    """Return people as a table: numbers, and categories as texts."""
    columns: Table = {}
    for feature in SCHEMA.features:
        cells = encoded[feature.name]
        columns[feature.name] = (
            np.array(feature.values, object)[cells] if isinstance(feature, Categorical) else cells
        )
    return columns | {LABEL: np.array(ANSWERS, object)[labels]}


def format_csv(table: Table, rows: slice = slice(None)) -> str:
    """Return some rows of a table as CSV; whole numbers have no decimal point."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    cells = (
        [f"{cell:g}" if isinstance(cell, float) else cell for cell in column[rows].tolist()]
        for column in table.values()
    )
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()


@dataclass(frozen=True, eq=False)
class DemoPopulation:
    """The people with their study.

    Parameters
    ----------
    text, study
        The study, as text of its file and parsed.
    table
        All people.
    split
        The training rows and the test rows.
    guessing_accuracy
        Accuracy on the test rows of the most common training label.
    best_accuracy
        Accuracy on the test rows of the true probabilities: no model is better except by chance.
    """

    text: str
    study: Study
    table: Table
    split: Split
    guessing_accuracy: float
    best_accuracy: float

    def make_test_table(self) -> Table:
        """Return the test rows as a table."""
        return make_people_table(self.split.test_columns, self.split.test_labels)


def make_population(epsilon: float) -> DemoPopulation:
    """Return the people, always the same, and a study of them at an epsilon."""
    people = make_people(ROWS, SeededEntropy(f"shoal hello, {ROWS} people"))
    size = ROWS * 3 // 4
    text = make_study_text(epsilon, minimum=size // 2, size=size)
    study, table = parse_study_text(text), make_people_table(people.columns, people.labels)
    split = split_rows(study.schema(), table, SEED)
    # People with the same columns have the same probability.
    chances = dict(zip(_iterate_rows(people.columns), people.chances, strict=True))
    is_likely = np.array([chances[row] > 0.5 for row in _iterate_rows(split.test_columns)])
    most_common = split.train_labels.mean() > 0.5
    accuracies = [
        float((prediction == split.test_labels).mean()) for prediction in (most_common, is_likely)
    ]
    return DemoPopulation(text, study, table, split, *accuracies)


def _iterate_rows(columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[tuple[float, ...]]:
    return zip(*(columns[feature.name].tolist() for feature in SCHEMA.features), strict=True)


def compare_protocols(
    population: DemoPopulation, study: Path, data: Path, done: Callable[[], None]
) -> dict[str, Any]:
    """Return the comparison of all protocols that fit, at the study's epsilon.

    It is the document that ``shoal compare`` would write for these two files.
    """
    from shoal.cli.simulate import list_versions
    from shoal.simulation.compare import ComparisonOptions, compare_study

    epsilon, jobs = population.study.privacy.epsilon, min(MAX_JOBS, os.cpu_count() or 1)
    comparison = compare_study(
        population.study,
        population.split,
        ComparisonOptions([epsilon], REPEATS, SEED, jobs),
        done,
    )
    command = [
        "shoal",
        "compare",
        str(study),
        "--data",
        str(data),
        "--seed",
        str(SEED),
        "--repeats",
        str(REPEATS),
    ]
    return comparison | {"command": shlex.join(command), "versions": list_versions()}


def count_comparison_steps(population: DemoPopulation) -> int:
    """Return the number of calls of ``done`` by `compare_protocols`."""
    from shoal.simulation import compare

    return compare.count_steps(population.study, [population.study.privacy.epsilon], REPEATS)


def describe_comparison(result: Mapping[str, Any], best_accuracy: float) -> list[tuple[str, str]]:
    """Return the lines about the protocols of variant plus, with baselines and guarantees."""
    from shoal.report.documents import ScoreMean
    from shoal.report.formatting import compute_interval, format_interval, format_measure

    entries = [entry for entry in result["entries"] if entry["variant"] == "plus"]
    figures = {
        "guessing the most common answer": format_measure(
            "accuracy", result["yardsticks"]["most_common"]["accuracy"]
        )
    }
    for entry in entries:
        mean = ScoreMean(**entry["scores"]["accuracy"])
        bounds = format_interval("accuracy", compute_interval("accuracy", mean, result["repeats"]))
        figures[entry["name"]] = f"{format_measure('accuracy', mean.value)}   {bounds}"
    figures["without privacy"] = format_measure(
        "accuracy", result["yardsticks"]["without_privacy"]["accuracy"]
    )
    figures["best possible"] = format_measure("accuracy", best_accuracy)
    note = (
        f"right answers about {result['rows']['unseen']:,} others; the 95 % interval is over "
        f"{result['repeats']} runs"
    )
    n_papers = len(result["entries"]) - len(entries)
    return [
        *_add_heading("right answers", [f"{name:<36}{text}" for name, text in figures.items()]),
        ("", f"({note}; the report also has {n_papers} variants from the papers)"),
        *_add_heading("guarantees", dict.fromkeys(_describe_price(entry) for entry in entries)),
    ]


def _describe_price(entry: Mapping[str, Any]) -> str:
    """Return an epsilon with its unit, relation and adversary; the central one if shuffled."""
    central, name = entry["central"], f"{entry['name'].partition(' ')[0]}, {entry['trust']}"
    price = entry if central is None else central
    delta = f", delta {format_epsilon(price['delta'])}" if price["delta"] else ""
    also = "" if central is None else "also "
    return (
        f"{name}: {also}epsilon {format_epsilon(price['epsilon'])}{delta} for one "
        f"{entry['unit']}, {entry['relation']}, against {price['adversary']}"
    )


def _add_heading(head: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(head if i == 0 else "", line) for i, line in enumerate(lines)]
