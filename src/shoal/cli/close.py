"""``shoal close``: the analyst ends a study before its time."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shoal.cli.output import emit
from shoal.cli.picking import pick
from shoal.command_tasks import run_tasks
from shoal.errors import TransportError, UsageError
from shoal.names import shown

_STANDS_FOR_INPUT = "-"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"(?:[0-9a-fA-F][\s-]?){64}")
_MOST_CHARACTERS = 1_000


def close(
    url: str,
    study: str,
    /,
    *,
    key_file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    ca: Path | None = None,
    json: bool = False,
) -> None:
    """End a study of a coordinator before its time, as its analyst. Nothing is learned from it, and what participants sent stays spent.

    A study that has ended already stays as it is.

    Parameters
    ----------
    url
        The coordinator's address.
    study
        The beginning of its digest, or its title.
    key_file
        A file with the analyst's key, which shoal serve printed at its first start; - for standard input. At a terminal it can be typed.
    ca
        Certificates to trust in place of the system's, in PEM form.
    json
        Print one JSON object.
    """
    key = _key(key_file)
    data = run_tasks(_close(url, study, key, ca))
    lines = [
        f"study     {shown(data['title'])}, digest {data['short']}",
        f"standing  {shown(data['status'])}{'' if data['reason'] is None else ': ' + shown(data['reason'])}",
        f"learned   {'nothing: what was sent stays spent' if data['model'] is None else 'a model, at ' + data['model']}",
    ]
    emit(data, "\n".join(lines), json=json)


async def _close(url: str, study: str, key: str, ca: Path | None) -> dict[str, Any]:
    """Close it, and ask how it stands."""
    from shoal.clock import SystemClock
    from shoal.entropy import SystemEntropy
    from shoal.participant.client import Client, RefusedError
    from shoal.study.manifest import short
    from shoal.transport.routes import study_route

    async with Client(url, SystemClock(), SystemEntropy(), ca=ca) as client:
        titles = {one["digest"]: one["title"] for one in await client.studies() if _DIGEST.fullmatch(one["digest"])}
        digest = pick(study, titles, f"At {shown(client.url)}")
        try:
            await client.close(digest, key)
        except RefusedError as error:
            if error.code == "AUTH-002":
                error.fix = "Give the key that shoal serve has printed when it first used this coordinator's store."
            raise
        found = next((one for one in await client.studies() if one["digest"] == digest), None)
    if found is None:
        raise TransportError("NET-002", "The coordinator took the request, and does not name the study any more.")
    reason = found.get("reason")
    return {
        "study": digest,
        "short": short(bytes.fromhex(digest)),
        "title": found["title"],
        "status": found["status"],
        "reason": " ".join(reason[:_MOST_CHARACTERS].split()) if isinstance(reason, str) else None,
        "model": f"{client.url}{study_route(digest, 'model')}" if found["status"] == "done" else None,
    }


def _key(name: str | None) -> str:
    """The analyst's key: from a file, from standard input, or typed. It is never shown."""
    if name is None and not sys.stdin.isatty():
        fix = "--key-file F, or --key-file - for standard input."
        raise UsageError("USAGE-001", "The analyst's key is not given, and there is no terminal to ask at.", fix=fix)
    key = _typed() if name is None else _read(name)
    if not _KEY.fullmatch(key.strip()):
        what = "This is not an analyst's key." if name is None else f"There is no analyst's key in {shown(name)}."
        raise UsageError(
            "USAGE-001", what, fix="It has 64 hexadecimal digits, in groups, as shoal serve has printed it at its first start."
        )
    return re.sub(r"[\s-]", "", key).lower()


def _typed() -> str:
    from getpass import getpass

    try:
        return getpass("The analyst's key: ")
    except EOFError:
        return ""


def _read(name: str) -> str:
    try:
        if name == _STANDS_FOR_INPUT:
            return sys.stdin.read(_MOST_CHARACTERS)
        with Path(name).open(encoding="ascii", errors="replace") as file:
            return file.read(_MOST_CHARACTERS)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text, or its name is not one that a file can have"
        raise UsageError(
            "USAGE-001", f"The key in {shown(name)} cannot be read: {reason}.", fix="--key-file F, where F has the key."
        ) from None
