"""An AnonML study with tokens through a relay: fifty people and a few cheats.

All processes are real and use TLS; each person has a different address. All traffic is captured and
decrypted afterwards with the keys that relay and participants have logged. So the observers here
see the view of the network, of the relay and of the coordinator together.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pytest

from shoal.attacks.linker import LinkageResult, ObservedTraffic, Trace, link
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import StudyTotals
from shoal.entropy import SystemEntropy
from shoal.study.manifest import Manifest
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import REQUESTS
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import Packet, compute_sealed_size, open_packet
from tests.e2e.anonymous import (
    Cheat,
    Fleet,
    Relay,
    Sent,
    TooSlowError,
    View,
    compute_model,
    fetch_manifest,
    fetch_window,
    list_known_traces,
    load_gateway,
    make_trace,
    read_files,
    read_sent_packets,
    run_with_retries,
    wait_for_model,
)
from tests.statistical.harness import statistical
from tests.support.http import Request, capture, is_resumed, read_keys, why_not
from tests.support.participants import compute_packet_size, make_document
from tests.support.servers import Coordinator, format_toml, free_port, write_csv
from tests.support.tls import Certificates, make_certificates

ALPHA = 1e-9
PATIENCE = 40.0
"""Seconds of the one phase: packets leave the relay after seven tenths."""
TLS = b"\x16\x03"

pytestmark = pytest.mark.xdist_group("ohttp")
"""All tests run in one worker: they share one study."""


@dataclass(frozen=True)
class Run:
    """A finished study, and what each party has of it."""

    home: Path
    manifest: Manifest
    people: list[Sent]
    addresses: dict[str, str]
    cheat: Cheat
    view: View
    gateway: Gateway
    ports: tuple[int, int]
    model: bytes
    totals: StudyTotals
    names: tuple[bytes, ...]
    members: tuple[bytes, ...]
    trouble: tuple[tuple[int, str], tuple[int, str]]
    files: tuple[dict[str, bytes], dict[str, bytes]]
    """Of the coordinator and of the relay, once both have ended; and while they ran, under names of
    their own.
    """

    @property
    def study(self) -> str:
        return self.manifest.digest.hex()

    @cached_property
    def arrived(self) -> list[tuple[Request, bytes, Packet]]:
        """Request, sealed packet and packet of each delivery, in the order of the coordinator."""
        size = compute_packet_size(self.manifest)
        return [
            (
                request,
                sealed,
                Packet.from_bytes(open_packet(self.gateway, self.study, sealed), size),
            )
            for request, sealed in self.view.batches(self.study)
        ]

    @cached_property
    def packets(self) -> list[tuple[str, Trace]]:
        """Packets of honest people as the coordinator sees them, in order, with senders."""
        owners = {one.packet.token: one.who for one in self.people}
        return [
            (owners[packet.token], make_trace("packet", request, len(sealed)))
            for request, sealed, packet in self.arrived
            if packet.token in owners
        ]

    def link(
        self, named: list[tuple[str, Trace]], packets: list[tuple[str, Trace]] | None = None
    ) -> list[LinkageResult]:
        """Return the findings of the linker."""
        packets = self.packets if packets is None else packets
        seen = ObservedTraffic(named, [trace for _, trace in packets])
        return list(link(seen, [who for who, _ in packets], SystemEntropy(), ALPHA))


def run(home: Path, patience: float, tls: Certificates, n: int) -> Run:
    """Run a study with n people and the cheats; raise `TooSlowError` if it was too slow."""
    places = {name: home / name for name in ("coordinator", "relay", "fleet")}
    for place in places.values():
        place.mkdir()
    document = make_document("anonml", n, participation={"minimum": n // 2, "size": n + 1})
    (places["coordinator"] / "study.toml").write_text(format_toml(document))
    rows = write_csv(places["fleet"] / "rows.csv", n)
    relay_port = free_port()
    with ExitStack() as stack:
        words = (
            "--port",
            "0",
            "--patience",
            str(patience),
            "--relay",
            f"https://127.0.0.1:{relay_port}",
            "--store",
            "sqlite:study.db",
        )
        coordinator = stack.enter_context(
            Coordinator(places["coordinator"], "study.toml", *words, tls=tls)
        )
        manifest, window = fetch_manifest(coordinator), fetch_window(coordinator)
        segments = stack.enter_context(capture(coordinator.port, relay_port))
        relay = stack.enter_context(Relay(places["relay"], relay_port, coordinator.url, tls))
        fleet = Fleet(places["fleet"], coordinator, rows, n, tls, "--from-addresses")
        stack.callback(fleet.kill)
        cheat = Cheat(manifest, coordinator, tls)
        cheat.send(window.collects_until)
        said, model = fleet.end(patience), wait_for_model(coordinator, patience)
        during = [
            {f"running {name}": data for name, data in read_files(places[who]).items()}
            for who in ("coordinator", "relay")
        ]
        trouble = relay.end(), coordinator.end()
    store = f"sqlite:{places['coordinator'] / 'study.db'}"
    with open_store(store) as kept:
        totals, names, members = (
            kept.count_totals(manifest.digest.hex()),
            kept.list_submissions(manifest.digest.hex()),
            kept.list_members(manifest.digest.hex()),
        )
    view = View(
        segments, {**read_keys(relay.keys), **read_keys(fleet.keys)}, relay_port, coordinator.port
    )
    check_timing(view, manifest, window, n)
    fleet.check(said)
    files = (during[0] | read_files(places["coordinator"]), during[1] | read_files(places["relay"]))
    return Run(
        home,
        manifest,
        read_sent_packets(fleet.people, manifest),
        {fleet.address(i): one.name for i, one in enumerate(fleet.people)},
        cheat,
        view,
        load_gateway(store),
        (relay_port, coordinator.port),
        model,
        totals,
        names,
        members,
        trouble,
        files,
    )


def check_timing(view: View, manifest: Manifest, window: PhaseWindow, n: int) -> None:
    """Check that all packets came in time for one batch, and that no sender had to resend one."""
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
    return run_with_retries(partial(run, tls=certificates, n=request.param), patience)


def test_model_counts_each_answer_once(over: Run) -> None:
    n = len(over.people) + 1
    assert over.trouble == ((0, ""), (0, ""))
    assert json.loads(over.model)["counts"] == {"answers": [n], "late": 0}
    assert len(over.members) == n and {one.key for one in over.people} < set(over.members)
    assert {one.name for one in over.people} < set(over.names) and len(over.names) == n
    honest = [one.packet for one in over.people]
    assert over.model in [compute_model(over.manifest, [*honest, one]) for one in over.cheat.sent]
    # A model without one of them is another one: the counts say so at least.
    assert over.model not in [
        compute_model(over.manifest, honest),
        compute_model(over.manifest, [*honest, *over.cheat.sent]),
    ]


def test_invalid_packets_are_rejected_and_counted(over: Run) -> None:
    """A second answer, an answer to an unassigned question, a forged credential."""
    over.cheat.check(over.totals.refused)
    assert over.totals.accepted == over.totals.enrolled == len(over.people) + 1


def test_only_relay_connects_to_coordinator(over: Run) -> None:
    """A client that is not a participant yet may fetch the list of studies directly."""
    for one in over.view.connections:
        if one.server[1] == over.ports[1]:
            assert one.client[0] == "127.0.0.1"
        else:
            assert one.client[0] in {*over.addresses, "127.0.9.9"}, one.client


def test_each_packet_has_own_connection_and_same_form(over: Run) -> None:
    posted = over.view.posted(over.study)
    assert {over.addresses[one.connection.client[0]] for one in posted} == {
        one.who for one in over.people
    }
    others = [one for one in over.view.to_relay if one not in posted]
    names = [one.connection.name for one in posted]
    assert len(set(names)) == len(names) and not set(names) & {
        one.connection.name for one in others
    }
    assert len({one.head for one in posted}) == 1 and {len(one.body) for one in posted} == {
        compute_sealed_size(compute_packet_size(over.manifest))
    }
    assert len({len(one.connection.sent) for one in posted}) == 1, "also under TLS"
    # What is asked through the relay has the same headers too, but for its length, which has few
    # values.
    heads = {
        tuple((name, value) for name, value in one.headers if name.lower() != "content-length")
        for one in others
        if one.path == REQUESTS
    }
    assert len(heads) == 1
    assert not any(is_resumed(one) for one in over.view.connections if one.sent.startswith(TLS))


def test_relay_delivers_packets_in_one_shuffled_batch(over: Run) -> None:
    posted = over.view.posted(over.study)
    arrived = over.view.batches(over.study)
    assert min(request.time for request, _ in arrived) > max(one.time for one in posted)
    assert len({id(request) for request, _ in arrived}) == 1, "one batch"
    assert {sealed for _, sealed in arrived} >= {one.body for one in posted}


@statistical(alpha=ALPHA)
def test_coordinator_cannot_link_packets_to_people(over: Run) -> None:
    """The coordinator decrypts gateway requests, knows times of enrolment, guesses reads."""
    asked = [
        (request, inner.path, inner.headers) for request, inner in over.view.opened(over.gateway)
    ]
    check(over.link(list_known_traces(over.study, over.people, asked)))


@statistical(alpha=ALPHA)
def test_network_observer_cannot_link_with_coordinators_help(over: Run) -> None:
    """The observer sees all connections and packets, and knows the coordinator's order."""
    named = [
        (over.addresses[one.connection.client[0]], make_trace("posted", one, len(one.body)))
        for one in over.view.posted(over.study)
    ]
    for one in over.view.connections:
        if (name := over.addresses.get(one.client[0])) is not None:
            named.append(
                (
                    name,
                    Trace(
                        "connection",
                        one.opened,
                        one.client[0],
                        size=len(one.sent),
                        ended=one.closed,
                    ),
                )
            )
    check(over.link(sorted(named, key=lambda pair: pair[1].time or 0.0)))
    # A relay that hands packets on as they come would give everyone away.
    mutant = sorted(
        over.packets,
        key=lambda pair: next(
            trace.time or 0.0 for who, trace in named if who == pair[0] and trace.kind == "posted"
        ),
    )
    assert any(
        one.is_found and one.clue == "order of posted"
        for one in over.link(sorted(named, key=lambda pair: pair[1].time or 0.0), mutant)
    )


