"""``shoal relay``: forward sealed packets and requests to a coordinator.

`shoal.cli.main` loads it. The relay itself is `shoal.relay`.
"""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.cli.arguments import MEGABYTE, check_body_memory, check_range
from shoal.errors import require_extra
from shoal.text import escape_text, shell_quote


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
    body_memory: int = 256,
    behind_proxy: bool = False,
    json: bool = False,
) -> None:
    """Forward sealed packets and requests to a coordinator until Ctrl-C or SIGTERM.

    The relay sees who sends, but not the content; the coordinator sees the content, but not who
    sends. Another party than the operator of the coordinator must run it: someone with both could
    link them. When a phase of a study has collected enough packets, they leave in a shuffled batch.

    Parameters
    ----------
    to
        The coordinator's address.
    host
        The address to listen on.
    port
        The port to listen on; 0 for any free port.
    tls_cert
        A PEM file: the certificate, followed by its issuers' certificates. Needed if other machines
        are to connect.
    tls_key
        A PEM file: the private key of the certificate.
    without_tls
        Let other machines connect without TLS, because a proxy in front terminates TLS.
    spool
        The file that stores sealed packets until the coordinator has them.
    ca
        Certificates to trust instead of the system's, in PEM form, if the coordinator's certificate
        is self-signed.
    body_memory
        Megabytes that unfinished and waiting requests may use in each process; requests beyond this
        limit are answered with 503.
    behind_proxy
        Do not limit the connections of one address, because a proxy in front makes all of them.
        --without-tls implies it.
    json
        Print one JSON object when the relay listens.
    """
    check_range("port", port, 0, 65_535, "--port 8701")
    check_body_memory(body_memory)
    require_extra(
        "serve", "uvicorn", "uvloop", "httptools", "starlette", "httpx2", purpose="A relay"
    )
    from shoal.relay.server import RelaySettings, run_relay
    from shoal.transport.client import make_client_tls_context, validate_url
    from shoal.transport.connections import ConnectionSettings
    from shoal.transport.server import (
        check_exposure,
        format_public_url,
        format_url,
        open_listener,
        open_tls_context,
        resolve_address,
    )

    to = validate_url(to, is_for_relay=True)
    if ca is not None:
        make_client_tls_context(ca)
    resolve_address(host, port)
    tls = open_tls_context(tls_cert, tls_key)
    check_exposure(host, has_tls=tls is not None, without_tls=without_tls)
    with open_listener(host, port) as listener:
        address = format_url(host, listener, has_tls=tls is not None)
        notice = RelayNotice(
            address, format_public_url(host, address, has_tls=tls is not None), to, json
        )
        limits = ConnectionSettings(
            body_memory * MEGABYTE, sees_addresses=not (behind_proxy or without_tls)
        )
        run_relay(RelaySettings(to, spool, ca, tls, limits), listener, notice.show)


@dataclass(frozen=True)
class RelayNotice:
    """The output when a relay listens.

    Parameters
    ----------
    address
        Where the relay listens.
    reached_at
        The address that participants use.
    to
        The coordinator's address.
    """

    address: str
    reached_at: str
    to: str
    json: bool

    def show(self, studies: list[str]) -> None:
        """Print the notice, with the digests of the open studies."""
        text = json_format.dumps(self.to_dict(studies)) if self.json else self.to_text(studies)
        print(text, flush=True)

    def to_dict(self, studies: list[str]) -> dict[str, Any]:
        return {
            "address": self.address,
            "reached_at": self.reached_at,
            "to": self.to,
            "studies": studies,
        }

    def to_text(self, studies: list[str]) -> str:
        digests = f"   ({', '.join(digest[:12] for digest in studies)})" if studies else ""
        noun = "study" if len(studies) == 1 else "studies"
        lines = [
            f"listens     {self.address}   (press Ctrl-C to stop; run the same command to resume)",
            f"relays to   {escape_text(self.to)}",
            f"serves      {len(studies)} open {noun}{digests}; new ones when they open",
            "stores      sealed packets, until the coordinator has them; no log of who sent them "
            "or when",
            "",
            "Keep the clock of this machine right: it decides when batches leave.",
        ]
        if "//HOST" in self.reached_at:
            lines += ["Replace HOST by the name under which participants reach this relay."]
        lines += ["The analyst adds the relay to a study, and participants then send through it:"]
        return "\n".join([*lines, f"shoal serve STUDY --relay {shell_quote(self.reached_at)}"])
