"""One participant in one study: a driver by the contract of `shoal.protocols.base`, whose every promise must hold here.

One task takes inputs one after another: each is handled to its end, then state, letter taken, letters to send, alarms and joint
computations are saved in one transaction, and only then does anything else happen. Beside it one task sends what is in the outbox, in
order, each letter until it is acknowledged, and one listens: it acknowledges what it was given by asking for what comes after. Both
give what they learn to the first. What goes down starts again from what was saved. Where each letter leaves at a time of its own
(`shoal.participant.posting`), each has a task of its own, and none waits for another.

A file that cannot be written ends the run by its error, and is no fault of the study: the input is as if it had not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from shoal.clock import Clock
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, StoreError
from shoal.messages.codec import dump, load
from shoal.participant.client import Client, RefusedError
from shoal.participant.endings import Finished, answered_before
from shoal.participant.inputs import Delivered, Dropped, Given, Heard, Letter, Over, Reply, Rung
from shoal.participant.journal import Joined, Journal, Standing, Step
from shoal.participant.listening import listener
from shoal.participant.objections import too_late
from shoal.participant.posting import Carried, Fate, Posted, waits
from shoal.participant.wires import Wire
from shoal.protocols.base import (
    AGGREGATOR,
    Abort,
    Account,
    Broken,
    Compute,
    Computed,
    Computer,
    Feed,
    Finish,
    Handled,
    Input,
    Outbound,
    Outcome,
    Peer,
    Refused,
    Sent,
    Started,
    Tick,
    WakeAt,
)
from shoal.protocols.joint.computing import interrupted

Tell = Callable[[str], None]
"""Is told, in a few words, what goes on."""

LONGEST_LOOK = 30.0
"""Seconds after which the clock is looked at again while an alarm is set: it may have been put forward or back meanwhile."""

SHORTEST_WAIT = 1.0
"""Seconds that a coordinator waits at least before it answers that there is nothing new."""

_ENDED: tuple[Standing, ...] = ("finished", "over", "aborted")
_OURS = ("AUTH-", "ENROL-", "HOST-001")
"""Refusals that speak of the participant or its address, and not of what it sent: another letter would fare no better."""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class Course:
    """From what was saved to the end, or to a fault.

    Parameters
    ----------
    journal, joined, peer, account
        The participant's journal, what it is in the study, its machine, and its ledger opened for the study.
    wire, client
        What carries letters, and what waits between two tries.
    clock, entropy, computer, tell
        As `shoal.participant.runner.run` takes them.
    """

    def __init__(
        self,
        journal: Journal,
        joined: Joined,
        peer: Peer[Any],
        account: Account,
        wire: Wire,
        client: Client,
        clock: Clock,
        entropy: Entropy,
        computer: Computer | None,
        tell: Tell,
    ) -> None:
        saved = journal.load(joined.study)
        state = peer.initial() if saved.state is None else load(saved.state, type(peer.initial()))
        self.journal, self.study, self.title = journal, joined.study, joined.title
        self.wire, self.client, self.clock = wire, client, clock
        self.computer, self.tell = computer, tell
        self.host = listener(peer, account, entropy, state)
        self.cursor, self.outbox, self.alarms, self.tasks = saved.cursor, dict(saved.letters), set(saved.alarms), set(saved.tasks)
        self.struck: list[int] = []
        self.standing, self.reason = joined.standing, joined.reason
        self.result: object = None
        self.is_new = saved.state is None
        self.inputs: asyncio.Queue[Given] = asyncio.Queue()
        self.posted, self.over = asyncio.Event(), asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None

    async def run(self) -> Finished:
        """Take inputs until there is nothing left to do."""
        is_under_way = self.standing == "agreed"
        for given in [Started()] if self.is_new else map(interrupted, sorted(self.tasks)):
            self.inputs.put_nowait(given)
        self.posted.set()
        self._look_at_clock()
        is_posted = isinstance(self.wire, Posted)
        tasks = [asyncio.create_task(self._guarded(self._carry_all if is_posted else self._send))]
        # What waits for its time is not to leave once the study is over.
        if self.wire.listens and (is_under_way or (is_posted and self.outbox)):
            tasks.append(asyncio.create_task(self._guarded(self._listen)))
        try:
            while not self._is_done():
                await self._take(await self.inputs.get())
                self.inputs.task_done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.timer is not None:
                self.timer.cancel()
            if self.computer is not None:
                self.computer.end(self.host.name)
        finished = Finished(self.standing, self.host.state, self.result, self.reason, len(self._unsent()))
        if self.standing == "finished" and is_under_way:
            self.tell(finished.words)
        return finished

    def _is_done(self) -> bool:
        return self.standing == "aborted" or (self.standing in _ENDED and not self.outbox and not self.tasks)

    async def _take(self, given: Given) -> None:
        """Take one input, and all that joint computations have to say after it."""
        match given:
            case BaseException():
                raise given
            case Delivered(number):
                self._delivered(number)
            case Dropped(question):
                self._dropped(question)
            case Abort():
                self._done(None, Handled(self.host.state, (given,)))
            case Over(status):
                if self.standing == "agreed":
                    self.tell(f"the study is {status}")
                    self.journal.stand(self.study, "over")
                    self.standing = "over"
                self.tasks.clear()
                self.over.set()
            case _:
                self._handle(given)
                await self._compute()

    async def _compute(self) -> None:
        """Take what joint computations have to say, until each of them waits to be fed or is over."""
        while self.tasks and self.computer is not None:
            told = await asyncio.to_thread(self.computer.collect)
            for _, progress in told:
                if self.tasks:
                    self._handle(progress)
            if not told:
                break

    def _handle(self, given: Heard) -> None:
        """Give the peer an input."""
        outcome, now = Outcome(), self.clock.now()
        handled = self.host.handle(self._as_input(given, now), now, outcome)
        for failed in outcome.failed:
            if isinstance(failed.error, StoreError):
                raise failed.error
        for rejected in outcome.rejected:
            self.tell(f"the coordinator sent what cannot be used ({rejected.error.code}): {rejected.error.what}")
        self._done(given, handled)

    def _done(self, given: Heard | None, handled: Handled) -> None:
        """Save what came of an input, and only then set out to do it."""
        step = self._step(given, handled)
        numbers = self.journal.save(self.study, step)
        self.host.accept(handled)
        self._saved(step, numbers, handled)

    def _as_input(self, given: Heard, now: datetime) -> Input | Sent:
        match given:
            case Letter(payload=payload) | Reply(payload):
                return Sent(now, AGGREGATOR, self.host.name, payload)
            case Rung():
                return Tick()
            case _:
                return given

    def _step(self, given: Heard | None, handled: Handled) -> Step:
        work = handled.work
        abort = next((item for item in work if isinstance(item, Abort)), None)
        is_finished = any(isinstance(item, Finish) for item in work) and self.standing == "agreed"
        return Step(
            dump(handled.state),
            cursor=given.number if isinstance(given, Letter) else None,
            letters=tuple(item for item in work if isinstance(item, Outbound)),
            dropped=given.question if isinstance(given, Refused) else None,
            struck=tuple(self.struck),
            alarms=tuple(-(-(item.when - _EPOCH) // _MILLISECOND) for item in work if isinstance(item, WakeAt)),
            rung=given.alarms if isinstance(given, Rung) else (),
            begun=tuple(item.task for item in work if isinstance(item, Compute)),
            over=(given.task,) if isinstance(given, Computed | Broken) else (),
            standing="aborted" if abort else "finished" if is_finished else None,
            reason=str(abort.error) if abort else None,
        )

    def _saved(self, step: Step, numbers: tuple[int, ...], handled: Handled) -> None:
        """What was saved is known here too, and is done."""
        self.cursor = max(self.cursor, step.cursor or 0)
        self.struck.clear()
        self.outbox = {number: letter for number, letter in self.outbox.items() if step.dropped is None or letter.question != step.dropped}
        self.outbox.update(zip(numbers, step.letters, strict=True))
        self.alarms = (self.alarms - set(step.rung)) | set(step.alarms)
        self.tasks = (self.tasks - set(step.over)) | set(step.begun)
        self.standing, self.reason = step.standing or self.standing, step.reason or self.reason
        self.posted.set()
        self._look_at_clock()
        for item in handled.work:
            match item:
                case Compute():
                    self._computing().begin(self.host.name, item)
                case Feed():
                    self._computing().feed(self.host.name, item)
                case Finish(result):
                    self.result = result
                case Abort(error):
                    self.outbox.clear()
                    self.alarms.clear()
                    self.tasks.clear()
                    self.tell(f"given up: {error.what}")

    def _computing(self) -> Computer:
        if self.computer is None:
            raise LocalProtocolError("PROTO-001", "A study asks for a joint computation, and there is nothing here that computes.")
        return self.computer

    def _delivered(self, number: int) -> None:
        letter = self.outbox.pop(number, None)
        if letter is not None:
            # The ledger first: a letter that is struck from the outbox is not looked for any more.
            self.host.acknowledged(letter.question)
            self.struck.append(number)
            # While others wait, it is struck with what is saved next: to send it once more after a crash does no harm.
            if not self.outbox:
                self.journal.delivered(self.study, *self.struck)
                self.struck.clear()

    def _dropped(self, question: str) -> None:
        """Strike what has not left and will not; where nothing has, and nothing else is to leave, the study was not answered after all."""
        assert isinstance(self.wire, Posted)
        numbers = [number for number, letter in self.outbox.items() if letter.question == question]
        if self.standing == "finished" and len(numbers) == len(self.outbox) and not self.wire.packets.has_left():
            self._done(None, Handled(self.host.state, (Abort(too_late(self.title, self.study, is_over=self.over.is_set())),)))
            return
        why = "the study has ended" if self.over.is_set() else "the time in which it could leave has passed"
        self.tell(f"{question} was not sent: {why}")
        self.journal.delivered(self.study, *numbers, *self.struck)
        self.struck.clear()
        for number in numbers:
            del self.outbox[number]

    def _look_at_clock(self) -> None:
        """Ring alarms that are due, or look again when the next one may be."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        now = (self.clock.now() - _EPOCH) // _MILLISECOND
        due = tuple(sorted(alarm for alarm in self.alarms if alarm <= now))
        if due:
            self.inputs.put_nowait(Rung(due))
        elif self.alarms:
            wait = min((min(self.alarms) - now) / 1000, LONGEST_LOOK)
            self.timer = asyncio.get_running_loop().call_later(wait, self._look_at_clock)

    async def _guarded(self, act: Callable[[], Any]) -> None:
        """Have what goes wrong in a task beside the first one end the run."""
        try:
            await act()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.inputs.put_nowait(error)

    async def _listen(self) -> None:
        """Take letters as they come, until the study has ended and has nothing more to say."""
        n_silent = n_hasty = 0
        now = asyncio.get_running_loop().time
        while n_silent < 2:
            asked = now()
            heard = await self._insist(partial(self.wire.listen, self.cursor))
            new = [letter for letter in heard.letters if letter.number > self.cursor]
            for letter in new:
                self.inputs.put_nowait(Letter(letter.number, letter.payload))
            # By asking for more, what was heard is acknowledged: it has to be saved before.
            await self.inputs.join()
            # The last letters and the end are written together, but may be read one after the other.
            n_silent = n_silent + 1 if heard.status != "open" and not new else 0
            # Whoever has nothing to say waits before it says so; one that does not is asked less and less often.
            n_hasty = n_hasty + 1 if heard.status == "open" and not new and now() - asked < SHORTEST_WAIT else 0
            if n_hasty:
                await self.client.pause(n_hasty)
        self.inputs.put_nowait(Over(heard.status))

    async def _send(self) -> None:
        """Send what is in the outbox, in order, each letter until it is acknowledged or refused for good."""
        while True:
            await self.inputs.join()
            if not self.outbox:
                self.posted.clear()
                await self.posted.wait()
                continue
            number, letter = next(iter(self.outbox.items()))
            payload = self._leaving(letter)
            if payload is not None:
                await self._deliver(number, letter, payload)

    async def _carry_all(self) -> None:
        """Carry what is in the outbox, each answer in a task of its own: it has a time of its own."""
        carried: set[str] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                await self.inputs.join()
                self.posted.clear()
                for letter in self.outbox.values():
                    # An answer that a preview has drawn is put into the outbox twice.
                    if letter.question is not None and letter.question not in carried:
                        carried.add(letter.question)
                        group.create_task(self._guarded(partial(self._carry, letter.question)))
                await self.posted.wait()

    def _unsent(self) -> Mapping[str, bytes]:
        assert self.host.account is not None
        return self.host.account.unsent()

    async def _carry(self, question: str) -> None:
        """Carry one answer until it has arrived, or will not."""
        assert isinstance(self.wire, Posted)
        payload = self._unsent().get(question)

        def may_leave() -> bool:
            return self._leaving(Outbound(AGGREGATOR, b"", question)) is not None

        if payload is None:
            # It was acknowledged and not struck, or given up, as the ledger says.
            fate: Fate = "arrived" if may_leave() else "withheld"
        else:
            fate = await self.wire.carry(Carried(question, payload, lambda: self.host.state, may_leave, self.over, self.tell))
        match fate:
            case "arrived" | "left":
                self.tell(f"{question} is delivered" if fate == "arrived" else f"{question} has left; whether it arrived is not known")
                for number, letter in self.outbox.items():
                    if letter.question == question:
                        self.inputs.put_nowait(Delivered(number))
            case "late":
                self.inputs.put_nowait(Dropped(question))

    def _leaving(self, letter: Outbound) -> bytes | None:
        """The bytes of a letter, which may leave now; None where the ledger does not let them: that is said to the peer."""
        match self.host.send(letter, self.clock.now(), Outcome()):
            case Sent(payload=payload):
                return payload
            case Refused() as refused:
                self.inputs.put_nowait(refused)
            case Abort(error) as ending:
                # A file that cannot be written today may be tomorrow.
                self.inputs.put_nowait(error if isinstance(error, StoreError) else ending)
        return None

    async def _deliver(self, number: int, letter: Outbound, payload: bytes) -> None:
        try:
            reply = await self._insist(partial(self.wire.deliver, payload, letter.question))
            if reply is not None:
                self.inputs.put_nowait(Reply(reply))
            if letter.question is not None:
                self.tell(f"{letter.question} is delivered")
        except RefusedError as error:
            is_answer, is_over = letter.question is not None, error.status == 410
            if is_answer and error.code == "HOST-005":
                self.inputs.put_nowait(Abort(answered_before()))
                return
            if not is_over and (error.code.startswith(_OURS) or not (is_answer or self.wire.listens)):
                raise
            self.tell(f"not taken ({error.code}): {error.what}")
            if is_over and not self.wire.listens:
                self.inputs.put_nowait(Over("closed"))
        self.inputs.put_nowait(Delivered(number))

    async def _insist(self, ask: Callable[[], Any]) -> Any:
        return await self.client.insist(ask, partial(waits, self.tell))
