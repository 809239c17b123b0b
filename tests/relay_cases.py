"""A relay before a whole coordinator, in one event loop: real office, real store, real tokens, a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from participants import study_of
from shoal.clock import ManualClock
from shoal.coordinator.app import make_app as coordinator_app
from shoal.coordinator.keys import Keys
from shoal.coordinator.models import open_models
from shoal.coordinator.office import Office
from shoal.coordinator.publishing import first_start, publish
from shoal.coordinator.store.base import Store
from shoal.coordinator.store.opening import open_store
from shoal.crypto.credentials import Credential, Registration
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.messages import codec
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import Answer
from shoal.relay.app import Desk, make_app
from shoal.relay.following import Followed, Following
from shoal.relay.releasing import Releasing
from shoal.relay.remote import Remote
from shoal.relay.spool import Spool
from shoal.study.anonml import script_of
from shoal.study.anonymity import Slots, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet, packet_size
from shoal.transport.routes import PACKETS, SEALED
from shoal.transport.sealing import seal_packet

TO, RELAY = "http://127.0.0.1:8700", "http://127.0.0.1:8701"
PATIENCE = 1_000
"""Seconds that a phase is open: it collects for 700, and has been sent again after 900."""


def token_manifest(keys: Keys, n: int = 3, **more: Any) -> Manifest:
    """A study of AnonML that needs n people, whose packets have tokens of this coordinator and come through a relay."""
    manifest = Manifest(study_of("anonml", n, **more))
    return replace(manifest, issuer_key=keys.issuer.key, gateway_key=keys.gateway_key, relay=RELAY)


def member(keys: Keys, manifest: Manifest, i: int) -> Credential:
    """Somebody with a credential that counts in a study."""
    entropy = SeededEntropy(f"member {i}")
    registration, scope = Registration.draw(entropy), scope_of(manifest)
    issued = keys.issuer.issue(scope, registration.commitment(keys.issuer.key, scope), 0, entropy)
    return registration.accept(keys.issuer.key, scope, issued)


def packet_of(manifest: Manifest, credential: Credential, phase: int = 0, report: bytes = b"\x00") -> bytes:
    """A packet with an answer to the question that is this person's own in a phase."""
    slots, script = Slots(manifest), script_of(manifest.study, manifest.digest)
    for question in range(len(script.questions(phase, script.publish(())))):
        context = slots.context(slots.of_question(phase, question))
        ticket = slots.ticket(credential.pseudonym(context), credential.place)
        if question in script.asked(phase, int(script.group_of(phase, words_of(manifest.digest, ticket))[0])):
            answer = codec.encode(Answer(study=manifest.digest, ticket=ticket, phase=phase, question=question, report=report))
            token = credential.mint(context, answer, SeededEntropy("mint"))
            return Packet(token, credential.place, answer).to_bytes(packet_size(manifest))
    raise AssertionError("nothing is asked")


@dataclass
class Scene:
    """What tests do to a relay, and what they look at afterwards."""

    office: Office
    store: Store
    manifest: Manifest
    clock: ManualClock
    remote: Remote
    spool: Spool
    following: Following
    releasing: Releasing
    coordinator: httpx2.AsyncClient
    http: httpx2.AsyncClient
    app: Any
    wire: Wire
    told: list[str]

    @property
    def digest(self) -> str:
        return self.manifest.digest.hex()

    @property
    def followed(self) -> Followed:
        return self.following.served[self.digest]

    def sealed(self, i: int, **options: Any) -> bytes:
        """A sealed packet of a member."""
        assert self.manifest.gateway_key is not None
        packet = packet_of(self.manifest, member(self.office.keys, self.manifest, i), **options)
        return seal_packet(self.manifest.gateway_key, self.digest, packet)

    async def post(self, sealed: bytes, study: str | None = None, kind: str = SEALED) -> httpx2.Response:
        return await self.http.post(f"{PACKETS}/{study or self.digest}", content=sealed, headers={"content-type": kind})

    async def totals(self) -> tuple[int, dict[str, int]]:
        """How many packets the coordinator has accepted, and what it has refused."""
        await self.office.progress(self.digest)
        found = self.store.totals(self.digest)
        return found.accepted, dict(found.refused)

    async def until(self, seconds: float) -> None:
        """Put the clock to so many seconds after the phase was opened, and do what is due."""
        opened = self.spool.phases(self.digest)[-1].window.opened
        self.clock.advance(seconds - (self.clock.now() - opened).total_seconds())
        await self.step()

    async def step(self) -> None:
        await self.following.look()
        await self.releasing.step()


class Wire(httpx2.AsyncBaseTransport):
    """The way from the relay to the coordinator, which can be cut, or answer batches itself, and by which all that passes is seen."""

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
        """The packets of each batch that was sent."""
        sent = [one for one in self.requests if one.url.path.endswith("/batches")]
        return [codec.loads(one.content)["packets"] for one in sent]  # type: ignore[index,call-overload,misc]


@asynccontextmanager
async def scene(folder: Path, n: int = 3, *, has_looked: bool = True, sees_senders: bool = True, **more: Any) -> AsyncIterator[Scene]:
    """A coordinator with one study, whose first phase is open, and a relay that has heard of it."""
    url, clock = f"sqlite:{folder / 'store.db'}", ManualClock()
    with open_store(url) as store, open_models(None, url) as models:
        secrets, _ = first_start(store, SystemEntropy())
        keys = Keys(secrets.signing_seed)
        manifest = token_manifest(keys, n, **more)
        publish(store, manifest, int(clock.now().timestamp() * 1000), patience=1000 * PATIENCE, issuing=keys.issuing)
        office = Office(store, models, clock, SystemEntropy(), "the only worker")
        await office.start()
        try:
            await office.board(manifest.digest.hex(), 0, 10)
            wire = Wire(coordinator_app(office))
            with Spool(folder / "relay.db", SystemEntropy()) as spool, ThreadPoolExecutor(1) as executor:
                told: list[str] = []
                remote = Remote(TO, transport=wire)
                following = Following(remote, spool, clock, told.append)
                app = make_app(Desk(following, remote, spool, clock, executor, sees_senders=sees_senders))
                http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=RELAY)
                straight = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=wire._inner.app), base_url=TO)
                releasing = Releasing(following, remote, spool, clock)
                if has_looked:
                    await following.look()
                async with http, straight:
                    yield Scene(office, store, manifest, clock, remote, spool, following, releasing, straight, http, app, wire, told)
        finally:
            await office.stop()
