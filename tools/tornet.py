"""A private Tor network on loopback, from Debian's package ``tor``: ``python -m tools.tornet [--onion PORT]`` starts one until Ctrl-C.

Three directory authorities, which also carry traffic, some exits, and one client with a SOCKS port; an onion service for a port, where one
is wanted. Nothing leaves this machine: the only authorities that any of them knows are these, all addresses are 127.0.0.1, and the exits
let nothing out but to 127.0.0.0/8. All processes are started here and ended by their ids; should whoever started them be
killed, they end by themselves.

The authorities vote once all relays had time to register with them, at a second that is chosen here, and every few minutes from then on.
A vote that misses an exit would stand until the next, so the network begins again, with the keys that it has, at a later second.
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
"""Seconds between two votes, and that the authorities give each other twice in each."""
_LEAD_SECONDS = (5.0, 12.0, 30.0)
"""From the start of all processes until the authorities vote, in the first attempt and in those after it."""
_BOOTSTRAP_SECONDS, _STOP_SECONDS, _LOOK_SECONDS = 45.0, 5.0, 0.1

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
"""An exit that the outcome of the vote has not reached yet knows no other relay. It would let nothing out, and the client would leave it
aside for some time, though it is ready itself."""
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
"""Of so few relays hardly any way is left to an onion service where some of them are kept for one place in it."""


class TorError(RuntimeError):
    """The network cannot be started."""


def missing() -> str | None:
    """Why no network can be started on this machine; None where one can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{' and '.join(absent)} is not installed (Debian: apt-get install tor)" if absent else None


@dataclass
class _Node:
    """One process of Tor: its kind and files, its ports (control, traffic, directory, socks) and, while it runs, the process."""

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
        """What its configuration is filled in with."""
        ports = dict(zip(("control", "traffic", "directory", "socks"), self.ports, strict=True))
        return {"host": HOST, "name": self.name, "folder": self.folder, "owner": os.getpid(), **ports}

    @property
    def notices(self) -> str:
        path = self.folder / "notices"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def base(self) -> str:
        return (_ANYONE + (_RELAY if self.is_relay else "")).format(**self.words)

    @contextmanager
    def control_link(self) -> Iterator[Callable[[str], list[str]]]:
        """A connection by which it is asked: a line there, and all lines back until it says that it is done."""
        with socket.create_connection((HOST, self.ports[0]), timeout=_STOP_SECONDS) as link, link.makefile("r", newline="\r\n") as said:

            def ask(line: str) -> list[str]:
                link.sendall(line.encode() + b"\r\n")
                lines = [said.readline()]
                while lines[-1] not in ("250 OK\r\n", ""):
                    lines.append(said.readline())
                return lines

            ask(f"AUTHENTICATE {(self.folder / 'control_auth_cookie').read_bytes().hex()}")
            yield ask


