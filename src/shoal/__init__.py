"""Train models on sensitive rows without showing them to anyone.

Lazy public names and the version: importing ``shoal`` imports no protocol and no optional library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.data.schema import Categorical, Numeric, Schema, SchemaInferredWarning, Text
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

_MODULES = {
    "AnonMLClassifier": "shoal.estimators.anonml",
    "Categorical": "shoal.data.schema",
    "DDMLClassifier": "shoal.estimators.ddml",
    "DDMLRegressor": "shoal.estimators.ddml",
    "HoldersDealtWarning": "shoal.estimators.inputs",
    "Numeric": "shoal.data.schema",
    "PFDSClassifier": "shoal.estimators.pfds",
    "PFDSRegressor": "shoal.estimators.pfds",
    "SDQNaiveBayesClassifier": "shoal.estimators.sdq",
    "SDQTreeClassifier": "shoal.estimators.sdq",
    "Schema": "shoal.data.schema",
    "SchemaInferredWarning": "shoal.data.schema",
    "ShoalError": "shoal.errors",
    "Text": "shoal.data.schema",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
