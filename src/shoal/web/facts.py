"""A study as pages show it: words and figures from its manifest, its label and the public totals, and from nothing else.

Titles, features and reasons come from an analyst whom nobody trusts: they are made harmless here, and escaped by the templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.names import counted
from shoal.study.anonymity import has_tokens
from shoal.study.ddml import params_of
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan
from shoal.study.spec import FeatureSpec, LabelSpec
from shoal.study.typeset import clean, moment

MOST_FEATURES, MOST_VALUES = 60, 8
"""That a page lists; the manifest has the rest."""

_SHOWN_ROWS = ("Leaves here", "Seen by", "Protects", "Guarantee", "In a crowd", "Rests on")
_STANDINGS = {
    "open": "It takes answers.",
    "done": "It has ended, and something was learned.",
    "failed": "It has ended without a model.",
    "closed": "Its analyst has ended it before its time.",
}


@dataclass(frozen=True, slots=True)
class Known:
    """A study and what follows from it alone, which never changes."""

    manifest: Manifest
    plan: Plan
    statement: Statement


@dataclass(frozen=True, slots=True)
class Goal:
    """What a study waits for, and which of the public totals counts towards it.

    Parameters
    ----------
    total
        ``enrolled`` or ``accepted``.
    needed, why
        Of how many it is shown, and what these are.
    words
        What is needed, in a sentence.
    is_rounded
        Whether the totals are rounded down, as those of people and devices are.
    enrolled, accepted
        What the two totals count, in a word or two.
    """

    total: str
    needed: int
    why: str
    words: str
    is_rounded: bool
    enrolled: str
    accepted: str


def goal_of(known: Known, n_named: int) -> Goal:
    """What a study waits for; of databases or holders there are ``n_named``, and else none."""
    study, minimum = known.manifest.study, known.manifest.study.participation.minimum
    enrolled = "registered" if has_tokens(known.manifest) else "enrolled"
    if study.protocol == "ddml":
        expected = params_of(study).n_expected
        words = f"It learns until {counted(expected, 'update')} are merged, and needs at least {minimum:,}."
        return Goal("accepted", expected, "expected", words, True, f"devices {enrolled}", "updates merged")
    if n_named:
        who = "holders" if study.protocol == "pfds" else "databases"
        words = f"It is among {n_named:,} {who}, and learns from no fewer than {min(minimum, n_named):,}."
        return Goal("enrolled", n_named, "in all", words, False, f"{who} {enrolled}", "messages accepted")
    each = sum(release.count for release in known.statement.releases)
    answers = "one answer each" if each == 1 else f"{each:,} answers each"
    words = f"It needs at least {minimum:,} people, with {answers}, and expects {study.participation.size:,}."
    return Goal("accepted", minimum * each, "needed", words, True, f"people {enrolled}", "answers accepted")


def listed(known: Known, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A study as one of many."""
    study = known.manifest.study
    return {
        **{name: summary[name] for name in ("digest", "short", "status")},
        "title": known.statement.title,
        "purpose": known.statement.purpose,
        "protocol": study.protocol,
        "variant": study.variant,
        "trust": study.trust,
        "price": clean(str(known.plan.everything)),
    }


def described(
    known: Known,
    summary: Mapping[str, Any],
    progress: Mapping[str, Any],
    *,
    n_named: int,
    ends: str | None,
    phases: Sequence[Mapping[str, Any]],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """A study on a page of its own.

    Parameters
    ----------
    known
        The study.
    summary, progress
        As the public routes tell them.
    n_named
        How many databases or holders there are, each with a name; 0 for people and devices.
    ends
        When and how it ends, in words that go on from "ends"; None where it has ended.
    phases
        Those that were opened, each with its ``number`` and the times ``opened`` and ``closes``; and how many there are, ``of``.
    warnings
        What its plan warns of.
    """
    study, statement = known.manifest.study, known.statement
    rows = dict(statement.rows())
    features = study.feature
    return {
        **listed(known, summary),
        "standings": _STANDINGS,
        "status": progress["status"],
        "reason": None if progress["reason"] is None else clean(progress["reason"]),
        "contact": statement.contact,
        "closes": None if statement.closes is None else moment(statement.closes),
        "who": _who(summary),
        "relay": known.manifest.relay,
        "epoch": None if known.manifest.epoch is None else clean(known.manifest.epoch),
        "by_invitation": summary["by_invitation"],
        "protection": [(head, rows[head]) for head in _SHOWN_ROWS if head in rows],
        "odds": odds_of(statement),
        "label": clean(study.label.name),
        "label_is": _described(study.label),
        "features": [(clean(feature.name), _described(feature)) for feature in features[:MOST_FEATURES]],
        "n_more_features": max(0, len(features) - MOST_FEATURES),
        "goal": goal_of(known, n_named),
        "progress": {name: progress[name] for name in ("status", "enrolled", "accepted")},
        "refused": dict(progress["refused"]),
        "n_refused": sum(progress["refused"].values()),
        "ends": None if ends is None else clean(ends),
        "phases": phases,
        "warnings": [clean(warning) for warning in warnings],
    }


def odds_of(statement: Statement) -> list[dict[str, Any]]:
    """Each of the label's sentences on odds, with where a guess of 50 of 100 can be moved, for a picture of it."""
    sentences = dict(statement.rows())["In words"]
    found: Any = statement.to_dict()["odds"]
    moves = [next(move for move in one["moves"] if move["from"] == 50) for one in found]
    return [{"words": words, "from": move["from"], "to": move["to_at_most"]} for words, move in zip(sentences, moves, strict=True)]


def _who(summary: Mapping[str, Any]) -> str:
    if summary["has_roster"]:
        return "those on its roster"
    return "whoever has an invitation" if summary["by_invitation"] else "everyone"


def _described(spec: FeatureSpec | LabelSpec) -> str:
    """What a column holds, in words."""
    if spec.range is not None:
        bins = getattr(spec, "bins", None)
        cut = "" if bins is None else f", in {counted(len(bins) + 1, 'bin')}"
        return f"a number from {spec.range[0]:g} to {spec.range[1]:g}{cut}"
    if spec.values is not None:
        more = len(spec.values) - MOST_VALUES
        names = ", ".join(map(clean, spec.values[:MOST_VALUES]))
        return f"one of {names}{f' and {more:,} more' if more > 0 else ''}"
    return f"words, in {getattr(spec, 'buckets', 0):,} buckets"
