"""The contract between a protocol and whatever drives it, and the shortest driver.

A `Peer` (holds data) and an `Aggregator` (learns, is not trusted) are pure state machines: a frozen state and one input give a new
state and effects. They know no socket, file, clock or thread; time and randomness are arguments. Peers talk to the aggregator only.

A driver owes a machine:

1. every message at least once, perhaps several times, late, or in another order;
2. an input is handled to its end (`settle`), then state, outbox and wake-up times are saved together, and only then is the message
   acknowledged and anything sent. What went down in between is as if the input had not come, but for the ledger, which never goes back;
3. the ledger's order: reserved before the draw, stored before it is sending, the same bytes on every retry;
4. where anything real leaves: ``require_system(entropy)``. `run_local` and ``shoal.sim`` simulate, and take seeded randomness.

A machine owes its driver:

1. a step that raises `RemoteProtocolError` blames the sender, and has no effect. Nothing else is raised for anything received;
2. a message that comes twice counts once; one that comes late or out of order is dropped or rejected, never half used;
3. a peer prices a question from the study it holds, never from a message, and does not answer what it cannot price;
4. all that depends on private data is made by `Peer.answer`, once per question, and leaves as a `Release`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.messages.codec import decode, encode
from shoal.protocols.effects import (
    AGGREGATOR,
    EVERYONE,
    Abort,
    Answered,
    Finish,
    Granted,
    Input,
    Received,
    Refused,
    Release,
    Send,
    Spend,
    Started,
    Tick,
    WakeAt,
)
from shoal.protocols.ledger import Account, Drawn, Ledger, MemoryLedger
from shoal.protocols.machines import Aggregator, Effects, Machine, Peer, PeerState, State, unpriced

__all__ = [
    "AGGREGATOR", "EVERYONE", "Abort", "Account", "Aggregator", "Answered", "Effects", "Finish", "Granted", "Input", "Ledger", "Machine",
    "MemoryLedger", "Outbound", "Outcome", "Peer", "PeerState", "Received", "Refused", "Rejected", "Release", "Send", "Sent", "Spend",
    "Started", "Tick", "WakeAt", "open_accounts", "recipients", "run_local", "settle", "unpriced",
]  # fmt: skip

START = datetime(2030, 1, 1, tzinfo=UTC)
"""When simulated time begins."""


@dataclass(frozen=True, slots=True)
class Outbound:
    """Bytes that a driver is to send. Those of an answer are stored under its question, and leave as `Ledger.mark_sending` returns them."""

    to: str
    payload: bytes
    question: str | None = None


Work = Outbound | WakeAt | Finish | Abort


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of bytes that left a machine for one recipient; a retry leaves another one."""

    at: datetime
    sender: str
    to: str
    payload: bytes
    question: str | None = None

    def open(self, machine: Machine[Any]) -> Received:
        """What the bytes say to the machine that receives them."""
        return Received(self.sender, decode(self.payload, machine.messages, machine.study))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record of a message that broke the rules, by whom, and how."""

    by: str
    sender: str
    error: RemoteProtocolError


@dataclass
class Outcome:
    """What a simulated run came to: results and last states by name, what went wrong, and all that left."""

    states: dict[str, Any] = field(default_factory=dict)
    results: dict[str, object] = field(default_factory=dict)
    aborted: dict[str, ShoalError] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def note(self, name: str, ending: Finish | Abort) -> None:
        """Write down how a machine ended."""
        if isinstance(ending, Finish):
            self.results[name] = ending.result
        else:
            self.aborted[name] = ending.error


def settle(
    machine: Machine[State], state: State, given: Input, now: datetime, entropy: Entropy, account: Account | None
) -> tuple[State, tuple[Work, ...]]:
    """Give a machine one input, and to a peer all that its ledger has to say about it; then it waits for others.

    Every driver uses this. When it returns, each answer is stored; state and work are to be saved together before anything is sent.
    """
    todo: deque[Input] = deque([given])
    work: list[Work] = []
    while todo:
        state, effects = machine.step(state, todo.popleft(), now, entropy)
        for effect in effects:
            match effect:
                case Send(to, message):
                    work.append(Outbound(to, encode(message)))
                case Spend() if account is not None:
                    verdict, again = _put(effect, account, machine)
                    todo.append(verdict)
                    work += again
                case Release(question, message) if account is not None:
                    payload = encode(message)
                    account.store(question, payload)
                    work.append(Outbound(AGGREGATOR, payload, question))
                case WakeAt() | Finish() | Abort():
                    work.append(effect)
                case _:
                    raise LocalProtocolError("PROTO-001", f"A machine that has no ledger asked for {type(effect).__name__}.")
    return state, tuple(work)


def _put(spend: Spend, account: Account, machine: Machine[Any]) -> tuple[Input, list[Work]]:
    """What the ledger says to a question; an answer that it holds already goes out again as it is."""
    question = spend.question
    try:
        verdict = account.reserve(question, spend.event)
    except BudgetError as error:
        return Refused(question, error), []
    if not isinstance(verdict, Drawn):
        return Granted(question), []
    try:
        stored = decode(verdict.payload, machine.messages, machine.study)
    except RemoteProtocolError as error:
        raise IntegrityError("PROTO-004", f"The stored answer to {question} cannot be read: {error.what}") from None
    return Answered(question, stored), [Outbound(AGGREGATOR, verdict.payload, question)]


def open_accounts(peers: Mapping[str, Peer[Any]], ledgers: Mapping[str, Ledger] | None) -> dict[str, Account]:
    """An account for each simulated peer, in the ledger given for it or in one of its own in memory."""
    taken = {AGGREGATOR, EVERYONE} & peers.keys()
    if taken:
        raise LocalProtocolError("PROTO-001", f"A peer cannot be called {taken.pop()!r}.", fix="Give it another name.")
    books: dict[str, Ledger] = {name: MemoryLedger() for name in peers} | dict(ledgers or {})
    return {name: Account(books[name], peer.study, name, AGGREGATOR, "simulation") for name, peer in peers.items()}


def recipients(sender: str, to: str, peers: Collection[str]) -> list[str]:
    """Who is meant: a peer may write to the aggregator, the aggregator to one peer or to everyone."""
    if sender == AGGREGATOR and to == EVERYONE:
        return list(peers)
    if (sender == AGGREGATOR) == (to == AGGREGATOR) or to not in (AGGREGATOR, *peers):
        raise LocalProtocolError(
            "PROTO-001", f"{sender} cannot send to {to!r:.60}.", why="Peers and the aggregator talk to each other only."
        )
    return [to]


def run_local(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Peer[Any]],
    entropy: Entropy,
    *,
    ledgers: Mapping[str, Ledger] | None = None,
    max_steps: int = 1_000_000,
) -> Outcome:
    """Run a protocol to its end in one process, with perfect delivery in order: the loop to read before any protocol.

    Parameters
    ----------
    aggregator, peers
        The machines; peers by name.
    entropy
        What all of them draw from. This is a simulation, so it may be seeded.
    ledgers
        Ledgers by name of peer; one without a limit where none is given.
    max_steps
        Most inputs before the run is given up.
    """
    machines: dict[str, Machine[Any]] = {AGGREGATOR: aggregator, **peers}
    accounts = open_accounts(peers, ledgers)
    outcome = Outcome({name: machine.initial() for name, machine in machines.items()})
    states = outcome.states
    inbox: deque[tuple[str, Input | Sent]] = deque((name, Started()) for name in machines)
    alarms: list[tuple[datetime, str]] = []
    now = START
    for _ in range(max_steps):
        if inbox:
            name, given = inbox.popleft()
        elif alarms:
            (now, name), given = heapq.heappop(alarms), Tick()
        else:
            return outcome
        sender = given.sender if isinstance(given, Sent) else name
        try:
            opened = given.open(machines[name]) if isinstance(given, Sent) else given
            states[name], work = settle(machines[name], states[name], opened, now, entropy, accounts.get(name))
        except RemoteProtocolError as error:
            outcome.rejected.append(Rejected(name, sender, error))
            continue
        for item in work:
            match item:
                case Outbound(to, payload, question):
                    leaving = payload if question is None else accounts[name].mark_sending(question)
                    parcels = [Sent(now, name, one, leaving, question) for one in recipients(name, to, peers)]
                    outcome.sent += parcels
                    inbox.extend((parcel.to, parcel) for parcel in parcels)
                    if question is not None:
                        accounts[name].mark_sent(question)
                case WakeAt(when):
                    heapq.heappush(alarms, (max(now, when), name))
                case _:
                    outcome.note(name, item)
    raise LocalProtocolError(
        "SIM-001", f"The run did not come to an end within {max_steps} steps.", fix="Look for a machine that repeats itself."
    )
