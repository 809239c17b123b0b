"""The public shape of the data: features with declared ranges or categories, and the label.

Nothing here is read from the data (`Schema.infer` apart, which warns): ranges, categories, cut points and groups are public
knowledge, written down by the analyst, and therefore free. Missing values are a category of their own.

An error about data names the feature and the row, and never repeats the value, which is private. Nor does it repeat the name of a
column that the schema does not know: in a table without a header that is a cell.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.cells import as_column, to_numbers, to_texts, where
from shoal.errors import SpecError
from shoal.features import MAX_CATEGORIES, Categorical, Feature, Numeric, Outside, Text, is_name, listed

__all__ = [
    "MAX_CATEGORIES",
    "Categorical",
    "Columns",
    "Feature",
    "Numeric",
    "Schema",
    "SchemaInferredWarning",
    "Text",
    "as_columns",
    "categories_of",
    "missing_column",
    "numbers_of",
    "range_of",
]

Columns = Mapping[str, npt.NDArray[Any]]


class SchemaInferredWarning(UserWarning):
    """Ranges and categories were read from the data, which is not a private act."""


@dataclass(frozen=True)
class Schema:
    """The features that a study may ask about, its label, and texts, which DDML alone can learn from.

    Examples
    --------
    >>> schema = Schema([Numeric("age", 17, 90)], label=Categorical("income", ["<=50K", ">50K"]))
    >>> schema.names, schema["age"].high, schema.label.values
    (('age',), 90, ('<=50K', '>50K'))
    """

    features: Sequence[Feature]
    label: Feature | None = None
    texts: Sequence[Text] = ()

    def __post_init__(self) -> None:
        features = listed(self.features)
        texts = listed(self.texts)
        if features is None or not all(isinstance(part, Numeric | Categorical) for part in (*features, *self._labels)):
            raise SpecError(
                "SCHEMA-001",
                "The schema is made of something else than Numeric and Categorical.",
                fix='Schema([Numeric("age", 17, 90)], label=Categorical("ill", ["no", "yes"])); texts apart, as texts=[Text("query")]',
            )
        if texts is None or not all(isinstance(part, Text) for part in texts):
            raise SpecError("SCHEMA-001", "The schema's texts are something else than Text.", fix='Schema([...], texts=[Text("query")])')
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "texts", texts)
        names = [part.name for part in (*features, *texts, *self._labels)]
        twice = sorted(name for name, n in Counter(names).items() if n > 1)
        if not (features or texts) or twice:
            raise SpecError(
                "SCHEMA-001",
                f"The schema names {', '.join(twice)} twice." if twice else "The schema has no features.",
                fix="Give at least one feature, and every feature and the label a name of its own.",
            )

    @property
    def _labels(self) -> tuple[Feature, ...]:
        return () if self.label is None else (self.label,)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, in order, without the label."""
        return tuple(feature.name for feature in self.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the features and then of the texts, without the label."""
        return (*self.names, *(text.name for text in self.texts))

    def __getitem__(self, name: str) -> Feature:
        for feature in (*self.features, *self._labels):
            if feature.name == name:
                return feature
        raise KeyError(name)

    def encode(self, columns: Columns, outside: Outside = "error") -> dict[str, npt.NDArray[Any]]:
        """The features' columns, checked against the schema and turned into numbers and positions; texts into buckets of n-grams."""
        arrays = self._arrays(columns, self.columns)
        return {part.name: part.encode(arrays[part.name], outside) for part in (*self.features, *self.texts)}

    def encode_label(self, columns: Columns) -> npt.NDArray[Any]:
        """The label's column, checked against the schema; a label must not be missing."""
        if self.label is None:
            raise SpecError("SCHEMA-001", "The schema declares no label.", fix="Give Schema(..., label=...).")
        column = self._arrays(columns, (self.label.name,))[self.label.name]
        codes = replace(self.label, missing=True).encode(column)
        gone = codes < 0 if isinstance(self.label, Categorical) else np.isnan(codes)
        if gone.any():
            raise SpecError(
                "DATA-005",
                f"{self.label.name}: {where(gone)} missing.",
                why="This column is the label, and a label is always known.",
                fix="Fill in or remove the rows.",
            )
        return codes

    def _arrays(self, columns: Columns, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Every column of the schema that is there, all of one length; an error where one that is wanted is not."""
        names = [part.name for part in (*self.features, *self.texts, *self._labels)]
        known = [name for name in names if name in columns]
        for name in wanted:
            if name not in known:
                raise missing_column(name, len(list(columns)), f"Columns that are declared: {len(names)}; found: {len(known)}.")
        arrays = {name: as_column(name, columns[name]) for name in known}
        lengths = sorted({len(array) for array in arrays.values()})
        if len(lengths) > 1:
            what = f"The columns have different lengths: {', '.join(map(str, lengths[:12]))}."
            raise SpecError("DATA-007", what, fix="Give every row a cell in each column.")
        return arrays

    @classmethod
    def infer(cls, columns: Columns, label: str | None = None) -> Schema:
        """A schema with the ranges and categories that the data has. Fine in a simulation; not a private act."""
        warnings.warn(
            "Ranges and categories were read from the data; nothing fitted with this schema may be released. "
            "Declare a Schema to be private.",
            SchemaInferredWarning,
            stacklevel=2,
        )
        if label is not None and label not in columns:
            raise missing_column(label, len(list(columns)))
        for i, name in enumerate(columns):
            if not is_name(name):
                raise SpecError("DATA-007", f"Column {i + 1} has a name that no feature can have.", fix="Give it a short, printable name.")
        features = {name: _infer(name, as_column(name, column)) for name, column in columns.items()}
        return cls(tuple(f for name, f in features.items() if name != label), features[label] if label is not None else None)


def _infer(name: str, column: npt.NDArray[Any]) -> Feature:
    """The range or the categories that a column has: read from the data, which is not a private act."""
    numbers = numbers_of(name, column)
    return categories_of(name, to_texts(name, column)) if numbers is None else range_of(name, numbers)


def numbers_of(name: str, column: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """The cells of a column of numbers; None where one is no number, or all are missing."""
    try:
        numbers = to_numbers(name, column)
    except SpecError:
        return None
    return None if np.isnan(numbers).all() else numbers


def range_of(name: str, numbers: npt.NDArray[np.float64]) -> Numeric:
    """A number with the range that a column has."""
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    high = high if high > low else low + max(1.0, abs(low) * 1e-9)
    if not math.isfinite(high - low):
        raise SpecError("DATA-004", f"{name}: the numbers lie too far apart to have a range.", fix="Correct or remove the column.")
    return Numeric(name, low, high, missing=bool(np.isnan(numbers).any()))


def categories_of(name: str, texts: Sequence[str | None]) -> Categorical:
    """A category with the values that a column has, and made-up ones where it has less than two."""
    values = sorted({text for text in texts if text is not None})
    values += [text for text in ("other", "another") if text not in values][: max(0, 2 - len(values))]
    return Categorical(name, values, missing=None in texts)


def missing_column(name: str, n_columns: int, declared: str = "") -> SpecError:
    """What to say where a column is not there. The names that are there may be cells of a table without a header: they are not repeated."""
    why = f"Columns in the data: {n_columns}. {declared}".strip()
    fix = "Rename or add the column. Does the first line of the file name the columns, with commas between?"
    return SpecError("DATA-001", f"The data has no column {name}.", why=why, fix=fix)


def as_columns(columns: Mapping[str, Iterable[object]]) -> dict[str, npt.NDArray[Any]]:
    """Any mapping of columns as arrays."""
    return {name: as_column(str(name), column) for name, column in columns.items()}
