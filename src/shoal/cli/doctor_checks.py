"""What ``shoal doctor`` looks at. Each check says what it found, and where that is not well, the command that mends it.

Nothing here writes but for files that are gone again, and nothing leaves this machine: Tor and the port are tried on loopback.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import shoal
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError
from shoal.names import shell_word, shown
from shoal.participant.ledger_db import is_there
from shoal.participant.ledger_file import LedgerFile, default_path

OK, MISSING, BROKEN = "ok", "missing", "broken"
OLDEST_PYTHON = (3, 11)
TOR = ("127.0.0.1", 9050)
LEAST_DISK, LEAST_MEMORY = 200 * 2**20, 512 * 2**20
_ALL = "all"
_DRAWN = 32
_WAIT, _DRIFT = 0.05, 0.5
_DAY = 86_400.0
_GREETING, _WELCOME = b"\x05\x01\x00", b"\x05\x00"
_OLDEST_SQLITE = (3, 37)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?[^;]*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_OTHERS = re.compile(r"sys_platform\s*!=\s*['\"]win32['\"]")


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    name: str
    state: str
    what: str
    fix: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Plain data."""
        return asdict(self)


def examine(ledger: Path | None, port: int) -> list[Finding]:
    """All checks, in the order in which they are shown."""
    checks: list[Callable[[], Finding]] = [
        python, clock, entropy, working_directory, lambda: ledger_file(ledger), lambda: port_is_free(port), sqlite, tor, core_dumps, memory,
    ]  # fmt: skip
    found = [check() for check in checks]
    return [found[0], Finding("shoal", OK, shoal.__version__), *extras(), *found[1:]]


def python() -> Finding:
    """Whether this Python is one that shoal is written for."""
    words = f"{platform.python_version()} ({platform.python_implementation()}, {platform.system()})"
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Finding("python", OK, words)
    return Finding("python", BROKEN, f"{words}; shoal needs {'.'.join(map(str, OLDEST_PYTHON))} or later", "uv python install 3.13")


def extras() -> Iterator[Finding]:
    """Which extras are installed, and the command that installs the others."""
    try:
        distribution = importlib.metadata.distribution("shoal")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("extras", MISSING, "shoal runs from a directory, and nothing says which extras it has", "pip install 'shoal[all]'")
        return
    needs = _needs(distribution.requires or [])
    for extra in distribution.metadata.get_all("Provides-Extra") or []:
        if extra != _ALL and extra in needs:
            yield _extra(extra, needs[extra])


def _needs(requirements: list[str]) -> dict[str, list[str]]:
    """The packages of each extra."""
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        parsed = _REQUIREMENT.match(requirement)
        extra = _EXTRA.search(requirement)
        is_elsewhere = sys.platform == "win32" and _OTHERS.search(requirement) is not None
        if parsed and extra and parsed[1] != "shoal" and not is_elsewhere:
            found.setdefault(extra[1], []).append(parsed[1])
    return found


def _extra(extra: str, packages: list[str]) -> Finding:
    versions = {name: _version(name) for name in packages}
    gone = [name for name, version in versions.items() if version is None]
    if gone:
        return Finding(f"[{extra}]", MISSING, f"not installed: {', '.join(gone)}", f"pip install 'shoal[{extra}]'")
    return Finding(f"[{extra}]", OK, ", ".join(f"{name} {version}" for name, version in versions.items()))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def clock() -> Finding:
    """Whether the clock runs, and is not behind what is known to have happened."""
    now, begun = SystemClock().now(), time.monotonic()
    time.sleep(_WAIT)
    wall, steady = (SystemClock().now() - now).total_seconds(), time.monotonic() - begun
    written = Path(shoal.__file__).stat().st_mtime
    if abs(wall - steady) > _DRIFT or steady <= 0:
        return Finding("clock", BROKEN, f"it jumped by {wall - steady:+.1f} s while it was watched", "timedatectl set-ntp true")
    if now.timestamp() < written - _DAY:
        behind = f"it says {now:%Y-%m-%d}, and shoal itself was written here after that"
        return Finding("clock", BROKEN, f"{behind}; the ledger would date releases wrongly", "timedatectl set-ntp true")
    return Finding("clock", OK, f"{now:%Y-%m-%d %H:%M} UTC, steady")


def entropy() -> Finding:
    """Whether the system's source of randomness answers at once, and not always the same."""
    try:
        if hasattr(os, "getrandom"):
            os.getrandom(_DRAWN, os.GRND_NONBLOCK)
        first, second = SystemEntropy().bytes(_DRAWN), SystemEntropy().bytes(_DRAWN)
    except OSError as error:
        return Finding("entropy", BROKEN, f"the system's source does not answer: {error.strerror}", "wait until the machine has started")
    if first == second:
        return Finding("entropy", BROKEN, "the system's source says the same twice; release nothing here", "use another machine")
    return Finding("entropy", OK, "the system's source answers (AES-256-CTR keyed by it)")


