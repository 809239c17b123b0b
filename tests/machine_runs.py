"""Machines that are watched or go down, one step of a peer, and what a run has let out; for tests of every protocol."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shoal.entropy import Entropy, SeededEntropy
from shoal.messages.base import Message, Registry
from shoal.messages.codec import decode, dump, load
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Account,
    Effects,
    Finish,
    Input,
    MemoryLedger,
    Outbound,
    Outcome,
    Peer,
    Received,
    Release,
    Send,
    Work,
    settle,
)


class Saving:
    """Goes down before every step, and comes back with what was saved."""

    def step(self, state: Any, given: Input, now: datetime, entropy: Entropy) -> tuple[Any, Effects]:
        return super().step(load(dump(state), type(state)), given, now, entropy)  # type: ignore[misc,no-any-return]


class Logging:
    """Writes down every input, with the state before it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log: list[tuple[Any, Input]] = []
        self.is_logging = True

    def step(self, state: Any, given: Input, now: datetime, entropy: Entropy) -> tuple[Any, Effects]:
        if self.is_logging:
            self.log.append((state, given))
        return super().step(state, given, now, entropy)  # type: ignore[misc,no-any-return]


class Chatty:
    """A mutant that sends what it would release as if it were free."""

    def ask(self, state: Any, question: str) -> tuple[Any, Effects]:
        return state, (Send(AGGREGATOR, self.answer(state, question, SeededEntropy(1))),)  # type: ignore[attr-defined]


class Unpriced:
    """A mutant that draws without asking its ledger."""

    def ask(self, state: Any, question: str) -> tuple[Any, Effects]:
        return state, (Release(question, self.answer(state, question, SeededEntropy(1))),)  # type: ignore[attr-defined]


def before(machine: Any, kind: type[Any], number: int = 0, sender: str | None = None) -> tuple[Any, Any]:
    """The state in which a machine was given a message or an input of a kind for the so-manieth time, and what it was."""
    found = [
        (state, getattr(given, "message", given))
        for state, given in machine.log
        if isinstance(getattr(given, "message", given), kind) and sender in (None, getattr(given, "sender", None))
    ]
    return found[number]


def give(
    peer: Peer[Any], state: Any, given: Input | Message, ledger: MemoryLedger | None = None, seed: int = 1
) -> tuple[Any, list[Message], tuple[Work, ...]]:
    """What a peer sends when it is given something, and all that it asks its driver for."""
    given = Received(AGGREGATOR, given) if isinstance(given, Message) else given
    account = Account(MemoryLedger() if ledger is None else ledger, peer.study, "rows", AGGREGATOR, "a test")
    state, work = settle(peer, state, given, START, SeededEntropy(seed), account)
    return state, [decode(item.payload, peer.messages, peer.study) for item in work if isinstance(item, Outbound)], work


def endings(work: tuple[Work, ...]) -> list[Finish | Abort]:
    return [item for item in work if isinstance(item, Finish | Abort)]


def spent(ledger: MemoryLedger) -> int:
    """All that has begun to leave, in grains of epsilon."""
    return sum(total.spent for total in ledger.totals())


def answers_by_peer(messages: Registry, outcome: Outcome, study: bytes) -> dict[tuple[str, str], set[bytes]]:
    """Every answer that left: peer and question -> the different bytes that left for it."""
    left: dict[tuple[str, str], set[bytes]] = {}
    for sent in outcome.sent:
        if decode(sent.payload, messages, study).spends:
            left.setdefault((sent.sender, str(sent.question)), set()).add(sent.payload)
    return left