@statistical(alpha=2 * ALPHA)
@pytest.mark.parametrize("names", [("study.db",), ("running study.db-wal", "running study.db")])
def test_order_in_coordinator_files_links_nothing(over: Run, names: tuple[str, ...]) -> None:
    """Only the positions of members and packet names in a file could show their order."""
    data = b"".join(over.files[0][name] for name in names)
    named, packets = (
        [(who, Trace("row")) for _, who in sorted((data.index(what), who) for what, who in found)]
        for found in (
            [(one.key, one.who) for one in over.people],
            [(one.name, one.who) for one in over.people],
        )
    )
    check(over.link(named, packets))
    assert any(one.is_found for one in over.link(named, list(named))), (
        "the same order would be found"
    )


def test_files_contain_no_tokens_packets_or_addresses(over: Run) -> None:
    """No file of coordinator or relay has tokens, pseudonyms, tickets, packets or addresses."""
    addresses = {address.encode() for address in over.addresses} | {b"127.0.9.9"}
    shown = {one.packet.token for one in over.people} | {one.pseudonym for one in over.people}
    shown |= {one.body for one in over.view.posted(over.study)} | addresses
    tickets, keys, names = (
        {getattr(one, what) for one in over.people} for what in ("ticket", "key", "name")
    )
    for name, data in over.files[0].items():
        # Answers wait in the coordinator's file until they are counted, and are gone when it ends;
        # a ticket says nothing of its owner.
        assert not [
            what for what in shown | (tickets if "running" not in name else set()) if what in data
        ], name
    for name, data in over.files[1].items():
        assert not [
            what
            for what in (shown if "keys" not in name else addresses) | tickets | keys | names
            if what in data
        ], name


def check(findings: list[LinkageResult]) -> None:
    """Check that the linker found nothing beyond chance."""
    assert findings and not [str(one) for one in findings if one.is_found or one.n_linked]
