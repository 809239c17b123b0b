"""Traces of studies in a coordinator's files: while they run, after SIGKILL, and after the end.

A fleet with its own address and User-Agent answers, and all its requests are recorded. The files
may have nothing of them except what the store documents: digests, in sets that do not show which
came together. PostgreSQL and Redis keep more: the last tests show what, and
`docs/theory/threats.md` must agree with them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psycopg
import pytest

from shoal.cli.fleet import MAX_CONCURRENT, FleetSettings, run_fleet
from shoal.clock import SystemClock
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import NewEnrolment, StepResult, StudyRecord, Submission
from shoal.crypto.credentials.tokens import read_pseudonym
from shoal.data.tables import Table
from shoal.entropy import SystemEntropy
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.study.delivery import hash_pseudonym
from shoal.transport.api import MemberList, from_cbor
from tests.support.machines import compute_chance
from tests.support.participants import folder, make_document, make_table
from tests.support.servers import PATIENCE, Coordinator, Postgres, Redis, format_toml, postgres

__all__ = ["folder"]

ALPHA = 1e-9
ADDRESS, AGENT = "127.66.55.44", "an agent that nobody else has"
TRIES = 200
HOUR = 3600.0
N_PEOPLE, N_DEVICES, N_HOLDERS = 50, 20, 4
ANONML = make_document("anonml", N_PEOPLE + 1)
DDML = make_document(
    "ddml",
    N_DEVICES,
    participation={"minimum": N_DEVICES, "size": 400},
    ddml={"n_instances": 5, "admission": "token"},
)
PFDS = make_document("pfds", N_HOLDERS, pfds={"n_holders": N_HOLDERS})


@dataclass(frozen=True)
class Request:
    """A sent request: last part of the path, key, body, begin and end in seconds, token."""

    what: str
    key: str | None
    body: bytes
    begun: float
    ended: float
    token: str | None = None


@dataclass
class Wire:
    """All requests of a fleet, and its source ports."""

    sent: list[Request] = field(default_factory=list)
    ports: set[int] = field(default_factory=set)

    def of(self, *kinds: str) -> list[Request]:
        return [one for one in self.sent if one.what in kinds]

    @property
    def enrolled(self) -> list[tuple[bytes, bytes]]:
        """Keys, each with the ticket of the same request."""
        forms = [
            (one.key or "", json.loads(one.body).get("ticket")) for one in self.of("enrolments")
        ]
        return [(bytes.fromhex(key), bytes.fromhex(ticket)) for key, ticket in forms if ticket]

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        """The form of these pairs in the store."""
        return [
            (hashlib.sha256(key).digest(), hashlib.sha256(ticket).digest())
            for key, ticket in self.enrolled
        ]

    @property
    def secrets(self) -> set[bytes]:
        """Values that no file may have: answers, weights, tickets, keys, and origins."""
        answers = [one.body for one in self.of("submissions", "messages")]
        updates = [one.body[ID_BYTES + 8 :] for one in self.of("update")]
        keys = [bytes.fromhex(one.key) for one in self.sent if one.key]
        found = {*answers, *updates, *keys, *(ticket for _, ticket in self.enrolled)}
        return {*found, *(each.hex().encode() for each in found), ADDRESS.encode(), AGENT.encode()}


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Replace the fleet's transport by one that records requests and has its own address."""
    noted = Wire()

    class Noting(httpx2.AsyncHTTPTransport):
        def __init__(self, **how: Any) -> None:
            super().__init__(**{**how, "local_address": ADDRESS})

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            request.headers["User-Agent"] = AGENT
            begun = time.time()
            response = await super().handle_async_request(request)
            what, signed = request.url.path.rpartition("/")[2], request.headers.get("Authorization")
            key, token = signed and signed.split()[1], request.headers.get("Shoal-Token")
            noted.sent.append(Request(what, key, request.content, begun, time.time(), token))
            noted.ports.add(response.extensions["network_stream"].get_extra_info("client_addr")[1])
            return response

    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", Noting)
    return noted


