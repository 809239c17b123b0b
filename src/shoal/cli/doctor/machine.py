"""Checks of ``shoal doctor``: each returns a finding, with a command that repairs a fault.

The checks write only temporary files, and contact no other machine: Tor and the port are tried on
loopback. A change must keep both.
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
from shoal.errors import ShoalError, format_install_command
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.ledger_storage import find_ledger_path, path_exists
from shoal.text import escape_text, shell_quote

OK, MISSING, BROKEN = "ok", "missing", "broken"
OLDEST_PYTHON = (3, 11)
TOR_ADDRESS = ("127.0.0.1", 9050)
MIN_DISK_BYTES, MIN_MEMORY_BYTES = 200 * 2**20, 512 * 2**20
_ALL_EXTRA = "all"
_PROBE_BYTES = 32
_WAIT_SECONDS, _MAX_DRIFT_SECONDS = 0.05, 0.5
_DAY_SECONDS = 86_400.0
_GREETING, _WELCOME = b"\x05\x01\x00", b"\x05\x00"
_OLDEST_SQLITE = (3, 37)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?[^;]*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_NOT_WINDOWS = re.compile(r"sys_platform\s*!=\s*['\"]win32['\"]")


@dataclass(frozen=True)
class MachineFinding:
    """The result of a check."""

    name: str
    state: str
    what: str
    fix: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Return the finding as plain data."""
        return asdict(self)


def run_checks(ledger: Path | None, port: int) -> list[MachineFinding]:
    """Run all checks, and return their findings in the order of the output."""
    checks: list[Callable[[], MachineFinding]] = [
        check_clock,
        check_entropy,
        check_working_directory,
        lambda: check_ledger(ledger),
        lambda: check_port(port),
        check_sqlite,
        check_tor,
        check_core_dumps,
        check_memory,
    ]
    version = MachineFinding("shoal", OK, shoal.__version__)
    return [check_python(), version, *check_extras(), *(check() for check in checks)]


def check_python() -> MachineFinding:
    """Check that this version of Python is supported."""
    version = (
        f"{platform.python_version()} ({platform.python_implementation()}, {platform.system()})"
    )
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return MachineFinding("python", OK, version)
    return MachineFinding(
        "python",
        BROKEN,
        f"{version}; shoal needs {'.'.join(map(str, OLDEST_PYTHON))} or later",
        "uv python install 3.13",
    )


def check_extras() -> Iterator[MachineFinding]:
    """Check each extra; the fix is the command that installs it."""
    try:
        distribution = importlib.metadata.distribution("shoal")
    except importlib.metadata.PackageNotFoundError:
        yield MachineFinding(
            "extras",
            MISSING,
            "unknown: shoal runs from a directory and is not installed",
            format_install_command(_ALL_EXTRA),
        )
        return
    needs = _parse_requirements(distribution.requires or [])
    for extra in distribution.metadata.get_all("Provides-Extra") or []:
        if extra != _ALL_EXTRA and extra in needs:
            yield _check_extra(extra, needs[extra])


def _parse_requirements(requirements: list[str]) -> dict[str, list[str]]:
    """Return the packages of each extra."""
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        parsed = _REQUIREMENT.match(requirement)
        extra = _EXTRA.search(requirement)
        is_elsewhere = sys.platform == "win32" and _NOT_WINDOWS.search(requirement) is not None
        if parsed and extra and parsed[1] != "shoal" and not is_elsewhere:
            packages.setdefault(extra[1], []).append(parsed[1])
    return packages


