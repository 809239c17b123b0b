"""Giving a machine one input and doing what it asks of its ledger: the step that every driver shares.

The order is the privacy guarantee: a question is put, its cost reserved, its answer drawn, the answer stored, and only then does the
machine hear that it is stored and the driver that there is something to send.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import decode, encode
from shoal.protocols.effects import (
    AGGREGATOR,
    Abort,
    Answered,
    Compute,
    Effect,
    Feed,
    Finish,
    Granted,
    Input,
    Received,
    Refused,
    Release,
    Send,
    Spend,
    WakeAt,
)
from shoal.protocols.ledger import Account, Drawn
from shoal.protocols.machines import Effects, Machine, State


@dataclass(frozen=True, slots=True)
class Outbound:
    """Bytes that a driver is to send. Those of an answer are stored under its question, and leave as `Ledger.mark_sending` returns them."""

    to: str
    payload: bytes
    question: str | None = None


Work = Outbound | Compute | Feed | WakeAt | Finish | Abort
Verdict = tuple[Input, tuple[Outbound, ...]]


def settle(
    machine: Machine[State], state: State, given: Input, now: datetime, entropy: Entropy, account: Account | None
) -> tuple[State, tuple[Work, ...]]:
    """Give a machine one input, and to a peer all that its ledger has to say about it; then it waits for others.

    When it returns, each answer is stored; state and work are to be saved together before anything is sent. `Abort`, if there is one, is
    all the work. `RemoteProtocolError` means that a message broke the rules, and that neither machine nor ledger has moved.
    """
    todo: deque[Input | tuple[Spend, Account]] = deque([given])
    put: set[str] = set()
    granted: dict[str, Spend] = {}
    work: list[Work] = []
    while todo:
        item = todo.popleft()
        if isinstance(item, tuple):
            spend, ledger = item
            item, again = _put(spend, ledger, machine)
            work += again
            if isinstance(item, Granted):
                granted[item.question] = spend
        state, effects = _step(machine, state, item, now, entropy)
        for effect in effects:
            match effect:
                case Abort():
                    return state, (effect,)
                case WakeAt() | Finish():
                    work.append(effect)
                case Compute() | Feed() if account is not None:
                    work.append(effect)
                case Send(to, message):
                    work.append(Outbound(to, _encode(machine, message, is_priced=account is None)))
                case Spend(question) if account is not None and question not in put:
                    put.add(question)
                    todo.append((effect, account))
                case Release(question, message) if account is not None and question in granted:
                    answered, again = _store(granted.pop(question), message, account, machine)
                    todo.append(answered)
                    work += again
                case _:
                    raise _forbidden(effect, account)
    return state, tuple(work)


def _step(machine: Machine[State], state: State, given: Input, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
    """One step, in which only the sender of a message may be blamed: once the ledger has moved it would be too late."""
    try:
        return machine.step(state, given, now, entropy)
    except RemoteProtocolError as error:
        if isinstance(given, Received):
            raise
        raise LocalProtocolError(
            "PROTO-001",
            f"{type(machine).__name__} blames another party when it is given {type(given).__name__}: {error.what}",
            fix="Check all of a message in received(), before a question is put.",
        ) from error


def _put(spend: Spend, account: Account, machine: Machine[Any]) -> Verdict:
    """What the ledger says to a question; an answer that it holds already goes out again as it is."""
    question = spend.question
    try:
        verdict = account.reserve(question, spend.event)
    except BudgetError as error:
        return Refused(question, error), ()
    if not isinstance(verdict, Drawn):
        return Granted(question), ()
    try:
        stored = decode(verdict.payload, machine.messages, machine.study)
    except RemoteProtocolError as error:
        raise IntegrityError("PROTO-004", f"The stored answer to {question} cannot be read: {error.what}") from None
    return Answered(question, stored), (Outbound(AGGREGATOR, verdict.payload, question),)


def _store(spend: Spend, message: Message, account: Account, machine: Machine[Any]) -> Verdict:
    """Store an answer that was drawn just now; or take what another process has stored for the question since it was granted."""
    payload = _encode(machine, message, is_priced=True)
    try:
        account.store(spend.question, payload)
    except LocalProtocolError:
        verdict = _put(spend, account, machine)
        if isinstance(verdict[0], Granted):
            raise
        return verdict
    return Answered(spend.question, message), (Outbound(AGGREGATOR, payload, spend.question),)


def _encode(machine: Machine[Any], message: Message, *, is_priced: bool) -> bytes:
    """The bytes of a message, if it is one of this protocol and study, and not made from private data without a price."""
    if message.study != machine.study or machine.messages.get((message.type_name, message.version)) is not type(message):
        raise LocalProtocolError("PROTO-001", f"A {message.type_name} was to be sent that is not of this protocol and study.")
    if message.spends and not is_priced:
        raise LocalProtocolError(
            "PROTO-001",
            f"A {message.type_name} was to be sent without a price.",
            why="It is a mechanism's output on private data.",
            fix="Ask with Spend, draw when it is Granted, and return a Release.",
        )
    return encode(message)


def _forbidden(effect: Effect, account: Account | None) -> LocalProtocolError:
    """Why the driver does not do what a machine asks for."""
    kind = type(effect).__name__
    if not isinstance(effect, Spend | Release | Compute | Feed):
        return LocalProtocolError("PROTO-001", f"A machine asked for {kind}, which this driver does not know.")
    if account is None or not isinstance(effect, Spend | Release):
        return LocalProtocolError("PROTO-001", f"A machine that has no ledger asked for {kind}.")
    why = "put twice within one input" if isinstance(effect, Spend) else "released without having been granted"
    return LocalProtocolError("PROTO-001", f"Question {effect.question!r:.60} was {why}.")
