"""Rows for PFDS's benchmarks: six tables, their splits, and the paper's partition.

The paper's partition distributes rows unevenly among holders. Numbers have round public ranges, 0/1
columns and codes are categories, and "?" or "unknown" is a separate category, so no value is
missing. Half of every table is for choosing settings; reported test rows come from the other half
only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.anonml.data import DATA, ROOT
from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.data.tables import read_table_file
from shoal.study.loader import load_study

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Ranges = Mapping[tuple[float, float], str]

HALVES_SEED = 12345
"""Seed of the half of a table on which settings are chosen.

It is the same half as in the experiments for the constants of `plus`.
"""
SEEDS = 20260
"""Seeds of the splits: other streams than those of the experiments."""
POPULAR = 1400
"""Number of shares above which an article is popular."""
_NEAREST = 1e-9


@dataclass(frozen=True)
class Task:
    """A prediction task on one table.

    Parameters
    ----------
    name, file
        Of the task, and of its table.
    schema
        Features and label, public.
    skew
        The column by which rows are spread unevenly among holders; None: a random number that
        nothing depends on.
    n_holders
        m.
    """

    name: str
    file: str
    schema: Schema
    skew: str | None
    n_holders: int = 100

    @property
    def is_number(self) -> bool:
        """Whether a number is predicted."""
        return isinstance(self.schema.label, Numeric)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a task.

    Parameters
    ----------
    schema
        What they hold.
    columns, labels
        As the schema encodes them.
    key
        ``(n,)`` what their holder depends on, from 0 to 1.
    """

    schema: Schema
    columns: Mapping[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]
    key: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: npt.NDArray[Any]) -> Rows:
        """Return the selected rows."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Rows(self.schema, columns, self.labels[chosen], self.key[chosen])


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of the holders, and test rows that no holder has.

    Parameters
    ----------
    training, test
        The rows.
    owners
        The holder of each training row, counted from 0.
    n_holders
        m; some may have no rows.
    """

    training: Rows
    test: Rows
    owners: Ints
    n_holders: int

    def select_holder(self, holder: int) -> Rows:
        """Return the rows of one holder."""
        return self.training.take(self.owners == holder)


def is_there(task: Task) -> bool:
    """Return whether the table of a task is on this machine; if not, print a warning."""
    path = DATA / f"{task.file}.csv.gz"
    if not path.exists():
        print(
            f"{path.name} is not in {DATA}: it is left out. Fetch it with `make data`.",
            file=sys.stderr,
        )
    return path.exists()


@cache
def rows(name: str) -> Rows:
    """Return all rows of a task, in the order of the file."""
    given = task(name)
    table = read_table_file(DATA / f"{given.file}.csv.gz")
    if given.file == "online_news_sample":
        shares = table["shares"].astype(np.float64)
        table |= {
            "popular": np.where(shares > POPULAR, "yes", "no"),
            "log_shares": np.log10(shares),
        }
    columns, labels = given.schema.encode(table), given.schema.encode_label(table)
    if given.skew is None:
        return Rows(given.schema, columns, labels, np.random.default_rng(SEEDS).random(len(labels)))
    skew = given.schema[given.skew]
    assert isinstance(skew, Numeric)
    return Rows(
        given.schema, columns, labels, (columns[given.skew] - skew.low) / (skew.high - skew.low)
    )


