"""First start of a coordinator; publication of a study; invitations; deadlines.

`shoal serve` and `CoordinatorService` call it. A study that cannot be served, priced or stepped is
rejected here, before it is stored: `make_record` makes its plan and its aggregator once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from shoal.clock import from_milliseconds, to_milliseconds
from shoal.coordinator.store.base import CoordinatorSecrets, Store, StudyRecord
from shoal.coordinator.studies import make_hosting
from shoal.entropy import Entropy
from shoal.errors import SpecError, UsageError
from shoal.protocols.sdq.queries import SDQQuery
from shoal.study.delivery import check_delivery, compute_scope, has_tokens, needs_schedule
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.schedule import Schedule
from shoal.study.sdq import encode_queries
from shoal.transport.api import Issuing

KEY_BYTES = 32
CODE_BYTES = 16
DAY_MILLISECONDS = timedelta(days=1) // timedelta(milliseconds=1)
MOST_PHASE_TIMEOUT = 366 * DAY_MILLISECONDS

_UNITS = {
    "day": DAY_MILLISECONDS,
    "hour": DAY_MILLISECONDS // 24,
    "minute": DAY_MILLISECONDS // 1440,
}
_NOT_HEX = re.compile(r"[\s-]")


def load_or_create_secrets(store: Store, entropy: Entropy) -> tuple[CoordinatorSecrets, str | None]:
    """Return the coordinator's secrets, and the analyst's key if it was created now.

    The store keeps a digest of the key only, so the key can be shown this once.
    """
    key = _format_key(entropy.bytes(KEY_BYTES))
    offered = CoordinatorSecrets(hash_key(key), entropy.bytes(KEY_BYTES))
    kept = store.keep_secrets(offered)
    return kept, key if kept == offered else None


def hash_key(key: str) -> bytes:
    """Return the SHA-256 of a key or invitation code, without spaces and hyphens.

    Examples
    --------
    >>> hash_key("7F3A-91c2") == hash_key("7f3a 91c2")
    True
    """
    return hashlib.sha256(_NOT_HEX.sub("", key).lower().encode()).digest()


def hash_ticket(ticket: bytes) -> bytes:
    """Return the SHA-256 of a ticket; a store keeps nothing else of it."""
    return hashlib.sha256(ticket).digest()


def draw_invitations(n: int, entropy: Entropy) -> tuple[str, ...]:
    """Return n new invitation codes; they are shown once, and a store keeps their digests."""
    return tuple(_format_key(entropy.bytes(CODE_BYTES)) for _ in range(n))


def publish(
    store: Store,
    handle: StudyHandle,
    now: int,
    *,
    phase_timeout: int | None = None,
    invitations: Sequence[str] = (),
    queries: tuple[SDQQuery, ...] = (),
    issuing: Issuing | None = None,
) -> tuple[StudyRecord, bool]:
    """Publish a study; a study that the store already has does not change.

    Parameters
    ----------
    now, phase_timeout
        Milliseconds; None computes the phase timeout from the study. If the manifest has a
        schedule, its window is the timeout.
    invitations
        Codes, one of which is needed to enrol; none for a study that is open to all or has a
        roster. If the epoch of the study is by invitation, they are for people who have no code
        of it yet, and may be none.
    queries
        Free counts that an SDQ study answers after its model.
    issuing
        The coordinator's public keys; None if the manifest has no keys.

    Returns
    -------
    tuple
        The stored record, and True if the study is new.

    Raises
    ------
    SpecError
        ``HOST-003``: the study cannot be served, or nobody can join it any more. ``PLAN-001``: a
        release has no price. ``SDQ-002``: a free count is not allowed by the study.
    """
    known = store.find_study(handle.digest.hex())
    if known is not None:
        return known, False
    by_invitation = bool(invitations) or is_invited(store, handle.manifest)
    record = make_record(
        handle,
        now,
        phase_timeout=phase_timeout,
        by_invitation=by_invitation,
        queries=queries,
        issuing=issuing,
    )
    check_epoch(store, record)
    is_new = store.publish(record, [hash_key(code) for code in invitations])
    return store.find_study(record.digest) or record, is_new


def add_schedule(
    handle: StudyHandle, now: int, phase_timeout: int | None, store: Store | None = None
) -> StudyHandle:
    """Return a study with its schedule, if it has packets with tokens; it opens now.

    If the store has the same study with a schedule, that one is returned: publishing a study a
    second time changes nothing.

    Parameters
    ----------
    handle
        The study with the coordinator's keys.
    now, phase_timeout
        As in `publish`.
    """
    manifest = handle.manifest
    if not needs_schedule(manifest) or manifest.schedule is not None:
        return handle
    for record in () if store is None else store.list_studies():
        known = Manifest.from_bytes(record.manifest)
        if replace(known, schedule=None) == manifest:
            return StudyHandle(known)
    window = compute_phase_timeout(handle, now, phase_timeout)
    return StudyHandle(replace(manifest, schedule=Schedule(now, window)))


def is_invited(store: Store, manifest: Manifest) -> bool:
    """Return whether the epoch of a study is by invitation.

    The study is then by invitation too, and the codes of the epoch are valid in it.
    """
    if not has_tokens(manifest):
        return False
    return any(
        other.by_invitation
        for other in store.list_studies()
        if other.scope == compute_scope(manifest)
    )


def check_epoch(store: Store, record: StudyRecord) -> None:
    """Raise ``HOST-003`` for a study by invitation if its epoch is open to all.

    A member of one study of an epoch is a member of all of them.
    """
    others = [
        other
        for other in store.list_studies()
        if record.scope is not None and other.scope == record.scope
    ]
    if record.by_invitation and not all(other.by_invitation for other in others):
        raise SpecError(
            "HOST-003",
            "The study is by invitation, but other studies of its epoch are open to all.",
            why="A member of one study of an epoch is a member of all of them.",
            fix="Choose another name for the epoch.",
        )


def make_record(
    handle: StudyHandle,
    now: int,
    *,
    phase_timeout: int | None,
    by_invitation: bool,
    queries: tuple[SDQQuery, ...],
    issuing: Issuing | None = None,
) -> StudyRecord:
    """Return the record that `publish` stores; raise its errors for a study that it rejects."""
    manifest = handle.manifest
    check_servable(handle, issuing)
    if by_invitation and manifest.roster:
        raise UsageError(
            "USAGE-001",
            "A study with a roster cannot have invitations.",
            why="Its roster lists everyone who takes part.",
            fix="Remove --invite, or publish the study without a roster.",
        )
    schedule = manifest.schedule
    if schedule is not None:
        _check_schedule(handle, schedule, now)
    record = StudyRecord(
        handle.digest.hex(),
        manifest.to_bytes(),
        now if schedule is None else schedule.opens,
        compute_phase_timeout(handle, now, phase_timeout) if schedule is None else schedule.window,
        by_invitation,
        handle.seat_names,
        encode_queries(queries) if queries else b"",
        scope=compute_scope(manifest) if handle.has_tokens else None,
    )
    # A study without a price, or with an aggregator that cannot be made, is rejected now.
    _ = handle.plan
    handle.make_aggregator(make_hosting(record))
    return record


def check_servable(handle: StudyHandle, issuing: Issuing | None = None) -> None:
    """Raise ``HOST-003`` for a study that a coordinator with these keys cannot serve."""
    manifest, study = handle.manifest, handle.study
    _check_keys(manifest, issuing)
    check_delivery(manifest)
    if handle.protocol.needs_roster(study) and not manifest.roster:
        raise SpecError(
            "HOST-003",
            f"A study of {study.protocol} with trust {study.trust} cannot be served without a "
            "roster.",
            why="Its members verify each other's signatures, so each must know the keys of all.",
            fix="Give the names and keys of all members: --roster FILE",
        )


def _check_schedule(handle: StudyHandle, schedule: Schedule, now: int) -> None:
    """Raise ``HOST-003`` if nobody can join any more, or phases end after the study closes."""
    last = schedule.get_window((handle.protocol.count_phases(handle) or 1) - 1)
    if from_milliseconds(now) >= last.joins_until:
        raise SpecError(
            "HOST-003",
            f"By the study's schedule nobody can join after {last.joins_until:%Y-%m-%d %H:%M} UTC.",
            fix="Publish the study with a later schedule.",
        )
    closes = handle.study.participation.closes
    if closes is not None and last.closes > closes:
        raise SpecError(
            "HOST-003",
            f"By its schedule the study ends at {last.closes:%Y-%m-%d %H:%M} UTC, after it closes "
            f"at {closes:%Y-%m-%d %H:%M} UTC.",
            fix="Shorten the schedule's window, or set closes to a later time.",
        )


def _check_keys(manifest: Manifest, issuing: Issuing | None) -> None:
    own_keys = ("", "") if issuing is None else (issuing.issuer_key, issuing.gateway_key)
    for kind, key, own_key in zip(
        ("issuer", "gateway"), (manifest.issuer_key, manifest.gateway_key), own_keys, strict=True
    ):
        if key is not None and key.hex() != own_key:
            raise SpecError(
                "HOST-003",
                f"The manifest's {kind} key is not this coordinator's.",
                why="With another key it can neither sign credentials nor open sealed packets.",
                fix="Copy both keys from GET /v1/issuing of this coordinator.",
            )


def compute_phase_timeout(handle: StudyHandle, now: int, requested: int | None = None) -> int:
    """Return the timeout of a phase or step, in milliseconds.

    It is the requested one; otherwise an equal share of the time until the study closes, if the
    number of phases is known; otherwise a day. All phases together end before the study closes.

    Raises
    ------
    SpecError
        ``HOST-003``: the study has closed.
    UsageError
        ``USAGE-001``: the requested timeout is out of range.
    """
    if requested is not None and not 0 < requested <= MOST_PHASE_TIMEOUT:
        raise UsageError(
            "USAGE-001",
            f"A phase cannot last {requested / 1000:g} s.",
            fix="Give a positive number of seconds, at most a year.",
        )
    closes = handle.study.participation.closes
    if closes is None:
        return requested or DAY_MILLISECONDS
    left = to_milliseconds(closes) - now
    if left <= 0:
        raise SpecError(
            "HOST-003",
            "The study closed before it was published.",
            fix="Set closes to a later time.",
        )
    n_phases = handle.protocol.count_phases(handle)
    share = max(1, min(left // (n_phases or 1), MOST_PHASE_TIMEOUT))
    return min(share, requested or (DAY_MILLISECONDS if n_phases is None else share))


def describe_end(handle: StudyHandle, record: StudyRecord) -> str:
    """Return when and how an open study ends, as the rest of a sentence after "ends"."""
    protocol, participation = handle.protocol, handle.study.participation
    timeout, names = format_duration(record.phase_timeout), handle.participant_names
    needs = f"it fails with fewer than {protocol.count_required(handle):,}"
    last = (
        f"after {timeout}, at "
        f"{from_milliseconds(record.opened + record.phase_timeout):%Y-%m-%d %H:%M} UTC"
    )
    n_updates = protocol.count_expected_updates(handle)
    if n_updates is not None:
        return f"with {n_updates:,} updates, or {last}; {needs}"
    n_phases = protocol.count_phases(handle)
    answered = f"when all {len(names) or participation.size:,} have answered"
    if n_phases == 1:
        return f"{answered}, or {last}; {needs}"
    steps = "its steps" if n_phases is None else f"{n_phases} phases"
    closes = participation.closes
    latest = "" if closes is None else f", or when it closes, at {closes:%Y-%m-%d %H:%M} UTC"
    # With tokens the coordinator cannot know which members have answered in a phase.
    early = "" if handle.has_tokens else f"{answered} or "
    return f"after {steps}, each {early}after {timeout}{latest}; {needs}"


def format_duration(milliseconds: int) -> str:
    """Return a time span for people.

    Examples
    --------
    >>> [format_duration(n) for n in (1, 2_500, 90_000, 86_400_000, 6_646_153)]
    ['0.001 s', '2.5 s', '1.5 minutes', '1 day', '1.85 hours']
    """
    for unit, size in _UNITS.items():
        if milliseconds >= size:
            n = f"{milliseconds / size:.3g}"
            return f"{n} {unit}{'' if n == '1' else 's'}"
    return f"{milliseconds / 1000:.3g} s"


def _format_key(secret: bytes) -> str:
    text = secret.hex()
    return "-".join(text[i : i + 8] for i in range(0, len(text), 8))
