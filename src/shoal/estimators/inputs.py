"""What scikit-learn hands to an estimator, as the protocols want it: columns, labels, a schema, a source of randomness.

scikit-learn's own checks come first, with its own errors: the shape of X, the length of y, names of columns. What is left has a code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, validate_data

from shoal.cells import cell_text
from shoal.domain import Categorical, Columns, Schema
from shoal.entropy import Entropy, SeededEntropy, SystemEntropy
from shoal.errors import SpecError
from shoal.study.values import MAX_TEXT, is_line
from shoal.table_files import Table
from shoal.tables import from_frame, n_rows

Labels = npt.NDArray[Any]

_SEEDS = 1 << 31


class EstimatorError(SpecError, ValueError):
    """Settings or data that an estimator cannot be fitted with. A ValueError too, which is what scikit-learn's tools expect."""


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
    labels = validate_data(estimator, "no_validation", y)
    if labels.dtype.kind == "f":
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
            raise EstimatorError("DATA-007", "The data has 0 rows.", why="One row is one peer.", fix="Give at least one row.")
        return columns
    return from_frame(validate_data(estimator, X, reset=is_first, dtype=None, ensure_all_finite="allow-nan"), names)


def infer_schema(columns: Columns, labels: Labels) -> tuple[Schema, Labels]:
    """The schema that the data has, and the classes in the order of its label's values. It warns: this is not a private act."""
    classes = _classes(labels)
    if len(classes) < 2:
        raise EstimatorError("SCHEMA-004", "All labels are of one class.", fix="Give labels of two classes or more.")
    name = "label"
    while name in columns:
        name += "_"
    features = Schema.infer(columns).features
    schema = Schema(features, Categorical(name, [str(cell_text(value)) for value in classes], missing=False))
    for feature in (*schema.features, schema.label):
        if isinstance(feature, Categorical) and not all(map(is_line, feature.values)):
            what = f"{feature.name}: a value is not a plain line of at most {MAX_TEXT} characters."
            raise EstimatorError("DATA-007", what, why="Values stand in the study that is simulated.", fix="Shorten it, or leave it empty.")
    return schema, classes


def _classes(labels: Labels) -> Labels:
    """The different labels, sorted, without those that are missing."""
    # Sorting all objects or texts would take seconds for a million of them.
    found: Iterable[Any] = set(labels.tolist()) if labels.dtype.kind in "OU" else np.unique(labels)
    known = [value for value in found if cell_text(value) is not None]
    try:
        return np.fromiter(sorted(known), labels.dtype, len(known))
    except TypeError:
        raise EstimatorError("DATA-007", "The labels have no order: they are of several types.", fix="Give labels of one type.") from None


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
