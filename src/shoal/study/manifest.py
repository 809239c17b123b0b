"""The manifest and its digest.

A manifest is a study with the keys and addresses that must be the same for all parties. A
participant consents to its digest, and every message contains it. The digest is that of the parsed
content in a deterministic encoding: comments, the order of keys and the notation of numbers do not
change it, but the order of features does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import TypeAdapter, ValidationError

from shoal.crypto.identity import is_usable_key
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages import codec
from shoal.messages.codec import check_value_count
from shoal.protocols.driver import ANONYMOUS_PREFIX
from shoal.protocols.effects import AGGREGATOR, EVERYONE
from shoal.study.explain import explain
from shoal.study.registry import get_protocol
from shoal.study.schedule import Schedule
from shoal.study.settings import Line
from shoal.study.spec import Study
from shoal.study.validation import parse_content
from shoal.text import escape_text

MAX_ROSTER = 10_000
MAX_VALUES = 1 << 17
MAX_MANIFEST_BYTES = 1 << 22
"""Values and bytes of a manifest. A participant reads it before consent, in 2 s and 200 MB."""
MAX_URL = 500

_DOMAIN = b"shoal manifest 1\x00"
_KIND, _VERSION = "shoal manifest", 1
_KEYS = {"kind", "version", "study", "issuer_key", "epoch", "gateway_key", "roster", "relay"}
_SCHEDULE_KEYS = {"opens", "window"}
_ISSUER_BYTES, _KEY_BYTES = 96, 32
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LINE: TypeAdapter[str] = TypeAdapter(Line)


@dataclass(frozen=True)
class RosterMember:
    """A database or an organisation on the roster, with its Ed25519 public key of 32 bytes."""

    name: str
    key: bytes

    def __post_init__(self) -> None:
        try:
            _LINE.validate_python(self.name, strict=True)
        except ValidationError:
            text = str(self.name)
            what = (
                f"{escape_text(text[:60])}{'...' * (len(text) > 60)}" if text.strip() else "empty"
            )
            raise _make_manifest_error(
                f"A member's name cannot be {what}.", "Give a short line of plain text."
            ) from None
        if is_reserved(self.name):
            raise _make_manifest_error(
                f"A member cannot be called {escape_text(self.name)}.",
                "Choose another name: protocols reserve this one.",
            )
        _check_bytes(f"The key of {self.name}", self.key, _KEY_BYTES)
        if not is_usable_key(self.key):
            raise _make_manifest_error(
                f"The key of {self.name} is not a valid Ed25519 public key.",
                "Ask the member for its public key again.",
            )

    def public_key(self) -> Ed25519PublicKey:
        """Return the key that verifies the member's signatures."""
        return Ed25519PublicKey.from_public_bytes(self.key)


@dataclass(frozen=True)
class Manifest:
    """A study with its keys and addresses.

    Parameters
    ----------
    issuer_key
        Public key of the issuer of anonymous credentials: a compressed point of BLS12-381's G2, 96
        bytes.
    epoch
        Credentials that were issued for this epoch count, to members of any study in it; None if
        only those of this study count.
    gateway_key
        X25519 key to which anonymous packets are encrypted, 32 bytes.
    roster
        Members of a secure sum, each with a different name and key.
    relay
        Address of the relay: https, or http to this machine. It cannot be an onion service, which
        is reachable over Tor alone.
    schedule
        When the phases of a study with anonymous packets begin and end; None for all others. A
        manifest without a schedule is encoded without this key.
    """

    study: Study
    issuer_key: bytes | None = None
    gateway_key: bytes | None = None
    roster: tuple[RosterMember, ...] = ()
    relay: str | None = None
    epoch: str | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.issuer_key is not None:
            _check_bytes("The issuer's key", self.issuer_key, _ISSUER_BYTES)
            if self.issuer_key[0] & 0b1100_0000 != 0b1000_0000:
                raise _make_manifest_error(
                    "The issuer's key is not a compressed point, or is the point at infinity."
                )
        if self.epoch is not None:
            _check_epoch(self.epoch, self.issuer_key)
        if self.gateway_key is not None:
            _check_bytes("The gateway's key", self.gateway_key, _KEY_BYTES)
            if not any(self.gateway_key):
                raise _make_manifest_error(
                    "The gateway's key is zero: everyone could read messages encrypted to it."
                )
        if self.relay is not None:
            _check_url(self.relay)
        self._check_roster()

    def _check_roster(self) -> None:
        if not self.roster:
            return
        declared = get_protocol(self.study).count_members(self.study)
        if len(self.roster) != declared:
            raise _make_manifest_error(
                f"The roster has {len(self.roster)} members; the study declares {declared}.",
                "Change the roster or the study so that the numbers agree.",
            )
        for what, seen in (
            ("name", {member.name for member in self.roster}),
            ("key", {member.key for member in self.roster}),
        ):
            if len(seen) < len(self.roster):
                raise _make_manifest_error(
                    f"Two members of the roster have the same {what}.",
                    f"Give every member a different {what}.",
                )

    def to_bytes(self) -> bytes:
        """Return the manifest in its deterministic encoding."""
        content: dict[str, Any] = {
            "kind": _KIND,
            "version": _VERSION,
            "study": self.study.to_content(),
            "issuer_key": self.issuer_key,
            "epoch": self.epoch,
            "gateway_key": self.gateway_key,
            "roster": [[member.name, member.key] for member in self.roster],
            "relay": self.relay,
        }
        if self.schedule is not None:
            content["schedule"] = {"opens": self.schedule.opens, "window": self.schedule.window}
        return codec.dumps(content)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Decode a manifest; refuse bytes in any other form than that of `to_bytes`."""
        try:
            check_value_count(data, MAX_VALUES)
            content = codec.loads(data, MAX_MANIFEST_BYTES)
        except RemoteProtocolError as error:
            raise SpecError(
                "MANIFEST-001", f"{len(data)} bytes are not a manifest.", why=error.what
            ) from None
        if (
            not isinstance(content, dict)
            or set(content) - {"schedule"} != _KEYS
            or content["kind"] != _KIND
            or not isinstance(content["study"], dict)
        ):
            raise SpecError(
                "MANIFEST-001",
                f"{len(data)} bytes are not a manifest.",
                why="They have other content.",
            )
        if content["version"] != _VERSION:
            raise SpecError(
                "MANIFEST-001",
                "The manifest has a version that this shoal does not support.",
                fix="Upgrade shoal.",
            )
        try:
            study = parse_content(_convert_tuples(content["study"]))
        except ValidationError as error:
            first = explain(error)[0]
            raise SpecError(first.code, f"manifest  {first.what}", fix=first.fix) from None
        rest = cast("dict[str, Any]", content)
        manifest = cls(
            study,
            rest["issuer_key"],
            rest["gateway_key"],
            _parse_roster(rest["roster"]),
            rest["relay"],
            rest["epoch"],
            _parse_schedule(rest.get("schedule")),
        )
        if manifest.to_bytes() != data:
            raise SpecError(
                "MANIFEST-001",
                f"A manifest of {len(data)} bytes is not in the deterministic encoding.",
                why="A default is missing, or a number has another type.",
            )
        return manifest

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content: what a participant consents to."""
        return hashlib.sha256(_DOMAIN + self.to_bytes()).digest()

    @property
    def short_digest(self) -> str:
        """The first 48 bits of the digest, for people: ``7f3a-91c2-0be4``."""
        return shorten_digest(self.digest)


