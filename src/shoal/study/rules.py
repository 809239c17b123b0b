"""What the keys of a study mean together: defaults that follow from others, and combinations that are refused.

`problems` lists everything that is wrong, not the first thing only, each with the key that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shoal.domain import Text
from shoal.errors import SpecError
from shoal.ngrams import MAX_NGRAM
from shoal.protocols.sdq.params import default_choice
from shoal.study.conditions import conditions
from shoal.study.problems import Path, Problem

if TYPE_CHECKING:
    from shoal.study.spec import FeatureSpec, LabelSpec, Study

TRUSTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("anonml", "plus"): ("local", "shuffled"),
    ("anonml", "paper"): ("local",),
    ("ddml", "plus"): ("local",),
    ("ddml", "paper"): ("local",),
    ("sdq", "plus"): ("secure-sum",),
    ("sdq", "paper"): ("secure-sum", "local"),
    ("pfds", "plus"): ("local", "secure-sum"),
    ("pfds", "paper"): ("local",),
}
"""Protocol and variant -> the trust levels that it has, the default first. The local form of sdq is SuLQ, its baseline."""

UNITS = {"anonml": ("person",), "ddml": ("update", "weight"), "sdq": ("record", "person"), "pfds": ("record", "person")}
"""Protocol -> the units that it can protect, the default first."""

_KINDS = {"range": ("a number", "bins"), "values": ("a category", "groups"), "buckets": ("a text", "ngrams")}
"""The key that makes a column a number, a category or a text -> what it then is, and the key that may stand beside it."""

_PAPER_KEYS = {"anonml": ("n_partitions", "n_subsets", "subset_size")}
_PAPERS_DEPTH = 8
_KEY_OF = {"SCHEMA-002": "range", "SCHEMA-003": "bins", "SCHEMA-004": "values", "SCHEMA-005": "groups", "SCHEMA-006": "buckets"}


def default_colluders(n: int) -> int:
    """A third of the parties, rounded up, but never half of them: choosing or selecting jointly needs an honest majority."""
    return min(-(-n // 3), (n - 1) // 2)


def fill(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the defaults that depend on other keys; what is written, or cannot be read, is left as it is."""
    protocol, variant = document.get("protocol"), document.get("variant", "plus")
    if not isinstance(protocol, str) or not isinstance(variant, str) or (protocol, variant) not in TRUSTS:
        return document
    trust = document.get("trust", TRUSTS[protocol, variant][0])
    unit = "person" if document.get("data") is not None and protocol in ("sdq", "pfds") else UNITS[protocol][0]
    more: dict[str, dict[str, Any]] = {"privacy": {"unit": unit}}
    if protocol == "ddml":
        paper = variant == "paper"
        more["ddml"] = {"merge": "discard" if paper else "blend", "averaging": not paper, "centred": not paper, "link": _link(document)}
        document = {**document, "ddml": {} if document.get("ddml") is None else document["ddml"], **_texts(document)}
    table = document.get(protocol)
    if protocol in ("sdq", "pfds") and isinstance(table, dict):
        n = table.get("n_databases" if protocol == "sdq" else "n_holders")
        n = n if type(n) is int and n > 0 else None
        more[protocol] = {"max_colluders": default_colluders(n)} if trust == "secure-sum" and n else {}
        more[protocol] |= _splits(table, variant, n, **more[protocol]) if protocol == "sdq" else _trees(document, table, variant)
    filled = {key: _filled(document[key], defaults) for key, defaults in more.items() if isinstance(document.get(key), dict)}
    return {"trust": trust, **document, **filled}


