"""How a coordinator begins: its keys at its first start, and a study that is published with its time, its seats and its invitations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta

from shoal.coordinator.aggregators import aggregator_of, check_servable, queries_to_bytes, seats_of
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.store.base import Hosted, Secrets, Store
from shoal.entropy import Entropy
from shoal.errors import SpecError, UsageError
from shoal.protocols.sdq.queries import Query
from shoal.study.anonml import script_of
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan

KEY_BYTES = 32
CODE_BYTES = 16
A_DAY = timedelta(days=1) // timedelta(milliseconds=1)
MOST_PATIENCE = 366 * A_DAY

_NOT_HEX = re.compile(r"[\s-]")


def first_start(store: Store, entropy: Entropy) -> tuple[Secrets, str | None]:
    """What the coordinator keeps of itself, and the analyst's key where it was made now: it is told once, and kept as a digest alone."""
    key = _grouped(entropy.bytes(KEY_BYTES))
    offered = Secrets(key_digest(key), entropy.bytes(KEY_BYTES))
    kept = store.secrets(offered)
    return kept, key if kept == offered else None


def key_digest(key: str) -> bytes:
    """SHA-256 of a key or of an invitation's code, however its letters are grouped.

    Examples
    --------
    >>> key_digest("7F3A-91c2") == key_digest("7f3a 91c2")
    True
    """
    return hashlib.sha256(_NOT_HEX.sub("", key).lower().encode()).digest()


def ticket_digest(ticket: bytes) -> bytes:
    """SHA-256 of the 32 bytes of a ticket: all that is kept of it."""
    return hashlib.sha256(ticket).digest()


def draw_invitations(n: int, entropy: Entropy) -> tuple[str, ...]:
    """Codes for so many participants; they are told once, and a store keeps their digests."""
    return tuple(_grouped(entropy.bytes(CODE_BYTES)) for _ in range(n))


def publish(
    store: Store,
    manifest: Manifest,
    now: int,
    *,
    patience: int | None = None,
    invitations: Sequence[str] = (),
    queries: tuple[Query, ...] = (),
) -> tuple[Hosted, bool]:
    """Begin a study; or go on with one that the store has already, whatever else is said of it.

    Parameters
    ----------
    store, manifest
        Where, and which.
    now, patience
        The time, and how long a phase or step waits, in milliseconds; None for what follows from the study.
    invitations
        Codes of which one is needed to enrol; none for a study that is open to all, or has a roster.
    queries
        Free counts that an SDQ study is asked after its model.

    Returns
    -------
    tuple
        The study as it is served, and whether it is new.

    Raises
    ------
    SpecError
        ``HOST-003``: it cannot be served as it is. ``PLAN-001``, ``SDQ-002``: something is asked that has no price, or is not allowed.
    """
    digest = manifest.digest.hex()
    known = store.study(digest)
    if known is not None:
        return known, False
    check_servable(manifest)
    if invitations and manifest.roster:
        raise UsageError("USAGE-001", "A study with a roster needs no invitations.", why="Its roster says who takes part.")
    hosted = Hosted(
        digest,
        manifest.to_bytes(),
        now,
        patience_of(manifest, now) if patience is None else _checked(patience),
        bool(invitations),
        seats_of(manifest),
        queries_to_bytes(queries),
    )
    # What could not be priced, or would fail when it is first stepped, fails now.
    make_plan(manifest.study, manifest.digest)
    aggregator_of(manifest, hosted)
    is_new = store.publish(hosted, [key_digest(code) for code in invitations])
    return store.study(digest) or hosted, is_new


def patience_of(manifest: Manifest, now: int) -> int:
    """How long each phase lasts, in milliseconds: until the study closes, where the number of phases is known; else a day.

    Raises
    ------
    SpecError
        ``HOST-003``: the study has closed.
    """
    study = manifest.study
    closes = study.participation.closes
    if closes is None:
        return A_DAY
    left = milliseconds(closes) - now
    if left <= 0:
        raise SpecError("HOST-003", "The study closed before it was published.", fix="Set closes to a later time, or give --patience.")
    if study.trust == "secure-sum" or study.protocol == "sdq":
        return A_DAY
    n_phases = 1
    if study.protocol == "anonml":
        n_phases = script_of(study, manifest.digest).n_phases
    elif study.protocol == "pfds" and study.variant == "paper":
        n_phases = 2
    return max(1, min(left // n_phases, MOST_PATIENCE))


def _checked(patience: int) -> int:
    if not 0 < patience <= MOST_PATIENCE:
        raise UsageError("USAGE-001", f"A phase cannot last {patience / 1000:g} s.", fix="Give more than nothing, and at most a year.")
    return patience


def _grouped(secret: bytes) -> str:
    text = secret.hex()
    return "-".join(text[i : i + 8] for i in range(0, len(text), 8))
