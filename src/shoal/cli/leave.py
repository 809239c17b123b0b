"""``shoal leave``: give up what was not sent, tell the coordinator, and say what stays sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.output import emit
from shoal.cli.picking import pick
from shoal.command_tasks import run_tasks
from shoal.errors import RemoteProtocolError, ShoalError, SpecError, TransportError
from shoal.names import counted, shell_word, shown

if TYPE_CHECKING:
    from shoal.participant.journal import Joined, Journal
    from shoal.participant.via import Via
    from shoal.privacy.ledger import Entry
    from shoal.study.manifest import Manifest


_REGISTERED = (
    "nobody: the coordinator keeps your registration, if you have one. "
    "By its token nobody can tell which packet is yours, or that none is; whoever saw your address might"
)
_UNREAD = "nobody: what you keep of the study is of another version of shoal, and this one cannot read it; your registration, if any, stays"


def leave(study: str, /, *, via: str | None = None, ledger: Path | None = None, ca: Path | None = None, json: bool = False) -> None:
    """Leave a study: what was drawn and not sent is voided, and its cost is free again. What was sent stays sent, and stays spent.

    A voided question stays unanswered for ever, also if you join the study again: another draw for it would be a second answer. In a study
    with tokens your registration stays, so that nobody counts twice, and nobody is told that you left, which may say what is not yours.

    Parameters
    ----------
    study
        The beginning of its digest, or its title.
    via
        How to reach the coordinator, as shoal join has it. Without it through the study's relay, if it has one.
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    ca
        Certificates to trust in place of the system's, in PEM form.
    json
        Print one JSON object.
    """
    from shoal.cli.join_view import sent_data, sent_text
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.journal import Journal
    from shoal.participant.ledger_db import is_there
    from shoal.participant.ledger_file import LedgerFile, default_path
    from shoal.participant.session import void_held
    from shoal.participant.via import via_of
    from shoal.privacy.rounding import from_grains, show
    from shoal.study.anonymity import has_tokens
    from shoal.study.manifest import short

    clock, path = SystemClock(), ledger or default_path()
    if not is_there(path):
        # Whoever looks into a ledger makes it.
        pick(study, {}, _where(path))
    with LedgerFile(path, clock) as book, Journal(path, clock) as journal:
        joined = find(journal, study, _where(path))
        manifest = _manifest(joined)
        is_registered = manifest is not None and has_tokens(manifest) and joined.role == "sharer"
        is_told = manifest is not None and not is_registered and joined.name is not None
        way = via_of(via, joined.url, SystemEntropy(), ca=ca, manifest=manifest) if is_told else None
        # Whoever takes part at this moment could send what is voided here.
        with journal.hold(joined.study):
            voided = void_held(book, joined.study)
            journal.stand(joined.study, "left")
            told = None if manifest is None or way is None else run_tasks(_tell(journal, joined, manifest, way))
        entries = [entry for entry in book.entries() if entry.study == joined.study]
    digest = short(bytes.fromhex(joined.study))
    epsilon, sent = sum(entry.cost for entry in voided), sent_data(entries)
    data = {
        "study": joined.study,
        "title": joined.title,
        "voided": {"questions": len(voided), "epsilon": float(from_grains(epsilon))},
        "sent": sent,
        "registration_stays": is_registered or (manifest is None and joined.name is not None),
        "coordinator": {"url": joined.url, "error": None if told is None else told.to_dict()},
    }
    lines = [
        f"left      {shown(joined.title)}, digest {digest}",
        f"voided    {_voided(voided, show(from_grains(epsilon)))}",
        f"stays     {sent_text(entries)}{'; what was sent stays sent, and stays spent' if sent['questions'] else ''}",
        f"told      {_UNREAD if manifest is None else _REGISTERED if is_registered else _told(joined, told)}",
    ]
    options = "" if ledger is None else f" --ledger {shell_word(ledger)}"
    others = [f" {option} {shell_word(value)}" for option, value in (("--ca", ca), ("--via", via)) if value is not None]
    again = f"shoal leave {joined.study[:12]}{options}{''.join(others)}"
    next_command = again if isinstance(told, TransportError) else f"shoal ledger show{options}"
    emit(data, "\n".join(lines), json=json, next_command=next_command)


def find(journal: Journal, name: str, where: str) -> Joined:
    """The study whose digest begins so, or whose title this is; ``USAGE-001`` where there is none, or more than one."""
    studies = {one.study: one for one in journal.studies()}
    return studies[pick(name, {digest: one.title for digest, one in studies.items()}, where)]


def _manifest(joined: Joined) -> Manifest | None:
    """The study as it was agreed to; None where this version of shoal cannot read what is kept of it."""
    from shoal.study.manifest import Manifest

    try:
        return Manifest.from_bytes(joined.manifest)
    except SpecError:
        return None


def _where(path: Path) -> str:
    return f"In the ledger {shown(str(path))}"


def _voided(voided: Sequence[Entry], epsilon: str) -> str:
    n = len(voided)
    if n == 0:
        return "nothing: no answer was drawn and not sent"
    questions = "its question stays" if n == 1 else "their questions stay"
    price = f"epsilon {epsilon} ({voided[0].event.scope})"
    return f"{counted(n, 'answer')} not sent, {price}, which is free again; {questions} unanswered, also if you join again"


async def _tell(journal: Journal, joined: Joined, manifest: Manifest, way: Via) -> ShoalError | None:
    """Tell the coordinator, which knows of the participant; why it does not know of its leaving now, if so."""
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.client import Client
    from shoal.participant.identity import identity_for, seed_of

    entropy = SystemEntropy()
    identity = identity_for(manifest, seed_of(journal, entropy))
    async with Client(joined.url, SystemClock(), entropy, via=way) as client:
        try:
            await client.leave(joined.study, identity)
        except (TransportError, RemoteProtocolError) as error:
            return error
    return None


def _told(joined: Joined, error: ShoalError | None) -> str:
    if error is None and joined.name is None:
        return "nobody: the coordinator does not know of you"
    if error is None:
        return f"the coordinator at {shown(joined.url)}"
    if error.code == "ENROL-001":
        return f"nobody: the coordinator at {shown(joined.url)} does not know of you any more"
    # Its first words would be the address again.
    reason = error.why if error.code == "NET-001" and error.why else error.what
    return f"not the coordinator at {shown(joined.url)}: {reason}"
