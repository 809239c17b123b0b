"""How anonymous packets with tokens get in: checked with all that came meanwhile, then accepted under the names of their pseudonyms.

===========  ==========================================================================================================================
code         why a packet is not in; it is counted under it, and the sender is told nothing
===========  ==========================================================================================================================
MSG-...      it is no packet of this study, or what is in it is no answer
ANONML-001   it answers another question than the one that follows from its pseudonym and place
TOKEN-001    its token does not verify: it is of no member, or of another study, slot or answer
HOST-005     another answer is in under its pseudonym
HOST-002     the study has ended
PROTO-003    it came by itself, or in too small a batch, and trust is ``shuffled``
===========  ==========================================================================================================================

What costs little is looked at first. A token takes about a millisecond, so that they are verified in a thread, a bounded number at a time,
in the order in which they came: whoever sends many bad ones keeps the others waiting for no longer than those take.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from shoal.coordinator.intake import MOST_ANONYMOUS_VALUES, MOST_AT_ONCE
from shoal.coordinator.refusals import Refusals
from shoal.coordinator.store.base import Accepted, Incoming, Store
from shoal.crypto.tokens import Presented, Verifier, pseudonym_of
from shoal.errors import RemoteProtocolError
from shoal.messages import codec
from shoal.messages.measuring import check_values
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import MESSAGES, Answer
from shoal.study.anonml import script_of
from shoal.study.anonymity import Slots, least_batch, name_of_pseudonym, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.batches import least_in_part
from shoal.transport.batching import Batched
from shoal.transport.forms import Taken
from shoal.transport.packets import Packet, packet_size
from shoal.transport.problems import over

MOST_TOKENS = 64
"""Most tokens that are verified at once: nothing else in the process may have to wait for longer than they take."""

_REFUSED: dict[Accepted, str] = {"conflict": "HOST-005", "over": "HOST-002"}
_BAD_TOKEN, _WRONG_WAY = "TOKEN-001", "PROTO-003"


@dataclass(frozen=True, slots=True)
class Refused:
    """A packet that is not let in, and why."""

    code: str


class PacketIntake:
    """The way into one study of AnonML for packets with tokens.

    Parameters
    ----------
    store, manifest
        Where, and which study.
    executor, verifying
        Where the store's calls run, and where tokens are verified.
    refusals
        Where what is refused is counted.
    wake
        Called when there is something to fold in.
    """

    def __init__(
        self, store: Store, manifest: Manifest, executor: Executor, verifying: Executor, refusals: Refusals, wake: Callable[[], None]
    ) -> None:
        assert manifest.issuer_key is not None
        self._store, self._study, self._digest = store, manifest.digest, manifest.digest.hex()
        self._script, self._slots = script_of(manifest.study, manifest.digest), Slots(manifest)
        self._size = packet_size(manifest)
        self._verifier = Verifier(manifest.issuer_key, scope_of(manifest))
        self._least = least_in_part(self._size, least_batch(manifest, 0)) if manifest.study.trust == "shuffled" else None
        self._executor, self._verifying, self._refusals, self._wake = executor, verifying, refusals, wake
        self._check: Batched[bytes, Incoming | Refused] = Batched(self._checked, verifying, MOST_TOKENS)
        self._accept: Batched[Incoming, Accepted] = Batched(self._take, executor, MOST_AT_ONCE)

    async def submit(self, packet: bytes) -> None:
        """Accept a packet, or count why not; the sender is told nothing. `StoreError` where nothing could be stored."""
        if self._least is not None:
            self._refusals.count(self._digest, _WRONG_WAY)
            return
        checked = await self._check(packet)
        if isinstance(checked, Refused):
            self._refusals.count(self._digest, checked.code)
            return
        self._note([await self._accept(checked)])

    async def batch(self, packets: Sequence[bytes]) -> Taken:
        """Accept packets that a relay hands over, all in one transaction; what became of them. Those that are not in are counted.

        Where trust is shuffled, and fewer of them are valid than a batch must have, none is in: whoever handed them over is told which
        are in the way, and may come again with the others.

        Raises
        ------
        RemoteProtocolError
            ``HOST-002``: the study has ended.
        """
        loop = asyncio.get_running_loop()
        checked: list[Incoming | Refused] = []
        for start in range(0, len(packets), MOST_TOKENS):
            checked += await loop.run_in_executor(self._verifying, self._checked, packets[start : start + MOST_TOKENS])
        valid = [one for one in checked if isinstance(one, Incoming)]
        for one in checked:
            if isinstance(one, Refused):
                self._refusals.count(self._digest, one.code)
        invalid = _in_the_way(checked)
        if self._least is not None and len(checked) - len(invalid) < self._least:
            self._refusals.count(self._digest, _WRONG_WAY)
            return Taken(taken=None, invalid=invalid)
        outcomes = await loop.run_in_executor(self._executor, self._take, valid) if valid else []
        if "over" in outcomes:
            raise over(self._digest)
        self._note(outcomes)
        return Taken(taken=sum(outcome in ("accepted", "repeated") for outcome in outcomes), invalid=invalid)

    def _note(self, outcomes: Sequence[Accepted]) -> None:
        for outcome in outcomes:
            if outcome in _REFUSED:
                self._refusals.count(self._digest, _REFUSED[outcome])
        if "accepted" in outcomes:
            self._wake()

    def _take(self, arrived: Sequence[Incoming]) -> list[Accepted]:
        """One transaction for all. Nothing has a nonce."""
        return list(self._store.accept(self._digest, arrived, 0))

    def _checked(self, packets: Sequence[bytes]) -> list[Incoming | Refused]:
        """Each of some packets as the store is to have it, or why it is not let in."""
        found: list[Incoming | Refused] = []
        asked: dict[int, Presented] = {}
        for i, packet in enumerate(packets):
            try:
                asked[i] = presented = self._opened(packet)
                answer = presented.message
                name = name_of_pseudonym(pseudonym_of(presented.token))
                # By the pseudonym, which is not kept: of an answer alone all that it can be could be tried.
                digest = hashlib.sha256(pseudonym_of(presented.token) + answer).digest()
                found.append(Incoming("", answer, name, digest))
            except RemoteProtocolError as error:
                found.append(Refused(error.code))
        for i, is_valid in zip(asked, self._verifier.verify_many(list(asked.values())), strict=True):
            if not is_valid:
                found[i] = Refused(_BAD_TOKEN)
        return found

    def _opened(self, data: bytes) -> Presented:
        """What a packet's token must be for: the answer in it, to a question that is the sender's own."""
        packet = Packet.from_bytes(data, self._size)
        check_values(packet.answer, MOST_ANONYMOUS_VALUES)
        answer = codec.decode(packet.answer, MESSAGES, self._study)
        if not isinstance(answer, Answer):
            raise RemoteProtocolError("PROTO-003", f"A {answer.type_name} is no answer.")
        ticket = self._slots.ticket(pseudonym_of(packet.token), packet.place)
        if answer.ticket != ticket or not self._is_asked(answer):
            raise RemoteProtocolError("ANONML-001", "The packet answers a question that is not its sender's.")
        context = self._slots.context(self._slots.of_question(answer.phase, answer.question))
        return Presented(packet.token, context, packet.answer, packet.place)

    def _is_asked(self, answer: Answer) -> bool:
        """Whether the question follows from the ticket, in a phase that there is."""
        if answer.phase >= self._script.n_phases:
            return False
        group = int(self._script.group_of(answer.phase, words_of(self._study, answer.ticket))[0])
        return answer.question in self._script.asked(answer.phase, group)


def _in_the_way(checked: Sequence[Incoming | Refused]) -> tuple[int, ...]:
    """The places of packets that are not valid, or have the name of one before them: copies make no crowd."""
    names: set[bytes | None] = set()
    found = []
    for i, one in enumerate(checked):
        if isinstance(one, Refused) or one.name in names:
            found.append(i)
        else:
            names.add(one.name)
    return tuple(found)
