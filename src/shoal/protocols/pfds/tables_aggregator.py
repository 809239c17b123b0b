"""The aggregator of variant plus with trust local: it gathers tables that are private already, pools them and publishes the model.

It waits for all holders, and when the time is up goes on with those that are there, if they are enough. A holder that sends what cannot
be used is refused and, like one that sends nothing, left out by name.
"""

from __future__ import annotations

from datetime import datetime

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.base import Effects, Moment, WakeAt
from shoal.protocols.pfds.local import attributes_of, check, pooled, size_of
from shoal.protocols.pfds.messages import Left, Natural, Tables
from shoal.protocols.pfds.params import Ints
from shoal.protocols.pfds.publishing import Published, Publisher, Publishing
from shoal.protocols.sums.gathering import Failure

_MISSING = "nothing usable came from it in time"


class Held(Record):
    """The tables of one holder."""

    holder: Natural
    counts: Array

    @property
    def numbers(self) -> Ints:
        """Units of 1/256 of a row."""
        numbers: Ints = self.counts.expect("int64", self.counts.count)
        return numbers


class Pooling(Publishing):
    """Whose tables are there.

    Parameters
    ----------
    deadline
        Until when the others are waited for; None before the beginning.
    held
        What has come.
    """

    deadline: Moment | None = None
    held: tuple[Held, ...] = ()


class TablesAggregator(Publisher[Pooling]):
    """The side of those who read the tables; nobody trusts it, and nobody has to."""

    def initial(self) -> Pooling:
        return Pooling()

    def started(self, state: Pooling, now: datetime, entropy: Entropy) -> tuple[Pooling, Effects]:
        if state.deadline is not None:
            return state, ()
        deadline = now + self.patience
        return state.replace(deadline=deadline), (WakeAt(deadline),)

    def received(self, state: Pooling, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Pooling, Effects]:
        if not isinstance(message, Tables) or sender not in self.names:
            raise RemoteProtocolError("PROTO-003", f"{sender} does not send a {message.type_name} in this study.")
        if state.is_over:
            return state, ()
        holder = self.names.index(sender)
        if any(held.holder == holder for held in state.held):
            raise RemoteProtocolError("PFDS-003", f"{sender} sends its tables a second time.")
        attributes = attributes_of(self.params, self.study, holder)
        check(self.params, attributes, message.counts.expect("int64", size_of(self.params, attributes)))
        state = state.replace(held=(*state.held, Held(holder=holder, counts=message.counts)))
        return self._pooled(state) if len(state.held) == len(self.names) else (state, ())

    def waited(self, state: Pooling, now: datetime) -> tuple[Pooling, Effects]:
        if state.deadline is None or now < state.deadline:
            return state, ()
        n, minimum = len(state.held), self.params.minimum
        if n < minimum:
            what = f"The study is given up: {n} holders sent usable tables in time; {minimum} are needed."
            return self.give_up(state.replace(held=()), Failure(code="PFDS-004", what=what, why="What they sent is spent."), now)
        return self._pooled(state)

    def _pooled(self, state: Pooling) -> tuple[Pooling, Effects]:
        # The order in which they came must not matter, to the last digit.
        answers = {held.holder: held.numbers for held in sorted(state.held, key=lambda held: held.holder)}
        left_out = tuple(Left(holder=name, reason=_MISSING) for i, name in enumerate(self.names) if i not in answers)
        model = pooled(self.params, self.study, answers)
        published = Published(model, tuple(answers.values()), (len(answers),), left_out)
        return self.publish(state.replace(held=()), published)
