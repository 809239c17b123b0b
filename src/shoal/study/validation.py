"""Defaults and rules that span several keys; `parse_study`.

The loader, `Manifest.from_bytes`, sweeps and estimators parse every study here: `Study` alone
checks single keys. `find_problems` returns all problems, not only the first, each with the key
that it is about. Rules of one protocol are in its own module (`shoal.study.registry`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from shoal.data.schema import Text
from shoal.errors import SpecError
from shoal.study.constraints import KeyPath, StudyProblem, suggest_names
from shoal.study.protocol import StudyProtocol, fill_table
from shoal.study.registry import PROTOCOLS, get_protocol
from shoal.study.spec import FeatureSpec, LabelSpec, Study

_COLUMN_KINDS = {
    "range": ("a number", "bins"),
    "values": ("a category", "groups"),
    "buckets": ("a text", "ngrams"),
}
"""Key that decides the kind of a column -> the kind, and the other key that it allows."""

_KEY_BY_CODE = {
    "SCHEMA-002": "range",
    "SCHEMA-003": "bins",
    "SCHEMA-004": "values",
    "SCHEMA-005": "groups",
    "SCHEMA-006": "buckets",
}


def parse_study(document: Any) -> Study:
    """Fill in defaults, validate, and return the study.

    Parameters
    ----------
    document
        The study file as plain data. Nothing is converted: text is never read as a number.

    Raises
    ------
    ValidationError
        With every problem; `shoal.study.explain.explain` turns them into sentences.

    Examples
    --------
    >>> document = {
    ...     "title": "Naps",
    ...     "purpose": "Who naps?",
    ...     "contact": "a@example.org",
    ...     "protocol": "anonml",
    ...     "label": {"name": "naps", "values": ["no", "yes"]},
    ...     "feature": [{"name": "age", "range": [0, 120]}],
    ...     "privacy": {"epsilon": 1},
    ...     "participation": {"minimum": 100, "size": 1000},
    ... }
    >>> study = parse_study(document)
    >>> study.trust, study.privacy.unit, study.schema().names
    ('local', 'person', ('age',))
    """
    study = Study.model_validate(
        fill_defaults(document) if isinstance(document, dict) else document
    )
    found = find_problems(study)
    if found:
        error = PydanticCustomError(
            "study_rules", "{first}", {"first": found[0].what, "problems": found}
        )
        raise ValidationError.from_exception_data(
            "Study", [InitErrorDetails(type=error, loc=(), input=document)]
        )
    return study


def parse_content(content: dict[str, Any]) -> Study:
    """Return the study that `Study.to_content` describes; times are text there.

    Raises
    ------
    ValidationError
        As `parse_study` does.
    """
    participation = content.get("participation")
    if isinstance(participation, dict) and isinstance(participation.get("closes"), str):
        with suppress(ValueError):
            closes = datetime.fromisoformat(participation["closes"])
            content = {**content, "participation": {**participation, "closes": closes}}
    return parse_study(content)


def fill_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the defaults that depend on other keys.

    Keys that are given, or cannot be read, stay as they are.
    """
    name, variant = document.get("protocol"), document.get("variant", "plus")
    protocol = PROTOCOLS.get(name) if isinstance(name, str) else None
    if protocol is None or not isinstance(variant, str) or variant not in protocol.trust_levels:
        return document
    trust = document.get("trust", protocol.trust_levels[variant][0])
    filled = protocol.fill_defaults(document, variant, trust)
    if isinstance(filled.get("privacy"), dict):
        unit = {"unit": _default_unit(protocol, document)}
        filled = {**filled, "privacy": fill_table(filled["privacy"], unit)}
    return {"trust": trust, **filled}


def _default_unit(protocol: StudyProtocol, document: dict[str, Any]) -> str:
    if document.get("data") is not None and protocol.holders.are_organisations:
        return "person"
    return protocol.units[0]


def find_problems(study: Study) -> list[StudyProblem]:
    """Return all problems of a study with values that are each valid alone."""
    # Conditions of the protocol compare numbers. This needs keys that belong together.
    found = [
        *_check_columns(study),
        *_check_trust(study),
        *_check_unit(study),
        *_check_delta(study),
        *_check_tables(study),
        *_check_paper_keys(study),
        *_check_participation(study),
    ]
    return found or list(_check_conditions(study))


