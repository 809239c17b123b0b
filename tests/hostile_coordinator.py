"""A real ``shoal serve`` with studies of all four protocols, on SQLite, and the means to send it what no participant would."""

from __future__ import annotations

import json
import os
import select
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import device_cases
from coordinator_cases import aggregator_of, hosted_of, identity, manifest_of, peers_of, ticket
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.messages.codec import encode
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import Answer
from shoal.protocols.base import AGGREGATOR, START, Outbound, Outcome, Started, open_hosts
from shoal.study.anonml import script_of
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.templates import study_text
from shoal.transport.forms import Enrolment, to_json
from shoal.transport.routes import CBOR, JSON, STUDIES, study_route
from shoal.transport.signing import sign

PATIENCE = 60
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}

INVITED = Manifest(parse(study_text("anonml")))
CLOSED = Manifest(parse(study_text("anonml").replace("finishes", "finished")))
MANIFESTS = {
    **{name: manifest_of(name) for name in ("anonml", "sdq", "pfds", "pfds sum")},
    **{name: device_cases.manifest_of(name) for name in ("open", "signed", "token")},
    "over": device_cases.manifest_of("open", 999),
    "invited": INVITED,
    "closed": CLOSED,
}
"""By protocol, or by admission for those of DDML; ``closed`` and ``over`` have ended."""
DIGESTS = {name: manifest.digest.hex() for name, manifest in MANIFESTS.items()}
DDML = ("open", "signed", "token", "over")

STRANGER, GONE, MEMBER = identity(40), identity(41), identity(0)
"""Never enrolled; enrolled in the study of PFDS and left; enrolled wherever that is possible, and on the rosters."""

_OWN = ("refusal", "ddml_refusal", "alarm")
_STANDING = "study, status, has_begun, n_letters, n_accepted"


