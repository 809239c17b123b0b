"""The pooled model, and models that must not leave their process.

Aggregators publish `PooledModel`; peers, simulations and model files read it. It consists of
numbers under a public schema and contains no code. A change must keep that `UnreleasedPredictor`
and its subclasses cannot be copied, pickled or written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import LocalProtocolError
from shoal.messages.base import Record, describe_validation_error
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams, encode_cells
from shoal.protocols.schema_json import (
    PlainCategory,
    PlainNumber,
    describe_schema,
    invalid_model_error,
)


def compute_probabilities(scores: Floats) -> Floats:
    """Return the probability of each class, ``(n, L)``, from the scores ``(n, M)``.

    One score gives the probability of the second of two classes. Several scores, each for one class
    against the rest, are normalised to sum to 1.
    """
    logs = -np.logaddexp(
        0, -(np.concatenate([-scores, scores], axis=1) if scores.shape[1] == 1 else scores)
    )
    odds = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


def choose_classes(scores: Floats) -> Ints:
    """Return the position of the likeliest class, ``(n,)``; among equal ones the first."""
    best: Ints = (
        (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else np.argmax(scores, axis=1)
    )
    return best


def scale_numbers(label: Numeric, scores: Floats) -> Floats:
    """Return the numbers ``(n,)`` of scores ``(n, 1)``, clipped to the label's range.

    A score is a share of the range.
    """
    low, high = float(label.low), float(label.high)
    inside: Floats = np.minimum(low + (high - low) * np.clip(scores[:, 0], 0, 1), high)
    return inside


def copy_forbidden_error(what: str) -> LocalProtocolError:
    """Return the error for copying an object that contains rows without noise."""
    return LocalProtocolError(
        "PRIVATE-001",
        f"{what} cannot be copied or pickled.",
        why="It contains rows without noise, which must not leave this process.",
        fix="Fit it again in the process that has the rows; publish only the release.",
    )


@dataclass(frozen=True, eq=False)
class PooledModel:
    """Additive model: weights of cells that sum to a score.

    The score is the log-odds of a class, or the position of a number in its range.

    Parameters
    ----------
    weights
        ``(D, M)`` contribution of each cell to the score of each model.
    intercepts
        ``(M,)`` the score of a row without contributions of cells.
    variances
        ``(D, M)`` variance of each weight due to the noise of the release. In a personal model, the
        holder's rows move a weight with a larger variance further.
    shares
        ``(D,)`` share of all rows in each cell; the shares of one feature sum to 1.

    Examples
    --------
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> weights, shares = np.array([[1.0], [-2.0]]), np.array([0.5, 0.5])
    >>> model = PooledModel(
    ...     PFDSParams(schema, epsilon=1.0, size=14),
    ...     weights,
    ...     np.array([0.5]),
    ...     np.zeros((2, 1)),
    ...     shares,
    ... )
    >>> model.decide({"wind": np.array([0, 1])})
    array([1, 0])
    """

    params: PFDSParams
    weights: Floats
    intercepts: Floats
    variances: Floats
    shares: Floats

    @property
    def schema(self) -> Schema:
        """Features with their cells, and the label."""
        return self.params.coded_schema

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values, in the order of the columns of `probabilities`."""
        assert isinstance(self.params.label, Categorical)
        return tuple(self.params.label.values)

    def compute_scores(self, cells: Ints) -> Floats:
        """Return scores ``(n, M)`` of rows of cells, ``(n, k)``, numbered among all cells."""
        total = np.tile(self.intercepts, (len(cells), 1))
        for column in cells.T:
            total += self.weights[column]
        return total

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Return the probability of each class, ``(n, L)``.

        ``columns`` is the result of ``schema.encode(..., outside="clip")``.
        """
        assert not self.params.is_number
        return compute_probabilities(self.compute_scores(encode_cells(self.params, columns)))

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """Return the position of the predicted class, ``(n,)``."""
        assert not self.params.is_number
        return choose_classes(self.compute_scores(encode_cells(self.params, columns)))

    def predict(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Return the predicted numbers, ``(n,)``, in the label's units and inside its range."""
        assert isinstance(self.params.label, Numeric)
        return scale_numbers(
            self.params.label, self.compute_scores(encode_cells(self.params, columns))
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the model as plain data for files; `from_plain` reads it."""
        return {
            "kind": "pooled",
            **describe_schema(self.schema),
            "trust": self.params.trust,
            "weights": self.weights.tolist(),
            "intercepts": self.intercepts.tolist(),
            "variances": self.variances.tolist(),
            "shares": self.shares.tolist(),
        }


class EncodedRowsPredictor(Protocol):
    """Interface of a predictor for rows that a schema has encoded."""

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats: ...

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints: ...

    def predict(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats: ...


class UnreleasedPredictor:
    """Predictor fitted to the rows themselves; it cannot be written, copied or sent.

    Parameters
    ----------
    predictor
        Contains rows without noise. No other object should have a reference to it.
    """

    __slots__ = ("__predictor",)

    def __init__(self, predictor: EncodedRowsPredictor) -> None:
        self.__predictor = predictor

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Return the same as `PooledModel.probabilities`."""
        return self.__predictor.probabilities(columns)

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """Return the same as `PooledModel.decide`."""
        return self.__predictor.decide(columns)

    def predict(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Return the same as `PooledModel.predict`."""
        return self.__predictor.predict(columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(fitted to the rows themselves: never leaves)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise copy_forbidden_error("A model fitted to the rows themselves")


class UnreleasedModel(UnreleasedPredictor):
    """Additive model fitted to the rows themselves.

    Unlike a `PooledModel` it shows neither weights nor shares, and has no file.
    """

    __slots__ = ("__model",)

    def __init__(self, model: PooledModel) -> None:
        super().__init__(model)
        self.__model = model

    def compute_scores(self, cells: Ints) -> Floats:
        """Return the same as `PooledModel.compute_scores`."""
        return self.__model.compute_scores(cells)


_Weight = Annotated[float, Field(ge=-1e6, le=1e6)]
_Variance = Annotated[float, Field(ge=0, le=1e12)]
_Share = Annotated[float, Field(ge=0, le=1)]
_ROUNDING = 1e-6


class _PooledModelDocument(Record):
    kind: Literal["pooled"]
    features: Annotated[list[PlainNumber | PlainCategory], Field(min_length=1)]
    label: PlainNumber | PlainCategory
    trust: Literal["local", "secure-sum"]
    weights: list[list[_Weight]]
    intercepts: list[_Weight]
    variances: list[list[_Variance]]
    shares: list[_Share]

    def make_model(self) -> PooledModel:
        schema = Schema(
            [document.make_feature() for document in self.features], self.label.make_feature()
        )
        if any(feature.n_bins is None for feature in schema.features):
            raise invalid_model_error("a numeric feature has no bins")
        params = PFDSParams(schema, epsilon=math.inf, size=1, trust=self.trust)
        cells, models = params.n_cells, params.n_models
        tables = (self.weights, self.variances)
        if (
            any(len(table) != cells or any(len(row) != models for row in table) for table in tables)
            or len(self.intercepts) != models
        ):
            raise invalid_model_error(
                f"it does not have {models} weights for each of {cells} cells"
            )
        if len(self.shares) != cells:
            raise invalid_model_error(f"it has {len(self.shares)} shares for {cells} cells")
        shares = np.array(self.shares, np.float64)
        if np.abs(np.add.reduceat(shares, params.starts[:-1]) - 1).max() > _ROUNDING:
            raise invalid_model_error("the shares of a feature do not sum to 1")
        return PooledModel(
            params,
            np.array(self.weights, float),
            np.array(self.intercepts, float),
            np.array(self.variances, float),
            shares,
        )


def from_plain(document: object) -> PooledModel:
    """Return the model that `PooledModel.to_plain` wrote; raise `SpecError` for other data.

    Notes
    -----
    The file does not prove the price of the model, because anyone may have written it. So its
    params have an infinite epsilon, which makes no claim.
    """
    try:
        return _PooledModelDocument.model_validate(document).make_model()
    except ValidationError as error:
        raise invalid_model_error(describe_validation_error(error)) from None
