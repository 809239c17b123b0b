"""Slots, contexts, partitions and windows: public functions of the manifest."""

from dataclasses import replace

import pytest

from shoal.errors import RemoteProtocolError, SpecError
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.study.anonml import build_script
from shoal.study.delivery import (
    TokenSlots,
    check_delivery,
    compute_min_batch,
    compute_scope,
    has_tokens,
    hash_pseudonym,
    needs_schedule,
)
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.schedule import Schedule

KEY = b"\x80" + bytes(95)
SCHEDULE = Schedule(0, 1_000)
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


def make_manifest(
    variant="plus",
    *,
    protocol="anonml",
    bins="bins = [20]",
    privacy="",
    tables="",
    key: bytes | None = KEY,
    epoch: str | None = None,
):
    text = HEAD.format(
        variant=variant, protocol=protocol, bins=bins, privacy=privacy, tables=tables
    )
    found = Manifest(parse_study_text(text), issuer_key=key, epoch=epoch)
    return replace(found, schedule=SCHEDULE) if needs_schedule(found) else found


PLUS = make_manifest()
PAPER = make_manifest(
    "paper", bins="", tables="[anonml]\nn_partitions = 3\nn_subsets = 2\nsubset_size = 1\n"
)
PAPER_BINNED = make_manifest(
    "paper", tables="[anonml]\nn_partitions = 3\nn_subsets = 2\nsubset_size = 1\n"
)
DEVICES = make_manifest(
    protocol="ddml",
    privacy="n_updates = 4",
    tables='[ddml]\nn_instances = 5\nadmission = "token"\n',
)


def test_has_tokens_needs_issuer_key_and_anonymous_answers():
    assert has_tokens(PLUS)
    assert has_tokens(DEVICES)
    assert not has_tokens(make_manifest(key=None))
    assert not has_tokens(make_manifest(protocol="ddml", tables="[ddml]\nn_instances = 5\n"))


def test_credential_scope_is_one_study_or_one_epoch():
    other = Manifest(PLUS.study, issuer_key=KEY, relay="https://relay.example.org")
    assert compute_scope(PLUS) != compute_scope(other)
    assert compute_scope(make_manifest(epoch="2026")) == compute_scope(
        make_manifest(bins="", epoch="2026")
    )
    assert compute_scope(make_manifest(epoch="2026")) != compute_scope(make_manifest(epoch="2027"))


def test_plus_has_one_slot_and_a_ticket_from_the_pseudonym():
    slots = TokenSlots(PLUS)
    assert (
        slots.n_slots,
        slots.n_credential_partitions,
        slots.find_question_slot(0, 0),
        slots.find_slot("answer"),
    ) == (1, 1, 0, 0)
    assert slots.compute_ticket(b"a" * 48, 0) != slots.compute_ticket(b"b" * 48, 0)
    assert slots.compute_ticket(b"a" * 48, 0) != TokenSlots(
        make_manifest(epoch="2026")
    ).compute_ticket(b"a" * 48, 0)


def test_token_context_differs_by_study_and_slot():
    contexts = {
        TokenSlots(one).encode_context(slot) for one in (PLUS, PAPER, DEVICES) for slot in range(4)
    }
    assert len(contexts) == 12


@pytest.mark.parametrize(("study", "n_partitions"), [(PAPER, 45), (PAPER_BINNED, 3)])
def test_paper_has_a_partition_per_person_and_a_slot_per_price(study, n_partitions):
    slots, script = TokenSlots(study), build_script(study.study, study.digest)
    assert (slots.n_credential_partitions, slots.n_slots) == (n_partitions, len(script.prices))
    assert sorted(slots.find_slot(name) for name in script.prices) == list(range(slots.n_slots))
    tickets = [slots.compute_ticket(b"whatever", partition) for partition in range(n_partitions)]
    assert len(set(tickets)) == n_partitions
    assert [
        int(script.assign_positions(ticket_words(study.digest, ticket))[0]) % n_partitions
        for ticket in tickets
    ] == list(range(n_partitions))
    assert slots.compute_ticket(b"another", 2) == tickets[2]
    last = script.n_phases - 1
    assert {slots.find_question_slot(last, question) for question in (0, 2, 4)} == {
        slots.find_slot("table/0")
    }


