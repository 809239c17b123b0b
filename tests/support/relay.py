"""A relay in front of a coordinator in one event loop, with a real store, tokens, fixed clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from shoal.clock import ManualClock, to_milliseconds
from shoal.coordinator.app import make_app as coordinator_app
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.publishing import load_or_create_secrets
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import Store
from shoal.crypto.credentials.issuance import Credential, Registration
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.messages import codec
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.relay.app import RelayHandlers, make_app
from shoal.relay.batches import BatchReleaser
from shoal.relay.client import CoordinatorClient
from shoal.relay.spool import Spool
from shoal.relay.studies import StudyTracker, TrackedStudy
from shoal.study.anonml import build_script
from shoal.study.delivery import TokenSlots, compute_scope
from shoal.study.manifest import Manifest
from shoal.study.schedule import Schedule
from shoal.transport.api import OHTTP_REQUEST, PACKETS
from shoal.transport.packets import Packet, seal_packet
from tests.support.coordinator import publish_manifest
from tests.support.participants import compute_packet_size, make_study

TO, RELAY = "http://127.0.0.1:8700", "http://127.0.0.1:8701"
PATIENCE = 1_000
"""Seconds that a phase is open: it collects for 800, and has been sent again after 900."""


def token_manifest(keys: CoordinatorKeys, n: int = 3, **more: Any) -> Manifest:
    """Return a study of AnonML for n people, with tokens and a relay."""
    return Manifest(
        make_study("anonml", n, **more),
        keys.issuer.key,
        keys.gateway_key,
        relay=RELAY,
        schedule=Schedule(to_milliseconds(ManualClock().now()), 1000 * PATIENCE),
    )


def member(keys: CoordinatorKeys, manifest: Manifest, i: int) -> Credential:
    """Return a credential that is valid in a study."""
    entropy = SeededEntropy(f"member {i}")
    registration, scope = Registration.draw(entropy), compute_scope(manifest)
    issued = keys.issuer.issue(
        scope, registration.make_commitment(keys.issuer.key, scope), 0, entropy
    )
    return registration.accept(keys.issuer.key, scope, issued)


def make_packet(
    manifest: Manifest, credential: Credential, phase: int = 0, report: bytes = b"\x00"
) -> bytes:
    """Return a packet with an answer to the assigned question of a phase."""
    slots, script = TokenSlots(manifest), build_script(manifest.study, manifest.digest)
    for question in range(len(script.questions(phase, script.publish(())))):
        context = slots.encode_context(slots.find_question_slot(phase, question))
        ticket = slots.compute_ticket(credential.compute_pseudonym(context), credential.partition)
        if question in script.list_question_numbers(
            phase, int(script.assign_groups(phase, ticket_words(manifest.digest, ticket))[0])
        ):
            answer = codec.encode(
                AnonMLAnswer(
                    study=manifest.digest,
                    ticket=ticket,
                    phase=phase,
                    question=question,
                    report=report,
                )
            )
            token = credential.mint(context, answer, SeededEntropy("mint"))
            return Packet(token, credential.partition, answer).to_bytes(
                compute_packet_size(manifest)
            )
    raise AssertionError("nothing is asked")


@dataclass
class Scene:
    """A relay, its coordinator, and what tests do to them."""

    service: CoordinatorService
    store: Store
    manifest: Manifest
    clock: ManualClock
    remote: CoordinatorClient
    spool: Spool
    following: StudyTracker
    releasing: BatchReleaser
    coordinator: httpx2.AsyncClient
    http: httpx2.AsyncClient
    app: Any
    wire: Wire
    told: list[str]

    @property
    def digest(self) -> str:
        return self.manifest.digest.hex()

    @property
    def followed(self) -> TrackedStudy:
        return self.following.studies[self.digest]

    def sealed(self, i: int, **options: Any) -> bytes:
        """Return a sealed packet of a member."""
        assert self.manifest.gateway_key is not None
        packet = make_packet(self.manifest, member(self.service.keys, self.manifest, i), **options)
        return seal_packet(self.manifest.gateway_key, self.digest, packet)

    async def post(
        self, sealed: bytes, study: str | None = None, kind: str = OHTTP_REQUEST
    ) -> httpx2.Response:
        return await self.http.post(
            f"{PACKETS}/{study or self.digest}", content=sealed, headers={"content-type": kind}
        )

    async def totals(self) -> tuple[int, dict[str, int]]:
        """Return the accepted packets and the rejections of the coordinator."""
        await self.service.get_progress(self.digest)
        found = self.store.count_totals(self.digest)
        return found.accepted, dict(found.refused)

    async def until(self, seconds: float) -> None:
        """Set the clock to some seconds after the phase was opened, and run what is due."""
        phases = self.spool.list_phases(self.digest)
        opened = max(
            phase.window.opened for phase in phases if phase.window.opened <= self.clock.now()
        )
        self.clock.advance(seconds - (self.clock.now() - opened).total_seconds())
        await self.step()

    async def step(self) -> None:
        await self.following.poll()
        await self.releasing.run_due()


class Wire(httpx2.AsyncBaseTransport):
    """The connection from relay to coordinator: recorded, and cut or replaced by tests."""

    def __init__(self, app: Any) -> None:
        self._inner = httpx2.ASGITransport(app=app)
        self.requests: list[httpx2.Request] = []
        self.is_cut = False
        self.loses_answers = False
        self.says: tuple[int, bytes] | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.is_cut:
            raise httpx2.ConnectError("cut")
        self.requests.append(request)
        if self.says is not None and request.url.path.endswith("/batches"):
            return httpx2.Response(self.says[0], stream=httpx2.ByteStream(self.says[1]))
        response = await self._inner.handle_async_request(request)
        if self.loses_answers:
            raise httpx2.ReadError("lost")
        return response

    def batches(self) -> list[tuple[bytes, ...]]:
        """Return the packets of each batch that was sent."""
        sent = [one for one in self.requests if one.url.path.endswith("/batches")]
        return [codec.loads(one.content)["packets"] for one in sent]  # type: ignore[index,call-overload,misc]


@asynccontextmanager
async def scene(
    folder: Path, n: int = 3, *, has_looked: bool = True, sees_senders: bool = True, **more: Any
) -> AsyncIterator[Scene]:
    """Yield a coordinator with one study in its first phase, and a relay that tracks it."""
    url, clock = f"sqlite:{folder / 'store.db'}", ManualClock()
    with open_store(url) as store, open_instance_store(None, url) as models:
        secrets, _ = load_or_create_secrets(store, SystemEntropy())
        keys = CoordinatorKeys(secrets.signing_seed)
        manifest = token_manifest(keys, n, **more)
        publish_manifest(
            store,
            manifest,
            int(clock.now().timestamp() * 1000),
            phase_timeout=1000 * PATIENCE,
            issuing=keys.public_keys,
        )
        service = CoordinatorService(store, models, clock, SystemEntropy(), "the only worker")
        await service.start()
        try:
            await service.mailbox.fetch(manifest.digest.hex(), None, 0, 10)
            wire = Wire(coordinator_app(service))
            with (
                Spool(folder / "relay.db", SystemEntropy()) as spool,
                ThreadPoolExecutor(1) as executor,
            ):
                told: list[str] = []
                remote = CoordinatorClient(TO, transport=wire)
                following = StudyTracker(remote, spool, clock, told.append)
                app = make_app(
                    RelayHandlers(
                        following, remote, spool, clock, executor, sees_senders=sees_senders
                    )
                )
                http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=RELAY)
                straight = httpx2.AsyncClient(
                    transport=httpx2.ASGITransport(app=wire._inner.app), base_url=TO
                )
                releasing = BatchReleaser(following, remote, spool, clock)
                if has_looked:
                    await following.poll()
                async with http, straight:
                    yield Scene(
                        service,
                        store,
                        manifest,
                        clock,
                        remote,
                        spool,
                        following,
                        releasing,
                        straight,
                        http,
                        app,
                        wire,
                        told,
                    )
        finally:
            await service.stop()
