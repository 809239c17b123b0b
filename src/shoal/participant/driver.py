"""The driver that runs a peer over HTTP; its inputs and result.

`shoal.participant.runner.run` makes a `StudyDriver` and runs it. The driver keeps the contract of
`shoal.protocols.base`.

One task processes inputs one at a time. It runs each input to completion. Then it saves the peer's
state, the number of the message, the messages to send, the alarms and the joint computations in one
transaction. Everything else follows after that.

A second task delivers the outbox: in order, each message until the coordinator acknowledges it; or,
if the delivery is concurrent, each answer in its own task. A third task polls for messages. A poll
acknowledges all earlier messages, so it starts after these are saved. If the delivery has fixed the
times of its reads in advance, the third task reads at these times instead, and the run does not end
before the last of them. Both tasks report to the first one through a queue. A process that stops
resumes from what was saved.

If a file cannot be written, the run ends with that error. The input counts as not received, and the
study is not aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, StoreError, TransportError
from shoal.messages.codec import check_value_count, dump, load
from shoal.participant.client import RefusedError
from shoal.participant.consent import already_answered_error, no_question_error, not_sent_error
from shoal.participant.delivery import (
    Delivery,
    MailboxMessage,
    OutgoingAnswer,
    ReplyMessage,
    StudyContext,
    report_retry,
)
from shoal.participant.journal import JournalUpdate, ParticipationStatus
from shoal.participant.reading import ReadingTimes, run_reads
from shoal.protocols.base import (
    AGGREGATOR,
    Abort,
    Account,
    Broken,
    Compute,
    Computed,
    Feed,
    Finish,
    Input,
    InputResult,
    JointComputation,
    OutgoingMessage,
    Peer,
    ProtocolOutcome,
    Received,
    Refused,
    SentMessage,
    Started,
    Tick,
    WakeAt,
)
from shoal.protocols.driver import Host, RejectedMessage
from shoal.protocols.mpc.computer import make_interruption
from shoal.text import format_count
from shoal.transport.api import Status
from shoal.transport.broadcasts import MAX_MESSAGE_VALUES


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A message of the outbox was acknowledged or refused."""

    number: int


@dataclass(frozen=True, slots=True)
class AnswerDropped:
    """The answer to a question has not left and will not leave."""

    question: str
    why: str


@dataclass(frozen=True, slots=True)
class AlarmsDue:
    """Alarms that are due, in milliseconds since 1970."""

    alarms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StudyEnded:
    """The study has ended, and all its messages were polled."""

    status: Status


@dataclass(frozen=True, slots=True)
class ReadingEnded:
    """The last read at a time that was fixed in advance is over."""


PeerInput = Input | MailboxMessage | ReplyMessage | AlarmsDue
DriverInput = (
    PeerInput | MessageDelivered | AnswerDropped | StudyEnded | ReadingEnded | Abort | BaseException
)


PARTICIPANT_NAME = "participant"
"""Name of the peer in its own process; messages do not contain it."""


class ParticipantHost(Host):
    """A host that counts the values of a message before it decodes the message."""

    def handle(
        self, given: Input | SentMessage, now: datetime, outcome: ProtocolOutcome
    ) -> InputResult:
        if isinstance(given, SentMessage):
            try:
                check_value_count(given.payload, MAX_MESSAGE_VALUES)
            except RemoteProtocolError as error:
                outcome.rejected.append(RejectedMessage(self.name, given.sender, error))
                return InputResult(self.state)
        return super().handle(given, now, outcome)


def make_participant_host(
    peer: Peer[Any], account: Account, entropy: Entropy, state: Any
) -> ParticipantHost:
    """Return the host of a participant's peer."""
    return ParticipantHost(PARTICIPANT_NAME, peer, account, (), entropy, state)


def convert_incoming(given: MailboxMessage | ReplyMessage, now: datetime) -> Received | SentMessage:
    """Convert a message of the coordinator to an input of the host."""
    if isinstance(given, ReplyMessage):
        return Received(AGGREGATOR, given.message)
    return SentMessage(now, AGGREGATOR, PARTICIPANT_NAME, given.payload)