@dataclass(frozen=True)
class Fleet:
    """People, devices and holders that resume from their files."""

    directory: Path
    coordinator: Coordinator

    def run(
        self,
        which: int,
        table: Table,
        n: int,
        holder: str | None = None,
        at_once: int = MAX_CONCURRENT,
    ) -> None:
        results = asyncio.run(self._fleet(which, table, n, holder, at_once))
        assert {getattr(one, "status", one) for one in results.values()} == {"finished"}

    def some_holders(self, which: int, n: int) -> None:
        """Let some holders share, and stop them while they wait for the others."""

        async def share() -> None:
            task = asyncio.create_task(self._fleet(which, holders(n), n, "site"))
            async with httpx2.AsyncClient(timeout=PATIENCE) as http:
                progress = (
                    f"{self.coordinator.url}/v1/studies/{self.coordinator.studies[which]}/progress"
                )
                while not task.done() and (await http.get(progress)).json()["accepted"] < n:
                    pass
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(share())

    async def _fleet(
        self, which: int, table: Table, n: int, holder: str | None, at_once: int = MAX_CONCURRENT
    ) -> dict[int, Any]:
        settings = FleetSettings(
            self.coordinator.url, self.directory / str(which), SystemClock(), SystemEntropy()
        )
        return dict(
            await run_fleet(
                settings,
                table,
                n,
                study=self.coordinator.studies[which],
                holder=holder,
                max_concurrent=at_once,
            )
        )


def holders(n: int) -> Table:
    """Return thirty rows for each of n holders."""
    tables = [make_table(30, i) for i in range(n)]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return {**columns, "site": np.repeat(np.array([f"site-{i}" for i in range(n)], object), 30)}


def on_disk(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file()
    }


def found_in(files: dict[str, bytes], needles: Iterable[bytes]) -> list[tuple[str, bytes]]:
    return [(name, needle) for name, data in files.items() for needle in needles if needle in data]


def wait_until_idle(url: str, coordinator: Coordinator) -> None:
    """Wait until all input is applied and the store was tidied, which happens every minute."""
    with open_store(url) as store:
        while any(store.count_totals(study).waiting for study in coordinator.studies):
            httpx2.get(f"{coordinator.url}/readyz", timeout=PATIENCE)
        log = Path(f"{url.partition(':')[2]}-wal")
        for _ in range(TRIES):
            store.tidy(round(time.time() * 1000))
            if not log.exists() or not log.stat().st_size:
                return
    raise AssertionError("the log is never empty")


def test_check_order_finds_order() -> None:
    rng = np.random.default_rng(0)
    assert (
        compute_chance([(i, i) for i in range(20)]) < ALPHA
        and compute_chance([(i, -i) for i in range(20)]) < ALPHA
    )
    # All but a fifth in order is seen too.
    assert compute_chance([(i, i if i % 5 else int(rng.integers(50))) for i in range(50)]) < ALPHA
    assert all(
        compute_chance(list(enumerate(rng.permutation(50).tolist()))) > ALPHA for _ in range(100)
    )


