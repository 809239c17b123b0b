"""Inputs of estimators: columns, labels, schema and random source from fit's arguments.

All estimators use these functions. scikit-learn's own checks run first, with its errors: the length
of y, names of columns. Other errors have a code. So have those in which scikit-learn would quote
cells, since an error must not repeat private data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.base import is_regressor
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, validate_data

from shoal.data.cells import as_column, cell_text, describe_rows, to_numbers, to_texts
from shoal.data.schema import (
    Categorical,
    Columns,
    Feature,
    Schema,
    infer_numeric,
    try_parse_numbers,
)
from shoal.data.tables import Table, count_rows, from_frame
from shoal.entropy import Entropy, SeededEntropy, SystemEntropy
from shoal.errors import SpecError
from shoal.protocols.sdq.params import assign_rows
from shoal.study.settings import MAX_TEXT, is_line
from shoal.study.starters.infer import are_mostly_distinct
from shoal.text import format_count

Labels = npt.NDArray[Any]

_SEEDS = 1 << 31
_N_DEALT = 10
_MIN_IN_A_SUM = 3
_FIX_UNIQUE_TEXTS = (
    "Remove the column, or convert it to a number or a few categories. For DDML, declare it as "
    "Text in a schema."
)


class EstimatorError(SpecError, ValueError):
    """Settings or data that an estimator cannot be fitted with.

    It is also a ValueError, which scikit-learn's tools expect.
    """


class HoldersDealtWarning(UserWarning):
    """No holders were given, and the rows were assigned at random to fictitious ones."""


@contextmanager
def translate_spec_errors() -> Iterator[None]:
    """Raise errors of schemas and tables as `EstimatorError`, with the same text."""
    try:
        yield
    except EstimatorError:
        raise
    except SpecError as error:
        raise EstimatorError(error.code, error.what, why=error.why, fix=error.fix) from None


def read_training_rows(
    estimator: Any, X: object, y: object, names: Sequence[str] | None
) -> tuple[Table, Labels]:
    """Return the columns of X and the cells of y, which have the same length.

    Parameters
    ----------
    estimator
        Stores the number of features, and their names if X has any.
    names
        Names of the columns of an array.
    """
    _reject_complex("y", np.asarray(y))
    labels = validate_data(estimator, "no_validation", _convert_booleans(y))
    if labels.dtype.kind == "f" and not is_regressor(estimator):
        check_classification_targets(labels)
    columns = read_rows(estimator, X, names, is_first=True)
    check_consistent_length(next(iter(columns.values())), labels)
    return columns, labels


def read_rows(
    estimator: Any, X: object, names: Sequence[str] | None, *, is_first: bool = False
) -> Table:
    """Return the columns of X.

    X must have the features of the fit; with `is_first` it defines them.
    """
    # As an array, a table with several types of columns would be a copy of Python objects, and
    # would lose its mask.
    if hasattr(type(X), "columns") or isinstance(X, np.ma.MaskedArray):
        columns = from_frame(X, names)
        validate_data(estimator, X, reset=is_first, skip_check_array=True)
        if not count_rows(columns):
            raise EstimatorError(
                "DATA-007",
                "The data has 0 rows.",
                why="Learning needs rows.",
                fix="Give at least one row.",
            )
        return columns
    return from_frame(
        validate_data(
            estimator, _check_array(X), reset=is_first, dtype=None, ensure_all_finite="allow-nan"
        ),
        names,
    )


def _check_array(X: object) -> object:
    """Return X if scikit-learn can check it without quoting cells in an error."""
    if issparse(X):
        return X
    if isinstance(X, Mapping):
        why = "scikit-learn's tools cannot select rows of a mapping."
        raise EstimatorError(
            "DATA-007",
            "X is a mapping.",
            why=why,
            fix="Give a data frame, or an array with one row per record.",
        )
    try:
        array = X if isinstance(X, np.ndarray) else np.asarray(X)
    except ValueError:
        raise EstimatorError(
            "DATA-007",
            "The rows of X have different lengths.",
            fix="Give every row a cell in each column.",
        ) from None
    if array.ndim != 2:
        what = f"X has {format_count(array.ndim, 'dimension')}; a table has two."
        raise EstimatorError(
            "DATA-007",
            what,
            fix="Reshape your data: one row per record, X.reshape(-1, 1) for a single feature.",
        )
    _reject_complex("X", array)
    return array


def _reject_complex(name: str, cells: npt.NDArray[Any]) -> None:
    if cells.dtype.kind == "c":
        raise EstimatorError(
            "DATA-004",
            f"Complex data not supported: {name} has complex numbers.",
            fix="Give real numbers, or texts.",
        )


def _convert_booleans(y: Any) -> Any:
    """Return the labels, with booleans of data frames as NumPy's.

    scikit-learn would convert them to numbers.
    """
    is_boolean = getattr(getattr(y, "dtype", None), "kind", None) == "b"
    return np.asarray(y, bool) if is_boolean and not (hasattr(y, "isna") and y.isna().any()) else y


def infer_schema(columns: Columns, labels: Labels) -> tuple[Schema, Labels]:
    """Return the inferred schema, and the classes in the order of its label's values.

    It warns, because inference is not private.
    """
    classes = _sort_classes(labels)
    if len(classes) < 2:
        raise EstimatorError(
            "SCHEMA-004",
            "The labels have only one class.",
            fix="Give labels with at least two classes.",
        )
    texts = [str(cell_text(value)) for value in classes]
    if len(set(texts)) < len(texts):
        raise EstimatorError(
            "DATA-007",
            "Some labels differ only in leading or trailing spaces.",
            fix="Remove the spaces from y.",
        )
    return _infer_schema(columns, lambda name: Categorical(name, texts, missing=False)), classes


def infer_number_schema(columns: Columns, labels: Labels) -> Schema:
    """Return the inferred schema, with the range of y as that of its label.

    It warns, because inference is not private.
    """
    numbers = to_numbers("y", labels)
    if np.isnan(numbers).all():
        raise EstimatorError(
            "DATA-005", "All labels are missing.", fix="Fill in or remove the rows."
        )
    return _infer_schema(columns, lambda name: replace(infer_numeric(name, numbers), missing=False))


def _infer_schema(columns: Columns, make_label: Callable[[str], Feature]) -> Schema:
    """Return the features of the columns, and a label with a name that no column has."""
    for column_name, column in columns.items():
        _reject_unique_texts(column_name, column)
    name = "label"
    while name in columns:
        name += "_"
    features = Schema.infer(columns).features
    schema = Schema(features, make_label(name))
    for feature in (*schema.features, schema.label):
        if isinstance(feature, Categorical) and not all(map(is_line, feature.values)):
            what = f"{feature.name}: a value is not a single line of at most {MAX_TEXT} characters."
            raise EstimatorError(
                "DATA-007",
                what,
                why="The simulated study contains the values.",
                fix="Shorten it, or replace it by a missing value.",
            )
    return schema


def _reject_unique_texts(name: str, column: npt.NDArray[Any]) -> None:
    """Raise for texts of which most occur once.

    Each would be a category, and a model would know nothing about the texts of new rows.
    """
    if column.dtype.kind in "biuf":
        return
    known = [text for text in to_texts(name, column) if text is not None]
    if are_mostly_distinct(known) and try_parse_numbers(name, column) is None:
        what = f"{name}: most texts are unique, like names, identifiers and dates."
        raise EstimatorError(
            "DATA-007",
            what,
            why="Without a schema, each text would be a category.",
            fix=_FIX_UNIQUE_TEXTS,
        )


def match_classes(labels: Labels, values: Sequence[str]) -> Labels:
    """Return the labels for declared values, in their order and with the type of y.

    The declared texts are returned if two labels have the same text, or one cannot be converted.

    Parameters
    ----------
    labels
        Labels from `read_training_rows`; none is missing.
    values
        The values that the schema's label declares. Values that y lacks are parsed as y's type.
    """
    known = _list_known(labels)
    value_by_text = {str(cell_text(value)): value for value in known}
    kinds = {type(value) for value in known}
    if len(kinds) > 1 or len(value_by_text) < len(known):
        return np.array(values)
    kind = kinds.pop()
    read = {
        value: value_by_text[value] if value in value_by_text else _parse_label(kind, value)
        for value in values
    }
    if any(cell_text(label) != value for value, label in read.items()):
        return np.array(values)
    classes = np.fromiter(read.values(), object, len(read))
    # A text that y lacks may be longer than the dtype of y allows.
    return classes.astype(str if labels.dtype.kind == "U" else labels.dtype)


def _parse_label(kind: type, text: str) -> Any:
    """Return a text as a value of a type of labels; None if it is not one."""
    if issubclass(kind, bool | np.bool_):
        return text == "True"
    try:
        return kind(text) if issubclass(kind, str | int | float | np.generic) else None
    except (ValueError, OverflowError):
        return None


def _list_known(labels: Labels) -> list[Any]:
    """Return the distinct labels that are not missing."""
    # Sorting a million objects or texts would take seconds.
    distinct: Iterable[Any] = (
        set(labels.tolist()) if labels.dtype.kind in "OU" else np.unique(labels)
    )
    return [value for value in distinct if cell_text(value) is not None]


def _sort_classes(labels: Labels) -> Labels:
    try:
        known = sorted(_list_known(labels))
        return np.fromiter(known, labels.dtype, len(known))
    except TypeError:
        raise EstimatorError(
            "DATA-007",
            "The labels have no order: they have several types, or are lists.",
            fix="Give labels of one type.",
        ) from None


def number_holders(holders: object, n: int) -> npt.NDArray[np.int64]:
    """Return the owner of each of n rows: numbers from 0, in order of first appearance.

    Names with the same text are one holder.
    """
    texts = to_texts("holders", as_column("holders", holders))
    if len(texts) != n:
        what = (
            f"holders has {format_count(len(texts), 'name')}, but X has {format_count(n, 'row')}."
        )
        raise EstimatorError("DATA-007", what, fix="Name the holder of every row.")
    is_missing = np.array([text is None for text in texts])
    if is_missing.any():
        why = "A row without an owner cannot be protected."
        raise EstimatorError(
            "DATA-005",
            f"holders: {describe_rows(is_missing)} missing.",
            why=why,
            fix="Fill in or remove the rows.",
        )
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts])


def assign_holders(
    holders: object, n: int, entropy: Entropy, noun: str, minimum: int
) -> npt.NDArray[np.int64]:
    """Return the owner of each of n rows, as `number_holders`.

    Without `holders`, rows are assigned to ten fictitious holders, with a warning.

    Parameters
    ----------
    entropy
        Source of the assignment.
    noun
        Name of a holder in errors.
    minimum
        Fewest holders of a study; 3 for secure sums.
    """
    owners = (
        assign_rows(n, min(_N_DEALT, n), entropy) if holders is None else number_holders(holders, n)
    )
    n_holders = int(owners.max()) + 1
    if n_holders < minimum:
        actual = (
            f"X has {format_count(n, 'row')} for {noun}s"
            if holders is None
            else f"holders names {format_count(n_holders, noun)}"
        )
        is_sum = minimum == _MIN_IN_A_SUM
        why = "With two, each would learn the other's counts from the sum." if is_sum else None
        needs = f"{'a secure sum' if is_sum else 'the study'} needs {minimum}"
        raise EstimatorError(
            "SPEC-021",
            f"{actual}; {needs}.",
            why=why,
            fix=f"Give rows of at least {minimum} holders.",
        )
    if holders is None:
        warnings.warn(
            "No holders were given: the rows were assigned at random to "
            f"{format_count(n_holders, noun)}. Use fit(X, y, holders=...) to give them.",
            HoldersDealtWarning,
            stacklevel=5,
        )
    return owners


def make_entropy(random_state: object) -> Entropy:
    """Return the source for a ``random_state``: the system's for None, else a seeded one."""
    if random_state is None:
        return SystemEntropy()
    if isinstance(random_state, int | np.integer):
        return SeededEntropy(int(random_state))
    draw = getattr(random_state, "integers", None) or getattr(random_state, "randint", None)
    if draw is None:
        _reject_random_state(random_state)
    return SeededEntropy(int(draw(_SEEDS)))


def _reject_random_state(random_state: object) -> NoReturn:
    what = f"random_state has type {type(random_state).__name__}."
    raise EstimatorError(
        "USAGE-001", what, fix="Give None, an integer, or a NumPy generator or random state."
    )