@dataclass(frozen=True, slots=True)
class ParticipationResult:
    """How taking part in a study ended.

    Parameters
    ----------
    status
        ``finished``: there is nothing more to answer. ``over``: the study ended before it asked all
        questions. ``aborted``: the peer gave up.
    state
        Last state of the peer.
    result
        Result of the peer, in the run in which it finished.
    reason
        Why the peer gave up.
    n_unsent
        Answers that were drawn and had not left at the end.
    """

    status: ParticipationStatus
    state: Any
    result: object = None
    reason: str | None = None
    n_unsent: int = 0

    @property
    def description(self) -> str:
        """One line about the questions that were answered, for a study that is finished."""
        if not self.n_unsent:
            return "all questions answered"
        verb = "was" if self.n_unsent == 1 else "were"
        return (
            f"{format_count(self.n_unsent, 'answer')} {verb} not sent and will not be sent; all "
            "other questions answered"
        )


CLOCK_CHECK_SECONDS = 30.0
"""Longest wait for an alarm before the clock is read again: it may have been changed."""

MIN_POLL_SECONDS = 1.0
"""Shortest time in which a coordinator should answer a poll without new messages."""

_ENDED_STATUSES: tuple[ParticipationStatus, ...] = ("finished", "over", "aborted")
_PARTICIPANT_ERRORS = ("AUTH-", "ENROL-", "HOST-001")
"""Codes of refusals that concern the participant, not the message: retrying would not help."""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class StudyDriver:
    """Driver of one peer, from its saved state to the end of the study or an error.

    Parameters
    ----------
    computation
        Runs joint computations for this participant alone; None if the study has none.
    """

    def __init__(
        self,
        context: StudyContext,
        peer: Peer[Any],
        delivery: Delivery,
        computation: JointComputation | None = None,
    ) -> None:
        journal, joined = context.journal, context.joined
        saved = journal.load(joined.study)
        state = (
            peer.initial_state()
            if saved.state is None
            else load(saved.state, type(peer.initial_state()))
        )
        self.context, self.journal, self.study = context, journal, joined.study
        self.clock, self.on_progress = context.clock, context.on_progress
        self.delivery, self.computation, self.account = delivery, computation, context.account
        self.host = make_participant_host(peer, self.account, context.entropy, state)
        self.cursor, self.outbox, self.alarms, self.tasks = (
            saved.cursor,
            dict(saved.messages),
            set(saved.alarms),
            set(saved.tasks),
        )
        self.delivered_numbers: list[int] = []
        self.status, self.reason = joined.standing, joined.reason
        self.result: object = None
        self.is_new = saved.state is None
        self.inputs: asyncio.Queue[DriverInput] = asyncio.Queue()
        self.outbox_changed, self.is_reading = asyncio.Event(), False
        self.timer: asyncio.TimerHandle | None = None

    async def run(self) -> ParticipationResult:
        """Process inputs until there is nothing left to do."""
        is_under_way = self.status == "agreed"
        for given in [Started()] if self.is_new else map(make_interruption, sorted(self.tasks)):
            self.inputs.put_nowait(given)
        self.outbox_changed.set()
        self._fire_due_alarms()
        send = self._send_concurrently if self.delivery.is_concurrent else self._send_in_order
        tasks = [asyncio.create_task(self._run_guarded(send))]
        reading = self.delivery.reading
        if reading is not None and (is_under_way or self.outbox):
            # The end of the reads must not show when an answer arrived.
            self.is_reading = True
            read = partial(self._read_on_schedule, reading)
            tasks.append(asyncio.create_task(self._run_guarded(read)))
        elif self.delivery.can_poll and is_under_way:
            tasks.append(asyncio.create_task(self._run_guarded(self._poll_messages)))
        try:
            while not self._is_done():
                await self._process_input(await self.inputs.get())
                self.inputs.task_done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.timer is not None:
                self.timer.cancel()
            if self.computation is not None:
                self.computation.end(self.host.name)
        ended = ParticipationResult(
            self.status, self.host.state, self.result, self.reason, len(self.account.list_unsent())
        )
        if self.status == "finished" and is_under_way:
            self.on_progress(ended.description)
        return ended

    def _is_done(self) -> bool:
        return self.status == "aborted" or (
            self.status in _ENDED_STATUSES
            and not self.outbox
            and not self.tasks
            and not self.is_reading
        )

    async def _process_input(self, given: DriverInput) -> None:
        """Process one input, and then the outputs of joint computations."""
        match given:
            case BaseException():
                raise given
            case MessageDelivered(number):
                self._mark_delivered(number)
            case AnswerDropped():
                self._drop_unsent_answer(given)
            case ReadingEnded():
                self._end_reading()
            case Abort():
                self._commit(None, InputResult(self.host.state, (given,)))
            case StudyEnded(status):
                if self.status == "agreed":
                    self.on_progress(f"the study is {status}")
                    self.journal.set_status(self.study, "over")
                    self.status = "over"
                self.tasks.clear()
            case _:
                self._handle_peer_input(given)
                await self._collect_computations()

    async def _collect_computations(self) -> None:
        """Process outputs of joint computations until each of them waits for input or has ended."""
        while self.tasks and self.computation is not None:
            outputs = await asyncio.to_thread(self.computation.collect)
            for _, output in outputs:
                if self.tasks:
                    self._handle_peer_input(output)
            if not outputs:
                break

    def _handle_peer_input(self, given: PeerInput) -> None:
        """Run one input of the peer to completion and commit it."""
        outcome, now = ProtocolOutcome(), self.clock.now()
        handled = self.host.handle(self._convert_input(given, now), now, outcome)
        for failed in outcome.failed:
            if isinstance(failed.error, StoreError):
                raise failed.error
        for rejected in outcome.rejected:
            self.on_progress(
                f"rejected a message of the coordinator ({rejected.error.code}): "
                f"{rejected.error.what}"
            )
        self._commit(given, handled)

    def _commit(self, given: PeerInput | None, handled: InputResult) -> None:
        """Save the result of an input, and act on it only after that."""
        update = self._make_journal_update(given, handled)
        numbers = self.journal.save(self.study, update)
        self.host.commit(handled)
        self._apply_journal_update(update, numbers, handled)

    def _convert_input(self, given: PeerInput, now: datetime) -> Input | SentMessage:
        match given:
            case MailboxMessage() | ReplyMessage():
                return convert_incoming(given, now)
            case AlarmsDue():
                return Tick()
            case _:
                return given

    def _make_journal_update(self, given: PeerInput | None, handled: InputResult) -> JournalUpdate:
        work = handled.work
        abort = next((item for item in work if isinstance(item, Abort)), None)
        is_finished = any(isinstance(item, Finish) for item in work) and self.status == "agreed"
        return JournalUpdate(
            dump(handled.state),
            cursor=given.number if isinstance(given, MailboxMessage) else None,
            messages=tuple(item for item in work if isinstance(item, OutgoingMessage)),
            dropped_question=given.question if isinstance(given, Refused) else None,
            delivered_numbers=tuple(self.delivered_numbers),
            alarms=tuple(
                -(-(item.when - _EPOCH) // _MILLISECOND)
                for item in work
                if isinstance(item, WakeAt)
            ),
            fired_alarms=given.alarms if isinstance(given, AlarmsDue) else (),
            started_tasks=tuple(item.task for item in work if isinstance(item, Compute)),
            ended_tasks=(given.task,) if isinstance(given, Computed | Broken) else (),
            status="aborted" if abort else "finished" if is_finished else None,
            reason=str(abort.error) if abort else None,
        )

    def _apply_journal_update(
        self, update: JournalUpdate, numbers: tuple[int, ...], handled: InputResult
    ) -> None:
        """Apply what was saved to the driver, and start what it asks for."""
        self.cursor = max(self.cursor, update.cursor or 0)
        self.delivered_numbers.clear()
        self.outbox = {
            number: message
            for number, message in self.outbox.items()
            if update.dropped_question is None or message.question != update.dropped_question
        }
        self.outbox.update(zip(numbers, update.messages, strict=True))
        self.alarms = (self.alarms - set(update.fired_alarms)) | set(update.alarms)
        self.tasks = (self.tasks - set(update.ended_tasks)) | set(update.started_tasks)
        self.status, self.reason = update.status or self.status, update.reason or self.reason
        self.outbox_changed.set()
        self._fire_due_alarms()
        for item in handled.work:
            match item:
                case Compute():
                    self._require_computation().begin(self.host.name, item)
                case Feed():
                    self._require_computation().feed(self.host.name, item)
                case Finish(result):
                    self.result = result
                case Abort(error):
                    self.outbox.clear()
                    self.alarms.clear()
                    self.tasks.clear()
                    self.on_progress(f"given up: {error.what}")

    def _require_computation(self) -> JointComputation:
        if self.computation is None:
            raise LocalProtocolError(
                "PROTO-001",
                "The study asks for a joint computation, and this process has no worker for it.",
            )
        return self.computation

    def _mark_delivered(self, number: int) -> None:
        message = self.outbox.pop(number, None)
        if message is not None:
            # Update the ledger before the outbox: nothing looks for a message that has left it.
            self.host.mark_acknowledged(message.question)
            self.delivered_numbers.append(number)
            # If other messages wait, the next save removes this one. To send it again after a
            # crash does no harm.
            if not self.outbox:
                self.journal.remove_messages(self.study, *self.delivered_numbers)
                self.delivered_numbers.clear()

    def _drop_unsent_answer(self, dropped: AnswerDropped) -> None:
        """Remove an answer that has not left from the outbox.

        If no answer has left and no other waits, the study was not answered: abort it.
        """
        question = dropped.question
        numbers = [n for n, message in self.outbox.items() if message.question == question]
        if (
            self.status == "finished"
            and len(numbers) == len(self.outbox)
            and not self.delivery.has_sent()
        ):
            error = not_sent_error(self.context.joined.title, self.study, dropped.why)
            self._commit(None, InputResult(self.host.state, (Abort(error),)))
            return
        self.on_progress(f"{question} was not sent: {dropped.why}")
        self.journal.remove_messages(self.study, *numbers, *self.delivered_numbers)
        self.delivered_numbers.clear()
        for number in numbers:
            del self.outbox[number]

    def _end_reading(self) -> None:
        """Stop waiting for questions; if none came, the study was not answered."""
        self.is_reading = False
        if self.status != "agreed":
            return
        if self.delivery.has_sent():
            self.journal.set_status(self.study, "over")
            self.status = "over"
        else:
            error = no_question_error(self.context.joined.title, self.study)
            self._commit(None, InputResult(self.host.state, (Abort(error),)))

    def _fire_due_alarms(self) -> None:
        """Fire alarms that are due, or set a timer for the next one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        now = (self.clock.now() - _EPOCH) // _MILLISECOND
        due = tuple(sorted(alarm for alarm in self.alarms if alarm <= now))
        if due:
            self.inputs.put_nowait(AlarmsDue(due))
        elif self.alarms:
            wait = min((min(self.alarms) - now) / 1000, CLOCK_CHECK_SECONDS)
            self.timer = asyncio.get_running_loop().call_later(wait, self._fire_due_alarms)

    async def _run_guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task; an error in it ends the run."""
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.inputs.put_nowait(error)

    async def _poll_messages(self) -> None:
        """Poll messages until the study has ended and no message is left."""
        n_empty = n_early = 0
        now = asyncio.get_running_loop().time
        while n_empty < 2:
            started = now()
            page = await self.context.retry(partial(self.delivery.poll_messages, self.cursor))
            new = [queued for queued in page.letters if queued.number > self.cursor]
            for queued in new:
                self.inputs.put_nowait(MailboxMessage(queued.number, queued.payload))
            # The next poll acknowledges these messages: they have to be saved first.
            await self.inputs.join()
            # The coordinator writes the last messages and the end together, but a poll may read
            # them one after the other.
            n_empty = n_empty + 1 if page.status != "open" and not new else 0
            # A coordinator waits before it answers that there is nothing new. Poll one that does
            # not wait less and less often.
            is_early = page.status == "open" and not new and now() - started < MIN_POLL_SECONDS
            n_early = n_early + 1 if is_early else 0
            if n_early:
                await self.context.client.back_off(n_early)
        self.inputs.put_nowait(StudyEnded(page.status))

    async def _read_on_schedule(self, times: ReadingTimes) -> None:
        sleep, read = self.context.client.sleep, partial(self._run_guarded, self._read_once)
        await run_reads(times, self.clock, sleep, read)
        self.inputs.put_nowait(ReadingEnded())

    async def _read_once(self) -> None:
        """Read messages once; a failure is reported, and the next read follows at its time."""
        try:
            messages = await self.delivery.read_messages(self.host.state)
        except TransportError as error:
            report_retry(self.on_progress, error)
        except RefusedError as error:
            self.on_progress(f"refused by the coordinator ({error.code}): {error.what}")
        else:
            for message in messages:
                self.inputs.put_nowait(message)

    async def _send_in_order(self) -> None:
        """Deliver the messages of the outbox one after the other."""
        while True:
            await self.inputs.join()
            if not self.outbox:
                self.outbox_changed.clear()
                await self.outbox_changed.wait()
                continue
            await self._deliver(*next(iter(self.outbox.items())))

    async def _send_concurrently(self) -> None:
        """Deliver each answer of the outbox in its own task."""
        started: set[str] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                await self.inputs.join()
                self.outbox_changed.clear()
                for number, message in self.outbox.items():
                    # An answer that a preview has drawn is in the outbox twice.
                    if message.question is not None and message.question not in started:
                        started.add(message.question)
                        deliver = partial(self._deliver, number, message)
                        group.create_task(self._run_guarded(deliver))
                await self.outbox_changed.wait()

    async def _deliver(self, number: int, outgoing: OutgoingMessage) -> None:
        """Deliver a message of the outbox, and report the outcome as an input."""
        question = outgoing.question
        outcome = await self.delivery.deliver(
            OutgoingAnswer(
                question,
                begin_send=partial(self._begin_send, outgoing),
                read_stored=lambda: self.account.list_unsent().get(question or ""),
                on_progress=self.on_progress,
            )
        )
        match outcome.status:
            case "withheld":
                return
            case "late":
                assert question is not None, "only answers have a time"
                self.inputs.put_nowait(AnswerDropped(question, outcome.why))
                return
            case "refused":
                assert outcome.error is not None
                if not self._accept_refusal(outgoing, outcome.error):
                    return
            case "arrived" | "left":
                if outcome.reply is not None:
                    self.inputs.put_nowait(outcome.reply)
                if question is not None:
                    self.on_progress(
                        f"{question} delivered"
                        if outcome.status == "arrived"
                        else f"{question} sent; not known whether it arrived"
                    )
        for other, message in self.outbox.items():
            if other == number or (self.delivery.is_concurrent and message.question == question):
                self.inputs.put_nowait(MessageDelivered(other))

    def _accept_refusal(self, outgoing: OutgoingMessage, error: RefusedError) -> bool:
        """Report that the coordinator refused a message; return whether to drop the message.

        Raise the error if it concerns the participant, or if the study cannot continue.
        """
        is_answer, is_over = outgoing.question is not None, error.status == 410
        if is_answer and error.code == "HOST-005":
            self.inputs.put_nowait(Abort(already_answered_error()))
            return False
        if not is_over and (
            error.code.startswith(_PARTICIPANT_ERRORS) or not (is_answer or self.delivery.can_poll)
        ):
            raise error
        self.on_progress(f"refused by the coordinator ({error.code}): {error.what}")
        if is_over and not self.delivery.can_poll:
            self.inputs.put_nowait(StudyEnded("closed"))
        return True

    def _begin_send(self, outgoing: OutgoingMessage) -> bytes | None:
        """Return the bytes to send; None if the ledger refuses, which the peer is given."""
        match self.host.begin_send(outgoing, self.clock.now(), ProtocolOutcome()):
            case SentMessage(payload=payload):
                return payload
            case Refused() as refused:
                self.inputs.put_nowait(refused)
            case Abort(error) as ending:
                # A file that cannot be written now may be writable later.
                self.inputs.put_nowait(error if isinstance(error, StoreError) else ending)
        return None
