"""How a coordinator begins: its keys at its first start, and a study that is published with its time, its seats and its invitations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta

from shoal.coordinator.aggregators import aggregator_of, check_servable, names_of, queries_to_bytes, seats_of
from shoal.coordinator.hosting import milliseconds, moment
from shoal.coordinator.store.base import Hosted, Secrets, Store
from shoal.entropy import Entropy
from shoal.errors import SpecError, UsageError
from shoal.protocols.sdq.queries import Query
from shoal.study.anonml import script_of
from shoal.study.anonymity import has_tokens, scope_of
from shoal.study.ddml import params_of
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.transport.forms import Issuing

KEY_BYTES = 32
CODE_BYTES = 16
A_DAY = timedelta(days=1) // timedelta(milliseconds=1)
MOST_PATIENCE = 366 * A_DAY

_UNITS = {"day": A_DAY, "hour": A_DAY // 24, "minute": A_DAY // 1440}
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
    issuing: Issuing | None = None,
) -> tuple[Hosted, bool]:
    """Begin a study; or go on with one that the store has already, whatever else is said of it.

    Parameters
    ----------
    store, manifest
        Where, and which.
    now, patience
        The time, and how long a phase or step waits, in milliseconds; None for what follows from the study.
    invitations
        Codes of which one is needed to enrol; none for a study that is open to all, or has a roster. In an epoch that is by invitation
        they are for people who have no code of it yet, and may be none.
    queries
        Free counts that an SDQ study is asked after its model.
    issuing
        The coordinator's keys, for a study that has some; None where none is known.

    Returns
    -------
    tuple
        The study as it is served, and whether it is new.

    Raises
    ------
    SpecError
        ``HOST-003``: it cannot be served as it is. ``PLAN-001``, ``SDQ-002``: something is asked that has no price, or is not allowed.
    """
    known = store.study(manifest.digest.hex())
    if known is not None:
        return known, False
    by_invitation = bool(invitations) or is_invited(store, manifest)
    hosted = hosted_of(manifest, now, patience=patience, by_invitation=by_invitation, queries=queries, issuing=issuing)
    check_epoch(store, hosted)
    is_new = store.publish(hosted, [key_digest(code) for code in invitations])
    return store.study(hosted.digest) or hosted, is_new


def is_invited(store: Store, manifest: Manifest) -> bool:
    """Whether a study is of an epoch that is by invitation: then so is the study, and the epoch's codes are good in it."""
    if not has_tokens(manifest):
        return False
    return any(other.by_invitation for other in store.studies() if other.scope == scope_of(manifest))


def check_epoch(store: Store, hosted: Hosted) -> None:
    """Refuse a study by invitation in an epoch whose other studies are open to all: ``HOST-003``.

    Who is a member of one of them is a member of all.
    """
    others = [other for other in store.studies() if hosted.scope is not None and other.scope == hosted.scope]
    if hosted.by_invitation and not all(other.by_invitation for other in others):
        raise SpecError(
            "HOST-003",
            "The study is by invitation, and others of its epoch are open to all.",
            why="Who has registered in one study of an epoch is a member in all of them.",
            fix="Name another epoch.",
        )


def hosted_of(
    manifest: Manifest,
    now: int,
    *,
    patience: int | None,
    by_invitation: bool,
    queries: tuple[Query, ...],
    issuing: Issuing | None = None,
) -> Hosted:
    """A study as `publish` would serve it, or the reason why it does not."""
    check_servable(manifest, issuing)
    if by_invitation and manifest.roster:
        raise UsageError("USAGE-001", "A study with a roster needs no invitations.", why="Its roster says who takes part.")
    hosted = Hosted(
        manifest.digest.hex(),
        manifest.to_bytes(),
        now,
        patience_of(manifest, now, patience),
        by_invitation,
        seats_of(manifest),
        queries_to_bytes(queries),
        scope=scope_of(manifest) if has_tokens(manifest) else None,
    )
    # What could not be priced, or would fail when it is first stepped, fails now.
    make_plan(manifest.study, manifest.digest)
    aggregator_of(manifest, hosted)
    return hosted


def patience_of(manifest: Manifest, now: int, wished: int | None = None) -> int:
    """How long each phase or step lasts, in milliseconds.

    What the analyst wishes, or else until the study closes, where the number of phases is known, or a day. Never so long that the phases
    together would last until after the study closes.

    Raises
    ------
    SpecError
        ``HOST-003``: the study has closed.
    UsageError
        ``USAGE-001``: no phase can last as long as that.
    """
    if wished is not None and not 0 < wished <= MOST_PATIENCE:
        raise UsageError("USAGE-001", f"A phase cannot last {wished / 1000:g} s.", fix="Give more than nothing, and at most a year.")
    closes = manifest.study.participation.closes
    if closes is None:
        return wished or A_DAY
    left = milliseconds(closes) - now
    if left <= 0:
        raise SpecError("HOST-003", "The study closed before it was published.", fix="Set closes to a later time.")
    n_phases = n_phases_of(manifest)
    share = max(1, min(left // (n_phases or 1), MOST_PATIENCE))
    return min(share, wished or (A_DAY if n_phases is None else share))


def n_phases_of(manifest: Manifest) -> int | None:
    """How many phases a study has; None where it is not known beforehand how many steps there are."""
    study = manifest.study
    if study.trust == "secure-sum" or study.protocol == "sdq":
        return None
    if study.protocol == "anonml":
        return script_of(study, manifest.digest).n_phases
    return 2 if study.protocol == "pfds" and study.variant == "paper" else 1


def end_of(manifest: Manifest, hosted: Hosted) -> str:
    """When and how an open study ends, in words that go on from "ends"."""
    study, patience, holders = manifest.study, duration(hosted.patience), names_of(manifest)
    minimum = len(holders) if (study.protocol, study.trust) == ("sdq", "local") else study.participation.minimum
    needs = f"it fails with fewer than {minimum:,}"
    last = f"after {patience}, at {moment(hosted.opened + hosted.patience):%Y-%m-%d %H:%M} UTC"
    if study.protocol == "ddml":
        return f"with {params_of(study).n_expected:,} updates, or {last}; {needs}"
    n_phases, answered = n_phases_of(manifest), f"when all {len(holders) or study.participation.size:,} have answered"
    if n_phases == 1:
        return f"{answered}, or {last}; {needs}"
    steps = "its steps" if n_phases is None else f"{n_phases} phases"
    closes = study.participation.closes
    latest = "" if closes is None else f", or when it closes, at {closes:%Y-%m-%d %H:%M} UTC"
    # With tokens nobody knows of whom answers are due in a phase.
    early = "" if has_tokens(manifest) else f"{answered} or "
    return f"after {steps}, each {early}after {patience}{latest}; {needs}"


def duration(milliseconds: int) -> str:
    """A time span for people.

    Examples
    --------
    >>> [duration(n) for n in (1, 2_500, 90_000, 86_400_000, 6_646_153)]
    ['0.001 s', '2.5 s', '1.5 minutes', '1 day', '1.85 hours']
    """
    for unit, size in _UNITS.items():
        if milliseconds >= size:
            n = f"{milliseconds / size:.3g}"
            return f"{n} {unit}{'' if n == '1' else 's'}"
    return f"{milliseconds / 1000:.3g} s"


def _grouped(secret: bytes) -> str:
    text = secret.hex()
    return "-".join(text[i : i + 8] for i in range(0, len(text), 8))
