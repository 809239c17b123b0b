"""``shoal leave``: give up what was not sent, tell the coordinator, and say what stays sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal.cli.join_view import sent_data, sent_text
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError, TransportError, UsageError
from shoal.names import counted, shell_word, shown
from shoal.participant.client import Client, RefusedError
from shoal.participant.identity import identity_for, seed_of
from shoal.participant.journal import Joined, Journal
from shoal.participant.ledger_file import LedgerFile, default_path
from shoal.privacy.ledger import HELD, Entry
from shoal.privacy.rounding import from_grains, show
from shoal.study.manifest import Manifest, short


def leave(study: str, /, *, ledger: Path | None = None, ca: Path | None = None, json: bool = False) -> None:
    """Leave a study: what was drawn and not sent is voided, and its cost is free again. What was sent stays sent, and stays spent.

    Parameters
    ----------
    study
        The beginning of its digest, or its title.
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    ca
        Certificates to trust in place of the system's, in PEM form.
    json
        Print one JSON object.
    """
    clock, path = SystemClock(), ledger or default_path()
    with LedgerFile(path, clock) as book, Journal(path, clock) as journal:
        joined = find(journal, study)
        # Whoever takes part at this moment could send what is voided here.
        with journal.hold(joined.study):
            voided = _void(book, joined.study)
            journal.stand(joined.study, "left")
            told = asyncio.run(_tell(journal, joined, ca))
        entries = [entry for entry in book.entries() if entry.study == joined.study]
    digest = short(bytes.fromhex(joined.study))
    epsilon = sum(entry.cost for entry in voided)
    data = {
        "study": joined.study,
        "title": joined.title,
        "voided": {"questions": len(voided), "epsilon": float(from_grains(epsilon))},
        "sent": sent_data(entries),
        "coordinator": {"url": joined.url, "error": None if told is None else told.to_dict()},
    }
    lines = [
        f"left      {shown(joined.title)}, digest {digest}",
        f"voided    {counted(len(voided), 'answer')} not sent, epsilon {show(from_grains(epsilon))}, which is free again",
        f"stays     {sent_text(entries)}: what was sent stays sent, and stays spent",
        f"told      {_told(joined, told)}",
    ]
    again = f"shoal leave {shell_word(joined.study[:12])}"
    emit(data, "\n".join(lines), json=json, next_command=again if isinstance(told, TransportError) else "shoal ledger show")


def find(journal: Journal, name: str) -> Joined:
    """The study whose digest begins so, or whose title this is.

    Raises
    ------
    UsageError
        ``USAGE-001``: there is none, or more than one.
    """
    digits, studies = name.lower().replace("-", ""), journal.studies()
    found = [one for one in studies if name == one.title or (digits and one.study.startswith(digits))]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{shown(one.title)} ({one.study[:12]})" for one in found or studies) or "none"
    what = f"More than one study is {name!a:.80}" if found else f"You are in no study {name!a:.80}"
    raise UsageError("USAGE-001", f"{what}: {listed}.", fix="Give its title, or enough digits of its digest.")


def _void(book: LedgerFile, study: str) -> list[Entry]:
    """Give up all that is held for a study."""
    held = [entry for entry in book.pending() if entry.study == study and entry.state in HELD]
    for entry in held:
        book.void(study, entry.release.question)
    return held


async def _tell(journal: Journal, joined: Joined, ca: Path | None) -> ShoalError | None:
    """Tell the coordinator, if it knows of the participant; why it does not know now, if so."""
    if joined.name is None:
        return None
    entropy = SystemEntropy()
    identity = identity_for(Manifest.from_bytes(joined.manifest), seed_of(journal, entropy))
    async with Client(joined.url, SystemClock(), entropy, ca=ca) as client:
        try:
            await client.leave(joined.study, identity)
        except (TransportError, RefusedError) as error:
            return error
    return None


def _told(joined: Joined, error: ShoalError | None) -> str:
    if error is None and joined.name is None:
        return "nobody: the coordinator does not know of you"
    if error is None:
        return f"the coordinator at {shown(joined.url)}"
    return f"not the coordinator at {shown(joined.url)}: {error.what}"
