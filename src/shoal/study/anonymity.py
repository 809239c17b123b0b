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
from itertools import count

from shoal.errors import RemoteProtocolError
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


def is_anonymous(study: Study) -> bool:
    """Whether what participants send is anonymous, and yet each counts as often as the study says: by tokens, or by tickets."""
    return study.protocol == "anonml" or (study.ddml is not None and study.ddml.admission == "token")


def has_tokens(manifest: Manifest) -> bool:
    """Whether what participants send is anonymous, and admitted by tokens."""
    return is_anonymous(manifest.study) and manifest.issuer_key is not None


def scope_of(manifest: Manifest) -> bytes:
    """Which credentials count in a study: 32 bytes that each of them is bound to."""
    of = b"study" + manifest.digest if manifest.epoch is None else b"epoch" + manifest.epoch.encode()
    return hashlib.sha256(_SCOPE + of).digest()


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
        if place not in self._tickets:
            self._tickets[place] = self._ticket_of_place(self._script, place)
        return self._tickets[place]

    def _ticket_of_place(self, script: PaperScript, place: int) -> bytes:
        """The first ticket, by counting, whose words have this place."""
        if not 0 <= place < self.n_places:
            raise RemoteProtocolError("ANONML-001", f"A study of {self.n_places} places has no place {place}.")
        for counter in count():
            ticket = hashlib.sha256(_PLACE + self.study + place.to_bytes(4, "big") + counter.to_bytes(4, "big")).digest()
            if int(script.place(words_of(self.study, ticket))[0]) % self.n_places == place:
                return ticket
        raise AssertionError("one of them has it")


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
