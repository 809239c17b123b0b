"""The label of an offered study: tokens or tickets, and who sees the IP address."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import SpecError
from shoal.study.delivery import (
    TokenSlots,
    compute_packet_size,
    explain_draft_digest,
    make_draft_statement,
    make_offer_statement,
    make_offered_manifest,
)
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.starters import read_starter
from tests.support.credentials import token_manifest
from tests.support.participants import make_manifest

PAPER = {"variant": "paper", "anonml": {"n_partitions": 2, "n_subsets": 2, "subset_size": 1}}
DEVICES = {
    "ddml": {"n_instances": 2, "admission": "token"},
    "privacy": {"epsilon": 4.0, "n_updates": 3},
}


def read_label(manifest: Manifest, via: str | None = None) -> str:
    return " ".join(str(make_offer_statement(manifest, via=via)).replace("│", " ").split())


LINKABLE = "come from one person, if someone keeps them until a computer"


def test_label_of_one_packet_promises_unlinkability_for_ever() -> None:
    assert LINKABLE not in read_label(token_manifest("anonml"))


def test_label_of_several_packets_says_that_a_future_computer_could_link_them() -> None:
    """All of them have one secret, so that unlinkability is computational."""
    devices = read_label(token_manifest("ddml", **DEVICES))
    assert f"that your 3 packets {LINKABLE}" in devices
    paper = token_manifest("anonml", **PAPER)
    n = TokenSlots(paper).n_slots
    assert n > 1 and f"that your {n} packets {LINKABLE}" in read_label(paper)
    epoch = read_label(replace(token_manifest("anonml"), epoch="2027"))
    assert f"that your packet and those of other studies of 2027 {LINKABLE}" in epoch
    for label in (devices, epoch):
        assert "It would link them with each other, not with your registration" in label


def test_label_without_tokens_equals_label_of_plan() -> None:
    for protocol, more in (("anonml", {}), ("pfds", {"pfds": {"n_holders": 3}}), ("ddml", DEVICES)):
        manifest = make_manifest(protocol, **more)
        assert make_offer_statement(manifest, via="tor") == make_plan(
            manifest.study, manifest.digest
        ).make_statement(digest=manifest.short_digest)
    assert "could recognise your packet" in read_label(make_manifest("anonml"))


def test_label_with_tokens_says_the_coordinator_cannot_link() -> None:
    label = read_label(token_manifest())
    assert (
        "one packet: a token without your name" in label and "The token decides at random" in label
    )
    assert (
        "comes from a registered member, but not from which one; not even the coordinator knows"
        in label
    )
    assert "ticket" not in label
    assert (
        "that you registered: the public list of members contains a key" in label
        and "that you enrolled" not in label
    )
    assert "Your registration stays, and nothing shows that you left." in label
    assert "a registered member of spring" in read_label(token_manifest(epoch="spring"))


@pytest.mark.parametrize(
    ("via", "words"),
    [
        (None, "If you connect directly, the coordinator sees your IP address"),
        ("direct", "the coordinator sees your IP address and could link your data to it"),
        (
            "ohttp",
            "The relay sees your IP address and encrypted bytes, the coordinator sees the relay's",
        ),
        ("tor", "Tor hides your IP address"),
    ],
)
def test_label_says_who_sees_the_ip_address(via: str | None, words: str) -> None:
    for manifest in (token_manifest(), token_manifest("ddml", **DEVICES), token_manifest(**PAPER)):
        assert words in read_label(manifest, via)


def test_label_says_that_questions_cannot_be_compared_without_relay() -> None:
    words = "that you are asked the same question as others, if you use no relay"
    heat = {"name": "heat", "range": [0, 40], "missing": False}
    phases = token_manifest(feature=[heat])
    for via in (None, "direct", "tor"):
        assert words in read_label(phases, via)
        assert words not in read_label(token_manifest(), via), "there is one phase only"
    assert words not in read_label(phases, "ohttp")


def test_label_states_smallest_number_of_members() -> None:
    words = "Nothing is sent while there are fewer than"
    assert f"{words} 3." in read_label(token_manifest())
    assert words not in read_label(token_manifest("ddml", **DEVICES))


def test_label_of_paper_variant_names_the_partition() -> None:
    label = read_label(token_manifest(**PAPER))
    assert (
        "2 packets, each with a token without your name" in label
        and "with the number of your partition" in label
    )
    assert "a registered member in the same of 2 partitions" in label


def test_label_of_ddml_with_tokens_changes_only_readers_and_bytes() -> None:
    manifest = token_manifest("ddml", **DEVICES)
    label, before = (
        make_offer_statement(manifest),
        make_plan(manifest.study, manifest.digest).make_statement(digest=manifest.short_digest),
    )
    assert "The token proves that an update comes from a registered member" in label.seen_by
    assert label.leaves == before.leaves and label.bytes == (before.bytes or 0) + 3 * 496
    assert (label.epsilon, label.delta, label.releases) == (
        before.epsilon,
        before.delta,
        before.releases,
    )


def test_label_bytes_equal_size_of_packets() -> None:
    for manifest in (token_manifest(), token_manifest(**PAPER)):
        plan = make_plan(manifest.study, manifest.digest)
        assert plan.script is not None
        size = compute_packet_size(plan.script)
        assert make_offer_statement(manifest, plan).bytes == len(plan.script.prices) * size


@pytest.mark.parametrize(
    "served", [token_manifest(), token_manifest(**PAPER), token_manifest("ddml", **DEVICES)]
)
def test_draft_label_equals_label_of_served_study(served: Manifest) -> None:
    draft = Manifest(served.study)
    plan = make_plan(draft.study, draft.digest)
    assert (
        make_draft_statement(draft)
        == make_draft_statement(draft, plan)
        == replace(make_offer_statement(served, plan), digest=draft.short_digest)
    )
    assert "a coordinator adds its keys" in (explain_draft_digest(draft) or "")
    assert (
        make_draft_statement(draft, uses_tickets=True)
        == make_offer_statement(draft)
        != make_draft_statement(draft)
    )
    assert explain_draft_digest(draft, uses_tickets=True) is None


def test_draft_label_without_tokens_is_unchanged() -> None:
    signed = make_manifest("ddml", ddml={"n_instances": 2, "admission": "signed"})
    holders = make_manifest("pfds", 3, pfds={"n_holders": 3})
    for draft in (signed, holders):
        assert make_offered_manifest(draft) == draft and make_draft_statement(
            draft
        ) == make_offer_statement(draft)
    assert explain_draft_digest(signed) is None
    assert "if a roster adds the keys of its members" in (explain_draft_digest(holders) or "")


def test_shuffled_study_rejects_tickets() -> None:
    text = (
        read_starter("anonml")
        .replace('trust = "local"', 'trust = "shuffled"')
        .replace("epsilon = 2.0", "epsilon = 2.0\ndelta = 1e-6")
    )
    draft = Manifest(
        parse_study_text(text.replace("size = 20000", "size = 20000\nhonest_share = 0.9"))
    )
    with pytest.raises(SpecError, match="trust shuffled needs tokens") as refused:
        make_draft_statement(draft, uses_tickets=True)
    assert (
        refused.value.code == "HOST-003"
        and "in one batch with the packets of all others" in make_draft_statement(draft).seen_by
    )
