"""Feature types: Numeric, Categorical and Text, and how each encodes a column.

A `Schema` is made of them: numbers with a public range, categories with a public list of values,
and texts as hashed n-grams. `encode` turns cells into numbers or positions.

Invariant: encodings are equal on every machine, and an error never repeats a cell, which is
private.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.data.cells import as_column, describe_rows, map_texts, parse_numbers, to_numbers
from shoal.errors import SpecError
from shoal.text import format_count

MAX_NGRAM = 3
MAX_BUCKETS = 1 << 20
MAX_GRAMS = 256
"""Largest number of different n-grams of one text; later ones are left out.

This bounds the size of a row.
"""

_WORD = re.compile(r"\w+")


def hash_ngrams(text: str, max_length: int, buckets: int) -> npt.NDArray[np.int64]:
    """Return the buckets of a text's n-grams, each once and in rising order.

    N-grams have one to ``max_length`` words.

    Notes
    -----
    Ref: DDML §VI-B (uni-, bi- and tri-grams).

    Examples
    --------
    >>> hash_ngrams("red fish", 2, 1000).size, hash_ngrams("", 2, 1000).size
    (3, 0)
    """
    words = _WORD.findall(text.casefold())[:MAX_GRAMS]
    grams = [
        " ".join(words[start : start + n])
        for n in range(1, max_length + 1)
        for start in range(len(words) - n + 1)
    ]
    unique = list(dict.fromkeys(grams))[:MAX_GRAMS]
    return np.unique(
        np.fromiter((_hash_to_bucket(gram, buckets) for gram in unique), np.int64, len(unique))
    )


def _hash_to_bucket(gram: str, buckets: int) -> int:
    return int.from_bytes(blake2b(gram.encode(), digest_size=8).digest(), "big") % buckets


OutsidePolicy = Literal["error", "clip"]

MAX_CATEGORIES = 10_000
MAX_NAME = 200

_MISSING, _UNSEEN = -1, -2


@dataclass(frozen=True)
class FittedColumn:
    """A column whose cells were changed to fit the schema.

    Parameters
    ----------
    cells
        The encoded cells. Those of unusable rows have no meaning.
    changed
        Cells outside the range, which were clipped, and cells that became missing values.
    unusable
        Cells that the feature cannot represent: their rows must be left out.
    """

    cells: npt.NDArray[Any]
    changed: npt.NDArray[np.bool_]
    unusable: npt.NDArray[np.bool_]


def is_name(name: object) -> bool:
    """Return whether a text can name a feature: short, printable, no spaces around it."""
    return _is_value(name) and len(str(name)) <= MAX_NAME and str(name).isprintable()


@dataclass(frozen=True)
class Numeric:
    """A number in a public range.

    Parameters
    ----------
    name
        Name of the column.
    low, high
        Public range. `fit` and predictions clip a value outside it; `encode` rejects it.
    bins
        Public cut points inside the range; None lets the protocol choose, privately and charged.
    missing
        Whether values may be missing. They get a separate category; False avoids this category.

    Examples
    --------
    >>> Numeric("age", 17, 90, bins=[30, 45, 60]).cut(np.array([17.0, 30.0, 31.0, np.nan]))
    array([0, 0, 1, 4])
    """

    name: str
    low: float
    high: float
    bins: Sequence[float] | None = None
    missing: bool = True

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not (
            _is_number(self.low)
            and _is_number(self.high)
            and self.low < self.high
            and _is_number(float(self.high) - float(self.low))
        ):
            raise SpecError(
                "SCHEMA-002",
                f"{self.name}: the range from {self.low!r} to {self.high!r} is not a range of "
                "finite numbers.",
                fix="Give two finite numbers, the smaller one first.",
            )
        if self.bins is None:
            return
        cuts = as_tuple(self.bins)
        if cuts is None:
            raise SpecError(
                "SCHEMA-003",
                f"{self.name}: the cut points {self.bins!a:.60} are not a list.",
                fix="Give a list: bins=[0.5, 2]",
            )
        object.__setattr__(self, "bins", cuts)
        if not all(_is_number(cut) and self.low <= cut < self.high for cut in cuts) or list(
            cuts
        ) != sorted(set(cuts)):
            raise SpecError(
                "SCHEMA-003",
                f"{self.name}: the cut points {list(cuts)!r} do not cut the range [{self.low}, "
                f"{self.high}].",
                fix="Give rising numbers, each at least the lowest value and below the highest.",
            )

    @property
    def n_bins(self) -> int | None:
        """Number of declared bins, missing values included; None if none are declared."""
        return None if self.bins is None else len(self.bins) + 1 + self.missing

    def encode(
        self, column: npt.NDArray[Any], outside: OutsidePolicy = "error"
    ) -> npt.NDArray[np.float64]:
        """Return the column as floats, with NaN for missing values.

        A missing value is an error if the feature allows none, clipped or not.
        """
        numbers = to_numbers(self.name, as_column(self.name, column))
        if not self.missing and np.isnan(numbers).any():
            raise _missing_value_error(self.name, np.isnan(numbers))
        is_outside = (numbers < self.low) | (numbers > self.high)
        if outside == "clip":
            return np.clip(numbers, self.low, self.high)
        if is_outside.any():
            raise SpecError(
                "DATA-002",
                f"{self.name}: {describe_rows(is_outside)} outside the declared range [{self.low}, "
                f"{self.high}].",
                why="The range is public and fixed by the study; a value outside it would break "
                "the guarantee.",
                fix="Correct or remove the rows, or ask the analyst for a wider range.",
            )
        return numbers

    def fit(self, column: npt.NDArray[Any]) -> FittedColumn:
        """Encode a column; clip numbers to the range, and count other cells as missing."""
        numbers = parse_numbers(as_column(self.name, column))
        strange = np.isinf(numbers)
        numbers[strange] = np.nan
        outside = (numbers < self.low) | (numbers > self.high)
        gone = np.isnan(numbers) & (not self.missing)
        clipped = np.clip(numbers, self.low, self.high)
        return FittedColumn(clipped, (outside | strange) & ~gone, gone)

    def cut(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the bin of each number: how many cut points are below it; missing last."""
        cuts = np.asarray(self.bins or (), np.float64)
        return np.where(
            np.isnan(numbers), cuts.size + 1, np.searchsorted(cuts, numbers, side="left")
        )


