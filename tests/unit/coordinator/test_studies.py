"""Aggregators and names from manifests; studies that cannot be served are rejected."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.publishing import check_servable
from shoal.errors import SpecError
from shoal.protocols.anonml.aggregator import AnonMLAggregator
from shoal.protocols.pfds.aggregator import LocalAggregator, SecureSumAggregator
from shoal.protocols.pfds.paper.aggregator import PaperAggregator
from shoal.protocols.sdq.aggregator import SDQAggregator
from shoal.protocols.sdq.queries import HistogramQuery
from shoal.study.handle import StudyHandle
from shoal.study.sdq import decode_queries, encode_queries
from tests.support.coordinator import (
    HOSTED,
    PATIENCE,
    QUERIES,
    ROSTERED,
    make_aggregator,
    make_handle,
    make_manifest,
    make_record,
)
from tests.support.credentials import KEYS, RELAY, make_study

KINDS = {
    "anonml": AnonMLAggregator,
    "anonml phases": AnonMLAggregator,
    "anonml paper": AnonMLAggregator,
    "sdq": SDQAggregator,
    "sdq paper": SDQAggregator,
    "sdq local": SDQAggregator,
    "pfds": LocalAggregator,
    "pfds sum": SecureSumAggregator,
    "pfds paper": PaperAggregator,
}
SITES = tuple(f"site-{i}" for i in range(4))
HOLDERS = tuple(f"holder-{i}" for i in range(4))


@pytest.mark.parametrize("name", HOSTED)
def test_aggregator_has_digest_timeout_and_messages_of_study(name: str) -> None:
    manifest = make_manifest(name)
    aggregator = make_aggregator(manifest, make_record(name))
    assert type(aggregator) is KINDS[name]
    assert aggregator.study == manifest.digest
    assert aggregator.messages is StudyHandle(manifest).protocol.messages
    assert aggregator.phase_timeout == timedelta(milliseconds=PATIENCE)


def test_ddml_study_has_no_aggregator() -> None:
    assert make_aggregator(make_manifest("ddml"), make_record("ddml")) is None


def test_aggregator_has_minimum_of_study() -> None:
    people, local, summed = (
        make_aggregator(make_manifest(name), make_record(name))
        for name in ("anonml", "sdq local", "sdq")
    )
    assert isinstance(people, AnonMLAggregator)
    assert isinstance(local, SDQAggregator)
    assert isinstance(summed, SDQAggregator)
    assert (people.minimum, local.sum_params.threshold, summed.sum_params.threshold) == (20, 4, 3)


def test_participant_names_come_from_roster_or_seats() -> None:
    names = {
        name: (make_handle(name).seat_names, make_handle(name).participant_names)
        for name in (*HOSTED, "ddml")
    }
    assert names.pop("pfds") == names.pop("pfds paper") == (HOLDERS, HOLDERS)
    assert [names.pop(name) for name in ROSTERED] == [(None, SITES)] * len(ROSTERED)
    assert set(names.values()) == {(None, ())}


def test_record_of_sdq_and_sums_needs_roster() -> None:
    assert [
        name
        for name in HOSTED
        if make_handle(name).protocol.needs_roster(make_manifest(name).study)
    ] == list(ROSTERED)
    for name in HOSTED:
        check_servable(make_handle(name))
    for name in ROSTERED:
        with pytest.raises(SpecError, match="roster") as caught:
            check_servable(StudyHandle(replace(make_manifest(name), roster=())))
        assert caught.value.code == "HOST-003"


def test_record_of_shuffled_study_needs_relay() -> None:
    with pytest.raises(SpecError, match="shuffled") as caught:
        check_servable(make_handle("shuffled"))
    assert caught.value.code == "HOST-003"


def test_anonymous_study_without_keys_has_tickets() -> None:
    assert [name for name in (*HOSTED, "ddml") if make_handle(name).has_tickets] == [
        "anonml",
        "anonml phases",
        "anonml paper",
        "ddml",
    ]
    assert not any(
        StudyHandle(make_study(name)).has_tickets for name in ("anonml", "anonml paper", "ddml")
    )


SHUFFLED = make_study("shuffled", relay=RELAY)
NOT_OURS = {
    "issuer": (
        replace(make_study("anonml"), issuer_key=CoordinatorKeys(bytes(32)).issuer.key),
        "issuer key is not",
    ),
    "gateway": (replace(make_study("anonml"), gateway_key=bytes(31) + b"\1"), "gateway key is not"),
    "relay without gateway": (
        replace(make_study("anonml"), gateway_key=None, relay=RELAY),
        "names a relay",
    ),
    "epoch of no tokens": (replace(make_study("pfds"), epoch="2030"), "takes no tokens"),
    "epoch of paper": (make_study("anonml paper", epoch="2030"), "variant paper"),
    "shuffled without relay": (replace(SHUFFLED, relay=None), "shuffled needs"),
    "shuffled without gateway": (replace(SHUFFLED, gateway_key=None, relay=None), "shuffled needs"),
}


@pytest.mark.parametrize("how", NOT_OURS)
def test_record_needs_keys_of_coordinator(how: str) -> None:
    manifest, match = NOT_OURS[how]
    with pytest.raises(SpecError, match=match) as caught:
        check_servable(StudyHandle(manifest), KEYS.public_keys)
    assert caught.value.code == "HOST-003"


def test_coordinator_serves_studies_with_its_keys_only() -> None:
    for manifest in (
        make_study("anonml"),
        make_study("anonml", epoch="2030"),
        make_study("anonml paper"),
        make_study("ddml"),
        SHUFFLED,
    ):
        check_servable(StudyHandle(manifest), KEYS.public_keys)
        with pytest.raises(SpecError, match="issuer key is not"):
            check_servable(StudyHandle(manifest))


@pytest.mark.parametrize(
    ("name", "each"), [("anonml", 1), ("anonml paper", 1), ("anonml phases", None)]
)
def test_single_phase_with_tokens_ends_when_all_members_have_answered(
    name: str, each: int | None
) -> None:
    manifest = make_study(name)
    aggregator = make_aggregator(manifest, make_record(name))
    assert isinstance(aggregator, AnonMLAggregator)
    size = manifest.study.participation.size
    assert StudyHandle(manifest).expect_answers(aggregator, size - 1, {}) is aggregator
    told = StudyHandle(manifest).expect_answers(aggregator, size + 5, {})
    assert isinstance(told, AnonMLAggregator)
    assert told.expected == (None if each is None else ((size + 5) * each,))


def test_record_contains_free_counts() -> None:
    record = make_record("sdq")
    aggregator = make_aggregator(make_manifest("sdq"), record)
    assert isinstance(aggregator, SDQAggregator)
    assert decode_queries(record.queries) == aggregator.queries == QUERIES
    assert encode_queries(()) == b""
    assert decode_queries(b"") == ()


def test_record_rejects_free_count_that_study_does_not_allow() -> None:
    asked = encode_queries((HistogramQuery(features=("age",)),))
    with pytest.raises(SpecError) as caught:
        make_aggregator(make_manifest("sdq"), make_record("sdq", queries=asked))
    assert caught.value.code == "SDQ-002"


@pytest.mark.parametrize(
    ("name", "without_a_name", "under_a_name"),
    [
        ("anonml", 1 << 16, 1 << 16),
        ("sdq", 1 << 16, (1 << 23) + (1 << 10)),
        ("pfds", 1 << 16, (1 << 24) - (1 << 12)),
    ],
)
def test_max_bytes_follow_from_largest_message(
    name: str, without_a_name: int, under_a_name: int
) -> None:
    protocol = make_handle(name).protocol
    assert (
        protocol.compute_max_bytes(is_anonymous=True),
        protocol.compute_max_bytes(is_anonymous=False),
    ) == (without_a_name, under_a_name)
