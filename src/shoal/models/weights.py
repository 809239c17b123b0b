"""The weights of a model by name, the largest first.

``shoal model show`` and the report list them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.data.schema import Categorical, Feature, cell_names
from shoal.models.model import Model
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import PooledModel


@dataclass(frozen=True)
class NamedWeight:
    """One weight.

    Parameters
    ----------
    name
        The cell or input with the weight, or the features of a classifier in a vote.
    class_name
        The class with the score that it adds to; None if the label is a number, and for a
        classifier in a vote.
    """

    name: str
    class_name: str | None
    value: float

    def to_dict(self) -> dict[str, Any]:
        """Return the weight as plain data with the keys of ``run.json``.

        The error is None: the effect of noise on a shrunk weight is not known well enough.
        """
        return {"name": self.name, "class": self.class_name, "value": self.value, "error": None}


def list_largest_weights(model: Model, n: int = 40) -> list[NamedWeight]:
    """Return the n weights with the largest absolute values; none for a tree.

    The constant of a linear model and weights of zero are omitted.
    """
    weights = [weight for weight in _iterate_weights(model) if weight.value != 0]
    return sorted(weights, key=lambda weight: -abs(weight.value))[:n]


def list_constants(model: Model) -> list[NamedWeight]:
    """Return the term that each score, or the predicted number, has for every row."""
    match model.protocol_model:
        case GLM(weights=weights):
            values = weights[:, 0]
        case PooledModel(intercepts=intercepts):
            values = intercepts
        case AdditiveModel(label_shares=shares):
            values = np.log(shares)
        case _:
            return []
    return [
        NamedWeight("constant", class_name, float(value))
        for class_name, value in zip(_list_scored_classes(model, len(values)), values, strict=True)
    ]


def get_label_shares(model: Model) -> dict[str, float] | None:
    """Return the share of each class in the model; None if the model has no shares."""
    match model.protocol_model:
        case AdditiveModel(label_shares=shares):
            return dict(zip(model.classes, shares.tolist(), strict=True))
        case PooledModel() | GLM() | VoteModel():
            return None
        case tree:
            return dict(zip(model.classes, tree.chances[0].tolist(), strict=True))


def _list_scored_classes(model: Model, n_scores: int) -> list[str | None]:
    """Return the class of each score; with two classes, only the second may have one."""
    if not model.classes:
        return [None]
    return [model.classes[1]] if n_scores == 1 else list(model.classes)


def _iterate_weights(model: Model) -> Iterator[NamedWeight]:
    match model.protocol_model:
        case AdditiveModel(scores=scores):
            for feature, table in zip(model.schema.features, scores, strict=True):
                for name, column in zip(name_cells([feature]), table.T, strict=True):
                    yield from (
                        NamedWeight(name, class_name, float(value))
                        for class_name, value in zip(model.classes, column, strict=True)
                    )
        case VoteModel(vote=vote):
            names = model.schema.names
            for classifier in vote.classifiers:
                yield NamedWeight(
                    " and ".join(names[j] for j in classifier.features), None, classifier.weight
                )
        case GLM(weights=weights, design=design):
            for class_name, row in zip(
                _list_scored_classes(model, len(weights)), weights, strict=True
            ):
                yield from (
                    NamedWeight(name, class_name, float(value))
                    for name, value in zip(design.names[1:], row[1:], strict=True)
                )
        case PooledModel(weights=weights):
            cells = name_cells(model.schema.features)
            for class_name, column in zip(
                _list_scored_classes(model, weights.shape[1]), weights.T, strict=True
            ):
                yield from (
                    NamedWeight(name, class_name, float(value))
                    for name, value in zip(cells, column, strict=True)
                )


def name_cells(features: Iterable[Feature]) -> list[str]:
    """Return names for all cells: ``age > 40``, ``sex = Male``, ``age missing``."""
    names = []
    for feature in features:
        cells = cell_names(feature)
        known = cells[:-1] if feature.missing else cells
        sign = "= " if isinstance(feature, Categorical) else ""
        names += [f"{feature.name} {sign}{cell}" for cell in known] + (
            [f"{feature.name} missing"] if feature.missing else []
        )
    return names
