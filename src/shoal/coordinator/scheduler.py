"""Lease studies and run their aggregators.

Two parts: `apply_inputs`, a pure function from a loaded snapshot to the result that is saved, and
`StudyScheduler`, the loop of one worker that leases, loads, applies and saves whenever a study is
due. `CoordinatorService` starts the loop. Any number of workers may run it with one store:

- A lease is renewed while a study is stepped. A worker that loses its lease, because it slept or
  was cut off, saves nothing.
- Each study has its own task, so that a slow study does not delay others. A study that cannot be
  stepped is retried with growing pauses, and each failure is printed.

`apply_inputs` is the coordinator's part of the contract in `shoal.protocols.base`. Many inputs are
applied with one load and one save of the state. They are saved together, so after a crash in
between none of them counts as received, and they are applied again.

- Received messages come first, then alarms that are due: an answer that was accepted before a
  deadline is in time, even if it is applied later.
- A message that breaks the rules is counted by its code, and the name that it used is free again.
- If an aggregator fails on a message by its own fault, this message alone is lost and counted as
  ``PROTO-005``. If it fails at its start or at a deadline, the study fails and states the reason.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from shoal.clock import Clock, from_milliseconds, to_milliseconds
from shoal.coordinator.cache import LRUCache
from shoal.coordinator.mailbox import ChangeNotifier
from shoal.coordinator.store.base import (
    PendingInput,
    StepResult,
    Store,
    StudyOutcome,
    StudyRecord,
    StudySnapshot,
)
from shoal.coordinator.studies import StudyHandles, encode_result, make_hosting
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.messages.codec import decode, dump, load
from shoal.protocols.driver import ANONYMOUS_PREFIX, OutgoingMessage, Work, run_input
from shoal.protocols.effects import EVERYONE, Abort, Finish, Input, Received, Started, Tick, WakeAt
from shoal.protocols.machines import Aggregator
from shoal.study.handle import StudyHandle
from shoal.study.manifest import shorten_digest

FAULT_CODE = "PROTO-005"
_MOST_NEW_ALARMS = 100
"""Alarms for the present moment that one batch fires; further ones are stored and due next."""


def apply_inputs(
    aggregator: Aggregator[Any],
    snapshot: StudySnapshot,
    now: int,
    entropy: Entropy,
    names: Collection[str],
    encode_result: Callable[[object], bytes],
) -> StepResult:
    """Run all steps that are due, and return what the store has to save.

    Parameters
    ----------
    now
        Milliseconds since 1970.
    names
        Participants that the aggregator may write to by name.
    encode_result
        Encodes the aggregator's result.
    """
    batch = _InputBatch(
        aggregator, snapshot.state, from_milliseconds(now), entropy, names, encode_result
    )
    if snapshot.state is None:
        batch.handle_event(Started())
    for i, pending in enumerate(snapshot.inputs):
        if batch.outcome is not None:
            break
        batch.handle_message(pending, i)
    for alarm in snapshot.alarms:
        if batch.outcome is not None:
            break
        batch.fire_alarm(alarm)
    n_fired = 0
    while batch.outcome is None and n_fired < _MOST_NEW_ALARMS and batch.fire_new_alarms():
        n_fired += 1
    return batch.make_result()


class _InputBatch:
    """The aggregator's state between inputs, and the effects so far."""

    def __init__(
        self,
        aggregator: Aggregator[Any],
        state: bytes | None,
        now: datetime,
        entropy: Entropy,
        names: Collection[str],
        encode_result: Callable[[object], bytes],
    ) -> None:
        initial = aggregator.initial_state()
        self.state = initial if state is None else load(state, type(initial))
        self.outcome: StudyOutcome | None = None
        self._aggregator, self._now, self._entropy = aggregator, now, entropy
        self._names, self._encode_result = names, encode_result
        self._input_numbers: list[int] = []
        self._freed_names: list[bytes] = []
        self._messages: list[tuple[str | None, bytes]] = []
        self._alarms: set[int] = set()
        self._fired_alarms: list[int] = []
        self._rejection_counts: Counter[str] = Counter()

    def handle_event(self, event: Input) -> None:
        """Apply an input that has no sender; a failure ends the study."""
        try:
            self._run_input(event)
        except Exception as error:
            self._rejection_counts[FAULT_CODE] += 1
            self.outcome = StudyOutcome("failed", reason=_describe_failure(error))

    def handle_message(self, pending: PendingInput, position: int) -> None:
        """Apply a message; a failure rejects this message alone."""
        self._input_numbers.append(pending.number)
        try:
            message = decode(pending.payload, self._aggregator.messages, self._aggregator.study)
            self._run_input(
                Received(
                    f"{ANONYMOUS_PREFIX}{position}" if message.is_anonymous else pending.sender,
                    message,
                )
            )
        except Exception as error:
            self._rejection_counts[
                error.code if isinstance(error, RemoteProtocolError) else FAULT_CODE
            ] += 1
            self._freed_names += [] if pending.name is None else [pending.name]

    def fire_alarm(self, alarm: int) -> None:
        self._fired_alarms.append(alarm)
        self.handle_event(Tick())

    def fire_new_alarms(self) -> bool:
        """Fire alarms that this batch has set for now; return whether there were any.

        The next batch might miss them if the clock is set back in between.
        """
        due = {alarm for alarm in self._alarms if alarm <= to_milliseconds(self._now)}
        self._alarms -= due
        if due:
            self.handle_event(Tick())
        return bool(due)

    def make_result(self) -> StepResult:
        return StepResult(
            dump(self.state),
            tuple(self._input_numbers),
            tuple(self._freed_names),
            tuple(self._messages),
            tuple(sorted(self._alarms)),
            tuple(self._fired_alarms),
            dict(self._rejection_counts),
            self.outcome,
        )

    def _run_input(self, event: Input) -> None:
        """Apply one input; if anything fails, this batch does not change."""
        state, work = run_input(self._aggregator, self.state, event, self._now, self._entropy, None)
        messages = [
            self._address_message(item) for item in work if isinstance(item, OutgoingMessage)
        ]
        outcome = self._find_outcome(work)
        self.state, self.outcome = state, outcome
        self._messages += messages
        self._alarms |= {to_milliseconds(item.when) for item in work if isinstance(item, WakeAt)}

    def _address_message(self, message: OutgoingMessage) -> tuple[str | None, bytes]:
        if message.to != EVERYONE and message.to not in self._names:
            raise LocalProtocolError(
                "PROTO-001",
                f"The aggregator cannot send to {message.to!r:.60}, who does not take part.",
            )
        return None if message.to == EVERYONE else message.to, message.payload

    def _find_outcome(self, work: tuple[Work, ...]) -> StudyOutcome | None:
        for item in work:
            if isinstance(item, Finish):
                return StudyOutcome("done", self._encode_result(item.result))
            if isinstance(item, Abort):
                return StudyOutcome("failed", reason=_describe_failure(item.error))
        return None


