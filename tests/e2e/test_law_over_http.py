"""What comes out between real processes is what comes out in memory, number for number, where both draw from the same seeds.

The participants are `seeded`: the real commands, with randomness that only test code can give them. Their keys, tickets and places are read
from their files afterwards, and the same machines are run again by `run_local`. What a coordinator publishes must be the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from certificates import Certificates
from live import write_csv
from participants import document_of, folder
from served import Coordinator, Participant, all_told, roster_of, toml_of
from servers import Postgres
from shoal import tables
from shoal.coordinator.aggregators import aggregator_of
from shoal.coordinator.results import Merged, result_of
from shoal.coordinator.store.base import Hosted
from shoal.messages.base import Array
from shoal.participant.identity import identity_for
from shoal.participant.peers import peer_of
from shoal.protocols.base import AGGREGATOR, START, Finish, Input, Outbound, Outcome, Peer, Sent, Started, open_hosts, run_local
from shoal.protocols.ddml.aggregator import DDMLAggregator, Learned
from shoal.study import ddml
from shoal.study.manifest import Manifest
from streams import Streams

__all__ = ["folder"]

PATIENCE = 86_400_000

CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "anonml": ("anonml", 6, 1, {"participation": {"minimum": 6, "size": 6}, "privacy": {"epsilon": 1.0}}),
    "sdq, sums": ("sdq", 3, 60, {"sdq": {"n_databases": 3, "max_colluders": 1, "depth": 2, "choice": "sums"}}),
    "sdq, mpc": ("sdq", 3, 60, {"sdq": {"n_databases": 3, "max_colluders": 1, "depth": 2, "choice": "mpc"}}),
    "pfds": ("pfds", 3, 60, {"pfds": {"n_holders": 3}}),
    "pfds, sums": ("pfds", 3, 60, {"trust": "secure-sum", "pfds": {"n_holders": 3}}),
    "pfds, paper": ("pfds", 3, 60, {"variant": "paper", "pfds": {"n_holders": 3}}),
}


ALWAYS = ("anonml", "sdq, sums", "pfds", "pfds, paper")
"""Those on SQLite; others, of which a whole study is run in `make test` too, and all on PostgreSQL in `make soak` alone."""

RUNS = [
    pytest.param(case, store, marks=() if store == "sqlite" and case in ALWAYS else pytest.mark.soak)
    for case in CASES
    for store in ("sqlite", "postgresql")
]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Words of the command line: one process with SQLite, or two that share a database of PostgreSQL."""
    if request.param == "sqlite":
        return ("--store", "sqlite:coordinator.db")
    server: Postgres = request.getfixturevalue("postgres_server")
    return ("--store", server.new_database(), "--workers", "2")


def seeded_people(home: Path, seed: str, n: int, rows: int) -> list[Participant]:
    people = [Participant(home, f"site-{i}", ("-m", "seeded", seed, f"site-{i}")) for i in range(n)]
    for i, one in enumerate(people):
        write_csv(one.data, rows, i)
    return people


def serve(
    stack: ExitStack, home: Path, tls: Certificates, store: tuple[str, ...], document: dict[str, Any], people: list[Participant]
) -> Coordinator:
    (home / "study.toml").write_text(toml_of(document))
    has_roster = document["protocol"] == "sdq" or document.get("trust") == "secure-sum"
    roster = ("--roster", roster_of(stack, people)) if has_roster else ()
    return stack.enter_context(Coordinator(home, "study.toml", "--port", "0", "--tickets", *store, *roster, tls=tls))


def as_they_were(people: list[Participant], study: str) -> tuple[Manifest, dict[str, Peer[Any]], dict[str, str]]:
    """The study, the participants' machines by the names that the coordinator gave them, and whose they are: by what is in their files."""
    peers: dict[str, Peer[Any]] = {}
    owners: dict[str, str] = {}
    for one in people:
        joined = one.joined(study)
        manifest = Manifest.from_bytes(joined.manifest)
        identity, table = identity_for(manifest, one.seed()), tables.read(str(one.data))
        assert joined.name is not None
        peers[joined.name] = peer_of(manifest, table, identity, ticket=joined.ticket, position=joined.position)
        owners[joined.name] = one.name
    return manifest, peers, owners


