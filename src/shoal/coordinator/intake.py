"""How messages of a study get in: opened, checked for the way by which they came, and accepted together with all that came meanwhile.

A durable write takes milliseconds, however much is written. So while one is under way what arrives is collected, and the next one takes
it all: a coordinator under load acknowledges thousands a second, and an idle one without delay.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import Executor

from shoal.coordinator.aggregators import messages_of
from shoal.coordinator.publishing import ticket_digest
from shoal.coordinator.refusals import Refusals
from shoal.coordinator.store.base import Accepted, Incoming, Store
from shoal.errors import RemoteProtocolError
from shoal.messages import codec
from shoal.messages.base import Message
from shoal.messages.measuring import check_values
from shoal.protocols.anonml.messages import Answer
from shoal.study.manifest import Manifest
from shoal.transport.batching import Batched

MOST_AT_ONCE = 1_000
MOST_VALUES, MOST_ANONYMOUS_VALUES = 1 << 14, 1 << 6
"""Of a message, the numbers of an `Array` counting as one: what bounds the time and the memory that a stranger's bytes take to read."""

_LARGE = 1 << 16
_REFUSED: dict[Accepted, str] = {"unissued": "AUTH-002", "conflict": "HOST-005", "over": "HOST-002"}
"""Why an anonymous submission is not in; what came again is in."""


class Intake:
    """The way into one study.

    Parameters
    ----------
    store, manifest
        Where, and which study.
    executor
        Where the store's calls run.
    expires
        Until when a nonce is remembered that comes now.
    refusals
        Where what is refused is counted.
    wake
        Called when there is something to fold in.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        executor: Executor,
        expires: Callable[[], int],
        refusals: Refusals,
        wake: Callable[[], None],
    ) -> None:
        self._store, self._study, self._digest = store, manifest.digest, manifest.digest.hex()
        self._registry = messages_of(manifest.study)
        self._is_bare = manifest.study.protocol == "ddml"
        self._executor, self._expires, self._refusals, self._wake = executor, expires, refusals, wake
        self._accept: Batched[Incoming, Accepted] = Batched(self._take, executor, MOST_AT_ONCE)

    async def message(self, name: str, payload: bytes, nonce: bytes) -> Accepted:
        """Accept a message of an enrolled participant; what became of it, once that is durable.

        Raises
        ------
        RemoteProtocolError
            ``MSG-``: it is no message of this study. ``PROTO-003``: it is not a participant's to send, or not by this way.
        """
        try:
            message = await self._open(payload, MOST_VALUES)
            if message.is_anonymous:
                raise RemoteProtocolError("PROTO-003", f"A {message.type_name} is sent anonymously, not under a name.")
        except RemoteProtocolError as error:
            self._refusals.count(self._digest, error.code)
            raise
        return await self._put(_incoming(name, message, payload, nonce=nonce))

    async def submit(self, payload: bytes) -> None:
        """Accept an anonymous message, or count why not; the sender is told nothing. `StoreError` where nothing could be stored."""
        try:
            message = await self._open(payload, MOST_ANONYMOUS_VALUES)
            if not isinstance(message, Answer):
                raise RemoteProtocolError("PROTO-003", f"A {message.type_name} is sent under a name, not anonymously.")
        except RemoteProtocolError as error:
            self._refusals.count(self._digest, error.code)
            return
        outcome = await self._put(_incoming("", message, payload, ticket=ticket_digest(message.ticket)))
        if outcome in _REFUSED:
            self._refusals.count(self._digest, _REFUSED[outcome])

    async def _open(self, payload: bytes, most_values: int) -> Message:
        """The message that a participant has sent. What participants send counts once and so has a name; nothing else has."""
        if self._is_bare:
            raise RemoteProtocolError("PROTO-003", "Devices of a ddml study send updates, not messages.")
        check_values(payload, most_values)
        if len(payload) > _LARGE:
            loop = asyncio.get_running_loop()
            message = await loop.run_in_executor(self._executor, codec.decode, payload, self._registry, self._study)
        else:
            message = codec.decode(payload, self._registry, self._study)
        if message.submission is None:
            raise RemoteProtocolError("PROTO-003", f"A {message.type_name} is the aggregator's to send.")
        return message

    async def _put(self, incoming: Incoming) -> Accepted:
        outcome = await self._accept(incoming)
        if outcome == "accepted":
            self._wake()
        return outcome

    def _take(self, arrived: list[Incoming]) -> list[Accepted]:
        """One transaction for all."""
        return list(self._store.accept(self._digest, arrived, self._expires()))


def _incoming(sender: str, message: Message, payload: bytes, *, nonce: bytes | None = None, ticket: bytes | None = None) -> Incoming:
    name = hashlib.sha256(codec.dumps((sender, message.type_name, message.submission))).digest()
    return Incoming(sender, payload, name, hashlib.sha256(payload).digest(), nonce, ticket)
