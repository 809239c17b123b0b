"""What came in and what is due, folded through an aggregator: pure, from what a store has loaded to what it is to save.

The coordinator's part of the contract in `shoal.protocols.base`. Many inputs are folded with one load and one save of the state; since
they are saved together, a crash in between is as if none of them had come, and they come again.

- What has come goes first, then what is due: an answer that was accepted before a deadline is in time, however late it is folded in.
- A message that breaks the rules is counted by its code, and the name that it took is free again.
- Where a machine fails on a message by a fault of its own, that message alone is lost, as ``PROTO-005``. Where it fails at its beginning
  or at a deadline there is nobody else to serve: the study has failed, and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from shoal.coordinator.store.base import Ending, Folded, Held, Loaded
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.messages.codec import decode, dump, load
from shoal.protocols.driver import STRANGER
from shoal.protocols.effects import EVERYONE, Abort, Finish, Input, Received, Started, Tick, WakeAt
from shoal.protocols.machines import Aggregator
from shoal.protocols.settle import Outbound, Work, settle

FAULT = "PROTO-005"
_MOST_AT_ONCE = 100
"""Of alarms that are set for the same moment as it is; what is set beyond them is stored, and due at once."""

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def moment(milliseconds: int) -> datetime:
    """A time of the store as machines know it."""
    return _EPOCH + milliseconds * _MILLISECOND


def milliseconds(when: datetime) -> int:
    """A time of a machine as the store knows it: not earlier, and less than a millisecond later."""
    return -((_EPOCH - when) // _MILLISECOND)


def fold(
    aggregator: Aggregator[Any],
    loaded: Loaded,
    now: int,
    entropy: Entropy,
    names: Collection[str],
    written: Callable[[object], bytes],
) -> Folded:
    """All steps that are due, and what is to be saved of them.

    Parameters
    ----------
    aggregator, loaded
        The machine, and what the store has for it.
    now, entropy
        The time, in milliseconds since 1970; what the machine draws from.
    names
        All that it may write to by name.
    written
        How its result is written down.
    """
    folding = _Folding(aggregator, loaded.state, moment(now), entropy, names, written)
    if loaded.state is None:
        folding.due(Started())
    for i, held in enumerate(loaded.held):
        if folding.ending is not None:
            break
        folding.take(held, i)
    for alarm in loaded.alarms:
        if folding.ending is not None:
            break
        folding.ring(alarm)
    n_rung = 0
    while folding.ending is None and n_rung < _MOST_AT_ONCE and folding.ring_set():
        n_rung += 1
    return folding.folded()


class _Folding:
    """The state as it goes from input to input, and what has gathered so far."""

    def __init__(
        self,
        aggregator: Aggregator[Any],
        state: bytes | None,
        now: datetime,
        entropy: Entropy,
        names: Collection[str],
        written: Callable[[object], bytes],
    ) -> None:
        initial = aggregator.initial()
        self.state = initial if state is None else load(state, type(initial))
        self.ending: Ending | None = None
        self._aggregator, self._now, self._entropy, self._names, self._written = aggregator, now, entropy, names, written
        self._taken: list[int] = []
        self._freed: list[bytes] = []
        self._letters: list[tuple[str | None, bytes]] = []
        self._alarms: set[int] = set()
        self._rung: list[int] = []
        self._rejected: Counter[str] = Counter()

    def due(self, given: Input) -> None:
        """Give the machine what no sender is to blame for."""
        try:
            self._step(given)
        except Exception as error:
            self._rejected[FAULT] += 1
            self.ending = Ending("failed", reason=_reason(error))

    def take(self, held: Held, place: int) -> None:
        """Give the machine a message; what is wrong with it costs nobody else anything."""
        self._taken.append(held.number)
        try:
            message = decode(held.payload, self._aggregator.messages, self._aggregator.study)
            self._step(Received(f"{STRANGER}{place}" if message.is_anonymous else held.sender, message))
        except Exception as error:
            self._rejected[error.code if isinstance(error, RemoteProtocolError) else FAULT] += 1
            self._freed += [] if held.name is None else [held.name]

    def ring(self, alarm: int) -> None:
        self._rung.append(alarm)
        self.due(Tick())

    def ring_set(self) -> bool:
        """Ring alarms that were set for this moment, if there are any: before they are looked for again the clock may be put back."""
        due = {alarm for alarm in self._alarms if alarm <= milliseconds(self._now)}
        self._alarms -= due
        if due:
            self.due(Tick())
        return bool(due)

    def folded(self) -> Folded:
        return Folded(
            dump(self.state),
            tuple(self._taken),
            tuple(self._freed),
            tuple(self._letters),
            tuple(sorted(self._alarms)),
            tuple(self._rung),
            dict(self._rejected),
            self.ending,
        )

    def _step(self, given: Input) -> None:
        """Nothing has changed here unless all of it went well."""
        state, work = settle(self._aggregator, self.state, given, self._now, self._entropy, None)
        letters = [self._addressed(item) for item in work if isinstance(item, Outbound)]
        ending = self._end(work)
        self.state, self.ending = state, ending
        self._letters += letters
        self._alarms |= {milliseconds(item.when) for item in work if isinstance(item, WakeAt)}

    def _addressed(self, letter: Outbound) -> tuple[str | None, bytes]:
        if letter.to != EVERYONE and letter.to not in self._names:
            raise LocalProtocolError("PROTO-001", f"The aggregator cannot send to {letter.to!r:.60}, who does not take part.")
        return None if letter.to == EVERYONE else letter.to, letter.payload

    def _end(self, work: tuple[Work, ...]) -> Ending | None:
        for item in work:
            if isinstance(item, Finish):
                return Ending("done", self._written(item.result))
            if isinstance(item, Abort):
                return Ending("failed", reason=_reason(item.error))
        return None


def _reason(error: Exception) -> str:
    """Why a study has failed, for everyone to read; the text of a foreign exception is left out, since it may hold anything."""
    if isinstance(error, ShoalError):
        return error.what if error.why is None else f"{error.what} {error.why}"
    return f"The aggregator failed with {type(error).__name__}, by a fault in the protocol's code."
