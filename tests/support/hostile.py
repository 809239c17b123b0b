"""Hostile input: settings for generated cases, a real coordinator, and garbage in model files.

``make test`` runs some hundreds of cases for each loader, ``make soak`` twenty times as many. The
coordinator is ``shoal serve`` with studies of all protocols on SQLite. A model file with garbage
must be rejected with an error or read.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import ShoalError
from shoal.messages.codec import encode
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    OutgoingMessage,
    ProtocolOutcome,
    Started,
    open_hosts,
)
from shoal.study.anonml import build_script
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter
from shoal.transport.api import CBOR, JSON, STUDIES, Enrolment, study_route, to_json
from shoal.transport.signing import sign_request
from tests.support import ddml as device_cases
from tests.support.coordinator import (
    identity,
    make_aggregator,
    make_manifest,
    make_peers,
    make_record,
    ticket,
)


def hostile(quick: int = 200) -> settings:
    """Return settings for a test with hostile input.

    ``SHOAL_FUZZ_FACTOR`` multiplies ``quick``, which is smaller for tests with costly examples: a
    fixed number of examples would take days.
    """
    n_examples = quick * int(os.environ.get("SHOAL_FUZZ_FACTOR", "1"))
    return settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))


PATIENCE = 180
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}

INVITED = Manifest(parse_study_text(read_starter("anonml")))
CLOSED = Manifest(parse_study_text(read_starter("anonml").replace("finishes", "finished")))
MANIFESTS = {
    **{name: make_manifest(name) for name in ("anonml", "sdq", "pfds", "pfds sum")},
    **{name: device_cases.make_manifest(name) for name in ("open", "signed", "token")},
    "over": device_cases.make_manifest("open", 999),
    "invited": INVITED,
    "closed": CLOSED,
}
"""By protocol, or by admission for those of DDML; ``closed`` and ``over`` have ended."""
DIGESTS = {name: manifest.digest.hex() for name, manifest in MANIFESTS.items()}
DDML = ("open", "signed", "token", "over")

STRANGER, GONE, MEMBER = identity(40), identity(41), identity(0)
"""Never enrolled; enrolled in the study of PFDS and left; enrolled wherever that is possible, and
on the rosters.
"""

_OWN = ("refusal", "ddml_refusal", "alarm")
_STANDING = "study, status, has_begun, n_letters, n_accepted"


@dataclass(frozen=True)
class Reply:
    """A response as received."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def seen(self) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        """All that the sender sees, except for the time of day."""
        return self.status, tuple(pair for pair in self.headers if pair[0] != "date"), self.body

    @property
    def problem(self) -> tuple[int, str | None]:
        """Status and code of a valid problem document."""
        if ("content-type", "application/problem+json") not in self.headers:
            return self.status, None
        found = json.loads(self.body)
        assert found["status"] == self.status and found["title"]
        return self.status, str(found["code"])


class Connection:
    """A socket to the coordinator that can send any bytes."""

    def __init__(self, port: int) -> None:
        self._socket, self._rest = (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE),
            b"",
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> bool:
        """Send bytes; return False if the other side has closed."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def finish(self) -> None:
        """Close the sending direction."""
        with suppress(OSError):  # the other side has gone
            self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> Reply | None:
        """Return the next response, or None if the other side closed."""
        while b"\r\n\r\n" not in self._rest:
            if not self._more():
                return None
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = tuple(
            (name.lower(), value.strip())
            for name, _, value in (line.partition(":") for line in lines)
        )
        length = int(dict(headers).get("content-length", "0"))
        while len(self._rest) < length:
            assert self._more(), "the answer breaks off"
        body, self._rest = self._rest[:length], self._rest[length:]
        return Reply(int(first.split(" ")[1]), headers, body)

    def is_closed(self) -> bool:
        """Wait; return True if the other side closes without another byte."""
        return not self._rest and not self._more()

    def _more(self) -> bool:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._rest += data
        return bool(data)