def _check_columns(study: Study) -> Iterator[StudyProblem]:
    seen = {study.label.name}
    specs: list[tuple[KeyPath, FeatureSpec | LabelSpec]] = [(("label",), study.label)]
    specs += [(("feature", i), feature) for i, feature in enumerate(study.feature)]
    for path, spec in specs:
        mixed = _find_mixed_keys(spec)
        if mixed:
            key, what, fix = mixed
            yield StudyProblem("SPEC-022", (*path, key), f"{spec.name}: {what}", fix)
            continue
        try:
            part = spec.make_feature()
        except SpecError as error:
            yield StudyProblem(
                error.code, (*path, _KEY_BY_CODE.get(error.code, "name")), error.what, error.fix
            )
        else:
            if isinstance(part, Text) and not get_protocol(study).learns_text:
                yield StudyProblem(
                    "SPEC-022",
                    (*path, "buckets"),
                    f"{part.name} is a text; {study.protocol} cannot learn from texts.",
                    f"Remove the feature, or protocol = {_list_protocols('learns_text')}",
                )
        if path != ("label",) and spec.name in seen:
            yield StudyProblem(
                "SCHEMA-001",
                (*path, "name"),
                f"The name {spec.name} is used twice.",
                "Give every feature and the label a different name.",
            )
        seen.add(spec.name)


def _find_mixed_keys(spec: FeatureSpec | LabelSpec) -> tuple[str, str, str] | None:
    """Return key, problem and fix if a column mixes keys of different kinds; None otherwise."""
    mains = [main for main in _COLUMN_KINDS if getattr(spec, main, None) is not None]
    if len(mains) != 1:
        both = (
            f"{' and '.join(mains)} cannot be used together."
            if mains
            else "the keys do not show whether this is a number or a category."
        )
        text = " buckets = 4096 for a text." if hasattr(spec, "buckets") else ""
        return (
            "name",
            both,
            f"Give range = [lowest, highest] for a number, values = [...] for a category.{text}",
        )
    kind, own = _COLUMN_KINDS[mains[0]]
    for _, key in _COLUMN_KINDS.values():
        if key != own and getattr(spec, key, None) is not None:
            return key, f"{key} cannot be used for {kind}.", f"Use {own}, or remove {key}."
    return None


def _check_trust(study: Study) -> Iterator[StudyProblem]:
    levels = get_protocol(study).trust_levels
    allowed = levels[study.variant]
    if study.trust in allowed:
        return
    other = "paper" if study.variant == "plus" else "plus"
    hint = f', or variant = "{other}"' if study.trust in levels[other] else ""
    choices = " or ".join(f'trust = "{level}"' for level in allowed)
    yield StudyProblem(
        "SPEC-020",
        ("trust",),
        f'{study.protocol}, variant {study.variant}, does not support trust = "{study.trust}".',
        f"{choices}{hint}",
    )


def _check_unit(study: Study) -> Iterator[StudyProblem]:
    unit, allowed = study.privacy.unit, get_protocol(study).units
    if unit not in allowed:
        yield StudyProblem(
            "SPEC-020",
            ("privacy", "unit"),
            f"{study.protocol} cannot protect the unit {unit}.",
            f'unit = "{allowed[0]}"',
        )
    elif study.data is not None and "record" not in allowed:
        yield StudyProblem(
            "SPEC-022",
            ("data",),
            f"[data] has no meaning for {study.protocol}: a participant is one person.",
            "Remove [data].",
        )
    elif study.data is not None and unit == "record":
        yield StudyProblem(
            "SPEC-022",
            ("privacy", "unit"),
            "The unit is a record, but [data] identifies people.",
            'unit = "person", or remove [data]',
        )
    elif study.data is None and unit == "person" and "record" in allowed:
        yield StudyProblem(
            "SPEC-011",
            ("privacy", "unit"),
            "The unit is a person, but no column identifies the person of a row.",
            'Add a table [data] with person = "column" and max_rows_per_person = 1, or unit = '
            '"record"',
        )
    if study.queries is not None and study.trust == "shuffled":
        yield StudyProblem(
            "SPEC-022",
            ("queries",),
            "[queries] cannot be used with trust shuffled: it requires that everyone sends exactly "
            "one message.",
            'Remove [queries], or trust = "local"',
        )
    if study.privacy.n_updates != 1 and not get_protocol(study).has_updates:
        yield StudyProblem(
            "SPEC-022",
            ("privacy", "n_updates"),
            f"n_updates has no meaning for {study.protocol}.",
            "Remove n_updates.",
        )


