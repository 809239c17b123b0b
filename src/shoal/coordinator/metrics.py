"""Counts for whoever runs a coordinator, in Prometheus' text format: made of the store's totals, so that every worker says the same.

The route is open to all who reach the coordinator, and so counts of people are rounded down as those of ``progress`` are: nobody can
watch them rise by one. A label names a study or a code, never a participant. What Prometheus' library tells of a process is left out: its
open files are its connections, and its processor time rises with each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.coordinator.office import Served, rounded
from shoal.coordinator.store.base import Totals
from shoal.study.manifest import short

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(studies: Iterable[tuple[Served, Totals]]) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Studies(tuple(studies)))
    return generate_latest(registry)


class _Studies(Collector):
    """The families of all studies."""

    def __init__(self, studies: tuple[tuple[Served, Totals], ...]) -> None:
        self._studies = studies

    def collect(self) -> Iterator[Metric]:
        count = GaugeMetricFamily("shoal_studies", "Studies by protocol and status.", labels=("protocol", "status"))
        for kind, n in sorted(Counter((served.protocol, served.hosted.status) for served, _ in self._studies).items()):
            count.add_metric(kind, n)
        enrolled = GaugeMetricFamily("shoal_enrolled", "Participants enrolled, rounded down.", labels=("study",))
        accepted = CounterMetricFamily("shoal_accepted", "Messages accepted, rounded down.", labels=("study",))
        waiting = GaugeMetricFamily("shoal_waiting", "Messages accepted and not folded in yet, rounded down.", labels=("study",))
        refused = CounterMetricFamily("shoal_refused", "Messages refused, by code, rounded down.", labels=("study", "code"))
        for served, totals in self._studies:
            study = short(bytes.fromhex(served.hosted.digest))
            enrolled.add_metric((study,), rounded(totals.enrolled))
            accepted.add_metric((study,), rounded(totals.accepted))
            waiting.add_metric((study,), rounded(totals.waiting))
            for code, n in sorted(totals.refused.items()):
                refused.add_metric((study, code), rounded(n))
        yield from (count, enrolled, accepted, waiting, refused)