@pytest.mark.parametrize("partition", [-1, 45, 1 << 31])
def test_compute_ticket_rejects_unknown_partition(partition):
    with pytest.raises(RemoteProtocolError, match="partition"):
        TokenSlots(PAPER).compute_ticket(b"", partition)


def test_find_question_slot_rejects_unknown_question():
    with pytest.raises(RemoteProtocolError, match="no question"):
        TokenSlots(PAPER).find_question_slot(0, 9)


def test_ddml_device_has_a_slot_for_each_update():
    assert (TokenSlots(DEVICES).n_slots, TokenSlots(DEVICES).n_credential_partitions) == (4, 1)


def test_hash_pseudonym_is_unique_and_differs_from_the_ticket() -> None:
    names = {hash_pseudonym(pseudonym) for pseudonym in (b"", bytes(48), b"\x01" * 48)}
    assert {len(name) for name in names} == {32} and len(names) == 3
    ticket = TokenSlots(PLUS).compute_ticket(bytes(48), 0)
    assert ticket not in names, "the published name must not reveal the question"


def test_min_batch_is_the_share_of_people_who_answer_the_phase() -> None:
    phases = make_manifest(bins="")
    script = build_script(phases.study, phases.digest)
    assert isinstance(script, AnonMLPlusScript) and script.n_phases > 2
    shares = [
        sum(slot.share for slot in script.slots if slot.phase == phase)
        for phase in range(script.n_phases)
    ]
    assert sum(shares) == 1
    assert [compute_min_batch(phases, phase) for phase in range(script.n_phases)] == [
        max(1, int(10 * share)) for share in shares
    ]
    assert compute_min_batch(PLUS, 0) == 10
    # In variant paper each of ten people sends several packets.
    assert (
        compute_min_batch(PAPER_BINNED, 0),
        compute_min_batch(PAPER, 15),
        compute_min_batch(PAPER, 0),
    ) == (20, 20, 1)


GATEWAY, RELAY = bytes([9]) + bytes(31), "https://relay.example.org"
SHUFFLED = Manifest(
    PLUS.study.model_copy(update={"trust": "shuffled"}),
    issuer_key=KEY,
    gateway_key=GATEWAY,
    relay=RELAY,
    schedule=SCHEDULE,
)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(SHUFFLED, issuer_key=None, schedule=None), "shuffled needs tokens"),
        (replace(PLUS, schedule=None), "has no schedule"),
        (replace(PLUS, issuer_key=None), "has a schedule, but"),
        (replace(DEVICES, schedule=SCHEDULE), "has a schedule, but"),
        (replace(SHUFFLED, relay=None), "shuffled needs tokens"),
        (replace(SHUFFLED, gateway_key=None, relay=None), "shuffled needs tokens"),
        (replace(PLUS, relay=RELAY), "a relay but has no gateway key"),
        (replace(PAPER, epoch="2026"), "variant paper"),
        (
            make_manifest(protocol="ddml", tables="[ddml]\nn_instances = 5\n", epoch="2026"),
            "takes no tokens",
        ),
    ],
)
def test_check_delivery_rejects_studies_less_anonymous_than_stated(
    found: Manifest, words: str
) -> None:
    with pytest.raises(SpecError, match=words) as error:
        check_delivery(found)
    assert error.value.code == "HOST-003"


def test_check_delivery_accepts_studies_as_anonymous_as_stated():
    for found in (
        SHUFFLED,
        PLUS,
        PAPER,
        DEVICES,
        make_manifest(key=None),
        make_manifest(epoch="2026"),
        replace(PLUS, relay=RELAY, gateway_key=GATEWAY),
    ):
        check_delivery(found)


def test_shuffled_batch_has_the_minimum_of_participants() -> None:
    assert compute_min_batch(SHUFFLED, 0) == 10
