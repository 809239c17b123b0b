"""The label of a study as it is offered: tokens or tickets, and who sees the address."""

from __future__ import annotations

from dataclasses import replace

import pytest

from participants import manifest_of
from shoal.errors import SpecError
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.templates import study_text
from shoal.study.wording_tokens import as_offered, packet_size, remark_on_digest, statement_of, statement_of_draft
from shoal.transport import packets
from token_desk import token_manifest

PAPER = {"variant": "paper", "anonml": {"n_partitions": 2, "n_subsets": 2, "subset_size": 1}}
DEVICES = {"ddml": {"n_instances": 2, "admission": "token"}, "privacy": {"epsilon": 4.0, "n_updates": 3}}


def text(manifest: Manifest, via: str | None = None) -> str:
    return " ".join(str(statement_of(manifest, via=via)).replace("│", " ").split())


def test_without_tokens_the_label_is_the_plans() -> None:
    for protocol, more in (("anonml", {}), ("pfds", {"pfds": {"n_holders": 3}}), ("ddml", DEVICES)):
        manifest = manifest_of(protocol, **more)
        assert statement_of(manifest, via="tor") == make_plan(manifest.study, manifest.digest).statement(digest=manifest.short)
    assert "could tell that the packet is yours" in text(manifest_of("anonml"))


def test_with_tokens_not_even_the_coordinator_can_tell() -> None:
    label = text(token_manifest())
    assert "one packet: a token without your name" in label and "The token draws the question" in label
    assert "is from one of the members, and not even the coordinator can tell from which" in label
    assert "ticket" not in label
    assert "that you registered: the list of members has a key of yours" in label and "that you enrolled" not in label
    assert "Your registration stays too" in label
    assert "the members of spring" in text(token_manifest(epoch="spring"))


@pytest.mark.parametrize(
    ("via", "words"),
    [
        (None, "depends on how you join"),
        ("direct", "the coordinator sees your address, and could tell by it what is yours"),
        ("ohttp", "The relay sees your address and sealed bytes, the coordinator the relay's address"),
        ("tor", "Tor hides your address"),
    ],
)
def test_the_label_says_who_sees_the_address(via: str | None, words: str) -> None:
    for manifest in (token_manifest(), token_manifest("ddml", **DEVICES), token_manifest(**PAPER)):
        assert words in text(manifest, via)


def test_the_papers_variant_says_what_a_place_tells() -> None:
    label = text(token_manifest(**PAPER))
    assert "2 packets: each a token without your name" in label and "with the number of your place" in label
    assert "to whom the coordinator gave the same of 2 places" in label


def test_devices_are_told_that_no_update_says_whose_it_is() -> None:
    manifest = token_manifest("ddml", **DEVICES)
    label, before = statement_of(manifest), make_plan(manifest.study, manifest.digest).statement(digest=manifest.short)
    assert "By its token an update is from one of the members" in label.seen_by
    assert label.leaves == before.leaves and label.bytes == (before.bytes or 0) + 3 * 496
    assert (label.epsilon, label.delta, label.releases) == (before.epsilon, before.delta, before.releases)


def test_the_bytes_are_those_of_the_packets() -> None:
    for manifest in (token_manifest(), token_manifest(**PAPER)):
        plan = make_plan(manifest.study, manifest.digest)
        assert plan.script is not None
        size = packets.packet_size(manifest)
        assert packet_size(plan.script) == size
        assert statement_of(manifest, plan).bytes == len(plan.script.prices) * size


@pytest.mark.parametrize("served", [token_manifest(), token_manifest(**PAPER), token_manifest("ddml", **DEVICES)])
def test_a_draft_is_worded_as_it_is_served(served: Manifest) -> None:
    draft = Manifest(served.study)
    plan = make_plan(draft.study, draft.digest)
    assert statement_of_draft(draft) == statement_of_draft(draft, plan) == replace(statement_of(served, plan), digest=draft.short)
    assert "a coordinator adds its keys" in (remark_on_digest(draft) or "")
    assert statement_of_draft(draft, tickets=True) == statement_of(draft) != statement_of_draft(draft)
    assert remark_on_digest(draft, tickets=True) is None


def test_a_draft_that_needs_no_tokens_is_worded_as_it_is() -> None:
    signed = manifest_of("ddml", ddml={"n_instances": 2, "admission": "signed"})
    holders = manifest_of("pfds", 3, pfds={"n_holders": 3})
    for draft in (signed, holders):
        assert as_offered(draft) == draft and statement_of_draft(draft) == statement_of(draft)
    assert remark_on_digest(signed) is None
    assert "where a roster adds those of its members" in (remark_on_digest(holders) or "")


def test_a_shuffled_study_cannot_have_tickets() -> None:
    text = study_text("anonml").replace('trust = "local"', 'trust = "shuffled"').replace("epsilon = 2.0", "epsilon = 2.0\ndelta = 1e-6")
    draft = Manifest(parse(text.replace("size = 20000", "size = 20000\nhonest_share = 0.9")))
    with pytest.raises(SpecError, match="trust shuffled needs tokens") as refused:
        statement_of_draft(draft, tickets=True)
    assert refused.value.code == "HOST-003" and "in one batch with everyone else's" in statement_of_draft(draft).seen_by
