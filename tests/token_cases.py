"""Studies with tokens, their members, and packets, good and bad."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from coordinator_cases import manifest_of
from shoal.coordinator.keys import Keys
from shoal.crypto.credentials import Credential, Registration
from shoal.entropy import SeededEntropy
from shoal.messages.codec import encode
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import Answer
from shoal.study.anonml import script_of
from shoal.study.anonymity import Slots, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet, packet_size

KEYS = Keys(bytes(range(32)))
RELAY = "https://relay.example.org"


def tokened(manifest: Manifest, keys: Keys = KEYS, *, epoch: str | None = None, relay: str | None = None) -> Manifest:
    """A study as ``shoal serve`` makes it: with the keys of a coordinator."""
    return replace(manifest, issuer_key=keys.issuer.key, gateway_key=keys.gateway_key, epoch=epoch, relay=relay)


@cache
def study_of(name: str, *, epoch: str | None = None, relay: str | None = None) -> Manifest:
    return tokened(manifest_of(name), epoch=epoch, relay=relay)


@cache
def slots_of(manifest: Manifest) -> Slots:
    return Slots(manifest)


@cache
def member(manifest: Manifest, i: int, keys: Keys = KEYS) -> Credential:
    """The credential of one of many, at a place of its own."""
    entropy, scope = SeededEntropy(f"member {i}"), scope_of(manifest)
    registration = Registration.draw(entropy)
    issued = keys.issuer.issue(scope, registration.commitment(keys.issuer.key, scope), i % slots_of(manifest).n_places, entropy)
    return registration.accept(keys.issuer.key, scope, issued)


def ticket_of(manifest: Manifest, credential: Credential, slot: int = 0) -> bytes:
    slots = slots_of(manifest)
    return slots.ticket(credential.pseudonym(slots.context(slot)), credential.place)


def questions_of(manifest: Manifest, credential: Credential) -> list[tuple[int, int]]:
    """Phase and question of all that are this member's own."""
    script, slots = script_of(manifest.study, manifest.digest), slots_of(manifest)
    found = []
    for slot in range(slots.n_slots):
        words = words_of(manifest.digest, ticket_of(manifest, credential, slot))
        for phase in range(script.n_phases):
            asked = script.asked(phase, int(script.group_of(phase, words)[0]))
            found += [(phase, question) for question in asked if slots.of_question(phase, question) == slot]
    return found


def answer_of(manifest: Manifest, credential: Credential, asked: tuple[int, int] | None = None, report: bytes = b"\1") -> bytes:
    """An answer to a question; to the first that is the member's own."""
    phase, question = questions_of(manifest, credential)[0] if asked is None else asked
    ticket = ticket_of(manifest, credential, slots_of(manifest).of_question(phase, question))
    return encode(Answer(study=manifest.digest, ticket=ticket, phase=phase, question=question, report=report))


def packed(manifest: Manifest, credential: Credential, answer: bytes, slot: int = 0, *, seed: int = 0, place: int | None = None) -> bytes:
    """The packet of an answer."""
    token = credential.mint(slots_of(manifest).context(slot), answer, SeededEntropy(seed))
    return Packet(token, credential.place if place is None else place, answer).to_bytes(packet_size(manifest))


def packet_of(manifest: Manifest, i: int, report: bytes = b"\1") -> bytes:
    """The first packet of one of many."""
    credential = member(manifest, i)
    asked = questions_of(manifest, credential)[0]
    return packed(manifest, credential, answer_of(manifest, credential, asked, report), slots_of(manifest).of_question(*asked))
