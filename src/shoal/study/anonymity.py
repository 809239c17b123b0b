"""How a study's participants stay anonymous and yet count once: whose credentials it takes, what a token is for, and when packets go.

==========  ========================================================================================================================
scope       which credentials count: those issued for the manifest's epoch, or, without one, for this study alone
slot        which of a person's packets a token is for: the number of the question's name, or of a DDML update. Each slot has a
            pseudonym of its own, so packets of one person cannot be told to be of one person, and a second one for a slot can
context     the manifest's digest with the slot: what the pseudonym is made of. Everyone computes it; nobody is told it
place       in variant ``paper`` the issuer gives everyone a place (batch and partition), which the token discloses; 0 otherwise
ticket      what decides the question (`shoal.protocols.anonml.assignment`): a hash of the pseudonym; in ``paper`` one of the place
==========  ========================================================================================================================

Ref: AnonML §V.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

import numpy as np

from shoal.errors import RemoteProtocolError, SpecError
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.median import N_BATCHES
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.script import Script
from shoal.study.anonml import script_of
from shoal.study.manifest import Manifest
from shoal.study.spec import Study

_SCOPE, _CONTEXT = b"shoal credential 1\x00", b"shoal pseudonym 1\x00"
_NAME = b"shoal pseudonym's name 1\x00"
_TICKET, _PLACE = b"shoal pseudonym's ticket 1\x00", b"shoal place's ticket 1\x00"
_COUNTED_AT_ONCE = 256


def is_anonymous(study: Study) -> bool:
    """Whether what participants send is anonymous, and yet each counts as often as the study says: by tokens, or by tickets."""
    return study.protocol == "anonml" or (study.ddml is not None and study.ddml.admission == "token")


def has_tokens(manifest: Manifest) -> bool:
    """Whether what participants send is anonymous, and admitted by tokens."""
    return is_anonymous(manifest.study) and manifest.issuer_key is not None


def check_delivery(manifest: Manifest) -> None:
    """Refuse a study whose participants would not be as anonymous as it says, before it is served and before it is joined: ``HOST-003``."""
    if manifest.relay is not None and manifest.gateway_key is None:
        raise SpecError("HOST-003", "The manifest names a relay and no gateway key.", why="What goes through a relay is sealed to it.")
    if manifest.epoch is not None and not has_tokens(manifest):
        raise SpecError("HOST-003", "The manifest has an epoch, and the study takes no tokens.", fix="Leave the epoch out.")
    if manifest.epoch is not None and manifest.study.variant == "paper":
        raise SpecError(
            "HOST-003",
            "A study of variant paper cannot be of an epoch.",
            why="Its credentials say to which partition somebody belongs, and in another study that would be another one.",
            fix="Leave the epoch out: credentials are then of this study alone.",
        )
    is_sealed = has_tokens(manifest) and manifest.gateway_key is not None and manifest.relay is not None
    if manifest.study.trust == "shuffled" and not is_sealed:
        raise SpecError(
            "HOST-003",
            "A study with trust shuffled needs tokens, a gateway and a relay.",
            why="Its answers come in shuffled batches, sealed, from a relay that somebody else runs.",
            fix='Name the relay: shoal serve STUDY --relay URL; or trust = "local"',
        )


def scope_of(manifest: Manifest) -> bytes:
    """Which credentials count in a study: 32 bytes that each of them is bound to."""
    if manifest.epoch is None:
        return scope_of_study(manifest.digest)
    return hashlib.sha256(_SCOPE + b"epoch" + manifest.epoch.encode()).digest()


def scope_of_study(study: bytes) -> bytes:
    """The scope of a study that is of no epoch, by its digest."""
    return hashlib.sha256(_SCOPE + b"study" + study).digest()


def name_of_pseudonym(pseudonym: bytes) -> bytes:
    """The name of what came under a pseudonym, 32 bytes: a coordinator keeps it, and tells it to show that the packet came."""
    return hashlib.sha256(_NAME + pseudonym).digest()


def least_batch(manifest: Manifest, phase: int) -> int:
    """Fewest packets of a phase that a relay hands over at once.

    With trust ``shuffled`` a packet counts on as many to hide among as the study needs at least, in every batch. Otherwise as many as come
    where no more people take part than the study needs, each with all packets of the phase: fewer would wait in vain.
    """
    study = manifest.study
    minimum = study.participation.minimum
    if study.trust == "shuffled":
        return minimum
    script = script_of(study, manifest.digest)
    return max(1, math.floor(minimum * _share(script, phase)) * len(script.asked(phase, 0)))


def _share(script: Script, phase: int) -> Fraction:
    """The share of the people who answer in a phase."""
    if isinstance(script, PlusScript):
        return sum((slot.share for slot in script.slots if slot.phase == phase), Fraction(0))
    return Fraction(1, N_BATCHES if phase < script.n_phases - 1 else 1)


class Slots:
    """The packets that a person can send in a study: each has a slot, and each slot a question or an update.

    Parameters
    ----------
    manifest
        A study of AnonML, or of DDML with admission by tokens.

    Attributes
    ----------
    n_slots
        How many packets a person can send.
    n_places
        Among how many places the issuer draws one for everyone who registers.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.study = manifest.digest
        self._script = script_of(manifest.study, manifest.digest) if manifest.study.protocol == "anonml" else None
        self._names = () if self._script is None else tuple(sorted(self._script.prices))
        self._tickets: dict[int, bytes] = {}
        self._counted = 0
        self.n_slots = manifest.study.privacy.n_updates if self._script is None else len(self._names)
        self.n_places = 1
        if isinstance(self._script, PaperScript):
            self.n_places = self._script.params.n_partitions * (N_BATCHES if self._script.n_steps else 1)

    def of_question(self, phase: int, question: int) -> int:
        """The slot of an answer to a question of a phase; ``ANONML-001`` for one that the script does not have."""
        assert self._script is not None
        try:
            return self.of_name(self._script.name_of(phase, question))
        except (IndexError, ValueError):
            raise RemoteProtocolError("ANONML-001", f"Phase {phase} has no question {question}.") from None

    def of_name(self, name: str) -> int:
        """The slot of a question by the name under which a person's ledger has it."""
        return self._names.index(name)

    def context(self, slot: int) -> bytes:
        """What the pseudonym of a slot is made of."""
        return _CONTEXT + self.study + slot.to_bytes(4, "big")

    def ticket(self, pseudonym: bytes, place: int) -> bytes:
        """The ticket of a person whose pseudonym and place are known, as they are to everyone who sees a packet."""
        if not isinstance(self._script, PaperScript):
            return hashlib.sha256(_TICKET + self.study + pseudonym).digest()
        if not 0 <= place < self.n_places:
            raise RemoteProtocolError("ANONML-001", f"A study of {self.n_places} places has no place {place}.")
        while place not in self._tickets:
            self._count_on(self._script)
        return self._tickets[place]

    def _count_on(self, script: PaperScript) -> None:
        """Note which places the next tickets have, by counting, where none before them has. All places together take one count."""
        counters = range(self._counted, self._counted + _COUNTED_AT_ONCE)
        tickets = [hashlib.sha256(_PLACE + self.study + counter.to_bytes(4, "big")).digest() for counter in counters]
        places = script.place(np.concatenate([words_of(self.study, ticket) for ticket in tickets])) % self.n_places
        for place, ticket in zip(places.tolist(), tickets, strict=True):
            self._tickets.setdefault(place, ticket)
        self._counted = counters.stop


@dataclass(frozen=True)
class Window:
    """The time of a phase, and what is due when: packets until ``collects_until``, those that got lost once more until ``resends_until``.

    Parameters
    ----------
    opened, closes
        From when until when the phase is open.
    """

    opened: datetime
    closes: datetime

    @property
    def collects_until(self) -> datetime:
        return self.opened + (self.closes - self.opened) * 7 / 10

    @property
    def resends_until(self) -> datetime:
        return self.opened + (self.closes - self.opened) * 9 / 10
