"""Credential issuance and coordinator keys.

The enrolment routes call `Registrar`; `shoal serve` and the service read `CoordinatorKeys`.

Each person gets one credential for each scope, in a partition that the issuer draws. Registering
again returns the stored credential: the issuer never signs two commitments of one person.

A signature takes milliseconds, so everything that can reject a request is checked before. A change
must keep this, and that a request which was rejected costs no more than a look in memory when it
comes again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from shoal.clock import Clock
from shoal.coordinator.authentication import compute_nonce_expiry, replayed_request_error
from shoal.coordinator.cache import LRUCache
from shoal.coordinator.publishing import hash_key, hash_ticket
from shoal.coordinator.store.base import NewEnrolment, NewRegistration, Store, StudyRecord
from shoal.coordinator.studies import StudyView
from shoal.crypto.secagg.key_agreement import derive_key, derive_public_key
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.study.delivery import TokenSlots, compute_max_members, compute_scope
from shoal.study.manifest import Manifest
from shoal.transport.api import Enrolled, Enrolment, Issuing

if TYPE_CHECKING:
    from shoal.crypto.credentials.issuance import Issuer

T = TypeVar("T")

_MOST_NONCES, _MOST_SIZES = 1 << 16, 1_024
_ISSUER, _GATEWAY = b"shoal issuer 1", b"shoal gateway 1"


class CoordinatorKeys:
    """The secret keys of a coordinator, all derived from the seed that the store keeps.

    The issuer's key is derived at the first use, because it needs an optional extra.
    """

    def __init__(self, signing_seed: bytes) -> None:
        self._seed = signing_seed

    @cached_property
    def issuer(self) -> Issuer:
        """The signer of credentials; ``USAGE-002`` if the extra ``anonymous`` is not installed."""
        from shoal.crypto.credentials.issuance import Issuer

        return Issuer.from_seed(derive_key(self._seed, _ISSUER))

    @cached_property
    def gateway_secret(self) -> bytes:
        """The secret X25519 key that opens sealed requests and packets, 32 bytes."""
        return derive_key(self._seed, _GATEWAY)

    @cached_property
    def gateway_key(self) -> bytes:
        """The public key of the gateway, 32 bytes."""
        return derive_public_key(self.gateway_secret)

    @cached_property
    def public_keys(self) -> Issuing:
        """Both public keys, as they are published."""
        return Issuing(issuer_key=self.issuer.key.hex(), gateway_key=self.gateway_key.hex())


class Registrar:
    """Enrol participants, in one worker.

    Parameters
    ----------
    entropy
        Source of partitions and signatures.
    executor, token_executor
        Threads for calls of the store, and for checking and signing commitments.
    wake
        Called if an enrolment changes how many answers are expected.
    """

    def __init__(
        self,
        store: Store,
        keys: CoordinatorKeys,
        clock: Clock,
        entropy: Entropy,
        executor: Executor,
        token_executor: Executor,
        wake: Callable[[], None],
    ) -> None:
        self._store, self._keys, self._clock, self._entropy = store, keys, clock, entropy
        self._executor, self._token_executor, self._wake = executor, token_executor, wake
        self._used_nonces: LRUCache[tuple[str, bytes], bool] = LRUCache(_MOST_NONCES)
        self._sizes: LRUCache[str, int] = LRUCache(_MOST_SIZES)

    async def enrol(self, view: StudyView, key: bytes, form: Enrolment, nonce: bytes) -> Enrolled:
        """Enrol a key; enrolling it again returns the same name.

        Raises
        ------
        RemoteProtocolError
            ``ENROL-001``: the key has no invitation or is not on the roster, or the study is full
            or has ended. ``ENROL-002``: it has enrolled with another ticket or commitment, or
            another key has this one. ``MSG-005``: the ticket or commitment is missing.
            ``TOKEN-002``: the commitment is invalid. ``AUTH-005``: the request was received before.
        """
        # The store has the nonces of requests that reached it. These are of requests that are in
        # progress, or were rejected earlier.
        name = view.record.digest, nonce
        if self._used_nonces.get(name):
            raise replayed_request_error()
        self._used_nonces.put(name, True)
        try:
            return await self._enrol(view, key, form, nonce)
        except RemoteProtocolError:
            raise
        except BaseException:
            # The client resends a request that was neither accepted nor rejected.
            self._used_nonces.drop(name)
            raise

    async def _enrol(self, view: StudyView, key: bytes, form: Enrolment, nonce: bytes) -> Enrolled:
        closes = view.manifest.study.participation.closes
        if closes is not None and self._clock.now() >= closes:
            raise RemoteProtocolError(
                "ENROL-001", f"The study closed on {closes:%Y-%m-%d at %H:%M} UTC."
            )
        if view.manifest.schedule is not None:
            _refuse_if_too_late(view, self._clock.now())
        roster_name = _find_roster_name(view.manifest, key)
        invitation = None if form.invitation is None else hash_key(form.invitation)
        expires = compute_nonce_expiry(self._clock)
        if view.slots is not None:
            commitment = parse_commitment(form.commitment)
            registration = NewRegistration(
                key,
                hashlib.sha256(commitment).digest(),
                invitation=invitation,
                nonce=nonce,
                expires=expires,
                capacity=await self._call(self._compute_capacity, view),
            )
            issued = await self._find_or_issue(view.manifest, view.slots, registration, commitment)
            # If another request with this commitment was faster, the store returns its signature.
            name, kept = await self._call(
                self._store.register, view.record.digest, replace(registration, issued=issued)
            )
            return Enrolled(name=name, issued=kept.hex())
        ticket: bytes | None = None
        answers: tuple[int, ...] = ()
        if view.handle.has_tickets:
            if form.ticket is None:
                raise RemoteProtocolError(
                    "MSG-005", "The enrolment has no ticket, and this study needs one."
                )
            ticket = hash_ticket(bytes.fromhex(form.ticket))
            answers = await self._call(view.handle.count_answers, bytes.fromhex(form.ticket))
        enrolment = NewEnrolment(key, roster_name, ticket, invitation, nonce, expires, answers)
        name = await self._call(self._store.enrol, view.record.digest, enrolment)
        if answers:
            self._wake()
        names = view.handle.participant_names
        return Enrolled(name=name, position=names.index(name) if name in names else None)

    async def get_name(self, digest: str, key: bytes) -> str:
        """Return the name of an enrolled participant; raise ``ENROL-001`` for any other key."""
        name = await self._call(self._store.find_name, digest, key)
        if name is None:
            raise RemoteProtocolError(
                "ENROL-001", "This key is not enrolled in the study.", fix="Enrol first."
            )
        return name

    async def leave(self, digest: str, key: bytes, nonce: bytes) -> None:
        """Delete an enrolment; raise ``AUTH-005`` if the request was received before."""
        expires = compute_nonce_expiry(self._clock)
        if not await self._call(self._store.leave, digest, key, nonce, expires):
            raise replayed_request_error()

    def _compute_capacity(self, view: StudyView) -> int:
        """Return the most members of a study's scope: of all studies of an epoch together."""
        records = [view.record] if view.manifest.epoch is None else self._store.list_studies()
        return sum(
            compute_max_members(self._find_size(record))
            for record in records
            if record.scope == view.record.scope
        )

    def _find_size(self, record: StudyRecord) -> int:
        size = self._sizes.get(record.digest)
        if size is None:
            participation = Manifest.from_bytes(record.manifest).study.participation
            size = self._sizes.put(record.digest, max(participation.size, participation.minimum))
        return size

    async def _find_or_issue(
        self,
        manifest: Manifest,
        slots: TokenSlots,
        registration: NewRegistration,
        commitment: bytes,
    ) -> bytes:
        """Return the credential of this key and commitment; issue one if there is none."""
        issued = await self._call(
            self._store.check_registration, manifest.digest.hex(), registration
        )
        if issued is not None:
            return issued
        return await asyncio.get_running_loop().run_in_executor(
            self._token_executor,
            self._issue,
            compute_scope(manifest),
            slots.n_credential_partitions,
            commitment,
        )

    def _issue(self, scope: bytes, n_partitions: int, commitment: bytes) -> bytes:
        return self._keys.issuer.issue(
            scope, commitment, self._entropy.below(n_partitions), self._entropy
        )

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, function, *arguments
        )


def _refuse_if_too_late(view: StudyView, now: datetime) -> None:
    """Raise ``ENROL-001`` if no phase is left that a new member could answer in."""
    handle = view.handle
    last = handle.schedule.get_window((handle.protocol.count_phases(handle) or 1) - 1)
    if now >= last.joins_until:
        raise RemoteProtocolError(
            "ENROL-001",
            f"Registration ended on {last.joins_until:%Y-%m-%d at %H:%M:%S} UTC, by the study's "
            "schedule.",
            why="The packet of a later member would be known by its time.",
        )


def parse_commitment(text: str | None) -> bytes:
    """Return the commitment of an enrolment; raise ``MSG-005`` if it has none."""
    if text is None:
        raise RemoteProtocolError(
            "MSG-005", "The enrolment has no commitment, and this study needs one."
        )
    return bytes.fromhex(text)


def _find_roster_name(manifest: Manifest, key: bytes) -> str | None:
    """Return the roster's name for a key; None if the study has no roster."""
    if not manifest.roster:
        return None
    for member in manifest.roster:
        if member.key == key:
            return member.name
    raise RemoteProtocolError(
        "ENROL-001",
        "This key is not on the study's roster.",
        fix="Ask the analyst to publish a study with this key on its roster.",
    )
