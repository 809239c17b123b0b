"""``shoal join --via`` through a relay or a SOCKS port, to a real coordinator."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.cli.join import join
from shoal.clock import SystemClock, to_milliseconds
from shoal.coordinator.publishing import add_schedule
from shoal.crypto.identity import Identity
from shoal.errors import ConsentError, RemoteProtocolError, ShoalError, TransportError, UsageError
from shoal.participant.journal import JoinedStudy, Journal
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.api import (
    CBOR,
    ISSUING,
    KEYS,
    PROBLEM,
    RELAYING,
    REQUESTS,
    Issuing,
    SignedManifest,
    from_cbor,
    from_json,
    study_route,
    to_cbor,
)
from shoal.transport.bhttp import BinaryResponse
from shoal.transport.ohttp import Gateway
from shoal.transport.signing import sign_manifest
from tests.support.coordinator import publish_manifest
from tests.support.machines import Behind, Front, Server, Socks, problem, standing
from tests.support.participants import folder, make_manifest
from tests.support.servers import Live, live, write_csv

__all__ = ["folder"]

DDML = make_manifest(
    "ddml",
    3,
    ddml={"n_instances": 2, "admission": "token"},
    privacy={"epsilon": 4.0, "n_updates": 2},
)
PATIENCE = 60_000
"""Milliseconds after which a study of devices ends: nobody is so slow."""


@pytest.fixture
def coordinator(folder: Path) -> Iterator[Live]:
    with live(folder) as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[[Server | Socks], int]]:
    """Start servers until the test ends; return the port of each."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(standing(server))


def publish_sealable(
    coordinator: Live, relay: str | None = None, offered: Manifest = DDML
) -> Manifest:
    """Publish a study with tokens and with the gateway key of this coordinator."""
    issuing = from_json(httpx2.get(f"{coordinator.url}{ISSUING}", trust_env=False).content, Issuing)
    keys = {
        "issuer_key": bytes.fromhex(issuing.issuer_key),
        "gateway_key": bytes.fromhex(issuing.gateway_key),
    }
    now = to_milliseconds(SystemClock().now())
    handle = StudyHandle(replace(offered, relay=relay, **keys))
    manifest = add_schedule(handle, now, PATIENCE).manifest
    publish_manifest(
        coordinator.store,
        manifest,
        now,
        phase_timeout=PATIENCE,
        issuing=issuing,
    )
    return manifest


def publish_packets(coordinator: Live, relay: str) -> Manifest:
    """Publish a study whose packets travel through a relay."""
    return publish_sealable(coordinator, relay, make_manifest("anonml", 3))


