"""A real relay before a real coordinator: killed at each step of a packet's way, it loses nothing, and nothing counts twice."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from e2e.children import PATIENCE, Coordinator, Process
from relay_cases import packet_of
from servers import free_port
from shoal.coordinator.store.opening import open_store
from shoal.crypto.credentials import Credential, Registration
from shoal.crypto.roster import Identity
from shoal.entropy import SystemEntropy
from shoal.relay.spool import Spool
from shoal.study.anonymity import scope_of
from shoal.study.manifest import Manifest
from shoal.study.templates import study_text
from shoal.transport.forms import Enrolled, Enrolment, Published, Relaying, from_cbor, from_json, to_json
from shoal.transport.routes import JSON, PACKETS, RELAYING, SEALED, study_route
from shoal.transport.sealing import seal_packet
from shoal.transport.signing import sign

N = 8
SECONDS = 1_000


class Relay(Process):
    """``shoal relay``, by the coordinator's clock."""

    def __init__(self, coordinator: Coordinator, port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        command = ["shoal", "relay", "--to", coordinator.url, "--port", str(port), "--json", "--spool", "relay.db"]
        super().__init__("relay", command, coordinator.folder, coordinator.heard)
        self.url, self._clock = url, coordinator.clock

    def begin(self, *altered: str) -> None:
        """Start it, and wait until it listens; it may be meant to die soon after."""
        self.start(self._clock.word, *altered)
        wait_for(lambda: self.said.startswith("{") or not self.is_alive)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def enrolled(http: httpx2.Client, manifest: Manifest) -> Credential:
    """Somebody new who takes part, as the coordinator lets everyone in."""
    entropy, scope, key = SystemEntropy(), scope_of(manifest), manifest.issuer_key
    assert key is not None
    identity, registration = Identity.from_seed(entropy.bytes(32)), Registration.draw(entropy)
    body = to_json(Enrolment(commitment=registration.commitment(key, scope).hex()))
    target = study_route(manifest.digest.hex(), "enrolments")
    header = sign(identity, "POST", target, body, round(1000 * time.time()), entropy)
    found = http.post(target, content=body, headers={"authorization": header, "content-type": JSON})
    issued = from_json(found.content, Enrolled).issued
    assert issued is not None
    return registration.accept(key, scope, bytes.fromhex(issued))


def post(relay: Relay, study: str, sealed: bytes) -> bool:
    """Whether a relay has acknowledged a packet."""
    try:
        found = httpx2.post(
            f"{relay.url}{PACKETS}/{study}", content=sealed, headers={"content-type": SEALED}, trust_env=False, timeout=PATIENCE
        )
    except httpx2.TransportError:
        return False
    assert found.status_code == 202, found.text
    return True


def test_a_relay_is_killed_at_each_step(tmp_path: Path) -> None:
    text = study_text("anonml").replace("minimum = 2000", "minimum = 5").replace("size = 20000", "size = 1000")
    (tmp_path / "study.toml").write_text(text)
    port = free_port()
    serve = ["shoal", "serve", "study.toml", "--store", "sqlite:coordinator.db", "--json", "--port", str(free_port())]
    serve += ["--patience", str(SECONDS), "--relay", f"http://127.0.0.1:{port}"]
    coordinator = Coordinator("coordinator", serve, tmp_path, queue.SimpleQueue())
    coordinator.start()
    relay = Relay(coordinator, port)
    try:
        digest = coordinator.notice["studies"][0]["digest"]
        with httpx2.Client(base_url=coordinator.url, trust_env=False, timeout=PATIENCE) as http:
            manifest = Manifest.from_bytes(from_cbor(http.get(study_route(digest, "manifest")).content, Published).manifest)
            packets = [packet_of(manifest, enrolled(http, manifest)) for _ in range(N)]
        assert manifest.gateway_key is not None
        sealed = [seal_packet(manifest.gateway_key, digest, packet) for packet in packets]

        # The third packet is on the disk when the relay dies; its sender does not know, and sends the same again.
        relay.begin("die=kept:3")
        assert set(from_json(httpx2.get(relay.url + RELAYING, trust_env=False, timeout=PATIENCE).content, Relaying).studies) == {digest}
        assert [post(relay, digest, one) for one in sealed[:3]] == [True, True, False]
        assert relay.wait() == -signal.SIGKILL
        relay.begin("die=parted:1")
        assert all(post(relay, digest, one) for one in sealed[2:])

        # What is to leave is noted, and it dies; it has left, and it dies; it is deleted, and it dies.
        coordinator.clock.put(0.7 * SECONDS + 30)
        for step in ("handed over", "cleared"):
            assert relay.wait() == -signal.SIGKILL, relay.said
            relay.begin(f"die={step}:1")
        assert relay.wait() == -signal.SIGKILL, relay.said
        relay.begin()
        with open_store(f"sqlite:{tmp_path / 'coordinator.db'}") as store:
            assert store.totals(digest).accepted == N
        # One that was not in the first batch waits, since it is alone.
        assert post(relay, digest, sealed[0])
        assert relay.end(signal.SIGTERM) == 0, relay.said
        with Spool(tmp_path / "relay.db", SystemEntropy()) as spool:
            assert (spool.n_waiting(digest, 0), spool.parts(digest)) == (1, ())
        assert coordinator.end(signal.SIGTERM) == 0
        with open_store(f"sqlite:{tmp_path / 'coordinator.db'}") as store:
            totals = store.totals(digest)
            assert (totals.enrolled, totals.accepted, totals.refused) == (N, N, {})
        # Neither process has written down who sent anything.
        for said in (relay.said, coordinator.said):
            assert "127.0.0.1" not in said.partition("\n")[2]
    finally:
        relay.clear()
        coordinator.clear()
