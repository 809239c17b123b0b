"""A run as a report sees it: the document, the study that it is of, its price, and the point that stands for the whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from shoal.report.charts.frame import Look
from shoal.report.colours import colour_of
from shoal.report.details import Guarantee
from shoal.report.documents import Point, Run, unreadable
from shoal.report.markup import cut
from shoal.sim.sweep import SWEPT, settings_name, vary
from shoal.study.explain import explain
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study
from shoal.study.typeset import clean

WHO = {"anonml": "people", "ddml": "devices", "sdq": "databases", "pfds": "holders"}
TITLES = {"anonml": "AnonML", "ddml": "DDML", "sdq": "SDQ", "pfds": "PFDS"}


@dataclass(frozen=True)
class RunView:
    """A run with its study."""

    run: Run
    study: Study

    @cached_property
    def plan(self) -> Plan:
        """Every release of the study, priced again from the study alone."""
        return make_plan(self.study)

    @property
    def title(self) -> str:
        """The study's title, made harmless."""
        return clean(self.study.title)

    @property
    def protocol(self) -> str:
        """The protocol with its variant and trust, for people."""
        return f"{TITLES[self.run.protocol]} {self.study.variant}, {self.study.trust}"

    @property
    def colour(self) -> str:
        """That of the protocol."""
        return colour_of(self.run.protocol)

    @cached_property
    def point(self) -> Point:
        """The point that stands for the run: the study as it is written, or where a sweep leaves that out, its first."""
        return next((point for point in self.run.points if self._is_as_written(point)), self.run.points[0])

    def _is_as_written(self, point: Point) -> bool:
        content = self.study.content()
        own = {**content["privacy"], "size": content["participation"]["size"], **(content[self.run.protocol] or {})}
        return all(own.get(key) == value for key, value in point.settings.items())

    @property
    def is_as_written(self) -> bool:
        """Whether that point is the study itself."""
        return self._is_as_written(self.point)

    @cached_property
    def plan_of_point(self) -> Plan:
        """Every release of the study as that point varies it, priced again."""
        if self.is_as_written:
            return self.plan
        return make_plan(vary(self.study, {key: SWEPT[key][1](value) for key, value in self.point.settings.items()}))

    @property
    def point_name(self) -> str:
        """Which point that is; empty where there is no other."""
        return settings_name(self.point.settings) if len(self.run.points) > 1 else ""

    @property
    def guarantee(self) -> Guarantee | None:
        """What protects a unit at that point; None where nothing was perturbed."""
        return self.point.total

    @property
    def look(self) -> Look:
        """How what was learned is drawn: solid only where it is private."""
        return "dashed" if self.guarantee is None else "solid"

    @property
    def name(self) -> str:
        """What the learned model is called beside what it is held against."""
        return "without noise" if self.guarantee is None else "private"

    @property
    def n_runs(self) -> int:
        """How many runs each point has."""
        return self.run.repeats


def view_of(run: Run, name: str) -> RunView:
    """A run with its study; ``REPORT-002`` where the study, or what was varied of it, is not one that this version knows."""
    unknown = [key for point in run.points for key in point.settings if key not in SWEPT]
    if unknown:
        raise unreadable(run.model_dump(include={"versions"}), name, f"It varies {cut(unknown[0], 60)}")
    try:
        return RunView(run, Study.from_content(run.study))
    except ValidationError as error:
        first = explain(error)[0]
        raise unreadable(run.model_dump(include={"versions"}), name, f"Its study: {first.what.rstrip('.')}") from None
