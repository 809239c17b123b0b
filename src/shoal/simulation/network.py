"""A faulty network in virtual time, as a driver of the real machines; for tests.

The driver keeps the contract of `shoal.protocols.base`. Bytes are delayed, lost, duplicated and
reordered. A machine goes down between any two of its durable steps, and comes back with the state
that it had saved. A peer drops out and may return. Bytes without an acknowledgement are sent
again unchanged. Everything follows from the seed: the same seed gives the same trace.

The ledger survives a crash, and so do the saved parts of host and node: state, index of
submissions, outbox, wake-up times and the names of joint computations, but not the computations.
They change together, in one place (`_NetworkSimulator._save`). The state comes back as `codec.load`
reads the bytes that `codec.dump` writes. States are frozen, so writing them when a machine goes
down is the same as writing them at each save.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, UsageError
from shoal.messages.base import Record
from shoal.messages.codec import dump, load
from shoal.privacy.events import Event
from shoal.privacy.ledger.charges import StudyBudget
from shoal.protocols.base import (
    START,
    Abort,
    Account,
    Aggregator,
    Broken,
    Compute,
    Computed,
    Feed,
    Finish,
    Host,
    IdealComputation,
    Input,
    InputResult,
    JointComputation,
    Ledger,
    OutgoingMessage,
    Peer,
    ProtocolOutcome,
    Refused,
    SentMessage,
    Started,
    Tick,
    WakeAt,
    open_hosts,
)
from shoal.protocols.mpc.computer import make_interruption


@dataclass
class Node:
    """A host with its outbox, wake-up times and joint computations.

    These, the state and the index survive a crash. ``incarnation`` counts crashes, so that an
    action that was scheduled before a crash does not happen after it.
    """

    host: Host
    crash_probability: float
    outbox: dict[int, OutgoingMessage] = field(default_factory=dict)
    alarms: set[int] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    has_started: bool = False
    is_up: bool = False
    down_until: float = 0
    incarnation: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether the node never comes back."""
        return self.down_until == math.inf

    def go_down(self, until: float, *, loses_state: bool) -> None:
        """Go down, to come back with the saved state, or with the ledger only.

        Only the ledger is left after a new installation.
        """
        if self.is_gone:
            return
        if loses_state:
            self.host.state, self.has_started = self.host.machine.initial_state(), False
            self._clear()
        self.host.state = reload_state(self.host.state)
        self.is_up = False
        self.incarnation += 1
        self.down_until = max(self.down_until, until)

    def give_up(self) -> None:
        """Go down for ever, and drop all unsent messages."""
        self._clear()
        self.go_down(math.inf, loses_state=False)

    def _clear(self) -> None:
        self.outbox.clear()
        self.alarms.clear()
        self.tasks.clear()

    def discard_question(self, question: str) -> None:
        """Remove the messages of a question, which must no longer be sent."""
        for number in [
            number for number, message in self.outbox.items() if message.question == question
        ]:
            del self.outbox[number]


def reload_state(state: Record) -> Record:
    """Return a state after encoding and decoding it."""
    reloaded = load(dump(state), type(state))
    if reloaded != state:
        raise LocalProtocolError(
            "PROTO-001",
            f"A {type(state).__name__} changes if it is saved and read again.",
        )
    return reloaded


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a network. Probabilities are per event; times are virtual, in milliseconds.

    Parameters
    ----------
    loss, duplicate
        Probability that bytes, or an acknowledgement, never arrive; that they arrive twice.
    min_delay, max_delay
        Each copy has a separate delay, uniform between these; so later bytes may overtake earlier
        ones.
    crash
        Probability that a peer goes down at each point between two durable steps: before and after
        each call of the ledger, before and after it is saved, and after each transmission. An
        aggregator takes steps for all of its n peers, and goes down with an n-th of the probability
        at each: about as frequently as a peer.
    amnesia
        Probability that a peer comes back from a crash with its ledger only, as after a new
        installation.
    downtime
        Time that a machine stays down.
    retry
        Time that a sender first waits for an acknowledgement; it doubles after each attempt, up to
        32 times the first.
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
                raise UsageError(
                    "USAGE-001",
                    f"{name} = {chance} is not a probability.",
                    fix="Give a number between 0 and 1.",
                )
        if not (0 <= self.min_delay <= self.max_delay and self.downtime > 0 and self.retry > 0):
            raise UsageError(
                "USAGE-001",
                f"The delays {self.min_delay} to {self.max_delay} ms, downtime {self.downtime} ms "
                f"and retry {self.retry} ms are not allowed.",
                fix="Give 0 <= min_delay <= max_delay, and 1 or more for downtime and retry.",
            )
        for name, (leaves, returns) in self.absences.items():
            if leaves < 0 or (returns is not None and returns <= leaves):
                raise UsageError(
                    "USAGE-001",
                    f"{name} leaves at {leaves} ms and returns at {returns} ms.",
                    fix="Give a time of 0 or more, and a later time to return, or None.",
                )


