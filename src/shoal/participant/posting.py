"""The wire of people who answer with tokens: each packet leaves at a time of its own, on a connection of its own, as the same bytes always.

=============================  =====================================================================================================
when                           what
=============================  =====================================================================================================
drawn over the window          the packet leaves; before the first one the list of members is read, which must have one's own key
once acknowledged              without a relay it has arrived, and that is kept to oneself until later: at a time drawn between
                               ``collects_until`` and ``resends_until`` nothing is left to do. A relay keeps it, and hands all over
                               together
after ``collects_until``       the coordinator's list is read; a packet that it does not have leaves once more, at a time drawn anew
after ``resends_until``        the list is read for the last time
=============================  =====================================================================================================

A packet whose time passes while nobody runs is given another one, drawn over what is left. One that has not left until
``resends_until`` never does: it would come alone.

Privacy
-------
The participant's own clock and draws decide when a packet leaves; by the time nobody can tell whose it is, if others' clocks are not
far off theirs. Meanwhile the board is read, and the coordinator may see by the times that the one who reads is the one who registered: so
nothing about the reading changes as a packet leaves or is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from shoal.clock import Clock
from shoal.entropy import Entropy
from shoal.errors import TransportError
from shoal.messages.codec import decode
from shoal.names import counted
from shoal.participant.client import Client, RefusedError
from shoal.participant.objections import not_a_member
from shoal.participant.packets import Minted, Packets, name_of
from shoal.participant.wires import Anonymous
from shoal.protocols.anonml.messages import MESSAGES, Answer
from shoal.study.anonymity import Slots, Window
from shoal.study.manifest import Manifest

Fate = Literal["arrived", "left", "late", "withheld"]
"""Of a packet: the coordinator has it; it has left and is not known to have arrived; it never leaves; its owner's ledger keeps it."""

LONGEST_LOOK = 30.0
"""Seconds after which the clock is looked at again: it may have been put forward or back meanwhile."""

NAME_BYTES = 32
_DIRECT, _RELAYED = "direct", "ohttp"
_MILLISECOND = timedelta(milliseconds=1)
_SECOND = "%Y-%m-%d %H:%M:%S"
_OVERSLEPT = timedelta(seconds=5)
"""So late after its time a packet does not leave, but at another one."""


@dataclass(frozen=True)
class Carried:
    """An answer that is to be carried to the aggregator.

    Parameters
    ----------
    question, payload
        What was asked, and the stored answer.
    state
        Tells the peer's state, which knows the windows of phases that were opened.
    may_leave
        Is called when the packet is about to leave: counts it as spent, and says whether it may.
    over
        Is set once the study has ended.
    tell
        Is told what goes on.
    """

    question: str
    payload: bytes
    state: Callable[[], Any]
    may_leave: Callable[[], bool]
    over: asyncio.Event
    tell: Callable[[str], None]

    def window(self, study: bytes) -> Window | None:
        """The window of the answer's phase, once that was opened."""
        answer = decode(self.payload, MESSAGES, study)
        assert isinstance(answer, Answer)
        return next((Window(ask.opened, ask.closes) for ask in self.state().heard if ask.phase == answer.phase), None)


class Crowd:
    """Those among whom a participant hides: the members of the study's scope, read once before anything leaves.

    Parameters
    ----------
    client, manifest, key
        The coordinator over connections that are apart, the study, and the participant's own key.
    """

    def __init__(self, client: Client, manifest: Manifest, key: bytes) -> None:
        self._client, self._manifest, self._key = client, manifest, key
        self._n_places = Slots(manifest).n_places
        self._lock, self._is_read = asyncio.Lock(), False

    async def check(self, tell: Callable[[str], None]) -> None:
        """See that the way is one of the study's, and the participant a member of it, and tell how many there are.

        Raises
        ------
        ConsentError
            ``CONSENT-001``: the participant is not on the list.
        TransportError
            That cannot be found out now, and is to be tried again.
        """
        async with self._lock:
            if self._is_read:
                return
            study = self._manifest.digest.hex()
            await self._client.via.check(self._manifest)
            members = (await self._client.members(study)).keys
            if self._key not in members:
                raise not_a_member(study, len(members))
            tell(self._words(len(members)))
            self._is_read = True

    def _words(self, n: int) -> str:
        """What is told by what is sent, beside the answer."""
        places = f", and in which of {counted(self._n_places, 'place')} of the study: you hide among those in yours"
        said = f"what you send says that it is from one of them{'' if self._n_places == 1 else places}"
        address = "; it comes from your address, which the coordinator sees" if self._client.via.name == _DIRECT else ""
        return f"you are one of {counted(n, 'member')}; {said}{address}"


