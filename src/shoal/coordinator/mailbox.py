"""Outgoing messages with long polling.

Routes and the dashboard call `Mailbox`. The scheduler calls `ChangeNotifier.notify` after each
write.

A message that this process writes wakes its long polls immediately. A message of another process
is found by polling the store: one query every `POLL_SECONDS` serves all requests that wait for a
study. A caller takes the version before it reads, so no change between the read and the wait is
missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from shoal.clock import Clock
from shoal.coordinator.authentication import compute_nonce_expiry, replayed_request_error
from shoal.coordinator.store.base import Store
from shoal.crypto.identity import Identity
from shoal.errors import RemoteProtocolError, StoreError
from shoal.transport.api import MessagePage, Poll, QueuedMessage
from shoal.transport.signing import sign_broadcast

POLL_SECONDS = 0.08


@dataclass(eq=False)
class _StudyWaiters:
    version: int = 0
    futures: set[asyncio.Future[None]] = field(default_factory=set)
    watcher: asyncio.Task[None] | None = None
    last_state: object = None


class ChangeNotifier:
    """Wake requests that wait for a change of a study.

    Parameters
    ----------
    read_state
        Return a value that differs after any change of a study in the store; runs in a thread.
    """

    def __init__(self, read_state: Callable[[str], object]) -> None:
        self._read_state = read_state
        self._studies: dict[str, _StudyWaiters] = {}
        self._is_closed = False

    @property
    def has_waiters(self) -> bool:
        """Whether any request waits."""
        return any(study.futures for study in self._studies.values())

    def version(self, study: str) -> int:
        """Return the number of changes so far; take it before you read messages."""
        return self._studies.setdefault(study, _StudyWaiters()).version

    def notify(self, study: str) -> None:
        """Wake all requests that wait for this study."""
        waiters = self._studies.setdefault(study, _StudyWaiters())
        waiters.version += 1
        for future in waiters.futures:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Wake all requests, and let no request wait from now on."""
        self._is_closed = True
        for study in list(self._studies):
            self.notify(study)

    async def wait(self, study: str, version: int, seconds: float) -> bool:
        """Wait for a change after ``version``; return False after the timeout or after `close`."""
        waiters = self._studies.setdefault(study, _StudyWaiters())
        if self._is_closed or waiters.version != version:
            return not self._is_closed
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.futures.add(future)
        if waiters.watcher is None:
            waiters.watcher = asyncio.create_task(self._watch(study, waiters))
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            waiters.futures.discard(future)
        return not self._is_closed

    async def _watch(self, study: str, waiters: _StudyWaiters) -> None:
        """Poll the store while requests wait.

        `last_state` is kept between two watches: every later read has seen at least that state.
        """
        try:
            while waiters.futures:
                await asyncio.sleep(POLL_SECONDS)
                try:
                    state = await asyncio.to_thread(self._read_state, study)
                except StoreError:
                    continue
                if state != waiters.last_state:
                    waiters.last_state = state
                    self.notify(study)
        finally:
            # The next request that waits starts a new watch.
            waiters.watcher = None


MOST_PAGE_BYTES = 1 << 22
"""Size of one page of messages; a single larger message is sent alone."""


class Mailbox:
    """Messages of all studies, and the requests of this worker that wait for them."""

    def __init__(self, store: Store, clock: Clock, executor: Executor) -> None:
        self.notifier = ChangeNotifier(self._read_version)
        self._store, self._clock, self._executor = store, clock, executor
        self._identity: Identity | None = None

    def sign_with(self, identity: Identity) -> None:
        """Sign messages to everyone in studies with tokens from now on."""
        self._identity = identity

    async def poll(self, study: str, name: str, poll: Poll, nonce: bytes) -> MessagePage:
        """Return messages to a participant and to everyone, as soon as there are any.

        Messages up to ``poll.after`` are acknowledged, and the participant's own ones deleted. A
        study that has ended may have messages left: poll until a page is empty. Raise
        ``AUTH-005`` if the request was received before.
        """
        is_new = await asyncio.get_running_loop().run_in_executor(
            self._executor,
            self._store.acknowledge,
            study,
            name,
            poll.after,
            nonce,
            compute_nonce_expiry(self._clock),
        )
        if not is_new:
            raise replayed_request_error()
        return await self.fetch(study, name, poll.after, poll.wait_seconds)

    async def fetch(self, study: str, name: str | None, after: int, wait: float) -> MessagePage:
        """Return messages after a number: to everyone, and to ``name`` unless it is None.

        Wait up to ``wait`` seconds for the first one.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            version = self.notifier.version(study)
            page = await loop.run_in_executor(self._executor, self._read_page, study, name, after)
            left = until - loop.time()
            if (
                page.letters
                or page.status != "open"
                or left <= 0
                or not await self.notifier.wait(study, version, left)
            ):
                return page

    def _read_page(self, study: str, name: str | None, after: int) -> MessagePage:
        # Read the status first. No message is written after the end of a study, so a page that
        # says "ended" misses none.
        record = self._store.find_study(study)
        if record is None:
            raise unknown_study_error()
        messages = self._store.list_messages(study, name, after, MOST_PAGE_BYTES)
        if record.scope is not None and name is None:
            messages = tuple(self._sign(study, message) for message in messages)
        return MessagePage(letters=messages, status=record.status)

    def _sign(self, study: str, message: QueuedMessage) -> QueuedMessage:
        """Return a message with the coordinator's signature, which is the same at every read."""
        assert self._identity is not None, "the service has started"
        signature = sign_broadcast(
            self._identity, bytes.fromhex(study), message.number, message.payload
        )
        return message.replace(signature=signature)

    def _read_version(self, study: str) -> object:
        record = self._store.find_study(study)
        return self._store.find_last_number(study), None if record is None else record.status


def unknown_study_error() -> RemoteProtocolError:
    """Make the error for a study that this coordinator does not have."""
    return RemoteProtocolError("HOST-001", "The coordinator does not have this study.")
