"""Results of real processes equal results in memory, if both draw from the same seeds.

The participants run the real commands with seeded randomness (`tests.support.seeds`). Their keys,
tickets and positions are read from their files afterwards, and `run_local` runs the same machines
again. The coordinator must publish the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.coordinator.store.base import StudyRecord
from shoal.coordinator.studies import encode_result
from shoal.data import tables
from shoal.messages.base import Array
from shoal.participant.keys import derive_identity
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Finish,
    Input,
    OutgoingMessage,
    Peer,
    ProtocolOutcome,
    SentMessage,
    Started,
    open_hosts,
    run_local,
)
from shoal.protocols.ddml.aggregator import DDMLAggregator, DDMLAggregatorResult
from shoal.study import ddml
from shoal.study.ddml import DDMLResult
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.protocol import Seat
from tests.support.coordinator import make_aggregator
from tests.support.machines import Streams
from tests.support.participants import folder, make_document
from tests.support.servers import (
    Coordinator,
    Participant,
    Postgres,
    format_toml,
    wait_for_results,
    write_csv,
    write_roster,
)
from tests.support.tls import Certificates

__all__ = ["folder"]

PATIENCE = 86_400_000

CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "anonml": (
        "anonml",
        6,
        1,
        {"participation": {"minimum": 6, "size": 6}, "privacy": {"epsilon": 1.0}},
    ),
    "sdq, sums": (
        "sdq",
        3,
        60,
        {"sdq": {"n_databases": 3, "max_colluders": 1, "depth": 2, "choice": "sums"}},
    ),
    "sdq, mpc": (
        "sdq",
        3,
        60,
        {"sdq": {"n_databases": 3, "max_colluders": 1, "depth": 2, "choice": "mpc"}},
    ),
    "pfds": ("pfds", 3, 60, {"pfds": {"n_holders": 3}}),
    "pfds, sums": ("pfds", 3, 60, {"trust": "secure-sum", "pfds": {"n_holders": 3}}),
    "pfds, paper": ("pfds", 3, 60, {"variant": "paper", "pfds": {"n_holders": 3}}),
}


ALWAYS = ("anonml", "sdq, sums", "pfds", "pfds, paper")
"""Cases on SQLite in `make test`; `make soak` runs the others, and all on PostgreSQL."""

RUNS = [
    pytest.param(
        case, store, marks=() if store == "sqlite" and case in ALWAYS else pytest.mark.soak
    )
    for case in CASES
    for store in ("sqlite", "postgresql")
]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return options of ``shoal serve``: one process with SQLite, or two with PostgreSQL."""
    if request.param == "sqlite":
        return ("--store", "sqlite:coordinator.db")
    server: Postgres = request.getfixturevalue("postgres_server")
    return ("--store", server.new_database(), "--workers", "2")


def make_seeded_people(home: Path, seed: str, n: int, rows: int) -> list[Participant]:
    people = [
        Participant(home, f"site-{i}", ("-m", "tests.support.seeds", seed, f"site-{i}"))
        for i in range(n)
    ]
    for i, one in enumerate(people):
        write_csv(one.data, rows, i)
    return people


def serve(
    stack: ExitStack,
    home: Path,
    tls: Certificates,
    store: tuple[str, ...],
    document: dict[str, Any],
    people: list[Participant],
) -> Coordinator:
    (home / "study.toml").write_text(format_toml(document))
    has_roster = document["protocol"] == "sdq" or document.get("trust") == "secure-sum"
    roster = ("--roster", write_roster(stack, people)) if has_roster else ()
    return stack.enter_context(
        Coordinator(home, "study.toml", "--port", "0", "--tickets", *store, *roster, tls=tls)
    )


def rebuild_peers(
    people: list[Participant], study: str
) -> tuple[Manifest, dict[str, Peer[Any]], dict[str, str]]:
    """Return the manifest, the peers by the coordinator's names, and their owners, from files."""
    peers: dict[str, Peer[Any]] = {}
    owners: dict[str, str] = {}
    for one in people:
        joined = one.joined(study)
        manifest = Manifest.from_bytes(joined.manifest)
        identity, table = (
            derive_identity(manifest, one.seed()),
            tables.read_table_file(str(one.data)),
        )
        assert joined.name is not None
        handle = StudyHandle(manifest)
        peers[joined.name] = handle.make_peer(
            handle.encode_rows(table), Seat(identity, joined.ticket, joined.position)
        )
        owners[joined.name] = one.name
    return manifest, peers, owners