def _filled(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return table | {key: value for key, value in defaults.items() if table.get(key) is None}


def _splits(table: dict[str, Any], variant: str, n: int | None, max_colluders: int = 0) -> dict[str, Any]:
    """How deep a tree is and how plus chooses its attributes; naive Bayes has none."""
    if table.get("learner") == "naive-bayes":
        return {}
    if variant == "paper":
        return {"depth": 4}
    c = table.get("max_colluders", max_colluders)
    return {"depth": 8} | ({"choice": default_choice(n, c)} if n and type(c) is int else {})


def _trees(document: dict[str, Any], table: dict[str, Any], variant: str) -> dict[str, Any]:
    """The figures of the paper's trees; plus has none."""
    if variant == "plus":
        return {}
    features, depth = document.get("feature"), table.get("max_depth")
    n_features = len(features) if isinstance(features, (list, tuple)) else _PAPERS_DEPTH
    # A tree has at least two levels; that one feature is not enough for it is said where conditions are.
    deepest = max(2, min(_PAPERS_DEPTH, n_features))
    h_max = depth if type(depth) is int and depth >= 2 else deepest
    figures = {"max_depth": deepest, "n_candidates": 10, "labelling": "shared", "projection": True}
    # Levels are counted for the projection, and buckets are of a number.
    figures |= {} if table.get("projection") is False else {"n_levels": min(4, h_max)}
    return figures | ({"n_buckets": 10} if _is_number(document) else {})


def _texts(document: dict[str, Any]) -> dict[str, Any]:
    """The features, texts among them with the longest run of words that counts."""
    features = document.get("feature")
    if not isinstance(features, (list, tuple)):
        return {}
    is_text = [isinstance(feature, dict) and feature.get("buckets") is not None for feature in features]
    return {"feature": [{"ngrams": MAX_NGRAM, **one} if text else one for one, text in zip(features, is_text, strict=True)]}


def _is_number(document: dict[str, Any]) -> bool:
    label = document.get("label")
    return isinstance(label, dict) and label.get("range") is not None


def _link(document: dict[str, Any]) -> str:
    label = document.get("label")
    values = label.get("values") if isinstance(label, dict) else None
    if not isinstance(values, (list, tuple)):
        return "identity"
    return "logit" if len(values) == 2 else "multinomial"


def problems(study: Study) -> list[Problem]:
    """Everything that is wrong with a study whose values are, each for itself, allowed."""
    # The protocol's own conditions compare numbers, which makes sense only where the keys belong together.
    found = [*_columns(study), *_trust(study), *_unit(study), *_delta(study), *_tables(study), *_paper_keys(study), *_participation(study)]
    return found or list(conditions(study))


def _columns(study: Study) -> Iterator[Problem]:
    seen = {study.label.name}
    specs: list[tuple[Path, FeatureSpec | LabelSpec]] = [(("label",), study.label)]
    specs += [(("feature", i), feature) for i, feature in enumerate(study.feature)]
    for path, spec in specs:
        strange = _strange_keys(spec)
        if strange:
            yield Problem("SPEC-022", (*path, strange[0]), f"{spec.name}: {strange[1]}", strange[2])
            continue
        try:
            part = spec.feature()
        except SpecError as error:
            yield Problem(error.code, (*path, _KEY_OF.get(error.code, "name")), error.what, error.fix)
        else:
            if isinstance(part, Text) and study.protocol != "ddml":
                yield Problem(
                    "SPEC-022",
                    (*path, "buckets"),
                    f"{part.name} is a text, from which {study.protocol} cannot learn.",
                    'Remove the feature, or protocol = "ddml"',
                )
        if path != ("label",) and spec.name in seen:
            yield Problem(
                "SCHEMA-001", (*path, "name"), f"The name {spec.name} is used twice.", "Give every feature and the label a name of its own."
            )
        seen.add(spec.name)


def _strange_keys(spec: FeatureSpec | LabelSpec) -> tuple[str, str, str] | None:
    """The key, what is wrong and the fix where a column mixes the keys of a number, of a category and of a text."""
    mains = [main for main in _KINDS if getattr(spec, main, None) is not None]
    if len(mains) != 1:
        both = f"{' and '.join(mains)} do not go together." if mains else "it is not said whether this is a number or a category."
        text = " buckets = 4096 for a text." if hasattr(spec, "buckets") else ""
        return "name", both, f"Give range = [lowest, highest] for a number, values = [...] for a category.{text}"
    kind, own = _KINDS[mains[0]]
    for _, key in _KINDS.values():
        if key != own and getattr(spec, key, None) is not None:
            return key, f"{key} do not belong to {kind}.", f"Use {own}, or leave {key} out."
    return None


def _trust(study: Study) -> Iterator[Problem]:
    allowed = TRUSTS[study.protocol, study.variant]
    if study.trust in allowed:
        return
    other = "paper" if study.variant == "plus" else "plus"
    hint = f', or variant = "{other}"' if study.trust in TRUSTS[study.protocol, other] else ""
    levels = " or ".join(f'trust = "{level}"' for level in allowed)
    yield Problem(
        "SPEC-020",
        ("trust",),
        f'{study.protocol}, variant {study.variant}, cannot be run with trust = "{study.trust}".',
        f"{levels}{hint}",
    )


def _unit(study: Study) -> Iterator[Problem]:
    unit, allowed = study.privacy.unit, UNITS[study.protocol]
    if unit not in allowed:
        yield Problem("SPEC-020", ("privacy", "unit"), f"{study.protocol} cannot protect the unit {unit}.", f'unit = "{allowed[0]}"')
    elif study.data is not None and "record" not in allowed:
        yield Problem(
            "SPEC-022", ("data",), f"[data] has no meaning for {study.protocol}, where one participant is one person.", "Remove [data]."
        )
    elif study.data is not None and unit == "record":
        yield Problem(
            "SPEC-022", ("privacy", "unit"), "The unit is a record, but [data] tells people apart.", 'unit = "person", or remove [data]'
        )
    elif study.data is None and unit == "person" and "record" in allowed:
        yield Problem(
            "SPEC-011",
            ("privacy", "unit"),
            "The unit is a person, but nothing says which rows are whose.",
            'Add a table [data] with person = "column" and max_rows_per_person = 1, or unit = "record"',
        )
    if study.queries is not None and study.trust == "shuffled":
        yield Problem(
            "SPEC-022",
            ("queries",),
            "[queries] do not go with trust shuffled: what hides a person there is that everyone sends one message, once.",
            'Remove [queries], or trust = "local"',
        )
    if study.privacy.n_updates != 1 and study.protocol != "ddml":
        yield Problem("SPEC-022", ("privacy", "n_updates"), f"n_updates has no meaning for {study.protocol}.", "Remove n_updates.")


def _delta(study: Study) -> Iterator[Problem]:
    delta = study.privacy.delta
    if study.trust == "shuffled" and delta == 0:
        yield Problem(
            "SPEC-011", ("privacy",), "Trust shuffled needs a delta: the guarantee of the crowd fails with a small chance.", "delta = 1e-6"
        )
    is_allowed = study.trust == "shuffled" or study.protocol == "ddml" or (study.protocol == "pfds" and study.trust == "secure-sum")
    if delta > 0 and not is_allowed:
        yield Problem(
            "SPEC-022", ("privacy", "delta"), f"{study.protocol} with trust {study.trust} is pure: it has no delta.", "Remove delta."
        )
    if delta > 0 and study.protocol == "ddml" and study.privacy.unit == "weight":
        yield Problem(
            "SPEC-022", ("privacy", "delta"), "The unit weight is the paper's, which is pure: it has no delta.", 'unit = "update"'
        )


def _tables(study: Study) -> Iterator[Problem]:
    for name in UNITS:
        if name != study.protocol and getattr(study, name) is not None:
            yield Problem(
                "SPEC-022", (name,), f"[{name}] has no meaning in a study whose protocol is {study.protocol}.", f"Remove [{name}]."
            )
    needs_table = study.protocol in ("sdq", "pfds") or study.variant == "paper"
    if needs_table and getattr(study, study.protocol) is None:
        yield Problem(
            "SPEC-011", (), f"There is no table [{study.protocol}].", f"Add [{study.protocol}]; docs/reference/study.md lists its keys."
        )


def _paper_keys(study: Study) -> Iterator[Problem]:
    table = getattr(study, study.protocol)
    for key in _PAPER_KEYS.get(study.protocol, ()) if table is not None else ():
        given = getattr(table, key) is not None
        if given and study.variant == "plus":
            yield Problem(
                "SPEC-022",
                (study.protocol, key),
                f"{key} belongs to the paper's variant; plus chooses by itself.",
                f'Remove {key}, or variant = "paper"',
            )
        if not given and study.variant == "paper":
            yield Problem("SPEC-011", (study.protocol,), f"The paper's variant needs {key}.", f"Add {key} under [{study.protocol}].")


def _participation(study: Study) -> Iterator[Problem]:
    asked = study.participation
    # Of databases the one counts these, and the other their rows.
    if asked.minimum > asked.size and study.protocol in ("anonml", "ddml"):
        yield Problem(
            "SPEC-021",
            ("participation", "minimum"),
            f"minimum = {asked.minimum} is more than size = {asked.size}.",
            f"minimum = {asked.size}",
        )
    if study.trust == "shuffled" and asked.honest_share is None:
        yield Problem(
            "SPEC-011", ("participation",), "Trust shuffled needs the share of participants taken to be honest.", "honest_share = 0.9"
        )
    if study.trust != "shuffled" and asked.honest_share is not None:
        yield Problem(
            "SPEC-022", ("participation", "honest_share"), "honest_share has a meaning with trust shuffled only.", "Remove honest_share."
        )
