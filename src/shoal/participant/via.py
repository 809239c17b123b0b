"""The way to a coordinator that ``--via`` names: ``direct``, ``ohttp:RELAY-URL``, ``tor`` or ``tor:HOST:PORT``."""

from __future__ import annotations

from pathlib import Path

from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.participant.asking import checked_url
from shoal.participant.sealed import Ohttp
from shoal.participant.tor import Tor
from shoal.participant.ways import Direct, Via
from shoal.study.manifest import Manifest

__all__ = ["Via", "via_of"]

_FIX = "--via direct, --via ohttp:https://relay, --via tor or --via tor:127.0.0.1:9150"
_PORT_DIGITS = 5


def via_of(
    text: str | None,
    url: str,
    entropy: Entropy,
    *,
    ca: Path | None = None,
    manifest: Manifest | None = None,
    local_address: str | None = None,
) -> Via:
    """The way that is meant.

    Parameters
    ----------
    text
        What ``--via`` says. None for through the relay that the manifest names, where there is one, and else directly.
    url
        The coordinator's address.
    entropy
        Where the names of Tor's connections come from.
    ca
        A file of certificates to trust in place of the system's.
    manifest
        The study, where it is known.
    local_address
        The address of this machine from which to connect, but for Tor; None for any.

    Raises
    ------
    UsageError
        ``USAGE-001``: there is no such way, or an address cannot be used. ``USAGE-002``: an extra is not installed.

    Examples
    --------
    >>> from shoal.entropy import SystemEntropy
    >>> via_of(None, "https://example.org", SystemEntropy()).name
    'direct'
    """
    key = None if manifest is None else manifest.gateway_key
    if text is None and manifest is not None and manifest.relay is not None:
        return Ohttp(manifest.relay, url, ca, key, local_address)
    name, colon, rest = ("direct" if text is None else text).partition(":")
    if name == "direct" and not colon:
        return Direct(checked_url(url), ca, local_address)
    if name == "ohttp" and rest:
        return Ohttp(rest, checked_url(url), ca, key, local_address)
    if name == "tor" and not colon:
        return Tor(url, entropy, ca)
    if name == "tor":
        host, _, port = rest.rpartition(":")
        if host and len(port) <= _PORT_DIGITS and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535:
            return Tor(url, entropy, ca, host.removeprefix("[").removesuffix("]"), int(port))
    raise UsageError("USAGE-001", f"--via {text!a:.60} is not a way to a coordinator.", fix=_FIX)
