"""Network paths to a coordinator, as ``--via`` names them.

The values of ``--via`` are ``direct``, ``ohttp:RELAY-URL``, ``tor`` and ``tor:HOST:PORT``.
``shoal join``, ``shoal leave`` and the fleet call `parse_via`. Without ``--via`` a study with a
relay must use that relay, never a direct connection.
"""

from __future__ import annotations

from pathlib import Path

from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.participant.network.base import DirectPath, NetworkPath
from shoal.participant.network.ohttp import OhttpPath
from shoal.participant.network.tor import TorPath
from shoal.study.manifest import Manifest
from shoal.transport.client import validate_url

__all__ = ["NetworkPath", "parse_via"]

_FIX = "--via direct, --via ohttp:https://relay, --via tor or --via tor:127.0.0.1:9150"
_PORT_DIGITS = 5


def parse_via(
    text: str | None,
    url: str,
    entropy: Entropy,
    *,
    ca: Path | None = None,
    manifest: Manifest | None = None,
    local_address: str | None = None,
) -> NetworkPath:
    """Return the network path that ``--via`` names.

    Parameters
    ----------
    text
        The value of ``--via``. None for the relay that the manifest names, or for a direct
        connection if it names none.
    url
        The coordinator's address.
    entropy
        Draws the credentials of Tor's connections.
    ca
        A file of certificates to trust instead of the system's.
    manifest
        The manifest of the study, if it is known.
    local_address
        The address of this machine to connect from; None for any. Tor ignores it.

    Raises
    ------
    UsageError
        ``USAGE-001``: the value or an address cannot be used. ``USAGE-002``: an extra is not
        installed.

    Examples
    --------
    >>> from shoal.entropy import SystemEntropy
    >>> parse_via(None, "https://example.org", SystemEntropy()).name
    'direct'
    """
    key = None if manifest is None else manifest.gateway_key
    if text is None and manifest is not None and manifest.relay is not None:
        return OhttpPath(manifest.relay, url, ca, key, local_address)
    name, colon, rest = ("direct" if text is None else text).partition(":")
    if name == "direct" and not colon:
        return DirectPath(validate_url(url), ca, local_address)
    if name == "ohttp" and rest:
        return OhttpPath(rest, validate_url(url), ca, key, local_address)
    if name == "tor" and not colon:
        return TorPath(url, entropy, ca)
    if name == "tor":
        host, _, port = rest.rpartition(":")
        if (
            host
            and len(port) <= _PORT_DIGITS
            and port.isascii()
            and port.isdigit()
            and 1 <= int(port) <= 65535
        ):
            return TorPath(url, entropy, ca, host.removeprefix("[").removesuffix("]"), int(port))
    raise UsageError("USAGE-001", f"--via {text!a:.60} is not a network path.", fix=_FIX)
