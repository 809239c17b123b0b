"""An AnonML study with tokens through a relay: fifty people, each from an address of its own, and a few who cheat.

All processes are real and speak TLS. Everything that goes between them is captured, and opened afterwards by the keys that relay and
participants have written down: so the observers here see at once what everyone on the wire, the relay and the coordinator see each.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pytest

from capture import capture, why_not
from captured_http import Request, is_resumed, keys_of
from certificates import Certificates, make_certificates
from e2e.anonymous import (
    Cheat,
    Fleet,
    Relay,
    Sent,
    TooSlowError,
    View,
    files_of,
    gateway_of,
    in_time,
    known_of,
    manifest_of,
    model_of,
    model_when_done,
    sent_by,
    trace_of,
    window_of,
)
from live import write_csv
from participants import document_of
from served import Coordinator, toml_of
from servers import free_port
from shoal.attacks.linker import Finding, Seen, Trace, link
from shoal.coordinator.store.base import Totals
from shoal.coordinator.store.opening import open_store
from shoal.entropy import SystemEntropy
from shoal.study.anonymity import Window
from shoal.study.manifest import Manifest
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import Packet, packet_size
from shoal.transport.routes import REQUESTS
from shoal.transport.sealing import open_packet, sealed_size
from statistical.harness import statistical

ALPHA = 1e-9
PATIENCE = 40.0
"""Seconds of the one phase: packets leave the relay after seven tenths."""
TLS = b"\x16\x03"

pytestmark = pytest.mark.xdist_group("ohttp")
"""One worker for all of them: they look at one study."""


@dataclass(frozen=True)
class Run:
    """A study that is over, and what everyone has of it."""

    home: Path
    manifest: Manifest
    people: list[Sent]
    addresses: dict[str, str]
    cheat: Cheat
    view: View
    gateway: Gateway
    ports: tuple[int, int]
    model: bytes
    totals: Totals
    names: tuple[bytes, ...]
    members: tuple[bytes, ...]
    trouble: tuple[tuple[int, str], tuple[int, str]]
    files: tuple[dict[str, bytes], dict[str, bytes]]
    """Of the coordinator and of the relay, once both have ended; and while they ran, under names of their own."""

    @property
    def study(self) -> str:
        return self.manifest.digest.hex()

    @cached_property
    def arrived(self) -> list[tuple[Request, bytes, Packet]]:
        """What has come to the coordinator in batches, in its order: the request, the sealed packet, the packet."""
        size = packet_size(self.manifest)
        return [
            (request, sealed, Packet.from_bytes(open_packet(self.gateway, self.study, sealed), size))
            for request, sealed in self.view.batches(self.study)
        ]

    @cached_property
    def packets(self) -> list[tuple[str, Trace]]:
        """The packets of honest people as the coordinator sees them, in its order, and whose they are."""
        whose = {one.packet.token: one.who for one in self.people}
        return [
            (whose[packet.token], trace_of("packet", request, len(sealed)))
            for request, sealed, packet in self.arrived
            if packet.token in whose
        ]

    def link(self, named: list[tuple[str, Trace]], packets: list[tuple[str, Trace]] | None = None) -> list[Finding]:
        """What the linker finds."""
        packets = self.packets if packets is None else packets
        seen = Seen(named, [trace for _, trace in packets])
        return list(link(seen, [who for who, _ in packets], SystemEntropy(), ALPHA))


def run(home: Path, patience: float, tls: Certificates, n: int) -> Run:
    """Have n people and the cheats take part, and gather everything; `TooSlowError` where they were too slow for the window."""
    places = {name: home / name for name in ("coordinator", "relay", "fleet")}
    for place in places.values():
        place.mkdir()
    document = document_of("anonml", n, participation={"minimum": n // 2, "size": n + 1})
    (places["coordinator"] / "study.toml").write_text(toml_of(document))
    rows = write_csv(places["fleet"] / "rows.csv", n)
    relay_port = free_port()
    with ExitStack() as stack:
        words = ("--port", "0", "--patience", str(patience), "--relay", f"https://127.0.0.1:{relay_port}", "--store", "sqlite:study.db")
        coordinator = stack.enter_context(Coordinator(places["coordinator"], "study.toml", *words, tls=tls))
        manifest, window = manifest_of(coordinator), window_of(coordinator)
        segments = stack.enter_context(capture(coordinator.port, relay_port))
        relay = stack.enter_context(Relay(places["relay"], relay_port, coordinator.url, tls))
        fleet = Fleet(places["fleet"], coordinator, rows, n, tls, "--from-addresses")
        stack.callback(fleet.kill)
        cheat = Cheat(manifest, coordinator, tls)
        cheat.send(window.collects_until)
        said, model = fleet.end(patience), model_when_done(coordinator, patience)
        during = [{f"running {name}": data for name, data in files_of(places[who]).items()} for who in ("coordinator", "relay")]
        trouble = relay.end(), coordinator.end()
    store = f"sqlite:{places['coordinator'] / 'study.db'}"
    with open_store(store) as kept:
        totals, names, members = (
            kept.totals(manifest.digest.hex()),
            kept.submitted(manifest.digest.hex()),
            kept.members(manifest.digest.hex()),
        )
    view = View(segments, {**keys_of(relay.keys), **keys_of(fleet.keys)}, relay_port, coordinator.port)
    check_in_time(view, manifest, window, n)
    fleet.check(said)
    files = (during[0] | files_of(places["coordinator"]), during[1] | files_of(places["relay"]))
    return Run(
        home,
        manifest,
        sent_by(fleet.people, manifest),
        {fleet.address(i): one.name for i, one in enumerate(fleet.people)},
        cheat,
        view,
        gateway_of(store),
        (relay_port, coordinator.port),
        model,
        totals,
        names,
        members,
        trouble,
        files,
    )


def check_in_time(view: View, manifest: Manifest, window: Window, n: int) -> None:
    """See that all packets came in time to leave together, and that nobody had reason to think that one got lost."""
    posted = view.posted(manifest.digest.hex())
    if len({one.body for one in posted}) < n:
        raise TooSlowError(f"of {n} packets some have not come: the study was over before")
    batches = {request.time for request, _ in view.batches(manifest.digest.hex())}
    # What leaves while packets are collected is no matter of speed.
    if batches and min(batches) < window.collects_until.timestamp():
        return
    if len(batches) != 1 or any(one.time >= min(batches) for one in posted):
        raise TooSlowError("a packet came, or came again, when the others had left")


@pytest.fixture(scope="module", params=[50, pytest.param(300, marks=pytest.mark.soak)])
def over(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    if reason := why_not():
        pytest.skip(reason)
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    patience = PATIENCE * max(1, request.param // 60)
    return in_time(partial(run, tls=certificates, n=request.param), patience)


def test_everyone_counts_once_and_the_model_is_of_their_answers(over: Run) -> None:
    n = len(over.people) + 1
    assert over.trouble == ((0, ""), (0, ""))
    assert json.loads(over.model)["counts"] == {"answers": [n], "late": 0}
    assert len(over.members) == n and {one.key for one in over.people} < set(over.members)
    assert {one.name for one in over.people} < set(over.names) and len(over.names) == n
    honest = [one.packet for one in over.people]
    assert over.model in [model_of(over.manifest, [*honest, one]) for one in over.cheat.sent]
    # A model without one of them is another one: the counts say so at least.
    assert over.model not in [model_of(over.manifest, honest), model_of(over.manifest, [*honest, *over.cheat.sent])]


def test_cheats_are_refused_and_counted(over: Run) -> None:
    """A second answer under a pseudonym, an answer to a question that was not one's own, and one by somebody who is no member."""
    over.cheat.check(over.totals.refused)
    assert over.totals.accepted == over.totals.enrolled == len(over.people) + 1


