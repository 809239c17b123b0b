"""A private Tor network on loopback, from Debian's package ``tor``.

``python -m tools.tornet [--onion PORT]`` starts one until Ctrl-C.

It has three directory authorities, which also carry traffic, some exits, and one client with a
SOCKS port; and an onion service for a port, if requested. Nothing leaves this machine: these are
the only authorities that any process knows, all addresses are 127.0.0.1, and the exits reach only
127.0.0.0/8. All processes are started here and ended by their ids; they also end if the process
that started them is killed.

The authorities vote after all relays had time to register with them, at a second that is chosen
here, and every few minutes from then on. A vote that misses an exit would be valid until the next,
so the network is started again, with the same keys, at a later second.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

PROGRAMS = ("tor", "tor-gencert")
N_AUTHORITIES, N_EXITS = 3, 3
HOST = "127.0.0.1"

_INTERVAL, _DELAY = 300, 2
"""Seconds between two votes, and the delay that authorities allow twice in each."""
_LEAD_SECONDS = (5.0, 12.0, 30.0, 60.0)
"""Seconds from the start of all processes to the vote, in the first and later attempts."""
_BOOTSTRAP_SECONDS, _STOP_SECONDS, _LOOK_SECONDS = 25.0, 5.0, 0.1

_ANYONE = """TestingTorNetwork 1
DataDirectory {folder}
Nickname {name}
Log notice file {folder}/notices
ControlPort {host}:{control}
CookieAuthentication 1
ShutdownWaitLength 0
AvoidDiskWrites 1
UseMicrodescriptors 0
PathsNeededToBuildCircuits 0.67
DormantOnFirstStartup 0
__OwningControllerProcess {owner}
"""
_RELAY = """SocksPort 0
Address {host}
ORPort {host}:{traffic}
DirPort {host}:{directory}
AssumeReachable 1
ContactInfo nobody@example.org
"""
_AUTHORITY = """AuthoritativeDirectory 1
V3AuthoritativeDirectory 1
TestingV3AuthInitialVotingInterval {interval}
TestingV3AuthInitialVoteDelay {delay}
TestingV3AuthInitialDistDelay {delay}
TestingV3AuthVotingStartOffset {offset}
V3AuthVotingInterval {interval}
V3AuthVoteDelay {delay}
V3AuthDistDelay {delay}
V3AuthNIntervalsValid 2
TestingDirAuthVoteExit *
TestingDirAuthVoteHSDir *
TestingDirAuthVoteGuard *
TestingMinExitFlagThreshold 0
ExitPolicy reject *:*
"""
_EXIT = """ExitRelay 1
ExitPolicyRejectPrivate 0
ExitPolicy accept 127.0.0.0/8:*
ExitPolicy reject *:*
RefuseUnknownExits 0
"""
"""Configuration of an exit that has not received the result of the vote yet.

It knows no other relay and would reject all traffic, and the client would avoid it for some time
although it is ready.
"""
_CLIENT = """SocksPort {host}:{socks} IsolateSOCKSAuth
ClientOnly 1
MaxCircuitDirtiness 10
MaxClientCircuitsPending 1024
LearnCircuitBuildTimeout 0
CircuitBuildTimeout 30
VanguardsLiteEnabled 0
"""
_ONION = """SocksPort 0
HiddenServiceDir {folder}/service
HiddenServicePort 80 {host}:{target}
VanguardsLiteEnabled 0
"""
"""Configuration for onion services with few relays.

If some relays were reserved for one position in a circuit, hardly any circuit would remain.
"""


class TorError(RuntimeError):
    """The network cannot be started."""


def missing() -> str | None:
    """Return why no network can be started on this machine; None if one can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return (
        f"{' and '.join(absent)} is not installed (Debian: apt-get install tor)" if absent else None
    )


@dataclass
class _Node:
    """One Tor process: its kind, files and ports (control, traffic, directory, socks).

    While it runs, it has a process.
    """

    kind: str
    folder: Path
    ports: tuple[int, ...]
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_relay(self) -> bool:
        return self.kind in ("authority", "exit")

    @cached_property
    def words(self) -> dict[str, object]:
        """Values for its configuration."""
        ports = dict(zip(("control", "traffic", "directory", "socks"), self.ports, strict=True))
        return {
            "host": HOST,
            "name": self.name,
            "folder": self.folder,
            "owner": os.getpid(),
            **ports,
        }

    @property
    def notices(self) -> str:
        path = self.folder / "notices"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def base(self) -> str:
        return (_ANYONE + (_RELAY if self.is_relay else "")).format(**self.words)

    @contextmanager
    def control_link(self) -> Iterator[Callable[[str], list[str]]]:
        """Yield a control connection: send a line, and receive all lines of the reply."""
        with (
            socket.create_connection((HOST, self.ports[0]), timeout=_STOP_SECONDS) as link,
            link.makefile("r", newline="\r\n") as said,
        ):

            def ask(line: str) -> list[str]:
                link.sendall(line.encode() + b"\r\n")
                lines = [said.readline()]
                while lines[-1] not in ("250 OK\r\n", ""):
                    lines.append(said.readline())
                return lines

            ask(f"AUTHENTICATE {(self.folder / 'control_auth_cookie').read_bytes().hex()}")
            yield ask


