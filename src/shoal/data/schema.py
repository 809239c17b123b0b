"""Schema: features and label, encoding, cell names.

Studies, estimators and the command line make schemas; peers encode their rows with them.

Nothing here is read from the data (except by `Schema.infer`, which warns): ranges, categories, cut
points and groups are public knowledge, declared by the analyst, and therefore cost no budget.
Missing values are a separate category.

Invariant: an error about data names the feature and the row, and never repeats the value, which is
private. Nor does it repeat the name of a column that the schema does not know: in a table without a
header that is a cell.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.cells import as_column, describe_rows, to_numbers, to_texts
from shoal.data.features import (
    MAX_CATEGORIES,
    Categorical,
    Feature,
    Numeric,
    OutsidePolicy,
    Text,
    as_tuple,
    is_name,
)
from shoal.errors import SpecError

__all__ = [
    "MAX_CATEGORIES",
    "Categorical",
    "Columns",
    "Feature",
    "FittedRows",
    "Numeric",
    "Schema",
    "SchemaInferredWarning",
    "Text",
    "as_columns",
    "cell_names",
    "infer_categorical",
    "infer_numeric",
    "missing_column_error",
    "try_parse_numbers",
]

Columns = Mapping[str, npt.NDArray[Any]]


class SchemaInferredWarning(UserWarning):
    """Ranges and categories were read from the data, which is not private."""


@dataclass(frozen=True)
class FittedRows:
    """A table that `Schema.fit` has encoded, and what did not fit.

    Parameters
    ----------
    columns, labels
        As `Schema.encode` and `Schema.encode_label` return them.
    changed
        Number of changed cells by column, in the rows that are used.
    unusable
        Number of cells by column for which rows were left out.
    n_left_out
        Number of rows that were left out.
    """

    columns: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]
    changed: Mapping[str, int]
    unusable: Mapping[str, int]
    n_left_out: int


@dataclass(frozen=True)
class Schema:
    """The features that a study may ask about, its label, and texts, which only DDML can use.

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
        features = as_tuple(self.features)
        texts = as_tuple(self.texts)
        if features is None or not all(
            isinstance(part, Numeric | Categorical) for part in (*features, *self._labels)
        ):
            raise SpecError(
                "SCHEMA-001",
                "The schema contains something other than Numeric and Categorical.",
                fix='Schema([Numeric("age", 17, 90)], label=Categorical("ill", ["no", "yes"])); '
                'give texts separately, as texts=[Text("query")]',
            )
        if texts is None or not all(isinstance(part, Text) for part in texts):
            raise SpecError(
                "SCHEMA-001",
                "The schema's texts contain something other than Text.",
                fix='Schema([...], texts=[Text("query")])',
            )
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "texts", texts)
        names = [part.name for part in (*features, *texts, *self._labels)]
        twice = sorted(name for name, n in Counter(names).items() if n > 1)
        if not (features or texts) or twice:
            raise SpecError(
                "SCHEMA-001",
                f"The schema names {', '.join(twice)} twice."
                if twice
                else "The schema has no features.",
                fix="Give at least one feature, and different names to features and label.",
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

    def encode(
        self, columns: Columns, outside: OutsidePolicy = "error"
    ) -> dict[str, npt.NDArray[Any]]:
        """Check the features' columns and encode them as numbers and positions.

        Texts become buckets of n-grams.
        """
        arrays = self._collect_arrays(columns, self.columns)
        return {
            part.name: part.encode(arrays[part.name], outside)
            for part in (*self.features, *self.texts)
        }

    def encode_label(self, columns: Columns) -> npt.NDArray[Any]:
        """Check and encode the label's column; a label must not be missing."""
        if self.label is None:
            raise SpecError(
                "SCHEMA-001", "The schema declares no label.", fix="Give Schema(..., label=...)."
            )
        column = self._collect_arrays(columns, (self.label.name,))[self.label.name]
        codes = replace(self.label, missing=True).encode(column)
        is_missing = codes < 0 if isinstance(self.label, Categorical) else np.isnan(codes)
        if is_missing.any():
            raise SpecError(
                "DATA-005",
                f"{self.label.name}: {describe_rows(is_missing)} missing.",
                why="This column is the label, and a label must not be missing.",
                fix="Fill in or remove the rows.",
            )
        return codes

    def fit(self, columns: Columns) -> FittedRows:
        """Encode features and label; change cells that do not fit, and leave rows out.

        A number outside its range is moved to the nearest end. A value that is not declared, or
        that is no number, becomes a missing value. A row is left out if a column that allows no
        missing values has one, or if its label is missing or not declared.

        Privacy
        -------
        Each row is encoded on its own, or left out, whatever the other rows are. One row in the
        table is therefore at most one row in the result, inside the declared ranges, so that
        sensitivities do not change. The counts are about private rows, and are for their owner.
        """
        if self.label is None:
            raise SpecError(
                "SCHEMA-001", "The schema declares no label.", fix="Give Schema(..., label=...)."
            )
        arrays = self._collect_arrays(columns, (*self.columns, self.label.name))
        parts = (*self.features, *self.texts, replace(self.label, missing=False))
        fitted = {part.name: part.fit(arrays[part.name]) for part in parts}
        kept = ~np.logical_or.reduce([one.unusable for one in fitted.values()])
        encoded = {name: one.cells[kept] for name, one in fitted.items()}
        changed = {name: int((one.changed & kept).sum()) for name, one in fitted.items()}
        return FittedRows(
            {name: encoded[name] for name in self.columns},
            encoded[self.label.name],
            {name: n for name, n in changed.items() if n},
            {name: n for name, one in fitted.items() if (n := int(one.unusable.sum()))},
            int((~kept).sum()),
        )

    def _collect_arrays(
        self, columns: Columns, wanted: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return every column of the schema that the data has, all of one length.

        A wanted column that is missing is an error.
        """
        names = [part.name for part in (*self.features, *self.texts, *self._labels)]
        known = [name for name in names if name in columns]
        for name in wanted:
            if name not in known:
                raise missing_column_error(
                    name,
                    len(list(columns)),
                    f"Declared columns: {len(names)}; found: {len(known)}.",
                )
        arrays = {name: as_column(name, columns[name]) for name in known}
        lengths = sorted({len(array) for array in arrays.values()})
        if len(lengths) > 1:
            what = f"The columns have different lengths: {', '.join(map(str, lengths[:12]))}."
            raise SpecError("DATA-007", what, fix="Give every row a cell in each column.")
        return arrays

    @classmethod
    def infer(cls, columns: Columns, label: str | None = None) -> Schema:
        """Make a schema with the ranges and categories of the data.

        This is suitable for a simulation; it is not private.
        """
        warnings.warn(
            "Ranges and categories were read from the data; nothing fitted with this schema may "
            "be released. "
            "Declare a Schema to be private.",
            SchemaInferredWarning,
            stacklevel=2,
        )
        if label is not None and label not in columns:
            raise missing_column_error(label, len(list(columns)))
        for i, name in enumerate(columns):
            if not is_name(name):
                raise SpecError(
                    "DATA-007",
                    f"The name of column {i + 1} cannot name a feature.",
                    fix="Give it a short, printable name.",
                )
        features = {
            name: _infer_feature(name, as_column(name, column)) for name, column in columns.items()
        }
        return cls(
            tuple(f for name, f in features.items() if name != label),
            features[label] if label is not None else None,
        )


def _infer_feature(name: str, column: npt.NDArray[Any]) -> Feature:
    """Return a feature with the range or categories of a column; this is not private."""
    numbers = try_parse_numbers(name, column)
    return (
        infer_categorical(name, to_texts(name, column))
        if numbers is None
        else infer_numeric(name, numbers)
    )


def try_parse_numbers(name: str, column: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """Return a column as numbers, or None if a cell is no number or all are missing."""
    try:
        numbers = to_numbers(name, column)
    except SpecError:
        return None
    return None if np.isnan(numbers).all() else numbers


def infer_numeric(name: str, numbers: npt.NDArray[np.float64]) -> Numeric:
    """Return a numeric feature with the range of a column."""
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    high = high if high > low else low + max(1.0, abs(low) * 1e-9)
    if not math.isfinite(high - low):
        raise SpecError(
            "DATA-004",
            f"{name}: the range of the numbers is too large.",
            fix="Correct or remove the column.",
        )
    return Numeric(name, low, high, missing=bool(np.isnan(numbers).any()))


def infer_categorical(name: str, texts: Sequence[str | None]) -> Categorical:
    """Return a categorical feature with the values of a column.

    Placeholder values are added if it has fewer than two.
    """
    values = sorted({text for text in texts if text is not None})
    values += [text for text in ("other", "another") if text not in values][
        : max(0, 2 - len(values))
    ]
    return Categorical(name, values, missing=None in texts)


def missing_column_error(name: str, n_columns: int, declared: str = "") -> SpecError:
    """Return the error for a missing column.

    It does not repeat the names of other columns, which may be cells of a table without a header.
    """
    why = f"Columns in the data: {n_columns}. {declared}".strip()
    fix = (
        "Rename or add the column. Check that the first line of the file names the columns, "
        "separated by commas."
    )
    return SpecError("DATA-001", f"The data has no column {name}.", why=why, fix=fix)


def as_columns(columns: Mapping[str, Iterable[object]]) -> dict[str, npt.NDArray[Any]]:
    """Return a mapping of columns as arrays."""
    return {name: as_column(str(name), column) for name, column in columns.items()}


def cell_names(feature: Feature) -> tuple[str, ...]:
    """Return a unique name for each cell of a feature with bins, in the order of `cut`.

    Missing values come last.

    Examples
    --------
    >>> cell_names(Numeric("age", 17, 90, bins=[30, 45.5]))
    ('<= 30', '30 to 45.5', '> 45.5', 'missing')
    """
    names = (
        _format_ranges(feature.bins or ())
        if isinstance(feature, Numeric)
        else list(feature.values if feature.groups is None else feature.groups)
    )
    if feature.missing:
        missing = "missing"
        while missing in names:
            missing = f"({missing})"
        names.append(missing)
    return tuple(names)


def _format_ranges(cuts: Sequence[float]) -> list[str]:
    if not cuts:
        return ["any"]
    shown = [_format_number(cut) for cut in cuts]
    if len(set(shown)) < len(shown):
        shown = [repr(float(cut)) for cut in cuts]
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"<= {shown[0]}", *between, f"> {shown[-1]}"]


def _format_number(x: float) -> str:
    return str(int(x)) if x == int(x) and abs(x) < 1e15 else f"{x:.6g}"
