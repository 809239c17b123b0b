"""What scikit-learn hands to an estimator, as the protocols want it: columns, labels, a schema, a source of randomness.

scikit-learn's own checks come first, with its own errors: the length of y, names of columns. What is left has a code, and so has what
scikit-learn would say with the cells in it.
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

from shoal.cells import as_column, cell_text, to_numbers, to_texts, where
from shoal.domain import Categorical, Columns, Feature, Schema, numbers_of, range_of
from shoal.entropy import Entropy, SeededEntropy, SystemEntropy
from shoal.errors import SpecError
from shoal.names import counted
from shoal.protocols.sdq.rows import deal
from shoal.study.infer import are_own
from shoal.study.values import MAX_TEXT, is_line
from shoal.table_files import Table
from shoal.tables import from_frame, n_rows

Labels = npt.NDArray[Any]

_SEEDS = 1 << 31
_DEALT = 10
_FEWEST_IN_A_SUM = 3
_FIX_OWN_TEXTS = (
    "Leave the column out, or turn it into a number or a few categories; DDML learns from words that a schema declares as Text."
)


class EstimatorError(SpecError, ValueError):
    """Settings or data that an estimator cannot be fitted with. A ValueError too, which is what scikit-learn's tools expect."""


class HoldersDealtWarning(UserWarning):
    """Nobody said who holds which row, and the rows were dealt at random to holders that do not exist."""


@contextmanager
def as_estimator_errors() -> Iterator[None]:
    """Raise what a schema or a table says about data as an `EstimatorError`, in the same words."""
    try:
        yield
    except EstimatorError:
        raise
    except SpecError as error:
        raise EstimatorError(error.code, error.what, why=error.why, fix=error.fix) from None


def training_rows(estimator: Any, X: object, y: object, names: Sequence[str] | None) -> tuple[Table, Labels]:
    """The columns of X and the cells of y, of one length.

    Parameters
    ----------
    estimator
        Learns how many features there are, and their names where X has some.
    X, y
        What `fit` was given.
    names
        Names of the columns of an array.
    """
    _refuse_complex("y", np.asarray(y))
    labels = validate_data(estimator, "no_validation", _plain_booleans(y))
    if labels.dtype.kind == "f" and not is_regressor(estimator):
        check_classification_targets(labels)
    columns = rows(estimator, X, names, is_first=True)
    check_consistent_length(next(iter(columns.values())), labels)
    return columns, labels


def rows(estimator: Any, X: object, names: Sequence[str] | None, *, is_first: bool = False) -> Table:
    """The columns of X, which has the features that the estimator was fitted with, or gives it its features the first time."""
    # As an array, a table of several kinds of columns would be a copy of Python objects, and a mask would be lost.
    if hasattr(type(X), "columns") or isinstance(X, np.ma.MaskedArray):
        columns = from_frame(X, names)
        validate_data(estimator, X, reset=is_first, skip_check_array=True)
        if not n_rows(columns):
            raise EstimatorError("DATA-007", "The data has 0 rows.", why="There is nothing to learn from.", fix="Give at least one row.")
        return columns
    return from_frame(validate_data(estimator, _array(X), reset=is_first, dtype=None, ensure_all_finite="allow-nan"), names)


def _array(X: object) -> object:
    """What scikit-learn can check without an error that repeats cells."""
    if issparse(X):
        return X
    if isinstance(X, Mapping):
        why = "scikit-learn's tools cannot take rows from one."
        raise EstimatorError("DATA-007", "X is a mapping.", why=why, fix="Give a dataframe, or an array with one row per record.")
    try:
        array = X if isinstance(X, np.ndarray) else np.asarray(X)
    except ValueError:
        raise EstimatorError("DATA-007", "The rows of X are of different lengths.", fix="Give every row a cell in each column.") from None
    if array.ndim != 2:
        what = f"X has {counted(array.ndim, 'dimension')}; a table has two."
        raise EstimatorError("DATA-007", what, fix="Reshape your data: one row per record, X.reshape(-1, 1) for a single feature.")
    _refuse_complex("X", array)
    return array