@dataclass(frozen=True)
class Reply:
    """An answer as it came over the wire."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def seen(self) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        """All that a sender sees of it, but for the time of day."""
        return self.status, tuple(pair for pair in self.headers if pair[0] != "date"), self.body

    @property
    def problem(self) -> tuple[int, str | None]:
        """Status and code; all that a problem must be is checked."""
        if ("content-type", "application/problem+json") not in self.headers:
            return self.status, None
        found = json.loads(self.body)
        assert found["status"] == self.status and found["title"]
        return self.status, str(found["code"])


class Connection:
    """A socket to the coordinator, on which anything can be sent."""

    def __init__(self, port: int) -> None:
        self._socket, self._rest = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE), b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> bool:
        """Whether the other side was still there to take it all."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def finish(self) -> None:
        """Say that nothing more comes."""
        with suppress(OSError):  # the other side has gone
            self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> Reply | None:
        """The next answer; None where the other side closed instead."""
        while b"\r\n\r\n" not in self._rest:
            if not self._more():
                return None
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = tuple((name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
        length = int(dict(headers).get("content-length", "0"))
        while len(self._rest) < length:
            assert self._more(), "the answer breaks off"
        body, self._rest = self._rest[:length], self._rest[length:]
        return Reply(int(first.split(" ")[1]), headers, body)

    def is_closed(self) -> bool:
        """Whether the other side has closed, without a further byte; waits for it."""
        return not self._rest and not self._more()

    def _more(self) -> bool:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._rest += data
        return bool(data)


def request(method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, length: bool = True) -> bytes:
    """The bytes of a request, with whatever is in it."""
    given = {"host": "coordinator", **({"content-length": str(len(body))} if length else {}), **(headers or {})}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked(body: bytes, size: int = 1 << 14) -> bytes:
    """A body in chunks, to its end."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def now(late: float = 0) -> int:
    """Milliseconds since 1970, so many seconds ago."""
    return round(1000 * (time.time() - late))


def signature(target: str, body: bytes, who: Identity = MEMBER, *, method: str = "POST", late: float = 0) -> str:
    return sign(who, method, target, body, now(late), SystemEntropy())


def answer(i: int = 0, study: str = "anonml", **changes: Any) -> bytes:
    """A packet of AnonML under a ticket, to the question that is the ticket's; what it says is for the aggregator to see."""
    digest = MANIFESTS[study].digest
    script = script_of(MANIFESTS[study].study, digest)
    (question,) = script.asked(0, int(script.group_of(0, words_of(digest, ticket(i)))[0]))
    fields = {"study": digest, "ticket": ticket(i), "phase": 0, "question": question, "report": b"\x00"}
    return encode(Answer(**{**fields, **changes}))


def tables(seed: int = 1) -> bytes:
    """What the first holder of the study of PFDS sends; other noise with another seed."""
    aggregator = aggregator_of(manifest_of("pfds"), hosted_of("pfds"))
    assert aggregator is not None
    hosts = open_hosts(aggregator, peers_of("pfds"), SeededEntropy(seed), None)
    del hosts[AGGREGATOR]
    [item] = [item for item in hosts["holder-0"].handle(Started(), START, Outcome()).work if isinstance(item, Outbound)]
    return item.payload


class HostileCoordinator:
    """The process, the analyst's key, what its file holds, and how to reach it."""

    def __init__(self, home: Path) -> None:
        (home / "invited.toml").write_text(study_text("anonml"))
        command = [sys.executable, "-m", "shoal", "serve", "invited.toml", "--invite", "3", "--tickets", "--port", "0", "--json"]
        self.process = subprocess.Popen(command, cwd=home, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE)[1]
        said = json.loads(line)
        self.url, self.key, self._file = str(said["address"]), str(said["analyst_key"]), home / "coordinator.db"
        self.port = int(self.url.rpartition(":")[2])
        self.invitations = tuple(said["invitations"][DIGESTS["invited"]])

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def ask(self, data: bytes) -> Reply:
        """The answer to some bytes on a connection of their own."""
        with Connection(self.port) as connection:
            connection.send(data)
            reply = connection.read()
        assert reply is not None, "there was no answer"
        return reply

    def post(self, target: str, body: bytes = b"", kind: str | None = None, **headers: str) -> Reply:
        return self.ask(request("POST", target, body, {**({"content-type": kind} if kind else {}), **headers}))

    def signed(self, study: str, what: str, body: bytes = b"", kind: str = JSON, who: Identity = MEMBER) -> Reply:
        target = study_route(DIGESTS[study], what)
        return self.post(target, body, kind, authorization=signature(target, body, who))

    def enrol(self, study: str, who: Identity = MEMBER, **form: Any) -> Reply:
        return self.signed(study, "enrolments", to_json(Enrolment(**form)), who=who)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, but for counts of refusals and when the coordinator steps a study next, and under which lease."""
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as db:
            db.execute("BEGIN")
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            columns = {name: _STANDING if name == "standing" else "*" for name in names if name not in _OWN}
            return {name: sorted(db.execute(f"SELECT {some} FROM {name}"), key=repr) for name, some in columns.items()}

    def settled(self) -> dict[str, list[tuple[Any, ...]]]:
        """The same when nothing is left to be done: all studies have begun, nothing is held, and no lease either."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self.ask(request("GET", "/readyz"))
            with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as db:
                query = """
                    SELECT count(*) FROM study JOIN standing ON study.number = standing.study WHERE status = 'open' AND
                    (holder IS NOT NULL OR NOT (has_begun OR EXISTS (SELECT 1 FROM ddml WHERE ddml.study = study.digest)))
                """
                if not db.execute(query).fetchone()[0] and not db.execute("SELECT count(*) FROM held").fetchone()[0]:
                    return self.dump()
        raise AssertionError("the coordinator does not come to rest")

    def refused(self, study: str) -> dict[str, int]:
        """How often each code was counted in a study so far, as far as it is written."""
        self.ask(request("GET", "/metrics"))
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as db:
            query = "SELECT code, n FROM refusal JOIN study ON number = study WHERE digest = ?"
            return dict(db.execute(query, (DIGESTS[study],)))

    def counted(self, study: str, before: Mapping[str, int], expected: Mapping[str, int]) -> dict[str, int]:
        """The same since then, of some codes, as soon as so many are written; what devices sent is written once a second."""
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
        """Most of them since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self, what: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said of trouble."""
        self.process.terminate()
        _, trouble = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, trouble

    def fill(self) -> None:
        """Publish all studies, end two of them, and let participants in."""
        for name, manifest in MANIFESTS.items():
            if name != "invited":
                found = self.post(STUDIES + "?patience=80000", manifest.to_bytes(), CBOR, **self.bearer)
                assert found.status == 201, found.body
        for name in DDML:
            assert self.post(study_route(DIGESTS[name], "draw")).status == 200
        for name in ("closed", "over"):
            assert self.post(study_route(DIGESTS[name], "close"), **self.bearer).status == 204
        for name in ("sdq", "pfds", "pfds sum", "signed"):
            assert self.enrol(name).status == 200
        for name in ("anonml", "token"):
            assert self.enrol(name, ticket=ticket(0).hex()).status == 200
        assert self.enrol("invited", ticket=ticket(0).hex(), invitation=self.invitations[0]).status == 200
        assert self.enrol("pfds", GONE).status == 200 and self.signed("pfds", "leave", who=GONE).status == 204
        assert self.signed("pfds", "messages", tables(), CBOR).status == 202


@contextmanager
def hostile_coordinator(home: Path) -> Iterator[HostileCoordinator]:
    """A coordinator with all studies in it. It must end in good order, without a word of trouble."""
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