def check_order(database: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Check that no position in the file shows which ticket belongs to which key."""
    assert all(key in database and ticket in database for key, ticket in pairs)
    for at in (bytes.index, bytes.rindex):
        assert (
            compute_chance([(at(database, key), at(database, ticket)) for key, ticket in pairs])
            > ALPHA
        )


def times_in(data: bytes, low: float, high: float) -> int:
    """Count numbers between two times: milliseconds as SQLite writes them, and float seconds."""
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data + bytes(8), np.uint8), 8)
    whole = np.ascontiguousarray(windows).view(">u8").ravel()
    milliseconds, seconds = whole >> np.uint64(16), whole.view(">f8")
    with np.errstate(invalid="ignore"):
        return int(
            ((milliseconds >= 1000 * low) & (milliseconds <= 1000 * high)).sum()
            + ((seconds >= low) & (seconds <= high)).sum()
        )


def values_in(path: Path) -> Iterator[tuple[str, Any]]:
    """Return all values of all tables."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for table in tables:
            cursor = db.execute(f"SELECT * FROM {table}")
            names = [f"{table}.{column[0]}" for column in cursor.description]
            yield from (pair for row in cursor for pair in zip(names, row, strict=True))


def check_files(
    home: Path, wire: Wire, gone: Iterable[bytes] = (), public: Iterable[bytes] = ()
) -> dict[str, bytes]:
    """Check that no file contains sent data, senders or times, except for public ones."""
    files = on_disk(home)
    assert found_in(files, {*wire.secrets, *gone} - set(public)) == []
    numbers = [
        (name, value)
        for name, value in values_in(home / "coordinator.db")
        if isinstance(value, int | float)
    ]
    assert not [name for name, value in numbers if value in wire.ports]
    sent = wire.of("submissions", "update", "messages")
    low, high = min(one.begun for one in sent), max(one.ended for one in sent)
    # Nonces are forgotten at full minutes. A lease, one for each study, says when the study was
    # last stepped.
    scales = (1, 10**3, 10**6, 10**9)
    near = [
        (name, value % (60 * by))
        for name, value in numbers
        for by in scales
        if (low - HOUR) * by <= value <= (high + HOUR) * by
    ]
    assert {name for name, rest in near if rest} <= {"standing.until", "study.opened"}
    # Some bytes may look like a time by chance; an answer's time would be there once for each
    # answer.
    assert sum(times_in(data, low, high) for data in files.values()) <= 5
    assert not [name for name, data in files.items() if re.search(rb"20\d\d-\d\d-\d\d", data)]
    return files


def check_output(coordinator: Coordinator, by: signal.Signals) -> None:
    """Check that the coordinator printed one line at the start, and nothing about requests."""
    coordinator.process.send_signal(by)
    assert coordinator.process.communicate(timeout=PATIENCE) == ("", "")


def check_metrics(coordinator: Coordinator, wire: Wire) -> None:
    text = httpx2.get(f"{coordinator.url}/metrics", timeout=PATIENCE).text
    labels = set(re.findall(r'[{,](\w+)="', text))
    assert {"protocol", "status", "study"} <= labels <= {"protocol", "status", "study", "code"}
    names = [key.hex()[:32] for key, _ in wire.pairs]
    assert not [
        name
        for name in (
            *names,
            *(ticket.hex() for _, ticket in wire.enrolled),
            "site-",
            "holder-",
            ADDRESS,
        )
        if name in text
    ]


def test_disk_contains_nothing_that_was_sent(folder: Path, wire: Wire, stack: ExitStack) -> None:
    home = folder / "home"
    home.mkdir()
    studies = {"anonml.toml": ANONML, "ddml.toml": DDML, "pfds.toml": PFDS}
    for name, document in studies.items():
        (home / name).write_text(format_toml(document))
    url, people = f"sqlite:{home / 'coordinator.db'}", make_table(N_PEOPLE + 1)
    first = stack.enter_context(Coordinator(home, *studies, "--port", "0", "--tickets"))
    members = Fleet(folder / "fleet", first)
    members.run(1, make_table(40), N_DEVICES)
    devices = wire.pairs
    members.some_holders(2, N_HOLDERS - 1)
    members.run(0, people, N_PEOPLE - 20)

    wait_until_idle(url, first)
    left = check_files(home, wire)["coordinator.db"]
    assert [len(wire.of(what)) for what in ("update", "messages", "submissions")] == [
        N_DEVICES,
        N_HOLDERS - 1,
        N_PEOPLE - 20,
    ]
    assert len(devices) == N_DEVICES and len(wire.pairs) == N_DEVICES + N_PEOPLE - 20
    check_order(left, devices)
    check_order(left, wire.pairs[N_DEVICES:])
    check_metrics(first, wire)

    members.run(0, people, N_PEOPLE)
    check_output(first, signal.SIGKILL)
    second = stack.enter_context(Coordinator(home, "--port", str(first.port)))
    wait_until_idle(url, second)
    left = check_files(home, wire)["coordinator.db"]
    check_order(left, wire.pairs[N_DEVICES:])

    members.run(0, people, N_PEOPLE + 1)
    members.run(2, holders(N_HOLDERS), N_HOLDERS, "site")
    assert [second.model(second.studies[i])["study"] for i in (0, 2)] == [
        second.studies[i] for i in (0, 2)
    ]
    check_metrics(second, wire)
    check_output(second, signal.SIGTERM)
    over = [ticket for _, ticket in wire.pairs[N_DEVICES:]]
    assert len(over) == N_PEOPLE + 1
    assert sorted(path.name for path in home.iterdir()) == [
        "anonml.toml",
        "coordinator.db",
        "ddml.toml",
        "pfds.toml",
    ]
    left = check_files(home, wire, [*over, first.notice["analyst_key"].encode()])["coordinator.db"]
    check_order(left, devices)


def test_stop_clears_last_updates_from_disk(folder: Path, wire: Wire, stack: ExitStack) -> None:
    home = folder / "home"
    home.mkdir()
    (home / "ddml.toml").write_text(format_toml(DDML))
    coordinator = stack.enter_context(Coordinator(home, "ddml.toml", "--port", "0", "--tickets"))
    Fleet(folder / "fleet", coordinator).run(0, make_table(40), N_DEVICES)
    check_output(coordinator, signal.SIGTERM)
    assert len(wire.of("update")) == len(wire.pairs) == N_DEVICES
    check_order(check_files(home, wire)["coordinator.db"], wire.pairs)


def test_disk_links_no_member_to_token(folder: Path, wire: Wire, stack: ExitStack) -> None:
    """The files have members and names of updates; neither bytes nor order link them."""
    home = folder / "home"
    home.mkdir()
    (home / "ddml.toml").write_text(format_toml(DDML))
    first = stack.enter_context(Coordinator(home, "ddml.toml", "--port", "0"))
    assert first.notice["studies"][0]["has_tokens"]
    # One after the other: each has registered and sent its update before the next one comes.
    Fleet(folder / "fleet", first).run(0, make_table(2 * N_DEVICES), N_DEVICES, at_once=1)
    registered, updates = wire.of("enrolments"), wire.of("update")
    assert len(registered) == len(updates) == N_DEVICES
    members = [bytes.fromhex(one.key or "") for one in registered]
    tokens = [bytes.fromhex((one.token or "").split()[0]) for one in updates]
    names = [hash_pseudonym(read_pseudonym(token)) for token in tokens]
    commitments = [bytes.fromhex(json.loads(one.body)["commitment"]) for one in registered]
    listed = from_cbor(first.get("members").content, MemberList)
    assert listed.keys == tuple(sorted(members))
    wait_until_idle(f"sqlite:{home / 'coordinator.db'}", first)
    for by in (None, signal.SIGKILL):
        if by is not None:
            check_output(first, by)
        gone = {
            part
            for whole in (*tokens, *commitments)
            for part in (whole, whole[:48], whole.hex().encode(), whole[:48].hex().encode())
        }
        left = check_files(home, wire, gone, public=members)["coordinator.db"]
        check_order(left, list(zip(members, names, strict=True)))
        check_order(
            left,
            [
                (hashlib.sha256(key).digest(), name)
                for key, name in zip(members, names, strict=True)
            ],
        )


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def transactions(tables: bytes, value: bytes) -> set[int]:
    """Return the transactions that wrote rows with a number and these bytes.

    PostgreSQL has the transaction 33 bytes before, in dead and live rows.
    """
    written, at = set(), tables.find(value)
    while at >= 0:
        if at >= 33 and tables[at - 1] == 2 * len(value) + 3:
            written.add(int.from_bytes(tables[at - 33 : at - 29], "little"))
        at = tables.find(value, at + 1)
    return written


def count_linked(tables: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> int:
    """Count keys that share a transaction with their ticket and with no other ticket."""
    tickets = {ticket: transactions(tables, ticket) for _, ticket in pairs}
    of_all = set.intersection(*tickets.values())
    owners = [transactions(tables, hashlib.sha256(key).digest()) - of_all for key, _ in pairs]
    given = [[ticket for ticket, written in tickets.items() if written & owner] for owner in owners]
    return sum(found == [ticket] for found, (_, ticket) in zip(given, pairs, strict=True))


def read_server_files(server: Postgres, db: psycopg.Connection[Any], part: str) -> bytes:
    """Return all files of a part of PostgreSQL's directory, without zeros at their ends."""
    db.execute("CHECKPOINT")
    return b"".join(data.rstrip(b"\0") for data in on_disk(server.folder / "data" / part).values())


def test_postgresql_files_contain_deleted_answers_until_vacuum() -> None:
    study, pairs = "7f" * 32, [(digest(f"key {i}"), digest(f"ticket {i}")) for i in range(200)]
    answers = [digest(f"answer {i}") * 4 for i in range(100)]
    with (
        postgres() as server,
        psycopg.connect(server.url, autocommit=True) as db,
        open_store(server.url) as store,
    ):
        found = db.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        assert found is not None
        tables = f"base/{found[0]}"
        store.publish(StudyRecord(study, b"a manifest", 0, 1))
        for key, ticket in pairs:
            store.enrol(study, NewEnrolment(key, ticket=ticket))
        taken = [
            Submission("", answer, digest(f"name {i}"), digest(f"bytes {i}"))
            for i, answer in enumerate(answers)
        ]
        store.accept(study, taken, 10**15)
        term, held = store.lease(study, "a", 0, 10), store.load(study, 0, 1_000).inputs
        assert term is not None and store.save(
            study, term, StepResult(b"state", tuple(one.number for one in held[:90]))
        )
        store.tidy(0)
        # Answers that were folded in, and which ticket came with which key: no query finds them,
        # but the files have them.
        left = read_server_files(server, db, tables)
        assert (
            store.count_totals(study).waiting == 10
            and sum(answer in left for answer in answers[:90]) > 45
            and count_linked(left, pairs) > 50
        )
        db.execute("VACUUM FULL held, ticket, enrolment")
        left = read_server_files(server, db, tables)
        assert not any(answer in left for answer in answers[:90]) and count_linked(left, pairs) == 0
        # The write-ahead log has all of it, but for what the end of a page cuts in two. Its files
        # are used again, unless told not to.
        left = read_server_files(server, db, "pg_wal")
        assert (
            sum(answer in left for answer in answers) > 80
            and sum(ticket in left for _, ticket in pairs) > 180
        )
        db.execute("ALTER SYSTEM SET wal_recycle = off")
        db.execute("ALTER SYSTEM SET min_wal_size = '32MB'")
        db.execute("SELECT pg_reload_conf()")
        for i in range(3):
            db.execute(f"CREATE TABLE later_{i} (i INT)".encode())
            db.execute("SELECT pg_switch_wal()")
            db.execute("CHECKPOINT")
        left = read_server_files(server, db, "pg_wal")
        assert not any(answer in left for answer in answers) and not any(
            ticket in left for _, ticket in pairs
        )


def merge_updates(models: InstanceStore, study: str) -> tuple[list[bytes], list[bytes]]:
    """Merge sixty updates into five instances, half by replacing, half by blending.

    Return the updates and the instance after each.
    """
    rng = np.random.default_rng(0)
    updates = [rng.integers(-(10**6), 10**6, 40).astype("<i4").tobytes() for _ in range(60)]
    models.create(study, np.zeros((5, 40), np.int32))
    versions = []
    for i, update in enumerate(updates):
        models.merge(study, i % 5, i.to_bytes(ID_BYTES, "big"), 0, update, 1.0 if i < 30 else 0.3)
        versions.append(bytes(models.draw(study, i % 5).weights))
    return updates, versions


def test_postgresql_files_contain_old_instances_until_vacuum(postgres_server: Postgres) -> None:
    url = postgres_server.new_database()
    with psycopg.connect(url, autocommit=True) as db, open_instance_store(None, url) as models:
        _, versions = merge_updates(models, digest("a study").hex())
        assert models.scrub(PATIENCE) == "begun"
        # Earlier versions give up their places, and some are there until others take them; the log
        # has them, but for the ends of pages.
        left = read_server_files(postgres_server, db, "base")
        assert sum(version in left for version in versions[:55]) > 5 and all(
            version in left for version in versions[55:]
        )
        db.execute("VACUUM FULL ddml_instance")
        left = read_server_files(postgres_server, db, "base")
        assert [version in left for version in versions] == [False] * 55 + [True] * 5
        left = read_server_files(postgres_server, db, "pg_wal")
        assert sum(version in left for version in versions) > 45


def test_postgresql_logs_values_only_with_log_statement(postgres_server: Postgres) -> None:
    url, study = postgres_server.new_database(), "7f" * 32

    def find_logged(options: str, words: str) -> list[bool]:
        """Which values of an enrolment and an answer are in the server's log."""
        key, ticket, answer, name = (digest(f"{words} {i}") for i in range(4))
        with open_store(url + options) as store:
            store.publish(StudyRecord(study, b"a manifest", 0, 1))
            store.enrol(study, NewEnrolment(key, ticket=ticket))
            store.accept(study, [Submission("", answer, name, digest(words))], 10**15)
        with psycopg.connect(url, autocommit=True) as db:
            with suppress(psycopg.errors.DivisionByZero):
                db.execute("SELECT %s::bytea, 1 / 0", (answer,))
            db.execute(f"DO $$ BEGIN RAISE LOG '{words}'; END $$".encode())
        for _ in range(100 * PATIENCE):
            # What came before it is there when this is.
            if any(words in line for line in postgres_server.log):
                break
            time.sleep(0.01)
        log = "".join(postgres_server.log)
        assert words in log and "SELECT $1::bytea, 1 / 0" in log
        return [
            value.hex() in log for value in (hashlib.sha256(key).digest(), ticket, answer, name)
        ]

    assert find_logged("", "as it is installed") == [False] * 4
    assert find_logged("%20-clog_statement%3Dall", "with all statements") == [True] * 4


def test_redis_file_contains_updates_until_scrub(redis_server: Redis) -> None:
    study = digest("a study").hex()
    with open_instance_store(redis_server.url, "sqlite:none") as models:
        updates, versions = merge_updates(models, study)
        before = b"".join(on_disk(redis_server.folder).values())
        assert models.scrub(PATIENCE) == "done"
        after = b"".join(on_disk(redis_server.folder).values())
    # Every version, and so every update: as it came where it replaces an instance, as a difference
    # where it is blended in.
    assert (
        all(version in before for version in versions)
        and [update in before for update in updates] == [True] * 30 + [False] * 30
    )
    # A rewritten file has the instances of the moment.
    assert [version in after for version in versions] == [False] * 55 + [True] * 5
    assert study not in "".join(redis_server.log)
