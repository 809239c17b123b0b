"""A network that fails on purpose, in virtual time: the same machines as everywhere, and a driver that keeps the contract.

Bytes are delayed, lost, doubled and overtaken; a machine goes down between any two of its durable steps and comes back with what it
had saved; a peer drops out and may return. Whatever is not acknowledged is sent again, the same bytes. Everything
follows from the seed: the same seed gives the same trace.

What survives a crash is what is `_Saved` (state, outbox and wake-up times, always written together) and the ledger.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, UsageError
from shoal.privacy.events import Event
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Account,
    Aggregator,
    Input,
    Ledger,
    Machine,
    Outbound,
    Outcome,
    Peer,
    Rejected,
    Sent,
    Started,
    Tick,
    WakeAt,
    open_accounts,
    recipients,
    settle,
)

T = TypeVar("T")

_PARTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the network is. Chances are per event; times are whole milliseconds of virtual time.

    Parameters
    ----------
    loss, duplicate
        Chance that bytes, or an acknowledgement, never arrive; that they arrive twice.
    min_delay, max_delay
        Each copy takes a time of its own, uniform between these; so later bytes may overtake earlier ones.
    crash
        Chance that a machine goes down at each point between two durable steps: before and after each call of
        the ledger, before and after it is saved, and after each sending.
    amnesia
        Chance that a peer which went down comes back with its ledger alone, as after a new installation. No answer is drawn twice
        even then; but one that was under way may never be acknowledged.
    downtime
        How long a machine stays down.
    retry
        How long a sender waits for an acknowledgement.
    absences
        Name of a peer -> when it drops out, and when it returns (None: never).
    """

    loss: float = 0.0
    duplicate: float = 0.0
    min_delay: int = 1
    max_delay: int = 1
    crash: float = 0.0
    amnesia: float = 0.0
    downtime: int = 500
    retry: int = 200
    absences: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "crash", "amnesia"):
            chance = getattr(self, name)
            if not 0 <= chance <= 1:
                raise UsageError("USAGE-001", f"{name} = {chance} is not a chance.", fix="Give a number between 0 and 1.")
        if not (0 <= self.min_delay <= self.max_delay and self.downtime > 0 and self.retry > 0):
            raise UsageError("USAGE-001", "Delays must not be negative nor fall; downtime and retry must be at least 1 ms.")


class _CrashError(Exception):
    """A machine goes down here."""


@dataclass(frozen=True)
class _FragileLedger:
    """A ledger whose caller may go down before or after each call; what a call has written stays."""

    ledger: Ledger
    shake: Callable[[], None]

    def reserve(self, study: str, question: str, event: Event, *, source: str, recipient: str, title: str) -> object:
        return self._between(partial(self.ledger.reserve, study, question, event, source=source, recipient=recipient, title=title))

    def store(self, study: str, question: str, payload: bytes) -> None:
        self._between(partial(self.ledger.store, study, question, payload))

    def mark_sending(self, study: str, question: str) -> bytes:
        return self._between(partial(self.ledger.mark_sending, study, question))

    def mark_sent(self, study: str, question: str) -> None:
        self._between(partial(self.ledger.mark_sent, study, question))

    def _between(self, call: Callable[[], T]) -> T:
        self.shake()
        result = call()
        self.shake()
        return result


@dataclass(frozen=True, slots=True)
class _Saved:
    """All that a machine finds again when it comes back; replaced as a whole."""

    state: Any
    outbox: Mapping[int, Outbound] = field(default_factory=dict)
    alarms: frozenset[int] = frozenset()
    has_started: bool = False


@dataclass
class _Node:
    """A machine in its place. ``life`` counts falls, so that what was planned in an earlier life does not happen in a later one."""

    machine: Machine[Any]
    entropy: Entropy
    account: Account | None
    saved: _Saved
    is_up: bool = False
    down_until: float = 0
    life: int = 0


