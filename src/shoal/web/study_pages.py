"""Study pages from public facts.

The coordinator's dashboard calls it. Pages contain words and figures from the manifest, the label
and the public totals, and from nothing else.

Titles, features and reasons come from an analyst who is not trusted. They are cleaned here, and
escaped by the templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import CODES
from shoal.study.handle import StudyHandle
from shoal.study.label import Statement
from shoal.study.odds import bound_posterior
from shoal.study.spec import FeatureSpec, LabelSpec
from shoal.text import clean_text, format_count, format_utc
from shoal.web.rendering import render

MAX_FEATURES, MAX_VALUES = 60, 8
"""Features, and values of one feature, that a page lists; the manifest has all of them."""

_SHOWN_ROWS = ("You send", "Seen by", "Relies on", "Protects", "Guarantee")
_STATUS_TEXTS = {
    "open": "The study is open for answers.",
    "done": "The study has ended with a result.",
    "failed": "The study has ended without a result.",
    "closed": "The analyst has closed the study early.",
}


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """A study and its label, which never change."""

    handle: StudyHandle
    statement: Statement

    @classmethod
    def from_handle(cls, handle: StudyHandle) -> StudyFacts:
        return cls(handle, handle.label())


@dataclass(frozen=True, slots=True)
class Goal:
    """The number that a study waits for, and the public total that counts towards it.

    Parameters
    ----------
    total
        ``enrolled`` or ``accepted``.
    needed, why
        The number that is shown as complete, and what it is: "needed", "expected" or "in all".
    words
        The requirement, in a sentence.
    is_rounded
        Whether totals are rounded down, like those of people and devices.
    enrolled, accepted
        Names of the two totals.
    """

    total: str
    needed: int
    why: str
    words: str
    is_rounded: bool
    enrolled: str
    accepted: str


def make_goal(facts: StudyFacts, n_named: int) -> Goal:
    """Return the goal of a study; ``n_named`` counts its databases or holders, 0 for people."""
    handle, study = facts.handle, facts.handle.study
    minimum, holders = study.participation.minimum, handle.protocol.holders
    enrolled = f"{holders.plural} {'registered' if handle.has_tokens else 'enrolled'}"
    expected = handle.protocol.count_expected_updates(handle)
    if expected is not None:
        words = (
            f"The study ends when {format_count(expected, 'update')} are merged. It needs at "
            f"least {minimum:,}."
        )
        return Goal("accepted", expected, "expected", words, True, enrolled, "updates merged")
    if n_named:
        words = (
            f"{n_named:,} {holders.plural} can take part. The study needs at least "
            f"{min(minimum, n_named):,} of them."
        )
        return Goal("enrolled", n_named, "in all", words, False, enrolled, "messages accepted")
    each = sum(release.count for release in facts.statement.releases)
    answers = "one answer each" if each == 1 else f"{each:,} answers each"
    words = (
        f"The study needs at least {minimum:,} {holders.plural}, with {answers}. It expects "
        f"{study.participation.size:,}."
    )
    return Goal("accepted", minimum * each, "needed", words, True, enrolled, "answers accepted")


def make_card(facts: StudyFacts, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a study in the list of studies."""
    study = facts.handle.study
    return {
        **{name: summary[name] for name in ("digest", "short", "status")},
        "title": facts.statement.title,
        "purpose": facts.statement.purpose,
        "protocol": study.protocol,
        "variant": study.variant,
        "trust": study.trust,
        "price": clean_text(str(facts.handle.plan.total_loss)),
    }