def _check_delta(study: Study) -> Iterator[StudyProblem]:
    if study.trust == "shuffled" and study.privacy.delta == 0:
        yield StudyProblem(
            "SPEC-011",
            ("privacy",),
            "Trust shuffled needs a delta: its smaller figure does not hold without one.",
            "delta = 1e-6",
        )
    yield from get_protocol(study).check_delta(study)


def _check_tables(study: Study) -> Iterator[StudyProblem]:
    for name in PROTOCOLS:
        if name != study.protocol and getattr(study, name) is not None:
            yield StudyProblem(
                "SPEC-022",
                (name,),
                f"[{name}] has no meaning in a study whose protocol is {study.protocol}.",
                f"Remove [{name}].",
            )
    needs_table = get_protocol(study).needs_table or study.variant == "paper"
    if needs_table and getattr(study, study.protocol) is None:
        yield StudyProblem(
            "SPEC-011",
            (),
            f"There is no table [{study.protocol}].",
            f"Add [{study.protocol}]; docs/reference/study.md lists its keys.",
        )


def _check_paper_keys(study: Study) -> Iterator[StudyProblem]:
    table = getattr(study, study.protocol)
    for key in get_protocol(study).paper_keys if table is not None else ():
        given = getattr(table, key) is not None
        if given and study.variant == "plus":
            yield StudyProblem(
                "SPEC-022",
                (study.protocol, key),
                f"{key} belongs to the paper's variant; plus chooses it automatically.",
                f'Remove {key}, or variant = "paper"',
            )
        if not given and study.variant == "paper":
            yield StudyProblem(
                "SPEC-011",
                (study.protocol,),
                f"The paper's variant needs {key}.",
                f"Add {key} under [{study.protocol}].",
            )


def _check_participation(study: Study) -> Iterator[StudyProblem]:
    asked = study.participation
    # For organisations the minimum counts them, and the size counts their rows.
    if asked.minimum > asked.size and not get_protocol(study).holders.are_organisations:
        yield StudyProblem(
            "SPEC-021",
            ("participation", "minimum"),
            f"minimum = {asked.minimum} is more than size = {asked.size}.",
            f"minimum = {asked.size}",
        )
    if study.trust == "shuffled" and asked.honest_share is None:
        yield StudyProblem(
            "SPEC-011",
            ("participation",),
            "Trust shuffled needs the share of participants that are assumed to be honest.",
            "honest_share = 0.9",
        )
    if study.trust != "shuffled" and asked.honest_share is not None:
        yield StudyProblem(
            "SPEC-022",
            ("participation", "honest_share"),
            "honest_share has a meaning with trust shuffled only.",
            "Remove honest_share.",
        )


def _check_conditions(study: Study) -> Iterator[StudyProblem]:
    """Yield broken conditions of the protocol, and names that do not exist."""
    protocol = get_protocol(study)
    if study.label.values is None and not protocol.predicts_numbers:
        yield StudyProblem(
            "SPEC-021",
            ("label", "range"),
            f"{study.protocol} predicts categories, not a number.",
            f'values = ["low", "high"], or protocol = {_list_protocols("predicts_numbers")}',
        )
    yield from protocol.find_problems(study)
    yield from _check_references(study)


def _list_protocols(feature: str) -> str:
    """Return the names of the protocols that have a feature, quoted."""
    return " or ".join(f'"{name}"' for name, one in PROTOCOLS.items() if getattr(one, feature))


def _check_references(study: Study) -> Iterator[StudyProblem]:
    schema = study.schema()
    names = (*schema.names, study.label.name)
    counted = study.queries.features if study.queries else ()
    for i, name in enumerate(counted):
        if name in counted[:i]:
            yield StudyProblem(
                "SPEC-021",
                ("queries", "features", i),
                f"[queries] names {name} twice.",
                "Name each feature once.",
            )
        if name not in names:
            yield StudyProblem(
                "SPEC-021",
                ("queries", "features", i),
                f"[queries] names {name}, which is neither a feature nor the label.",
                suggest_names(names),
            )
    if study.data is not None and study.data.person in names:
        yield StudyProblem(
            "SPEC-021",
            ("data", "person"),
            f"The person column {study.data.person} is a feature or the label.",
            "Name another column.",
        )
