"""What pages are made of: a study with all that follows from it, once, and the phases that its letters have opened."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from shoal.coordinator.aggregators import messages_of
from shoal.coordinator.publishing import n_phases_of
from shoal.messages.codec import decode
from shoal.protocols.anonml.messages import Ask
from shoal.study.doubts import doubts
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.typeset import moment
from shoal.study.wording_tokens import statement_of
from shoal.transport.forms import Letter
from shoal.web.facts import Known


@lru_cache(maxsize=256)
def known_of(data: bytes) -> Known:
    """A study by its manifest's bytes."""
    manifest = Manifest.from_bytes(data)
    plan = make_plan(manifest.study, manifest.digest)
    return Known(manifest, plan, statement_of(manifest, plan))


@lru_cache(maxsize=256)
def warnings_of(data: bytes) -> tuple[str, ...]:
    """What the plan of a study warns of, by its manifest's bytes: that it hardly protects, or that its result is mostly noise."""
    # At a moment before any study closes: whether this one has ended, its page says already.
    return doubts(known_of(data).plan, datetime.min.replace(tzinfo=UTC))


def phases_of(manifest: Manifest, letters: Iterable[Letter]) -> list[dict[str, Any]]:
    """The phases of AnonML that were opened so far, as everyone may read in the letters."""
    messages = (decode(letter.payload, messages_of(manifest.study), manifest.digest) for letter in letters)
    n_phases = n_phases_of(manifest)
    return [
        {"number": ask.phase + 1, "of": n_phases, "opened": moment(ask.opened), "closes": moment(ask.closes)}
        for ask in messages
        if isinstance(ask, Ask)
    ]
