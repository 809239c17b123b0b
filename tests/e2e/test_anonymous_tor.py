"""An AnonML study with tokens over a private Tor network on loopback, and the network itself."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from shoal.attacks.linker import ObservedTraffic, Trace, link
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import StudyTotals
from shoal.entropy import SystemEntropy
from shoal.study.manifest import Manifest
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import study_route
from shoal.transport.packets import Packet
from tests.e2e.anonymous import (
    Cheat,
    Fleet,
    Sent,
    TooSlowError,
    View,
    compute_model,
    fetch_manifest,
    fetch_window,
    list_known_traces,
    make_trace,
    read_files,
    read_sent_packets,
    run_with_retries,
    wait_for_model,
)
from tests.statistical.harness import statistical
from tests.support.http import capture, read_keys, why_not
from tests.support.participants import compute_packet_size, make_document
from tests.support.servers import Coordinator, Participant, format_toml, free_port, write_csv
from tests.support.tls import Certificates, make_certificates
from tools.tornet import HOST, TorNetwork, missing, tor_network

N = 24
ALPHA = 1e-7
"""Among so few a clue is found that has half of all guesses right, or senders on average in the
first eighth of those suspected.
"""
PATIENCE = 40.0
ONION_SECONDS = 600.0
"""Longest wait for an onion service; a few seconds on an idle machine."""

pytestmark = pytest.mark.xdist_group("tor")
"""All tests run in one worker: they share a network and one study."""


@dataclass(frozen=True)
class Run:
    """A finished study, and what each party has of it."""

    manifest: Manifest
    people: list[Sent]
    cheat: Cheat
    view: View
    circuits: list[str]
    model: bytes
    totals: StudyTotals
    names: tuple[bytes, ...]
    files: dict[str, bytes]

    @property
    def submissions(self) -> str:
        return study_route(self.manifest.digest.hex(), "submissions")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def network(port: int) -> Iterator[TorNetwork]:
    """Start one network with an onion service for all tests here."""
    if reason := missing():
        pytest.skip(reason)
    with tor_network(port) as network:
        yield network


@pytest.fixture(scope="module")
def over(network: TorNetwork, port: int, tmp_path_factory: pytest.TempPathFactory) -> Run:
    if reason := why_not():
        pytest.skip(reason)
    tls = make_certificates(tmp_path_factory.mktemp("certificates"))
    return run_with_retries(partial(run, tls=tls, network=network, port=port), PATIENCE)


def run(home: Path, patience: float, tls: Certificates, network: TorNetwork, port: int) -> Run:
    """Run a study with all participants; raise `TooSlowError` if the machine was too slow."""
    via = f"tor:{HOST}:{network.socks_port}"
    (home / "coordinator").mkdir()
    document = make_document("anonml", N, participation={"minimum": N // 2, "size": N + 1})
    (home / "coordinator" / "study.toml").write_text(format_toml(document))
    words = ("--port", str(port), "--patience", str(patience), "--store", "sqlite:study.db")
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            Coordinator(home / "coordinator", "study.toml", *words, tls=tls)
        )
        manifest, window = fetch_manifest(coordinator), fetch_window(coordinator)
        segments = stack.enter_context(capture(port))
        circuits = stack.enter_context(network.circuits())
        fleet = Fleet(home, coordinator, write_csv(home / "rows.csv", N), N, tls, "--via", via)
        stack.callback(fleet.kill)
        cheat = Cheat(manifest, coordinator, tls, via)
        cheat.send(window.collects_until)
        said, model = fleet.end(patience), wait_for_model(coordinator, patience)
        trouble = coordinator.end()
    view = View(segments, read_keys(fleet.keys), 0, port)
    check_timing(view, manifest, window)
    fleet.check(said)
    assert trouble == (0, "")
    with open_store(f"sqlite:{home / 'coordinator' / 'study.db'}") as kept:
        totals, names = (
            kept.count_totals(manifest.digest.hex()),
            kept.list_submissions(manifest.digest.hex()),
        )
    files = read_files(home / "coordinator")
    return Run(
        manifest,
        read_sent_packets(fleet.people, manifest),
        cheat,
        view,
        circuits,
        model,
        totals,
        names,
        files,
    )


def check_timing(view: View, manifest: Manifest, window: PhaseWindow) -> None:
    """Check that all packets came in time, and that no one enrolled too late to send early."""
    packets, enrolments = (
        [one for one in view.to_coordinator if one.path == study_route(manifest.digest.hex(), what)]
        for what in ("submissions", "enrolments")
    )
    if len({one.body for one in packets if one.time < window.resends_until.timestamp()}) < N:
        raise TooSlowError(f"of {N} packets some have not come in time")
    last = max(one.time for one in enrolments)
    if (
        last - min(one.time for one in enrolments)
        > (window.collects_until - window.opened).total_seconds() / 4
    ):
        raise TooSlowError(
            "it took so long until all were enrolled that the order shows in that of packets"
        )


def test_model_counts_each_answer_once(over: Run) -> None:
    assert json.loads(over.model)["counts"] == {"answers": [N + 1], "late": 0}
    assert {one.name for one in over.people} < set(over.names) and len(over.names) == N + 1
    honest = [one.packet for one in over.people]
    assert over.model in [compute_model(over.manifest, [*honest, one]) for one in over.cheat.sent]


def test_invalid_packets_are_rejected_and_counted(over: Run) -> None:
    over.cheat.check(over.totals.refused)
    assert over.totals.accepted == over.totals.enrolled == N + 1


def test_each_packet_has_own_circuit(over: Run) -> None:
    packets = [one for one in over.view.to_coordinator if one.path == over.submissions]
    # One that is not known to have arrived is sent once more.
    assert len({one.body for one in packets}) == N
    on_its_connection = Counter(one.connection.name for one in over.view.to_coordinator)
    assert {on_its_connection[one.connection.name] for one in packets} == {1}
    assert len({one.head for one in packets}) == 1 and {len(one.body) for one in packets} == {
        compute_packet_size(over.manifest)
    }
    # Each participant has one circuit for signed requests, with one or more connections; all other
    # circuits have one connection each.
    streams = Counter(over.circuits)
    assert (
        sum(n == 1 for n in streams.values()) >= N and sum(n > 1 for n in streams.values()) <= N + 2
    )


@statistical(alpha=ALPHA)
def test_coordinator_cannot_link_packets_to_people(over: Run) -> None:
    """The coordinator sees exits, times of enrolments and packets, and reads that it guesses."""
    owners = {one.packet.token: one.who for one in over.people}
    requests = sorted(over.view.to_coordinator, key=lambda one: one.time)
    named = list_known_traces(
        over.manifest.digest.hex(), over.people, [(one, one.path, one.headers) for one in requests]
    )
    first = {one.body: one for one in reversed(requests) if one.path == over.submissions}
    packets = [
        (
            owners[Packet.from_bytes(body, compute_packet_size(over.manifest)).token],
            make_trace("packet", one, len(body)),
        )
        for body, one in sorted(first.items(), key=lambda pair: pair[1].time)
    ]
    senders, traces = [name for name, _ in packets], [trace for _, trace in packets]
    findings = link(ObservedTraffic(named, traces), senders, SystemEntropy(), ALPHA)
    assert not [str(one) for one in findings if one.is_found or one.n_linked]
    # Had they sent in the order in which they enrolled, it would be found.
    in_order = link(
        ObservedTraffic(named, traces),
        list(dict.fromkeys(name for name, _ in named)),
        SystemEntropy(),
        ALPHA,
    )
    assert "order of enrolment" in [one.clue for one in in_order if one.is_found]
    # So would a person who stops polling when the packet has arrived.
    hasty = [*named, *((name, Trace("hasty", ended=trace.ended)) for name, trace in packets)]
    assert "moment of hasty" in [
        one.clue
        for one in link(ObservedTraffic(hasty, traces), senders, SystemEntropy(), ALPHA)
        if one.is_found
    ]


def test_coordinator_files_contain_no_tokens_or_tickets(over: Run) -> None:
    secrets = {
        what for one in over.people for what in (one.packet.token, one.pseudonym, one.ticket)
    }
    for name, data in over.files.items():
        assert not [what for what in secrets if what in data], name


def test_onion_service_is_reached(network: TorNetwork, port: int, tmp_path: Path) -> None:
    """Fetch the studies of a coordinator with an onion address, and consent to nothing.

    A busy machine may need minutes until the service's descriptor is published and a circuit is
    built, so the command is repeated until it succeeds or the deadline has passed.
    """
    (tmp_path / "study.toml").write_text(format_toml(make_document("anonml")))
    with Coordinator(tmp_path, "study.toml", "--port", str(port)) as coordinator:
        participant = Participant(tmp_path, "someone")
        write_csv(participant.data, 1)
        via = f"tor:{HOST}:{network.socks_port}"
        deadline = time.monotonic() + ONION_SECONDS
        while True:
            preview = participant.start(
                "join",
                f"http://{network.onion}",
                "--data",
                participant.data,
                "--new-ledger",
                "--preview",
                "--via",
                via,
            )
            if preview.wait() == 0 or time.monotonic() > deadline:
                break
            time.sleep(1)
        assert preview.wait_for_result()["study"] == coordinator.studies[0]


def test_network_connects_to_loopback_only(network: TorNetwork) -> None:
    """All connections of its processes have loopback addresses."""
    sockets = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        sockets[fields[9]] = [_address(end) for end in fields[1:3]]
    seen = 0
    for pid in network.pids:
        for link_file in Path(f"/proc/{pid}/fd").iterdir():
            name = str(link_file.readlink())
            for end in sockets.get(name.removeprefix("socket:[").removesuffix("]"), ()):
                assert end == "0.0.0.0" or end.startswith("127."), (pid, end)
                seen += 1
    assert seen > len(network.pids)


def test_stop_ends_all_processes_of_network(network: TorNetwork) -> None:
    """This test must be the last of the module: others need the network."""
    pids = network.pids
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    network.stop()
    assert network.pids == [] and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def _address(end: str) -> str:
    return socket.inet_ntoa(bytes.fromhex(end.partition(":")[0])[::-1])
