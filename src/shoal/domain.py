"""The public shape of the data: features with declared ranges or categories, and the label.

Nothing here is read from the data (`Schema.infer` apart, which warns): ranges, categories, cut points and groups are public
knowledge, written down by the analyst, and therefore free. Missing values are a category of their own.

An error about data names the feature and the row, and never repeats the value, which is private.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import SpecError

Columns = Mapping[str, npt.NDArray[Any]]
Outside = Literal["error", "clip"]

MAX_CATEGORIES = 10_000


class SchemaInferredWarning(UserWarning):
    """Ranges and categories were read from the data, which is not a private act."""


@dataclass(frozen=True)
class Numeric:
    """A number in a public range.

    Parameters
    ----------
    name
        Name of the column.
    low, high
        Public range; a value outside it is an error (or is clipped, in prediction).
    bins
        Public cut points inside the range; None lets the protocol choose, privately and charged.
    missing
        Whether values may be missing. They get a category of their own; declare False to save it.

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
        if not (_is_number(self.low) and _is_number(self.high) and self.low < self.high and _is_number(float(self.high) - float(self.low))):
            raise SpecError(
                "SCHEMA-002",
                f"{self.name}: the range from {self.low!r} to {self.high!r} is not a range of numbers.",
                fix="Give two finite numbers, the smaller one first.",
            )
        if self.bins is None:
            return
        cuts = _as_tuple(self.bins)
        object.__setattr__(self, "bins", cuts)
        if not all(_is_number(cut) and self.low <= cut < self.high for cut in cuts) or list(cuts) != sorted(set(cuts)):
            raise SpecError(
                "SCHEMA-003",
                f"{self.name}: the cut points {list(cuts)!r} do not cut the range [{self.low}, {self.high}].",
                fix="Give rising numbers, each at least the lowest value and below the highest.",
            )

    @property
    def n_bins(self) -> int | None:
        """Cells of the declared bins, the one for missing values included; None where none are declared."""
        return None if self.bins is None else len(self.bins) + 1 + self.missing

    def encode(self, column: npt.NDArray[Any], outside: Outside = "error") -> npt.NDArray[np.float64]:
        """The column as floats; missing values become NaN."""
        numbers = _to_numbers(self.name, column)
        self._check_missing(np.isnan(numbers))
        strange = (numbers < self.low) | (numbers > self.high)
        if outside == "clip":
            return np.clip(numbers, self.low, self.high)
        if strange.any():
            raise SpecError(
                "DATA-002",
                f"{self.name}: {_rows(strange)} outside the declared range [{self.low}, {self.high}].",
                why="The range is public and fixed by the study; a value outside it would break the guarantee.",
                fix="Correct or remove the rows, or ask the analyst for a wider range.",
            )
        return numbers

    def cut(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Bin of each encoded number: how many cut points lie below it; missing values come last."""
        cuts = np.asarray(self.bins or (), np.float64)
        return np.where(np.isnan(numbers), cuts.size + 1, np.searchsorted(cuts, numbers, side="left"))

    def _check_missing(self, gone: npt.NDArray[np.bool_]) -> None:
        if not self.missing and gone.any():
            raise _missing_error(self.name, gone)


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
        Whether values may be missing. They get a category of their own; declare False to save it.

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
        values = _as_tuple(self.values)
        object.__setattr__(self, "values", values)
        if not all(isinstance(value, str) and value for value in values) or not 2 <= len(set(values)) == len(values):
            raise SpecError(
                "SCHEMA-004",
                f"{self.name}: {len(values)} values are declared, which are not two or more different, non-empty texts.",
                fix='List every value once, in quotes: ["no", "yes"]',
            )
        if len(values) > MAX_CATEGORIES:
            raise SpecError("SCHEMA-004", f"{self.name}: {len(values)} values; at most {MAX_CATEGORIES} are supported.")
        if self.groups is not None:
            self._check_groups(self.groups)

    def _check_groups(self, groups: Mapping[str, Sequence[str]]) -> None:
        members_of = {str(name): _as_tuple(members) for name, members in groups.items()}
        grouped = [repr(value) for members in members_of.values() for value in members]
        declared = [repr(value) for value in self.values]
        if len(members_of) < 2 or not all(members_of.values()) or sorted(grouped) != sorted(declared):
            raise SpecError(
                "SCHEMA-005",
                f"{self.name}: the groups {sorted(members_of)} do not divide the declared values among them.",
                why=f"{len(declared)} values are declared, {len(set(grouped) & set(declared))} of them are named in {len(groups)} groups.",
                fix="Name every declared value in exactly one of two or more groups.",
            )
        object.__setattr__(self, "groups", members_of)

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.values), self.missing))

    @property
    def n_bins(self) -> int:
        """Cells: groups where they are declared, else values; the one for missing values included."""
        return len(self.groups if self.groups is not None else self.values) + self.missing

    def encode(self, column: npt.NDArray[Any], outside: Outside = "error") -> npt.NDArray[np.int64]:
        """Positions in `values`; -1 for missing, and for unseen values where they are clipped."""
        texts = [cell_text(value) for value in column]
        position: dict[str | None, int] = {value: i for i, value in enumerate(self.values)}
        unseen = np.array([text is not None and text not in position for text in texts], bool)
        if outside == "error" and unseen.any():
            raise SpecError(
                "DATA-003",
                f"{self.name}: {_rows(unseen)} not among the {len(self.values)} declared ones.",
                why="The list of values is public and fixed by the study; the value itself is private and not repeated here.",
                fix="Correct the rows, or ask the analyst to declare the value.",
            )
        codes = np.array([position.get(text, -1) for text in texts], np.int64)
        if outside == "error" and not self.missing and (codes < 0).any():
            raise _missing_error(self.name, codes < 0)
        return codes

    def cut(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Bin of each encoded value: its group, or itself; missing values come last."""
        home = np.arange(len(self.values))
        if self.groups is not None:
            group_of = {value: i for i, members in enumerate(self.groups.values()) for value in members}
            home = np.array([group_of[value] for value in self.values])
        n_known = len(self.groups if self.groups is not None else self.values)
        return np.where(codes < 0, n_known, home[codes])


Feature = Numeric | Categorical


@dataclass(frozen=True)
class Schema:
    """The features that a study may ask about, and its label.

    Examples
    --------
    >>> schema = Schema([Numeric("age", 17, 90)], label=Categorical("income", ["<=50K", ">50K"]))
    >>> schema.names, schema["age"].high, schema.label.values
    (('age',), 90, ('<=50K', '>50K'))
    """

    features: Sequence[Feature]
    label: Feature | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        names = [feature.name for feature in (*self.features, *([self.label] if self.label else []))]
        twice = sorted(name for name, n in Counter(names).items() if n > 1)
        if not self.features or twice:
            raise SpecError(
                "SCHEMA-001",
                f"The schema names {', '.join(twice)} twice." if twice else "The schema has no features.",
                fix="Give at least one feature, and every feature and the label a name of its own.",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, in order, without the label."""
        return tuple(feature.name for feature in self.features)

    def __getitem__(self, name: str) -> Feature:
        for feature in (*self.features, *([self.label] if self.label else [])):
            if feature.name == name:
                return feature
        raise KeyError(name)

    def encode(self, columns: Columns, outside: Outside = "error") -> dict[str, npt.NDArray[Any]]:
        """The features' columns, checked against the schema and turned into numbers and positions."""
        return {feature.name: feature.encode(_column(columns, feature.name), outside) for feature in self.features}

    def encode_label(self, columns: Columns) -> npt.NDArray[Any]:
        """The label's column, checked against the schema; a label must not be missing."""
        if self.label is None:
            raise SpecError("SCHEMA-001", "The schema declares no label.", fix="Give Schema(..., label=...).")
        codes = self.label.encode(_column(columns, self.label.name))
        gone = codes < 0 if isinstance(self.label, Categorical) else np.isnan(codes)
        if gone.any():
            raise _missing_error(self.label.name, gone)
        return codes

    @classmethod
    def infer(cls, columns: Columns, label: str | None = None) -> Schema:
        """A schema with the ranges and categories that the data has. Fine in a simulation; not a private act."""
        warnings.warn(
            "Ranges and categories were read from the data; nothing fitted with this schema may be released. "
            "Declare a Schema to be private.",
            SchemaInferredWarning,
            stacklevel=2,
        )
        if label is not None:
            _column(columns, label)
        features = {name: _infer(name, column) for name, column in columns.items()}
        return cls(tuple(f for name, f in features.items() if name != label), features[label] if label is not None else None)


def _infer(name: str, column: npt.NDArray[Any]) -> Feature:
    texts = {cell_text(value) for value in column}
    known = texts - {None}
    try:
        numbers = _to_numbers(name, column)
    except SpecError:
        numbers = np.full(1, np.nan)
    if np.isfinite(numbers).any():
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        return Numeric(name, low, high if high > low else low + 1.0, missing=None in texts)
    values = sorted(str(text) for text in known)
    while len(values) < 2:
        values.append("other" if "other" not in values else "another")
    return Categorical(name, tuple(values), missing=None in texts)


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
        raise SpecError("SCHEMA-001", f"{name!r:.60} cannot name a feature.", fix="Use a short, printable text.")


def _column(columns: Columns, name: str) -> npt.NDArray[Any]:
    if name not in columns:
        have = ", ".join(list(columns)[:12]) or "none"
        raise SpecError("DATA-001", f"The data has no column {name}.", why=f"Its columns are: {have}.", fix="Rename or add the column.")
    return columns[name]


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _as_tuple(items: object) -> tuple[Any, ...]:
    """A declared list as a tuple; a text, or what is no list at all, becomes a list of None, which the caller refuses."""
    return tuple(items) if isinstance(items, Iterable) and not isinstance(items, (str, bytes)) else (None,)


def cell_text(value: Any) -> str | None:
    """A cell as a category's text; None where it is missing. Whole floats read as integers: dataframes turn 3 into 3.0."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, (str, bytes)):
        return str(value) or None
    if isinstance(value, (float, np.floating)) and math.isnan(value):
        return None
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _to_numbers(name: str, column: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    column = np.asarray(column)
    try:
        if column.dtype.kind in "biuf":
            numbers = column.astype(np.float64)
        else:
            numbers = np.array([_to_number(value) for value in column], np.float64)
    except (TypeError, ValueError, OverflowError):
        strange = np.array([not _reads_as_number(value) for value in column], bool)
        raise SpecError("DATA-004", f"{name}: {_rows(strange)} not a number.", fix="Correct the rows, or leave the cell empty.") from None
    if np.isinf(numbers).any():
        raise SpecError("DATA-004", f"{name}: {_rows(np.isinf(numbers))} infinite.", fix="Correct the rows, or leave the cell empty.")
    return numbers


def _to_number(value: Any) -> float:
    # Python reads 1_000 as a thousand; in a table it is a slip of the pen.
    if isinstance(value, str) and "_" in value:
        raise ValueError
    return math.nan if cell_text(value) is None else float(value)


def _reads_as_number(value: Any) -> bool:
    try:
        _to_number(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _rows(mask: npt.NDArray[np.bool_]) -> str:
    """Where a fault is, without the value: "row 17 has a value that is" or "3 rows, the first of them row 17, have values that are"."""
    first, n = int(np.flatnonzero(mask)[0]) + 1, int(mask.sum())
    return f"row {first} has a value that is" if n == 1 else f"{n} rows, the first of them row {first}, have values that are"


def _missing_error(name: str, gone: npt.NDArray[np.bool_]) -> SpecError:
    return SpecError(
        "DATA-005",
        f"{name}: {_rows(gone)} missing.",
        why="The study declares that this column is always known.",
        fix="Fill in or remove the rows, or ask the analyst to allow missing values.",
    )


def as_columns(columns: Mapping[str, Iterable[object]]) -> dict[str, npt.NDArray[Any]]:
    """Any mapping of columns as arrays."""
    return {name: column if isinstance(column, np.ndarray) else np.array(list(column), object) for name, column in columns.items()}