@pytest.mark.parametrize(("case", "store"), RUNS, indirect=["store"])
def test_the_same_as_in_memory(folder: Path, certificates: Certificates, stack: ExitStack, case: str, store: tuple[str, ...]) -> None:
    protocol, n, rows, more = CASES[case]
    people = seeded_people(folder, case, n, rows)
    coordinator = serve(stack, folder, certificates, store, document_of(protocol, n, **more), people)
    told = all_told(stack, [one.join(coordinator) for one in people])
    assert [one["standing"] for one in told] == ["finished"] * n, told
    coordinator.model()

    study = coordinator.studies[0]
    manifest, peers, owners = as_they_were(people, study)
    aggregator = aggregator_of(manifest, Hosted(study, manifest.to_bytes(), 0, PATIENCE))
    assert aggregator is not None

    def in_memory(owners: dict[str, str]) -> bytes:
        outcome = run_local(aggregator, peers, Streams(case, owners))
        assert not outcome.aborted and not outcome.failed and not outcome.rejected
        return result_of(manifest, outcome.results[AGGREGATOR])

    published = coordinator.get("model").content
    assert published == in_memory(owners)
    # Whoever draws otherwise is seen in the result; but the one bit of a person may come out the same.
    is_seen = [published != in_memory(owners | {name: "someone else"}) for name in owners]
    assert any(is_seen) if protocol == "anonml" else all(is_seen)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True)
def test_devices_one_at_a_time(folder: Path, certificates: Certificates, stack: ExitStack, store: tuple[str, ...]) -> None:
    n, seed = 4, "devices"
    settings = {"participation": {"minimum": n, "size": n}, "privacy": {"epsilon": 4.0, "n_updates": 2}}
    people = seeded_people(folder, seed, n, 20)
    document = document_of("ddml", n, **settings, ddml={"n_instances": 1})
    coordinator = serve(stack, folder, certificates, store, document, people)
    first = np.frombuffer(coordinator.post("draw").content[8:], "<i4").astype(np.int32)
    for one in people:
        assert all_told(stack, [one.join(coordinator)])[0]["standing"] == "finished"
    coordinator.model()

    manifest, peers, owners = as_they_were(people, coordinator.studies[0])
    study = manifest.study
    aggregator = DDMLAggregator(manifest.digest, ddml.params_of(study), ddml.filter_of(study))
    learned = one_at_a_time(aggregator, peers, Streams(seed, owners), first)
    assert learned.n_merged == 2 * n
    assert coordinator.get("model").content == result_of(manifest, Merged(learned.model, learned.n_merged))


def one_at_a_time(aggregator: DDMLAggregator, peers: Mapping[str, Peer[Any]], entropy: Streams, first: Any) -> Learned:
    """Each device to its end before the next one begins, from an instance that is given."""
    hosts, outcome = open_hosts(aggregator, peers, entropy, None), Outcome()
    desk = hosts[AGGREGATOR]
    desk.accept(desk.handle(Started(), START, outcome))
    desk.state = desk.state.replace(instances=(Array.of(first),))
    for name in peers:
        inbox: deque[tuple[str, Input | Sent]] = deque([(name, Started())])
        while inbox:
            to, given = inbox.popleft()
            handled = hosts[to].handle(given, START, outcome)
            hosts[to].accept(handled)
            for item in handled.work:
                if isinstance(item, Finish):
                    outcome.note(to, item)
                elif isinstance(item, Outbound):
                    sent = hosts[to].send(item, START, outcome)
                    assert isinstance(sent, Sent)
                    inbox.append((sent.to, sent))
    assert not outcome.failed and not outcome.rejected
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, Learned)
    return learned