def test_the_coordinator_hears_from_the_relay_alone(over: Run) -> None:
    """But for whoever looks at the list of studies before knowing that there is a relay, who is no participant yet."""
    for one in over.view.connections:
        if one.server[1] == over.ports[1]:
            assert one.client[0] == "127.0.0.1"
        else:
            assert one.client[0] in {*over.addresses, "127.0.9.9"}, one.client


def test_each_packet_has_a_connection_of_its_own_and_all_look_alike(over: Run) -> None:
    posted = over.view.posted(over.study)
    assert {over.addresses[one.connection.client[0]] for one in posted} == {one.who for one in over.people}
    others = [one for one in over.view.to_relay if one not in posted]
    names = [one.connection.name for one in posted]
    assert len(set(names)) == len(names) and not set(names) & {one.connection.name for one in others}
    assert len({one.head for one in posted}) == 1 and {len(one.body) for one in posted} == {sealed_size(packet_size(over.manifest))}
    assert len({len(one.connection.sent) for one in posted}) == 1, "also under TLS"
    # What is asked through the relay has the same headers too, but for its length, which has few values.
    heads = {
        tuple((name, value) for name, value in one.headers if name.lower() != "content-length") for one in others if one.path == REQUESTS
    }
    assert len(heads) == 1
    assert not any(is_resumed(one) for one in over.view.connections if one.sent.startswith(TLS))


