"""What has arrived of a study's anonymous packets, told when that tells nobody who sent them: once all of a phase were due."""

from __future__ import annotations

from concurrent.futures import Executor
from datetime import timedelta

from shoal.clock import Clock
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.publishing import n_phases_of
from shoal.coordinator.recent import Recent
from shoal.coordinator.store.base import Hosted, Store
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import load
from shoal.protocols.anonml.aggregator import Collecting
from shoal.study.anonymity import Window
from shoal.study.manifest import Manifest
from shoal.transport.batching import Batched
from shoal.transport.forms import Received

KEPT_MILLISECONDS = 1_000
"""How long an answer is given again: everyone asks, and all at about the same time."""

_MOST_AT_ONCE, _MOST_KEPT = 1_000, 16


class Arrivals:
    """Lists of the names of packets that have arrived, by study.

    Parameters
    ----------
    store, clock
        Where the studies are, and the time.
    executor
        Where the store's calls run.
    """

    def __init__(self, store: Store, clock: Clock, executor: Executor) -> None:
        self._store, self._clock = store, clock
        self._kept: Recent[str, tuple[int, Received | RemoteProtocolError]] = Recent(_MOST_KEPT)
        self._told = Batched[Hosted, Received | RemoteProtocolError](self._tell_all, executor, _MOST_AT_ONCE)

    async def received(self, hosted: Hosted) -> Received:
        """The names of all packets of a study that have arrived, in this phase and before, in the order of their digits.

        The phase is the open one; after the study's end, one more than the last.

        Raises
        ------
        RemoteProtocolError
            ``HOST-002``: packets are being collected. Who sees the list grow by one sees when somebody's packet came.
        """
        told = await self._told(hosted)
        if isinstance(told, RemoteProtocolError):
            raise told
        return told

    def _tell_all(self, asked: list[Hosted]) -> list[Received | RemoteProtocolError]:
        """One call at a time."""
        now = milliseconds(self._clock.now())
        answers = []
        for hosted in asked:
            kept = self._kept.get(hosted.digest)
            if kept is None or abs(now - kept[0]) >= KEPT_MILLISECONDS:
                kept = self._kept.put(hosted.digest, (now, self._tell(hosted)))
            answers.append(kept[1])
        return answers

    def _tell(self, hosted: Hosted) -> Received | RemoteProtocolError:
        if hosted.status == "open":
            phase = self._open_phase(hosted)
        else:
            phase = n_phases_of(Manifest.from_bytes(hosted.manifest))
        if phase is None:
            return RemoteProtocolError("HOST-002", "What has arrived is told once all packets of the phase were due.", fix="Ask later.")
        return Received(phase=phase, names=b"".join(self._store.submitted(hosted.digest)))

    def _open_phase(self, hosted: Hosted) -> int | None:
        """The open phase, if it is past collecting and not over."""
        saved = self._store.load(hosted.digest, 0, 0).state
        if saved is None:
            return None
        state = load(saved, Collecting)
        window = Window(state.deadline - timedelta(milliseconds=hosted.patience), state.deadline)
        return state.phase if window.collects_until <= self._clock.now() < window.closes else None
