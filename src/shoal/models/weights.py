"""The weights of a model by name, the largest first: what speaks for which class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.domain import Categorical, Feature
from shoal.models.model import Model
from shoal.protocols.anonml.model import AdditiveModel, VoteModel
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import Model as PooledModel
from shoal.protocols.sdq.words import cell_names


@dataclass(frozen=True)
class Weight:
    """One weight.

    Parameters
    ----------
    name
        The cell or input that has it, or of a vote the features of a classifier.
    of
        The class that it speaks for; None where a number is predicted, and for a classifier of a vote.
    value
        What it adds to the score.
    """

    name: str
    of: str | None
    value: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data, in the words of ``run.json``. What noise does to a weight that was shrunk is not known well enough to be told."""
        return {"name": self.name, "class": self.of, "value": self.value, "error": None}


def largest(model: Model, n: int = 40) -> list[Weight]:
    """The n weights that are largest by size, the largest first; none for a tree.

    The constant of a linear model is not among them, nor are weights of zero.
    """
    found = [weight for weight in _weights(model) if weight.value != 0]
    return sorted(found, key=lambda weight: -abs(weight.value))[:n]


def constants(model: Model) -> list[Weight]:
    """What is added to the score of each class, or of a number, whatever the row is."""
    match model.learned:
        case GLM(weights=weights):
            values = weights[:, 0]
        case PooledModel(intercepts=intercepts):
            values = intercepts
        case AdditiveModel(label_shares=shares):
            values = np.log(shares)
        case _:
            return []
    return [Weight("constant", of, float(value)) for of, value in zip(_scored(model, len(values)), values, strict=True)]


def label_shares(model: Model) -> dict[str, float] | None:
    """The share of each class by the model; None where the model does not say."""
    match model.learned:
        case AdditiveModel(label_shares=shares):
            return dict(zip(model.classes, shares.tolist(), strict=True))
        case PooledModel() | GLM() | VoteModel():
            return None
        case tree:
            return dict(zip(model.classes, tree.chances[0].tolist(), strict=True))


def _scored(model: Model, n_scores: int) -> list[str | None]:
    """The class of each score: of two classes the second has one."""
    if not model.classes:
        return [None]
    return [model.classes[1]] if n_scores == 1 else list(model.classes)


def _weights(model: Model) -> Iterator[Weight]:
    match model.learned:
        case AdditiveModel(scores=scores):
            for feature, table in zip(model.schema.features, scores, strict=True):
                for name, column in zip(names_of_cells([feature]), table.T, strict=True):
                    yield from (Weight(name, of, float(value)) for of, value in zip(model.classes, column, strict=True))
        case VoteModel(vote=vote):
            names = model.schema.names
            for one in vote.classifiers:
                yield Weight(" and ".join(names[j] for j in one.features), None, one.weight)
        case GLM(weights=weights, design=design):
            for of, row in zip(_scored(model, len(weights)), weights, strict=True):
                yield from (Weight(name, of, float(value)) for name, value in zip(design.names[1:], row[1:], strict=True))
        case PooledModel(weights=weights):
            cells = names_of_cells(model.schema.features)
            for of, column in zip(_scored(model, weights.shape[1]), weights.T, strict=True):
                yield from (Weight(name, of, float(value)) for name, value in zip(cells, column, strict=True))


def names_of_cells(features: Iterable[Feature]) -> list[str]:
    """A name for each cell of each feature, as one says it of a row: ``age > 40``, ``sex = Male``, ``age missing``."""
    names = []
    for feature in features:
        cells = cell_names(feature)
        known = cells[:-1] if feature.missing else cells
        sign = "= " if isinstance(feature, Categorical) else ""
        names += [f"{feature.name} {sign}{cell}" for cell in known] + ([f"{feature.name} missing"] if feature.missing else [])
    return names
