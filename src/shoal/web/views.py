"""The coordinator's pages, each from plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import CODES
from shoal.web.facts import Known, odds_of
from shoal.web.rendering import render

PUBLISH_FIELDS = ("study", "roster", "relay", "epoch", "patience", "tickets")
"""What an analyst may say of a study, besides the key; all but the key is shown again after a mistake."""


def studies_page(studies: Sequence[Mapping[str, Any]]) -> str:
    """All studies, as `facts.listed` has them: those that go on first, and the latest first."""
    latest = studies[::-1]
    going, ended = [[study for study in latest if (study["status"] == "open") == is_open] for is_open in (True, False)]
    return render("studies.html", studies=[*going, *ended], n_open=len(going))


def study_page(study: Mapping[str, Any]) -> str:
    """One study, as `facts.described` has it."""
    meanings = [(code, n, CODES.get(code, "")) for code, n in study["refused"].items()]
    return render("study.html", study=study, refusals=meanings)


def label_page(known: Known, digest: str) -> str:
    """The label that a participant reads before consenting."""
    protocol, statement = known.manifest.study.protocol, known.statement
    rows, odds = list(statement.rows()), odds_of(statement)
    return render("label.html", digest=digest, protocol=protocol, title=statement.title, rows=rows, odds=odds)


def publish_page(given: Mapping[str, str] | None = None, problem: Mapping[str, Any] | None = None) -> str:
    """The form by which an analyst publishes a study, with what was given and why it was refused."""
    return render("publish.html", given={name: (given or {}).get(name, "") for name in PUBLISH_FIELDS}, problem=problem)


def close_page(digest: str, short: str, title: str, status: str, problem: Mapping[str, Any] | None = None) -> str:
    """The form by which an analyst ends a study before its time."""
    return render("close.html", digest=digest, short=short, title=title, status=status, problem=problem)


def notice_page(heading: str, problem: Mapping[str, Any], back: str = "/") -> str:
    """What cannot be shown, and why."""
    return render("notice.html", heading=heading, problem=problem, back=back)