def _check_extra(extra: str, packages: list[str]) -> MachineFinding:
    versions = {name: _find_version(name) for name in packages}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return MachineFinding(
            f"[{extra}]",
            MISSING,
            f"not installed: {', '.join(missing)}",
            format_install_command(extra),
        )
    return MachineFinding(
        f"[{extra}]", OK, ", ".join(f"{name} {version}" for name, version in versions.items())
    )


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_clock() -> MachineFinding:
    """Check that the clock runs steadily, and is not behind the date of shoal's files."""
    now, begun = SystemClock().now(), time.monotonic()
    time.sleep(_WAIT_SECONDS)
    wall, steady = (SystemClock().now() - now).total_seconds(), time.monotonic() - begun
    written = Path(shoal.__file__).stat().st_mtime
    if abs(wall - steady) > _MAX_DRIFT_SECONDS or steady <= 0:
        return MachineFinding(
            "clock",
            BROKEN,
            f"it jumped by {wall - steady:+.1f} s during the check",
            "timedatectl set-ntp true",
        )
    if now.timestamp() < written - _DAY_SECONDS:
        return MachineFinding(
            "clock",
            BROKEN,
            f"it shows {now:%Y-%m-%d}, but shoal's files are newer; the ledger would date "
            "releases wrongly",
            "timedatectl set-ntp true",
        )
    return MachineFinding("clock", OK, f"{now:%Y-%m-%d %H:%M} UTC, steady")


def check_entropy() -> MachineFinding:
    """Check that the system's random source answers without waiting, and does not repeat itself."""
    try:
        if hasattr(os, "getrandom"):
            os.getrandom(_PROBE_BYTES, os.GRND_NONBLOCK)
        first, second = SystemEntropy().bytes(_PROBE_BYTES), SystemEntropy().bytes(_PROBE_BYTES)
    except OSError as error:
        return MachineFinding(
            "entropy",
            BROKEN,
            f"the system's random source does not answer: {error.strerror}",
            "wait until the machine has started",
        )
    if first == second:
        return MachineFinding(
            "entropy",
            BROKEN,
            "the system's random source repeats itself; release nothing on this machine",
            "use another machine",
        )
    return MachineFinding("entropy", OK, "the system's random source answers (it keys AES-256-CTR)")


def check_working_directory() -> MachineFinding:
    """Check that the working directory is writable and has free space."""
    here = Path.cwd()
    try:
        free = shutil.disk_usage(here).free
        with tempfile.TemporaryFile(dir=here) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return MachineFinding(
            "disk",
            BROKEN,
            f"{escape_text(str(here))} cannot be written to: {error.strerror}",
            "cd to a directory that you can write to",
        )
    space = f"{free / 2**30:.1f} GB free in {escape_text(str(here))}"
    if free < MIN_DISK_BYTES:
        return MachineFinding(
            "disk",
            BROKEN,
            f"{space}; a full disk stops ledger and store",
            "df -h . && du -sh * | sort -h",
        )
    return MachineFinding("disk", OK, f"{space}, writable")


def check_ledger(ledger: Path | None) -> MachineFinding:
    """Check that the ledger is readable and intact, and that only its owner can open it."""
    try:
        path = ledger or find_ledger_path()
        if not path_exists(path):
            return _check_new_ledger(path)
        with LedgerFile(path, SystemClock()) as file:
            head = file.verify()
        mode = stat.S_IMODE(path.stat().st_mode)
    except ShoalError as error:
        return MachineFinding("ledger", BROKEN, f"{error.code}  {error.what}", error.fix)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        fix = f"chmod 600 {shell_quote(path)}"
        return MachineFinding(
            "ledger",
            BROKEN,
            f"{escape_text(str(path))} is intact, but other users may open it (mode {mode:o})",
            fix,
        )
    return MachineFinding(
        "ledger", OK, f"{escape_text(str(path))}, {head.seq} records, intact, mode {mode:o}"
    )