def _describe_failure(error: Exception) -> str:
    """Return the public reason for a failed study.

    The text of an exception that is not shoal's is left out, because it may contain anything.
    """
    if isinstance(error, ShoalError):
        return error.what if error.why is None else f"{error.what} {error.why}"
    return f"The aggregator failed with {type(error).__name__}, by a fault in the protocol's code."


LEASE_SECONDS = 10.0
MOST_AT_ONCE = 1_000
"""Most messages of a study that are applied with one load and one save."""
GRACE_MILLISECONDS = 60_000
"""Longest delay of a deadline until all earlier messages are applied.

The limit keeps a flood of messages from delaying a deadline for ever.
"""
AWAITED_SECONDS, IDLE_SECONDS = 0.05, 0.5
"""Pause between two queries for work of other workers: while requests here wait, and otherwise."""
DDML_CHECK_SECONDS = 1.0
CHORES_SECONDS, TIDY_SECONDS = 1.0, 60.0
TIDY_SHARE = 4
"""Shortest pause between two rewrites of the store, as a multiple of the time that one takes."""
LONGEST_BACKOFF = 60.0
_MOST_CACHED_STUDIES = 256


@dataclass(frozen=True)
class CachedStudy:
    """A study with its aggregator, kept in memory between steps; it never changes."""

    record: StudyRecord
    handle: StudyHandle
    aggregator: Aggregator[Any] | None

    @classmethod
    def from_record(cls, record: StudyRecord, handle: StudyHandle) -> CachedStudy:
        return cls(record, handle, handle.make_aggregator(make_hosting(record)))


