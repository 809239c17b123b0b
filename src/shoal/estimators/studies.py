"""The study that an estimator simulates, and what it says about privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from shoal.domain import Feature, Numeric, Schema, Text
from shoal.estimators.inputs import EstimatorError
from shoal.names import counted
from shoal.privacy.events import Unit
from shoal.privacy.rounding import show
from shoal.study.explain import explain
from shoal.study.label import SIMULATED, Statement
from shoal.study.plan import make_plan
from shoal.study.spec import Study

_NOUNS = {"sdq": "database", "pfds": "holder"}
"""What takes part in a study; a peer in all others."""

INFERRED = "ranges and categories, which were read from the data: nothing that was fitted so may be released"
UNFITTED = "Not fitted: nothing was spent. Each fit spends its epsilon, also one inside a search or a cross-validation."
TRUE_SIZE = "how many rows there are in all: here it is the declared size"


@dataclass(frozen=True)
class NoGuarantee:
    """What is said about privacy where nothing was perturbed."""

    epsilon: float = math.inf
    simulated: bool = True

    def __str__(self) -> str:
        return f"NO PRIVACY: epsilon is infinite, nothing was perturbed, and there is no guarantee. {SIMULATED}"

    def to_html(self) -> str:
        """The same as a paragraph."""
        return f"<p>{self}</p>"

    def _repr_html_(self) -> str:
        return self.to_html()


def in_short(privacy: Statement | NoGuarantee) -> str:
    """A guarantee on one line: epsilon with its unit, relation and adversary."""
    if isinstance(privacy, NoGuarantee):
        return str(privacy)
    guarantee = f"epsilon {show(privacy.epsilon)}, delta {show(privacy.delta)} (unit {privacy.scope})"
    if privacy.scope.unit is Unit.WEIGHT:
        guarantee = f"epsilon {show(privacy.everything[0])} for all that is sent; {guarantee}"
    return f"fitted, simulated: {guarantee}"


def not_named(nouns: str) -> str:
    """What a guarantee does not cover where nobody says who holds which row."""
    return f"who holds which row: nobody said, and the rows were dealt at random to {nouns} that do not exist"


def make_study(schema: Schema, n_peers: int, settings: Mapping[str, Any]) -> Study:
    """The study of a schema and settings, in which all peers take part.

    Parameters
    ----------
    schema
        Features and label.
    n_peers
        The declared size, and the fewest that take part.
    settings
        All other tables and keys of the study; what they say about participation is added.

    Raises
    ------
    EstimatorError
        The settings do not go together, with the sentence that a study file would get.
    """
    if schema.label is None:
        raise EstimatorError("SCHEMA-001", "The schema declares no label.", fix="Give Schema(..., label=...).")
    who = _NOUNS.get(settings["protocol"], "peer")
    document = {
        "title": "A simulation",
        "purpose": f"To predict {schema.label.name} from {counted(len(schema.columns), 'feature')} of {counted(n_peers, who)}.",
        "contact": "whoever runs it",
        "label": _public(schema.label),
        "feature": [*map(_feature, schema.features), *map(_text, schema.texts)],
        **settings,
        "participation": {"minimum": n_peers, "size": n_peers, **settings.get("participation", {})},
    }
    try:
        return Study.model_validate(_plain(document))
    except ValidationError as error:
        problem = explain(error)[0]
        raise EstimatorError(problem.code, problem.what, fix=problem.fix) from None


def _public(feature: Feature) -> dict[str, Any]:
    """A column in the words of a study file."""
    if isinstance(feature, Numeric):
        return {"name": feature.name, "range": [feature.low, feature.high]}
    return {"name": feature.name, "values": list(feature.values)}


def _feature(feature: Feature) -> dict[str, Any]:
    return {**_public(feature), **_cut(feature), "missing": feature.missing}


def _text(text: Text) -> dict[str, Any]:
    return {"name": text.name, "buckets": text.buckets, "ngrams": text.ngrams, "missing": text.missing}


def _cut(feature: Feature) -> dict[str, Any]:
    if isinstance(feature, Numeric):
        return {"bins": None if feature.bins is None else list(feature.bins)}
    return {"groups": None if feature.groups is None else {name: list(members) for name, members in feature.groups.items()}}


def simulated_statement(study: Study, digest: bytes | None, notes: Sequence[str]) -> Statement:
    """The label of a simulated study in which this stands for the digest, if one is needed, with what else its guarantee does not cover."""
    statement = make_plan(study, digest).statement()
    return replace(statement, simulated=True, not_covered=(*notes, *statement.not_covered))


def _plain(value: Any) -> Any:
    """The same in Python's own numbers, where grids of settings and schemas may hold NumPy's; a study is strict about kinds."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