class _World:
    """The queue of events, and what happens at each."""

    def __init__(self, machines: Mapping[str, Machine[Any]], accounts: Mapping[str, Account], seed: SeededEntropy, faults: Faults) -> None:
        self.faults = faults
        self.chance = seed.spawn("network")
        self.outcome = Outcome()
        self.now = 0
        self.nodes: dict[str, _Node] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        for name, machine in machines.items():
            account = accounts.get(name)
            fragile = account and replace(account, ledger=_FragileLedger(account.ledger, self._shake))
            self.nodes[name] = _Node(machine, seed.spawn("machine", name), fragile, _Saved(machine.initial()))
            self._at(0, partial(self._rise, name))
        for name, (leaves, returns) in faults.absences.items():
            self._at(leaves, partial(self._fall, name, math.inf if returns is None else returns))

    def run(self, max_events: int) -> Outcome:
        for _ in range(max_events):
            if not self._queue:
                self.outcome.states = {name: node.saved.state for name, node in self.nodes.items()}
                return self.outcome
            self.now, _, happen = heapq.heappop(self._queue)
            happen()
        raise LocalProtocolError(
            "SIM-001",
            f"The network was not quiet after {max_events} events, at {self.now / 1000:g} s of its own time.",
            fix="Allow more events, make the faults milder, or look for a machine that repeats itself.",
        )

    def _at(self, when: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._serial), happen))

    def _happens(self, chance: float) -> bool:
        return self.chance.below(_PARTS) < chance * _PARTS

    def _shake(self) -> None:
        if self._happens(self.faults.crash):
            raise _CrashError

    def _fall(self, name: str, until: float) -> None:
        """A machine goes down, and loses all that it had not saved."""
        node = self.nodes[name]
        if node.account is not None and self._happens(self.faults.amnesia):
            node.saved = _Saved(node.machine.initial())
        node.is_up = False
        node.life += 1
        node.down_until = max(node.down_until, until)
        if node.down_until < math.inf:
            self._at(int(node.down_until), partial(self._rise, name))

    def _rise(self, name: str) -> None:
        """A machine comes up with what it had saved, and takes up its outbox and its alarms."""
        node = self.nodes[name]
        if node.is_up or self.now < node.down_until:
            return
        node.is_up = True
        for number in node.saved.outbox:
            self._later(name, 0, partial(self._transmit, name, number))
        for alarm in sorted(node.saved.alarms):
            self._later(name, alarm - self.now, partial(self._ring, name, alarm))
        if not node.saved.has_started:
            self._alive(name, partial(self._handle, name, name, Started))

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
        except _CrashError:
            self._fall(name, self.now + self.faults.downtime)
            return False
        return True

    def _handle(self, name: str, sender: str, given: Callable[[], Input], rung: int | None = None) -> None:
        """Give a machine an input, settle it, and save everything that came of it at once."""
        node = self.nodes[name]
        saved = node.saved
        try:
            now = START + timedelta(milliseconds=self.now)
            state, work = settle(node.machine, saved.state, given(), now, node.entropy, node.account)
        except RemoteProtocolError as error:
            self.outcome.rejected.append(Rejected(name, sender, error))
            state, work = saved.state, ()
        self._shake()
        letters: dict[int, Outbound] = {}
        alarms: set[int] = set()
        for item in work:
            match item:
                case Outbound():
                    peers = self.nodes.keys() - {AGGREGATOR}
                    letters |= {next(self._serial): replace(item, to=one) for one in recipients(name, item.to, sorted(peers))}
                case WakeAt(when):
                    alarms.add(max(self.now, -(-(when - START) // timedelta(milliseconds=1))))
                case _:
                    self.outcome.note(name, item)
        node.saved = _Saved(state, {**saved.outbox, **letters}, (saved.alarms - {rung}) | alarms, has_started=True)
        for number in letters:
            self._later(name, 0, partial(self._transmit, name, number))
        for alarm in sorted(alarms):
            self._later(name, alarm - self.now, partial(self._ring, name, alarm))
        self._shake()

    def _ring(self, name: str, alarm: int) -> None:
        if alarm in self.nodes[name].saved.alarms:
            self._handle(name, name, Tick, rung=alarm)

    def _transmit(self, name: str, number: int) -> None:
        """Send what is in the outbox under a number, and again until it is acknowledged or the other side is gone for good."""
        node = self.nodes[name]
        letter = node.saved.outbox.get(number)
        if letter is None or self.nodes[letter.to].down_until == math.inf:
            return
        payload = letter.payload
        if node.account is not None and letter.question is not None:
            payload = node.account.mark_sending(letter.question)
        sent = Sent(START + timedelta(milliseconds=self.now), name, letter.to, payload, letter.question)
        self.outcome.sent.append(sent)
        for _ in range(2 if self._happens(self.faults.duplicate) else 1):
            self._carry(partial(self._arrive, sent, number))
        self._shake()
        self._later(name, self.faults.retry, partial(self._transmit, name, number))

    def _carry(self, arrive: Callable[[], None]) -> None:
        """Take something across the network, or lose it."""
        if not self._happens(self.faults.loss):
            delay = self.faults.min_delay + self.chance.below(self.faults.max_delay - self.faults.min_delay + 1)
            self._at(self.now + delay, arrive)

    def _arrive(self, sent: Sent, number: int) -> None:
        """Bytes reach a machine, which acknowledges them once what came of them is saved."""
        node = self.nodes[sent.to]
        if node.is_up and self._alive(sent.to, partial(self._handle, sent.to, sent.sender, partial(sent.open, node.machine))):
            self._carry(partial(self._acknowledged, sent, number))

    def _acknowledged(self, sent: Sent, number: int) -> None:
        if self.nodes[sent.sender].is_up:
            self._alive(sent.sender, partial(self._forget, sent.sender, number))

    def _forget(self, name: str, number: int) -> None:
        """Strike a delivered letter from the outbox; it may have been struck before."""
        node = self.nodes[name]
        letter = node.saved.outbox.get(number)
        if letter is None:
            return
        if node.account is not None and letter.question is not None:
            node.account.mark_sent(letter.question)
        node.saved = replace(node.saved, outbox={key: other for key, other in node.saved.outbox.items() if key != number})


def run_network(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Peer[Any]],
    entropy: SeededEntropy,
    faults: Faults | None = None,
    *,
    ledgers: Mapping[str, Ledger] | None = None,
    max_events: int = 200_000,
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
    max_events
        Most events before the run is given up.
    """
    faults = faults or Faults()
    strangers = sorted(faults.absences.keys() - peers.keys())
    if strangers:
        raise UsageError("USAGE-001", f"{strangers[0]} is to drop out, but is not one of the {len(peers)} peers.")
    world = _World({AGGREGATOR: aggregator, **peers}, open_accounts(peers, ledgers), entropy, faults)
    return world.run(max_events)
