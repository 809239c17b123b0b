"""The packets of a participant in one study: each is minted once, kept before it leaves, and leaves as it is kept.

=========  ==============================================================================================
standing   what it means
=========  ==============================================================================================
minted     kept; nothing has left
leaving    it may have left
sent       whoever it was given to has acknowledged it: the coordinator, or the relay that keeps it till later
seen       the coordinator's list has it
=========  ==============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from shoal.crypto.credentials import Credential
from shoal.crypto.tokens import pseudonym_of
from shoal.entropy import Entropy
from shoal.participant.journal import Journal
from shoal.study.anonymity import Slots, name_of_pseudonym
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet, packet_size

if TYPE_CHECKING:
    from shoal.participant.via import Via

Standing = Literal["minted", "leaving", "sent", "seen"]

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_FIND = "SELECT packet, due, standing, via FROM packets WHERE study = ? AND question = ?"


@dataclass(frozen=True, slots=True)
class Minted:
    """A packet, or the token of an update, for one question.

    Parameters
    ----------
    question, packet
        What it answers, and its bytes, not sealed.
    due, standing
        When it is to leave, and how far it has come.
    via
        The name of the way that it was sealed for, once it was.
    """

    question: str
    packet: bytes = field(repr=False)
    due: datetime
    standing: Standing
    via: str | None = None


class Packets:
    """What a participant has minted in a study.

    Parameters
    ----------
    journal, manifest, credential
        Where packets are kept, the study, and what they are minted with.
    entropy
        Where fresh randomness of tokens comes from.
    """

    def __init__(self, journal: Journal, manifest: Manifest, credential: Credential, entropy: Entropy) -> None:
        self.study = manifest.digest.hex()
        self._journal, self._manifest, self._credential, self._entropy = journal, manifest, credential, entropy
        self._slots = Slots(manifest)

    def find(self, question: str) -> Minted | None:
        """What was minted for a question."""
        with self._journal.look() as db:
            found = db.execute(_FIND, (self.study, question)).fetchone()
        return None if found is None else Minted(question, found[0], _EPOCH + found[1] * _MILLISECOND, found[2], found[3])

    def answer(self, question: str, message: bytes, due: datetime) -> Minted:
        """The packet with an answer of AnonML: what is kept, or else one that is minted now."""
        found = self.find(question)
        if found is not None:
            return found
        token = self._credential.mint(self._slots.context(self._slots.of_name(question)), message, self._entropy)
        packet = Packet(token, self._credential.place, message).to_bytes(packet_size(self._manifest))
        return self._kept(question, packet, due)

    def token(self, question: str, number: int, body: bytes) -> bytes:
        """The token of an update of DDML: what is kept, or else one that is minted now."""
        found = self.find(question)
        if found is None:
            token = self._credential.mint(self._slots.context(number), body, self._entropy)
            found = self._kept(question, token, _EPOCH)
        return found.packet

    def sealed(self, minted: Minted, via: Via) -> bytes:
        """The bytes that go a way, which are the same each time."""
        name = (self.study, minted.question)
        with self._journal.change() as db:
            kept, sealed = db.execute("SELECT via, sealed FROM packets WHERE study = ? AND question = ?", name).fetchone()
            if kept != via.name:
                sealed = via.seal(self.study, minted.packet)
                db.execute("UPDATE packets SET via = ?, sealed = ? WHERE study = ? AND question = ?", (via.name, sealed, *name))
            return bytes(sealed)

    def note(self, question: str, standing: Standing) -> None:
        """Note how far a packet has come."""
        with self._journal.change() as db:
            db.execute("UPDATE packets SET standing = ? WHERE study = ? AND question = ?", (standing, self.study, question))

    def put_off(self, question: str, due: datetime) -> None:
        """Note another time for a packet, whose first one has passed."""
        with self._journal.change() as db:
            values = ((due - _EPOCH) // _MILLISECOND, self.study, question)
            db.execute("UPDATE packets SET due = ? WHERE study = ? AND question = ?", values)

    def has_left(self) -> bool:
        """Whether any packet of the study may have left."""
        with self._journal.look() as db:
            query = "SELECT 1 FROM packets WHERE study = ? AND standing <> 'minted'"
            return db.execute(query, (self.study,)).fetchone() is not None

    def _kept(self, question: str, packet: bytes, due: datetime) -> Minted:
        with self._journal.change() as db:
            values = (self.study, question, packet, (due - _EPOCH) // _MILLISECOND)
            db.execute("INSERT OR IGNORE INTO packets VALUES (?, ?, ?, NULL, NULL, ?, 'minted')", values)
        found = self.find(question)
        assert found is not None
        return found


def name_of(minted: Minted) -> bytes:
    """The name of a packet in the coordinator's list."""
    return name_of_pseudonym(pseudonym_of(Packet.from_bytes(minted.packet, len(minted.packet)).token))