def _refuse_complex(name: str, cells: npt.NDArray[Any]) -> None:
    if cells.dtype.kind == "c":
        raise EstimatorError("DATA-004", f"Complex data not supported: {name} has complex numbers.", fix="Give real numbers, or texts.")


def _plain_booleans(y: Any) -> Any:
    """The same labels, with the truth values of dataframes as NumPy's: scikit-learn would turn them into numbers."""
    is_boolean = getattr(getattr(y, "dtype", None), "kind", None) == "b"
    return np.asarray(y, bool) if is_boolean and not (hasattr(y, "isna") and y.isna().any()) else y


def infer_schema(columns: Columns, labels: Labels) -> tuple[Schema, Labels]:
    """The schema that the data has, and the classes in the order of its label's values. It warns: this is not a private act."""
    classes = _sorted_classes(labels)
    if len(classes) < 2:
        raise EstimatorError("SCHEMA-004", "All labels are of one class.", fix="Give labels of two classes or more.")
    texts = [str(cell_text(value)) for value in classes]
    if len(set(texts)) < len(texts):
        raise EstimatorError("DATA-007", "Some labels differ only in the spaces around them.", fix="Remove the spaces from y.")
    return _inferred(columns, lambda name: Categorical(name, texts, missing=False)), classes


def infer_number_schema(columns: Columns, labels: Labels) -> Schema:
    """The schema that the data has, with the range of y for its label. It warns: this is not a private act."""
    numbers = to_numbers("y", labels)
    if np.isnan(numbers).all():
        raise EstimatorError("DATA-005", "All labels are missing.", fix="Fill in or remove the rows.")
    return _inferred(columns, lambda name: replace(range_of(name, numbers), missing=False))


def _inferred(columns: Columns, label_named: Callable[[str], Feature]) -> Schema:
    """The features of the columns, and a label whose name no column has."""
    for column_name, column in columns.items():
        _refuse_own_texts(column_name, column)
    name = "label"
    while name in columns:
        name += "_"
    features = Schema.infer(columns).features
    schema = Schema(features, label_named(name))
    for feature in (*schema.features, schema.label):
        if isinstance(feature, Categorical) and not all(map(is_line, feature.values)):
            what = f"{feature.name}: a value is not a plain line of at most {MAX_TEXT} characters."
            raise EstimatorError("DATA-007", what, why="Values stand in the study that is simulated.", fix="Shorten it, or leave it empty.")
    return schema


def _refuse_own_texts(name: str, column: npt.NDArray[Any]) -> None:
    """Refuse texts most of which occur once: each would be a category, and a model of them says nothing about new rows."""
    if column.dtype.kind in "biuf":
        return
    known = [text for text in to_texts(name, column) if text is not None]
    if are_own(known) and numbers_of(name, column) is None:
        what = f"{name}: most rows have a text of their own, as names, identifiers and dates do."
        raise EstimatorError("DATA-007", what, why="No schema is given, and each text would be a category.", fix=_FIX_OWN_TEXTS)


def classes_like(labels: Labels, values: Sequence[str]) -> Labels:
    """The labels that declared values stand for, in their order and of the type of y; the texts themselves where not each stands for one.

    Parameters
    ----------
    labels
        What `training_rows` gives, each of them known.
    values
        The values that the schema's label declares. Those that y lacks are read as y's type would write them.
    """
    known = _known(labels)
    found = {str(cell_text(value)): value for value in known}
    kinds = {type(value) for value in known}
    if len(kinds) > 1 or len(found) < len(known):
        return np.array(values)
    kind = kinds.pop()
    read = {value: found[value] if value in found else _read(kind, value) for value in values}
    if any(cell_text(label) != value for value, label in read.items()):
        return np.array(values)
    classes = np.fromiter(read.values(), object, len(read))
    # A text that y lacks may be longer than those that its dtype has room for.
    return classes.astype(str if labels.dtype.kind == "U" else labels.dtype)


