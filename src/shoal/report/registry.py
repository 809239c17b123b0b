"""A study as a record of the registry of deployments of differential privacy (OpenDP; arXiv 2509.13509), as far as a study file can say.

The fields and their order are those of the registry's template of 2026. What only the curator knows is None, and listed by `to_fill_in`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal import __version__
from shoal.names import counted
from shoal.privacy.events import Unit
from shoal.privacy.rounding import show
from shoal.report.retention import trusted, who
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.spec import Study
from shoal.study.typeset import clean
from shoal.study.wording_tokens import statement_of

_MODELS = {"local": "Local", "shuffled": "Shuffle", "secure-sum": "Federated"}
_HOW = {
    "local": "What leaves a participant is already private.",
    "shuffled": "What leaves a participant is already private; a relay shuffles it, which the figures of the crowd count on.",
    "secure-sum": "Distributed: each participant adds a share of the noise inside a sum that nobody can unmask; no curator is trusted.",
}
_PRODUCTS = {
    "anonml": "Machine learning model",
    "ddml": "Machine learning model",
    "sdq": "Machine learning model",
    "pfds": "Synthetic data",
}


def registry_record(manifest: Manifest) -> dict[str, Any]:
    """The record, as plain data."""
    study, label = manifest.study, statement_of(manifest)
    return {
        "url_slug": f"shoal-{manifest.short}",
        "deployment": {
            "basic": _basic(study, label),
            "dp_variant": {
                "variant_name": "Approximate DP" if label.delta or label.shuffled is not None else "Pure DP",
                "data_domain": _domain(study),
                "unprotected_quantities": "; ".join(label.not_covered),
            },
            "privacy_loss": _loss(study, label),
            "deployment_model": _model(study, label),
            "implementation": _implementation(study, label),
            "administrative": {
                "evidence_sources": {},
                "status": "Draft",
                "registry_authors": [label.contact],
                "tier": 3,
            },
        },
    }


def to_fill_in(record: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """The fields that only the curator can fill in, by their paths.

    Examples
    --------
    >>> list(to_fill_in({"basic": {"name": "Naps", "curators": [{"type": None}], "region": None}}))
    ['basic.curators.0.type', 'basic.region']
    """
    for key, value in record.items():
        path = f"{within}{key}"
        if value is None:
            yield path
        elif isinstance(value, Mapping):
            yield from to_fill_in(value, f"{path}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from to_fill_in(item, f"{path}.{i}.")


def _basic(study: Study, label: Statement) -> dict[str, Any]:
    features = ", ".join(clean(feature.name) for feature in study.feature)
    return {
        "name": label.title,
        "data_curators": [{"data_curator_name": label.contact, "data_curator_type": None}],
        "description": f"A model that predicts {clean(study.label.name)} from {features}, learned by the protocol {study.protocol}.",
        "intended_use": label.purpose,
        "data_product_type": _PRODUCTS[study.protocol],
        "data_product_region": None,
        "data_product_sector": None,
        "publication_date": None,
    }


def _domain(study: Study) -> str:
    ranges = "with ranges and categories that the study declares as public"
    return f"Tables with the columns {', '.join(clean(feature.name) for feature in study.feature)} and {clean(study.label.name)}, {ranges}."


def _loss(study: Study, label: Statement) -> dict[str, Any]:
    epsilon, delta = label.everything
    rows = dict(label.rows())
    details = [*rows["Guarantee"], *rows.get("In a crowd", ())]
    # The declared size of databases counts rows, of which a person may have several.
    is_counted_otherwise = study.data is not None
    unit = "everything that one device sends" if label.scope.unit is Unit.WEIGHT else label.scope.unit.value
    return {
        "privacy_unit": f"{unit}-level" if " " not in unit else unit,
        "privacy_unit_details": f"{rows['Protects'][0]}.",
        "number_of_privacy_units": None if is_counted_otherwise else study.participation.size,
        "privacy_parameters": {"epsilon": epsilon, "delta": delta},
        "privacy_parameters_details": ". ".join(details),
    }


def _model(study: Study, label: Statement) -> dict[str, Any]:
    free = study.queries
    return {
        "model_name": _MODELS[study.trust],
        "model_name_details": _HOW[study.trust],
        "trust_assumptions": "; ".join(trusted(study, label)),
        "actors": f"Participants: {who(study)}. What leaves: {label.leaves}. Seen by: {label.seen_by}.",
        "release_type": "One release",
        "release_type_details": "The model is published once, when the study ends; what a participant sent stays spent in its own ledger.",
        "data_source_type": "Dynamic" if study.protocol == "ddml" else "Static",
        "data_source_type_details": "Devices answer as rows come."
        if study.protocol == "ddml"
        else "Each participant answers from the rows that it has.",
        "access_type": "Non-interactive" if free is None else "Interactive",
        "access_type_details": "The model alone is published."
        if free is None
        else f"The analyst may ask for up to {counted(free.n_queries, 'count')} at epsilon {show(free.epsilon_release)} each.",
    }


def _implementation(study: Study, label: Statement) -> dict[str, Any]:
    mechanisms = "; ".join(dict.fromkeys(release.event.mechanism for release in label.releases))
    return {
        "preprocessing_and_hyperparameter_tuning": "Settings follow from the study file alone, never from the data.",
        "mechanisms": (
            f"{mechanisms}: exact samplers on integers with the operating system's randomness, in shoal {__version__}. "
            f"Releases: {'; '.join(map(str, label.releases))}."
        ),
        "composition": f"{label.how}; priced by each participant from the study file, and counted in its own ledger.",
        "post_processing": "The model, and whatever is predicted or drawn with it, follows from what was released.",
        "justification": None,
        "utility": None,
        "additional_information": f"Software: shoal {__version__}. Study: {label.digest}. Variant {study.variant} of {study.protocol}.",
    }