def working_directory() -> Finding:
    """Whether there is room here, and whether files may be written."""
    here = Path.cwd()
    try:
        free = shutil.disk_usage(here).free
        with tempfile.TemporaryFile(dir=here) as file:
            file.write(bytes(_DRAWN))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding("disk", BROKEN, f"{shown(str(here))} cannot be written to: {error.strerror}", "cd to a directory of your own")
    words = f"{free / 2**30:.1f} GB free in {shown(str(here))}"
    if free < LEAST_DISK:
        return Finding("disk", BROKEN, f"{words}; a full disk stops ledger and store", "df -h . && du -sh * | sort -h")
    return Finding("disk", OK, f"{words}, writable")


def ledger_file(ledger: Path | None) -> Finding:
    """Whether the ledger can be read, is whole, and is its owner's alone."""
    try:
        path = ledger or default_path()
        if not is_there(path):
            return _ledger_to_be(path)
        with LedgerFile(path, SystemClock()) as book:
            head = book.verify()
        mode = stat.S_IMODE(path.stat().st_mode)
    except ShoalError as error:
        return Finding("ledger", BROKEN, f"{error.code}  {error.what}", error.fix)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        fix = f"chmod 600 {shell_word(path)}"
        return Finding("ledger", BROKEN, f"{shown(str(path))} is whole, but others may open it (mode {mode:o})", fix)
    return Finding("ledger", OK, f"{shown(str(path))}, {head.seq} records, whole, mode {mode:o}")


def _ledger_to_be(path: Path) -> Finding:
    """Whether a ledger could be made there: the nearest directory above it that there is must take files."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        what = f"none yet, and none can be made at {shown(str(path))}: {shown(str(above))} cannot be written to ({error.strerror})"
        return Finding("ledger", BROKEN, what, "export SHOAL_LEDGER=ledger.db")
    return Finding("ledger", OK, f"none yet; the first study makes {shown(str(path))}")


def port_is_free(port: int) -> Finding:
    """Whether a coordinator could listen."""
    name = f"port {port}"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
    except OverflowError:
        return Finding(name, BROKEN, "there is no such port; they go from 0 to 65535", "shoal doctor --port 8700")
    except OSError as error:
        return Finding(name, MISSING, f"shoal serve cannot have it: {error.strerror}", "shoal serve STUDY --port 0")
    return Finding(name, OK, "free for shoal serve")


def sqlite() -> Finding:
    """Whether SQLite is young enough, and write-ahead logs work on this disk."""
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info[:2] < _OLDEST_SQLITE:
        return Finding("sqlite", BROKEN, f"{version} is too old", "uv python install 3.13")
    try:
        with tempfile.TemporaryDirectory(prefix=".shoal-doctor-", dir=Path.cwd()) as folder, closing(_database(folder)) as db:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            db.execute("CREATE TABLE tried (n)")
            db.execute("INSERT INTO tried VALUES (1)")
            db.commit()
    except (OSError, sqlite3.Error) as error:
        return Finding("sqlite", BROKEN, f"{version}; no database can be kept here: {error}", "cd to a directory on a local disk")
    if mode != "wal":
        what = f"{version}; this disk has no write-ahead logs, as network drives have none (mode {mode})"
        return Finding("sqlite", BROKEN, what, "shoal serve STUDY --store sqlite:PATH on a local disk")
    return Finding("sqlite", OK, f"{version}, write-ahead log works")


def _database(folder: str) -> sqlite3.Connection:
    return sqlite3.connect(Path(folder) / "store.db")


def tor() -> Finding:
    """Whether a Tor on this machine answers; only --via tor needs one."""
    try:
        with socket.create_connection(TOR, timeout=2) as port:
            port.sendall(_GREETING)
            answer = port.recv(len(_WELCOME))
    except OSError as error:
        what = f"nothing answers at {TOR[0]}:{TOR[1]} ({error.strerror or type(error).__name__}); shoal join --via tor needs it"
        return Finding("tor", MISSING, what, "sudo apt install tor && sudo systemctl start tor")
    if answer != _WELCOME:
        return Finding("tor", MISSING, f"what answers at {TOR[0]}:{TOR[1]} is no SOCKS port", "shoal join URL --via tor:127.0.0.1:9150")
    return Finding("tor", OK, f"a SOCKS port answers at {TOR[0]}:{TOR[1]}")


def core_dumps() -> Finding:
    """Whether a crash would write rows and keys to the disk."""
    try:
        import resource
    except ImportError:
        return Finding("core dumps", OK, "this system has none of its own")
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    if soft:
        return Finding("core dumps", MISSING, "a crash may write rows and keys to a file; they are not switched off", "ulimit -c 0")
    return Finding("core dumps", OK, "off: a crash leaves no rows behind")


def memory() -> Finding:
    """How much memory there is."""
    try:
        page, pages, free = (os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return Finding("memory", OK, "this system does not say how much there is")
    words = f"{page * free / 2**30:.1f} of {page * pages / 2**30:.1f} GB unused"
    if page * pages < LEAST_MEMORY:
        return Finding("memory", MISSING, f"{words}; enough to join, too little to simulate", "shoal simulate STUDY --data F --jobs 1")
    return Finding("memory", OK, words)
