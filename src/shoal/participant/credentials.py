"""A participant's credentials: one for each issuer and scope, kept in its own file before and after the issuer has signed.

A registration is drawn once. Whoever goes down before its credential is here sends the same commitment again, and is given the same.
"""

from __future__ import annotations

from shoal.crypto.credentials import Credential, Registration
from shoal.entropy import Entropy, require_system
from shoal.errors import RemoteProtocolError
from shoal.participant.journal import Journal
from shoal.study.anonymity import Slots, scope_of
from shoal.study.manifest import Manifest

NOTHING_BEFORE = (
    "Your credential decides which question is yours, and you have it once you take part: there is nothing to show before that."
)
"""Why a preview draws nothing: to register is to be named, which is not done before anyone has agreed."""


def credential_of(journal: Journal, manifest: Manifest) -> Credential | None:
    """The credential that counts in a study, if there is one: an epoch's serves all its studies."""
    issuer, scope = _of(manifest)
    with journal.look() as db:
        found = db.execute("SELECT credential FROM credentials WHERE issuer = ? AND scope = ?", (issuer, scope)).fetchone()
    return None if found is None or found[0] is None else Credential.from_bytes(found[0])


def registration_of(journal: Journal, manifest: Manifest, entropy: Entropy) -> Registration:
    """The secret to register with: what is there, or else one that is drawn now and kept."""
    issuer, scope = _of(manifest)
    drawn = Registration.draw(require_system(entropy))
    with journal.change() as db:
        db.execute("INSERT OR IGNORE INTO credentials VALUES (?, ?, ?, NULL)", (issuer, scope, drawn.to_bytes()))
        (kept,) = db.execute("SELECT registration FROM credentials WHERE issuer = ? AND scope = ?", (issuer, scope)).fetchone()
    return Registration.from_bytes(kept)


def keep(journal: Journal, manifest: Manifest, credential: Credential) -> None:
    """Keep a credential that the issuer has signed."""
    with journal.change() as db:
        values = (credential.to_bytes(), *_of(manifest))
        db.execute("UPDATE credentials SET credential = ? WHERE issuer = ? AND scope = ?", values)


def check_place(manifest: Manifest, credential: Credential) -> None:
    """Refuse a credential whose place the study does not have: everyone would know its packets by it. ``TOKEN-003``."""
    n = Slots(manifest).n_places
    if not 0 <= credential.place < n:
        raise RemoteProtocolError(
            "TOKEN-003",
            f"The issuer has given you the place {credential.place}, and the study has {n}.",
            why="Whoever has a place that nobody else has is known by it. Nothing was sent.",
            fix="Ask its analyst; shoal leave gives the study up.",
        )


def ticket_of(manifest: Manifest, credential: Credential) -> bytes:
    """The ticket that decides a person's questions: in ``plus`` there is one slot, and in ``paper`` the place alone decides."""
    slots = Slots(manifest)
    return slots.ticket(credential.pseudonym(slots.context(0)), credential.place)


def _of(manifest: Manifest) -> tuple[bytes, bytes]:
    assert manifest.issuer_key is not None, "only a study with tokens has credentials"
    return manifest.issuer_key, scope_of(manifest)
