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
    return ConsentError("CONSENT-001", what, why="What you agreed to is one of the two. Nothing was sent now.", fix=fix)


def would_be_shared(title: str, study: str) -> ConsentError:
    """Why a study is not only read: answers to it are drawn, and would be sent."""
    what = f"Of the study {shown(title)} you hold answers that were drawn for a preview."
    return ConsentError(
        "CONSENT-001", what, why="Whoever only reads has none to send.", fix=f"Give them up first: shoal leave {study[:12]}"
    )


def not_named(title: str, url: str, digest: str, *, has_left: bool) -> ConsentError:
    """Why nobody agrees unasked: a coordinator that is known offers a study that is not, or was left, and the command does not name it."""
    how = "have left" if has_left else "do not know"
    return ConsentError(
        "CONSENT-001",
        f"The coordinator at {shown(url)} offers a study that you {how}: {shown(title)}, digest {digest[:12]}.",
        why="You have met this coordinator before, and --yes alone does not say that this study is meant. Nothing was sent.",
        fix=f"Read its label; if you agree, name it: --study {digest[:12]}",
    )


def not_a_member(study: str, n: int) -> ConsentError:
    """Why nothing is sent to a study with tokens: its list of members does not have the participant."""
    return ConsentError(
        "CONSENT-001",
        f"The list of the {n:,} members among whom your packet would hide does not have your key.",
        why="The coordinator shows you another list than the one that you are on, or has lost your registration. Nothing was sent.",
        fix=f"Ask its analyst, by another way than this one; to give the study up: shoal leave {study[:12]}",
    )


def too_late(title: str, study: str, *, is_over: bool) -> ConsentError:
    """Why a study with tokens was given up: it has ended, or the time in which packets leave has passed."""
    what = f"The study {shown(title)} has ended" if is_over else f"The time in which packets for the study {shown(title)} leave has passed"
    alone = "A packet that leaves after all others would come alone, and so tell whose it is."
    return ConsentError(
        "CONSENT-001",
        f"{what}, and your answer was not sent.",
        why=f"{'It was to leave later, at a time drawn by chance.' if is_over else alone} Nothing was sent.",
        fix=f"What is held for it in your ledger is given up by: shoal leave {study[:12]}",
    )
