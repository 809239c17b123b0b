"""The conditions under which a protocol's theorems hold, and the names that a study refers to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.protocols.ddml.design import Design
from shoal.study.conditions_pfds import conditions_pfds
from shoal.study.conditions_sdq import conditions_sdq
from shoal.study.problems import Problem

if TYPE_CHECKING:
    from shoal.study.spec import Study

MAX_WEIGHTS = 1 << 20
"""Most weights of a model: 4 MB, which every draw and every update carries."""


def conditions(study: Study) -> Iterator[Problem]:
    """What breaks a condition of the study's protocol, or names what is not there."""
    yield from {"anonml": _anonml, "ddml": _ddml, "sdq": _sdq, "pfds": _pfds}[study.protocol](study)
    yield from _references(study)


def _anonml(study: Study) -> Iterator[Problem]:
    yield from _needs_categories(study)
    table = study.anonml
    if table is None:
        return
    if table.accounting == "paper" and study.variant == "plus":
        yield Problem(
            "SPEC-022", ("anonml", "accounting"), "The accounting of equation 6 belongs to the paper's variant.", 'accounting = "plain"'
        )
    for key, default in (("classifier", "logistic"), ("score", "f1")):
        if getattr(table, key) != default and study.variant == "plus":
            yield Problem(
                "SPEC-022",
                ("anonml", key),
                f"{key} belongs to the paper's variant; plus learns in a way of its own.",
                f'Remove {key}, or variant = "paper"',
            )
    n_features = len(study.feature)
    if table.n_subsets is not None and table.subset_size is not None and table.n_subsets * table.subset_size > n_features:
        yield Problem(
            "SPEC-021",
            ("anonml", "n_subsets"),
            f"n_subsets ({table.n_subsets}) x subset_size ({table.subset_size}) = {table.n_subsets * table.subset_size}, "
            f"but there are {n_features} features. AnonML §VI-A: k_h k_s <= k_f.",
            f"n_subsets = {max(1, n_features // table.subset_size)}" if table.subset_size <= n_features else f"subset_size = {n_features}",
        )


def _ddml(study: Study) -> Iterator[Problem]:
    table = study.ddml
    if table is None:
        return
    if study.variant == "paper" and table.merge != "discard":
        yield Problem("SPEC-022", ("ddml", "merge"), f'The paper discards; merge = "{table.merge}" belongs to plus.', 'merge = "discard"')
    n_values = len(study.label.values or ())
    fitting = {0: ("identity", "log"), 2: ("logit", "multinomial")}.get(n_values, ("multinomial",))
    if table.link not in fitting:
        kind = f"a label of {n_values} values" if n_values else "a numeric label"
        yield Problem("SPEC-021", ("ddml", "link"), f'link = "{table.link}" does not fit {kind}.', f'link = "{fitting[0]}"')
    for i, feature in enumerate(study.feature):
        if feature.bins == () and not feature.missing:
            yield Problem(
                "SPEC-021", ("feature", i, "bins"), f"{feature.name} has a single bin, and so no weight.", "Leave bins out, or give one."
            )
    if study.participation.minimum < table.n_instances:
        yield Problem(
            "SPEC-021",
            ("ddml", "n_instances"),
            f"n_instances = {table.n_instances} is more than the {study.participation.minimum} devices that may be all there are.",
            f"n_instances = {study.participation.minimum}",
        )


def _sdq(study: Study) -> Iterator[Problem]:
    yield from _needs_categories(study)
    if study.sdq is not None:
        yield from conditions_sdq(study, study.sdq)


def _pfds(study: Study) -> Iterator[Problem]:
    if study.pfds is not None:
        yield from conditions_pfds(study, study.pfds)


def _needs_categories(study: Study) -> Iterator[Problem]:
    if study.label.values is None:
        yield Problem(
            "SPEC-021",
            ("label", "range"),
            f"{study.protocol} predicts categories, not a number.",
            'values = ["low", "high"], or protocol = "ddml" or "pfds"',
        )


def _references(study: Study) -> Iterator[Problem]:
    schema = study.schema()
    names = (*schema.names, study.label.name)
    yield from _crosses(study)
    asked = study.queries.features if study.queries else ()
    for i, name in enumerate(asked):
        if name in asked[:i]:
            yield Problem("SPEC-021", ("queries", "features", i), f"[queries] names {name} twice.", "Name each feature once.")
        if name not in names:
            yield Problem(
                "SPEC-021", ("queries", "features", i), f"[queries] names {name}, which is neither a feature nor the label.", _choose(names)
            )
    if study.data is not None and study.data.person in names:
        yield Problem(
            "SPEC-021", ("data", "person"), f"The person column {study.data.person} is a feature or the label.", "Name another column."
        )


def _crosses(study: Study) -> Iterator[Problem]:
    """Pairs that are none; where all are, whether there are more weights than a model may have."""
    if study.ddml is None:
        return
    schema, crosses = study.schema(), study.ddml.crosses
    found, seen = False, set()
    for i, pair in enumerate(crosses):
        strange = [name for name in pair if name not in schema.columns]
        again = frozenset(pair) in seen
        seen.add(frozenset(pair))
        if strange or pair[0] == pair[1] or again:
            found = True
            pairs = f"pairs {pair[0]} with itself" if pair[0] == pair[1] else f"pairs {pair[0]} with {pair[1]} a second time"
            what = f"names {strange[0]}, which is no feature" if strange else pairs
            yield Problem("SPEC-021", ("ddml", "crosses", i), f"crosses: it {what}.", _choose(schema.columns))
    n_outputs = len(study.label.values or ()) if study.ddml.link == "multinomial" else 1
    p = 0 if found else n_outputs * Design(schema, crosses).width
    if p > MAX_WEIGHTS:
        yield Problem(
            "SPEC-021",
            ("ddml", "crosses") if crosses else ("feature",),
            f"The model has {p:,} weights; at most {MAX_WEIGHTS:,} can be learned.",
            "Use fewer crosses or buckets, or group values.",
        )


def _choose(names: tuple[str, ...]) -> str:
    return "Choose among: " + ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
