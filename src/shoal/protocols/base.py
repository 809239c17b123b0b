"""The contract between a protocol and its driver; `run_local`, the reference driver.

A `Peer` (holds data) and an `Aggregator` (learns, is not trusted) are pure state machines: a frozen
state and one input give a new state and effects. They use no socket, file, clock or thread; time
and randomness are arguments. Peers exchange messages with the aggregator only.

A driver owes a machine:

1. **Delivery.** Each message arrives at least once, perhaps several times, late, or in another
   order. An aggregator receives each submission (`Message.submission`) exactly once: the driver
   keeps an index, drops repetitions and rejects other bytes under the same name. The sender of an
   anonymous message is a name made up for this delivery.
2. **Atomic inputs.** The driver runs an input to completion (`run_input`), then saves state, index,
   outbox and wake-up times together, and only then acknowledges the message and sends anything.
   After a crash in between, the input has no effect, except on the ledger, which never goes back.
   States are records, saved as ``codec.dump`` writes them.
3. **The order of the ledger.** Reserve before the draw, store before sending, send the same bytes
   on every retry. (a) A peer that starts without a saved state sends the unsent answers in its
   ledger (`Ledger.list_unsent`) until they are acknowledged. (b) If the ledger refuses at the
   moment of sending (`BudgetError` of `Ledger.mark_sending`: voided, or a limit was lowered),
   nothing is sent: in one step, the driver drops the messages of that question and gives the
   machine `Refused`.
4. **Endings.** A rejected message is acknowledged too: sending it again would not help. After
   `Abort` a machine receives no more inputs, and its unsent messages are dropped; after `Finish` it
   still receives messages. If a machine fails on an input with any error other than
   `RemoteProtocolError`, a peer is aborted; an aggregator, which has other senders to serve, loses
   that input alone. Both are reported, in simulations as `ProtocolOutcome.failed`.
5. **Joint computations.** A `JointComputation` runs the tasks that a machine asks for, and receives
   what the machine feeds it. A task exists in memory only: a machine that crashed during one
   receives `Broken` after its restart. The task ends if its machine aborts.
6. **Real randomness.** A driver that sends anything real calls ``require_system(entropy)``.
   `run_local` and ``shoal.simulation`` simulate: they accept seeded randomness, and compute in the
   clear unless they are given a computer.

A machine owes its driver:

1. **Blame only on receipt.** A step on `Received` that raises `RemoteProtocolError` blames the
   sender, and has no effect. A step raises nothing else for a received message, and blames no one
   for any other input: check everything in ``on_message``, because the ledger has already changed
   in ``answer``, ``on_answer_stored`` and ``on_refusal``.
2. **Idempotence.** A repeated message counts once; a message that is late or out of order is
   dropped or rejected, never partly used.
3. **Prices from the study.** A peer prices a question from its own copy of the study, never from a
   message, and does not answer a question that it cannot price. It asks a question at most once per
   input; it may ask a refused question again at a later input.
4. **One place for private data.** `Peer.answer` makes everything that depends on private data, once
   per question, and it is sent as a `Release`. It uses its random bits for the report alone
   (`Message.report_fields`); random bits of other fields are drawn in an earlier step and stored in
   the state. ``shoal audit study`` replays peers to check this.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError
from shoal.protocols.driver import (
    FailedInput,
    Host,
    InputResult,
    OutgoingMessage,
    ProtocolOutcome,
    RejectedMessage,
    SentMessage,
    Work,
    list_recipients,
    open_hosts,
    run_input,
)
from shoal.protocols.effects import (
    AGGREGATOR,
    EVERYONE,
    Abort,
    Answered,
    Broken,
    ComputationInput,
    Compute,
    Computed,
    Emitted,
    Feed,
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
from shoal.protocols.ledger import Account, Ledger, MemoryLedger
from shoal.protocols.machines import (
    Aggregator,
    Effects,
    Machine,
    Moment,
    Peer,
    PeerState,
    State,
    unpriced_question_error,
)
from shoal.protocols.mpc.computer import IdealComputation, JointComputation

__all__ = [
    "AGGREGATOR",
    "EVERYONE",
    "Abort",
    "Account",
    "Aggregator",
    "Answered",
    "Broken",
    "ComputationInput",
    "Compute",
    "Computed",
    "Effects",
    "Emitted",
    "FailedInput",
    "Feed",
    "Finish",
    "Granted",
    "Host",
    "IdealComputation",
    "Input",
    "InputResult",
    "JointComputation",
    "Ledger",
    "Machine",
    "MemoryLedger",
    "Moment",
    "OutgoingMessage",
    "Peer",
    "PeerState",
    "ProtocolOutcome",
    "Received",
    "Refused",
    "RejectedMessage",
    "Release",
    "Send",
    "SentMessage",
    "Spend",
    "Started",
    "State",
    "Tick",
    "WakeAt",
    "Work",
    "list_recipients",
    "open_hosts",
    "run_input",
    "run_local",
    "unpriced_question_error",
]  # fmt: skip

START = datetime(2030, 1, 1, tzinfo=UTC)
"""The start of simulated time."""

STEPS_PER_MACHINE = 10_000


def run_local(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Peer[Any]],
    entropy: Entropy,
    *,
    ledgers: Mapping[str, Ledger] | None = None,
    computer: JointComputation | None = None,
    max_steps: int | None = None,
) -> ProtocolOutcome:
    """Run a protocol to its end in one process, with perfect delivery in order.

    Read this loop before any protocol.

    Parameters
    ----------
    aggregator, peers
        The machines; peers by name.
    entropy
        Randomness of all machines. It may be seeded, because this is a simulation; then each
        machine has a separate stream.
    ledgers
        Ledgers by name of peer; a peer without one gets a ledger in memory without a limit.
    computer
        Runs joint computations; None for one in this process that sees everything.
    max_steps
        Largest number of inputs; None for 10,000 per machine.
    """
    hosts = open_hosts(aggregator, peers, entropy, ledgers)
    computer = IdealComputation(entropy) if computer is None else computer
    max_steps = STEPS_PER_MACHINE * len(hosts) if max_steps is None else max_steps
    outcome = ProtocolOutcome()
    inbox: deque[tuple[str, Input | SentMessage]] = deque((name, Started()) for name in hosts)
    alarms: list[tuple[datetime, str]] = []
    now, n_steps = START, 0
    while True:
        if not inbox:
            inbox.extend(computer.collect())
        if not (inbox or alarms):
            break
        if n_steps == max_steps:
            raise LocalProtocolError(
                "SIM-001",
                f"The run did not end within {max_steps} steps.",
                fix="Find the machines that send messages without end, or raise max_steps.",
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
        host.commit(handled)
        for item in handled.work:
            match (
                host.begin_send(item, now, outcome) if isinstance(item, OutgoingMessage) else item
            ):
                case SentMessage() as sent:
                    outcome.sent.append(sent)
                    inbox.append((sent.to, sent))
                    host.mark_acknowledged(sent.question)
                case Refused() as refused:
                    inbox.appendleft((name, refused))
                case Compute() as request:
                    computer.begin(name, request)
                case Feed() as payload:
                    computer.feed(name, payload)
                case WakeAt(when):
                    heapq.heappush(alarms, (max(now, when), name))
                case ending:
                    outcome.record_ending(name, ending)
                    if isinstance(ending, Abort):
                        computer.end(name)
                        break
    outcome.states = {name: host.state for name, host in hosts.items()}
    return outcome
