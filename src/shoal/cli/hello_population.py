"""The people of ``shoal hello``, whose truth is known, and all protocols on them side by side."""

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

from shoal.domain import Categorical
from shoal.entropy import SeededEntropy
from shoal.privacy.rounding import show
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.runs import Split, split_rows
from shoal.study.load import parse
from shoal.study.spec import Study
from shoal.study.templates import study_text
from shoal.table_files import Table

TITLE = "Who sleeps badly?"
ROWS, REPEATS, SEED = 24_000, 5, 0
"""Made-up people, a quarter of whom are set aside; runs of each protocol; what all of this follows from."""
MOST_JOBS = 2
LABEL = "sleeps_badly"
ANSWERS = ("no", "yes")


def study_of(epsilon: float, *, minimum: int, size: int, title: str = TITLE) -> str:
    """The demonstration's study, as TOML."""
    figures = {"epsilon": repr(float(epsilon)), "minimum": minimum, "size": size, "title": title}
    return Template(study_text("hello")).substitute(figures)


def table_of(encoded: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[Any]) -> Table:
    """People as a table has them: numbers, and categories as texts."""
    columns: Table = {}
    for feature in SCHEMA.features:
        cells = encoded[feature.name]
        columns[feature.name] = np.array(feature.values, object)[cells] if isinstance(feature, Categorical) else cells
    return columns | {LABEL: np.array(ANSWERS, object)[labels]}


def csv_of(table: Table, rows: slice = slice(None)) -> str:
    """Some rows of a table as CSV; whole numbers without a point."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    cells = ([f"{cell:g}" if isinstance(cell, float) else cell for cell in column[rows].tolist()] for column in table.values())
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()


@dataclass(frozen=True, eq=False)
class Population:
    """The people with their study.

    Parameters
    ----------
    text, study
        The study, as its file has it and as it is read.
    table
        Everyone.
    split
        The rows to learn from, and those on which models are tried.
    guessing, truth
        Accuracy on the latter of the answer that is most common among the former, and of whoever knows how the people were made: no model
        does better than that but by chance.
    """

    text: str
    study: Study
    table: Table
    split: Split
    guessing: float
    truth: float

    def unseen(self) -> Table:
        """Those on whom models are tried."""
        return table_of(self.split.unseen, self.split.unseen_labels)


def make_population(epsilon: float) -> Population:
    """The people, always the same, and a study of them at some epsilon."""
    people = make_people(ROWS, SeededEntropy(f"shoal hello, {ROWS} people"))
    asked = ROWS * 3 // 4
    text = study_of(epsilon, minimum=asked // 2, size=asked)
    study, table = parse(text), table_of(people.columns, people.labels)
    split = split_rows(study.schema(), table, SEED)
    # People who are alike in all that is known of them have the same chance.
    chances = dict(zip(_rows(people.columns), people.chances, strict=True))
    is_likely = np.array([chances[row] > 0.5 for row in _rows(split.unseen)])
    most_common = split.labels.mean() > 0.5
    right = [float((said == split.unseen_labels).mean()) for said in (most_common, is_likely)]
    return Population(text, study, table, split, *right)


def _rows(columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[tuple[float, ...]]:
    return zip(*(columns[feature.name].tolist() for feature in SCHEMA.features), strict=True)


def compared(population: Population, study: Path, data: Path, done: Callable[[], None]) -> dict[str, Any]:
    """All protocols that fit at the study's epsilon, as ``shoal compare`` would write it of these two files."""
    from shoal.cli.simulate import versions
    from shoal.sim.comparing import compare_study

    epsilon, jobs = population.study.privacy.epsilon, min(MOST_JOBS, os.cpu_count() or 1)
    found = compare_study(population.study, population.split, epsilons=[epsilon], repeats=REPEATS, seed=SEED, jobs=jobs, done=done)
    command = ["shoal", "compare", str(study), "--data", str(data), "--seed", str(SEED), "--repeats", str(REPEATS)]
    return found | {"command": shlex.join(command), "versions": versions()}


def n_steps(population: Population) -> int:
    """How often `compared` says that something is done."""
    from shoal.sim import comparing

    return comparing.n_steps(population.study, [population.study.privacy.epsilon], REPEATS)


def compared_lines(result: Mapping[str, Any], truth: float) -> list[tuple[str, str]]:
    """The protocols in words: those of variant plus, held against guessing, no privacy, and knowing the truth; and what each epsilon is."""
    from shoal.report.details import Mean
    from shoal.report.figures import figure, interval, interval_words

    entries = [entry for entry in result["entries"] if entry["variant"] == "plus"]
    figures = {"guessing the most common answer": figure("accuracy", result["yardsticks"]["most_common"]["accuracy"])}
    for entry in entries:
        mean = Mean(**entry["scores"]["accuracy"])
        reach = interval_words("accuracy", interval("accuracy", mean, result["repeats"]))
        figures[entry["name"]] = f"{figure('accuracy', mean.value)}   {reach}"
    figures["without privacy"] = figure("accuracy", result["yardsticks"]["without_privacy"]["accuracy"])
    figures["knowing how they were made"] = figure("accuracy", truth)
    note = f"right answers about {result['rows']['unseen']:,} others; the 95 % interval is over {result['repeats']} runs"
    n_papers = len(result["entries"]) - len(entries)
    return [
        *_headed("right answers", [f"{name:<36}{words}" for name, words in figures.items()]),
        ("", f"({note}; {n_papers} variants as the papers have them are in the report)"),
        *_headed("what that is", dict.fromkeys(_price(entry) for entry in entries)),
    ]


def _price(entry: Mapping[str, Any]) -> str:
    """An epsilon with its unit, relation and adversary; in a crowd that of the crowd, which comes on top."""
    central, name = entry["central"], f"{entry['name'].partition(' ')[0]}, {entry['trust']}"
    price = entry if central is None else central
    delta = f", delta {show(price['delta'])}" if price["delta"] else ""
    also = "" if central is None else "also "
    return (
        f"{name}: {also}epsilon {show(price['epsilon'])}{delta} for one {entry['unit']}, {entry['relation']}, against {price['adversary']}"
    )


def _headed(head: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(head if i == 0 else "", line) for i, line in enumerate(lines)]