def request(
    method: str,
    target: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    length: bool = True,
) -> bytes:
    """Return the bytes of a request."""
    given = {
        "host": "coordinator",
        **({"content-length": str(len(body))} if length else {}),
        **(headers or {}),
    }
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked(body: bytes, size: int = 1 << 14) -> bytes:
    """Return a body in chunks, with the last chunk."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def now(late: float = 0) -> int:
    """Return milliseconds since 1970, some seconds ago."""
    return round(1000 * (time.time() - late))


def signature(
    target: str, body: bytes, who: Identity = MEMBER, *, method: str = "POST", late: float = 0
) -> str:
    return sign_request(who, method, target, body, now(late), SystemEntropy())


def answer(i: int = 0, study: str = "anonml", **changes: Any) -> bytes:
    """Return an AnonML message to the assigned question of a ticket, with any content."""
    digest = MANIFESTS[study].digest
    script = build_script(MANIFESTS[study].study, digest)
    (question,) = script.list_question_numbers(
        0, int(script.assign_groups(0, ticket_words(digest, ticket(i)))[0])
    )
    fields = {
        "study": digest,
        "ticket": ticket(i),
        "phase": 0,
        "question": question,
        "report": b"\x00",
    }
    return encode(AnonMLAnswer(**{**fields, **changes}))


def tables(seed: int = 1) -> bytes:
    """Return the message of the first PFDS holder; another seed gives other noise."""
    aggregator = make_aggregator(make_manifest("pfds"), make_record("pfds"))
    assert aggregator is not None
    hosts = open_hosts(aggregator, make_peers("pfds"), SeededEntropy(seed), None)
    del hosts[AGGREGATOR]
    [item] = [
        item
        for item in hosts["holder-0"].handle(Started(), START, ProtocolOutcome()).work
        if isinstance(item, OutgoingMessage)
    ]
    return item.payload


class HostileCoordinator:
    """A coordinator process, the analyst's key, its file, and ways to connect to it."""

    def __init__(self, home: Path) -> None:
        (home / "invited.toml").write_text(read_starter("anonml"))
        command = [
            sys.executable,
            "-m",
            "shoal",
            "serve",
            "invited.toml",
            "--invite",
            "3",
            "--tickets",
            "--port",
            "0",
            "--json",
        ]
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE)[1]
        said = json.loads(line)
        self.url, self.key, self._file = (
            str(said["address"]),
            str(said["analyst_key"]),
            home / "coordinator.db",
        )
        self.port = int(self.url.rpartition(":")[2])
        self.invitations = tuple(said["invitations"][DIGESTS["invited"]])

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def ask(self, data: bytes) -> Reply:
        """Return the response to some bytes on a new connection."""
        with Connection(self.port) as connection:
            connection.send(data)
            reply = connection.read()
        assert reply is not None, "there was no answer"
        return reply

    def post(
        self, target: str, body: bytes = b"", kind: str | None = None, **headers: str
    ) -> Reply:
        return self.ask(
            request("POST", target, body, {**({"content-type": kind} if kind else {}), **headers})
        )

    def signed(
        self, study: str, what: str, body: bytes = b"", kind: str = JSON, who: Identity = MEMBER
    ) -> Reply:
        target = study_route(DIGESTS[study], what)
        return self.post(target, body, kind, authorization=signature(target, body, who))

    def enrol(self, study: str, who: Identity = MEMBER, **form: Any) -> Reply:
        return self.signed(study, "enrolments", to_json(Enrolment(**form)), who=who)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all rows of all tables, except for rejection counts, due times and leases."""
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as db:
            db.execute("BEGIN")
            names = [
                name
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            columns = {
                name: _STANDING if name == "standing" else "*" for name in names if name not in _OWN
            }
            return {
                name: sorted(db.execute(f"SELECT {some} FROM {name}"), key=repr)
                for name, some in columns.items()
            }

    def settled(self) -> dict[str, list[tuple[Any, ...]]]:
        """Wait until all studies have begun and no input or lease is left; return `dump`."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self.ask(request("GET", "/readyz"))
            with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as db:
                query = """
                    SELECT count(*) FROM study JOIN standing ON study.number = standing.study
                    WHERE status = 'open' AND (holder IS NOT NULL OR NOT (has_begun
                    OR EXISTS (SELECT 1 FROM ddml WHERE ddml.study = study.digest)))
                """
                if (
                    not db.execute(query).fetchone()[0]
                    and not db.execute("SELECT count(*) FROM held").fetchone()[0]
                ):
                    return self.dump()
        raise AssertionError("the coordinator does not come to rest")

    def refused(self, study: str) -> dict[str, int]:
        """Return the written rejection counts of a study by code."""
        self.ask(request("GET", "/metrics"))
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as db:
            query = "SELECT code, n FROM refusal JOIN study ON number = study WHERE digest = ?"
            return dict(db.execute(query, (DIGESTS[study],)))

    def counted(
        self, study: str, before: Mapping[str, int], expected: Mapping[str, int]
    ) -> dict[str, int]:
        """Wait until n more rejections of some codes are written; return the increases.

        Rejected updates of DDML are written once a second.
        """
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = self.refused(study)
            since = {code: found.get(code, 0) - before.get(code, 0) for code in expected}
            if all(since[code] >= n for code, n in expected.items()):
                return since
        raise AssertionError(f"{since} were counted")

    def memory(self) -> int:
        """Resident bytes of the process."""
        return self._status("VmRSS")

    def peak(self) -> int:
        """Largest resident size since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self, what: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))

    def end(self) -> tuple[int, str]:
        """Stop the process; return the exit code and standard error."""
        self.process.terminate()
        _, trouble = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, trouble

    def fill(self) -> None:
        """Publish all studies, end two of them, and let participants in."""
        for name, manifest in MANIFESTS.items():
            if name != "invited":
                found = self.post(
                    STUDIES + "?patience=80000", manifest.to_bytes(), CBOR, **self.bearer
                )
                assert found.status == 201, found.body
        for name in DDML:
            assert self.post(study_route(DIGESTS[name], "draw")).status == 200
        for name in ("closed", "over"):
            assert self.post(study_route(DIGESTS[name], "close"), **self.bearer).status == 204
        for name in ("sdq", "pfds", "pfds sum", "signed"):
            assert self.enrol(name).status == 200
        for name in ("anonml", "token"):
            assert self.enrol(name, ticket=ticket(0).hex()).status == 200
        assert (
            self.enrol("invited", ticket=ticket(0).hex(), invitation=self.invitations[0]).status
            == 200
        )
        assert (
            self.enrol("pfds", GONE).status == 200
            and self.signed("pfds", "leave", who=GONE).status == 204
        )
        assert self.signed("pfds", "messages", tables(), CBOR).status == 202


@contextmanager
def hostile_coordinator(home: Path) -> Iterator[HostileCoordinator]:
    """Run a coordinator with all studies; it must end without an error message."""
    coordinator = HostileCoordinator(home)
    try:
        coordinator.fill()
        coordinator.settled()
        yield coordinator
        assert coordinator.end() == (0, "")
    finally:
        if coordinator.process.poll() is None:
            coordinator.process.kill()
            coordinator.process.communicate()


ModelOf = TypeVar("ModelOf")

GARBAGE = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**30)
    | st.floats()
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
    | st.just([[]])
)


def at(document: dict[str, Any], path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """Return the document with one part replaced."""
    whole: Any = json.loads(json.dumps(document))
    part = whole
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return whole  # type: ignore[no-any-return]


def paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield every path in a document."""
    inside = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [path, *(place for key, part in inside for place in paths(part, (*path, key)))]


def read_with_garbage(
    plain: dict[str, Any], from_plain: Callable[[dict[str, Any]], ModelOf], data: st.DataObject
) -> ModelOf | None:
    """Read a model file with garbage at one path; return None if it is rejected."""
    place = data.draw(st.sampled_from(paths(plain)[1:]))
    document = at(plain, place, data.draw(GARBAGE))
    try:
        return from_plain(document)
    except ShoalError:
        return None
