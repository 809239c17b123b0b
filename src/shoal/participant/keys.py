"""Identity keys and credentials of a participant.

`shoal.participant.runner` and `shoal.participant.session` derive keys here; ``shoal identity``
prints the master key.

Keys: one secret seed in the participant's file, and a key derived from it for each study, so that
two studies cannot compare their lists of participants. Only studies of one epoch share a key,
because they share a list of members: otherwise one person could register twice.

Credentials: one for each issuer and scope. A registration is drawn once and stored before it is
sent. After a crash the participant sends the same commitment again and gets the same credential.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.crypto.credentials.issuance import Credential, Registration
from shoal.crypto.identity import Identity
from shoal.entropy import Entropy, require_system
from shoal.errors import RemoteProtocolError
from shoal.participant.journal import Journal
from shoal.study.delivery import compute_scope
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest

SEED_BYTES = 32

_MASTER_INFO, _STUDY_INFO, _EPOCH_INFO = (
    b"shoal participant 1 master",
    b"shoal participant 1 study\x00",
    b"shoal participant 1 epoch\x00",
)


def ensure_seed(journal: Journal, entropy: Entropy) -> bytes:
    """Return the participant's secret seed; draw and store it on the first call."""
    return journal.read_seed() or journal.store_seed(require_system(entropy).bytes(SEED_BYTES))


def load_master_identity(journal: Journal, entropy: Entropy) -> Identity:
    """Return the master key, which the participant gives to others for a roster."""
    return _derive_master_identity(ensure_seed(journal, entropy))


def derive_study_identity(seed: bytes, digest: bytes) -> Identity:
    """Return the key for one study. It cannot be linked to the key for another study.

    Examples
    --------
    >>> derive_study_identity(bytes(32), b"one").public_key == derive_study_identity(
    ...     bytes(32), b"two"
    ... ).public_key
    False
    """
    return _derive_from_seed(seed, _STUDY_INFO + digest)


def derive_epoch_identity(seed: bytes, issuer_key: bytes, epoch: str) -> Identity:
    """Return the key for all studies of an issuer's epoch."""
    return _derive_from_seed(seed, _EPOCH_INFO + issuer_key + epoch.encode())


def derive_identity(manifest: Manifest, seed: bytes) -> Identity:
    """Return the key for taking part in a study.

    This is the master key if the study's roster has it, otherwise the key of the study's epoch or,
    without an epoch, a key for this study alone.
    """
    master = _derive_master_identity(seed)
    if master.public_key in {member.key for member in manifest.roster}:
        return master
    if manifest.epoch is not None and manifest.issuer_key is not None:
        return derive_epoch_identity(seed, manifest.issuer_key, manifest.epoch)
    return derive_study_identity(seed, manifest.digest)


def _derive_master_identity(seed: bytes) -> Identity:
    return _derive_from_seed(seed, _MASTER_INFO)


def _derive_from_seed(seed: bytes, info: bytes) -> Identity:
    return Identity.from_seed(HKDF(SHA256(), SEED_BYTES, None, info).derive(seed))


def find_credential(journal: Journal, manifest: Manifest) -> Credential | None:
    """Return the credential that is valid in a study; None if there is none.

    The credential of an epoch is valid in all studies of the epoch.
    """
    issuer, scope = _make_credential_key(manifest)
    with journal.begin_read() as db:
        found = db.execute(
            "SELECT credential FROM credentials WHERE issuer = ? AND scope = ?", (issuer, scope)
        ).fetchone()
    return None if found is None or found[0] is None else Credential.from_bytes(found[0])


def ensure_registration(journal: Journal, manifest: Manifest, entropy: Entropy) -> Registration:
    """Return the secret of the registration; draw and store it on the first call."""
    issuer, scope = _make_credential_key(manifest)
    drawn = Registration.draw(require_system(entropy))
    with journal.begin_write() as db:
        db.execute(
            "INSERT OR IGNORE INTO credentials VALUES (?, ?, ?, NULL)",
            (issuer, scope, drawn.to_bytes()),
        )
        (stored,) = db.execute(
            "SELECT registration FROM credentials WHERE issuer = ? AND scope = ?", (issuer, scope)
        ).fetchone()
    return Registration.from_bytes(stored)


def store_credential(journal: Journal, manifest: Manifest, credential: Credential) -> None:
    """Store a credential that the issuer has signed."""
    with journal.begin_write() as db:
        values = (credential.to_bytes(), *_make_credential_key(manifest))
        db.execute("UPDATE credentials SET credential = ? WHERE issuer = ? AND scope = ?", values)


def check_partition(study: StudyHandle, credential: Credential) -> None:
    """Raise ``TOKEN-003`` for a credential with a partition that the study does not have.

    Packets with such a partition could be recognised.
    """
    n = study.slots.n_credential_partitions
    if not 0 <= credential.partition < n:
        raise RemoteProtocolError(
            "TOKEN-003",
            f"The issuer assigned you partition {credential.partition}; the study has {n}.",
            why="A participant alone in a partition can be recognised by it. Nothing was sent.",
            fix="Ask the study's analyst. To give up the study: shoal leave",
        )


def derive_ticket(study: StudyHandle, credential: Credential) -> bytes:
    """Return the ticket that decides a person's questions.

    Variant ``plus`` has one slot; in ``paper`` the partition alone decides.
    """
    slots = study.slots
    return slots.compute_ticket(
        credential.compute_pseudonym(slots.encode_context(0)), credential.partition
    )


def _make_credential_key(manifest: Manifest) -> tuple[bytes, bytes]:
    assert manifest.issuer_key is not None, "only a study with tokens has credentials"
    return manifest.issuer_key, compute_scope(manifest)
