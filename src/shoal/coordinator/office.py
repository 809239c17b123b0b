"""One worker's view on all studies: what each request comes to. HTTP is around it, the store below it, and nothing is kept in it.

Calls of the store run in threads; whoever waits for letters waits here, not in the store.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from shoal.clock import Clock
from shoal.coordinator.aggregators import answers_of, has_tickets, names_of
from shoal.coordinator.devices import Devices
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.intake import Intake
from shoal.coordinator.keys import Keys
from shoal.coordinator.letterbox import Letterbox, unknown
from shoal.coordinator.lists import Lists
from shoal.coordinator.models.base import ModelStore
from shoal.coordinator.packets import PacketIntake
from shoal.coordinator.publishing import first_start, key_digest, publish, ticket_digest
from shoal.coordinator.received import Arrivals
from shoal.coordinator.recent import Recent
from shoal.coordinator.refusals import Refusals
from shoal.coordinator.registering import Registrar, commitment_of
from shoal.coordinator.stepping import Stepper
from shoal.coordinator.store.base import Accepted, Ending, Hosted, Store, Totals
from shoal.crypto.roster import Identity
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, StoreError, UsageError
from shoal.study.anonymity import Slots, has_tokens
from shoal.study.manifest import Manifest
from shoal.transport.forms import MOST_IN_PAGE, Enrolled, Enrolment, Issuing, Letters, Members, Poll, Published, Taken, to_cbor
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import packet_size
from shoal.transport.problems import not_here
from shoal.transport.signing import FRESH_SECONDS, sign_published

T = TypeVar("T")

STOP_SECONDS = 5.0
ROUNDING = 10
"""Counts of people who are nameless are rounded down to multiples of this, so that nobody can watch them rise by one."""

_RECEIVED_MILLISECONDS = 1_000
"""How long a list of what was received is told again: everyone asks, and all at about the same time."""

_THREADS = 4
_MOST_STUDIES = 256
"""Of which something is kept in memory."""


@dataclass(frozen=True)
class Served:
    """A study as requests see it.

    Parameters
    ----------
    hosted, manifest
        As the store has it at present, and what it is about.
    published
        The manifest with the coordinator's signature, as it is sent.
    slots, packet_size
        Where packets are admitted by tokens: what these are for; and, for AnonML, the one size of the packets.
    """

    hosted: Hosted
    manifest: Manifest
    published: bytes
    slots: Slots | None = None
    packet_size: int | None = None

    @property
    def protocol(self) -> str:
        return self.manifest.study.protocol

    @property
    def admission(self) -> str | None:
        """For DDML, who may send an update."""
        settings = self.manifest.study.ddml
        return None if settings is None else settings.admission


def rounded(n: int) -> int:
    """A count of people as everyone may see it.

    Examples
    --------
    >>> rounded(9), rounded(27)
    (0, 20)
    """
    return n - n % ROUNDING


class Office:
    """The studies of a coordinator, in one of its workers.

    Parameters
    ----------
    store, models
        Where studies are, and where instances of DDML are; both remain their opener's to close.
    clock, entropy
        The time, and what aggregators draw from.
    holder
        The worker's name, unlike any other's.
    """

    identity: Identity
    keys: Keys
    gateway: Gateway

    def __init__(self, store: Store, models: ModelStore, clock: Clock, entropy: Entropy, holder: str) -> None:
        self.clock = clock
        self.devices = Devices(store, models, clock, entropy)
        self._store, self._entropy = store, entropy
        self._executor = ThreadPoolExecutor(_THREADS, "shoal-office")
        self._letterbox = Letterbox(store, self._executor)
        self._bells = self._letterbox.bells
        self._refusals = Refusals()
        self._stepper = Stepper(store, clock, entropy, holder, self._bells, self.devices.step, self._flush)
        self._intakes: Recent[str, Intake] = Recent(_MOST_STUDIES)
        # Tokens have a thread of their own: a flood of them keeps no call of the store waiting.
        self._verifying = ThreadPoolExecutor(1, "shoal-tokens")
        self._packet_intakes: Recent[str, PacketIntake] = Recent(_MOST_STUDIES)
        self._received = Lists(Arrivals(store, clock).tell, clock, self._executor, _RECEIVED_MILLISECONDS)
        # Whoever has just registered looks for its own key: nothing that was read before is told.
        self._members = Lists(self._tell_members, clock, self._executor)
        self._served: Recent[str, Served] = Recent(_MOST_STUDIES)
        self._analyst_digest = b""
        self._stepping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to step studies; `StoreError` where the store cannot be used."""
        secrets, _ = await self._call(first_start, self._store, self._entropy)
        self.identity, self._analyst_digest = Identity.from_seed(secrets.signing_seed), secrets.analyst_digest
        self.keys = Keys(secrets.signing_seed)
        self.gateway = Gateway.from_seed(self.keys.gateway, self._entropy)
        self._registrar = Registrar(self._store, self.keys, self._entropy, self._executor, self._verifying)
        self._stepping = asyncio.create_task(self._stepper.run())

    async def stop(self) -> None:
        """Let go of everything in good order, so that others can go on at once."""
        self.hang_up()
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.wait([self._stepping])
            self._stepping = None
        await self._stepper.finish(STOP_SECONDS)
        await self.devices.stop()
        with suppress(StoreError):
            await self._flush()
        self._verifying.shutdown()
        self._executor.shutdown()

    def hang_up(self) -> None:
        """Answer whoever waits for letters with what there is: the worker is about to stop."""
        self._bells.hang_up()

    async def is_ready(self) -> bool:
        """Whether studies are stepped and the store can be used."""
        try:
            await self._call(self._store.ping)
        except StoreError:
            return False
        return self._stepping is not None and not self._stepping.done()

    async def studies(self) -> tuple[Hosted, ...]:
        """All studies, in the order of their publication."""
        return await self._call(self._store.studies)

    async def study(self, digest: str) -> Served:
        """A study as it stands; ``HOST-001`` where there is none."""
        hosted = await self._call(self._store.study, digest)
        if hosted is None:
            raise unknown()
        served = self._served.get(digest)
        if served is None:
            served = self._served.put(digest, await self._call(self._read, hosted))
        # What is kept never changes; how it stands does, and at any worker.
        return replace(served, hosted=hosted)

    def is_analyst(self, key: str) -> bool:
        """Whether this is the analyst's key; how long the answer takes says nothing about it."""
        return hmac.compare_digest(key_digest(key), self._analyst_digest)

    async def publish(self, manifest: bytes, *, patience: int | None = None) -> Hosted:
        """Begin a study that the analyst sends; the same one again changes nothing. ``patience`` is in milliseconds."""
        hosted, _ = await self._call(self._publish, manifest, patience)
        self._stepper.wake()
        return hosted

    async def close_study(self, digest: str) -> None:
        """End a study without a result, as the analyst wishes; one that has ended stays as it is."""
        await self._call(self._store.end, digest, Ending("closed", reason="The analyst has closed the study."))
        await self.devices.see(digest)
        self._bells.ring(digest)

    async def enrol(self, digest: str, key: bytes, form: Enrolment, nonce: bytes) -> Enrolled:
        """Enrol a key; the same again gives the same name.

        Raises
        ------
        RemoteProtocolError
            ``ENROL-001``: it has no invitation, or no place on the roster, or the study is full or over. ``ENROL-002``: it has enrolled
            with another ticket or commitment. ``MSG-005``: one is needed. ``TOKEN-002``: the commitment is none. ``AUTH-005``: the
            request came before.
        """
        served = await self.study(digest)
        closes = served.manifest.study.participation.closes
        if closes is not None and self.clock.now() >= closes:
            raise RemoteProtocolError("ENROL-001", f"The study closed on {closes:%Y-%m-%d at %H:%M} UTC.")
        name = _name_on_roster(served.manifest, key)
        invitation = None if form.invitation is None else key_digest(form.invitation)
        if served.slots is not None:
            asked = (served.manifest, served.slots, key, commitment_of(form.commitment), invitation, nonce, self._expires())
            return await self._registrar.register(*asked)
        ticket: bytes | None = None
        answers: tuple[int, ...] = ()
        if has_tickets(served.manifest):
            if form.ticket is None:
                raise RemoteProtocolError("MSG-005", "Who enrols in this study gives a ticket, and this one did not.")
            ticket = ticket_digest(bytes.fromhex(form.ticket))
            answers = await self._call(answers_of, served.manifest, bytes.fromhex(form.ticket))
        name = await self._call(self._store.enrol, digest, key, name, ticket, invitation, nonce, self._expires(), answers)
        if answers:
            self._stepper.wake()
        names = names_of(served.manifest)
        return Enrolled(name=name, position=names.index(name) if name in names else None)

    async def name_of(self, digest: str, key: bytes) -> str:
        """The name of an enrolled participant; ``ENROL-001`` for anyone else."""
        name = await self._call(self._store.name_of, digest, key)
        if name is None:
            raise RemoteProtocolError("ENROL-001", "This key is not enrolled in the study.", fix="Enrol first.")
        return name

    async def leave(self, digest: str, key: bytes, nonce: bytes) -> None:
        """Forget an enrolment; ``AUTH-005`` where the request came before."""
        if not await self._call(self._store.leave, digest, key, nonce, self._expires()):
            raise _replayed()

    async def message(self, digest: str, name: str, payload: bytes, nonce: bytes) -> Accepted:
        """Accept a message of an enrolled participant; what became of it, once that is durable. See `Intake.message`."""
        return await (await self._intake(digest)).message(name, payload, nonce)

    async def submit(self, digest: str, payload: bytes) -> None:
        """Accept an anonymous message, or a packet, or count why not; the sender is told nothing.

        `StoreError` where nothing could be stored. Where packets are admitted by tokens ``payload`` is a packet, and else a message.
        """
        served = self._served.get(digest) or await self.study(digest)
        if served.packet_size is not None:
            await (await self._packet_intake(served)).submit(payload)
        else:
            await (await self._intake(digest)).submit(payload)

    async def batch(self, digest: str, packets: Sequence[bytes]) -> Taken:
        """Accept packets that a relay hands over, opened; what became of them, once that is durable. See `PacketIntake.batch`."""
        return await (await self._packet_intake(await self._with_packets(digest))).batch(packets)

    async def members(self, digest: str, after: bytes = b"") -> bytes:
        """Who has registered for credentials that count in a study: among them a sender hides. A page of `Members`, after a key."""
        served = await self.study(digest)
        if served.slots is None:
            raise not_here("Nothing in this study is admitted by tokens.")
        return await self._members.page(served.hosted, after)

    async def received(self, digest: str, after: bytes = b"") -> bytes:
        """What has arrived in a study, for its senders to find their own; ``HOST-002`` while packets are collected.

        A page of `Received`, after a name.
        """
        return await self._received.page((await self._with_packets(digest)).hosted, after)

    async def issuing(self) -> Issuing:
        """The keys that belong into manifests; ``HOST-001`` where nothing is installed that could issue tokens."""
        try:
            return await self._call(lambda: self.keys.issuing)
        except UsageError:
            raise not_here("This coordinator issues no tokens.") from None

    async def mailbox(self, digest: str, name: str, poll: Poll, nonce: bytes) -> Letters:
        """Letters to a participant and to everyone, as soon as there are any; those before are acknowledged, and its own forgotten.

        A study that has ended may have letters still: ask on until none come.
        """
        if not await self._call(self._store.acknowledge, digest, name, poll.after, nonce, self._expires()):
            raise _replayed()
        return await self._letterbox.fetch(digest, name, poll.after, poll.wait_seconds)

    async def board(self, digest: str, after: int, wait: float) -> Letters:
        """Letters to everyone, as soon as there are any."""
        return await self._letterbox.fetch(digest, None, after, wait)

    async def progress(self, digest: str) -> dict[str, Any]:
        """How a study stands, in totals."""
        served = await self.study(digest)
        with suppress(StoreError):
            await self._flush()
        totals = await self._totals(served)
        # Holders and databases are named in the letters anyway; people and devices are nobody's business.
        shown = int if names_of(served.manifest) else rounded
        return {
            "status": served.hosted.status,
            "reason": served.hosted.reason,
            "enrolled": shown(totals.enrolled),
            "accepted": shown(totals.accepted),
            "refused": {code: shown(n) for code, n in sorted(totals.refused.items()) if shown(n)},
        }

    async def model(self, digest: str) -> bytes:
        """What was learned, as JSON; ``HOST-002`` as long as nothing is, or where nothing was."""
        hosted = (await self.study(digest)).hosted
        if hosted.result is None:
            what = "The study has no model yet." if hosted.status == "open" else "The study has ended without a model."
            raise RemoteProtocolError("HOST-002", what, why=hosted.reason)
        return hosted.result

    async def totals(self) -> tuple[tuple[Served, Totals], ...]:
        """All studies with their counts."""
        with suppress(StoreError):
            await self._flush()
        studies = [await self.study(hosted.digest) for hosted in await self.studies()]
        return tuple([(served, await self._totals(served)) for served in studies])

    async def _totals(self, served: Served) -> Totals:
        """A study's counts; of DDML updates are accepted that were merged."""
        totals = await self._call(self._store.totals, served.hosted.digest)
        return replace(totals, accepted=await self.devices.n_merged(served.hosted.digest)) if served.protocol == "ddml" else totals

    def _read(self, hosted: Hosted) -> Served:
        manifest = Manifest.from_bytes(hosted.manifest)
        signature = sign_published(self.identity, manifest.digest)
        published = to_cbor(Published(manifest=hosted.manifest, key=self.identity.public, signature=signature))
        if not has_tokens(manifest):
            return Served(hosted, manifest, published)
        size = packet_size(manifest) if manifest.study.protocol == "anonml" else None
        return Served(hosted, manifest, published, Slots(manifest), size)

    def _publish(self, data: bytes, patience: int | None) -> tuple[Hosted, bool]:
        manifest = Manifest.from_bytes(data)
        issuing = None if manifest.issuer_key is None and manifest.gateway_key is None else self.keys.issuing
        return publish(self._store, manifest, milliseconds(self.clock.now()), patience=patience, issuing=issuing)

    def _tell_members(self, hosted: Hosted, after: bytes) -> bytes:
        return to_cbor(Members(joined=b"".join(self._store.members(hosted.digest, after, MOST_IN_PAGE))))

    async def _with_packets(self, digest: str) -> Served:
        served = await self.study(digest)
        if served.packet_size is None:
            raise not_here("No packets with tokens are sent in this study.")
        return served

    async def _packet_intake(self, served: Served) -> PacketIntake:
        digest = served.hosted.digest
        intake = self._packet_intakes.get(digest)
        if intake is None:
            make = partial(PacketIntake, self._store, served.manifest, self._executor, self._verifying, self._refusals, self._stepper.wake)
            made = await self._call(make)
            intake = self._packet_intakes.get(digest) or self._packet_intakes.put(digest, made)
        return intake

    async def _intake(self, digest: str) -> Intake:
        intake = self._intakes.get(digest)
        if intake is None:
            manifest = (await self.study(digest)).manifest
            made = Intake(self._store, manifest, self._executor, self._expires, self._refusals, self._stepper.wake)
            intake = self._intakes.get(digest) or self._intakes.put(digest, made)
        return intake

    async def _flush(self) -> None:
        await self._refusals.flush(self._store)

    def _expires(self) -> int:
        """A request may be signed ahead of time, and is fresh for as long after that."""
        return milliseconds(self.clock.now()) + 2 * 1000 * FRESH_SECONDS

    async def _call(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)


def _name_on_roster(manifest: Manifest, key: bytes) -> str | None:
    if not manifest.roster:
        return None
    for member in manifest.roster:
        if member.key == key:
            return member.name
    raise RemoteProtocolError("ENROL-001", "This key is not on the study's roster.", fix="Ask the analyst to publish a study with it.")


def _replayed() -> RemoteProtocolError:
    return RemoteProtocolError("AUTH-005", "This request came before.", fix="Sign it again.")