@dataclass(frozen=True)
class SchedulerHooks:
    """Calls from the scheduler into other parts of the worker.

    Parameters
    ----------
    end_ddml_if_due
        Returns the outcome of a DDML study, which has no aggregator; None while it is open.
    run_chores
        Called every second.
    """

    end_ddml_if_due: Callable[[StudyRecord], Awaitable[StudyOutcome | None]]
    run_chores: Callable[[], Awaitable[None]]


def apply_deadline(end: int, result: StepResult, now: int, *, is_new: bool) -> StepResult:
    """Return the result of a step for a study that closes at ``end``.

    A study that is still open then has failed. A new study gets an alarm for that time.
    """
    if result.outcome is not None:
        return result
    if now >= end:
        return replace(
            result,
            outcome=StudyOutcome(
                "failed",
                reason="The study closed before it was complete. Answers that were sent stay "
                "spent.",
            ),
        )
    return replace(result, alarms=tuple(sorted({*result.alarms, end}))) if is_new else result


class StudyScheduler:
    """The loop that steps studies, in one worker.

    Parameters
    ----------
    entropy
        Source of all randomness of the aggregators.
    holder
        Name of the worker on leases.
    notifier
        Wakes requests that wait for messages.
    """

    def __init__(
        self,
        store: Store,
        handles: StudyHandles,
        clock: Clock,
        entropy: Entropy,
        holder: str,
        notifier: ChangeNotifier,
        hooks: SchedulerHooks,
    ) -> None:
        self._store, self._clock, self._entropy, self._holder = store, clock, entropy, holder
        self._handles, self._notifier, self._hooks = handles, notifier, hooks
        self._wake_event = asyncio.Event()
        self._cached_studies: LRUCache[str, CachedStudy] = LRUCache(_MOST_CACHED_STUDIES)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._tidying: asyncio.Task[None] | None = None
        self._next_tidy = 0.0
        self._is_stopping = threading.Event()

    def wake(self) -> None:
        """Look for due studies now."""
        self._wake_event.set()

    async def run(self) -> None:
        """Step studies that are due, until cancelled."""
        loop = asyncio.get_running_loop()
        last_chores = loop.time()
        self._next_tidy = loop.time() + TIDY_SECONDS
        while True:
            self._wake_event.clear()
            if self._is_time(""):
                try:
                    for study in await asyncio.to_thread(self._store.list_due, self._now()):
                        self._start_task(study)
                    if loop.time() - last_chores >= CHORES_SECONDS:
                        last_chores = loop.time()
                        await self._hooks.run_chores()
                    if self._tidying is None and loop.time() >= self._next_tidy:
                        self._tidying = asyncio.create_task(self._tidy())
                    self._failures.pop("", None)
                except Exception as error:
                    self._back_off("", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    AWAITED_SECONDS if self._notifier.has_waiters else IDLE_SECONDS
                ):
                    await self._wake_event.wait()

    async def finish(self, seconds: float) -> None:
        """Wait up to some seconds for running steps; other workers repeat steps that are cut."""
        self._is_stopping.set()
        if self._tidying is not None:
            await asyncio.wait([self._tidying], timeout=seconds)
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=seconds)
        for task in self._running.values():
            task.cancel()

    def _now(self) -> int:
        return to_milliseconds(self._clock.now())

    async def _tidy(self) -> None:
        """Tidy the store in a thread; steps of studies continue."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            await asyncio.to_thread(self._store.tidy, self._now(), self._pause_rewrite)
        except Exception as error:
            self._back_off("", error)
        finally:
            self._tidying = None
            self._next_tidy = loop.time() + max(TIDY_SECONDS, TIDY_SHARE * (loop.time() - begun))

    def _pause_rewrite(self, seconds: float) -> bool:
        """Sleep as long as a transaction took, for other writers; return whether to stop."""
        return self._is_stopping.wait(seconds)

    def _is_time(self, study: str) -> bool:
        return asyncio.get_running_loop().time() >= self._not_before.get(study, 0.0)

    def _start_task(self, study: str) -> None:
        if study not in self._running and self._is_time(study):
            self._running[study] = asyncio.create_task(self._run_guarded(study))

    async def _run_guarded(self, study: str) -> None:
        try:
            await self.run_due(study)
            self._failures.pop(study, None)
        except Exception as error:
            self._back_off(study, error)
        finally:
            del self._running[study]
            # No task was started for inputs that arrived since the last load.
            self.wake()

    def _back_off(self, study: str, error: Exception) -> None:
        n = self._failures[study] = self._failures.get(study, 0) + 1
        seconds = min(LONGEST_BACKOFF, 0.25 * 2**n)
        self._not_before[study] = asyncio.get_running_loop().time() + seconds
        what = (
            f"Study {shorten_digest(bytes.fromhex(study))} could not be stepped"
            if study
            else "The store could not be queried for due studies"
        )
        # Print the code or the type only: the text of an exception may contain anything.
        kind = error.code if isinstance(error, ShoalError) else type(error).__name__
        print(f"{what} ({kind}). Retrying in {seconds:g} s.", file=sys.stderr)

    async def run_due(self, study: str) -> None:
        """Step a study until nothing is due, unless another worker has its lease."""
        cached = self._cached_studies.get(study)
        if cached is None:
            record = await asyncio.to_thread(self._store.find_study, study)
            if record is None:
                return
            cached = self._cached_studies.put(
                study, await asyncio.to_thread(self._open_study, record)
            )
        if cached.aggregator is None:
            await self._end_ddml_study(cached)
            return
        term = await asyncio.to_thread(self._take_lease, study)
        if term is None:
            return
        renewal = asyncio.create_task(self._keep_lease(study, term))
        try:
            while (
                result := await asyncio.to_thread(self._run_batch, cached, cached.aggregator, term)
            ) is not None:
                self._notifier.notify(study)
                if result.outcome is not None:
                    self._cached_studies.drop(study)
                    break
        finally:
            renewal.cancel()
            await asyncio.to_thread(self._store.release, study, self._holder)

    def _open_study(self, record: StudyRecord) -> CachedStudy:
        return CachedStudy.from_record(record, self._handles.open(record))

    async def _end_ddml_study(self, cached_study: CachedStudy) -> None:
        study = cached_study.record.digest
        self._not_before[study] = asyncio.get_running_loop().time() + DDML_CHECK_SECONDS
        outcome = await self._hooks.end_ddml_if_due(cached_study.record)
        if outcome is not None:
            await asyncio.to_thread(self._store.end, study, outcome)
            self._cached_studies.drop(study)
            self._notifier.notify(study)

    def _take_lease(self, study: str) -> int | None:
        now = self._now()
        return self._store.lease(study, self._holder, now, now + round(1000 * LEASE_SECONDS))

    async def _keep_lease(self, study: str, term: int) -> None:
        """Renew a lease until this is cancelled or another worker has the lease."""
        is_ours = True
        while is_ours:
            await asyncio.sleep(LEASE_SECONDS / 3)
            with suppress(ShoalError):
                is_ours = await asyncio.to_thread(self._renew_lease, study, term)

    def _renew_lease(self, study: str, term: int) -> bool:
        return self._store.renew(
            study, self._holder, term, self._now() + round(1000 * LEASE_SECONDS)
        )

    def _run_batch(
        self, cached_study: CachedStudy, aggregator: Aggregator[Any], term: int
    ) -> StepResult | None:
        """Load, apply and save once; return None if nothing was due or the lease was lost."""
        handle, study, now = cached_study.handle, cached_study.record.digest, self._now()
        snapshot = self._store.load(study, now, MOST_AT_ONCE)
        if len(snapshot.inputs) == MOST_AT_ONCE:
            late = tuple(alarm for alarm in snapshot.alarms if alarm < now - GRACE_MILLISECONDS)
            snapshot = replace(snapshot, alarms=late)
        if snapshot.state is not None and not snapshot.inputs and not snapshot.alarms:
            return None
        aggregator = handle.expect_answers(aggregator, *self._store.count_expected(study))
        result = apply_inputs(
            aggregator,
            snapshot,
            now,
            self._entropy,
            handle.participant_names,
            partial(encode_result, handle),
        )
        closes = handle.study.participation.closes
        if closes is not None:
            result = apply_deadline(
                to_milliseconds(closes) + 2 * GRACE_MILLISECONDS,
                result,
                now,
                is_new=snapshot.state is None,
            )
        return result if self._store.save(study, term, result) else None
