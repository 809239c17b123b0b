"""The contract between a protocol and whatever drives it, and the shortest driver.

A `Peer` (holds data) and an `Aggregator` (learns, is not trusted) are pure state machines: a frozen state and one input give a new
state and effects. They know no socket, file, clock or thread; time and randomness are arguments. Peers talk to the aggregator only.

A driver owes a machine:

1. every message at least once, perhaps several times, late, or in another order. But an aggregator is given a submission
   (`Message.submission`) once: the driver keeps the index, drops what comes again and rejects other bytes under the same name. Of an
   anonymous message it is given a sender made up for this delivery;
2. an input is handled to its end (`settle`), then state, index, outbox and wake-up times are saved together, and only then is the
   message acknowledged and anything sent. What went down in between is as if the input had not come, but for the ledger, which never
   goes back. States are records, and are saved as ``codec.dump`` writes them;
3. the ledger's order: reserved before the draw, stored before it is sending, the same bytes on every retry.
   (a) A peer that starts without a saved state sends what its ledger holds (`Ledger.unsent`) until it is acknowledged.
   (b) Where the ledger refuses at the moment of sending (`BudgetError` of `Ledger.mark_sending`: voided, or a limit was lowered) nothing
   leaves: the letters of that question are dropped and the machine is `Refused`, in one step;
4. endings. A message that is rejected is acknowledged too: to send it again would not help. After `Abort` a machine is given
   nothing more and what it has not sent is dropped; after `Finish` it is given what still comes. Where a machine fails on an input by any
   other error than `RemoteProtocolError`, a peer is aborted, and an aggregator, which has other senders to serve, loses that input
   alone; either way it is reported, in simulations as `Outcome.failed`;
5. joint computations. A task that a machine asks for runs at a `Computer`, and is fed what it is given; it lives in memory, and a
   machine that went down during one is given `Broken` when it is back. It is dropped where its machine gives up;
6. where anything real leaves: ``require_system(entropy)``. `run_local` and ``shoal.sim`` simulate, take seeded randomness, and compute
   in the clear unless they are given a computer.

A machine owes its driver:

1. a step on `Received` that raises `RemoteProtocolError` blames the sender, and has no effect. Nothing else is raised for anything
   received, and nobody is blamed at any other input: check everything in ``received``, since in ``answer``, ``released`` and ``refused``
   the ledger has moved already;
2. a message that comes twice counts once; one that comes late or out of order is dropped or rejected, never half used;
3. a peer prices a question from the study it holds, never from a message, and does not answer what it cannot price. It puts a question
   once per input; one that was refused it may put again at a later one;
4. all that depends on private data is made by `Peer.answer`, once per question, and leaves as a `Release`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError
from shoal.protocols.driver import Failed, Handled, Host, Outcome, Rejected, Sent, open_hosts, recipients
from shoal.protocols.effects import (
    AGGREGATOR,
    EVERYONE,
    Abort,
    Answered,
    Broken,
    Compute,
    Computed,
    Emitted,
    Feed,
    Finish,
    Granted,
    Input,
    Progress,
    Received,
    Refused,
    Release,
    Send,
    Spend,
    Started,
    Tick,
    WakeAt,
)
from shoal.protocols.joint.computing import Computer, IdealComputer
from shoal.protocols.ledger import Account, Ledger, MemoryLedger
from shoal.protocols.machines import Aggregator, Effects, Machine, Moment, Peer, PeerState, State, unpriced
from shoal.protocols.settle import Outbound, Work, settle

__all__ = [
    "AGGREGATOR", "EVERYONE", "Abort", "Account", "Aggregator", "Answered", "Broken", "Compute", "Computed", "Computer", "Effects",
    "Emitted", "Failed", "Feed", "Finish", "Granted", "Handled", "Host", "IdealComputer", "Input", "Ledger", "Machine", "MemoryLedger",
    "Moment", "Outbound", "Outcome", "Peer", "PeerState", "Progress", "Received", "Refused", "Rejected", "Release", "Send", "Sent", "Spend",
    "Started", "State", "Tick", "WakeAt", "Work", "open_hosts", "recipients", "run_local", "settle", "unpriced",
]  # fmt: skip

START = datetime(2030, 1, 1, tzinfo=UTC)
"""When simulated time begins."""

STEPS_PER_MACHINE = 10_000


def run_local(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Peer[Any]],
    entropy: Entropy,
    *,
    ledgers: Mapping[str, Ledger] | None = None,
    computer: Computer | None = None,
    max_steps: int | None = None,
) -> Outcome:
    """Run a protocol to its end in one process, with perfect delivery in order: the loop to read before any protocol.

    Parameters
    ----------
    aggregator, peers
        The machines; peers by name.
    entropy
        What all of them draw from, each from a stream of its own where it is seeded. This is a simulation, so it may be.
    ledgers
        Ledgers by name of peer; one without a limit where none is given.
    computer
        What runs joint computations; None for one in this process that sees everything.
    max_steps
        Most inputs before the run is given up; None for 10,000 per machine.
    """
    hosts = open_hosts(aggregator, peers, entropy, ledgers)
    computer = IdealComputer(entropy) if computer is None else computer
    max_steps = STEPS_PER_MACHINE * len(hosts) if max_steps is None else max_steps
    outcome = Outcome()
    inbox: deque[tuple[str, Input | Sent]] = deque((name, Started()) for name in hosts)
    alarms: list[tuple[datetime, str]] = []
    now, n_steps = START, 0
    while True:
        if not inbox:
            inbox.extend(computer.collect())
        if not (inbox or alarms):
            break
        if n_steps == max_steps:
            raise LocalProtocolError(
                "SIM-001", f"The run did not come to an end within {max_steps} steps.", fix="Look for a machine that repeats itself."
            )
        n_steps += 1
        if inbox:
            name, given = inbox.popleft()
        else:
            (now, name), given = heapq.heappop(alarms), Tick()
        if name in outcome.aborted:
            continue
        host = hosts[name]
        handled = host.handle(given, now, outcome)
        host.accept(handled)
        for item in handled.work:
            match host.send(item, now, outcome) if isinstance(item, Outbound) else item:
                case Sent() as sent:
                    outcome.sent.append(sent)
                    inbox.append((sent.to, sent))
                    host.acknowledged(sent.question)
                case Refused() as refused:
                    inbox.appendleft((name, refused))
                case Compute() as asked:
                    computer.begin(name, asked)
                case Feed() as fed:
                    computer.feed(name, fed)
                case WakeAt(when):
                    heapq.heappush(alarms, (max(now, when), name))
                case ending:
                    outcome.note(name, ending)
                    if isinstance(ending, Abort):
                        computer.end(name)
                        break
    outcome.states = {name: host.state for name, host in hosts.items()}
    return outcome
