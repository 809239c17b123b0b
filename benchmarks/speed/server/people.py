"""AnonML over HTTP: people enrol and answer once, on open connections.

Every acknowledged answer is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import httpx2
import numpy as np

from benchmarks.measure import Measure
from benchmarks.speed.server.load import Body, Load, Talk, Tally, head, load
from benchmarks.speed.server.runs import Coordinator, coordinator
from shoal.clock import SystemClock
from shoal.coordinator.store import open_store
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.messages.codec import decode, encode
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAsk
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.study.anonml import build_script
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.transport.api import (
    CBOR,
    JSON,
    TICKET_BYTES,
    Enrolment,
    MessagePage,
    from_cbor,
    study_route,
    to_json,
)
from shoal.transport.signing import sign_request

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
    """Yield enrolments and submissions a second, by 64 connections, one worker, SQLite."""
    manifest, entropy = Manifest(parse_study_text(TEXT)), SystemEntropy()
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
            accepted = store.count_totals(served.study).accepted
        if accepted != len(answers):
            raise RuntimeError(
                f"{len(answers)} submissions were acknowledged and {accepted} accepted"
            )
    for name, done, cpu in (
        ("enrolments", enrolled, middle - start),
        ("submissions", sent, after - before),
    ):
        yield Measure(bench, f"anonml_{name}", done.rate, "1/s", "higher")
        yield Measure(bench, f"anonml_{name}_cpu", 1e6 * cpu / done.n, "us", "lower")
        yield Measure(bench, f"anonml_{name}_p50", done.p50, "ms", "lower")
        yield Measure(bench, f"anonml_{name}_p99", done.p99, "ms", "lower")


def enrol(served: Coordinator, tickets: Sequence[bytes]) -> Load:
    """Enrol a new person for each ticket."""
    requests = _enrolments(study_route(served.study, "enrolments"), tickets)
    return load(served.port, _each(requests, 200), _PATIENCE_SECONDS, 4096, N_CONNECTIONS)


def _each(requests: Sequence[tuple[Body, ...]], status: int) -> Callable[[Tally], Talk]:
    """Yield every request once, on the next free connection."""
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
        signature = sign_request(
            Identity.from_seed(entropy.bytes(32)), "POST", path, body, now, entropy
        )
        requests.append(
            (head(path, len(body), f"authorization: {signature}", f"content-type: {JSON}"), body)
        )
    return requests


def _ask(url: str, manifest: Manifest) -> AnonMLAsk:
    """Return the study's question to everyone, once it has begun."""
    answer = httpx2.get(
        f"{url}{study_route(manifest.digest.hex(), 'board')}",
        params={"after": 0, "wait": 30},
        timeout=60,
    )
    asked = decode(
        from_cbor(answer.content, MessagePage).letters[0].payload, MESSAGES, manifest.digest
    )
    assert isinstance(asked, AnonMLAsk)
    return asked


def _answers(
    manifest: Manifest, tickets: Sequence[bytes], ask: AnonMLAsk
) -> Iterator[tuple[Body, ...]]:
    """Yield answers of people with random ages, each in a separate request."""
    script, entropy, now = (
        build_script(manifest.study, manifest.digest),
        SystemEntropy(),
        SystemClock().now(),
    )
    path = study_route(manifest.digest.hex(), "submissions")
    for ticket in tickets:
        age, label = np.array([entropy.below(5)]), np.array([entropy.below(2)])
        peer = AnonMLPeer(manifest.digest, script, ticket, {"age": age}, label)
        state, _ = peer.on_message(peer.initial_state(), ask, now, entropy)
        for question in peer.own_questions:
            body = encode(peer.answer(state, question, entropy))
            yield head(path, len(body), f"content-type: {CBOR}"), body
