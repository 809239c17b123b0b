"""The manifest: a study plus all that must be the same for everyone, and the digest that stands for it.

A participant consents to the digest, and every message carries it. It is taken over the parsed content in the one deterministic
encoding, so comments, the order of keys and the way a number is written make no difference; the order of features does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import TypeAdapter, ValidationError

from shoal.crypto.roster import is_usable
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages import codec
from shoal.messages.measuring import check_values
from shoal.names import shown
from shoal.protocols.driver import STRANGER
from shoal.protocols.effects import AGGREGATOR, EVERYONE
from shoal.study.explain import explain
from shoal.study.spec import Study
from shoal.study.values import Line

MAX_ROSTER = 10_000
MAX_VALUES = 1 << 18
MAX_URL = 500

_DOMAIN = b"shoal manifest 1\x00"
_KIND, _VERSION = "shoal manifest", 1
_KEYS = {"kind", "version", "study", "issuer_key", "epoch", "gateway_key", "roster", "relay"}
_ISSUER_BYTES, _KEY_BYTES = 96, 32
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LINE: TypeAdapter[str] = TypeAdapter(Line)


@dataclass(frozen=True)
class Member:
    """A database or an organisation on the roster: its name and its Ed25519 public key, 32 bytes."""

    name: str
    key: bytes

    def __post_init__(self) -> None:
        try:
            _LINE.validate_python(self.name, strict=True)
        except ValidationError:
            text = str(self.name)
            what = f"{shown(text[:60])}{'...' * (len(text) > 60)}" if text.strip() else "empty"
            raise _unusable(f"A member's name cannot be {what}.", "Give a short line of plain text.") from None
        if is_reserved(self.name):
            raise _unusable(f"A member cannot be called {shown(self.name)}.", "Give it another name: this one has a meaning in protocols.")
        _check_bytes(f"The key of {self.name}", self.key, _KEY_BYTES)
        if not is_usable(self.key):
            raise _unusable(f"The key of {self.name} is not one that an Ed25519 key pair has.", "Ask the member for its public key again.")

    def public_key(self) -> Ed25519PublicKey:
        """The key that verifies the member's signatures."""
        return Ed25519PublicKey.from_public_bytes(self.key)


