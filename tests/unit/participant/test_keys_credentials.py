"""Stored registrations and credentials, and the packets that are minted with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.clock import ManualClock
from shoal.crypto.credentials.issuance import Credential, Registration
from shoal.crypto.credentials.tokens import (
    TOKEN_BYTES,
    PresentedToken,
    TokenVerifier,
    read_pseudonym,
)
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array
from shoal.participant.anonymous_delivery import PacketStore, compute_packet_name
from shoal.participant.client import encode_update_body
from shoal.participant.journal import Journal
from shoal.participant.keys import (
    check_partition,
    derive_ticket,
    ensure_registration,
    find_credential,
    store_credential,
)
from shoal.participant.network.base import DirectPath
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.ddml.messages import ID_BYTES, DDMLUpdate
from shoal.study.anonml import build_script
from shoal.study.delivery import TokenSlots, compute_scope, hash_pseudonym
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet
from tests.support.credentials import token_manifest
from tests.support.participants import compute_packet_size, folder, make_manifest
from tests.support.tokens import ISSUER

__all__ = ["folder"]

NOW = ManualClock().now()


def open_journal(folder: Path) -> Journal:
    return Journal(folder / "me.db", ManualClock())


def register(journal: Journal, manifest: Manifest, place: int = 0) -> Credential:
    scope, entropy = compute_scope(manifest), SystemEntropy()
    mine = ensure_registration(journal, manifest, entropy)
    credential = mine.accept(
        ISSUER.key,
        scope,
        ISSUER.issue(scope, mine.make_commitment(ISSUER.key, scope), place, entropy),
    )
    store_credential(journal, manifest, credential)
    return credential


def test_ensure_registration_draws_once_per_scope(folder: Path) -> None:
    one, two = token_manifest(), token_manifest(title="Two")
    with open_journal(folder) as journal:
        first = ensure_registration(journal, one, SystemEntropy())
        assert find_credential(journal, one) is None
    with open_journal(folder) as journal:
        assert ensure_registration(journal, one, SystemEntropy()) == first
        assert ensure_registration(journal, two, SystemEntropy()) != first
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            ensure_registration(journal, one, SeededEntropy(1))


def test_stored_credential_is_valid_in_its_epoch(folder: Path) -> None:
    one, two, other = (
        token_manifest(epoch=epoch, title=title)
        for epoch, title in (("a", "One"), ("a", "Two"), ("b", "One"))
    )
    with open_journal(folder) as journal:
        credential = register(journal, one)
    with open_journal(folder) as journal:
        assert find_credential(journal, one) == credential == find_credential(journal, two)
        assert find_credential(journal, other) is None
        # RandomSealPath issuer's epoch of the same name is another one.
        assert find_credential(journal, replace(one, issuer_key=b"\x80" + bytes(95))) is None
    assert derive_ticket(StudyHandle(one), credential) != derive_ticket(
        StudyHandle(two), credential
    )


def test_check_partition_rejects_unknown_partition(folder: Path) -> None:
    plus = token_manifest()
    paper = token_manifest(
        variant="paper", anonml={"n_partitions": 2, "n_subsets": 1, "subset_size": 1}
    )
    with open_journal(folder) as journal:
        check_partition(StudyHandle(plus), register(journal, plus))
        with pytest.raises(RemoteProtocolError, match=r"TOKEN-003.*partition 2; the study has 2"):
            check_partition(StudyHandle(paper), register(journal, paper, 2))


@pytest.mark.parametrize("place", [0, 1])
def test_partition_decides_all_questions_of_paper_variant(folder: Path, place: int) -> None:
    paper = token_manifest(
        variant="paper", anonml={"n_partitions": 2, "n_subsets": 2, "subset_size": 1}
    )
    with open_journal(folder) as journal:
        credential = register(journal, paper, place)
    slots, ticket = TokenSlots(paper), derive_ticket(StudyHandle(paper), credential)
    pseudonyms = [
        credential.compute_pseudonym(slots.encode_context(slot)) for slot in range(slots.n_slots)
    ]
    assert {slots.compute_ticket(pseudonym, place) for pseudonym in pseudonyms} == {ticket}
    columns, label = paper.study.schema().encode(ROW), paper.study.schema().encode_label(ROW)
    peer = AnonMLPeer(paper.digest, build_script(paper.study, paper.digest), ticket, columns, label)
    assert {slots.find_question_slot(*at) for at in peer.own_questions.values()} == set(
        range(slots.n_slots)
    )


ROW = {"wind": ["weak"], "heat": [3.0], "play": ["yes"]}


class RandomSealPath(DirectPath):
    """A network path that encrypts to different bytes each time."""

    name = "another"

    def seal(self, _study: str, packet: bytes) -> bytes:
        return SystemEntropy().bytes(8) + packet


def test_packet_is_minted_and_encrypted_once(folder: Path) -> None:
    manifest = token_manifest()
    with open_journal(folder) as journal:
        packets = PacketStore(
            journal, StudyHandle(manifest), register(journal, manifest), SystemEntropy()
        )
        assert packets.find_packet("answer") is None and not packets.has_left()
        first = packets.mint_answer("answer", b"an answer", NOW)
        direct, another = DirectPath("http://127.0.0.1:1"), RandomSealPath("http://127.0.0.1:1")
        assert packets.seal(first, direct) == first.packet
        sealed = packets.seal(first, another)
        assert sealed == packets.seal(first, another) != first.packet
    with open_journal(folder) as journal:
        credential = find_credential(journal, manifest)
        assert credential is not None
        packets = PacketStore(journal, StudyHandle(manifest), credential, SystemEntropy())
        assert packets.mint_answer("answer", b"an answer", NOW.replace(year=2031)) == replace(
            first, via="another"
        )
        assert packets.seal(first, another) == sealed
        packets.reschedule("answer", NOW.replace(year=2031))
        packets.set_status("answer", "leaving")
        found = packets.find_packet("answer")
        assert found is not None and packets.has_left()
        assert (found.packet, found.due, found.status) == (
            first.packet,
            NOW.replace(year=2031),
            "leaving",
        )
    packet, slots = (
        Packet.from_bytes(first.packet, compute_packet_size(manifest)),
        TokenSlots(manifest),
    )
    TokenVerifier(ISSUER.key, compute_scope(manifest)).verify(
        PresentedToken(packet.token, slots.encode_context(0), b"an answer", 0)
    )
    assert compute_packet_name(first) == hash_pseudonym(
        read_pseudonym(packet.token)
    ) and "token" not in repr(first)


def test_mint_token_returns_one_token_per_update(folder: Path) -> None:
    manifest = token_manifest(
        "ddml",
        ddml={"n_instances": 2, "admission": "token"},
        privacy={"epsilon": 4.0, "n_updates": 2},
    )
    weights = Array.from_values(np.zeros(1, np.int32))
    update = DDMLUpdate(study=manifest.digest, id=bytes(ID_BYTES), epoch=0, weights=weights)
    with open_journal(folder) as journal:
        packets = PacketStore(
            journal, StudyHandle(manifest), register(journal, manifest), SystemEntropy()
        )
        tokens = [packets.mint_token(f"update/{i}", i, update) for i in (0, 1, 0)]
    assert tokens[0] == tokens[2] != tokens[1] and {len(token) for token in tokens} == {TOKEN_BYTES}
    slots, verifier = TokenSlots(manifest), TokenVerifier(ISSUER.key, compute_scope(manifest))
    shown = [
        PresentedToken(token, slots.encode_context(i % 2), encode_update_body(update), 0)
        for i, token in enumerate(tokens)
    ]
    assert verifier.verify_many(shown) == [True] * 3


def test_registration_hides_seed_in_repr() -> None:
    assert "seed" not in repr(Registration.draw(SystemEntropy()))
    assert make_manifest("anonml").issuer_key is None
