"""A real relay in front of a real coordinator, killed at each step of a packet's delivery.

No packet is lost, and none counts twice.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from shoal.coordinator.store import open_store
from shoal.crypto.credentials.issuance import Credential, Registration
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.relay.spool import Spool
from shoal.study.delivery import compute_scope
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter
from shoal.transport.api import (
    JSON,
    OHTTP_REQUEST,
    PACKETS,
    RELAYING,
    Enrolled,
    Enrolment,
    RelayedStudies,
    SignedManifest,
    from_cbor,
    from_json,
    study_route,
    to_json,
)
from shoal.transport.packets import seal_packet
from shoal.transport.signing import sign_request
from tests.e2e.children import PATIENCE, Coordinator, Process
from tests.support.relay import make_packet
from tests.support.servers import free_port

N = 8
SECONDS = 1_000


class Relay(Process):
    """``shoal relay`` with the clock of its coordinator."""

    def __init__(self, coordinator: Coordinator, port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        command = [
            "shoal",
            "relay",
            "--to",
            coordinator.url,
            "--port",
            str(port),
            "--json",
            "--spool",
            "relay.db",
        ]
        super().__init__("relay", command, coordinator.folder, coordinator.events)
        self.url, self._clock = url, coordinator.clock

    def begin(self, *altered: str) -> None:
        """Start the relay with faults, and wait until it listens or has ended."""
        self.start(self._clock.word, *altered)
        wait_for(lambda: self.output.startswith("{") or not self.is_alive)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def enrol(http: httpx2.Client, manifest: Manifest) -> Credential:
    """Enrol a new person and return the credential."""
    entropy, scope, key = SystemEntropy(), compute_scope(manifest), manifest.issuer_key
    assert key is not None
    identity, registration = Identity.from_seed(entropy.bytes(32)), Registration.draw(entropy)
    body = to_json(Enrolment(commitment=registration.make_commitment(key, scope).hex()))
    target = study_route(manifest.digest.hex(), "enrolments")
    header = sign_request(identity, "POST", target, body, round(1000 * time.time()), entropy)
    found = http.post(target, content=body, headers={"authorization": header, "content-type": JSON})
    issued = from_json(found.content, Enrolled).issued
    assert issued is not None
    return registration.accept(key, scope, bytes.fromhex(issued))


def post(relay: Relay, study: str, sealed: bytes) -> bool:
    """Post a packet; return True if the relay acknowledged it."""
    try:
        found = httpx2.post(
            f"{relay.url}{PACKETS}/{study}",
            content=sealed,
            headers={"content-type": OHTTP_REQUEST},
            trust_env=False,
            timeout=PATIENCE,
        )
    except httpx2.TransportError:
        return False
    assert found.status_code == 202, found.text
    return True


def test_relay_killed_at_each_step_loses_no_packet(tmp_path: Path) -> None:
    text = (
        read_starter("anonml")
        .replace("minimum = 2000", "minimum = 5")
        .replace("size = 20000", "size = 1000")
    )
    (tmp_path / "study.toml").write_text(text)
    port = free_port()
    serve = [
        "shoal",
        "serve",
        "study.toml",
        "--store",
        "sqlite:coordinator.db",
        "--json",
        "--port",
        str(free_port()),
    ]
    serve += ["--patience", str(SECONDS), "--relay", f"http://127.0.0.1:{port}"]
    coordinator = Coordinator("coordinator", serve, tmp_path, queue.SimpleQueue())
    coordinator.start()
    relay = Relay(coordinator, port)
    try:
        digest = coordinator.notice["studies"][0]["digest"]
        with httpx2.Client(base_url=coordinator.url, trust_env=False, timeout=PATIENCE) as http:
            manifest = Manifest.from_bytes(
                from_cbor(
                    http.get(study_route(digest, "manifest")).content, SignedManifest
                ).manifest
            )
            packets = [make_packet(manifest, enrol(http, manifest)) for _ in range(N)]
        assert manifest.gateway_key is not None
        sealed = [seal_packet(manifest.gateway_key, digest, packet) for packet in packets]

        # The third packet is on the disk when the relay dies. Its sender has no response and sends
        # the same bytes again.
        relay.begin("die=packets stored:3")
        assert set(
            from_json(
                httpx2.get(relay.url + RELAYING, trust_env=False, timeout=PATIENCE).content,
                RelayedStudies,
            ).studies
        ) == {digest}
        assert [post(relay, digest, one) for one in sealed[:3]] == [True, True, False]
        assert relay.wait() == -signal.SIGKILL
        relay.begin("die=batch made:1")
        assert all(post(relay, digest, one) for one in sealed[2:])

        # The relay dies after it has made the batch, after it has sent it, and after it has
        # deleted a part.
        coordinator.clock.put(0.7 * SECONDS + 30)
        for step in ("batch sent", "part dropped"):
            assert relay.wait() == -signal.SIGKILL, relay.output
            relay.begin(f"die={step}:1")
        assert relay.wait() == -signal.SIGKILL, relay.output
        relay.begin()
        with open_store(f"sqlite:{tmp_path / 'coordinator.db'}") as store:
            assert store.count_totals(digest).accepted == N
        # A packet that was posted again waits, since it is alone.
        assert post(relay, digest, sealed[0])
        assert relay.end(signal.SIGTERM) == 0, relay.output
        with Spool(tmp_path / "relay.db", SystemEntropy()) as spool:
            assert (spool.count_waiting(digest, 0), spool.list_parts(digest)) == (1, ())
        assert coordinator.end(signal.SIGTERM) == 0
        with open_store(f"sqlite:{tmp_path / 'coordinator.db'}") as store:
            totals = store.count_totals(digest)
            assert (totals.enrolled, totals.accepted, totals.refused) == (N, N, {})
        # Neither process has printed the address of a sender.
        for said in (relay.output, coordinator.output):
            assert "127.0.0.1" not in said.partition("\n")[2]
    finally:
        relay.clear()
        coordinator.clear()
