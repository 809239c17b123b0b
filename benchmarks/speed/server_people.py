"""AnonML over HTTP: people who enrol and answer, each once, by connections that are kept open. All that is acknowledged is on the disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import httpx2
import numpy as np

from benchmarks.measure import Measure
from benchmarks.speed.server_load import Body, Load, Talk, Tally, head, load
from benchmarks.speed.server_runs import Coordinator, coordinator
from shoal.clock import SystemClock
from shoal.coordinator.store.opening import open_store
from shoal.crypto.roster import Identity
from shoal.entropy import SystemEntropy
from shoal.messages.codec import decode, encode
from shoal.protocols.anonml.messages import MESSAGES, Ask
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.study.anonml import script_of
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.transport.forms import TICKET_BYTES, Enrolment, Letters, from_cbor, to_json
from shoal.transport.routes import CBOR, JSON, study_route
from shoal.transport.signing import sign

N_PEOPLE, N_CONNECTIONS = 4_000, 64
_PATIENCE_SECONDS = 600.0

TEXT = """
title = "Naps"
purpose = "To measure."
contact = "a@example.org"
protocol = "anonml"
[label]
name = "naps"
values = ["no", "yes"]
[[feature]]
name = "age"
range = [0, 120]
bins = [20, 40, 60, 80]
missing = false
[privacy]
epsilon = 2.0
[participation]
minimum = 100
size = 1_000_000
"""


def measures(bench: str) -> Iterator[Measure]:
    """Enrolments and submissions a second, by 64 connections, one worker, SQLite."""
    manifest, entropy = Manifest(parse(TEXT)), SystemEntropy()
    tickets = [entropy.bytes(TICKET_BYTES) for _ in range(N_PEOPLE)]
    with coordinator(TEXT) as served:
        start = served.cpu_seconds()
        enrolled = enrol(served, tickets)
        middle = served.cpu_seconds()
        answers = list(_answers(manifest, tickets, _ask(served.url, manifest)))
        before = served.cpu_seconds()
        sent = load(served.port, _each(answers, 202), _PATIENCE_SECONDS, 4096, N_CONNECTIONS)
        after = served.cpu_seconds()
        with open_store(f"sqlite:{served.home}/coordinator.db") as store:
            accepted = store.totals(served.study).accepted
        if accepted != len(answers):
            raise RuntimeError(f"{len(answers)} submissions were acknowledged and {accepted} accepted")
    for name, done, cpu in (("enrolments", enrolled, middle - start), ("submissions", sent, after - before)):
        yield Measure(bench, f"anonml_{name}", done.rate, "1/s", "higher")
        yield Measure(bench, f"anonml_{name}_cpu", 1e6 * cpu / done.n, "us", "lower")
        yield Measure(bench, f"anonml_{name}_p50", done.p50, "ms", "lower")
        yield Measure(bench, f"anonml_{name}_p99", done.p99, "ms", "lower")


def enrol(served: Coordinator, tickets: Sequence[bytes]) -> Load:
    """Enrol somebody new for each ticket."""
    requests = _enrolments(study_route(served.study, "enrolments"), tickets)
    return load(served.port, _each(requests, 200), _PATIENCE_SECONDS, 4096, N_CONNECTIONS)


def _each(requests: Sequence[tuple[Body, ...]], status: int) -> Callable[[Tally], Talk]:
    """Every request once, by whichever connection is free."""
    left = iter(requests)

    def talk(tally: Tally) -> Talk:
        for request in left:
            began = time.perf_counter()
            found, _ = yield request
            if found != status:
                raise RuntimeError(f"a request was answered with {found}")
            tally.note(began)

    return talk


def _enrolments(path: str, tickets: Sequence[bytes]) -> list[tuple[Body, ...]]:
    entropy, now = SystemEntropy(), round(1000 * SystemClock().now().timestamp())
    requests: list[tuple[Body, ...]] = []
    for ticket in tickets:
        body = to_json(Enrolment(ticket=ticket.hex()))
        signature = sign(Identity.from_seed(entropy.bytes(32)), "POST", path, body, now, entropy)
        requests.append((head(path, len(body), f"authorization: {signature}", f"content-type: {JSON}"), body))
    return requests


def _ask(url: str, manifest: Manifest) -> Ask:
    """The question that everyone is asked, when the study has begun."""
    answer = httpx2.get(f"{url}{study_route(manifest.digest.hex(), 'board')}", params={"after": 0, "wait": 30}, timeout=60)
    asked = decode(from_cbor(answer.content, Letters).letters[0].payload, MESSAGES, manifest.digest)
    assert isinstance(asked, Ask)
    return asked


def _answers(manifest: Manifest, tickets: Sequence[bytes], ask: Ask) -> Iterator[tuple[Body, ...]]:
    """What people of random ages answer, each in a request of its own."""
    script, entropy, now = script_of(manifest.study, manifest.digest), SystemEntropy(), SystemClock().now()
    path = study_route(manifest.digest.hex(), "submissions")
    for ticket in tickets:
        age, label = np.array([entropy.below(5)]), np.array([entropy.below(2)])
        peer = AnonMLPeer(manifest.digest, script, ticket, {"age": age}, label)
        state, _ = peer.received(peer.initial(), ask, now, entropy)
        for question in peer.mine:
            body = encode(peer.answer(state, question, entropy))
            yield head(path, len(body), f"content-type: {CBOR}"), body
