"""uvicorn with connection limits; sockets, TLS, core dumps off.

The coordinator's workers and the relay run `Server` with `run_server`. There is no log of requests,
and `shoal.transport.connections` limits what a client can use up. `Server` looks for slow
connections once a second.

`open_listener` opens the socket that workers share; `check_exposure` rejects addresses that other
machines can reach without TLS. `forbid_core_dumps` is needed because the memory of a coordinator
contains keys and answers that are nowhere on disk, and that of a relay contains who sends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from shoal.errors import UsageError
from shoal.text import escape_text, shell_quote
from shoal.transport.api import is_loopback
from shoal.transport.bodies import CountingApp
from shoal.transport.connections import (
    IDLE_SECONDS,
    Acceptor,
    BoundedProtocol,
    ConnectionSettings,
    ConnectionTable,
    close_slow_connections,
    raise_descriptor_limit,
)

BACKLOG = 1_024
"""Connections that may wait to be accepted."""

_REASONS = {
    errno.EADDRINUSE: (
        "the address is in use",
        "Choose another --port, or --port 0 for any free port.",
    ),
    errno.EADDRNOTAVAIL: (
        "this machine does not have that address",
        "Use --host 0.0.0.0 to listen on all addresses.",
    ),
    errno.EACCES: ("permission denied", "Choose a --port above 1023."),
}
_ALL_ADDRESSES = ("0.0.0.0", "::")
_TRY_SECONDS, _PAUSE_SECONDS = 3.0, 0.05


def check_exposure(host: str, *, has_tls: bool, without_tls: bool) -> None:
    """Raise ``SERVE-001`` if other machines could connect without TLS, unless it is allowed."""
    if not (has_tls or without_tls or is_loopback(host)):
        raise UsageError(
            "SERVE-001",
            f"Listening on {escape_text(host)} without TLS is not allowed.",
            why="Anyone on the network path could see who sends requests, and change responses.",
            fix="Give --tls-cert and --tls-key. If a proxy in front terminates TLS, give "
            "--without-tls.",
        )


def load_server_tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a TLS context (1.2 or later) for a certificate and its key.

    Raise ``SERVE-002`` if a file cannot be read or the two do not match.
    """
    for what, path in (("certificate", certificate), ("key", key)):
        try:
            path.open("rb").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a valid file name"
            fix = (
                "Give a PEM file that the user of this process can read: "
                f"--tls-{'cert' if what == 'certificate' else 'key'} FILE"
            )
            raise UsageError(
                "SERVE-002",
                f"The {what} {escape_text(str(path))} cannot be read: {reason}.",
                fix=fix,
            ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # OpenSSL would prompt for the password of a key at the terminal, in every worker.
        context.load_cert_chain(certificate, key, password=_give_empty_password)
    except (ssl.SSLError, ValueError) as error:
        is_pair = getattr(error, "reason", None) != "KEY_VALUES_MISMATCH"
        raise UsageError(
            "SERVE-002",
            f"TLS cannot be set up with {escape_text(str(certificate))} and "
            f"{escape_text(str(key))}.",
            why="They are not a certificate and a key without a password, in PEM form."
            if is_pair
            else "The key does not belong to the certificate.",
            fix="Give the certificate, followed by its issuers' certificates, and its private key.",
        ) from None
    return context


def open_tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for two options; None if neither is given.

    Raise ``SERVE-002`` if one is missing. Print a warning if every user can read the key.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError(
            "SERVE-002",
            "TLS needs a certificate and its key; only one of them is given.",
            fix="--tls-cert FILE --tls-key FILE",
        )
    context = load_server_tls_context(certificate, key)
    if is_world_readable(key):
        warning = (
            f"Every user of this machine can read the key {escape_text(str(key))}: "
            f"chmod o-r {shell_quote(key)}"
        )
        print(f"warning     {warning}", file=sys.stderr)
    return context


def is_world_readable(path: Path) -> bool:
    """Return whether every user of this machine can read a file."""
    return bool(path.stat().st_mode & stat.S_IROTH)


def _give_empty_password() -> str:
    return ""


def resolve_address(host: str, port: int) -> tuple[Any, ...]:
    """Return the socket address of a host and port; raise ``SERVE-001`` if there is none."""
    try:
        if not host:
            raise ValueError
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, ValueError):
        what = (
            f"{escape_text(host)} is neither an address nor a host name that can be resolved."
            if host
            else "--host is empty."
        )
        raise UsageError(
            "SERVE-001", what, fix="Give an address or a name of this machine: --host 127.0.0.1"
        ) from None


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket, which workers can inherit; raise ``SERVE-001`` if it fails.

    Notes
    -----
    Workers of a coordinator that was killed keep its port for a moment, so binding is retried.
    """
    family, kind, protocol, _, address = resolve_address(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind_with_retries(listener, address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason, fix = _REASONS.get(
            error.errno or 0, (f"{error.strerror}", "Choose another --host or --port.")
        )
        raise UsageError(
            "SERVE-001",
            f"Cannot listen on {escape_text(host)}, port {port}: {reason}.",
            fix=fix,
        ) from None
    return listener


def _bind_with_retries(listener: socket.socket, address: Any) -> None:
    tries = round(_TRY_SECONDS / _PAUSE_SECONDS)
    for attempt in range(1, tries + 1):
        try:
            return listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or attempt == tries:
                raise
            time.sleep(_PAUSE_SECONDS)
    return None


def format_url(host: str, listener: socket.socket, *, has_tls: bool) -> str:
    """Return the URL of a listener: the host as given, for its certificate, and the actual port."""
    scheme, port = "https" if has_tls else "http", listener.getsockname()[1]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def format_public_url(host: str, url: str, *, has_tls: bool) -> str:
    """Return the URL that participants use; HOST replaces a name that is not known here.

    Examples
    --------
    >>> (
    ...     format_public_url("0.0.0.0", "https://0.0.0.0:8700", has_tls=True),
    ...     format_public_url("127.0.0.1", "http://127.0.0.1:8700", has_tls=False),
    ... )
    ('https://HOST:8700', 'http://127.0.0.1:8700')
    """
    if is_loopback(host):
        return url
    if not has_tls:
        # Participants connect to the proxy that terminates TLS.
        return "https://HOST"
    return f"https://HOST:{url.rpartition(':')[2]}" if host in _ALL_ADDRESSES else url


STOP_SECONDS = 8
"""Longest time that open requests may take after a signal to stop."""


class _PlainErrorHandler(logging.Handler):
    """Print each error in one line on standard error.

    Of an exception only the type is printed: its text may contain data of a participant.
    """

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        with suppress(OSError, ValueError):  # standard error is closed
            print(
                f"shoal: {record.getMessage().splitlines()[0]}{': ' + failure if failure else ''}",
                file=sys.stderr,
            )


@contextmanager
def print_plain_errors() -> Iterator[None]:
    """Print errors of uvicorn and asyncio as plain lines, and nowhere else."""
    loggers, handler = (
        [logging.getLogger(name) for name in ("uvicorn", "asyncio")],
        _PlainErrorHandler(logging.ERROR),
    )
    propagates = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, was in zip(loggers, propagates, strict=True):
            logger.removeHandler(handler)
            logger.propagate = was


class Server(uvicorn.Server):
    """uvicorn without a log of requests, with connection limits; it returns after a signal.

    Parameters
    ----------
    app
        An ASGI application.
    tls
        From `load_server_tls_context`; None for no TLS.
    on_ready
        Called when requests are answered and a signal ends the server in good order.
    on_stop
        Called when the server stops, so that long polls are answered immediately.
    settings
        Limits of this process.
    """

    def __init__(
        self,
        app: Any,
        tls: ssl.SSLContext | None = None,
        on_ready: Callable[[], object] = lambda: None,
        on_stop: Callable[[], object] = lambda: None,
        settings: ConnectionSettings | None = None,
    ) -> None:
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._acceptors: list[Acceptor] = []
        self._tls, self._settings = tls, settings or ConnectionSettings()
        config = uvicorn.Config(
            CountingApp(app),
            loop="uvloop",
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # Unknown clients could cause any number of warnings.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)

    @cached_property
    def table(self) -> ConnectionTable:
        """The connections of this process; made in the event loop."""
        capacity = raise_descriptor_limit()
        return ConnectionTable(self._settings, capacity, asyncio.get_running_loop().time)

    def _make_protocol(self) -> BoundedProtocol:
        return BoundedProtocol(
            self.table,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Record signals without raising them again after the stop, as uvicorn would."""
        previous = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            close_slow_connections(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self._acceptors = [
            Acceptor(listener, self.table, self._make_protocol, self._tls)
            for listener in sockets or ()
        ]
        for acceptor in self._acceptors:
            acceptor.start()
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        self._on_stop()
        await super().shutdown(sockets)


def forbid_core_dumps() -> None:
    """Disable core dumps of this process and its children."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def run_server(main: Coroutine[Any, Any, None]) -> None:
    """Run a service in a new event loop, with plain error lines and without core dumps."""
    forbid_core_dumps()
    with print_plain_errors(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
