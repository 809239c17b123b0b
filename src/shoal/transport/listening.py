"""Where a coordinator or a relay listens: addresses that others may reach only over TLS, and the socket that workers share."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import stat
import time
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.names import shown

BACKLOG = 1_024
"""Connections that may wait to be accepted."""

_REASONS = {
    errno.EADDRINUSE: ("something else does", "Choose another --port; 0 is any that is free."),
    errno.EADDRNOTAVAIL: ("this machine does not have that address", "--host 0.0.0.0 listens on all that it has."),
    errno.EACCES: ("this user may not", "Choose a --port above 1023."),
}
_EVERYWHERE = ("0.0.0.0", "::")
_TRY_SECONDS, _PAUSE_SECONDS = 3.0, 0.05


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
            f"It would listen on {shown(host)} without TLS.",
            why="Whoever is on the way could read who asks, and change what is answered.",
            fix="Give --tls-cert and --tls-key. Where something in front of it speaks TLS, say --without-tls.",
        )


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or later with a certificate and its key: ``SERVE-002`` where they cannot be read or do not belong together."""
    for what, path in (("certificate", certificate), ("key", key)):
        try:
            path.open("rb").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name is not one that a file can have"
            fix = f"Give a PEM file that the user of this process can read: --tls-{'cert' if what == 'certificate' else 'key'} F"
            raise UsageError("SERVE-002", f"The {what} {shown(str(path))} cannot be read: {reason}.", fix=fix) from None
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


def is_open_to_others(path: Path) -> bool:
    """Whether users of this machine can read a file who are neither its owner nor of its group."""
    return bool(path.stat().st_mode & stat.S_IROTH)


def _no_password() -> str:
    return ""


def resolve(host: str, port: int) -> tuple[Any, ...]:
    """What a host and a port are to a socket: ``SERVE-001`` where they are nothing."""
    try:
        if not host:
            raise ValueError
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, ValueError):
        what = f"{shown(host)} is neither an address nor a name that this machine knows." if host else "--host is empty."
        raise UsageError("SERVE-001", what, fix="--host 127.0.0.1, or an address or a name of this machine.") from None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, which workers can be given: ``SERVE-001`` where the address cannot be had.

    Notes
    -----
    Workers of a coordinator that was killed hold its port for a moment; this is waited for.
    """
    family, kind, protocol, _, address = resolve(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listener, address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason, fix = _REASONS.get(error.errno or 0, (f"{error.strerror}", "Choose another --host or --port."))
        raise UsageError("SERVE-001", f"Nothing can listen on {shown(host)}, port {port}: {reason}.", fix=fix) from None
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
    """Where it listens: the host as it was named, since a certificate is for a name, and the port as it came out."""
    return f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def url_for_others(host: str, url: str, *, has_tls: bool) -> str:
    """What participants are told: where it listens, with HOST for a name that the coordinator does not know itself.

    Examples
    --------
    >>> url_for_others("0.0.0.0", "https://0.0.0.0:8700", has_tls=True), url_for_others("127.0.0.1", "http://127.0.0.1:8700", has_tls=False)
    ('https://HOST:8700', 'http://127.0.0.1:8700')
    """
    if is_loopback(host):
        return url
    if not has_tls:
        # It is reached through what speaks TLS in front of it.
        return "https://HOST"
    return f"https://HOST:{url.rpartition(':')[2]}" if host in _EVERYWHERE else url