@dataclass(frozen=True)
class Manifest:
    """A study and the keys and addresses that go with it.

    Parameters
    ----------
    study
        The study.
    issuer_key
        Public key of the issuer of anonymous credentials: a compressed point of BLS12-381's G2, 96 bytes.
    epoch
        Whose credentials count: those that were issued for this epoch, to members of any study in it; None for those of this study alone.
    gateway_key
        X25519 key to which anonymous packets are sealed, 32 bytes.
    roster
        Members of a secure sum, each with a name and a key of its own.
    relay
        Address of the relay: https, or http to this machine; not an onion service, which is reached over Tor alone.
    """

    study: Study
    issuer_key: bytes | None = None
    gateway_key: bytes | None = None
    roster: tuple[Member, ...] = ()
    relay: str | None = None
    epoch: str | None = None

    def __post_init__(self) -> None:
        if self.issuer_key is not None:
            _check_bytes("The issuer's key", self.issuer_key, _ISSUER_BYTES)
            if self.issuer_key[0] & 0b1100_0000 != 0b1000_0000:
                raise _unusable("The issuer's key is not a compressed point, or is the point at infinity.")
        if self.epoch is not None:
            _check_epoch(self.epoch, self.issuer_key)
        if self.gateway_key is not None:
            _check_bytes("The gateway's key", self.gateway_key, _KEY_BYTES)
            if not any(self.gateway_key):
                raise _unusable("The gateway's key is zero: what is sealed to it is open to everyone.")
        if self.relay is not None:
            _check_url(self.relay)
        self._check_roster()

    def _check_roster(self) -> None:
        if not self.roster:
            return
        declared = self.study.sdq.n_databases if self.study.sdq else self.study.pfds.n_holders if self.study.pfds else 0
        if len(self.roster) != declared:
            raise _unusable(f"The roster has {len(self.roster)} members; the study declares {declared}.", "Make the two agree.")
        for what, seen in (("name", {member.name for member in self.roster}), ("key", {member.key for member in self.roster})):
            if len(seen) < len(self.roster):
                raise _unusable(f"Two members of the roster have the same {what}.", f"Every member has a {what} of its own.")

    def to_bytes(self) -> bytes:
        """The manifest in its one encoding."""
        content = {
            "kind": _KIND,
            "version": _VERSION,
            "study": self.study.content(),
            "issuer_key": self.issuer_key,
            "epoch": self.epoch,
            "gateway_key": self.gateway_key,
            "roster": [[member.name, member.key] for member in self.roster],
            "relay": self.relay,
        }
        return codec.dumps(content)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """The manifest that some bytes are; bytes in any other form than `to_bytes` gives are refused."""
        try:
            check_values(data, MAX_VALUES)
            content = codec.loads(data)
        except RemoteProtocolError as error:
            raise SpecError("MANIFEST-001", f"{len(data)} bytes are not a manifest.", why=error.what) from None
        if not isinstance(content, dict) or set(content) != _KEYS or content["kind"] != _KIND or not isinstance(content["study"], dict):
            raise SpecError("MANIFEST-001", f"{len(data)} bytes are not a manifest.", why="Their content is something else.")
        if content["version"] != _VERSION:
            raise SpecError("MANIFEST-001", "The manifest is of a version that is not known here.", fix="Upgrade shoal.")
        try:
            study = Study.from_content(_with_lists(content["study"]))
        except ValidationError as error:
            first = explain(error)[0]
            raise SpecError(first.code, f"manifest  {first.what}", fix=first.fix) from None
        rest = cast("dict[str, Any]", content)
        manifest = cls(study, rest["issuer_key"], rest["gateway_key"], _roster(rest["roster"]), rest["relay"], rest["epoch"])
        if manifest.to_bytes() != data:
            raise SpecError(
                "MANIFEST-001",
                f"A manifest of {len(data)} bytes is not in its one form.",
                why="A default is left out, or a number is of another kind.",
            )
        return manifest

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content: what a participant consents to."""
        return hashlib.sha256(_DOMAIN + self.to_bytes()).digest()

    @property
    def short(self) -> str:
        """The first 48 bits of the digest, for people: ``7f3a-91c2-0be4``."""
        return short(self.digest)


def is_reserved(name: str) -> bool:
    """Whether a name means somebody else than a participant: the aggregator, everyone, or whoever sends anonymously.

    Examples
    --------
    >>> is_reserved("aggregator"), is_reserved("site-0")
    (True, False)
    """
    return name in (AGGREGATOR, EVERYONE) or name.startswith(STRANGER)


def short(digest: bytes) -> str:
    """The first 48 bits of a digest, for people.

    Examples
    --------
    >>> short(bytes.fromhex("7f3a91c20be4") + bytes(26))
    '7f3a-91c2-0be4'
    """
    text = digest[:6].hex()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def _with_lists(value: Any) -> Any:
    """Arrays as lists, which is how a study file has them."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, tuple) else value


def _roster(entries: Any) -> tuple[Member, ...]:
    if (
        not isinstance(entries, tuple)
        or len(entries) > MAX_ROSTER
        or not all(isinstance(entry, tuple) and len(entry) == 2 for entry in entries)
    ):
        raise _unusable(f"The roster is not a list of at most {MAX_ROSTER:,} pairs of name and key.")
    return tuple(Member(name, key) for name, key in entries)


def _check_bytes(what: str, key: object, size: int) -> None:
    if not isinstance(key, bytes) or len(key) != size:
        raise _unusable(f"{what} is not {size} bytes.")


def _check_epoch(epoch: object, issuer_key: bytes | None) -> None:
    try:
        _LINE.validate_python(epoch, strict=True)
    except ValidationError:
        raise _unusable("The epoch is not a short line of plain text.") from None
    if issuer_key is None:
        raise _unusable("The manifest has an epoch and no issuer's key.", "An epoch is one of an issuer: give its key too.")


def _check_url(url: object) -> None:
    try:
        if not isinstance(url, str) or len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
        if host.rstrip(".").endswith(".onion"):
            raise _unusable(
                f"The relay's address {url!a:.90} is an onion service, which nobody reaches but over Tor.",
                "Give a relay at https://host/path; whoever goes over Tor needs none: shoal join URL --via tor",
            )
        if not is_safe or not host or parts.username is not None or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise _unusable(
            f"The relay's address {url!a:.60} cannot be used.", "Give https://host/path, without a name, a query or a fragment."
        ) from None


def _unusable(what: str, fix: str | None = None) -> SpecError:
    return SpecError("MANIFEST-002", what, fix=fix)
