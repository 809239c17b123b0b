"""Studies that a relay serves: verified manifests, and the first announced times."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.clock import ManualClock, to_milliseconds
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.messages import codec
from shoal.protocols.anonml.messages import AnonMLAsk
from shoal.relay.client import CoordinatorClient
from shoal.relay.spool import SealedPacket, Spool
from shoal.relay.studies import (
    LONG_INTERVAL,
    SHORT_INTERVAL,
    SPOOL_FACTOR,
    StudyTracker,
    make_tracked_study,
)
from shoal.study.anonml import build_script
from shoal.study.manifest import Manifest
from shoal.study.schedule import PhaseWindow, Schedule
from shoal.transport.api import MessagePage, QueuedMessage, SignedManifest, to_cbor
from shoal.transport.packets import compute_sealed_size
from shoal.transport.signing import sign_broadcast, sign_manifest
from tests.support.http import MANIFESTS
from tests.support.participants import compute_packet_size, make_manifest
from tests.support.relay import PATIENCE, TO, scene

IDENTITY = Identity.from_seed(bytes(range(32)))
KEYED = {"issuer_key": b"\x80" + bytes(95), "gateway_key": b"\x09" + bytes(31)}


class Told(httpx2.AsyncBaseTransport):
    """A coordinator that says what a test has it say."""

    def __init__(self, *manifests: Manifest) -> None:
        self.listed: Any = [
            {"digest": one.digest.hex(), "protocol": one.study.protocol, "status": "open"}
            for one in manifests
        ]
        self.published = {
            one.digest.hex(): (one.to_bytes(), IDENTITY, one.digest) for one in manifests
        }
        self.letters: list[bytes] = []
        self.status, self.signs = "open", True
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.url.path)
        *_, digest, what = request.url.path.split("/")
        if what == "studies":
            return _answer(json.dumps(self.listed).encode())
        if what == "manifest":
            data, identity, signed = self.published[digest]
            return _answer(
                to_cbor(
                    SignedManifest(
                        manifest=data,
                        key=identity.public_key,
                        signature=sign_manifest(identity, signed),
                    )
                )
            )
        after = int(request.url.params["after"])
        messages = tuple(
            QueuedMessage(
                number=i,
                payload=one,
                signature=sign_broadcast(IDENTITY, bytes.fromhex(digest), i, one)
                if self.signs
                else None,
            )
            for i, one in enumerate(self.letters, start=1)
            if i > after
        )
        return _answer(to_cbor(MessagePage(letters=messages, status=self.status)))  # type: ignore[arg-type]


def _answer(data: bytes) -> httpx2.Response:
    return httpx2.Response(200, stream=httpx2.ByteStream(data))


def with_tokens(n: int = 3, **more: Any) -> Manifest:
    schedule = Schedule(to_milliseconds(ManualClock().now()), 1000 * PATIENCE)
    return replace(make_manifest("anonml", n, **more), **KEYED, schedule=schedule)


def ask(manifest: Manifest, phase: int = 0, *, later: float = 0.0, **changes: Any) -> bytes:
    """Return the opening of a phase as scheduled, or with a window that closes later."""
    script = build_script(manifest.study, manifest.digest)
    assert manifest.schedule is not None
    window = manifest.schedule.get_window(phase)
    return codec.encode(
        AnonMLAsk(
            study=manifest.digest,
            phase=phase,
            publication=script.publish(()).replace(**changes),
            opened=window.opened,
            closes=window.closes + timedelta(seconds=later),
        )
    )


class World:
    def __init__(self, folder: Path, told: Told) -> None:
        self.clock, self.lines = ManualClock(), list[str]()
        self.spool = Spool(folder / "relay.db", SystemEntropy())
        self.following = StudyTracker(
            CoordinatorClient(TO, transport=told), self.spool, self.clock, self.lines.append
        )

    def look(self) -> set[str]:
        asyncio.run(self.following.poll())
        return set(self.following.studies)


@pytest.fixture
def world(tmp_path: Path) -> Callable[[Told], World]:
    return lambda told: World(tmp_path, told)


def test_tracker_serves_study_with_tokens_and_its_packet_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            study = s.followed
            assert (study.size, study.sealed_size) == (
                compute_packet_size(s.manifest),
                compute_sealed_size(compute_packet_size(s.manifest)),
            )
            assert study.max_packets == SPOOL_FACTOR * 20
            [phase] = study.phases
            assert phase.window == PhaseWindow(
                s.clock.now(), s.clock.now() + timedelta(seconds=PATIENCE)
            )
            assert s.told == []

    asyncio.run(main())


def test_tracker_ignores_studies_without_sealed_packets(world: Callable[[Told], World]) -> None:
    tickets, devices = MANIFESTS["anonml"], MANIFESTS["ddml"]
    told = Told(with_tokens(), tickets, devices, replace(with_tokens(4), gateway_key=None))
    w = world(told)
    assert w.look() == {with_tokens().digest.hex()}
    assert w.lines == [], "nothing is wrong with them"
    n = len(told.asked)
    w.look()
    assert not any(path.endswith("manifest") for path in told.asked[n:]), (
        "they are not asked for again"
    )


@pytest.mark.parametrize("fault", ["signature", "another study", "no manifest"])
def test_tracker_rejects_manifest_with_invalid_signature(
    world: Callable[[Told], World], fault: str
) -> None:
    good, bad = with_tokens(3), with_tokens(4)
    told, digest = Told(good, bad), bad.digest.hex()
    told.published[digest] = {
        "signature": (bad.to_bytes(), IDENTITY, good.digest),
        "another study": (good.to_bytes(), IDENTITY, bad.digest),
        "no manifest": (b"\xa0", IDENTITY, bad.digest),
    }[fault]
    w = world(told)
    assert w.look() == {good.digest.hex()} == w.look()
    assert len(w.lines) == 1 and digest[:12] in w.lines[0]


def test_tracker_keeps_first_key_of_coordinator(world: Callable[[Told], World]) -> None:
    first, second = with_tokens(3), with_tokens(4)
    told = Told(first)
    w = world(told)
    assert w.look() == {first.digest.hex()}
    w.spool.close()
    told = Told(first, second)
    other = Identity.from_seed(bytes(range(1, 33)))
    told.published[second.digest.hex()] = (second.to_bytes(), other, second.digest)
    w = world(told)
    assert w.look() == {first.digest.hex()}
    assert "another key" in w.lines[0]


@pytest.mark.parametrize(
    "listed",
    [
        None,
        {},
        [1],
        [{"digest": 1, "protocol": "anonml", "status": "open"}],
        [{"digest": "7f"}],
        [{"digest": "7f" * 32, "protocol": "anonml", "status": "x"}],
    ],
)
def test_tracker_ignores_invalid_list_of_studies(
    world: Callable[[Told], World], listed: Any
) -> None:
    told = Told(with_tokens())
    w = world(told)
    served = w.look()
    told.listed = listed
    with pytest.raises(TransportError, match="NET-002"):
        w.look()
    assert set(w.following.studies) == served


def test_tracker_takes_times_from_schedule_alone(world: Callable[[Told], World]) -> None:
    manifest = with_tokens()
    digest = manifest.digest.hex()
    told = Told(manifest)
    w = world(told)
    w.look()
    schedule = manifest.schedule
    assert schedule is not None
    expected = [schedule.get_window(0)]
    assert [phase.window for phase in w.spool.list_phases(digest)] == expected
    assert w.following.studies[digest].find_phase(w.clock.now()) == 0
    told.letters = [b"rubbish", ask(manifest, later=-1.0), ask(manifest, phase=99)]
    w.clock.advance(SHORT_INTERVAL.total_seconds())
    w.look()
    assert [phase.window for phase in w.spool.list_phases(digest)] == expected
    assert w.following.studies[digest].asks == {}
    assert len(w.lines) == 3 and all("does not count" in line for line in w.lines)


def test_tracker_keeps_first_signed_opening_of_phase(
    world: Callable[[Told], World],
) -> None:
    manifest = with_tokens()
    digest, told = manifest.digest.hex(), Told(manifest)
    first, second = ask(manifest), ask(manifest, points=(1.0,))
    w = world(told)
    told.letters, told.signs = [second], False
    w.look()
    assert w.following.studies[digest].asks == {}, "it is not signed"
    told.letters, told.signs = [second, first, second], True
    w.clock.advance(SHORT_INTERVAL.total_seconds())
    w.look()
    assert w.following.studies[digest].asks == {0: hashlib.sha256(first).digest()}
    assert "two different signed openings of phase 0" in w.lines[-1]
    w.spool.close()
    told.letters = [second]
    w = world(told)
    w.look()
    assert w.following.studies[digest].asks == {0: hashlib.sha256(first).digest()}


def test_tracker_polls_broadcasts_when_news_is_possible(world: Callable[[Told], World]) -> None:
    manifest = with_tokens()
    told = Told(manifest)
    w = world(told)

    def n_looks(seconds: int) -> int:
        before = sum(path.endswith("board") for path in told.asked)
        for _ in range(seconds):
            w.look()
            w.clock.advance(1)
        return sum(path.endswith("board") for path in told.asked) - before

    assert n_looks(10) == 10
    told.letters = [ask(manifest)]
    assert n_looks(90) == 90 // 15
    w.clock.advance(PATIENCE)
    assert n_looks(10) == 10


def test_find_phase_returns_phase_that_collects_packets(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as s:
            window = s.followed.phases[0].window
            moments = {
                window.opened: 0,
                window.collects_until: 0,
                window.resends_until: 1,
                window.closes + timedelta(days=1): 1,
            }
            assert {when: s.followed.find_phase(when) for when in moments} == moments

    asyncio.run(main())


@pytest.mark.parametrize("how", ["status", "list"])
@pytest.mark.parametrize("ending", ["done", "failed", "closed"])
def test_tracker_drops_ended_study(world: Callable[[Told], World], how: str, ending: str) -> None:
    manifest = with_tokens()
    told = Told(manifest)
    w = world(told)
    told.letters = [ask(manifest)]
    w.look()
    assert w.spool.list_studies() == (manifest.digest.hex(),)
    if how == "status":
        told.status = ending
    else:
        told.listed[0]["status"] = ending
    w.clock.advance(LONG_INTERVAL.total_seconds())
    w.look()
    assert (w.following.studies, w.spool.list_studies()) == ({}, ())
    # Of what was shown of it nothing is known any more: with the same packets again, one more would
    # be known by them.
    told.status, told.listed[0]["status"] = "open", "open"
    for _ in range(2):
        assert w.look() == set()
    assert len(w.lines) == 1 and "reported its end before" in w.lines[0]


def test_unlisted_study_keeps_packets_until_last_phase_is_over(
    world: Callable[[Told], World],
) -> None:
    manifest = with_tokens()
    digest, told = manifest.digest.hex(), Told(manifest)
    w = world(told)
    told.letters = [ask(manifest)]
    w.look()
    w.spool.put([SealedPacket(digest, 0, b"a packet", 10)])
    listed, told.listed = told.listed, []
    assert w.look() == set(), "it takes nothing"
    assert w.spool.count_waiting(digest, 0) == 1
    told.listed = listed
    assert w.look() == {digest} and len(w.spool.list_phases(digest)) == 1
    told.listed = []
    w.clock.advance(PATIENCE - 1)
    w.look()
    assert w.spool.count_waiting(digest, 0) == 1
    w.clock.advance(1)
    w.look()
    assert w.spool.list_studies() == () and w.spool.has_ended(digest)


def test_tracker_refuses_study_with_packets_but_no_schedule(
    world: Callable[[Told], World],
) -> None:
    w = world(Told(replace(with_tokens(), schedule=None)))
    assert w.look() == set()
    assert "is not served: The manifest has no schedule" in w.lines[0]


def test_make_tracked_study_returns_none_without_packets(tmp_path: Path) -> None:
    with Spool(tmp_path / "relay.db", SystemEntropy()) as spool:
        for manifest in MANIFESTS.values():
            published = SignedManifest(
                manifest=manifest.to_bytes(), key=IDENTITY.public_key, signature=bytes(64)
            )
            found = make_tracked_study(manifest.digest.hex(), published, spool, ManualClock().now())
            assert found is None