class CrashError(BaseException):
    """The point at which a machine goes down.

    Like the end of a process, a machine's code cannot catch it as an error.
    """


@dataclass(frozen=True)
class CrashingLedger:
    """A ledger with a caller that may go down before or after each call; written entries stay."""

    ledger: Ledger
    maybe_crash: Callable[[], None]

    def account(
        self,
        study: bytes,
        source: str,
        recipient: str,
        title: str,
        budget: StudyBudget | None = None,
    ) -> Account:
        return Account(self, study, source, recipient, title, budget)

    def reserve(
        self,
        study: str,
        question: str,
        event: Event,
        *,
        source: str,
        recipient: str,
        title: str,
        budget: StudyBudget | None = None,
    ) -> object:
        return self._call(
            partial(
                self.ledger.reserve,
                study,
                question,
                event,
                source=source,
                recipient=recipient,
                title=title,
                budget=budget,
            )
        )

    def store(self, study: str, question: str, payload: bytes) -> None:
        self._call(partial(self.ledger.store, study, question, payload))

    def mark_sending(self, study: str, question: str) -> bytes:
        return self._call(partial(self.ledger.mark_sending, study, question))

    def mark_sent(self, study: str, question: str) -> None:
        self._call(partial(self.ledger.mark_sent, study, question))

    def list_unsent(self, study: str) -> Mapping[str, bytes]:
        return self._call(partial(self.ledger.list_unsent, study))

    def _call(self, call: Callable[[], T]) -> T:
        self.maybe_crash()
        result = call()
        self.maybe_crash()
        return result


EVENTS_PER_MACHINE = 50_000
DOUBLINGS = 5
"""Times that a sender doubles its waiting time."""

_PARTS = 1_000_000_000
_MILLISECOND = timedelta(milliseconds=1)