def test_packets_wait_for_each_other_and_come_shuffled(over: Run) -> None:
    posted = over.view.posted(over.study)
    arrived = over.view.batches(over.study)
    assert min(request.time for request, _ in arrived) > max(one.time for one in posted)
    assert len({id(request) for request, _ in arrived}) == 1, "one batch"
    assert {sealed for _, sealed in arrived} >= {one.body for one in posted}


@statistical(alpha=ALPHA)
def test_the_coordinator_cannot_link(over: Run) -> None:
    """It opens every request that comes to its gateway, knows who enrolled when, guesses whose reads are whose, and sees the batch."""
    asked = [(request, inner.path, inner.headers) for request, inner in over.view.opened(over.gateway)]
    check(over.link(known_of(over.study, over.people, asked)))


@statistical(alpha=ALPHA)
def test_nobody_on_the_wire_can_link_even_with_the_coordinator(over: Run) -> None:
    """Whoever sees all connections, and which of them carries a packet, and is told by the coordinator in which order packets came."""
    named = [(over.addresses[one.connection.client[0]], trace_of("posted", one, len(one.body))) for one in over.view.posted(over.study)]
    for one in over.view.connections:
        if (name := over.addresses.get(one.client[0])) is not None:
            named.append((name, Trace("connection", one.opened, one.client[0], size=len(one.sent), until=one.closed)))
    check(over.link(sorted(named, key=lambda pair: pair[1].time or 0.0)))
    # A relay that hands packets on as they come would give everyone away.
    mutant = sorted(
        over.packets, key=lambda pair: next(trace.time or 0.0 for who, trace in named if who == pair[0] and trace.kind == "posted")
    )
    assert any(
        one.is_found and one.clue == "order of posted" for one in over.link(sorted(named, key=lambda pair: pair[1].time or 0.0), mutant)
    )


@statistical(alpha=2 * ALPHA)
@pytest.mark.parametrize("names", [("study.db",), ("running study.db-wal", "running study.db")])
def test_the_coordinators_files_cannot_be_linked(over: Run, names: tuple[str, ...]) -> None:
    """Where in a file members and names of packets lie is all that is left of the order in which they came."""
    data = b"".join(over.files[0][name] for name in names)
    named, packets = (
        [(who, Trace("row")) for _, who in sorted((data.index(what), who) for what, who in found)]
        for found in ([(one.key, one.who) for one in over.people], [(one.name, one.who) for one in over.people])
    )
    check(over.link(named, packets))
    assert any(one.is_found for one in over.link(named, list(named))), "the same order would be found"


def test_no_file_has_what_would_link(over: Run) -> None:
    """Neither tokens, pseudonyms, tickets or sealed packets, nor addresses, in any file of the coordinator or of the relay."""
    addresses = {address.encode() for address in over.addresses} | {b"127.0.9.9"}
    shown = {one.packet.token for one in over.people} | {one.pseudonym for one in over.people}
    shown |= {one.body for one in over.view.posted(over.study)} | addresses
    tickets, keys, names = ({getattr(one, what) for one in over.people} for what in ("ticket", "key", "name"))
    for name, data in over.files[0].items():
        # Answers wait in the coordinator's file until they are counted, and are gone when it ends; a ticket says nothing of its owner.
        assert not [what for what in shown | (tickets if "running" not in name else set()) if what in data], name
    for name, data in over.files[1].items():
        assert not [what for what in (shown if "keys" not in name else addresses) | tickets | keys | names if what in data], name


def check(findings: list[Finding]) -> None:
    """Nothing beyond chance."""
    assert findings and not [str(one) for one in findings if one.is_found or one.n_linked]
