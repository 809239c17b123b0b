"""What a participant keeps of its registration, and what follows from a credential."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from participants import folder, manifest_of
from shoal.clock import ManualClock
from shoal.crypto.credentials import Credential, Registration
from shoal.crypto.tokens import TOKEN_BYTES, Presented, Verifier, pseudonym_of
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.participant.credentials import check_place, credential_of, keep, registration_of, ticket_of
from shoal.participant.journal import Journal
from shoal.participant.packets import Packets, name_of
from shoal.participant.ways import Direct
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.study.anonml import script_of
from shoal.study.anonymity import Slots, name_of_pseudonym, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet, packet_size
from token_desk import ISSUER, token_manifest

__all__ = ["folder"]

NOW = ManualClock().now()


def open_journal(folder: Path) -> Journal:
    return Journal(folder / "me.db", ManualClock())


def registered(journal: Journal, manifest: Manifest, place: int = 0) -> Credential:
    scope, entropy = scope_of(manifest), SystemEntropy()
    mine = registration_of(journal, manifest, entropy)
    credential = mine.accept(ISSUER.key, scope, ISSUER.issue(scope, mine.commitment(ISSUER.key, scope), place, entropy))
    keep(journal, manifest, credential)
    return credential


def test_a_registration_is_drawn_once_and_for_one_scope(folder: Path) -> None:
    one, two = token_manifest(), token_manifest(title="Two")
    with open_journal(folder) as journal:
        first = registration_of(journal, one, SystemEntropy())
        assert credential_of(journal, one) is None
    with open_journal(folder) as journal:
        assert registration_of(journal, one, SystemEntropy()) == first
        assert registration_of(journal, two, SystemEntropy()) != first
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            registration_of(journal, one, SeededEntropy(1))


def test_a_credential_is_kept_and_serves_its_epoch(folder: Path) -> None:
    one, two, other = (token_manifest(epoch=epoch, title=title) for epoch, title in (("a", "One"), ("a", "Two"), ("b", "One")))
    with open_journal(folder) as journal:
        credential = registered(journal, one)
    with open_journal(folder) as journal:
        assert credential_of(journal, one) == credential == credential_of(journal, two)
        assert credential_of(journal, other) is None
        # Another issuer's epoch of the same name is another one.
        assert credential_of(journal, replace(one, issuer_key=b"\x80" + bytes(95))) is None
    assert ticket_of(one, credential) != ticket_of(two, credential)


def test_a_place_has_to_be_one_of_the_studys(folder: Path) -> None:
    plus = token_manifest()
    paper = token_manifest(variant="paper", anonml={"n_partitions": 2, "n_subsets": 1, "subset_size": 1})
    with open_journal(folder) as journal:
        check_place(plus, registered(journal, plus))
        with pytest.raises(RemoteProtocolError, match=r"TOKEN-003.*the place 2, and the study has 2"):
            check_place(paper, registered(journal, paper, 2))


@pytest.mark.parametrize("place", [0, 1])
def test_in_the_papers_variant_the_place_decides_all_questions(folder: Path, place: int) -> None:
    paper = token_manifest(variant="paper", anonml={"n_partitions": 2, "n_subsets": 2, "subset_size": 1})
    with open_journal(folder) as journal:
        credential = registered(journal, paper, place)
    slots, ticket = Slots(paper), ticket_of(paper, credential)
    pseudonyms = [credential.pseudonym(slots.context(slot)) for slot in range(slots.n_slots)]
    assert {slots.ticket(pseudonym, place) for pseudonym in pseudonyms} == {ticket}
    columns, label = paper.study.schema().encode(ROW), paper.study.schema().encode_label(ROW)
    peer = AnonMLPeer(paper.digest, script_of(paper.study, paper.digest), ticket, columns, label)
    assert {slots.of_question(*at) for at in peer.mine.values()} == set(range(slots.n_slots))


ROW = {"wind": ["weak"], "heat": [3.0], "play": ["yes"]}


class Another(Direct):
    """A way that seals otherwise each time."""

    name = "another"

    def seal(self, _study: str, packet: bytes) -> bytes:
        return SystemEntropy().bytes(8) + packet


def test_a_packet_is_minted_once_and_leaves_as_it_was_sealed(folder: Path) -> None:
    manifest = token_manifest()
    with open_journal(folder) as journal:
        packets = Packets(journal, manifest, registered(journal, manifest), SystemEntropy())
        assert packets.find("answer") is None and not packets.has_left()
        first = packets.answer("answer", b"an answer", NOW)
        direct, another = Direct("http://127.0.0.1:1"), Another("http://127.0.0.1:1")
        assert packets.sealed(first, direct) == first.packet
        sealed = packets.sealed(first, another)
        assert sealed == packets.sealed(first, another) != first.packet
    with open_journal(folder) as journal:
        credential = credential_of(journal, manifest)
        assert credential is not None
        packets = Packets(journal, manifest, credential, SystemEntropy())
        assert packets.answer("answer", b"an answer", NOW.replace(year=2031)) == replace(first, via="another")
        assert packets.sealed(first, another) == sealed
        packets.put_off("answer", NOW.replace(year=2031))
        packets.note("answer", "leaving")
        found = packets.find("answer")
        assert found is not None and packets.has_left()
        assert (found.packet, found.due, found.standing) == (first.packet, NOW.replace(year=2031), "leaving")
    packet, slots = Packet.from_bytes(first.packet, packet_size(manifest)), Slots(manifest)
    Verifier(ISSUER.key, scope_of(manifest)).verify(Presented(packet.token, slots.context(0), b"an answer", 0))
    assert name_of(first) == name_of_pseudonym(pseudonym_of(packet.token)) and "token" not in repr(first)


def test_updates_have_a_token_each(folder: Path) -> None:
    manifest = token_manifest("ddml", ddml={"n_instances": 2, "admission": "token"}, privacy={"epsilon": 4.0, "n_updates": 2})
    with open_journal(folder) as journal:
        packets = Packets(journal, manifest, registered(journal, manifest), SystemEntropy())
        tokens = [packets.token(f"update/{i}", i, b"body") for i in (0, 1, 0)]
    assert tokens[0] == tokens[2] != tokens[1] and {len(token) for token in tokens} == {TOKEN_BYTES}
    slots, verifier = Slots(manifest), Verifier(ISSUER.key, scope_of(manifest))
    shown = [Presented(token, slots.context(i % 2), b"body", 0) for i, token in enumerate(tokens)]
    assert verifier.verify_many(shown) == [True] * 3


def test_what_was_kept_is_secret_and_of_one_form() -> None:
    assert "seed" not in repr(Registration.draw(SystemEntropy()))
    assert manifest_of("anonml").issuer_key is None
