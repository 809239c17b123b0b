"""Slots, contexts, places and windows: public functions of the manifest that everyone computes alike."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.clock import SystemClock
from shoal.errors import RemoteProtocolError, SpecError
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.plus import PlusScript
from shoal.study.anonml import script_of
from shoal.study.anonymity import Slots, Window, check_delivery, has_tokens, least_batch, name_of_pseudonym, scope_of
from shoal.study.load import parse
from shoal.study.manifest import Manifest

KEY = b"\x80" + bytes(95)
HEAD = """
title = "Who recovers?"
purpose = "A test."
contact = "nobody@example.org"
protocol = "{protocol}"
variant = "{variant}"

[label]
name = "recovers"
values = ["no", "yes"]

[[feature]]
name = "heat"
range = [0, 40]
{bins}

[[feature]]
name = "ward"
values = ["north", "south", "west"]

[privacy]
epsilon = 2.0
{privacy}

[participation]
minimum = 10
size = 100
{tables}
"""


def manifest(
    variant="plus", *, protocol="anonml", bins="bins = [20]", privacy="", tables="", key: bytes | None = KEY, epoch: str | None = None
):
    text = HEAD.format(variant=variant, protocol=protocol, bins=bins, privacy=privacy, tables=tables)
    return Manifest(parse(text), issuer_key=key, epoch=epoch)


PLUS = manifest()
PAPER = manifest("paper", bins="", tables="[anonml]\nn_partitions = 3\nn_subsets = 2\nsubset_size = 1\n")
PAPER_BINNED = manifest("paper", tables="[anonml]\nn_partitions = 3\nn_subsets = 2\nsubset_size = 1\n")
DEVICES = manifest(protocol="ddml", privacy="n_updates = 4", tables='[ddml]\nn_instances = 5\nadmission = "token"\n')


def test_tokens_need_an_issuer_and_something_anonymous():
    assert has_tokens(PLUS)
    assert has_tokens(DEVICES)
    assert not has_tokens(manifest(key=None))
    assert not has_tokens(manifest(protocol="ddml", tables="[ddml]\nn_instances = 5\n"))


def test_a_credential_is_for_one_study_or_for_all_of_an_epoch():
    other = Manifest(PLUS.study, issuer_key=KEY, relay="https://relay.example.org")
    assert scope_of(PLUS) != scope_of(other)
    assert scope_of(manifest(epoch="2026")) == scope_of(manifest(bins="", epoch="2026"))
    assert scope_of(manifest(epoch="2026")) != scope_of(manifest(epoch="2027"))


def test_in_plus_a_person_has_one_slot_and_a_ticket_of_its_pseudonym():
    slots = Slots(PLUS)
    assert (slots.n_slots, slots.n_places, slots.of_question(0, 0), slots.of_name("answer")) == (1, 1, 0, 0)
    assert slots.ticket(b"a" * 48, 0) != slots.ticket(b"b" * 48, 0)
    assert slots.ticket(b"a" * 48, 0) != Slots(manifest(epoch="2026")).ticket(b"a" * 48, 0)


def test_a_context_is_of_one_study_and_one_slot():
    contexts = {Slots(one).context(slot) for one in (PLUS, PAPER, DEVICES) for slot in range(4)}
    assert len(contexts) == 12


@pytest.mark.parametrize(("study", "n_places"), [(PAPER, 45), (PAPER_BINNED, 3)])
def test_in_paper_everyone_has_a_place_and_a_slot_for_each_name(study, n_places):
    slots, script = Slots(study), script_of(study.study, study.digest)
    assert (slots.n_places, slots.n_slots) == (n_places, len(script.prices))
    assert sorted(slots.of_name(name) for name in script.prices) == list(range(slots.n_slots))
    tickets = [slots.ticket(b"whatever", place) for place in range(n_places)]
    assert len(set(tickets)) == n_places
    assert [int(script.place(words_of(study.digest, ticket))[0]) % n_places for ticket in tickets] == list(range(n_places))
    assert slots.ticket(b"another", 2) == tickets[2]
    last = script.n_phases - 1
    assert {slots.of_question(last, question) for question in (0, 2, 4)} == {slots.of_name("table/0")}


@pytest.mark.parametrize("place", [-1, 45, 1 << 31])
def test_a_place_that_is_none_is_refused(place):
    with pytest.raises(RemoteProtocolError, match="place"):
        Slots(PAPER).ticket(b"", place)


def test_a_question_that_is_none_is_refused():
    with pytest.raises(RemoteProtocolError, match="no question"):
        Slots(PAPER).of_question(0, 9)


def test_a_device_has_a_slot_for_each_update():
    assert (Slots(DEVICES).n_slots, Slots(DEVICES).n_places) == (4, 1)


@given(st.timedeltas(timedelta(milliseconds=1), timedelta(days=400)))
def test_packets_are_due_before_they_are_sent_again_and_both_before_the_end(patience):
    now = SystemClock().now()
    window = Window(now, now + patience)
    assert now < window.collects_until < window.resends_until < window.closes


def test_the_name_of_a_pseudonym_is_its_own() -> None:
    names = {name_of_pseudonym(pseudonym) for pseudonym in (b"", bytes(48), b"\x01" * 48)}
    assert {len(name) for name in names} == {32} and len(names) == 3
    ticket = Slots(PLUS).ticket(bytes(48), 0)
    assert ticket not in names, "what is told says nothing about the question"


def test_a_batch_is_as_large_as_those_who_answer_at_least() -> None:
    phases = manifest(bins="")
    script = script_of(phases.study, phases.digest)
    assert isinstance(script, PlusScript) and script.n_phases > 2
    shares = [sum(slot.share for slot in script.slots if slot.phase == phase) for phase in range(script.n_phases)]
    assert sum(shares) == 1
    assert [least_batch(phases, phase) for phase in range(script.n_phases)] == [max(1, int(10 * share)) for share in shares]
    assert least_batch(PLUS, 0) == 10
    # In variant paper a person sends several packets, and ten people several times as many.
    assert (least_batch(PAPER_BINNED, 0), least_batch(PAPER, 15), least_batch(PAPER, 0)) == (20, 20, 1)


GATEWAY, RELAY = bytes([9]) + bytes(31), "https://relay.example.org"
SHUFFLED = Manifest(PLUS.study.model_copy(update={"trust": "shuffled"}), issuer_key=KEY, gateway_key=GATEWAY, relay=RELAY)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(SHUFFLED, issuer_key=None), "shuffled needs tokens"),
        (replace(SHUFFLED, relay=None), "shuffled needs tokens"),
        (replace(SHUFFLED, gateway_key=None, relay=None), "shuffled needs tokens"),
        (replace(PLUS, relay=RELAY), "a relay and no gateway key"),
        (replace(PAPER, epoch="2026"), "variant paper"),
        (manifest(protocol="ddml", tables="[ddml]\nn_instances = 5\n", epoch="2026"), "takes no tokens"),
    ],
)
def test_a_study_that_is_less_anonymous_than_it_says_is_refused(found: Manifest, words: str) -> None:
    with pytest.raises(SpecError, match=words) as error:
        check_delivery(found)
    assert error.value.code == "HOST-003"


def test_studies_that_are_as_anonymous_as_they_say():
    for found in (
        SHUFFLED,
        PLUS,
        PAPER,
        DEVICES,
        manifest(key=None),
        manifest(epoch="2026"),
        replace(PLUS, relay=RELAY, gateway_key=GATEWAY),
    ):
        check_delivery(found)


def test_a_shuffled_batch_has_the_minimum_in_every_phase() -> None:
    assert least_batch(SHUFFLED, 0) == 10