class TorNetwork:
    """A running network; see `tor_network`.

    Parameters
    ----------
    folder
        Where all files are.
    onion_port
        A port on loopback for which there is an onion service, if any.
    n_exits
        How many relays let traffic out, to loopback.
    """

    def __init__(self, folder: Path, onion_port: int | None = None, n_exits: int = N_EXITS) -> None:
        self.folder, self.onion_port = folder, onion_port
        kinds = (
            ["authority"] * N_AUTHORITIES
            + ["exit"] * n_exits
            + ["client"]
            + ["onion"] * (onion_port is not None)
        )
        ports = iter(_free_ports(4 * len(kinds)))
        self._nodes: list[_Node] = []
        for i, kind in enumerate(kinds):
            home = folder / f"{kind}{i}"
            home.mkdir(mode=0o700)
            self._nodes.append(_Node(kind, home, tuple(islice(ports, 4))))

    @property
    def client(self) -> _Node:
        (found,) = (node for node in self._nodes if node.kind == "client")
        return found

    @property
    def socks_port(self) -> int:
        """SOCKS 5 port of the client.

        Each pair of username and password has separate circuits.
        """
        return self.client.ports[3]

    @property
    def onion(self) -> str:
        """The name of the onion service; its port is 80."""
        (node,) = (node for node in self._nodes if node.kind == "onion")
        return (node.folder / "service" / "hostname").read_text().strip()

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [node.process.pid for node in self._nodes if node.process is not None]

    def start(self) -> None:
        """Start all processes, and return when the client has a circuit through the network."""
        authorities = self._authorities()
        for i, lead in enumerate(_LEAD_SECONDS):
            try:
                self._launch(authorities, lead)
                self._wait(_BOOTSTRAP_SECONDS + 4 * lead)
                return
            except TorError:
                self.stop()
                if i == len(_LEAD_SECONDS) - 1:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End all processes by their ids, and wait until they are gone."""
        running = [node for node in self._nodes if node.process is not None]
        for node in running:
            assert node.process is not None
            node.process.send_signal(signal.SIGINT)
        until = time.monotonic() + _STOP_SECONDS
        for node in running:
            assert node.process is not None
            try:
                node.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
            node.process = None

    @contextmanager
    def circuits(self) -> Iterator[list[str]]:
        """Yield a list of the client's circuits, one for each connection, in order.

        It is filled at the end. For tests.
        """
        found: list[str] = []
        with self.client.control_link() as ask:
            ask("SETEVENTS STREAM")
            yield found
            # The client's reply about itself follows all earlier events.
            for line in ask("GETINFO version"):
                words = line.split()
                if words[:2] == ["650", "STREAM"] and words[3] == "SUCCEEDED":
                    found.append(words[4])

    def _authorities(self) -> str:
        """Make the keys of the authorities, and the lines that identify them."""
        with ThreadPoolExecutor() as pool:
            return "".join(
                pool.map(
                    _authority_line, [node for node in self._nodes if node.kind == "authority"]
                )
            )

    def _launch(self, authorities: str, lead: float) -> None:
        """Start all processes.

        The consensus of a vote is dated at its end, and the vote begins two delays before.
        """
        offset = int(time.time() + lead + 2 * _DELAY) % _INTERVAL
        for node in self._nodes:
            torrc = node.base + authorities
            match node.kind:
                case "authority":
                    torrc += _AUTHORITY.format(interval=_INTERVAL, delay=_DELAY, offset=offset)
                case "exit":
                    torrc += _EXIT
                case "client":
                    torrc += _CLIENT.format(**node.words)
                case _:
                    (node.folder / "service").mkdir(mode=0o700, exist_ok=True)
                    torrc += _ONION.format(target=self.onion_port, **node.words)
            (node.folder / "torrc").write_text(torrc)
            (node.folder / "notices").unlink(missing_ok=True)
            for cached in node.folder.glob("cached-*"):
                cached.unlink()
            with (node.folder / "said").open("wb") as said:
                command = ["tor", "-f", str(node.folder / "torrc")]
                # The starter ends a network: an interruption at the terminal must not reach its
                # processes.
                node.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )

    def _wait(self, seconds: float) -> None:
        """Return when the client and the onion service have circuits."""
        until = time.monotonic() + seconds
        waited = [node for node in self._nodes if not node.is_relay]
        while waited:
            for node in self._nodes:
                if node.process is None or node.process.poll() is not None:
                    raise TorError(
                        f"{node.name} has ended: "
                        f"{(node.folder / 'said').read_text(errors='replace')[-500:]}"
                    )
            if time.monotonic() > until:
                raise TorError(
                    f"{waited[0].name} built no circuit in {seconds:g} s: "
                    f"{waited[0].notices[-500:]}"
                )
            time.sleep(_LOOK_SECONDS)
            waited = [node for node in waited if "Bootstrapped 100%" not in node.notices]
        listed = set(
            re.findall(
                r"^r (\w+)", (self.client.folder / "cached-consensus").read_text(), re.MULTILINE
            )
        )
        if absent := {node.name for node in self._nodes if node.is_relay} - listed:
            raise TorError(f"the authorities have voted without {', '.join(sorted(absent))}")


@contextmanager
def tor_network(onion_port: int | None = None, n_exits: int = N_EXITS) -> Iterator[TorNetwork]:
    """Yield a network; raise `TorError` if Tor is missing or does not start."""
    if reason := missing():
        raise TorError(reason)
    with tempfile.TemporaryDirectory(prefix="shoal-tor-", ignore_cleanup_errors=True) as folder:
        network = TorNetwork(Path(folder), onion_port, n_exits)
        network.start()
        try:
            yield network
        finally:
            network.stop()


def _authority_line(node: _Node) -> str:
    """Make the keys of an authority; return the line that identifies it."""
    keys = node.folder / "keys"
    keys.mkdir(mode=0o700)
    files = [
        word
        for option, name in (("-i", "identity_key"), ("-s", "signing_key"), ("-c", "certificate"))
        for word in (option, str(keys / f"authority_{name}"))
    ]
    _run(
        [
            "tor-gencert",
            "--create-identity-key",
            "--passphrase-fd",
            "0",
            *files,
            "-m",
            "12",
            "-a",
            f"{HOST}:{node.ports[2]}",
        ],
        b"none\n",
    )
    named = re.search(
        r"^fingerprint (\w+)", (keys / "authority_certificate").read_text(), re.MULTILINE
    )
    assert named is not None
    line = (
        f"DirAuthority {node.name} orport={node.ports[1]} v3ident={named[1]} "
        f"{HOST}:{node.ports[2]} "
    )
    # Tor requires authorities before it prints the fingerprint of one.
    (node.folder / "torrc").write_text(node.base + line + "F" * 40 + "\n")
    said = _run(["tor", "-f", str(node.folder / "torrc"), "--list-fingerprint", "--quiet"])
    fingerprint = re.search(rf"^{node.name} ((?:[0-9A-F]{{4}} ?){{10}})", said, re.MULTILINE)
    assert fingerprint is not None
    return line + fingerprint[1].replace(" ", "") + "\n"


def _run(command: Sequence[str], given: bytes = b"") -> str:
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    if done.returncode:
        raise TorError(f"{command[0]} fails: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout.decode(errors="replace")


def _free_ports(n: int) -> list[int]:
    """Return different ports on loopback without listeners."""
    probes = [socket.create_server((HOST, 0)) for _ in range(n)]
    try:
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def main() -> None:
    """Start a network, print how to use it, and stop it on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.tornet",
        description="A private Tor network on loopback, until Ctrl-C.",
    )
    parser.add_argument(
        "--onion", type=int, metavar="PORT", help="give this port on loopback an onion service"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        began = time.monotonic()
        with tor_network(chosen.onion) as network:
            print(f"socks     {HOST}:{network.socks_port}, after {time.monotonic() - began:.0f} s")
            if chosen.onion is not None:
                print(f"onion     http://{network.onion} is {HOST}:{chosen.onion}")
            print(
                "\nnext      shoal join URL --data FILE --via "
                f"tor:{HOST}:{network.socks_port}\n\nCtrl-C stops it.",
                flush=True,
            )
            signal.pause()
    except TorError as error:
        sys.exit(f"No Tor network: {error}")
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