def is_reserved(name: str) -> bool:
    """Return whether a name means the aggregator, everyone, or an anonymous sender.

    Examples
    --------
    >>> is_reserved("aggregator"), is_reserved("site-0")
    (True, False)
    """
    return name in (AGGREGATOR, EVERYONE) or name.startswith(ANONYMOUS_PREFIX)


def shorten_digest(digest: bytes) -> str:
    """Return the first 48 bits of a digest, for people.

    Examples
    --------
    >>> shorten_digest(bytes.fromhex("7f3a91c20be4") + bytes(26))
    '7f3a-91c2-0be4'
    """
    text = digest[:6].hex()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def _convert_tuples(value: Any) -> Any:
    """Return the value with lists instead of tuples, as in a study file."""
    if isinstance(value, dict):
        return {key: _convert_tuples(item) for key, item in value.items()}
    return [_convert_tuples(item) for item in value] if isinstance(value, tuple) else value


def _parse_roster(entries: Any) -> tuple[RosterMember, ...]:
    if (
        not isinstance(entries, tuple)
        or len(entries) > MAX_ROSTER
        or not all(isinstance(entry, tuple) and len(entry) == 2 for entry in entries)
    ):
        raise _make_manifest_error(
            f"The roster is not a list of at most {MAX_ROSTER:,} pairs of name and key."
        )
    return tuple(RosterMember(name, key) for name, key in entries)


def _parse_schedule(entry: Any) -> Schedule | None:
    if entry is None:
        return None
    if not isinstance(entry, dict) or set(entry) != _SCHEDULE_KEYS:
        raise _make_manifest_error("The schedule does not have the two keys opens and window.")
    return Schedule(entry["opens"], entry["window"])


def _check_bytes(what: str, key: object, size: int) -> None:
    if not isinstance(key, bytes) or len(key) != size:
        raise _make_manifest_error(f"{what} is not {size} bytes.")


def _check_epoch(epoch: object, issuer_key: bytes | None) -> None:
    try:
        _LINE.validate_python(epoch, strict=True)
    except ValidationError:
        raise _make_manifest_error("The epoch is not a short line of plain text.") from None
    if issuer_key is None:
        raise _make_manifest_error(
            "The manifest has an epoch but no issuer's key.",
            "Give the key of the epoch's issuer too.",
        )


def _check_url(url: object) -> None:
    try:
        if (
            not isinstance(url, str)
            or len(url) > MAX_URL
            or not url.isascii()
            or not url.isprintable()
            or " " in url
        ):
            raise ValueError
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
        if host.rstrip(".").endswith(".onion"):
            raise _make_manifest_error(
                f"The relay's address {url!a:.90} is an onion service, which is reachable over Tor "
                "alone.",
                "Give a relay at https://host/path. Over Tor no relay is needed: shoal join URL "
                "--via tor",
            )
        if not is_safe or not host or parts.username is not None or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise _make_manifest_error(
            f"The relay's address {url!a:.60} cannot be used.",
            "Give https://host/path, without a name, a query or a fragment.",
        ) from None


def _make_manifest_error(what: str, fix: str | None = None) -> SpecError:
    return SpecError("MANIFEST-002", what, fix=fix)
