"""A manifest becomes the machine of its protocol, under the names of its roster or its seats; what cannot be served is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from coordinator_cases import HOSTED, PATIENCE, QUERIES, ROSTERED, hosted_of, manifest_of
from shoal.coordinator.aggregators import (
    aggregator_of,
    check_servable,
    has_tickets,
    informed,
    messages_of,
    most_bytes,
    names_of,
    needs_roster,
    queries_of,
    queries_to_bytes,
    seats_of,
)
from shoal.coordinator.keys import Keys
from shoal.errors import SpecError
from shoal.protocols.anonml.aggregator import AnonMLAggregator
from shoal.protocols.pfds.sharing_aggregator import SharingAggregator
from shoal.protocols.pfds.summing_aggregator import SummingAggregator
from shoal.protocols.pfds.tables_aggregator import TablesAggregator
from shoal.protocols.sdq.aggregator import SDQAggregator
from shoal.protocols.sdq.queries import Histogram
from token_cases import KEYS, RELAY, study_of

KINDS = {
    "anonml": AnonMLAggregator,
    "anonml phases": AnonMLAggregator,
    "anonml paper": AnonMLAggregator,
    "sdq": SDQAggregator,
    "sdq paper": SDQAggregator,
    "sdq local": SDQAggregator,
    "pfds": TablesAggregator,
    "pfds sum": SummingAggregator,
    "pfds paper": SharingAggregator,
}
SITES = tuple(f"site-{i}" for i in range(4))
HOLDERS = tuple(f"holder-{i}" for i in range(4))


@pytest.mark.parametrize("name", HOSTED)
def test_each_study_has_its_machine_with_its_digest_patience_and_messages(name: str) -> None:
    manifest = manifest_of(name)
    aggregator = aggregator_of(manifest, hosted_of(name))
    assert type(aggregator) is KINDS[name]
    assert aggregator.study == manifest.digest
    assert aggregator.messages is messages_of(manifest.study)
    assert aggregator.patience == timedelta(milliseconds=PATIENCE)


def test_devices_have_no_machine() -> None:
    assert aggregator_of(manifest_of("ddml"), hosted_of("ddml")) is None


def test_the_minimum_is_that_of_the_study() -> None:
    people, local, summed = (aggregator_of(manifest_of(name), hosted_of(name)) for name in ("anonml", "sdq local", "sdq"))
    assert isinstance(people, AnonMLAggregator)
    assert isinstance(local, SDQAggregator)
    assert isinstance(summed, SDQAggregator)
    assert (people.minimum, local.terms.threshold, summed.terms.threshold) == (20, 4, 3)


def test_names_are_those_of_the_roster_or_of_seats() -> None:
    names = {name: (seats_of(manifest_of(name)), names_of(manifest_of(name))) for name in (*HOSTED, "ddml")}
    assert names.pop("pfds") == names.pop("pfds paper") == (HOLDERS, HOLDERS)
    assert [names.pop(name) for name in ROSTERED] == [(None, SITES)] * len(ROSTERED)
    assert set(names.values()) == {(None, ())}


def test_sums_and_databases_need_a_roster() -> None:
    assert [name for name in HOSTED if needs_roster(manifest_of(name).study)] == list(ROSTERED)
    for name in HOSTED:
        check_servable(manifest_of(name))
    for name in ROSTERED:
        with pytest.raises(SpecError, match="roster") as caught:
            check_servable(replace(manifest_of(name), roster=()))
        assert caught.value.code == "HOST-003"


def test_shuffled_answers_need_a_relay() -> None:
    with pytest.raises(SpecError, match="shuffled") as caught:
        check_servable(manifest_of("shuffled"))
    assert caught.value.code == "HOST-003"


def test_tickets_admit_what_is_anonymous() -> None:
    assert [name for name in (*HOSTED, "ddml") if has_tickets(manifest_of(name))] == [
        "anonml",
        "anonml phases",
        "anonml paper",
        "ddml",
    ]
    assert not any(has_tickets(study_of(name)) for name in ("anonml", "anonml paper", "ddml"))


SHUFFLED = study_of("shuffled", relay=RELAY)
NOT_OURS = {
    "issuer": (replace(study_of("anonml"), issuer_key=Keys(bytes(32)).issuer.key), "issuer key is not"),
    "gateway": (replace(study_of("anonml"), gateway_key=bytes(31) + b"\1"), "gateway key is not"),
    "relay without gateway": (replace(study_of("anonml"), gateway_key=None, relay=RELAY), "names a relay"),
    "epoch of no tokens": (replace(study_of("pfds"), epoch="2030"), "takes no tokens"),
    "epoch of paper": (study_of("anonml paper", epoch="2030"), "variant paper"),
    "shuffled without relay": (replace(SHUFFLED, relay=None), "shuffled needs"),
    "shuffled without gateway": (replace(SHUFFLED, gateway_key=None, relay=None), "shuffled needs"),
}


@pytest.mark.parametrize("how", NOT_OURS)
def test_a_manifest_with_keys_is_served_with_those_of_the_coordinator(how: str) -> None:
    manifest, match = NOT_OURS[how]
    with pytest.raises(SpecError, match=match) as caught:
        check_servable(manifest, KEYS.issuing)
    assert caught.value.code == "HOST-003"


def test_what_a_coordinator_with_keys_serves() -> None:
    for manifest in (study_of("anonml"), study_of("anonml", epoch="2030"), study_of("anonml paper"), study_of("ddml"), SHUFFLED):
        check_servable(manifest, KEYS.issuing)
        with pytest.raises(SpecError, match="issuer key is not"):
            check_servable(manifest)


@pytest.mark.parametrize(("name", "each"), [("anonml", 1), ("anonml paper", 1), ("anonml phases", None)])
def test_with_tokens_a_course_of_one_phase_ends_when_all_members_have_answered(name: str, each: int | None) -> None:
    manifest = study_of(name)
    aggregator = aggregator_of(manifest, hosted_of(name))
    assert isinstance(aggregator, AnonMLAggregator)
    size = manifest.study.participation.size
    assert informed(aggregator, manifest, size - 1, {}) is aggregator
    told = informed(aggregator, manifest, size + 5, {})
    assert isinstance(told, AnonMLAggregator)
    assert told.expected == (None if each is None else ((size + 5) * each,))


def test_free_counts_are_kept_with_the_study() -> None:
    hosted = hosted_of("sdq")
    aggregator = aggregator_of(manifest_of("sdq"), hosted)
    assert isinstance(aggregator, SDQAggregator)
    assert queries_of(hosted) == aggregator.queries == QUERIES
    assert queries_to_bytes(()) == b""
    assert queries_of(replace(hosted, queries=b"")) == ()


def test_a_count_that_the_study_does_not_allow_is_refused() -> None:
    asked = queries_to_bytes((Histogram(features=("age",)),))
    with pytest.raises(SpecError) as caught:
        aggregator_of(manifest_of("sdq"), hosted_of("sdq", queries=asked))
    assert caught.value.code == "SDQ-002"


@pytest.mark.parametrize(
    ("name", "without_a_name", "under_a_name"),
    [("anonml", 1 << 16, 1 << 16), ("sdq", 1 << 16, (1 << 23) + (1 << 10)), ("pfds", 1 << 16, (1 << 24) - (1 << 12))],
)
def test_no_more_is_read_than_a_participant_may_send(name: str, without_a_name: int, under_a_name: int) -> None:
    study = manifest_of(name).study
    assert (most_bytes(study, is_anonymous=True), most_bytes(study, is_anonymous=False)) == (without_a_name, under_a_name)
