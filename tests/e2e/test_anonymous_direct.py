"""Times alone do not link packets to people, even for an observer who knows all reads.

Over Tor the coordinator guesses by their times which reads belong to one person. Here people
connect directly, each from a different address, so that the test knows; the observer gets no
addresses and connections.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from shoal.attacks.linker import ObservedTraffic, Trace, link
from shoal.entropy import SystemEntropy
from shoal.study.manifest import Manifest
from shoal.transport.api import study_route
from tests.e2e.anonymous import (
    Fleet,
    TooSlowError,
    View,
    fetch_manifest,
    fetch_window,
    make_trace,
    run_with_retries,
    wait_for_model,
)
from tests.statistical.harness import statistical
from tests.support.http import Request, capture, read_keys, why_not
from tests.support.participants import make_document
from tests.support.servers import Coordinator, format_toml, write_csv
from tests.support.tls import Certificates

N = 24
ALPHA = 1e-7
PATIENCE = 20.0


@dataclass(frozen=True)
class Run:
    """A finished study: the requests to the coordinator, and their senders."""

    manifest: Manifest
    asked: list[tuple[str, Request]]

    def traces(self, kind: str, what: str) -> list[tuple[str, Trace]]:
        """Return what an observer without addresses sees of the requests of one kind."""
        route = study_route(self.manifest.digest.hex(), what)
        found = [
            (who, make_trace(kind, one, len(one.body), ()))
            for who, one in self.asked
            if one.path.partition("?")[0] == route
        ]
        return [(who, replace(trace, address=None, connection=None)) for who, trace in found]


def run(home: Path, patience: float, tls: Certificates) -> Run:
    """Run a study with all participants; raise `TooSlowError` if the machine was too slow."""
    (home / "coordinator").mkdir()
    document = make_document("anonml", N, participation={"minimum": N // 2, "size": N + 1})
    (home / "coordinator" / "study.toml").write_text(format_toml(document))
    with ExitStack() as stack:
        words = ("--port", "0", "--patience", str(patience), "--store", "sqlite:study.db")
        coordinator = stack.enter_context(
            Coordinator(home / "coordinator", "study.toml", *words, tls=tls)
        )
        manifest, window = fetch_manifest(coordinator), fetch_window(coordinator)
        segments = stack.enter_context(capture(coordinator.port))
        fleet = Fleet(
            home, coordinator, write_csv(home / "rows.csv", N), N, tls, "--from-addresses"
        )
        stack.callback(fleet.kill)
        said = fleet.end(patience)
        wait_for_model(coordinator, patience)
        assert coordinator.end() == (0, "")
    view = View(segments, read_keys(fleet.keys), 0, coordinator.port)
    owners = {fleet.address(i): one.name for i, one in enumerate(fleet.people)}
    requests = sorted(view.to_coordinator, key=lambda one: one.time)
    found = Run(
        manifest,
        [
            (owners[one.connection.client[0]], one)
            for one in requests
            if one.connection.client[0] in owners
        ],
    )
    if (
        len(
            {
                who
                for who, trace in found.traces("packet", "submissions")
                if (trace.time or 0.0) < window.resends_until.timestamp()
            }
        )
        < N
    ):
        raise TooSlowError(f"of {N} packets some have not come in time")
    enrolled = [trace.time or 0.0 for _, trace in found.traces("enrolment", "enrolments")]
    if max(enrolled) - min(enrolled) > (window.collects_until - window.opened).total_seconds() / 4:
        raise TooSlowError(
            "it took so long until all were enrolled that the order shows in that of packets"
        )
    fleet.check(said)
    return found


@pytest.fixture(scope="module")
def over(certificates: Certificates) -> Run:
    if reason := why_not():
        pytest.skip(reason)
    return run_with_retries(partial(run, tls=certificates), PATIENCE)


@statistical(alpha=ALPHA)
def test_times_of_reads_do_not_link_packets_to_senders(over: Run) -> None:
    named = [
        *over.traces("enrolment", "enrolments"),
        *over.traces("board", "board"),
        *over.traces("members", "members"),
    ]
    # One that is not known to have arrived is sent once more.
    packets = list(
        {
            who: (who, trace) for who, trace in reversed(over.traces("packet", "submissions"))
        }.values()
    )[::-1]
    assert len(packets) == N == len({who for who, trace in named if trace.kind == "board"})
    senders, traces = [who for who, _ in packets], [trace for _, trace in packets]
    findings = link(ObservedTraffic(named, traces), senders, SystemEntropy(), ALPHA)
    assert not [str(one) for one in findings if one.is_found or one.n_linked]
    # A person who stops polling when the packet has arrived would be found.
    came = {who: trace.ended for who, trace in packets}
    hasty = [
        (who, replace(trace, ended=came[who]) if trace.kind == "board" else trace)
        for who, trace in named
    ]
    assert "moment of board" in [
        one.clue
        for one in link(ObservedTraffic(hasty, traces), senders, SystemEntropy(), ALPHA)
        if one.is_found
    ]