@pytest.mark.parametrize(("case", "store"), RUNS, indirect=["store"])
def test_result_over_http_equals_result_in_memory(
    folder: Path, certificates: Certificates, stack: ExitStack, case: str, store: tuple[str, ...]
) -> None:
    protocol, n, rows, more = CASES[case]
    people = make_seeded_people(folder, case, n, rows)
    coordinator = serve(
        stack, folder, certificates, store, make_document(protocol, n, **more), people
    )
    results = wait_for_results(stack, [one.join(coordinator) for one in people])
    assert [one["standing"] for one in results] == ["finished"] * n, results
    coordinator.model()

    study = coordinator.studies[0]
    manifest, peers, owners = rebuild_peers(people, study)
    aggregator = make_aggregator(manifest, StudyRecord(study, manifest.to_bytes(), 0, PATIENCE))
    assert aggregator is not None

    def run_in_memory(owners: dict[str, str]) -> bytes:
        outcome = run_local(aggregator, peers, Streams(case, owners))
        assert not outcome.aborted and not outcome.failed and not outcome.rejected
        return encode_result(StudyHandle(manifest), outcome.results[AGGREGATOR])

    published = coordinator.get("model").content
    assert published == run_in_memory(owners)
    # The result changes if one participant draws from another stream. The one bit of a person may
    # be the same.
    is_seen = [published != run_in_memory(owners | {name: "someone else"}) for name in owners]
    assert any(is_seen) if protocol == "anonml" else all(is_seen)


@pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
def test_ddml_result_over_http_equals_result_in_memory(
    folder: Path, certificates: Certificates, stack: ExitStack, store: tuple[str, ...]
) -> None:
    n, seed = 4, "devices"
    settings = {
        "participation": {"minimum": n, "size": n},
        "privacy": {"epsilon": 4.0, "n_updates": 2},
    }
    people = make_seeded_people(folder, seed, n, 20)
    document = make_document("ddml", n, **settings, ddml={"n_instances": 1})
    coordinator = serve(stack, folder, certificates, store, document, people)
    first = np.frombuffer(coordinator.post("draw").content[8:], "<i4").astype(np.int32)
    for one in people:
        assert wait_for_results(stack, [one.join(coordinator)])[0]["standing"] == "finished"
    coordinator.model()

    manifest, peers, owners = rebuild_peers(people, coordinator.studies[0])
    study = manifest.study
    aggregator = DDMLAggregator(
        manifest.digest, ddml.build_params(study), ddml.make_spam_filter(study)
    )
    learned = run_one_at_a_time(aggregator, peers, Streams(seed, owners), first)
    assert learned.n_merged == 2 * n
    assert coordinator.get("model").content == encode_result(
        StudyHandle(manifest), DDMLResult(learned.model, learned.n_merged)
    )


def run_one_at_a_time(
    aggregator: DDMLAggregator, peers: Mapping[str, Peer[Any]], entropy: Streams, first: Any
) -> DDMLAggregatorResult:
    """Run each device to its end before the next one begins, from a given instance."""
    hosts, outcome = open_hosts(aggregator, peers, entropy, None), ProtocolOutcome()
    desk = hosts[AGGREGATOR]
    desk.commit(desk.handle(Started(), START, outcome))
    desk.state = desk.state.replace(instances=(Array.from_values(first),))
    for name in peers:
        inbox: deque[tuple[str, Input | SentMessage]] = deque([(name, Started())])
        while inbox:
            to, given = inbox.popleft()
            handled = hosts[to].handle(given, START, outcome)
            hosts[to].commit(handled)
            for item in handled.work:
                if isinstance(item, Finish):
                    outcome.record_ending(to, item)
                elif isinstance(item, OutgoingMessage):
                    sent = hosts[to].begin_send(item, START, outcome)
                    assert isinstance(sent, SentMessage)
                    inbox.append((sent.to, sent))
    assert not outcome.failed and not outcome.rejected
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, DDMLAggregatorResult)
    return learned
