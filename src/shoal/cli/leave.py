"""``shoal leave``: void unsent answers, notify the coordinator, and list what stays sent.

An answer is voided while the study's lock is held, so that no other process can send it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.arguments import pick_study
from shoal.cli.output import emit
from shoal.cli.runtime import run_async
from shoal.errors import RemoteProtocolError, ShoalError, SpecError, TransportError
from shoal.text import escape_text, format_count, shell_quote

if TYPE_CHECKING:
    from shoal.participant.journal import JoinedStudy, Journal
    from shoal.participant.network import NetworkPath
    from shoal.privacy.ledger.state import LedgerEntry
    from shoal.study.manifest import Manifest


_REGISTRATION_KEPT = (
    "nobody: the coordinator keeps your registration, if you have one. A token does not show which "
    "packet is yours, or whether you sent one; someone who saw your IP address might know"
)
_UNREADABLE_STUDY = (
    "nobody: your record of the study is from another version of shoal and cannot be read; your "
    "registration, if any, stays"
)


def leave(
    study: str,
    /,
    *,
    via: str | None = None,
    ledger: Path | None = None,
    ca: Path | None = None,
    json: bool = False,
) -> None:
    """Leave a study and give up all answers that were not sent.

    Their cost is free again. What was sent stays sent and stays spent. A question that you give up
    stays unanswered for ever, even if you join the study again: another draw would be a second
    answer. In a study with tokens your registration stays, so that each person counts once. The
    coordinator is not notified there, because that could reveal which packet is yours.

    Parameters
    ----------
    study
        The beginning of the study's digest, or its title.
    via
        How to reach the coordinator, as in shoal join. Default: through the study's relay, if it
        has one.
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    ca
        Certificates to trust instead of the system's, in PEM form.
    json
        Print one JSON object.
    """
    from shoal.cli.join.view import format_sent, make_sent_data
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.journal import Journal
    from shoal.participant.ledger_file import LedgerFile
    from shoal.participant.ledger_storage import find_ledger_path, path_exists
    from shoal.participant.network import parse_via
    from shoal.participant.session import void_held
    from shoal.privacy.rounding import format_epsilon, from_grains
    from shoal.study.delivery import has_tokens
    from shoal.study.manifest import shorten_digest

    clock, path = SystemClock(), ledger or find_ledger_path()
    if not path_exists(path):
        # Opening a ledger would create it.
        pick_study(study, {}, _describe_location(path))
    with LedgerFile(path, clock) as book, Journal(path, clock) as journal:
        joined = find_study(journal, study, _describe_location(path))
        manifest = _read_manifest(joined)
        is_registered = manifest is not None and has_tokens(manifest) and joined.role == "sharer"
        is_notified = manifest is not None and not is_registered and joined.name is not None
        network_path = (
            parse_via(via, joined.url, SystemEntropy(), ca=ca, manifest=manifest)
            if is_notified
            else None
        )
        # Another process that takes part now could send an answer that is voided here.
        with journal.lock_study(joined.study):
            voided = void_held(book, joined.study)
            journal.set_status(joined.study, "left")
            error = (
                None
                if manifest is None or network_path is None
                else run_async(_notify_coordinator(journal, joined, manifest, network_path))
            )
        entries = [entry for entry in book.entries() if entry.study == joined.study]
    digest = shorten_digest(bytes.fromhex(joined.study))
    epsilon, sent = sum(entry.cost for entry in voided), make_sent_data(entries)
    data = {
        "study": joined.study,
        "title": joined.title,
        "voided": {"questions": len(voided), "epsilon": float(from_grains(epsilon))},
        "sent": sent,
        "registration_stays": is_registered or (manifest is None and joined.name is not None),
        "coordinator": {"url": joined.url, "error": None if error is None else error.to_dict()},
    }
    remains = "; this stays sent and stays spent" if sent["questions"] else ""
    if manifest is None:
        notified = _UNREADABLE_STUDY
    elif is_registered:
        notified = _REGISTRATION_KEPT
    else:
        notified = _describe_notification(joined, error)
    lines = [
        f"left      {escape_text(joined.title)}, digest {digest}",
        f"voided    {_describe_voided(voided, format_epsilon(from_grains(epsilon)))}",
        f"sent      {format_sent(entries)}{remains}",
        f"notified  {notified}",
    ]
    options = "" if ledger is None else f" --ledger {shell_quote(ledger)}"
    others = [
        f" {option} {shell_quote(value)}"
        for option, value in (("--ca", ca), ("--via", via))
        if value is not None
    ]
    retry = f"shoal leave {joined.study[:12]}{options}{''.join(others)}"
    next_command = retry if isinstance(error, TransportError) else f"shoal ledger show{options}"
    emit(data, "\n".join(lines), json=json, next_command=next_command)


def find_study(journal: Journal, name: str, where: str) -> JoinedStudy:
    """Return the study with this title or beginning of its digest.

    Raise ``USAGE-001`` if there is none, or more than one.
    """
    studies = {joined.study: joined for joined in journal.list_studies()}
    return studies[
        pick_study(name, {digest: joined.title for digest, joined in studies.items()}, where)
    ]


def _read_manifest(joined: JoinedStudy) -> Manifest | None:
    """Return the manifest in the journal; None if this version of shoal cannot read it."""
    from shoal.study.manifest import Manifest

    try:
        return Manifest.from_bytes(joined.manifest)
    except SpecError:
        return None


def _describe_location(path: Path) -> str:
    return f"In the ledger {escape_text(str(path))}"


def _describe_voided(voided: Sequence[LedgerEntry], epsilon: str) -> str:
    n = len(voided)
    if n == 0:
        return "nothing: no answer was waiting to be sent"
    questions = "its question stays" if n == 1 else "their questions stay"
    price = f"epsilon {epsilon} ({voided[0].event.scope})"
    return (
        f"{format_count(n, 'answer')} not sent, {price}, which is free again; {questions} "
        "unanswered, even if you join again"
    )


async def _notify_coordinator(
    journal: Journal, joined: JoinedStudy, manifest: Manifest, path: NetworkPath
) -> ShoalError | None:
    """Delete the enrolment at the coordinator; return the error if that failed."""
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.client import Client
    from shoal.participant.keys import derive_identity, ensure_seed

    entropy = SystemEntropy()
    identity = derive_identity(manifest, ensure_seed(journal, entropy))
    async with Client(joined.url, SystemClock(), entropy, network_path=path) as client:
        try:
            await client.leave(joined.study, identity)
        except (TransportError, RemoteProtocolError) as error:
            return error
    return None


def _describe_notification(joined: JoinedStudy, error: ShoalError | None) -> str:
    if error is None and joined.name is None:
        return "nobody: the coordinator has no enrolment of yours"
    if error is None:
        return f"the coordinator at {escape_text(joined.url)}"
    if error.code == "ENROL-001":
        return f"nobody: the coordinator at {escape_text(joined.url)} has no enrolment of yours"
    # The sentence of NET-001 would repeat the address.
    reason = error.why if error.code == "NET-001" and error.why else error.what
    return f"not the coordinator at {escape_text(joined.url)}: {reason}"