def splits(name: str, n: int, seed: int = 0, *, development: bool = False) -> Iterator[Split]:
    """Yield splits number ``seed``, ``seed + 1`` and so on of a task.

    Parameters
    ----------
    development
        Whether settings are to be chosen: only rows of the first half are used, by half as many
        holders. Otherwise a tenth of all rows, all from the second half, are test rows, and all
        others are training rows.
    """
    whole, m = rows(name), task(name).n_holders
    for number in range(seed, seed + n):
        rng = np.random.default_rng([SEEDS, development, number])
        yield make_split(whole, max(5, m // 2) if development else m, rng, development=development)


def make_split(whole: Rows, m: int, rng: np.random.Generator, *, development: bool) -> Split:
    """Return one split, with its training rows distributed among m holders."""
    choosing, reporting = halves(len(whole))
    pool = rng.permutation(choosing if development else reporting)
    test = pool[: len(choosing if development else whole.labels) // 10]
    training = np.setdiff1d(choosing if development else np.arange(len(whole)), test)
    return Split(whole.take(training), whole.take(test), partition(whole.key[training], m, rng), m)


def halves(n: int) -> tuple[Ints, Ints]:
    """Return the rows for choosing settings, and the rows for tests."""
    order = np.random.default_rng(HALVES_SEED).permutation(n)
    return order[: n // 2], order[n // 2 :]


def partition(key: Floats, m: int, rng: np.random.Generator) -> Ints:
    """Return the holder of each row.

    Each holder has a point of the range; the probability of a row is inverse to their distance.

    Notes
    -----
    Ref: PFDS §4, Datasets and Experimental Setting. A distance of less than a billionth of the
    range counts as that.
    """
    nearness = 1 / np.maximum(np.abs(key[:, np.newaxis] - rng.random(m)), _NEAREST)
    sums = np.cumsum(nearness, axis=1)
    return np.asarray(
        (rng.random(len(key))[:, np.newaxis] * sums[:, -1:] >= sums[:, :-1]).sum(axis=1), np.int64
    )


@cache
def task(name: str) -> Task:
    """Return a task by its name in `TASKS`."""
    return TASKS[name](name)


def _numbers(ranges: Ranges) -> list[Feature]:
    return [
        Numeric(name, low, high, missing=False)
        for (low, high), names in ranges.items()
        for name in names.split()
    ]


def _codes(codes: Mapping[range, str]) -> list[Feature]:
    return [
        Categorical(name, [str(code) for code in values], missing=False)
        for values, names in codes.items()
        for name in names.split()
    ]


def _extend_schema(study: str, more: Sequence[Feature] = ()) -> Schema:
    """Return the schema of an example study, with some more features."""
    schema = load_study(ROOT / "examples" / f"{study}.toml").schema()
    return Schema([*schema.features, *more], schema.label)


def _adult(name: str) -> Task:
    """Return the task with all 14 attributes, including the survey's weight."""
    return Task(
        name,
        "adult",
        _extend_schema("adult", [*_numbers({(10_000, 1_500_000): "fnlwgt"}), EDUCATION]),
        "age",
    )


def _bank(name: str) -> Task:
    """Return the task with the length of the call, which is known only after it."""
    return Task(
        name, "bank_marketing", _extend_schema("bank", _numbers({(0, 5_000): "duration"})), "age"
    )


def _bike(name: str) -> Task:
    """Return the task on calendar and weather.

    The label has the range of the file, so that its error compares with figures on [-1, 1].
    """
    schema = Schema([*_codes(BIKE_CODES), *_numbers(BIKE_NUMBERS)], label=Numeric("cnt", 1, 977))
    return Task(name, "bike_sharing_hour", schema, "temp")


def _news(name: str) -> Task:
    label: Feature = Categorical("popular", ["no", "yes"])
    if name == "news_number":
        label = Numeric("log_shares", 0, 6)
    return Task(
        name,
        "online_news_sample",
        Schema([*_numbers(NEWS_NUMBERS), *_codes(NEWS_CODES)], label),
        "n_tokens_title",
    )


def _retinopathy(name: str) -> Task:
    schema = Schema(
        [*_codes(EYE_CODES), *_numbers(EYE_NUMBERS)], label=Categorical("class", ["0", "1"])
    )
    return Task(name, "diabetic_retinopathy", schema, "ma_alpha_0_5", 10)


def _phishing(name: str) -> Task:
    return Task(name, "phishing_websites", _extend_schema("phishing"), None)


TASKS: Mapping[str, Callable[[str], Task]] = {
    "adult": _adult,
    "bank": _bank,
    "bike": _bike,
    "news": _news,
    "retinopathy": _retinopathy,
    "phishing": _phishing,
    "news_number": _news,
}
"""The tasks; the last one is that of the paper's Table 2.

The paper does not state its scale: the logarithm of base 10 is predicted.
"""

_GRADES = "Preschool 1st-4th 5th-6th 7th-8th 9th 10th 11th 12th HS-grad"
_AFTER_SCHOOL = "Some-college Assoc-voc Assoc-acdm Bachelors Masters Prof-school Doctorate"
EDUCATION = Categorical("education", [*_GRADES.split(), *_AFTER_SCHOOL.split()], missing=False)
BIKE_CODES = {
    range(2): "yr holiday workingday",
    range(1, 5): "season weathersit",
    range(7): "weekday",
    range(1, 13): "mnth",
    range(24): "hr",
}
"""Eight categories, the number that the paper states."""
BIKE_NUMBERS: Ranges = {(0, 1): "temp atemp hum windspeed"}
NEWS_CODES = {
    range(2): """
        data_channel_is_lifestyle data_channel_is_entertainment data_channel_is_bus
        data_channel_is_socmed data_channel_is_tech data_channel_is_world
        weekday_is_monday weekday_is_tuesday weekday_is_wednesday weekday_is_thursday
        weekday_is_friday weekday_is_saturday weekday_is_sunday is_weekend"""
}
"""Fourteen categories, the number that the paper states."""
NEWS_NUMBERS: Ranges = {
    (0, 1): """
        n_unique_tokens n_non_stop_words n_non_stop_unique_tokens
        LDA_00 LDA_01 LDA_02 LDA_03 LDA_04 global_subjectivity
        rate_positive_words rate_negative_words avg_positive_polarity min_positive_polarity
        max_positive_polarity title_subjectivity abs_title_sentiment_polarity""",
    (-1, 0): "avg_negative_polarity min_negative_polarity max_negative_polarity",
    (-1, 1): "title_sentiment_polarity",
    (0, 0.5): "abs_title_subjectivity",
    (-0.4, 0.75): "global_sentiment_polarity",
    (0, 0.16): "global_rate_positive_words global_rate_negative_words",
    (2, 20): "n_tokens_title",
    (0, 8_500): "n_tokens_content",
    (0, 6.8): "average_token_length",
    (0, 180): "num_hrefs",
    (0, 120): "num_self_hrefs num_imgs",
    (0, 80): "num_videos",
    (1, 10): "num_keywords",
    (-1, 400): "kw_min_min",
    (0, 130_000): "kw_max_min",
    (-1, 22_000): "kw_avg_min",
    (0, 3_700): "kw_min_avg",
    (0, 240_000): "kw_max_avg",
    (0, 38_000): "kw_avg_avg",
    (0, 850_000): """
        kw_min_max kw_max_max kw_avg_max
        self_reference_min_shares self_reference_max_shares self_reference_avg_sharess""",
}
EYE_CODES = {range(2): "quality prescreen am_fm_class"}
EYE_NUMBERS: Ranges = {
    (1, 155): "ma_alpha_0_5",
    (1, 135): "ma_alpha_0_6",
    (1, 120): "ma_alpha_0_7",
    (1, 105): "ma_alpha_0_8",
    (1, 100): "ma_alpha_0_9",
    (1, 90): "ma_alpha_1_0",
    (0, 410): "exudate_1",
    (0, 170): "exudate_2",
    (0, 110): "exudate_3",
    (0, 60): "exudate_4",
    (0, 55): "exudate_5",
    (0, 20.5): "exudate_6",
    (0, 6.5): "exudate_7",
    (0, 3.5): "exudate_8",
    (0.35, 0.6): "macula_opticdisc_distance",
    (0.05, 0.25): "opticdisc_diameter",
}
