"""A run with its study, plan and label.

Sections of the report read a run through `RunView`. Prices and labels are computed from the study
in the document, never copied from the figures that the document states. A coordinator's result has
no study; its label is rebuilt from the statement in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from shoal.errors import ShoalError
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.report.charts.axes import LineStyle
from shoal.report.documents import RunDocument, RunPoint, StatedGuarantee, make_unreadable_error
from shoal.report.formatting import get_protocol_colour
from shoal.report.html import Markup, Section, truncate
from shoal.simulation.sweep import SWEEP_KEYS, format_settings, vary
from shoal.study.explain import explain
from shoal.study.label import Statement
from shoal.study.plan import Plan, make_plan
from shoal.study.pricing import AmplifiedGuarantee, PricedRelease
from shoal.study.protocol import Holders
from shoal.study.registry import get_protocol
from shoal.study.spec import Study
from shoal.study.validation import parse_content
from shoal.text import clean_text


@dataclass(frozen=True)
class RunView:
    """A run with its study."""

    run: RunDocument
    study: Study

    @cached_property
    def plan(self) -> Plan:
        """Every release of the study, priced from the study alone."""
        return make_plan(self.study)

    @property
    def title(self) -> str:
        """The study's title, cleaned for display."""
        return clean_text(self.study.title)

    @property
    def protocol(self) -> str:
        """The protocol with its variant and trust level, for display."""
        return f"{get_protocol(self.study).title} {self.study.variant}, {self.study.trust}"

    @property
    def holders(self) -> Holders:
        """Nouns for the participants."""
        return get_protocol(self.study).holders

    @property
    def colour(self) -> str:
        """The colour of the protocol."""
        return get_protocol_colour(self.run.protocol)

    @cached_property
    def point(self) -> RunPoint:
        """The point that the report shows in detail.

        It is the study as written, or the first point if the sweep does not contain that.
        """
        return next(
            (point for point in self.run.points if self._matches_study(point)), self.run.points[0]
        )

    def _matches_study(self, point: RunPoint) -> bool:
        content = self.study.to_content()
        written = {
            **content["privacy"],
            "size": content["participation"]["size"],
            **(content[self.run.protocol] or {}),
        }
        return all(written.get(key) == value for key, value in point.settings.items())

    @property
    def is_as_written(self) -> bool:
        """True if `point` is the study as written."""
        return self._matches_study(self.point)

    @cached_property
    def point_plan(self) -> Plan:
        """Every release of the study with the settings of `point`, priced."""
        if self.is_as_written:
            return self.plan
        return make_plan(
            vary(
                self.study,
                {key: SWEEP_KEYS[key][1](value) for key, value in self.point.settings.items()},
            )
        )

    @property
    def point_name(self) -> str:
        """The settings of `point`; empty if the run has no other point."""
        return format_settings(self.point.settings) if len(self.run.points) > 1 else ""

    @property
    def guarantee(self) -> StatedGuarantee | None:
        """The guarantee for one unit at `point`; None for a run without noise."""
        return self.point.total

    @property
    def line_style(self) -> LineStyle:
        """Line style of learned values: solid if they are private."""
        return "dashed" if self.guarantee is None else "solid"

    @property
    def name(self) -> str:
        """Name of the learned model in charts with baselines."""
        return "without noise" if self.guarantee is None else "private"

    @property
    def n_runs(self) -> int:
        """Number of runs at each point."""
        return self.run.repeats


def make_run_view(run: RunDocument, name: str) -> RunView:
    """Return a run with its study.

    Raises
    ------
    SpecError
        ``REPORT-002``: this version cannot read the study or a setting that the run varies.
    """
    unknown = [key for point in run.points for key in point.settings if key not in SWEEP_KEYS]
    if unknown:
        raise make_unreadable_error(
            run.model_dump(include={"versions"}), name, f"It varies {truncate(unknown[0], 60)}"
        )
    try:
        return RunView(run, parse_content(run.study))
    except ValidationError as error:
        first = explain(error)[0]
        raise make_unreadable_error(
            run.model_dump(include={"versions"}), name, f"Its study: {first.what.rstrip('.')}"
        ) from None


_TEXT_FIELDS = (
    "title",
    "purpose",
    "contact",
    "protocol",
    "trust",
    "leaves",
    "seen_by",
    "how",
    "digest",
    "provided",
    "undo",
)
_NUMBER_FIELDS = (
    "epsilon",
    "delta",
    "bytes",
    "n_weights",
    "max_rows",
    "paper_epsilon",
    "simulated",
)
_LEAD = "Participants read this label before they agree. All figures follow from the study file."


def make_run_label(view: RunView) -> Section | None:
    """Return the label of a simulated study; None for a run without noise.

    No participant could agree to a study without noise.
    """
    if view.guarantee is None:
        return None
    # A varied study is a different study. Its digest was never published, so none is shown.
    digest, varied = (
        (view.run.short, "")
        if view.is_as_written
        else ("", f" The label below is for the study with {view.point_name}.")
    )
    return make_label_section(
        replace(view.point_plan.make_statement(digest=digest), simulated=True), varied
    )


def make_label_section(statement: Statement, more: str = "") -> Section:
    """Return the label as a section; `more` is added to its lead."""
    return Section("label", "The privacy label", f"{_LEAD}{more}", Markup(statement.to_html()))


def read_result_statement(document: Mapping[str, Any], name: str) -> Statement:
    """Return the statement in a coordinator's result; ``REPORT-002`` if invalid."""
    plain = document["statement"]
    try:
        return _read_statement(plain)
    except (KeyError, TypeError, ValueError, AttributeError, ShoalError) as error:
        why = (
            error.what.rstrip(".")
            if isinstance(error, ShoalError)
            else f"Its statement has no valid {error}"
        )
        raise make_unreadable_error(document, name, why) from None


def _read_statement(plain: Mapping[str, Any]) -> Statement:
    shuffled, colluders, closes = plain["shuffled"], plain["colluders"], plain["closes"]
    return Statement(
        **{key: plain[key] for key in (*_TEXT_FIELDS, *_NUMBER_FIELDS)},
        scope=_read_scope(plain),
        releases=tuple(
            PricedRelease(release["name"], _read_event(release), release["count"])
            for release in plain["releases"]
        ),
        colluders=None if colluders is None else (colluders["at_most"], colluders["of"]),
        shuffled=None
        if shuffled is None
        else AmplifiedGuarantee(shuffled["n"], shuffled["epsilon"], shuffled["delta"]),
        closes=None if closes is None else datetime.fromisoformat(closes),
        rests_on=tuple(plain["rests_on"]),
        not_covered=tuple(plain["not_covered"]),
    )


def _read_scope(plain: Mapping[str, Any]) -> Scope:
    return Scope(Unit(plain["unit"]), Relation(plain["relation"]), plain["adversary"])


def _read_event(plain: Mapping[str, Any]) -> Event:
    return Event(
        plain["mechanism"],
        plain["parameters"],
        _read_scope(plain),
        plain["epsilon"],
        plain["delta"],
        plain["rho"],
        tuple(plain["reads"]),
    )
