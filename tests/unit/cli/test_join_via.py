"""`shoal join --via`: through a relay or over a SOCKS port to a real coordinator, and what is said of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from byways import Behind, Front, Server, Socks, problem, standing
from live import Live, live, write_csv
from participants import folder, manifest_of
from shoal.cli.join import join
from shoal.clock import SystemClock
from shoal.coordinator.publishing import publish
from shoal.crypto.roster import Identity
from shoal.errors import ConsentError, RemoteProtocolError, TransportError, UsageError
from shoal.participant.journal import Joined, Journal
from shoal.study.manifest import Manifest
from shoal.transport.bhttp import Answer
from shoal.transport.forms import Issuing, Published, from_cbor, from_json, to_cbor
from shoal.transport.ohttp import Gateway
from shoal.transport.routes import CBOR, ISSUING, KEYS, PROBLEM, REQUESTS, study_route
from shoal.transport.signing import sign_published

__all__ = ["folder"]

DDML = manifest_of("ddml", 3, ddml={"n_instances": 2, "admission": "token"}, privacy={"epsilon": 4.0, "n_updates": 2})
PATIENCE = 60_000
"""Milliseconds after which a study of devices ends: nobody is so slow."""


@pytest.fixture
def coordinator(folder: Path) -> Iterator[Live]:
    with live(folder) as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[[Server | Socks], int]]:
    """Starts a server until the test ends; its port."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(standing(server))


def publish_sealable(coordinator: Live, relay: str | None = None) -> Manifest:
    """Publish a study with tokens and with this coordinator's gateway's key."""
    issuing = from_json(httpx2.get(f"{coordinator.url}{ISSUING}", trust_env=False).content, Issuing)
    keys = {"issuer_key": bytes.fromhex(issuing.issuer_key), "gateway_key": bytes.fromhex(issuing.gateway_key)}
    manifest = replace(DDML, relay=relay, **keys)
    publish(coordinator.store, manifest, int(SystemClock().now().timestamp() * 1000), patience=PATIENCE, issuing=issuing)
    return manifest


