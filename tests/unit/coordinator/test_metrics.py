"""Contents of the metrics: rounded totals, and nothing about a participant."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.coordinator.metrics import CONTENT_TYPE, format_metrics
from tests.support.http import ANONML, DDML, MANIFESTS, PFDS, Coordinator, coordinator, participant


def samples(text: str) -> dict[tuple[str, frozenset[str]], float]:
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(c: Coordinator) -> dict[tuple[str, frozenset[str]], float]:
    answer = c.http.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    return samples(answer.text)


def test_metrics_contain_totals_of_all_studies(tmp_path: Path) -> None:
    short = MANIFESTS["anonml"].short_digest
    with coordinator(tmp_path, "anonml", "pfds", "ddml") as c:
        for i in range(19):
            c.enrol(ANONML, i)
        for _ in range(12):
            c.post(ANONML, "submissions", b"rubbish")
        assert c.totals(ANONML) == (19, 0, {"MSG-002": 12})
        found = scraped(c)
        assert found["shoal_studies", frozenset({"anonml", "open"})] == 1
        assert found["shoal_enrolled", frozenset({short})] == 10
        assert found["shoal_refused_total", frozenset({"MSG-002", short})] == 10
        assert (
            found["shoal_accepted_total", frozenset({short})]
            == found["shoal_waiting", frozenset({short})]
            == 0
        )


def test_metrics_round_counts_of_people(tmp_path: Path) -> None:
    with coordinator(tmp_path, "anonml") as c:
        before = scraped(c)
        c.enrol(ANONML)
        assert scraped(c) == before


def test_metrics_have_no_label_with_participant(tmp_path: Path) -> None:
    with coordinator(tmp_path, "anonml", "pfds", "ddml") as c:
        for study in (ANONML, PFDS):
            assert c.enrol(study).status_code == 200
        c.call(c.service.close_study, DDML)
        text = c.http.get("/metrics").text
        names = {
            name
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for name in sample.labels
        }
        assert names == {"protocol", "status", "study"}
        for study in (ANONML, PFDS):
            name = c.store.find_name(study, participant().public_key)
            assert name is not None
            assert name not in text
        assert samples(text)["shoal_studies", frozenset({"closed", "ddml"})] == 1


@pytest.mark.parametrize("prefix", ["process_", "python_"])
def test_metrics_contain_nothing_about_process(prefix: str) -> None:
    assert prefix.encode() not in format_metrics(())
