"""``shoal close``: end a study early, as its analyst.

`shoal.cli.main` loads it. The analyst's key is read from a file, standard input or the terminal,
never from the command line, and is never printed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shoal.cli.arguments import pick_study
from shoal.cli.output import emit
from shoal.cli.runtime import run_async
from shoal.errors import TransportError, UsageError
from shoal.text import escape_text

_STDIN = "-"
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
_KEY_PATTERN = re.compile(r"(?:[0-9a-fA-F][\s-]?){64}")
_MAX_CHARACTERS = 1_000


def close(
    url: str,
    study: str,
    /,
    *,
    key_file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    ca: Path | None = None,
    json: bool = False,
) -> None:
    """End a study early, as its analyst.

    No model is learned, and the privacy that participants spent stays spent. A study that has ended
    does not change.

    Parameters
    ----------
    url
        The coordinator's address.
    study
        The beginning of its digest, or its title.
    key_file
        A file with the analyst's key, which shoal serve printed at its first start; - for standard
        input. Without this option the command asks for the key at the terminal.
    ca
        Certificates to trust instead of the system's, in PEM form.
    json
        Print one JSON object.
    """
    key = _read_key(key_file)
    data = run_async(_close_study(url, study, key, ca))
    reason = "" if data["reason"] is None else f": {escape_text(data['reason'])}"
    lines = [
        f"study     {escape_text(data['title'])}, digest {data['short']}",
        f"status    {escape_text(data['status'])}{reason}",
        f"model     {data['model'] or 'none; privacy that participants spent stays spent'}",
    ]
    emit(data, "\n".join(lines), json=json)


async def _close_study(url: str, study: str, key: str, ca: Path | None) -> dict[str, Any]:
    """Close a study; return its status."""
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.client import Client, RefusedError
    from shoal.participant.network import parse_via
    from shoal.study.manifest import shorten_digest
    from shoal.transport.api import study_route

    entropy = SystemEntropy()
    network_path = parse_via(None, url, entropy, ca=ca)
    async with Client(url, SystemClock(), entropy, network_path=network_path) as client:
        titles = {
            listed["digest"]: listed["title"]
            for listed in await client.fetch_studies()
            if _DIGEST_PATTERN.fullmatch(listed["digest"])
        }
        digest = pick_study(study, titles, f"At {escape_text(client.url)}")
        try:
            await client.close_study(digest, key)
        except RefusedError as error:
            if error.code == "AUTH-002":
                error.fix = (
                    "Give the key that shoal serve printed when it first used this coordinator's "
                    "store."
                )
            raise
        closed = next(
            (listed for listed in await client.fetch_studies() if listed["digest"] == digest), None
        )
    if closed is None:
        raise TransportError(
            "NET-002", "The coordinator accepted the request, but does not list the study any more."
        )
    reason = closed.get("reason")
    return {
        "study": digest,
        "short": shorten_digest(bytes.fromhex(digest)),
        "title": closed["title"],
        "status": closed["status"],
        "reason": " ".join(reason[:_MAX_CHARACTERS].split()) if isinstance(reason, str) else None,
        "model": f"{client.url}{study_route(digest, 'model')}"
        if closed["status"] == "done"
        else None,
    }


def _read_key(name: str | None) -> str:
    """Read the analyst's key from a file, standard input or the terminal."""
    if name is None and not sys.stdin.isatty():
        fix = "--key-file FILE, or --key-file - for standard input"
        raise UsageError(
            "USAGE-001",
            "The analyst's key is missing, and there is no terminal to ask for it.",
            fix=fix,
        )
    key = _prompt_key() if name is None else _read_key_file(name)
    if not _KEY_PATTERN.fullmatch(key.strip()):
        what = (
            "This is not an analyst's key."
            if name is None
            else f"There is no analyst's key in {escape_text(name)}."
        )
        raise UsageError(
            "USAGE-001",
            what,
            fix="Give the 64 hexadecimal digits that shoal serve printed at its first start.",
        )
    return re.sub(r"[\s-]", "", key).lower()


def _prompt_key() -> str:
    from getpass import getpass

    try:
        return getpass("The analyst's key: ")
    except EOFError:
        return ""


def _read_key_file(name: str) -> str:
    try:
        if name == _STDIN:
            return sys.stdin.read(_MAX_CHARACTERS)
        with Path(name).open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_CHARACTERS)
    except (OSError, ValueError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else "it is not text, or its name is not valid"
        )
        raise UsageError(
            "USAGE-001",
            f"The key in {escape_text(name)} cannot be read: {reason}.",
            fix="Give a file with the key: --key-file FILE",
        ) from None