def _check_new_ledger(path: Path) -> MachineFinding:
    """Check that a ledger can be created: the nearest existing parent must be writable."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        what = (
            f"none yet, and {escape_text(str(path))} cannot be created: "
            f"{escape_text(str(above))} cannot be written to ({error.strerror})"
        )
        return MachineFinding("ledger", BROKEN, what, "export SHOAL_LEDGER=ledger.db")
    return MachineFinding(
        "ledger", OK, f"none yet; the first study creates {escape_text(str(path))}"
    )


def check_port(port: int) -> MachineFinding:
    """Check that a coordinator can listen on a port."""
    name = f"port {port}"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
    except OverflowError:
        return MachineFinding(
            name,
            BROKEN,
            "not a port: ports are 0 to 65535",
            "shoal doctor --port 8700",
        )
    except OSError as error:
        return MachineFinding(
            name,
            MISSING,
            f"not available to shoal serve: {error.strerror}",
            "shoal serve STUDY --port 0",
        )
    return MachineFinding(name, OK, "free for shoal serve")


def check_sqlite() -> MachineFinding:
    """Check the version of SQLite, and that write-ahead logs work on this disk."""
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info[:2] < _OLDEST_SQLITE:
        return MachineFinding("sqlite", BROKEN, f"{version} is too old", "uv python install 3.13")
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".shoal-doctor-", dir=Path.cwd()) as folder,
            closing(_open_database(folder)) as db,
        ):
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            db.execute("CREATE TABLE tried (n)")
            db.execute("INSERT INTO tried VALUES (1)")
            db.commit()
    except (OSError, sqlite3.Error) as error:
        return MachineFinding(
            "sqlite",
            BROKEN,
            f"{version}; a database cannot be created here: {error}",
            "cd to a directory on a local disk",
        )
    if mode != "wal":
        what = (
            f"{version}; write-ahead logs do not work on this disk, which may be a network drive "
            f"(mode {mode})"
        )
        return MachineFinding(
            "sqlite", BROKEN, what, "shoal serve STUDY --store sqlite:PATH on a local disk"
        )
    return MachineFinding("sqlite", OK, f"{version}, write-ahead log works")


def _open_database(folder: str) -> sqlite3.Connection:
    return sqlite3.connect(Path(folder) / "store.db")


def check_tor() -> MachineFinding:
    """Check that Tor answers on this machine; only --via tor needs it."""
    try:
        with socket.create_connection(TOR_ADDRESS, timeout=2) as port:
            port.sendall(_GREETING)
            answer = port.recv(len(_WELCOME))
    except OSError as error:
        what = (
            f"no answer at {TOR_ADDRESS[0]}:{TOR_ADDRESS[1]} "
            f"({error.strerror or type(error).__name__}); shoal join --via tor needs it"
        )
        return MachineFinding(
            "tor", MISSING, what, "sudo apt install tor && sudo systemctl start tor"
        )
    if answer != _WELCOME:
        return MachineFinding(
            "tor",
            MISSING,
            f"the server at {TOR_ADDRESS[0]}:{TOR_ADDRESS[1]} is not a SOCKS proxy",
            "shoal join URL --via tor:127.0.0.1:9150",
        )
    return MachineFinding("tor", OK, f"a SOCKS proxy answers at {TOR_ADDRESS[0]}:{TOR_ADDRESS[1]}")


def check_core_dumps() -> MachineFinding:
    """Check that a crash does not write rows and keys to the disk."""
    try:
        import resource
    except ImportError:
        return MachineFinding("core dumps", OK, "not available on this system")
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    if soft:
        return MachineFinding(
            "core dumps",
            MISSING,
            "on: a crash may write rows and keys to a file",
            "ulimit -c 0",
        )
    return MachineFinding("core dumps", OK, "off: a crash writes no rows to the disk")


def check_memory() -> MachineFinding:
    """Check that the machine has enough memory."""
    try:
        page, pages, free = (
            os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES", "SC_AVPHYS_PAGES")
        )
    except (AttributeError, ValueError, OSError):
        return MachineFinding("memory", OK, "unknown on this system")
    size = f"{page * free / 2**30:.1f} of {page * pages / 2**30:.1f} GB unused"
    if page * pages < MIN_MEMORY_BYTES:
        return MachineFinding(
            "memory",
            MISSING,
            f"{size}; enough to join, too little to simulate",
            "shoal simulate STUDY --data F --jobs 1",
        )
    return MachineFinding("memory", OK, size)
