"""What is learned from pooled tables, and how it predicts. It is plain numbers under a public schema; nothing in it can run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from shoal.domain import Categorical, Numeric, Schema
from shoal.errors import LocalProtocolError
from shoal.messages.base import Record
from shoal.messages.base import describe as fault_of
from shoal.protocols.model_files import PlainCategory, PlainNumber, describe_schema, unfit
from shoal.protocols.pfds.params import Floats, Ints, Params, cells_of


def chances(scores: Floats) -> Floats:
    """Chance of each class, ``(n, L)``, by the scores ``(n, M)``: of the second of two, or each against the rest, made to sum to 1."""
    logs = -np.logaddexp(0, -(np.concatenate([-scores, scores], axis=1) if scores.shape[1] == 1 else scores))
    odds = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


def choices(scores: Floats) -> Ints:
    """Position of the likeliest class, ``(n,)``, by the scores ``(n, M)``; of equal ones the first."""
    best: Ints = (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else np.argmax(scores, axis=1)
    return best


def numbers(label: Numeric, scores: Floats) -> Floats:
    """The numbers that scores ``(n, 1)`` say, ``(n,)``: shares of the label's range, and never outside it."""
    low, high = float(label.low), float(label.high)
    inside: Floats = np.minimum(low + (high - low) * np.clip(scores[:, 0], 0, 1), high)
    return inside


def never_leaves(what: str) -> LocalProtocolError:
    """The error of whoever would let rows out with something that is made of them."""
    return LocalProtocolError(
        "PRIVATE-001",
        f"{what} was about to be copied or pickled.",
        why="There are rows in it without any noise, and it never leaves.",
        fix="Keep it in the process that made it, and make it again where the rows are; only the release may be published.",
    )


@dataclass(frozen=True, eq=False)
class Model:
    """Weights of cells that add up to a score: the log-odds of a class, or where in its range a number lies.

    Parameters
    ----------
    params
        The public figures of the study.
    weights
        ``(D, M)`` what each cell adds to the score of each model.
    intercepts
        ``(M,)`` the score of a row whose cells add nothing.
    variances
        ``(D, M)`` how far the noise of the release may have moved each weight; at home own rows move a weight the more, the larger it is.
    shares
        ``(D,)`` share of all rows in each cell; those of one feature add up to 1.

    Examples
    --------
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> weights, shares = np.array([[1.0], [-2.0]]), np.array([0.5, 0.5])
    >>> model = Model(Params(schema, epsilon=1.0, size=14), weights, np.array([0.5]), np.zeros((2, 1)), shares)
    >>> model.decide({"wind": np.array([0, 1])})
    array([1, 0])
    """

    params: Params
    weights: Floats
    intercepts: Floats
    variances: Floats
    shares: Floats

    @property
    def schema(self) -> Schema:
        """Features with the cells that they are cut into, and the label."""
        return self.params.coded

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values, in the order of the columns of `probabilities`."""
        assert isinstance(self.params.label, Categorical)
        return tuple(self.params.label.values)

    def scores(self, cells: Ints) -> Floats:
        """Scores ``(n, M)`` of rows whose cells are positions among all cells, ``(n, k)``."""
        total = np.tile(self.intercepts, (len(cells), 1))
        for column in cells.T:
            total += self.weights[column]
        return total

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Chance of each class, ``(n, L)``, for what ``schema.encode(..., outside="clip")`` gives."""
        assert not self.params.is_number
        return chances(self.scores(cells_of(self.params, columns)))

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """Position of the predicted class, ``(n,)``."""
        assert not self.params.is_number
        return choices(self.scores(cells_of(self.params, columns)))

    def predict(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """The predicted numbers, ``(n,)``, in the units of the label and inside its range."""
        assert isinstance(self.params.label, Numeric)
        return numbers(self.params.label, self.scores(cells_of(self.params, columns)))

    def to_plain(self) -> dict[str, Any]:
        """The model as plain data, for files; `from_plain` reads it."""
        return {
            "kind": "pooled",
            **describe_schema(self.schema),
            "trust": self.params.trust,
            "weights": self.weights.tolist(),
            "intercepts": self.intercepts.tolist(),
            "variances": self.variances.tolist(),
            "shares": self.shares.tolist(),
        }


class Predictor(Protocol):
    """What predicts for rows that a schema has encoded."""

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats: ...

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints: ...

    def predict(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats: ...


class Kept:
    """What was fitted to rows themselves. It predicts where they are; it cannot be written, copied or sent.

    Parameters
    ----------
    predictor
        Contains rows without any noise. Nobody else should have it.
    """

    __slots__ = ("__predictor",)

    def __init__(self, predictor: Predictor) -> None:
        self.__predictor = predictor

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """As `Model.probabilities`."""
        return self.__predictor.probabilities(columns)

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """As `Model.decide`."""
        return self.__predictor.decide(columns)

    def predict(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """As `Model.predict`."""
        return self.__predictor.predict(columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(of rows themselves: never leaves)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise never_leaves("A model of rows themselves")


class KeptModel(Kept):
    """An additive model that was fitted to rows themselves. Unlike a `Model` it shows neither weights nor shares, and has no file."""

    __slots__ = ("__model",)

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.__model = model

    def scores(self, cells: Ints) -> Floats:
        """As `Model.scores`."""
        return self.__model.scores(cells)


_Weight = Annotated[float, Field(ge=-1e6, le=1e6)]
_Variance = Annotated[float, Field(ge=0, le=1e12)]
_Share = Annotated[float, Field(ge=0, le=1)]
_ROUNDING = 1e-6


class _Pooled(Record):
    kind: Literal["pooled"]
    features: Annotated[list[PlainNumber | PlainCategory], Field(min_length=1)]
    label: PlainNumber | PlainCategory
    trust: Literal["local", "secure-sum"]
    weights: list[list[_Weight]]
    intercepts: list[_Weight]
    variances: list[list[_Variance]]
    shares: list[_Share]

    def model(self) -> Model:
        schema = Schema([one.feature() for one in self.features], self.label.feature())
        if any(feature.n_bins is None for feature in schema.features):
            raise unfit("a number has no bins")
        params = Params(schema, epsilon=math.inf, size=1, trust=self.trust)
        cells, models = params.n_cells, params.n_models
        tables = (self.weights, self.variances)
        if any(len(table) != cells or any(len(row) != models for row in table) for table in tables) or len(self.intercepts) != models:
            raise unfit(f"its weights are not {models} for each of {cells} cells")
        if len(self.shares) != cells:
            raise unfit(f"there are {len(self.shares)} shares for {cells} cells")
        shares = np.array(self.shares, np.float64)
        if np.abs(np.add.reduceat(shares, params.starts[:-1]) - 1).max() > _ROUNDING:
            raise unfit("the shares of a feature do not add up to 1")
        return Model(params, np.array(self.weights, float), np.array(self.intercepts, float), np.array(self.variances, float), shares)


def from_plain(document: object) -> Model:
    """The model that `Model.to_plain` wrote; `SpecError` for anything else.

    Notes
    -----
    What the model has cost is not in its file, which anyone may have written: its params say epsilon infinite, which claims nothing.
    """
    try:
        return _Pooled.model_validate(document).model()
    except ValidationError as error:
        raise unfit(fault_of(error)) from None