def called(capsys: pytest.CaptureFixture[str], url: str, manifest: Manifest, folder: Path, **options: Any) -> dict[str, Any]:
    data = str(write_csv(folder / "rows.csv", 5))
    capsys.readouterr()
    join(url, study=manifest.digest.hex()[:12], ledger=folder / "me.db", data=data, json=True, yes=True, max_epsilon="4", **options)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_through_a_relay_that_is_given_the_coordinator_meets_nobody_else(
    folder: Path, coordinator: Live, start: Callable[[Server], int], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = publish_sealable(coordinator)
    front, relay = Server(Front(coordinator.url).reply), Server(Front(coordinator.url).reply)
    told = called(capsys, f"http://127.0.0.1:{start(front)}", manifest, folder, via=f"ohttp:http://127.0.0.1:{start(relay)}")
    assert told["standing"] == "finished" and told["sent"]["questions"] == 2 and told["via"] == "ohttp"
    assert not front.heard
    assert {one.path for one in relay.heard} == {KEYS, REQUESTS} and len(relay.heard) > 5
    assert coordinator.totals(manifest).enrolled == 1


def test_without_a_word_it_is_the_relay_of_the_manifest_and_the_second_time_from_the_start(
    folder: Path, coordinator: Live, start: Callable[[Server], int], capsys: pytest.CaptureFixture[str]
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
    assert called(capsys, url, manifest, folder, via="direct")["via"] == "direct" and len(front.heard) > n


def test_the_label_says_which_way_it_goes_and_the_next_command_keeps_it(
    folder: Path, coordinator: Live, start: Callable[[Server], int], capsys: pytest.CaptureFixture[str]
) -> None:
    publish_sealable(coordinator)
    relay = Server(Front(coordinator.url).reply)
    way = f"ohttp:http://127.0.0.1:{start(relay)}"
    options = {"ledger": folder / "me.db", "data": str(write_csv(folder / "rows.csv", 5)), "via": way}
    with pytest.raises(ConsentError, match="CONSENT-001"):
        join(coordinator.url, **options)
    assert "\nsent      through the relay at http://127.0.0.1:" in capsys.readouterr().out
    join(coordinator.url, **options, preview=True)
    assert f"--via {way}" in capsys.readouterr().out


def test_on_a_first_visit_a_relay_is_not_believed_without_saying_so(
    folder: Path, coordinator: Live, start: Callable[[Server], int], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = publish_sealable(coordinator)
    way = f"ohttp:http://127.0.0.1:{start(Server(Front(coordinator.url).reply))}"
    options: dict[str, Any] = {"ledger": folder / "me.db", "data": str(write_csv(folder / "rows.csv", 5)), "preview": True}
    doubt = "\nbut       you have not met this coordinator, and the relay alone says which one it is"
    for study, via, is_said in (
        (None, way, True),
        (manifest.short, way, True),
        (manifest.digest.hex(), way, False),
        (manifest.short, None, False),
    ):
        join(coordinator.url, study=study, via=via, **options)
        assert (doubt in capsys.readouterr().out) is is_said
    assert called(capsys, coordinator.url, manifest, folder, via=way)["rests_on_relay"]
    # Whoever has agreed to a study of it has met it.
    assert not called(capsys, coordinator.url, manifest, folder, via=way)["rests_on_relay"]


def test_a_relay_in_the_coordinators_place_is_found_out_by_the_whole_digest(
    folder: Path, coordinator: Live, start: Callable[[Server], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """It opens what is sealed to a key of its own, and hands on what the coordinator says of its study, signed by itself."""
    manifest = publish_sealable(coordinator)
    false = Identity.from_seed(bytes(32))
    published = Published(manifest=manifest.to_bytes(), key=false.public, signature=sign_published(false, manifest.digest))
    told = {study_route(manifest.digest.hex(), "manifest"): Answer(200, (("content-type", CBOR),), to_cbor(published))}
    nothing = Answer(404, (("content-type", PROBLEM),), problem("HOST-001", 404)[2])
    behind = Behind(Gateway.from_seed(bytes(32)), lambda request: told.get(request.path, nothing))
    options: dict[str, Any] = {"via": f"ohttp:http://127.0.0.1:{start(Server(behind.reply))}", "yes": True, "max_epsilon": "4"}
    data = str(write_csv(folder / "rows.csv", 5))
    with pytest.raises(RemoteProtocolError, match=r"NET-005.*another gateway's key"):
        join(coordinator.url, study=manifest.digest.hex(), ledger=folder / "me.db", data=data, **options)
    assert [one.path for one in behind.requests] == list(told)
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert journal.studies() == () and journal.pinned(coordinator.url) is None


def test_what_a_manifest_has_told_is_not_asked_of_the_relay_again(
    folder: Path, coordinator: Live, start: Callable[[Server], int], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = publish_sealable(coordinator)
    relay = Server(Front(coordinator.url).reply)
    way = f"ohttp:http://127.0.0.1:{start(relay)}"
    called(capsys, coordinator.url, manifest, folder, via="direct")
    assert called(capsys, coordinator.url, manifest, folder, via=way)["via"] == "ohttp"
    assert {one.path for one in relay.heard} == {REQUESTS}


def test_over_tor_every_anonymous_request_has_a_circuit_of_its_own(
    folder: Path, coordinator: Live, start: Callable[[Socks], int], capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.publish(DDML, PATIENCE)
    port = Socks(int(coordinator.url.rpartition(":")[2]))
    url = f"http://localhost:{port.target}"
    told = called(capsys, url, DDML, folder, via=f"tor:127.0.0.1:{start(port)}")
    assert told["standing"] == "finished" and told["via"] == "tor"
    # Two updates and two draws, each apart; and what goes under a name.
    assert len({one.name for one in port.asked}) == len(port.asked) >= 5
    assert {(one.host, one.port) for one in port.asked} == {("localhost", port.target)}


def test_without_tor_nothing_happens(folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]) -> None:
    coordinator.publish(DDML, PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
    with pytest.raises(TransportError, match="NET-004"):
        called(capsys, coordinator.url, DDML, folder, via=f"tor:127.0.0.1:{number}")
    assert coordinator.totals(DDML).enrolled == 0


def test_a_study_without_a_gateway_is_not_joined_through_a_relay(
    folder: Path, coordinator: Live, start: Callable[[Server], int], capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.publish(DDML, PATIENCE)
    relay = Server(Front(coordinator.url).reply)
    with pytest.raises(RemoteProtocolError, match="NET-005"):
        called(capsys, coordinator.url, DDML, folder, via=f"ohttp:http://127.0.0.1:{start(relay)}")
    assert coordinator.totals(DDML).enrolled == 0


def test_a_manifest_of_an_earlier_version_in_the_journal_is_in_nobodys_way(
    folder: Path, coordinator: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    study = coordinator.publish(DDML, PATIENCE)
    key = from_cbor(httpx2.get(f"{coordinator.url}{study_route(study, 'manifest')}", trust_env=False).content, Published).key
    with Journal(folder / "me.db", SystemClock()) as journal:
        journal.enter(Joined(study, coordinator.url, coordinator.url, key, b"old", "Old", str(folder / "rows.csv"), ticket=bytes(32)))
    told = called(capsys, coordinator.url, DDML, folder)
    assert told["standing"] == "finished"


@pytest.mark.parametrize("url", ["http://abc.onion", "https://abc.onion:8700"])
def test_an_onion_service_is_joined_over_tor_alone(url: str, folder: Path) -> None:
    for via in (None, "direct"):
        with pytest.raises(UsageError, match="over Tor alone") as error:
            join(url, ledger=folder / "me.db", data="rows.csv", via=via)
        assert error.value.fix == "--via tor"
