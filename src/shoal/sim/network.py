"""A network that fails on purpose, in virtual time: the same machines as everywhere, and a driver that keeps the contract.

Bytes are delayed, lost, doubled and overtaken; a machine goes down between any two of its durable steps and comes back with what it
had saved; a peer drops out and may return. Whatever is not acknowledged is sent again, the same bytes. Everything
follows from the seed: the same seed gives the same trace.

What survives a crash is the ledger, and what host and node have: state, index of submissions, outbox, wake-up times and the names of
joint computations, though not these themselves. They change together, at one place (`_World._save`). The state comes back as
`codec.load` reads the bytes that `codec.dump` writes. States are frozen, so writing them when a machine goes down is the same as having
written them at every save.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, UsageError
from shoal.protocols.base import (
    START,
    Abort,
    Aggregator,
    Broken,
    Compute,
    Computed,
    Computer,
    Feed,
    Finish,
    Handled,
    Host,
    IdealComputer,
    Input,
    Ledger,
    Outbound,
    Outcome,
    Peer,
    Refused,
    Sent,
    Started,
    Tick,
    WakeAt,
    open_hosts,
)
from shoal.protocols.joint.computing import interrupted
from shoal.sim.faults import CrashError, Faults, FragileLedger
from shoal.sim.node import Node, through_bytes

EVENTS_PER_MACHINE = 50_000
DOUBLINGS = 5
"""How often a sender doubles the time that it waits."""

_PARTS = 1_000_000_000
_MILLISECOND = timedelta(milliseconds=1)


class _World:
    """The queue of events, and what happens at each."""

    def __init__(self, hosts: Mapping[str, Host], chance: SeededEntropy, faults: Faults, computer: Computer) -> None:
        self.faults = faults
        self.computer = computer
        self.chance = chance
        self.outcome = Outcome()
        self.now = 0
        self.nodes: dict[str, Node] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        for name, host in hosts.items():
            self.nodes[name] = Node(host, faults.crash if host.account else faults.crash / max(1, len(hosts) - 1))
            if host.account is not None:
                host.account = replace(host.account, ledger=FragileLedger(host.account.ledger, partial(self._shake, name)))
            self._at(0, partial(self._rise, name))
        for name, (leaves, returns) in faults.absences.items():
            self._at(leaves, partial(self._fall, name, math.inf if returns is None else returns))

    def run(self, max_events: int) -> Outcome:
        for _ in range(max_events):
            if not self._queue:
                break
            self.now, _, happen = heapq.heappop(self._queue)
            happen()
        if self._queue:
            raise LocalProtocolError(
                "SIM-001",
                f"The network was not quiet after {max_events} events, at {self.now / 1000:g} s of its own time.",
                fix="Allow more events, make the faults milder, or look for a machine that repeats itself.",
            )
        self.outcome.states = {name: through_bytes(node.host.state) for name, node in self.nodes.items()}
        return self.outcome

    @property
    def clock(self) -> datetime:
        return START + self.now * _MILLISECOND

    def _at(self, when: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._serial), happen))

    def _happens(self, chance: float) -> bool:
        return self.chance.below(_PARTS) < chance * _PARTS

    def _shake(self, name: str) -> None:
        if self._happens(self.nodes[name].crash):
            raise CrashError

    def _fall(self, name: str, until: float) -> None:
        """A machine goes down, and loses all that it had not saved."""
        node = self.nodes[name]
        node.fall(until, forgets=node.host.account is not None and self._happens(self.faults.amnesia))
        self.computer.end(name)
        if not node.is_gone:
            self._at(int(node.down_until), partial(self._rise, name))

    def _rise(self, name: str) -> None:
        """A machine comes up with what it had saved, and takes up its outbox and its alarms."""
        node = self.nodes[name]
        if node.is_up or self.now < node.down_until:
            return
        node.is_up = True
        for number in node.outbox:
            self._later(name, 0, partial(self._transmit, name, number))
        for alarm in sorted(node.alarms):
            self._later(name, alarm - self.now, partial(self._handle, name, Tick(), alarm))
        for task in sorted(node.tasks):
            self._later(name, 0, partial(self._handle, name, interrupted(task)))
        if not node.has_started:
            self._alive(name, partial(self._handle, name, Started()))

    def _later(self, name: str, wait: int, act: Callable[[], None]) -> None:
        """A machine plans to act; the plan is forgotten if it goes down first."""
        self._at(self.now + max(0, wait), partial(self._if_same_life, name, self.nodes[name].life, act))

    def _if_same_life(self, name: str, life: int, act: Callable[[], None]) -> None:
        if self.nodes[name].life == life:
            self._alive(name, act)

    def _alive(self, name: str, act: Callable[[], None]) -> bool:
        """Let a machine act; whether it did so to the end."""
        try:
            act()
        except CrashError:
            self._fall(name, self.now + self.faults.downtime)
            return False
        return True

    def _handle(self, name: str, given: Input | Sent, rung: int | None = None) -> None:
        """Give a machine an input, and save everything that came of it at once."""
        handled = self.nodes[name].host.handle(given, self.clock, self.outcome)
        self._shake(name)
        self._save(name, given, handled, rung)
        self._shake(name)

    def _save(self, name: str, given: Input | Sent, handled: Handled, rung: int | None) -> None:
        node = self.nodes[name]
        node.host.accept(handled)
        node.has_started = True
        node.alarms.discard(-1 if rung is None else rung)
        if isinstance(given, Refused):
            node.drop(given.question)
        if isinstance(given, Computed | Broken):
            node.tasks.discard(given.task)
        for item in handled.work:
            match item:
                case Outbound():
                    number = next(self._serial)
                    node.outbox[number] = item
                    self._later(name, 0, partial(self._transmit, name, number))
                case Compute(task):
                    node.tasks.add(task)
                    self.computer.begin(name, item)
                    self._at(self.now, self._collect)
                case Feed():
                    self.computer.feed(name, item)
                    self._at(self.now, self._collect)
                case WakeAt(when):
                    alarm = max(self.now, -(-(when - START) // _MILLISECOND))
                    if alarm not in node.alarms:
                        node.alarms.add(alarm)
                        self._later(name, alarm - self.now, partial(self._handle, name, Tick(), alarm))
                case ending:
                    self._end(name, ending)

    def _collect(self) -> None:
        """Tell machines what has become of their joint computations, which take no time here."""
        for name, progress in self.computer.collect():
            self._later(name, 0, partial(self._handle, name, progress))

    def _end(self, name: str, ending: Finish | Abort) -> None:
        """Note how a machine ends; one that gives up is gone for good, with all that it has not sent."""
        self.outcome.note(name, ending)
        if isinstance(ending, Abort):
            self.nodes[name].give_up()
            self.computer.end(name)

    def _transmit(self, name: str, number: int, attempt: int = 0) -> None:
        """Send what is in the outbox under a number, and again until it is acknowledged or the other side is gone for good."""
        node = self.nodes[name]
        letter = node.outbox.get(number)
        if letter is None or self.nodes[letter.to].is_gone:
            return
        match node.host.send(letter, self.clock, self.outcome):
            case Sent() as sent:
                self.outcome.sent.append(sent)
                for _ in range(2 if self._happens(self.faults.duplicate) else 1):
                    self._carry(partial(self._arrive, sent, number))
                self._shake(name)
                wait = self.faults.retry << min(attempt, DOUBLINGS)
                self._later(name, wait, partial(self._transmit, name, number, attempt + 1))
            case Refused() as refused:
                self._handle(name, refused)
            case ending:
                self._end(name, ending)

    def _carry(self, arrive: Callable[[], None]) -> None:
        """Take something across the network, or lose it."""
        if not self._happens(self.faults.loss):
            delay = self.faults.min_delay + self.chance.below(self.faults.max_delay - self.faults.min_delay + 1)
            self._at(self.now + delay, arrive)

    def _arrive(self, sent: Sent, number: int) -> None:
        """Bytes reach a machine, which acknowledges them once what came of them is saved."""
        if self.nodes[sent.to].is_up and self._alive(sent.to, partial(self._handle, sent.to, sent)):
            self._carry(partial(self._acknowledged, sent.sender, number))

    def _acknowledged(self, name: str, number: int) -> None:
        if self.nodes[name].is_up:
            self._alive(name, partial(self._forget, self.nodes[name], number))

    def _forget(self, node: Node, number: int) -> None:
        """Strike a delivered letter from the outbox; it may have been struck before."""
        if number in node.outbox:
            node.host.acknowledged(node.outbox[number].question)
            del node.outbox[number]


def run_network(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Peer[Any]],
    entropy: SeededEntropy,
    faults: Faults | None = None,
    *,
    ledgers: Mapping[str, Ledger] | None = None,
    computer: Computer | None = None,
    max_events: int | None = None,
) -> Outcome:
    """Run a protocol over a faulty network until nothing moves any more.

    Parameters
    ----------
    aggregator, peers
        The machines; peers by name.
    entropy
        Decides everything: what machines draw (each from a stream of its own) and what goes wrong.
    faults
        How bad the network is; None for a good one.
    ledgers
        Ledgers by name of peer; one without a limit where none is given.
    computer
        What runs joint computations; None for one in this process that sees everything.
    max_events
        Most events before the run is given up; None for 50,000 per machine.
    """
    faults = faults or Faults()
    strangers = sorted(faults.absences.keys() - peers.keys())
    if strangers:
        raise UsageError("USAGE-001", f"{strangers[0]} is to drop out, but is not one of the {len(peers)} peers.")
    hosts = open_hosts(aggregator, peers, entropy, ledgers)
    world = _World(hosts, entropy.spawn("network"), faults, IdealComputer(entropy) if computer is None else computer)
    return world.run(EVENTS_PER_MACHINE * len(hosts) if max_events is None else max_events)