@dataclass(frozen=True)
class Categorical:
    """One of a public list of values.

    Parameters
    ----------
    name
        Name of the column.
    values
        All values, as text.
    groups
        Public grouping: name of the group -> its values. Every value belongs to exactly one group.
    missing
        Whether values may be missing. They get a separate category; False avoids this category.

    Examples
    --------
    >>> Categorical("sex", ["Female", "Male"]).encode(np.array(["Male", "Female", ""], object))
    array([ 1,  0, -1])
    """

    name: str
    values: Sequence[str]
    groups: Mapping[str, Sequence[str]] | None = None
    missing: bool = True

    def __post_init__(self) -> None:
        _check_name(self.name)
        values = as_tuple(self.values)
        if (
            values is None
            or not all(_is_value(value) for value in values)
            or not 2 <= len(set(values)) == len(values)
        ):
            declared = (
                "the declared values"
                if values is None
                else f"the {format_count(len(values), 'declared value')}"
            )
            raise SpecError(
                "SCHEMA-004",
                f"{self.name}: {declared} should be a list of two or more different, non-empty "
                "texts without spaces around them.",
                fix='List every value once, in quotes: ["no", "yes"]',
            )
        object.__setattr__(self, "values", values)
        if len(values) > MAX_CATEGORIES:
            raise SpecError(
                "SCHEMA-004",
                f"{self.name}: {len(values):,} values; at most {MAX_CATEGORIES:,} are supported.",
            )
        if self.groups is not None:
            self._check_groups(self.groups)

    def _check_groups(self, groups: object) -> None:
        if not isinstance(groups, Mapping):
            fix = 'Give a mapping: groups={"north": ["NO"], "south": ["ES", "IT"]}'
            raise SpecError(
                "SCHEMA-005",
                f"{self.name}: the groups are not a mapping of names to values.",
                fix=fix,
            )
        members_of = {str(name): as_tuple(members) or () for name, members in groups.items()}
        grouped = [repr(value) for members in members_of.values() for value in members]
        declared = [repr(value) for value in self.values]
        if (
            len(members_of) < 2
            or not all(members_of.values())
            or sorted(grouped) != sorted(declared)
        ):
            raise SpecError(
                "SCHEMA-005",
                f"{self.name}: the groups {sorted(members_of)} do not divide the declared values "
                "among them.",
                why=f"Groups: {len(groups)}. Declared values: {len(declared)}. Of these in a "
                f"group: {len(set(grouped) & set(declared))}.",
                fix="Name every declared value in exactly one of two or more groups.",
            )
        object.__setattr__(self, "groups", members_of)

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.values), self.missing))

    @property
    def n_bins(self) -> int:
        """Number of bins: groups if declared, else values; missing values included."""
        return len(self.groups if self.groups is not None else self.values) + self.missing

    def encode(
        self, column: npt.NDArray[Any], outside: OutsidePolicy = "error"
    ) -> npt.NDArray[np.int64]:
        """Return positions in `values`, -1 for missing values.

        A missing value is an error if the feature allows none. With ``outside="clip"`` an unseen
        value also becomes -1.
        """
        codes = self._find_positions(column)
        unseen = codes == _UNSEEN
        if outside == "error" and unseen.any():
            raise SpecError(
                "DATA-003",
                f"{self.name}: {describe_rows(unseen)} not among the {len(self.values)} declared "
                "ones.",
                why="The list of values is public and fixed by the study; the value itself is "
                "private and not repeated here.",
                fix="Correct the rows, or ask the analyst to declare the value.",
            )
        if not self.missing and (codes == _MISSING).any():
            raise _missing_value_error(self.name, codes == _MISSING)
        codes[unseen] = _MISSING
        return codes

    def fit(self, column: npt.NDArray[Any]) -> FittedColumn:
        """Encode a column; count values that are not declared as missing."""
        codes = self._find_positions(column)
        unseen = codes == _UNSEEN
        gone = (codes < 0) & (not self.missing)
        codes[unseen] = _MISSING
        return FittedColumn(codes, unseen & ~gone, gone)

    def _find_positions(self, column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return positions in `values`, -1 for missing values and -2 for unseen ones."""
        cells = as_column(self.name, column)
        position: dict[str | None, int] = {
            None: _MISSING,
            **{value: i for i, value in enumerate(self.values)},
        }
        return np.fromiter(
            map_texts(self.name, cells, lambda text: position.get(text, _UNSEEN)),
            np.int64,
            len(cells),
        )

    def cut(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bin of each encoded value: its group, or itself; missing last."""
        bins = np.arange(len(self.values))
        if self.groups is not None:
            group_of = {
                value: i for i, members in enumerate(self.groups.values()) for value in members
            }
            bins = np.array([group_of[value] for value in self.values])
        n_known = len(self.groups if self.groups is not None else self.values)
        return np.where(codes < 0, n_known, bins[codes])


@dataclass(frozen=True)
class Text:
    """Free text: its n-grams, hashed into a public number of buckets.

    Parameters
    ----------
    name
        Name of the column.
    buckets
        Number of buckets; two n-grams with the same bucket count as the same.
    ngrams
        Longest run of words that counts: 1, 2 or 3.
    missing
        Whether texts may be missing; such a text has no n-grams.

    Examples
    --------
    >>> Text("query", buckets=1000).encode(np.array(["red fish", None], object))[1].size
    0
    """

    name: str
    buckets: int = 4096
    ngrams: int = 3
    missing: bool = True

    def __post_init__(self) -> None:
        _check_name(self.name)
        is_valid = (
            type(self.buckets) is int
            and 2 <= self.buckets <= MAX_BUCKETS
            and type(self.ngrams) is int
            and 1 <= self.ngrams <= MAX_NGRAM
        )
        if not is_valid:
            raise SpecError(
                "SCHEMA-006",
                f"{self.name}: {self.buckets!a:.20} buckets of n-grams up to {self.ngrams!a:.20} "
                "words cannot be used.",
                fix=f"Give 2 to {MAX_BUCKETS:,} buckets, and ngrams of 1 to {MAX_NGRAM}.",
            )

    def encode(
        self,
        column: npt.NDArray[Any],
        outside: OutsidePolicy = "error",  # noqa: ARG002 - no text is outside
    ) -> npt.NDArray[np.object_]:
        """Return for each text an array of the buckets of its n-grams, empty if it is missing.

        A missing text is an error if the feature allows none.
        """
        cells, is_missing = self._find_missing(column)
        if not self.missing and is_missing.any():
            raise _missing_value_error(self.name, is_missing)
        return self._hash_texts(cells)

    def fit(self, column: npt.NDArray[Any]) -> FittedColumn:
        """Encode a column; a missing text is unusable if the feature allows none."""
        cells, is_missing = self._find_missing(column)
        unusable = is_missing & (not self.missing)
        return FittedColumn(self._hash_texts(cells), np.zeros(len(cells), bool), unusable)

    def _find_missing(
        self, column: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        cells = as_column(self.name, column)
        return cells, np.fromiter(
            map_texts(self.name, cells, lambda text: text is None), bool, len(cells)
        )

    def _hash_texts(self, cells: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
        encoded = np.empty(len(cells), object)
        for i, grams in enumerate(
            map_texts(
                self.name, cells, lambda text: hash_ngrams(text or "", self.ngrams, self.buckets)
            )
        ):
            encoded[i] = grams
        return encoded


Feature = Numeric | Categorical


def _check_name(name: str) -> None:
    if not is_name(name):
        raise SpecError(
            "SCHEMA-001",
            f"{name!a:.60} cannot name a feature.",
            fix="Use a short, printable text without spaces around it.",
        )


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_value(value: object) -> bool:
    return isinstance(value, str) and value != "" and value == value.strip()


def as_tuple(items: object) -> tuple[Any, ...] | None:
    """Return a declared list as a tuple, or None if it is no list or has no order.

    All parties must number the values alike.
    """
    return (
        tuple(items)
        if isinstance(items, Iterable) and not isinstance(items, (str, bytes, Set))
        else None
    )


def _missing_value_error(name: str, is_missing: npt.NDArray[np.bool_]) -> SpecError:
    return SpecError(
        "DATA-005",
        f"{name}: {describe_rows(is_missing)} missing.",
        why="The study declares that this column has no missing values.",
        fix="Fill in or remove the rows, or ask the analyst to allow missing values.",
    )
