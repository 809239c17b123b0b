"""Additive scores over feature cells, used by AnonML and by SDQ's naive Bayes.

A model is plain numbers under a public schema. It contains no code, so that a model file can be
read safely.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Schema
from shoal.protocols.schema_json import describe_schema

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassificationModel(ABC):
    """A model that predicts the label of encoded rows.

    Parameters
    ----------
    schema
        Features with the bins that were used, and the label.
    """

    schema: Schema

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values, in the order of the columns of `probabilities`."""
        label = self.schema.label
        assert isinstance(label, Categorical)
        return tuple(label.values)

    @abstractmethod
    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Return the probability of each class, ``(n, L)``.

        ``columns`` is the result of ``schema.encode(..., outside="clip")``.
        """

    @abstractmethod
    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Return the position of the predicted class, ``(n,)``."""

    @abstractmethod
    def to_plain(self) -> dict[str, Any]:
        """Return the model as plain data for a model file."""


@dataclass(frozen=True, eq=False)
class AdditiveModel(ClassificationModel):
    """A score for each class and each bin of each feature; the scores add up to log-odds.

    Parameters
    ----------
    label_shares
        ``(L,)`` shares of the classes.
    scores
        For each feature ``(L, bins)``: log(P(bin | class) / P(bin)).
    """

    label_shares: Floats
    scores: tuple[Floats, ...]

    def log_odds(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Return unnormalised log-probabilities, ``(n, L)``."""
        total = np.log(self.label_shares)[np.newaxis, :]
        for feature, score in zip(self.schema.features, self.scores, strict=True):
            # A category that is not in the schema adds nothing: the last column has score zero.
            known = np.concatenate([score, np.zeros((len(score), 1))], axis=1)
            total = total + known.T[feature.cut(columns[feature.name])]
        return total

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        logs = self.log_odds(columns)
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        shares: Floats = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        best: npt.NDArray[np.int64] = np.argmax(self.log_odds(columns), axis=1)
        return best

    def to_plain(self) -> dict[str, Any]:
        scores = [score.tolist() for score in self.scores]
        return {
            "kind": "additive",
            **describe_schema(self.schema),
            "label_shares": self.label_shares.tolist(),
            "scores": scores,
        }
