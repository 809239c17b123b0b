"""Replay of a peer with neighbouring rows: all but its reports must be equal.

The audit of each protocol calls `replay_neighbours`. A peer runs twice, with two neighbouring
inputs and the same random bits. Only the step that draws an answer has other random bits in the
second run, and afterwards the fields of the report (`Message.report_fields`) are replaced by those
of the first run. So whatever else leaves is the same in both runs, if it depends on public data,
fresh random bits and reports alone. Messages, their order, sizes and recipients, reservations in
the ledger, alarms and endings are compared. Sealed boxes cannot be replayed, because the library
draws their keys; their sizes are compared, and the commitments to their content.

A change must keep the separate random bits of answers. Otherwise a peer that sends its noise in
another field, from which the report can be undone, would pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dumps
from shoal.protocols.base import (
    Abort,
    Compute,
    Effects,
    Feed,
    Finish,
    Granted,
    Input,
    Release,
    Send,
    Spend,
    WakeAt,
)

REPLAYS = 100
"""Most replays of two neighbours: a leak in 5 % of the runs is missed with probability 0.6 %."""
_SAMPLES_PER_REPLAY = 20

Part = tuple[str, object]
"""A description of a part of all that leaves a peer, and its content."""
_NOTHING: Part = ("nothing", None)


def count_replays(samples: int) -> int:
    """Return the number of replays of two neighbours: a small share of an audit's work."""
    return max(1, min(REPLAYS, samples // _SAMPLES_PER_REPLAY))


def list_parts(effect: object) -> Iterator[Part]:
    """Yield the parts of an effect that other parties, or the driver, can observe.

    A result is computed for the participant and stays there, and so does the text of an error.
    """
    match effect:
        case Send(to, message):
            yield f"the recipient of {message.type_name}", to
            yield from _list_fields(message)
        case Release(question, message):
            yield f"the question that {message.type_name} answers", question
            yield from _list_fields(message)
        case Spend(question, event):
            yield "a reservation in the ledger", (question, event)
        case WakeAt(when):
            yield "the time of an alarm", when
        case Compute(task, program, me, n_parties, inputs):
            yield "a joint computation", (task, program, me, n_parties, len(inputs))
        case Feed(task, sender, payload):
            yield "an input of a joint computation", (task, sender, payload)
        case Abort(error):
            yield "an abort", error.code
        case Finish():
            yield "the end of the study", None


def _list_fields(message: Message) -> Iterator[Part]:
    """Yield the fields of a message; of reports and sealed boxes only the sizes."""
    for name, value in message.model_dump(warnings=False).items():
        content = dumps(value)
        if name in message.report_fields or name in message.sealed_fields:
            yield f"the size of the field {name} of {message.type_name}", len(content)
        else:
            yield f"the field {name} of {message.type_name}", content


class PeerRecord:
    """All that left a peer in one run, apart from its reports.

    Parameters
    ----------
    seed
        Determines all random bits of the peer, apart from those of its answers.
    which
        Number of the neighbour; answers draw separate random bits for each.
    replayed
        Question -> the message of an earlier run that has the fields of the report.
    """

    def __init__(self, seed: int, which: int, replayed: Mapping[str, Message]) -> None:
        self.parts: list[Part] = []
        self.released: dict[str, Message] = {}
        self._entropy = SeededEntropy(seed)
        self._which = which
        self._replayed = replayed

    def wrap(self, peer: Any) -> RecordedPeer:
        """Return a machine that runs the peer and adds all that leaves to this record."""
        return RecordedPeer(peer, self)

    def select_entropy(self, number: int, given: Input) -> Entropy:
        """Return the random source of a step."""
        if isinstance(given, Granted):
            return self._entropy.spawn("answer", self._which, number)
        return self._entropy.spawn("step", number)

    def add(self, effect: Any) -> Any:
        """Record an effect, and return it with the replayed report."""
        self.parts += list_parts(effect)
        if not isinstance(effect, Release):
            return effect
        message, earlier = effect.message, self._replayed.get(effect.question)
        if type(earlier) is type(message):
            report = {name: getattr(earlier, name) for name in message.report_fields}
            message = message.replace(**report)
        self.released[effect.question] = message
        return Release(effect.question, message)


class RecordedPeer:
    """A peer that gets its random bits from a record, and adds all that leaves to the record."""

    def __init__(self, peer: Any, record: PeerRecord) -> None:
        self.messages = peer.messages
        self.study: bytes = peer.study
        self._peer = peer
        self._record = record
        self._n_steps = 0

    def initial_state(self) -> Any:
        """Return the peer's state before the first input."""
        return self._peer.initial_state()

    def step(
        self,
        state: Any,
        given: Input,
        now: datetime,
        entropy: Entropy,  # noqa: ARG002 - the record has the random bits
    ) -> tuple[Any, Effects]:
        """Run one step of the peer."""
        self._n_steps += 1
        try:
            state, effects = self._peer.step(
                state, given, now, self._record.select_entropy(self._n_steps, given)
            )
        except RemoteProtocolError as error:
            self._record.parts.append(("the rejection of a message", error.code))
            raise
        effects = tuple(self._record.add(effect) for effect in effects)
        self._record.parts.append(("the end of a step", None))
        return state, effects


def find_difference(first: list[Part], second: list[Part]) -> str | None:
    """Return a description of the first part that differs; None if all are equal."""
    for (what, content), (other, other_content) in zip_longest(first, second, fillvalue=_NOTHING):
        if what != other:
            return f"{what} of one neighbour, and {other} of the other"
        if content != other_content:
            return what
    return None


WrapPeer = Callable[[Any], Any]
"""Return the machine to run in place of a peer."""
RunPeer = Callable[[int, SeededEntropy, WrapPeer], object]
"""Run a peer with one of two neighbouring inputs.

Arguments: which of the two; the random source of everything but the peer; what to run in place of
the peer.
"""


def keep_peer(peer: Any) -> Any:
    """Return the peer unchanged."""
    return peer


@dataclass(frozen=True)
class ReplayResult:
    """The result of replays.

    Parameters
    ----------
    n
        Number of replays.
    leak
        The part outside the reports that depends on the rows; None if none does.
    rows
        Descriptions of the two neighbours with the leak.
    """

    n: int
    leak: str | None = None
    rows: tuple[str, str] | None = None


def replay_neighbours(
    runs: Mapping[tuple[str, str], RunPeer], n: int, entropy: Entropy
) -> ReplayResult:
    """Replay each pair of neighbours n times, each time with other random bits.

    The replays end with the first leak.
    """
    done = 0
    for rows, run in runs.items():
        for _ in range(n):
            seed, records, replayed = entropy.word(), list[PeerRecord](), dict[str, Message]()
            done += 1
            for which in (0, 1):
                records.append(PeerRecord(seed, which, replayed))
                run(which, SeededEntropy(seed), records[-1].wrap)
                replayed = records[-1].released
            leak = find_difference(records[0].parts, records[1].parts)
            if leak is not None:
                return ReplayResult(done, leak, rows)
    return ReplayResult(done)