@dataclass(frozen=True)
class Posted(Anonymous):
    """Packets with tokens, each at its own time."""

    packets: Packets
    crowd: Crowd
    clock: Clock
    entropy: Entropy

    async def carry(self, carried: Carried) -> Fate:
        """Bring an answer to the aggregator, from wherever an earlier run has left off; how that ended."""
        while (window := carried.window(bytes.fromhex(self.study))) is None:
            if not await self._until(self.clock.now() + timedelta(seconds=1), carried):
                return "late"
        due = self._due(window)
        minted = self.packets.find(carried.question)
        if minted is None:
            if due is None:
                return "late"
            minted = self.packets.answer(carried.question, carried.payload, due)
        elif minted.standing in ("minted", "leaving") and minted.due < self.clock.now():
            if due is None:
                return "late" if minted.standing == "minted" else "left"
            self.packets.put_off(carried.question, due)
            minted = self.packets.answer(carried.question, carried.payload, due)
        if minted.standing in ("minted", "leaving"):
            fate = await self._leave(minted, carried, window)
            if fate != "left":
                return fate
            minted = self.packets.answer(carried.question, carried.payload, minted.due)
        if minted.standing == "seen":
            return "arrived"
        if minted.standing == "sent" and minted.via != _RELAYED:
            # Whoever stops reading the board as a packet arrives is known to have sent it.
            quiet = self._quiet(window)
            carried.tell(
                f"{carried.question} is with the coordinator; goes on until {quiet:{_SECOND}} UTC, so that the end does not tell when"
            )
            await self._until(quiet, carried)
            return "arrived"
        return await self._look_after(minted, carried, window)

    def _due(self, window: Window) -> datetime | None:
        """A time to leave at, drawn over what is left of the window; None where nothing is."""
        begin = max(self.clock.now(), window.opened)
        end = next((end for end in (window.collects_until, window.resends_until) if begin < end), None)
        return None if end is None else self._between(begin, end)

    def _quiet(self, window: Window) -> datetime:
        """A time that says nothing of when a packet has left: drawn over a part of the window that has not begun, while there is one."""
        collects, resends, closes, now = window.collects_until, window.resends_until, window.closes, self.clock.now()
        later = (part for part in ((collects, resends), (resends, closes)) if now < part[0])
        return self._between(*next(later, (now, max(now, closes))))

    def _between(self, begin: datetime, end: datetime) -> datetime:
        return begin + self.entropy.below(max(1, (end - begin) // _MILLISECOND)) * _MILLISECOND

    async def _leave(self, minted: Minted, carried: Carried, window: Window) -> Fate:
        """Wait for the time of a packet, and let it leave."""
        if minted.standing == "minted":
            carried.tell(f"{carried.question} is drawn, and leaves at {minted.due:{_SECOND}} UTC: a time of its own")
        due: datetime | None = minted.due
        while due is not None and await self._until(due, carried) and self.clock.now() >= due + _OVERSLEPT:
            # The machine was asleep: whoever sends as it wakes up is known by the time.
            due = self._due(window)
            if due is not None:
                self.packets.put_off(carried.question, due)
        if due is None or carried.over.is_set():
            return "late" if minted.standing == "minted" else "left"
        if await self._try(partial(self.crowd.check, carried.tell), carried, window.resends_until) is None:
            return "late" if minted.standing == "minted" else "left"
        if not carried.may_leave():
            return "withheld"
        self.packets.note(carried.question, "leaving")
        if await self._post(minted, carried, window):
            self.packets.note(carried.question, "sent")
            if self.client.via.name == _RELAYED:
                until = next((end for end in (window.collects_until, window.resends_until) if self.clock.now() < end), window.closes)
                carried.tell(f"{carried.question} is with the relay, which hands all packets over together at {until:{_SECOND}} UTC")
        return "left"

    async def _post(self, minted: Minted, carried: Carried, window: Window) -> bool:
        """Give a packet away until it is acknowledged; False where the window ends before that."""
        sealed, via = self.packets.sealed(minted, self.client.via), self.client.via
        return await self._try(lambda: via.post_packet(self.study, sealed, self.client), carried, window.resends_until) is not None

    async def _look_after(self, minted: Minted, carried: Carried, window: Window) -> Fate:
        """See whether a packet that has left has arrived; where not, let it leave once more."""
        collects, resends, closes = window.collects_until, window.resends_until, window.closes
        if minted.due < collects and self.clock.now() < resends:
            # All come to look at times of their own, when the relay has had time to hand over.
            await self._until(self._between(collects + (resends - collects) / 4, collects + (resends - collects) / 2), carried)
            if await self._is_seen(minted, carried, resends):
                return "arrived"
            if not carried.over.is_set() and self.clock.now() < resends:
                carried.tell(f"{carried.question} has not arrived, and leaves once more")
                await self._until(self._between(self.clock.now(), resends), carried)
            # In an earlier run it may have left another way, or among other members.
            is_late = carried.over.is_set() or self.clock.now() >= resends
            if not is_late and await self._try(partial(self.crowd.check, carried.tell), carried, resends) is not None:
                # Who acknowledged it before does not speak for whoever it is given to now.
                self.packets.note(carried.question, "leaving")
                if await self._post(minted, carried, window):
                    self.packets.note(carried.question, "sent")
        await self._until(self._between(resends + (closes - resends) / 4, resends + (closes - resends) * 3 / 4), carried)
        return "arrived" if await self._is_seen(minted, carried, closes) else "left"

    async def _is_seen(self, minted: Minted, carried: Carried, until: datetime) -> bool:
        """Whether the coordinator's list has a packet, asked until a moment."""
        received = await self._try(lambda: self.client.received(self.study), carried, until)
        if received is None:
            return False
        name, names = name_of(minted), received.names
        is_seen = any(names[i : i + NAME_BYTES] == name for i in range(0, len(names), NAME_BYTES))
        if is_seen:
            self.packets.note(carried.question, "seen")
        return is_seen

    async def _try(self, ask: Callable[[], Awaitable[Any]], carried: Carried, until: datetime) -> Any:
        """An answer, asked for until there is one; None where there is none at a given moment, or once the study is over."""
        n = 0
        while True:
            try:
                answer = await ask()
                return True if answer is None else answer
            except TransportError as error:
                waits(carried.tell, error)
            except RefusedError as error:
                # A list that is not there yet, or not any more, is asked for again; a packet that is refused for good is not.
                if error.code != "HOST-002" and not carried.over.is_set() and self.clock.now() < until:
                    raise
            if carried.over.is_set() or self.clock.now() >= until:
                return None
            await self.client.pause(n)
            n += 1

    async def _until(self, when: datetime, carried: Carried) -> bool:
        """Wait for a moment by the participant's clock; False where the study is over before."""
        while not carried.over.is_set() and (left := (when - self.clock.now()).total_seconds()) > 0:
            waiting = [asyncio.ensure_future(self.client.sleep(min(left, LONGEST_LOOK))), asyncio.ensure_future(carried.over.wait())]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waiting:
                    one.cancel()
        return not carried.over.is_set()


def waits(tell: Callable[[str], None], error: TransportError) -> None:
    """Say that somebody is asked again."""
    tell(f"trying again ({error.code}): {error.what}")
