"""A worker builds the script of a study once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from starlette.requests import Request

from shoal.clock import ManualClock
from shoal.coordinator.dashboard.pages import show_label, show_study
from shoal.coordinator.service import CoordinatorService
from shoal.crypto.credentials.issuance import Registration
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.variants import make_script
from shoal.study import anonml
from shoal.study.delivery import compute_scope
from shoal.transport.api import Enrolment
from tests.support.coordinator import (
    attend,
    enrol,
    identity,
    make_manifest,
    make_peers,
    new,
    run,
    submit,
)
from tests.support.credentials import make_answer, packed, tokened


@pytest.mark.parametrize("name", ["anonml", "anonml phases", "anonml paper"])
def test_make_script_runs_once_per_study_and_worker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, manifest, calls = make_peers(name), make_manifest(name), []

    def count(*arguments: object) -> object:
        calls.append(arguments)
        return make_script(*arguments)  # type: ignore[arg-type]

    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        # The test's own aggregator and names are made before counting begins.
        monkeypatch.setattr(anonml, "make_script", count)
        record = await service.publish(manifest.to_bytes(), phase_timeout=60_000)
        for page in (show_study, show_label):
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/",
                "headers": [],
                "query_string": b"",
                "path_params": {"digest": record.digest},
            }
            assert (await page(service, Request(scope))).status_code == 200
        before = len(calls)
        await attend([service], name, peers, clock)
        # `attend` makes one aggregator of its own.
        assert (before, len(calls)) == (1, 2)
        assert (await service.get_study(record.digest)).record.status == "done"

    run(tmp_path, work)


def test_make_script_runs_once_for_study_with_tokens_and_not_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helpers of this test build scripts too, but on the event loop's thread."""
    threads: list[threading.Thread] = []

    def count(*arguments: object) -> object:
        threads.append(threading.current_thread())
        return make_script(*arguments)  # type: ignore[arg-type]

    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest = tokened(make_manifest("anonml"), service.keys)
        digest = manifest.digest.hex()
        assert manifest.issuer_key is not None
        monkeypatch.setattr(anonml, "make_script", count)
        await service.publish(manifest.to_bytes(), phase_timeout=60_000)
        await service.get_study(digest)
        assert len(threads) == 1 and threads[0] is not threading.main_thread()
        for i in range(2):
            registration = Registration.draw(SeededEntropy(f"registration {i}"))
            scope = compute_scope(manifest)
            commitment = registration.make_commitment(manifest.issuer_key, scope)
            form = Enrolment(commitment=commitment.hex())
            enrolled = await enrol(service, digest, identity(i).public_key, form, new())
            assert enrolled.issued is not None
            issued = bytes.fromhex(enrolled.issued)
            credential = registration.accept(manifest.issuer_key, scope, issued)
            packet = packed(manifest, credential, make_answer(manifest, credential))
            await submit(service, digest, packet)
        assert (await service.get_progress(digest))["status"] == "open"
        await service.close_study(digest)
        clock.advance(1)
        assert await service.list_received(digest)
        assert sum(one is not threading.main_thread() for one in threads) == 1

    run(tmp_path, work)
