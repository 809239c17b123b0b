"""Learn from the shoal, not the fish: train models together on sensitive rows without trusting anyone with them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.domain import Categorical, Numeric, Schema, SchemaInferredWarning, Text
    from shoal.errors import ShoalError
    from shoal.estimators.anonml import AnonMLClassifier
    from shoal.estimators.ddml import DDMLClassifier, DDMLRegressor
    from shoal.estimators.inputs import HoldersDealtWarning
    from shoal.estimators.pfds import PFDSClassifier, PFDSRegressor
    from shoal.estimators.sdq import SDQNaiveBayesClassifier, SDQTreeClassifier

__version__ = "0.1.0"

__all__ = [
    "AnonMLClassifier",
    "Categorical",
    "DDMLClassifier",
    "DDMLRegressor",
    "HoldersDealtWarning",
    "Numeric",
    "PFDSClassifier",
    "PFDSRegressor",
    "SDQNaiveBayesClassifier",
    "SDQTreeClassifier",
    "Schema",
    "SchemaInferredWarning",
    "ShoalError",
    "Text",
    "__version__",
]

_HOME = {
    "AnonMLClassifier": "shoal.estimators.anonml",
    "Categorical": "shoal.domain",
    "DDMLClassifier": "shoal.estimators.ddml",
    "DDMLRegressor": "shoal.estimators.ddml",
    "HoldersDealtWarning": "shoal.estimators.inputs",
    "Numeric": "shoal.domain",
    "PFDSClassifier": "shoal.estimators.pfds",
    "PFDSRegressor": "shoal.estimators.pfds",
    "SDQNaiveBayesClassifier": "shoal.estimators.sdq",
    "SDQTreeClassifier": "shoal.estimators.sdq",
    "Schema": "shoal.domain",
    "SchemaInferredWarning": "shoal.domain",
    "ShoalError": "shoal.errors",
    "Text": "shoal.domain",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
