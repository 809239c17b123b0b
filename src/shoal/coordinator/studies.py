"""Opened studies: one `StudyHandle` for each study and worker, its view, and its result.

`CoordinatorService` makes one `StudyHandles` and shares it with the scheduler, the model server of
DDML and the dashboard. Parameters, script, plan and label of a study are computed once in a
worker, because every part reads them from the same handle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock

from shoal.coordinator.cache import LRUCache
from shoal.coordinator.store.base import StudyRecord
from shoal.study.delivery import TokenSlots
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.protocol import Hosting
from shoal.transport.requests import not_found_error

_MAX_CACHED_STUDIES = 1_024


@dataclass
class _CachedHandle:
    """The place of a handle in the cache; the lock is held while it is made."""

    lock: Lock = field(default_factory=Lock)
    handle: StudyHandle | None = None


class StudyHandles:
    """The handles of the studies that a worker has used most recently.

    Any thread may call it, except that of the event loop: opening a study decodes its manifest and
    builds its script, which takes time.
    """

    def __init__(self) -> None:
        self._cache: LRUCache[str, _CachedHandle] = LRUCache(_MAX_CACHED_STUDIES)
        self._lock = Lock()

    def open(self, record: StudyRecord) -> StudyHandle:
        """Return the handle of a stored study, with its script built."""
        return self.open_manifest(record.digest, record.manifest)

    def open_manifest(self, digest: str, data: bytes) -> StudyHandle:
        """Return the handle of an encoded manifest with this digest.

        A thread makes the handle under the lock of its study: two threads could otherwise build
        the script twice. Other studies do not wait. The values that requests read on the event
        loop are computed here.
        """
        with self._lock:
            cached = self._cache.get(digest) or self._cache.put(digest, _CachedHandle())
        with cached.lock:
            if cached.handle is None:
                handle = StudyHandle(Manifest.from_bytes(data))
                _ = handle.script, handle.packet_size, handle.participant_names
                if handle.has_tokens:
                    _ = handle.slots
                cached.handle = handle
            return cached.handle


@dataclass(frozen=True)
class StudyView:
    """A study as requests see it: the stored record and what follows from its manifest.

    Parameters
    ----------
    record
        The study as the store has it now.
    signed_manifest
        The manifest with the coordinator's signature, as it is sent.
    """

    record: StudyRecord
    handle: StudyHandle
    signed_manifest: bytes

    @property
    def digest(self) -> str:
        """Digest of the manifest, in hexadecimal."""
        return self.record.digest

    @property
    def manifest(self) -> Manifest:
        """The manifest."""
        return self.handle.manifest

    @property
    def slots(self) -> TokenSlots | None:
        """The slots that tokens are issued for; None if the study has no tokens."""
        return self.handle.slots if self.handle.has_tokens else None

    def get_packet_size(self) -> int:
        """Return the size of the study's packets; raise ``HOST-001`` if it has no packets."""
        size = self.handle.packet_size
        if size is None:
            raise not_found_error("This study has no packets with tokens.")
        return size

    @property
    def admission(self) -> str | None:
        """Who may send an update to a DDML study; None for other protocols."""
        settings = self.handle.study.ddml
        return None if settings is None else settings.admission


def make_hosting(record: StudyRecord) -> Hosting:
    """Return the settings of a stored study that its aggregator needs."""
    return Hosting(timedelta(milliseconds=record.phase_timeout), record.queries)


def encode_result(handle: StudyHandle, result: object) -> bytes:
    """Return the published result of a finished study: model, counts and the label's statement.

    It is JSON with plain data only: nothing in it can run, and ``from_plain`` of each protocol's
    model reads the model again.

    Raises
    ------
    LocalProtocolError
        ``PROTO-001``: the result is of another protocol than the study.
    """
    study = handle.study
    document = {
        "study": handle.digest.hex(),
        "title": study.title,
        "protocol": study.protocol,
        "variant": study.variant,
        **handle.protocol.make_result(handle, result),
        "statement": handle.label().to_dict(),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
