"""Where a coordinator listens: addresses that others may reach only over TLS, and the socket that its workers share."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import time
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.names import shown

BACKLOG = 1_024
"""Connections that may wait to be accepted."""

_TRY_SECONDS, _PAUSE_SECONDS = 1.0, 0.05


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach a host's address.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, *, has_tls: bool, without_tls: bool) -> None:
    """Refuse to be reached from other machines without TLS, unless told so by name: ``SERVE-001``."""
    if not (has_tls or without_tls or is_loopback(host)):
        raise UsageError(
            "SERVE-001",
            f"The coordinator would listen on {shown(host)} without TLS.",
            why="Whoever is on the way could read who enrols and change what is answered.",
            fix="Give --tls-cert and --tls-key. Where something in front of it speaks TLS, say --without-tls.",
        )


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or later with a certificate and its key: ``SERVE-002`` where they cannot be read or do not belong together."""
    for what, path in (("certificate", certificate), ("key", key)):
        try:
            path.open("rb").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name is not one that a file can have"
            raise UsageError("SERVE-002", f"The {what} {shown(str(path))} cannot be read: {reason}.") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password would ask for it at the terminal, in every worker.
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        is_pair = getattr(error, "reason", None) != "KEY_VALUES_MISMATCH"
        raise UsageError(
            "SERVE-002",
            f"TLS cannot be spoken with {shown(str(certificate))} and {shown(str(key))}.",
            why="They are not a certificate and a key without a password, in PEM form." if is_pair else "The key is not the certificate's.",
            fix="Give the certificate, with those that it rests on after it, and the private key that it was made for.",
        ) from None
    return context


def _no_password() -> str:
    return ""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, which workers can be given: ``SERVE-001`` where the address cannot be had.

    Notes
    -----
    Workers of a coordinator that was killed hold its port for a moment; this is waited for.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise UsageError("SERVE-001", f"{shown(host)} is not an address.", fix="--host 127.0.0.1, or an address of this machine.") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listener, address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        fix = "Choose another --port; 0 is any that is free." if error.errno == errno.EADDRINUSE else "Choose another --host or --port."
        raise UsageError("SERVE-001", f"Nothing can listen on {shown(host)}, port {port}: {error.strerror}.", fix=fix) from None
    return listener


def _bind(listener: socket.socket, address: Any) -> None:
    tries = round(_TRY_SECONDS / _PAUSE_SECONDS)
    for attempt in range(1, tries + 1):
        try:
            return listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or attempt == tries:
                raise
            time.sleep(_PAUSE_SECONDS)
    return None


def url_of(host: str, listener: socket.socket, *, has_tls: bool) -> str:
    """What participants are told: the host as it was named, since a certificate is for a name, and the port as it came out."""
    return f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
