"""The label of a study in a report: made from the study where that is there, or put together again from a result's plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from shoal.errors import ShoalError
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.report.documents import unreadable
from shoal.report.layout import Section
from shoal.report.markup import Markup
from shoal.report.views import RunView
from shoal.study.label import Statement
from shoal.study.parts import Amplified, Release

_WORDS = ("title", "purpose", "contact", "protocol", "trust", "leaves", "seen_by", "how", "digest", "provided", "undo")
_NUMBERS = ("epsilon", "delta", "bytes", "n_weights", "max_rows", "paper_epsilon", "simulated")
_LEAD = "What a participant reads before agreeing; every figure follows from the study file alone."


def label_of_run(view: RunView) -> Section | None:
    """The label of a simulated study; nothing where nothing is perturbed, since nobody could agree to that."""
    if view.guarantee is None:
        return None
    # A study that is varied is another one, with a digest of its own, which nobody has seen.
    digest, varied = (view.run.short, "") if view.is_as_written else ("", f" This is the study varied to {view.point_name}.")
    return label(replace(view.plan_of_point.statement(digest=digest), simulated=True), varied)


def label(statement: Statement, more: str = "") -> Section:
    """The label as a section; with more to be said about it."""
    return Section("label", "The privacy label", f"{_LEAD}{more}", Markup(statement.to_html()))


def statement_of_result(document: Mapping[str, Any], name: str) -> Statement:
    """The statement that a coordinator's result carries; ``REPORT-002`` where it is none."""
    plain = document["statement"]
    try:
        return _statement(plain)
    except (KeyError, TypeError, ValueError, AttributeError, ShoalError) as error:
        why = error.what.rstrip(".") if isinstance(error, ShoalError) else f"Its statement lacks {error}, or has it in another form"
        raise unreadable(document, name, why) from None


def _statement(plain: Mapping[str, Any]) -> Statement:
    crowd, colluders, closes = plain["shuffled"], plain["colluders"], plain["closes"]
    return Statement(
        **{key: plain[key] for key in (*_WORDS, *_NUMBERS)},
        scope=_scope(plain),
        releases=tuple(Release(one["name"], _event(one), one["count"]) for one in plain["releases"]),
        colluders=None if colluders is None else (colluders["at_most"], colluders["of"]),
        shuffled=None if crowd is None else Amplified(crowd["n"], crowd["epsilon"], crowd["delta"]),
        closes=None if closes is None else datetime.fromisoformat(closes),
        rests_on=tuple(plain["rests_on"]),
        not_covered=tuple(plain["not_covered"]),
    )


def _scope(plain: Mapping[str, Any]) -> Scope:
    return Scope(Unit(plain["unit"]), Relation(plain["relation"]), plain["adversary"])


def _event(plain: Mapping[str, Any]) -> Event:
    return Event(
        plain["mechanism"], plain["parameters"], _scope(plain), plain["epsilon"], plain["delta"], plain["rho"], tuple(plain["reads"])
    )