def make_page_data(
    facts: StudyFacts,
    summary: Mapping[str, Any],
    progress: Mapping[str, Any],
    *,
    n_named: int,
    ends: str | None,
    phases: Sequence[Mapping[str, Any]],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the data of a study's page.

    Parameters
    ----------
    summary, progress
        As the public routes return them.
    n_named
        Number of databases or holders with names; 0 for people and devices.
    ends
        When and how the study ends, as the rest of a sentence after "ends"; None after its end.
    phases
        Phases so far, each with its ``number``, the number of all phases ``of``, and the times
        ``opened`` and ``closes``.
    warnings
        Warnings of its plan.
    """
    study, manifest, statement = facts.handle.study, facts.handle.manifest, facts.statement
    rows = dict(statement.rows())
    features = study.feature
    return {
        **make_card(facts, summary),
        "standings": _STATUS_TEXTS,
        "status": progress["status"],
        "reason": None if progress["reason"] is None else clean_text(progress["reason"]),
        "contact": statement.contact,
        "closes": None if statement.closes is None else format_utc(statement.closes),
        "who": _describe_audience(summary),
        "relay": manifest.relay,
        "epoch": None if manifest.epoch is None else clean_text(manifest.epoch),
        "by_invitation": summary["by_invitation"],
        "protection": [(head, rows[head]) for head in _SHOWN_ROWS if head in rows],
        "odds": list_odds(statement),
        "label": clean_text(study.label.name),
        "label_is": _describe_column(study.label),
        "features": [
            (clean_text(feature.name), _describe_column(feature))
            for feature in features[:MAX_FEATURES]
        ],
        "n_more_features": max(0, len(features) - MAX_FEATURES),
        "goal": make_goal(facts, n_named),
        "progress": {name: progress[name] for name in ("status", "enrolled", "accepted")},
        "refused": dict(progress["refused"]),
        "n_refused": sum(progress["refused"].values()),
        "ends": None if ends is None else clean_text(ends),
        "phases": phases,
        "warnings": [clean_text(warning) for warning in warnings],
    }


def list_odds(statement: Statement) -> list[dict[str, Any]]:
    """Return each sentence on odds, with the range of a guess of 50 of 100 for a chart."""
    return [
        {"words": str(odds), "from": 50, "to": float(bound_posterior(50, odds.loss_bound))}
        for odds in statement.odds
    ]


def _describe_audience(summary: Mapping[str, Any]) -> str:
    if summary["has_roster"]:
        return "members on its roster"
    return "people with an invitation" if summary["by_invitation"] else "everyone"


def _describe_column(spec: FeatureSpec | LabelSpec) -> str:
    """Return a description of a column's values."""
    if spec.range is not None:
        bins = getattr(spec, "bins", None)
        cut = "" if bins is None else f", in {format_count(len(bins) + 1, 'bin')}"
        return f"a number from {spec.range[0]:g} to {spec.range[1]:g}{cut}"
    if spec.values is not None:
        more = len(spec.values) - MAX_VALUES
        names = ", ".join(map(clean_text, spec.values[:MAX_VALUES]))
        return f"one of {names}{f' and {more:,} more' if more > 0 else ''}"
    return f"text, in {getattr(spec, 'buckets', 0):,} buckets"


PUBLISH_FIELDS = ("study", "roster", "relay", "epoch", "patience", "tickets")
"""Fields of the publish form without the key; they are shown again after an error."""


def render_studies(studies: Sequence[Mapping[str, Any]]) -> str:
    """Render the list of studies (`make_card`): open ones first, each part latest first."""
    latest = studies[::-1]
    open_studies, ended = [
        [study for study in latest if (study["status"] == "open") == is_open]
        for is_open in (True, False)
    ]
    return render("studies.html", studies=[*open_studies, *ended], n_open=len(open_studies))


def render_study(study: Mapping[str, Any]) -> str:
    """Render the page of a study (`make_page_data`)."""
    meanings = [(code, n, CODES.get(code, "")) for code, n in study["refused"].items()]
    return render("study.html", study=study, refusals=meanings)


def render_label(facts: StudyFacts, digest: str) -> str:
    """Render the label that a participant reads before consenting."""
    protocol, statement = facts.handle.study.protocol, facts.statement
    return render(
        "label.html",
        digest=digest,
        protocol=protocol,
        title=statement.title,
        parts=[list(statement.plain_rows()), list(statement.expert_rows())],
        odds=list_odds(statement),
    )


def render_publish(
    given: Mapping[str, str] | None = None, problem: Mapping[str, Any] | None = None
) -> str:
    """Render the publish form, with earlier input and the error if there is one."""
    return render(
        "publish.html",
        given={name: (given or {}).get(name, "") for name in PUBLISH_FIELDS},
        problem=problem,
    )


def render_close(
    digest: str, short: str, title: str, status: str, problem: Mapping[str, Any] | None = None
) -> str:
    """Render the form that closes a study early."""
    return render(
        "close.html", digest=digest, short=short, title=title, status=status, problem=problem
    )


def render_notice(heading: str, problem: Mapping[str, Any], back: str = "/") -> str:
    """Render an error page."""
    return render("notice.html", heading=heading, problem=problem, back=back)
