"""Prometheus metrics.

The route ``/metrics`` calls `format_metrics`. All values come from the store, so every worker
reports the same.

The route is open to everyone who reaches the coordinator. Counts of people are therefore rounded
down like those of ``progress``, so that a reader cannot watch a count rise by one. A label names a
study or an error code, never a participant. Prometheus' own process metrics are left out: open
files count connections, and processor time rises with each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.coordinator.service import round_count
from shoal.coordinator.store.base import StudyTotals
from shoal.coordinator.studies import StudyView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def format_metrics(studies: Iterable[tuple[StudyView, StudyTotals]]) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StudyMetricsCollector(tuple(studies)))
    return generate_latest(registry)


class _StudyMetricsCollector(Collector):
    """The metric families of all studies."""

    def __init__(self, studies: tuple[tuple[StudyView, StudyTotals], ...]) -> None:
        self._studies = studies

    def collect(self) -> Iterator[Metric]:
        count = GaugeMetricFamily(
            "shoal_studies", "Studies by protocol and status.", labels=("protocol", "status")
        )
        kinds = Counter(
            (view.handle.study.protocol, view.record.status) for view, _ in self._studies
        )
        for kind, n in sorted(kinds.items()):
            count.add_metric(kind, n)
        enrolled = GaugeMetricFamily(
            "shoal_enrolled", "Participants enrolled, rounded down.", labels=("study",)
        )
        accepted = CounterMetricFamily(
            "shoal_accepted", "Messages accepted, rounded down.", labels=("study",)
        )
        waiting = GaugeMetricFamily(
            "shoal_waiting",
            "Messages accepted and not processed yet, rounded down.",
            labels=("study",),
        )
        refused = CounterMetricFamily(
            "shoal_refused", "Messages rejected, by code, rounded down.", labels=("study", "code")
        )
        for view, totals in self._studies:
            study = view.manifest.short_digest
            enrolled.add_metric((study,), round_count(totals.enrolled))
            accepted.add_metric((study,), round_count(totals.accepted))
            waiting.add_metric((study,), round_count(totals.waiting))
            for code, n in sorted(totals.refused.items()):
                refused.add_metric((study, code), round_count(n))
        yield from (count, enrolled, accepted, waiting, refused)