def called(
    capsys: pytest.CaptureFixture[str], url: str, manifest: Manifest, folder: Path, **options: Any
) -> dict[str, Any]:
    data = str(write_csv(folder / "rows.csv", 5))
    capsys.readouterr()
    join(
        url,
        study=manifest.digest.hex()[:12],
        ledger=folder / "me.db",
        new_ledger=True,
        data=data,
        json=True,
        yes=True,
        max_epsilon="4",
        **options,
    )
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_join_via_relay_hides_participant_from_coordinator(
    folder: Path,
    coordinator: Live,
    start: Callable[[Server], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = publish_sealable(coordinator)
    front, relay = Server(Front(coordinator.url).reply), Server(Front(coordinator.url).reply)
    told = called(
        capsys,
        f"http://127.0.0.1:{start(front)}",
        manifest,
        folder,
        via=f"ohttp:http://127.0.0.1:{start(relay)}",
    )
    assert (
        told["standing"] == "finished" and told["sent"]["questions"] == 2 and told["via"] == "ohttp"
    )
    assert not front.heard
    assert {one.path for one in relay.heard} == {KEYS, REQUESTS} and len(relay.heard) > 5
    assert coordinator.totals(manifest).enrolled == 1


def test_join_without_via_uses_relay_of_manifest(
    folder: Path,
    coordinator: Live,
    start: Callable[[Server], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    front, relay = Server(Front(coordinator.url).reply), Server(Front(coordinator.url).reply)
    url = f"http://127.0.0.1:{start(front)}"
    manifest = publish_sealable(coordinator, relay=f"http://127.0.0.1:{start(relay)}")
    told = called(capsys, url, manifest, folder)
    assert told["standing"] == "finished" and told["via"] == "ohttp"
    # What is asked directly is what the study is, and nothing after that.
    assert {one.path.rpartition("/")[2] for one in front.heard} == {"studies", "manifest"}
    assert {one.path for one in relay.heard} == {REQUESTS}
    n = len(front.heard)
    assert called(capsys, url, manifest, folder)["via"] == "ohttp" and len(front.heard) == n
    # Whoever wants to goes directly.
    assert (
        called(capsys, url, manifest, folder, via="direct")["via"] == "direct"
        and len(front.heard) > n
    )


@pytest.mark.parametrize("options", [{}, {"preview": True}, {"yes": True, "max_epsilon": "0.1"}])
def test_join_before_consent_contacts_no_address_of_manifest(
    options: dict[str, Any],
    folder: Path,
    coordinator: Live,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A hostile coordinator names any local service as its relay."""
    data = str(write_csv(folder / "row.csv", 1))
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.setblocking(False)
        relay = f"http://127.0.0.1:{service.getsockname()[1]}"
        for manifest in (publish_sealable(coordinator, relay), publish_packets(coordinator, relay)):
            with suppress(ConsentError):
                join(
                    coordinator.url,
                    study=manifest.digest.hex(),
                    ledger=folder / "me.db",
                    new_ledger=True,
                    data=data,
                    **options,
                )
            assert "through the relay at" in capsys.readouterr().out
        with pytest.raises(BlockingIOError):
            service.accept()


def test_relay_of_manifest_is_asked_after_consent_and_before_registration(
    folder: Path, coordinator: Live, start: Callable[[Server], int]
) -> None:
    """A relay that does not list the study is found out before anything is recorded or sent."""
    relay = Server(lambda _: problem("RELAY-001", 404))
    manifest = publish_packets(coordinator, f"http://127.0.0.1:{start(relay)}")
    with pytest.raises(ShoalError):
        join(
            coordinator.url,
            study=manifest.digest.hex(),
            ledger=folder / "me.db",
            new_ledger=True,
            data=str(write_csv(folder / "row.csv", 1)),
            yes=True,
            max_epsilon="4",
        )
    assert [one.path for one in relay.heard] == [RELAYING]
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert journal.list_studies() == ()
    assert coordinator.totals(manifest).enrolled == 0


def test_label_states_path_and_next_command_keeps_via(
    folder: Path,
    coordinator: Live,
    start: Callable[[Server], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish_sealable(coordinator)
    relay = Server(Front(coordinator.url).reply)
    way = f"ohttp:http://127.0.0.1:{start(relay)}"
    options = {
        "ledger": folder / "me.db",
        "new_ledger": True,
        "data": str(write_csv(folder / "rows.csv", 5)),
        "via": way,
    }
    with pytest.raises(ConsentError, match="CONSENT-001"):
        join(coordinator.url, **options)
    assert "\nconnects  through the relay at http://127.0.0.1:" in capsys.readouterr().out
    join(coordinator.url, **options, preview=True)
    assert f"--via {way}" in capsys.readouterr().out


def test_first_contact_through_relay_shows_warning(
    folder: Path,
    coordinator: Live,
    start: Callable[[Server], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = publish_sealable(coordinator)
    way = f"ohttp:http://127.0.0.1:{start(Server(Front(coordinator.url).reply))}"
    options: dict[str, Any] = {
        "ledger": folder / "me.db",
        "new_ledger": True,
        "data": str(write_csv(folder / "rows.csv", 5)),
        "preview": True,
    }
    doubt = "\nwarning   this is your first contact with this coordinator, and only the relay says"
    for study, via, is_said in (
        (None, way, True),
        (manifest.short_digest, way, True),
        (manifest.digest.hex(), way, False),
        (manifest.short_digest, None, False),
    ):
        join(coordinator.url, study=study, via=via, **options)
        assert (doubt in capsys.readouterr().out) is is_said
    assert called(capsys, coordinator.url, manifest, folder, via=way)["rests_on_relay"]
    # Whoever has agreed to a study of it has met it.
    assert not called(capsys, coordinator.url, manifest, folder, via=way)["rests_on_relay"]


def test_whole_digest_detects_relay_that_replaces_coordinator(
    folder: Path,
    coordinator: Live,
    start: Callable[[Server], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The relay decrypts with its own key, and passes on the coordinator's study with its own
    signature.
    """
    manifest = publish_sealable(coordinator)
    false = Identity.from_seed(bytes(32))
    published = SignedManifest(
        manifest=manifest.to_bytes(),
        key=false.public_key,
        signature=sign_manifest(false, manifest.digest),
    )
    told = {
        study_route(manifest.digest.hex(), "manifest"): BinaryResponse(
            200, (("content-type", CBOR),), to_cbor(published)
        )
    }
    nothing = BinaryResponse(404, (("content-type", PROBLEM),), problem("HOST-001", 404)[2])
    behind = Behind(Gateway.from_seed(bytes(32)), lambda request: told.get(request.path, nothing))
    options: dict[str, Any] = {
        "via": f"ohttp:http://127.0.0.1:{start(Server(behind.reply))}",
        "yes": True,
        "max_epsilon": "4",
    }
    data = str(write_csv(folder / "rows.csv", 5))
    with pytest.raises(RemoteProtocolError, match=r"NET-005.*different gateway key"):
        join(
            coordinator.url,
            study=manifest.digest.hex(),
            ledger=folder / "me.db",
            new_ledger=True,
            data=data,
            **options,
        )
    assert [one.path for one in behind.requests] == list(told)
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert journal.list_studies() == () and journal.find_pinned_key(coordinator.url) is None


def test_known_manifest_supplies_gateway_key(
    folder: Path,
    coordinator: Live,
    start: Callable[[Server], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = publish_sealable(coordinator)
    relay = Server(Front(coordinator.url).reply)
    way = f"ohttp:http://127.0.0.1:{start(relay)}"
    called(capsys, coordinator.url, manifest, folder, via="direct")
    assert called(capsys, coordinator.url, manifest, folder, via=way)["via"] == "ohttp"
    assert {one.path for one in relay.heard} == {REQUESTS}


def test_join_over_tor_uses_new_circuit_for_each_anonymous_request(
    folder: Path,
    coordinator: Live,
    start: Callable[[Socks], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    coordinator.publish(DDML, PATIENCE)
    port = Socks(int(coordinator.url.rpartition(":")[2]))
    url = f"http://localhost:{port.target}"
    told = called(capsys, url, DDML, folder, via=f"tor:127.0.0.1:{start(port)}")
    assert told["standing"] == "finished" and told["via"] == "tor"
    # Two updates and two draws, each apart; and what goes under a name.
    assert len({one.name for one in port.asked}) == len(port.asked) >= 5
    assert {(one.host, one.port) for one in port.asked} == {("localhost", port.target)}


def test_join_without_running_tor_sends_nothing(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.publish(DDML, PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
    with pytest.raises(TransportError, match="NET-004"):
        called(capsys, coordinator.url, DDML, folder, via=f"tor:127.0.0.1:{number}")
    assert coordinator.totals(DDML).enrolled == 0


def test_join_via_relay_refuses_study_without_gateway(
    folder: Path,
    coordinator: Live,
    start: Callable[[Server], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    coordinator.publish(DDML, PATIENCE)
    relay = Server(Front(coordinator.url).reply)
    with pytest.raises(RemoteProtocolError, match="NET-005"):
        called(capsys, coordinator.url, DDML, folder, via=f"ohttp:http://127.0.0.1:{start(relay)}")
    assert coordinator.totals(DDML).enrolled == 0


def test_join_ignores_unreadable_manifest_in_journal(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    study = coordinator.publish(DDML, PATIENCE)
    key = from_cbor(
        httpx2.get(f"{coordinator.url}{study_route(study, 'manifest')}", trust_env=False).content,
        SignedManifest,
    ).key
    with Journal(folder / "me.db", SystemClock()) as journal:
        journal.record_study(
            JoinedStudy(
                study,
                coordinator.url,
                coordinator.url,
                key,
                b"old",
                "Old",
                str(folder / "rows.csv"),
                ticket=bytes(32),
                standing="agreed",
            )
        )
    told = called(capsys, coordinator.url, DDML, folder)
    assert told["standing"] == "finished"


@pytest.mark.parametrize("url", ["http://abc.onion", "https://abc.onion:8700"])
def test_join_reaches_onion_service_only_over_tor(url: str, folder: Path) -> None:
    for via in (None, "direct"):
        with pytest.raises(UsageError, match="only over Tor") as error:
            join(url, ledger=folder / "me.db", data="rows.csv", via=via, new_ledger=True)
        assert error.value.fix == "--via tor"