class TorNetwork:
    """A network that is under way; see `tor_network`.

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
        kinds = ["authority"] * N_AUTHORITIES + ["exit"] * n_exits + ["client"] + ["onion"] * (onion_port is not None)
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
        """Where the client takes connections, by SOCKS 5; each pair of username and password has circuits of its own."""
        return self.client.ports[3]

    @property
    def onion(self) -> str:
        """The name of the onion service, whose port is 80."""
        (node,) = (node for node in self._nodes if node.kind == "onion")
        return (node.folder / "service" / "hostname").read_text().strip()

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [node.process.pid for node in self._nodes if node.process is not None]

    def start(self) -> None:
        """Start all processes, and return when the client has a way through the network."""
        authorities = self._authorities()
        for i, lead in enumerate(_LEAD_SECONDS):
            try:
                self._launch(authorities, lead)
                self._wait()
                return
            except TorError:
                self.stop()
                if i == len(_LEAD_SECONDS) - 1:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End all processes, by their ids, and wait until they are gone."""
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
        """The circuits over which the client's connections went meanwhile, one for each, in order; filled at the end. For tests."""
        found: list[str] = []
        with self.client.control_link() as ask:
            ask("SETEVENTS STREAM")
            yield found
            # What the client says of itself comes after all events before it.
            for line in ask("GETINFO version"):
                words = line.split()
                if words[:2] == ["650", "STREAM"] and words[3] == "SUCCEEDED":
                    found.append(words[4])

    def _authorities(self) -> str:
        """Make the keys of the authorities, and the lines by which everyone knows them."""
        with ThreadPoolExecutor() as pool:
            return "".join(pool.map(_authority_line, [node for node in self._nodes if node.kind == "authority"]))

    def _launch(self, authorities: str, lead: float) -> None:
        """Start everyone. The consensus of a vote is dated at its end, and the vote begins two delays before."""
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
                # A network is ended by whoever started it: an interruption at the terminal is not for its processes.
                node.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)

    def _wait(self) -> None:
        """Return when the client, and the onion service, have found their way."""
        until = time.monotonic() + _BOOTSTRAP_SECONDS
        waited = [node for node in self._nodes if not node.is_relay]
        while waited:
            for node in self._nodes:
                if node.process is None or node.process.poll() is not None:
                    raise TorError(f"{node.name} has ended: {(node.folder / 'said').read_text(errors='replace')[-500:]}")
            if time.monotonic() > until:
                raise TorError(f"{waited[0].name} has found no way for {_BOOTSTRAP_SECONDS:g} s: {waited[0].notices[-500:]}")
            time.sleep(_LOOK_SECONDS)
            waited = [node for node in waited if "Bootstrapped 100%" not in node.notices]
        listed = set(re.findall(r"^r (\w+)", (self.client.folder / "cached-consensus").read_text(), re.MULTILINE))
        if absent := {node.name for node in self._nodes if node.is_relay} - listed:
            raise TorError(f"the authorities have voted without {', '.join(sorted(absent))}")


@contextmanager
def tor_network(onion_port: int | None = None, n_exits: int = N_EXITS) -> Iterator[TorNetwork]:
    """A network while it is needed; `TorError` where there is no Tor, or it does not start."""
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
    """Make the keys of an authority; the line by which others know it."""
    keys = node.folder / "keys"
    keys.mkdir(mode=0o700)
    files = [
        word
        for option, name in (("-i", "identity_key"), ("-s", "signing_key"), ("-c", "certificate"))
        for word in (option, str(keys / f"authority_{name}"))
    ]
    _run(["tor-gencert", "--create-identity-key", "--passphrase-fd", "0", *files, "-m", "12", "-a", f"{HOST}:{node.ports[2]}"], b"none\n")
    named = re.search(r"^fingerprint (\w+)", (keys / "authority_certificate").read_text(), re.MULTILINE)
    assert named is not None
    line = f"DirAuthority {node.name} orport={node.ports[1]} v3ident={named[1]} {HOST}:{node.ports[2]} "
    # Tor asks for authorities before it tells the fingerprint of one.
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
    """Ports on loopback, all different, at which nobody listens."""
    probes = [socket.create_server((HOST, 0)) for _ in range(n)]
    try:
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def main() -> None:
    """Start a network, say how to use it, and stop it on Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tools.tornet", description="A private Tor network on loopback, until Ctrl-C.")
    parser.add_argument("--onion", type=int, metavar="PORT", help="give this port on loopback an onion service")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        began = time.monotonic()
        with tor_network(chosen.onion) as network:
            print(f"socks     {HOST}:{network.socks_port}, after {time.monotonic() - began:.0f} s")
            if chosen.onion is not None:
                print(f"onion     http://{network.onion} is {HOST}:{chosen.onion}")
            print(f"\nnext      shoal join URL --data FILE --via tor:{HOST}:{network.socks_port}\n\nCtrl-C stops it.", flush=True)
            signal.pause()
    except TorError as error:
        sys.exit(f"No Tor network: {error}")
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
