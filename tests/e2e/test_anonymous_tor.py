"""An AnonML study with tokens over a private Tor network on loopback, and the network itself."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from capture import capture, why_not
from captured_http import keys_of
from certificates import Certificates, make_certificates
from e2e.anonymous import (
    Cheat,
    Fleet,
    Sent,
    TooSlowError,
    View,
    files_of,
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
from served import Coordinator, Participant, toml_of
from servers import free_port
from shoal.attacks.linker import Seen, Trace, link
from shoal.coordinator.store.base import Totals
from shoal.coordinator.store.opening import open_store
from shoal.entropy import SystemEntropy
from shoal.study.anonymity import Window
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet, packet_size
from shoal.transport.routes import study_route
from statistical.harness import statistical
from tools.tornet import HOST, TorNetwork, missing, tor_network

N = 24
ALPHA = 1e-7
"""Among so few a clue is found that has half of all guesses right, or senders on average in the first eighth of those suspected."""
PATIENCE = 40.0

pytestmark = pytest.mark.xdist_group("tor")
"""One worker for all of them: they share a network, and one study."""


@dataclass(frozen=True)
class Run:
    """A study that is over, and what everyone has of it."""

    manifest: Manifest
    people: list[Sent]
    cheat: Cheat
    view: View
    circuits: list[str]
    model: bytes
    totals: Totals
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
    """One for all tests here, with an onion service for a port."""
    if reason := missing():
        pytest.skip(reason)
    with tor_network(port) as network:
        yield network


@pytest.fixture(scope="module")
def over(network: TorNetwork, port: int, tmp_path_factory: pytest.TempPathFactory) -> Run:
    if reason := why_not():
        pytest.skip(reason)
    tls = make_certificates(tmp_path_factory.mktemp("certificates"))
    return in_time(partial(run, tls=tls, network=network, port=port), PATIENCE)


def run(home: Path, patience: float, tls: Certificates, network: TorNetwork, port: int) -> Run:
    """Have everyone take part, and gather everything; `TooSlowError` where they were too slow for the window."""
    via = f"tor:{HOST}:{network.socks_port}"
    (home / "coordinator").mkdir()
    document = document_of("anonml", N, participation={"minimum": N // 2, "size": N + 1})
    (home / "coordinator" / "study.toml").write_text(toml_of(document))
    words = ("--port", str(port), "--patience", str(patience), "--store", "sqlite:study.db")
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(home / "coordinator", "study.toml", *words, tls=tls))
        manifest, window = manifest_of(coordinator), window_of(coordinator)
        segments = stack.enter_context(capture(port))
        circuits = stack.enter_context(network.circuits())
        fleet = Fleet(home, coordinator, write_csv(home / "rows.csv", N), N, tls, "--via", via)
        stack.callback(fleet.kill)
        cheat = Cheat(manifest, coordinator, tls, via)
        cheat.send(window.collects_until)
        said, model = fleet.end(patience), model_when_done(coordinator, patience)
        trouble = coordinator.end()
    view = View(segments, keys_of(fleet.keys), 0, port)
    check_in_time(view, manifest, window)
    fleet.check(said)
    assert trouble == (0, "")
    with open_store(f"sqlite:{home / 'coordinator' / 'study.db'}") as kept:
        totals, names = kept.totals(manifest.digest.hex()), kept.submitted(manifest.digest.hex())
    files = files_of(home / "coordinator")
    return Run(manifest, sent_by(fleet.people, manifest), cheat, view, circuits, model, totals, names, files)


def check_in_time(view: View, manifest: Manifest, window: Window) -> None:
    """See that all packets came before the window ended, and that nobody enrolled so late that its packet had to be among the last."""
    packets, enrolments = (
        [one for one in view.to_coordinator if one.path == study_route(manifest.digest.hex(), what)]
        for what in ("submissions", "enrolments")
    )
    if len({one.body for one in packets if one.time < window.resends_until.timestamp()}) < N:
        raise TooSlowError(f"of {N} packets some have not come in time")
    last = max(one.time for one in enrolments)
    if last - min(one.time for one in enrolments) > (window.collects_until - window.opened).total_seconds() / 4:
        raise TooSlowError("it took so long until all were enrolled that the order shows in that of packets")


def test_everyone_counts_once_and_the_model_is_of_their_answers(over: Run) -> None:
    assert json.loads(over.model)["counts"] == {"answers": [N + 1], "late": 0}
    assert {one.name for one in over.people} < set(over.names) and len(over.names) == N + 1
    honest = [one.packet for one in over.people]
    assert over.model in [model_of(over.manifest, [*honest, one]) for one in over.cheat.sent]


def test_cheats_are_refused_and_counted(over: Run) -> None:
    over.cheat.check(over.totals.refused)
    assert over.totals.accepted == over.totals.enrolled == N + 1


def test_each_packet_has_a_circuit_of_its_own(over: Run) -> None:
    packets = [one for one in over.view.to_coordinator if one.path == over.submissions]
    # One that is not known to have arrived is sent once more.
    assert len({one.body for one in packets}) == N
    on_its_connection = Counter(one.connection.name for one in over.view.to_coordinator)
    assert {on_its_connection[one.connection.name] for one in packets} == {1}
    assert len({one.head for one in packets}) == 1 and {len(one.body) for one in packets} == {packet_size(over.manifest)}
    # Whoever takes part has one circuit for what carries its name, which may have several connections; all others have one each.
    streams = Counter(over.circuits)
    assert sum(n == 1 for n in streams.values()) >= N and sum(n > 1 for n in streams.values()) <= N + 2


@statistical(alpha=ALPHA)
def test_the_coordinator_cannot_link(over: Run) -> None:
    """It sees exits alone, who enrolled when, reads of which it guesses whose they are, and when which packet came."""
    whose = {one.packet.token: one.who for one in over.people}
    requests = sorted(over.view.to_coordinator, key=lambda one: one.time)
    named = known_of(over.manifest.digest.hex(), over.people, [(one, one.path, one.headers) for one in requests])
    first = {one.body: one for one in reversed(requests) if one.path == over.submissions}
    packets = [
        (whose[Packet.from_bytes(body, packet_size(over.manifest)).token], trace_of("packet", one, len(body)))
        for body, one in sorted(first.items(), key=lambda pair: pair[1].time)
    ]
    senders, traces = [name for name, _ in packets], [trace for _, trace in packets]
    findings = link(Seen(named, traces), senders, SystemEntropy(), ALPHA)
    assert not [str(one) for one in findings if one.is_found or one.n_linked]
    # Had they sent in the order in which they enrolled, it would be found.
    in_order = link(Seen(named, traces), list(dict.fromkeys(name for name, _ in named)), SystemEntropy(), ALPHA)
    assert "order of enrolment" in [one.clue for one in in_order if one.is_found]
    # And so would be whoever stops to read when its packet has come.
    hasty = [*named, *((name, Trace("hasty", until=trace.until)) for name, trace in packets)]
    assert "moment of hasty" in [one.clue for one in link(Seen(hasty, traces), senders, SystemEntropy(), ALPHA) if one.is_found]


def test_no_file_of_the_coordinator_has_what_would_link(over: Run) -> None:
    secrets = {what for one in over.people for what in (one.packet.token, one.pseudonym, one.ticket)}
    for name, data in over.files.items():
        assert not [what for what in secrets if what in data], name


def test_an_onion_service_is_reached(network: TorNetwork, port: int, tmp_path: Path) -> None:
    """A coordinator whose address nobody knows: somebody looks at its studies, and agrees to nothing."""
    (tmp_path / "study.toml").write_text(toml_of(document_of("anonml")))
    with Coordinator(tmp_path, "study.toml", "--port", str(port)) as coordinator:
        someone = Participant(tmp_path, "someone")
        write_csv(someone.data, 1)
        looked = someone.start(
            "join", f"http://{network.onion}", "--data", someone.data, "--preview", "--via", f"tor:{HOST}:{network.socks_port}"
        )
        told = looked.told()
        assert told["study"] == coordinator.studies[0], told


def test_the_network_speaks_to_nobody_outside(network: TorNetwork) -> None:
    """All connections of its processes are between addresses of this machine."""
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


def test_a_network_is_gone_when_it_is_stopped(network: TorNetwork) -> None:
    """The last test of this module: others need it."""
    pids = network.pids
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    network.stop()
    assert network.pids == [] and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def _address(end: str) -> str:
    return socket.inet_ntoa(bytes.fromhex(end.partition(":")[0])[::-1])
