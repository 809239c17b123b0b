"""A study as a record of the registry of deployments of differential privacy.

``shoal statement --registry`` writes the record. Fields and their order are those of the registry's
template of 2026 (OpenDP; arXiv 2509.13509). A field that the study file does not determine is None,
and `list_missing_fields` lists it for the curator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal import __version__
from shoal.privacy.events import Unit
from shoal.privacy.rounding import format_epsilon
from shoal.report.statement import list_trusted_parties
from shoal.study.delivery import make_offer_statement
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.registry import get_protocol
from shoal.study.spec import Study
from shoal.text import clean_text, format_count

_MODELS = {"local": "Local", "shuffled": "Shuffle", "secure-sum": "Federated"}
_MODEL_DETAILS = {
    "local": "All data that leaves a participant is already private.",
    "shuffled": "All data that leaves a participant is already private. A relay shuffles it; the "
    "figures after shuffling depend on the relay.",
    "secure-sum": "Distributed: each participant adds a share of the noise to a secure sum. No "
    "curator is trusted.",
}


def make_registry_record(manifest: Manifest) -> dict[str, Any]:
    """Return the record of a study as plain data."""
    study, label = manifest.study, make_offer_statement(manifest)
    return {
        "url_slug": f"shoal-{manifest.short_digest}",
        "deployment": {
            "basic": _make_basic(study, label),
            "dp_variant": {
                "variant_name": "Approximate DP"
                if label.delta or label.shuffled is not None
                else "Pure DP",
                "data_domain": _describe_domain(study),
                "unprotected_quantities": "; ".join(label.not_covered),
            },
            "privacy_loss": _make_loss(study, label),
            "deployment_model": _make_deployment_model(study, label),
            "implementation": _make_implementation(study, label),
            "administrative": {
                "evidence_sources": {},
                "status": "Draft",
                "registry_authors": [label.contact],
                "tier": 3,
            },
        },
    }


def list_missing_fields(record: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yield the paths of the fields that only the curator can fill in.

    Examples
    --------
    >>> list(
    ...     list_missing_fields(
    ...         {"basic": {"name": "Naps", "curators": [{"type": None}], "region": None}}
    ...     )
    ... )
    ['basic.curators.0.type', 'basic.region']
    """
    for key, value in record.items():
        path = f"{within}{key}"
        if value is None:
            yield path
        elif isinstance(value, Mapping):
            yield from list_missing_fields(value, f"{path}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from list_missing_fields(item, f"{path}.{i}.")


def _make_basic(study: Study, label: Statement) -> dict[str, Any]:
    features = ", ".join(clean_text(feature.name) for feature in study.feature)
    return {
        "name": label.title,
        "data_curators": [{"data_curator_name": label.contact, "data_curator_type": None}],
        "description": f"A model that predicts {clean_text(study.label.name)} from {features}, "
        f"learned by the protocol {study.protocol}.",
        "intended_use": label.purpose,
        "data_product_type": "Synthetic data"
        if get_protocol(study).publishes_rows
        else "Machine learning model",
        "data_product_region": None,
        "data_product_sector": None,
        "publication_date": None,
    }


def _describe_domain(study: Study) -> str:
    ranges = "with ranges and categories that the study declares as public"
    return (
        "Tables with the columns "
        f"{', '.join(clean_text(feature.name) for feature in study.feature)} and "
        f"{clean_text(study.label.name)}, {ranges}."
    )


def _make_loss(study: Study, label: Statement) -> dict[str, Any]:
    epsilon, delta = label.everything
    rows = dict(label.rows())
    details = rows["Guarantee"]
    # The declared size of databases is in rows, and a person may have several.
    is_counted_in_rows = study.data is not None
    unit = (
        "everything that one device sends"
        if label.scope.unit is Unit.WEIGHT
        else label.scope.unit.value
    )
    return {
        "privacy_unit": f"{unit}-level" if " " not in unit else unit,
        "privacy_unit_details": f"{rows['Protects'][0]}.",
        "number_of_privacy_units": None if is_counted_in_rows else study.participation.size,
        "privacy_parameters": {"epsilon": epsilon, "delta": delta},
        "privacy_parameters_details": ". ".join(details),
    }


def _make_deployment_model(study: Study, label: Statement) -> dict[str, Any]:
    free, protocol = study.queries, get_protocol(study)
    return {
        "model_name": _MODELS[study.trust],
        "model_name_details": _MODEL_DETAILS[study.trust],
        "trust_assumptions": "; ".join(list_trusted_parties(study, label)),
        "actors": f"Participants: {protocol.describe_participants(study)}. "
        f"What leaves: {label.leaves}. Seen by: {label.seen_by}.",
        "release_type": "One release",
        "release_type_details": "The model is published once, when the study ends. A "
        "participant's ledger counts the budget of each answer as spent.",
        "data_source_type": "Dynamic" if protocol.has_updates else "Static",
        "data_source_type_details": "Devices send updates as they record rows."
        if protocol.has_updates
        else "Each participant answers from the rows that it holds.",
        "access_type": "Non-interactive" if free is None else "Interactive",
        "access_type_details": "Only the model is published."
        if free is None
        else f"The analyst may query up to {format_count(free.n_queries, 'count')} at epsilon "
        f"{format_epsilon(free.epsilon_release)} each.",
    }


def _make_implementation(study: Study, label: Statement) -> dict[str, Any]:
    mechanisms = "; ".join(dict.fromkeys(release.event.mechanism for release in label.releases))
    return {
        "preprocessing_and_hyperparameter_tuning": "Settings follow from the study file alone, "
        "not from the data.",
        "mechanisms": (
            f"{mechanisms}: exact samplers on integers with the operating system's randomness, in "
            f"shoal {__version__}. "
            f"Releases: {'; '.join(map(str, label.releases))}."
        ),
        "composition": f"{label.how}; each participant computes the price from the study file and "
        "charges it to its own ledger.",
        "post_processing": "The model, its predictions and data sampled from it are computed from "
        "the released values.",
        "justification": None,
        "utility": None,
        "additional_information": f"Software: shoal {__version__}. Study: {label.digest}. Variant "
        f"{study.variant} of {study.protocol}.",
    }
