"""Why a study is not taken part in as it is asked for: all of them ``CONSENT-001``, and nothing was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import ConsentError
from shoal.names import shown

if TYPE_CHECKING:
    from shoal.participant.journal import Joined


def met_elsewhere(known: Joined, url: str) -> ConsentError:
    """Why a study is not taken part in at an address: it was met at another coordinator."""
    return ConsentError(
        "CONSENT-001",
        f"The study {shown(known.title)} was met at {shown(known.url)}, by another coordinator than that of {shown(url)}.",
        why="An answer goes to one coordinator, once.",
        fix=f"Go on with the first: shoal join {shown(known.url)}",
    )


def has_changed(agreed: Joined, study: str) -> ConsentError:
    """Why a study is not taken part in: another form of it was agreed to, and goes on."""
    return ConsentError(
        "CONSENT-001",
        f"The study {shown(agreed.title)} changed since you agreed: digest {agreed.study[:12]} became {study[:12]}.",
        why="What you agreed to is the study with the first digest. Nothing was sent under the second.",
        fix=f"Read it again: shoal join {shown(agreed.url)} --study {study[:12]} --review",
    )


def in_another_role(known: Joined) -> ConsentError:
    """Why a study is not taken part in: one does not both share and only read."""
    does, fix = ("share", "Leave out --read-only.") if known.role == "sharer" else ("only read", "Give --read-only.")
    what = f"In the study {shown(known.title)} you {does}, and not otherwise."
    why = "What you agreed to is one of the two. Nothing was sent now."
    return ConsentError("CONSENT-001", what, why=why, fix=f"{fix} Or leave it first: shoal leave {known.study[:12]}")
