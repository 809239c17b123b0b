"""What the coordinator can tell by times alone, by one who knows more than any coordinator could: whose reads of the board are whose.

Over Tor it guesses that, by what follows what. Here people come directly, each from an address of its own, so that the test knows; the
addresses and connections themselves are kept from the observer. So are reads of the list of members, which come just before each packet:
nothing leads from one who reads the board to them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from capture import capture, why_not
from captured_http import Request, keys_of
from certificates import Certificates
from e2e.anonymous import Fleet, TooSlowError, View, in_time, manifest_of, model_when_done, trace_of, window_of
from live import write_csv
from participants import document_of
from served import Coordinator, toml_of
from shoal.attacks.linker import Seen, Trace, link
from shoal.entropy import SystemEntropy
from shoal.study.manifest import Manifest
from shoal.transport.routes import study_route
from statistical.harness import statistical

N = 24
ALPHA = 1e-7
PATIENCE = 20.0


@dataclass(frozen=True)
class Run:
    """A study that is over: what came to the coordinator, and from whom."""

    manifest: Manifest
    asked: list[tuple[str, Request]]

    def traces(self, kind: str, what: str) -> list[tuple[str, Trace]]:
        """What an observer without addresses sees of the requests of a kind."""
        route = study_route(self.manifest.digest.hex(), what)
        found = [(who, trace_of(kind, one, len(one.body), ())) for who, one in self.asked if one.path.partition("?")[0] == route]
        return [(who, replace(trace, address=None, connection=None)) for who, trace in found]


def run(home: Path, patience: float, tls: Certificates) -> Run:
    """Have everyone take part; `TooSlowError` where they were too slow for the window."""
    (home / "coordinator").mkdir()
    document = document_of("anonml", N, participation={"minimum": N // 2, "size": N + 1})
    (home / "coordinator" / "study.toml").write_text(toml_of(document))
    with ExitStack() as stack:
        words = ("--port", "0", "--patience", str(patience), "--store", "sqlite:study.db")
        coordinator = stack.enter_context(Coordinator(home / "coordinator", "study.toml", *words, tls=tls))
        manifest, window = manifest_of(coordinator), window_of(coordinator)
        segments = stack.enter_context(capture(coordinator.port))
        fleet = Fleet(home, coordinator, write_csv(home / "rows.csv", N), N, tls, "--from-addresses")
        stack.callback(fleet.kill)
        said = fleet.end(patience)
        model_when_done(coordinator, patience)
        assert coordinator.end() == (0, "")
    view = View(segments, keys_of(fleet.keys), 0, coordinator.port)
    whose = {fleet.address(i): one.name for i, one in enumerate(fleet.people)}
    requests = sorted(view.to_coordinator, key=lambda one: one.time)
    found = Run(manifest, [(whose[one.connection.client[0]], one) for one in requests if one.connection.client[0] in whose])
    if len({who for who, trace in found.traces("packet", "submissions") if (trace.time or 0.0) < window.resends_until.timestamp()}) < N:
        raise TooSlowError(f"of {N} packets some have not come in time")
    enrolled = [trace.time or 0.0 for _, trace in found.traces("enrolment", "enrolments")]
    if max(enrolled) - min(enrolled) > (window.collects_until - window.opened).total_seconds() / 4:
        raise TooSlowError("it took so long until all were enrolled that the order shows in that of packets")
    fleet.check(said)
    return found


@pytest.fixture(scope="module")
def over(certificates: Certificates) -> Run:
    if reason := why_not():
        pytest.skip(reason)
    return in_time(partial(run, tls=certificates), PATIENCE)


@statistical(alpha=ALPHA)
def test_who_reads_when_does_not_tell_who_sends_when(over: Run) -> None:
    named = over.traces("enrolment", "enrolments") + over.traces("board", "board")
    # One that is not known to have arrived is sent once more.
    packets = list({who: (who, trace) for who, trace in reversed(over.traces("packet", "submissions"))}.values())[::-1]
    assert len(packets) == N == len({who for who, trace in named if trace.kind == "board"})
    senders, traces = [who for who, _ in packets], [trace for _, trace in packets]
    findings = link(Seen(named, traces), senders, SystemEntropy(), ALPHA)
    assert not [str(one) for one in findings if one.is_found or one.n_linked]
    # Whoever stops to read when its packet has come would be found.
    came = {who: trace.until for who, trace in packets}
    hasty = [(who, replace(trace, until=came[who]) if trace.kind == "board" else trace) for who, trace in named]
    assert "moment of board" in [one.clue for one in link(Seen(hasty, traces), senders, SystemEntropy(), ALPHA) if one.is_found]