class _NetworkSimulator:
    """The queue of events, and the handler of each."""

    def __init__(
        self,
        hosts: Mapping[str, Host],
        entropy: SeededEntropy,
        faults: Faults,
        computer: JointComputation,
    ) -> None:
        self.faults = faults
        self.computer = computer
        self.entropy = entropy
        self.outcome = ProtocolOutcome()
        self.now = 0
        self.nodes: dict[str, Node] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        for name, host in hosts.items():
            self.nodes[name] = Node(
                host, faults.crash if host.account else faults.crash / max(1, len(hosts) - 1)
            )
            if host.account is not None:
                host.account = replace(
                    host.account,
                    ledger=CrashingLedger(host.account.ledger, partial(self._maybe_crash, name)),
                )
            self._schedule(0, partial(self._restart, name))
        for name, (leaves, returns) in faults.absences.items():
            self._schedule(
                leaves, partial(self._crash, name, math.inf if returns is None else returns)
            )

    def run(self, max_events: int) -> ProtocolOutcome:
        for _ in range(max_events):
            if not self._queue:
                break
            self.now, _, action = heapq.heappop(self._queue)
            action()
        if self._queue:
            raise LocalProtocolError(
                "SIM-001",
                f"The network was not finished after {max_events} events, at "
                f"{self.now / 1000:g} s of virtual time.",
                fix="Raise max_events, lower the faults, or look for a machine that sends without "
                "end.",
            )
        self.outcome.states = {
            name: reload_state(node.host.state) for name, node in self.nodes.items()
        }
        return self.outcome

    @property
    def clock(self) -> datetime:
        return START + self.now * _MILLISECOND

    def _schedule(self, when: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._serial), action))

    def _draw_bool(self, chance: float) -> bool:
        return self.entropy.below(_PARTS) < chance * _PARTS

    def _maybe_crash(self, name: str) -> None:
        if self._draw_bool(self.nodes[name].crash_probability):
            raise CrashError

    def _crash(self, name: str, until: float) -> None:
        """Take a machine down; it loses everything that it had not saved."""
        node = self.nodes[name]
        node.go_down(
            until,
            loses_state=node.host.account is not None and self._draw_bool(self.faults.amnesia),
        )
        self.computer.end(name)
        if not node.is_gone:
            self._schedule(int(node.down_until), partial(self._restart, name))

    def _restart(self, name: str) -> None:
        """Start a machine with its saved state, and resume its outbox and its alarms."""
        node = self.nodes[name]
        if node.is_up or self.now < node.down_until:
            return
        node.is_up = True
        for number in node.outbox:
            self._schedule_action(name, 0, partial(self._transmit, name, number))
        for alarm in sorted(node.alarms):
            self._schedule_action(
                name, alarm - self.now, partial(self._handle, name, Tick(), alarm)
            )
        for task in sorted(node.tasks):
            self._schedule_action(name, 0, partial(self._handle, name, make_interruption(task)))
        if not node.has_started:
            self._act(name, partial(self._handle, name, Started()))

    def _schedule_action(self, name: str, wait: int, act: Callable[[], None]) -> None:
        """Schedule an action of a machine; a crash cancels it."""
        self._schedule(
            self.now + max(0, wait),
            partial(self._act_if_same_incarnation, name, self.nodes[name].incarnation, act),
        )

    def _act_if_same_incarnation(
        self, name: str, incarnation: int, act: Callable[[], None]
    ) -> None:
        if self.nodes[name].incarnation == incarnation:
            self._act(name, act)

    def _act(self, name: str, act: Callable[[], None]) -> bool:
        """Let a machine act, and return whether it finished."""
        try:
            act()
        except CrashError:
            self._crash(name, self.now + self.faults.downtime)
            return False
        return True

    def _handle(
        self, name: str, given: Input | SentMessage, fired_alarm: int | None = None
    ) -> None:
        """Give a machine an input, and save all its effects in one step."""
        result = self.nodes[name].host.handle(given, self.clock, self.outcome)
        self._maybe_crash(name)
        self._save(name, given, result, fired_alarm)
        self._maybe_crash(name)

    def _save(
        self, name: str, given: Input | SentMessage, result: InputResult, fired_alarm: int | None
    ) -> None:
        node = self.nodes[name]
        node.host.commit(result)
        node.has_started = True
        node.alarms.discard(-1 if fired_alarm is None else fired_alarm)
        if isinstance(given, Refused):
            node.discard_question(given.question)
        if isinstance(given, Computed | Broken):
            node.tasks.discard(given.task)
        for item in result.work:
            match item:
                case OutgoingMessage():
                    number = next(self._serial)
                    node.outbox[number] = item
                    self._schedule_action(name, 0, partial(self._transmit, name, number))
                case Compute(task):
                    node.tasks.add(task)
                    self.computer.begin(name, item)
                    self._schedule(self.now, self._deliver_progress)
                case Feed():
                    self.computer.feed(name, item)
                    self._schedule(self.now, self._deliver_progress)
                case WakeAt(when):
                    alarm = max(self.now, -(-(when - START) // _MILLISECOND))
                    if alarm not in node.alarms:
                        node.alarms.add(alarm)
                        self._schedule_action(
                            name, alarm - self.now, partial(self._handle, name, Tick(), alarm)
                        )
                case ending:
                    self._record_end(name, ending)

    def _deliver_progress(self) -> None:
        """Deliver the progress of joint computations, which take no virtual time."""
        for name, progress in self.computer.collect():
            self._schedule_action(name, 0, partial(self._handle, name, progress))

    def _record_end(self, name: str, ending: Finish | Abort) -> None:
        """Record the end of a machine; one that aborts never returns, and its outbox is lost."""
        self.outcome.record_ending(name, ending)
        if isinstance(ending, Abort):
            self.nodes[name].give_up()
            self.computer.end(name)

    def _transmit(self, name: str, number: int, attempt: int = 0) -> None:
        """Send an entry of the outbox, and again until it is acknowledged.

        Stop if the receiver is gone.
        """
        node = self.nodes[name]
        message = node.outbox.get(number)
        if message is None or self.nodes[message.to].is_gone:
            return
        match node.host.begin_send(message, self.clock, self.outcome):
            case SentMessage() as sent:
                self.outcome.sent.append(sent)
                for _ in range(2 if self._draw_bool(self.faults.duplicate) else 1):
                    self._deliver_or_lose(partial(self._receive, sent, number))
                self._maybe_crash(name)
                wait = self.faults.retry << min(attempt, DOUBLINGS)
                self._schedule_action(
                    name, wait, partial(self._transmit, name, number, attempt + 1)
                )
            case Refused() as refused:
                self._handle(name, refused)
            case ending:
                self._record_end(name, ending)

    def _deliver_or_lose(self, arrive: Callable[[], None]) -> None:
        """Schedule an arrival after a random delay, or lose it."""
        if not self._draw_bool(self.faults.loss):
            delay = self.faults.min_delay + self.entropy.below(
                self.faults.max_delay - self.faults.min_delay + 1
            )
            self._schedule(self.now + delay, arrive)

    def _receive(self, sent: SentMessage, number: int) -> None:
        """Deliver bytes to a machine, and acknowledge them after their effects are saved."""
        if self.nodes[sent.to].is_up and self._act(sent.to, partial(self._handle, sent.to, sent)):
            self._deliver_or_lose(partial(self._receive_acknowledgement, sent.sender, number))

    def _receive_acknowledgement(self, name: str, number: int) -> None:
        if self.nodes[name].is_up:
            self._act(name, partial(self._remove_delivered, self.nodes[name], number))

    def _remove_delivered(self, node: Node, number: int) -> None:
        """Remove a delivered message from the outbox, if it is still there."""
        if number in node.outbox:
            node.host.mark_acknowledged(node.outbox[number].question)
            del node.outbox[number]


def run_network(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Peer[Any]],
    entropy: SeededEntropy,
    faults: Faults | None = None,
    *,
    ledgers: Mapping[str, Ledger] | None = None,
    computer: JointComputation | None = None,
    max_events: int | None = None,
) -> ProtocolOutcome:
    """Run a protocol over a faulty network until no event is left.

    Parameters
    ----------
    entropy
        Determines everything: the draws of machines (each from a separate stream) and the faults.
    faults
        None for a network without faults.
    ledgers
        Name of a peer -> its ledger; a ledger without a limit if the name is missing.
    computer
        Runs joint computations; None for the ideal one in this process.
    max_events
        Most events before the run fails; None for 50,000 per machine.
    """
    faults = faults or Faults()
    unknown = sorted(faults.absences.keys() - peers.keys())
    if unknown:
        raise UsageError(
            "USAGE-001",
            f"absences names {unknown[0]}, which is not one of the {len(peers)} peers.",
        )
    hosts = open_hosts(aggregator, peers, entropy, ledgers)
    simulator = _NetworkSimulator(
        hosts,
        entropy.spawn("network"),
        faults,
        IdealComputation(entropy) if computer is None else computer,
    )
    return simulator.run(EVENTS_PER_MACHINE * len(hosts) if max_events is None else max_events)
