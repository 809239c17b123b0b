"""Other studies of the same question: the same columns, label and epsilon under each protocol, variant and trust that there is.

What the given study says about itself is kept wherever it has a meaning: how many hold rows, how many of them may collude, the tables of
its own protocol. Everything else is as the study file fills it in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shoal.errors import SpecError
from shoal.sim.sweep import vary
from shoal.study.explain import explain
from shoal.study.spec import Study

HOLDERS = 10
"""So many databases or organisations hold the rows where the study does not say."""
DELTA = 1e-6
HONEST_SHARE = 0.9
_INSTANCES = 20
_PAPERS_SUBSETS, _PAPERS_SUBSET_SIZE, _PAPERS_PARTITIONS = 2, 3, 5
_MEMBERS = {"sdq": "n_databases", "pfds": "n_holders"}


@dataclass(frozen=True)
class Way:
    """One way of answering the question.

    Parameters
    ----------
    name
        For people.
    protocol, variant, trust
        As a study file has them.
    learner
        Of SDQ.
    has_delta
        Whether the guarantee may fail with a small chance.
    is_given
        Whether this is the given study itself, which goes none of the known ways.
    """

    name: str
    protocol: str
    variant: str
    trust: str
    learner: str | None = None
    has_delta: bool = False
    is_given: bool = False


WAYS = (
    Way("AnonML plus, local", "anonml", "plus", "local"),
    Way("AnonML plus, shuffled", "anonml", "plus", "shuffled", has_delta=True),
    Way("AnonML paper, local", "anonml", "paper", "local"),
    Way("DDML plus, local", "ddml", "plus", "local"),
    Way("SDQ plus, secure sums, tree", "sdq", "plus", "secure-sum", "tree"),
    Way("SDQ plus, secure sums, naive Bayes", "sdq", "plus", "secure-sum", "naive-bayes"),
    Way("SDQ paper, secure sums", "sdq", "paper", "secure-sum", "tree"),
    Way("SDQ paper, local (SuLQ)", "sdq", "paper", "local", "tree"),
    Way("PFDS plus, local", "pfds", "plus", "local"),
    Way("PFDS plus, secure sums", "pfds", "plus", "secure-sum"),
    Way("PFDS plus, secure sums with delta", "pfds", "plus", "secure-sum", has_delta=True),
    Way("PFDS paper, local", "pfds", "paper", "local"),
)
"""What is compared, in the order in which it is shown."""

_TITLES = {"anonml": "AnonML", "ddml": "DDML", "sdq": "SDQ", "pfds": "PFDS"}


def ways_of(study: Study) -> tuple[Way, ...]:
    """All ways; before them the study's own where that is none of them, such as one of DDML's variant paper."""
    if any(_is(way, study) for way in WAYS):
        return WAYS
    own = Way(f"{_TITLES[study.protocol]} {study.variant}, this study", study.protocol, study.variant, study.trust, is_given=True)
    return (own, *WAYS)


def derive(way: Way, study: Study, epsilon: float, n_holders: int | None = None) -> Study:
    """The study that answers another's question in one of the `ways_of` it.

    Parameters
    ----------
    way, study
        The way, and whose question it is. Free counts are left out: they are asked besides what is learned.
    epsilon
        The whole budget of one unit, whatever that is in this way.
    n_holders
        How many hold the rows in SDQ and PFDS; None for as many as the study says, or 10.

    Raises
    ------
    SpecError
        The question cannot be answered in this way.

    Examples
    --------
    >>> from shoal.study.load import parse
    >>> from shoal.study.templates import study_text
    >>> study = parse(study_text("ddml"))
    >>> [made.privacy.unit for made in (derive(way, study, 1.0) for way in WAYS[:5])]
    ['person', 'person', 'person', 'update', 'record']
    """
    content = {**study.content(), "queries": None}
    if way.is_given or _is(way, study):
        return _varied(Study.from_content(content), epsilon, n_holders)
    try:
        return Study.from_content(_content(way, study, epsilon, n_holders))
    except ValidationError as error:
        first = explain(error)[0]
        raise SpecError(first.code, first.what, fix=first.fix) from None


def members_of(study: Study) -> int | None:
    """How many databases or organisations a study has; None where people or devices take part."""
    table = study.sdq or study.pfds
    return None if table is None else int(getattr(table, _MEMBERS[study.protocol]))


def _varied(study: Study, epsilon: float, n_holders: int | None) -> Study:
    """The study itself, at another epsilon and perhaps with more or fewer who hold rows."""
    changed: dict[str, float] = {"epsilon": epsilon}
    if study.protocol in _MEMBERS and n_holders is not None and n_holders != members_of(study):
        changed[_MEMBERS[study.protocol]] = n_holders
    try:
        return vary(study, changed)
    except SpecError as error:
        raise SpecError(error.code, error.what.removeprefix("sweep  "), fix=error.fix) from None


def _is(way: Way, study: Study) -> bool:
    """Whether a study goes this way already."""
    same = (study.protocol, study.variant, study.trust) == (way.protocol, way.variant, way.trust)
    if study.sdq is not None:
        return same and study.sdq.learner == way.learner and study.sdq.noise == "all-contribute"
    return same and study.privacy.unit != "weight" and (study.protocol == "ddml" or bool(study.privacy.delta) == way.has_delta)


def _content(way: Way, study: Study, epsilon: float, n_holders: int | None) -> dict[str, Any]:
    """What the study file of a way says; defaults are filled in when it is read."""
    content = study.content()
    for key in (*_TITLES, "data", "queries"):
        content.pop(key)
    delta = (study.privacy.delta or DELTA) if way.has_delta else 0.0
    asked = study.participation
    n_rows = asked.size * (study.ddml.batch_size if study.ddml is not None else 1)
    content |= {
        "protocol": way.protocol,
        "variant": way.variant,
        "trust": way.trust,
        "privacy": {"epsilon": epsilon, "delta": delta},
        "participation": {"minimum": asked.minimum, "size": n_rows, "closes": asked.closes},
    }
    if way.protocol in _MEMBERS:
        return content | _held(way, study, n_holders, content)
    if study.protocol in _MEMBERS:
        # A minimum that counts databases says nothing about people.
        content["participation"]["minimum"] = max(1, n_rows // 2)
    if way.trust == "shuffled":
        content["participation"]["honest_share"] = asked.honest_share or HONEST_SHARE
    if way.protocol == "ddml":
        content["ddml"] = {"batch_size": study.max_rows, "n_instances": min(_INSTANCES, content["participation"]["minimum"])}
    elif way.variant == "paper":
        content["anonml"] = _papers_figures(len(study.feature))
    return content


def _held(way: Way, study: Study, n_holders: int | None, content: dict[str, Any]) -> dict[str, Any]:
    """What differs where databases or organisations hold the rows: who they are, and the person of a row."""
    before, own = members_of(study), study.sdq or study.pfds
    n = n_holders or before or HOLDERS
    table: dict[str, Any] = {_MEMBERS[way.protocol]: n}
    minimum = study.participation.minimum if n == before else n
    if way.trust == "secure-sum":
        if n == before and own is not None and study.trust == "secure-sum":
            table["max_colluders"] = own.max_colluders
        else:
            minimum = n
    if way.learner is not None:
        table["learner"] = way.learner
    more: dict[str, Any] = {way.protocol: table, "participation": {**content["participation"], "minimum": minimum}}
    if study.data is not None:
        more["data"] = study.content()["data"]
    if way.protocol == "pfds" and way.variant == "paper":
        # Its trees choose split values of their own.
        more["feature"] = [{key: value for key, value in feature.items() if key != "bins"} for feature in content["feature"]]
    return more


def _papers_figures(n_features: int) -> dict[str, int]:
    """k_p, k_h and k_s as the AnonML paper has them for Adult, or as many as there are features for."""
    n_subsets = min(_PAPERS_SUBSETS, n_features)
    size = min(_PAPERS_SUBSET_SIZE, n_features // n_subsets)
    return {"n_partitions": _PAPERS_PARTITIONS, "n_subsets": n_subsets, "subset_size": size}


def differences(study: Study, made: Study) -> dict[str, Any]:
    """What a study says that another does not, or says otherwise: keys with a dot behind their table, and what became of features."""
    return dict(_differences(study.content(), made.content(), ""))


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping):
            yield from _differences(old or {}, value, f"{key}.")
        elif key == "feature":
            changed = [one["name"] for one, other in zip(value, before[key], strict=True) if one != other]
            yield from [("feature", f"without bins: {', '.join(changed)}")] if changed else []
        elif value is not None and value != old:
            yield prefix + key, value
