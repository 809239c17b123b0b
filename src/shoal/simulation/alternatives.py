"""Studies of the same question under each protocol, variant and trust level.

`shoal.simulation.compare` runs them on the same rows. A derived study keeps the columns, the label,
and each setting of the given study that still has a meaning: the number of holders and colluders,
and the table of its protocol. Defaults of the study file fill in the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from shoal.errors import SpecError
from shoal.simulation.protocol import Alternative
from shoal.simulation.registry import SIMULATED, get_simulated
from shoal.simulation.sweep import vary
from shoal.study.explain import explain
from shoal.study.registry import PROTOCOLS, get_protocol
from shoal.study.spec import Study
from shoal.study.validation import parse_content

DEFAULT_HOLDERS = 10
"""Databases or organisations if the study does not declare a number."""
DELTA = 1e-6
HONEST_SHARE = 0.9

ALTERNATIVES = tuple(
    alternative for protocol in SIMULATED.values() for alternative in protocol.alternatives
)
"""The alternatives of a comparison, in the order of its table."""


def list_alternatives(study: Study) -> tuple[Alternative, ...]:
    """Return all alternatives, and the given study first if it is not one of them."""
    if any(_matches(alternative, study) for alternative in ALTERNATIVES):
        return ALTERNATIVES
    given = Alternative(
        f"{get_protocol(study).title} {study.variant}, this study",
        study.protocol,
        study.variant,
        study.trust,
        is_given=True,
    )
    return (given, *ALTERNATIVES)


def derive_study(
    alternative: Alternative, study: Study, epsilon: float, n_holders: int | None = None
) -> Study:
    """Return the study that answers the question of another one with an alternative.

    Free counts are left out: an analyst asks them in addition to what is learned.

    Parameters
    ----------
    epsilon
        The whole budget of one unit of the derived study.
    n_holders
        Databases of SDQ or organisations of PFDS; None for the number in the study, or 10.

    Raises
    ------
    SpecError
        The alternative cannot answer the question.

    Examples
    --------
    >>> from shoal.study.ddml import DDMLProtocol
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.starters import read_starter
    >>> study = parse_study_text(read_starter(DDMLProtocol.name))
    >>> [derive_study(one, study, 1.0).privacy.unit for one in ALTERNATIVES[:5]]
    ['person', 'person', 'person', 'update', 'record']
    """
    content = {**study.to_content(), "queries": None}
    if alternative.is_given or _matches(alternative, study):
        return _vary_study(parse_content(content), epsilon, n_holders)
    try:
        return parse_content(_make_content(alternative, study, epsilon, n_holders))
    except ValidationError as error:
        first = explain(error)[0]
        raise SpecError(first.code, first.what, fix=first.fix) from None


def count_members(study: Study) -> int | None:
    """Return the number of databases or organisations; None for people or devices."""
    return get_protocol(study).count_members(study) or None


def _vary_study(study: Study, epsilon: float, n_holders: int | None) -> Study:
    """Return the given study with another epsilon, and perhaps another number of holders."""
    settings: dict[str, float] = {"epsilon": epsilon}
    count_key = get_protocol(study).holders.count_key
    if count_key is not None and n_holders not in (None, count_members(study)):
        assert n_holders is not None
        settings[count_key] = n_holders
    try:
        return vary(study, settings)
    except SpecError as error:
        raise SpecError(error.code, error.what.removeprefix("sweep  "), fix=error.fix) from None


def _matches(alternative: Alternative, study: Study) -> bool:
    """Return whether a study already is an alternative."""
    is_same_form = (study.protocol, study.variant, study.trust) == (
        alternative.protocol,
        alternative.variant,
        alternative.trust,
    )
    return is_same_form and get_simulated(study).matches(alternative, study)


def _make_content(
    alternative: Alternative, study: Study, epsilon: float, n_holders: int | None
) -> dict[str, Any]:
    """Return the content of a derived study, without defaults."""
    content = study.to_content()
    data = content["data"]
    for key in (*PROTOCOLS, "data", "queries"):
        content.pop(key)
    delta = (study.privacy.delta or DELTA) if alternative.has_delta else 0.0
    participation = study.participation
    content |= {
        "protocol": alternative.protocol,
        "variant": alternative.variant,
        "trust": alternative.trust,
        "privacy": {"epsilon": epsilon, "delta": delta},
        "participation": {
            "minimum": participation.minimum,
            "size": get_simulated(study).count_rows(study),
            "closes": participation.closes,
        },
    }
    if PROTOCOLS[alternative.protocol].holders.are_organisations:
        _add_holders(alternative, study, n_holders, content)
        if data is not None:
            content["data"] = data
    else:
        _add_people(alternative, study, content)
    SIMULATED[alternative.protocol].complete_content(alternative, study, content)
    return content


def _add_people(alternative: Alternative, study: Study, content: dict[str, Any]) -> None:
    """Add the participation of people or devices to the content of a derived study."""
    participation = content["participation"]
    if get_protocol(study).holders.are_organisations:
        # A minimum that counts databases means nothing for people.
        participation["minimum"] = max(1, participation["size"] // 2)
    if alternative.trust == "shuffled":
        participation["honest_share"] = study.participation.honest_share or HONEST_SHARE


def _add_holders(
    alternative: Alternative, study: Study, n_holders: int | None, content: dict[str, Any]
) -> None:
    """Add the databases or organisations to the content of a derived study."""
    before = count_members(study)
    n = n_holders or before or DEFAULT_HOLDERS
    count_key = PROTOCOLS[alternative.protocol].holders.count_key
    assert count_key is not None
    table: dict[str, Any] = {count_key: n}
    minimum = study.participation.minimum if n == before else n
    if alternative.trust == "secure-sum":
        if n == before and study.trust == "secure-sum":
            table["max_colluders"] = getattr(study, study.protocol).max_colluders
        else:
            minimum = n
    content[alternative.protocol] = table
    content["participation"]["minimum"] = minimum


def list_differences(study: Study, derived: Study) -> dict[str, Any]:
    """Return the values of a derived study that the given one does not have.

    Keys of a table have the form ``table.key``. Features are named if they have lost their bins.
    """
    return dict(_iterate_differences(study.to_content(), derived.to_content(), ""))


def _iterate_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Any]]:
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping):
            yield from _iterate_differences(old or {}, value, f"{key}.")
        elif key == "feature":
            changed = [
                one["name"] for one, other in zip(value, before[key], strict=True) if one != other
            ]
            yield from [("feature", f"without bins: {', '.join(changed)}")] if changed else []
        elif value is not None and value != old:
            yield prefix + key, value
