"""Which studies a relay serves, and how far they have come: read from the coordinator, and believed only as far as it can be checked.

A study is served if its manifest is signed by the coordinator that was met first, has the digest under which it is listed, and takes
packets with tokens. The size of its packets is computed here. The time of a phase is what was first heard of it. A coordinator that says
something else later changes nothing; and one that lies about times gets no batch of fewer sealed packets than the manifest says. How many
of them are its own, made up to fill the batch, nobody can see who cannot open them.

A study of which the list says nothing any more takes nothing, and what it has is kept until its last phase is over. One that is said to
have ended is dropped, and is not served again under its digest.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.clock import Clock
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages import codec
from shoal.messages.measuring import check_values
from shoal.names import shown
from shoal.protocols.anonml.messages import MESSAGES, Ask
from shoal.relay.remote import RefusedError, Remote
from shoal.relay.senders import Senders
from shoal.relay.spool import Phase, Spool
from shoal.study.anonml import script_of
from shoal.study.anonymity import Window, has_tokens
from shoal.study.manifest import Manifest
from shoal.transport.batches import most_in_batch
from shoal.transport.packets import packet_size
from shoal.transport.sealing import sealed_size
from shoal.transport.signing import verify_published

MOST_VALUES = 1 << 18
"""Of a letter, as participants have it."""
OFTEN, SELDOM = timedelta(seconds=1), timedelta(seconds=15)
"""How soon a board is looked at again: while a phase is about to end or none is known, and while one is under way."""
ROOM = 10
"""So many times the packets of a phase are kept that people send who are as many as declared; more than that is a flood. From one address
they are kept once."""


@dataclass
class Followed:
    """A study that is served.

    Parameters
    ----------
    digest, manifest
        Which one.
    size, sealed_size
        Of its packets, before and after they are sealed.
    n_expected, most_in_part
        How many come in a phase where as many people take part as declared, and how many go into one request to the coordinator.
    n_phases, phases
        How many it has, and those that were heard of.
    cursor, look_at
        The last letter that was read, and when to look for others.
    senders
        How many packets have come from where.
    """

    digest: str
    manifest: Manifest
    size: int
    sealed_size: int
    n_expected: int
    most_in_part: int
    n_phases: int
    phases: tuple[Phase, ...]
    look_at: datetime
    cursor: int = 0
    senders: Senders = field(default_factory=Senders)

    @property
    def most_packets(self) -> int:
        """How many are kept."""
        return ROOM * self.n_expected

    def phase_at(self, now: datetime) -> int:
        """The phase of a packet that comes now: that which is open, or the next once nobody sends for that one any more."""
        if not self.phases:
            return 0
        last = self.phases[-1]
        return last.number if now < last.window.resends_until else last.number + 1


def followed(digest: str, data: bytes, phases: tuple[Phase, ...], now: datetime) -> Followed | None:
    """The study of a manifest's bytes, as far as nobody has to be believed; None for one that takes no sealed packets.

    Raises
    ------
    ShoalError
        It is no manifest, or that of another study.
    """
    manifest = Manifest.from_bytes(data)
    if manifest.digest.hex() != digest:
        raise RemoteProtocolError("MANIFEST-001", "A manifest is another study's than the one that it is listed under.")
    if manifest.study.protocol != "anonml" or not has_tokens(manifest) or manifest.gateway_key is None:
        return None
    size = packet_size(manifest)
    script, participation = script_of(manifest.study, manifest.digest), manifest.study.participation
    n_each = max(len(script.asked(phase, 0)) for phase in range(script.n_phases))
    n_expected = n_each * max(participation.minimum, participation.size)
    return Followed(digest, manifest, size, sealed_size(size), n_expected, most_in_batch(size), script.n_phases, phases, now)


class Following:
    """The studies of a coordinator that a relay serves.

    Parameters
    ----------
    remote, spool, clock
        The coordinator, where phases and its key are kept, and the time.
    tell
        Told what the operator should know, in a line; standard error by default.

    Attributes
    ----------
    served
        Studies by digest.
    has_looked
        Whether it is known which studies there are: not before the coordinator has answered once.
    """

    def __init__(self, remote: Remote, spool: Spool, clock: Clock, tell: Callable[[str], object] | None = None) -> None:
        self.served: dict[str, Followed] = {}
        self.has_looked = False
        self._remote, self._spool, self._clock = remote, spool, clock
        self._tell = tell or (lambda line: print(line, file=sys.stderr, flush=True))
        self._passed_over: set[str] = set()

    async def look(self) -> None:
        """Look at everything once; `TransportError` where the coordinator does not answer: then all is as it was."""
        listed = await self._remote.studies()
        are_open = {digest for digest, status in listed.items() if status == "open"}
        self._passed_over &= are_open
        for digest in sorted(are_open - set(self.served) - self._passed_over):
            await self._begin(digest)
        self.has_looked = True
        for digest in sorted({*self.served, *await asyncio.to_thread(self._spool.studies)} - are_open):
            await (self._end if digest in listed else self._hold)(digest)
        now = self._clock.now()
        for study in self.served.values():
            study.senders.begin(study.phase_at(now))
        for study in [one for one in self.served.values() if now >= one.look_at]:
            await self._read_board(study)

    async def _begin(self, digest: str) -> None:
        try:
            published = await self._remote.published(digest)
            verify_published(published.key, bytes.fromhex(digest), published.signature)
            if await asyncio.to_thread(self._spool.pinned, published.key) != published.key:
                raise RemoteProtocolError("AUTH-004", "The coordinator has another key than when this spool was begun.")
            if await asyncio.to_thread(self._spool.has_ended, digest):
                raise RemoteProtocolError("HOST-002", "It has ended before, as the coordinator said, and what was sent is forgotten.")
            phases = await asyncio.to_thread(self._spool.phases, digest)
            study = await asyncio.to_thread(followed, digest, published.manifest, phases, self._clock.now())
        except (RemoteProtocolError, SpecError) as error:
            self._passed_over.add(digest)
            self._tell(f"relay: study {digest[:12]} is not served: {shown(error.what)}")
            return
        if study is None:
            self._passed_over.add(digest)
        else:
            self.served[digest] = study

    async def _read_board(self, study: Followed) -> None:
        try:
            found = await self._remote.board(study.digest, study.cursor)
        except RefusedError:
            return  # the list will say whether it is there
        for letter in found.letters:
            ask = _ask_in(letter.payload, study.manifest.digest)
            if ask is not None and ask.phase < study.n_phases and ask.opened < ask.closes:
                await asyncio.to_thread(self._spool.keep_phase, study.digest, ask.phase, Window(ask.opened, ask.closes))
            study.cursor = max(study.cursor, letter.number)
        study.phases = await asyncio.to_thread(self._spool.phases, study.digest)
        now = self._clock.now()
        is_under_way = bool(study.phases) and now < study.phases[-1].window.resends_until
        wait = min(SELDOM, study.phases[-1].window.resends_until - now) if is_under_way else OFTEN
        study.look_at = now + wait
        if found.status != "open":
            await self._end(study.digest)

    async def _hold(self, digest: str) -> None:
        """A study that is not listed takes nothing for now, and has ended when its last phase is over."""
        self.served.pop(digest, None)
        phases = await asyncio.to_thread(self._spool.phases, digest)
        if phases and self._clock.now() >= max(phase.window.closes for phase in phases):
            await self._end(digest)

    async def _end(self, digest: str) -> None:
        """A study that has ended takes nothing any more."""
        self.served.pop(digest, None)
        await asyncio.to_thread(self._spool.drop_study, digest)


def _ask_in(payload: bytes, study: bytes) -> Ask | None:
    """The opening of a phase, if a letter is one."""
    try:
        check_values(payload, MOST_VALUES)
        message = codec.decode(payload, MESSAGES, study)
    except RemoteProtocolError:
        return None
    return message if isinstance(message, Ask) else None
