"""The participant's keys: one secret in its own file, and of it a key for each study, so that two studies cannot compare their lists.

Only where studies share an epoch, and so a list of members, they share a key: else one person could register twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.crypto.roster import Identity
from shoal.entropy import Entropy, require_system
from shoal.study.manifest import Manifest

if TYPE_CHECKING:
    from shoal.participant.journal import Journal

SEED_BYTES = 32

_MASTER, _STUDY, _EPOCH = b"shoal participant 1 master", b"shoal participant 1 study\x00", b"shoal participant 1 epoch\x00"


def seed_of(journal: Journal, entropy: Entropy) -> bytes:
    """The participant's secret, drawn when it is first needed."""
    return journal.seed() or journal.keep_seed(require_system(entropy).bytes(SEED_BYTES))


def master(journal: Journal, entropy: Entropy) -> Identity:
    """The key by which others know the participant: the one to put on a roster."""
    return _master(seed_of(journal, entropy))


def for_study(seed: bytes, digest: bytes) -> Identity:
    """The key for one study, of which nobody can tell that it belongs to the key for another.

    Examples
    --------
    >>> for_study(bytes(32), b"one").public == for_study(bytes(32), b"two").public
    False
    """
    return _derived(seed, _STUDY + digest)


def for_epoch(seed: bytes, issuer_key: bytes, epoch: str) -> Identity:
    """The key for all studies of an issuer's epoch."""
    return _derived(seed, _EPOCH + issuer_key + epoch.encode())


def identity_for(manifest: Manifest, seed: bytes) -> Identity:
    """The key with which to take part: the master key where the study's roster has it, that of its epoch, or one for this study alone."""
    known = _master(seed)
    if known.public in {member.key for member in manifest.roster}:
        return known
    if manifest.epoch is not None and manifest.issuer_key is not None:
        return for_epoch(seed, manifest.issuer_key, manifest.epoch)
    return for_study(seed, manifest.digest)


def _master(seed: bytes) -> Identity:
    return _derived(seed, _MASTER)


def _derived(seed: bytes, info: bytes) -> Identity:
    return Identity.from_seed(HKDF(SHA256(), SEED_BYTES, None, info).derive(seed))