def _read(kind: type, text: str) -> Any:
    """A text as a value of a type of labels; None where it is none."""
    if issubclass(kind, bool | np.bool_):
        return text == "True"
    try:
        return kind(text) if issubclass(kind, str | int | float | np.generic) else None
    except (ValueError, OverflowError):
        return None


def _known(labels: Labels) -> list[Any]:
    """The different labels, without those that are missing."""
    # Sorting all objects or texts would take seconds for a million of them.
    found: Iterable[Any] = set(labels.tolist()) if labels.dtype.kind in "OU" else np.unique(labels)
    return [value for value in found if cell_text(value) is not None]


def _sorted_classes(labels: Labels) -> Labels:
    try:
        known = sorted(_known(labels))
        return np.fromiter(known, labels.dtype, len(known))
    except TypeError:
        raise EstimatorError(
            "DATA-007", "The labels have no order: they are of several types, or lists.", fix="Give labels of one type."
        ) from None


def holder_numbers(holders: object, n: int) -> npt.NDArray[np.int64]:
    """Whose each of n rows is: numbers from 0 on, in the order in which holders first appear. Names that read alike are one holder's."""
    texts = to_texts("holders", as_column("holders", holders))
    if len(texts) != n:
        what = f"holders names the holders of {counted(len(texts), 'row')}, and X has {counted(n, 'row')}."
        raise EstimatorError("DATA-007", what, fix="Name the holder of every row.")
    gone = np.array([text is None for text in texts])
    if gone.any():
        why = "A row that is nobody's cannot be protected."
        raise EstimatorError("DATA-005", f"holders: {where(gone)} missing.", why=why, fix="Fill in or remove the rows.")
    number_of: dict[str | None, int] = {}
    return np.array([number_of.setdefault(text, len(number_of)) for text in texts])


def dealt_or_named(holders: object, n: int, entropy: Entropy, noun: str, fewest: int) -> npt.NDArray[np.int64]:
    """Whose each of n rows is, as `holder_numbers` has it; where nobody says, rows are dealt to ten holders, with a warning.

    Parameters
    ----------
    entropy
        Deals the rows.
    noun
        What one of the holders is called.
    fewest
        With fewer of them there is no study; 3 where their counts are summed.
    """
    whose = deal(n, min(_DEALT, n), entropy) if holders is None else holder_numbers(holders, n)
    n_holders = int(whose.max()) + 1
    if n_holders < fewest:
        told = f"X has {counted(n, 'row')} to deal to {noun}s" if holders is None else f"holders names {counted(n_holders, noun)}"
        is_sum = fewest == _FEWEST_IN_A_SUM
        why = "Of two, each would learn the other's counts from the sum." if is_sum else None
        needs = f"{'a secure sum' if is_sum else 'the study'} needs {fewest}"
        raise EstimatorError("SPEC-021", f"{told}; {needs}.", why=why, fix=f"Give rows of {fewest} holders or more.")
    if holders is None:
        warnings.warn(
            f"Nobody said who holds which row: the rows were dealt at random to {counted(n_holders, noun)}. "
            "Give fit(X, y, holders=...) to say it.",
            HoldersDealtWarning,
            stacklevel=5,
        )
    return whose


def entropy_of(random_state: object) -> Entropy:
    """The source that a ``random_state`` stands for: the system's for None, else one that an integer seeds."""
    if random_state is None:
        return SystemEntropy()
    if isinstance(random_state, int | np.integer):
        return SeededEntropy(int(random_state))
    draw = getattr(random_state, "integers", None) or getattr(random_state, "randint", None)
    if draw is None:
        _refuse_random_state(random_state)
    return SeededEntropy(int(draw(_SEEDS)))


def _refuse_random_state(random_state: object) -> NoReturn:
    what = f"random_state is of type {type(random_state).__name__}."
    raise EstimatorError("USAGE-001", what, fix="Give None, an integer, or a generator or random state of NumPy.")
