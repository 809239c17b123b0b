"""``shoal relay``: take sealed packets and requests for a coordinator, so that it does not see from whom they come."""

from __future__ import annotations

import importlib.util
import json as json_format
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.names import shell_word, shown


def relay(
    *,
    to: str,
    host: str = "127.0.0.1",
    port: int = 8701,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    without_tls: bool = False,
    spool: Path = Path("relay.db"),
    ca: Path | None = None,
    json: bool = False,
) -> None:
    """Take sealed packets and requests for a coordinator, so that it does not see from whom they come. Runs until told to stop.

    It sees who sends and not what; the coordinator sees what and not who. So it is for somebody else to run than the coordinator: whoever
    has both could put them together. Packets leave in shuffled batches when a phase of their study has collected enough of them.

    Parameters
    ----------
    to
        The coordinator's address.
    host
        The address to listen on.
    port
        The port to listen on; 0 is any that is free.
    tls_cert
        A PEM file: the certificate, and those that it rests on. Needed to be reached from other machines.
    tls_key
        A PEM file: the certificate's private key.
    without_tls
        Listen to other machines without TLS all the same, because something in front of it speaks TLS.
    spool
        The file that keeps sealed packets until the coordinator has them.
    ca
        Certificates to trust in place of the system's, in PEM form, where the coordinator has one of its own.
    json
        Print one JSON object when it listens.
    """
    if not 0 <= port <= 65_535:
        raise UsageError("USAGE-001", f"--port {port} is not from 0 to 65,535.")
    _check_installed()
    from shoal.relay.remote import checked_url, trusting
    from shoal.relay.running import Settings, run
    from shoal.transport.listening import check_exposure, is_open_to_others, listen, resolve, tls_context, url_for_others, url_of

    to = checked_url(to)
    if ca is not None:
        trusting(ca)
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("SERVE-002", "TLS needs a certificate and its key; only one of them is given.", fix="--tls-cert F --tls-key F")
    resolve(host, port)
    check_exposure(host, has_tls=tls_cert is not None, without_tls=without_tls)
    tls = None
    if tls_cert is not None and tls_key is not None:
        tls = tls_context(tls_cert, tls_key)
        if is_open_to_others(tls_key):
            warning = f"Every user of this machine can read the key {shown(str(tls_key))}: chmod o-r {shell_word(tls_key)}"
            print(f"warning     {warning}", file=sys.stderr)
    with listen(host, port) as listener:
        address = url_of(host, listener, has_tls=tls is not None)
        notice = Notice(address, url_for_others(host, address, has_tls=tls is not None), to, json)
        run(Settings(to, spool, ca, tls), listener, notice.show)


@dataclass(frozen=True)
class Notice:
    """What is said when a relay listens.

    Parameters
    ----------
    address, reached_at, to
        Where it listens, what participants are told, and where it relays to.
    """

    address: str
    reached_at: str
    to: str
    json: bool

    def show(self, studies: list[str]) -> None:
        """Print it."""
        told = json_format.dumps(self.to_dict(studies)) if self.json else self.to_text(studies)
        print(told, flush=True)

    def to_dict(self, studies: list[str]) -> dict[str, Any]:
        return {"address": self.address, "reached_at": self.reached_at, "to": self.to, "studies": studies}

    def to_text(self, studies: list[str]) -> str:
        of = f"   ({', '.join(digest[:12] for digest in studies)})" if studies else ""
        lines = [
            f"listens     {self.address}   (stops with Ctrl-C; goes on where it was when it is started again)",
            f"relays to   {shown(self.to)}",
            f"serves      {len(studies)} open {'study' if len(studies) == 1 else 'studies'}{of}; others as they begin",
            "keeps       sealed packets, until the coordinator has them; no log of who sent them or when",
            "",
            "Its clock has to be right: batches leave by it.",
        ]
        if "//HOST" in self.reached_at:
            lines += ["HOST stands for the name by which participants reach this relay."]
        lines += ["The analyst names it in a study, and participants then send through it:"]
        return "\n".join([*lines, f"shoal serve STUDY --relay {shell_word(self.reached_at)}"])


def _check_installed() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("uvicorn", "uvloop", "httptools", "starlette", "httpx2")):
        raise UsageError("USAGE-002", "A relay needs libraries that are not installed.", fix="pip install 'shoal[serve]'")
