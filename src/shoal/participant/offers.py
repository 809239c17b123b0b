"""A study as a coordinator offers it, and the record that a participant agrees to it.

`shoal.participant.session` and ``shoal.cli.fleet`` fetch offers. A participant checks everything
in an offer: the manifest against its digest, its signature, and the key that the coordinator had
when the participant first contacted it. No manifest is used before these checks.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from shoal.entropy import Entropy, require_system
from shoal.errors import ConsentError, RemoteProtocolError, SpecError, UsageError
from shoal.participant.client import Client
from shoal.participant.consent import (
    other_coordinator_error,
    other_role_error,
    stored_answers_error,
)
from shoal.participant.journal import JoinedStudy, Journal, Role
from shoal.participant.keys import ensure_seed
from shoal.protocols.ledger import Ledger
from shoal.study.delivery import check_delivery
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest, shorten_digest
from shoal.text import escape_text
from shoal.transport.api import TICKET_BYTES
from shoal.transport.signing import verify_manifest

_DIGEST_DIGITS = 64
_MAX_LISTED = 12


@dataclass(frozen=True)
class Offer:
    """A study that the coordinator with a key offers at an address."""

    url: str
    study: StudyHandle
    key: bytes

    @property
    def manifest(self) -> Manifest:
        """The manifest of the study."""
        return self.study.manifest

    @property
    def digest(self) -> str:
        """Digest of the manifest, in hexadecimal."""
        return self.study.digest.hex()

    @classmethod
    def from_joined(cls, joined: JoinedStudy) -> Offer:
        """Return the offer that the participant agreed to, from the journal.

        A participant resumes with exactly that offer.
        """
        return cls(
            joined.url,
            _check_manifest(Manifest.from_bytes(joined.manifest), joined.url),
            joined.key,
        )


async def fetch_offer(
    client: Client,
    study: str | None = None,
    pinned: bytes | None = None,
    agreed: Collection[str] = (),
) -> Offer:
    """Fetch a study's manifest and check it.

    Parameters
    ----------
    study
        The digest or its beginning, with or without hyphens; None for the only open study.
    pinned
        The coordinator's key at the first contact, if there was one (`Journal.find_pinned_key`).
    agreed
        Digests of studies that the participant agreed to. If several studies are open, these are
        preferred.

    Raises
    ------
    UsageError
        ``USAGE-001``: there is no such study, or several.
    RemoteProtocolError
        ``AUTH-004``: the manifest does not match its digest, is not signed, or is signed with a
        different key than before. ``HOST-003``: the study would be less anonymous than its label
        says.
    """
    prefix = normalize_digest(study)
    digest = prefix if is_full_digest(prefix) else await _find_only_study(client, prefix, agreed)
    published = await client.fetch_manifest(digest)
    try:
        manifest = Manifest.from_bytes(published.manifest)
    except SpecError as error:
        raise RemoteProtocolError(
            "AUTH-004", "The coordinator published data that is not a manifest.", why=error.what
        ) from None
    if manifest.digest.hex() != digest:
        raise RemoteProtocolError(
            "AUTH-004",
            f"The coordinator published study {manifest.short_digest} under the digest "
            f"{shorten_digest(bytes.fromhex(digest))}.",
            why="The study was changed, or each participant is shown a different one.",
        )
    verify_manifest(published.key, manifest.digest, published.signature)
    if pinned not in (None, published.key):
        raise RemoteProtocolError(
            "AUTH-004",
            f"The coordinator at {escape_text(client.url)} has a different key than before.",
            why="It was set up again, or someone else answers in its place.",
            fix="Ask the study's analyst, by e-mail or telephone, whether the key was changed. If "
            "so, join under a different address.",
        )
    return Offer(client.url, _check_manifest(manifest, client.url), published.key)


def _check_manifest(manifest: Manifest, url: str) -> StudyHandle:
    """Return the handle of a study that can be as anonymous as its label says.

    The coordinator, at `url`, is not trusted to have checked this.
    """
    _check_relay_address(manifest, url)
    try:
        check_delivery(manifest)
    except SpecError as error:
        raise RemoteProtocolError(
            error.code,
            f"The study {escape_text(manifest.study.title)} cannot be joined as it is offered: "
            f"{error.what}",
            why=error.why,
            fix="Ask the study's analyst. Nothing was sent.",
        ) from None
    return StudyHandle(manifest)


def _check_relay_address(manifest: Manifest, url: str) -> None:
    """Raise ``NET-005`` for a relay on this machine, unless the coordinator is on it too.

    Otherwise a coordinator could make the participant send requests to its own local services.
    """
    if (
        manifest.relay is not None
        and _is_local_address(manifest.relay)
        and not _is_local_address(url)
    ):
        raise RemoteProtocolError(
            "NET-005",
            f"The study {escape_text(manifest.study.title)} names the relay "
            f"{escape_text(manifest.relay)}, which is an address of this computer; the "
            f"coordinator is at {escape_text(url)}.",
            why="A coordinator elsewhere must not choose what your program contacts on this "
            "computer. Nothing was sent to that address.",
            fix="Ask the study's analyst for a study with a public relay.",
        )


def _is_local_address(url: str) -> bool:
    """Return whether an address is one of this machine, in any notation of it."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    with suppress(OSError):
        # The short and the decimal notation: 127.1 and 2130706433.
        host = socket.inet_ntoa(socket.inet_aton(host))
    with suppress(ValueError):
        address = ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback or (mapped or address).is_unspecified
    return host == "localhost" or host.endswith(".localhost")


def record_consent(
    journal: Journal,
    offer: Offer,
    source: str,
    entropy: Entropy,
    *,
    role: Role = "sharer",
    invitation: str | None = None,
    is_reviewed: bool = False,
) -> JoinedStudy:
    """Record that the participant agrees to a study.

    Parameters
    ----------
    source
        Name of the data that the study is about.
    invitation
        The code that the participant was invited with.
    is_reviewed
        See `Journal.record_study`, which also says what is refused.
    """
    joined = replace(
        make_joined_study(offer, source),
        role=role,
        ticket=_draw_ticket(journal, offer, entropy),
        invitation=invitation,
        standing="agreed",
    )
    return journal.record_study(joined, is_reviewed=is_reviewed)


def _draw_ticket(journal: Journal, offer: Offer, entropy: Entropy) -> bytes:
    """Draw a ticket if the study has tickets; the journal keeps the first one of a study."""
    # A backup that is made from now on has the same keys, and so is the same participant.
    ensure_seed(journal, entropy)
    return require_system(entropy).bytes(TICKET_BYTES) if offer.study.has_tickets else b""


def find_agreed(journal: Journal, ledger: Ledger, offer: Offer, role: Role) -> JoinedStudy:
    """Return the record of a study that the participant agreed to in a role.

    Raises
    ------
    ConsentError
        ``CONSENT-001``: the participant has not agreed to the study, agreed to it at another
        coordinator or in the other role, or is a reader with stored answers.
    """
    joined = journal.find_study(offer.digest)
    if joined is None or joined.standing in ("previewed", "left"):
        raise ConsentError(
            "CONSENT-001",
            f"You have not agreed to the study {offer.manifest.short_digest}.",
            fix="Read its label and agree: shoal join URL --data FILE",
        )
    if joined.key != offer.key:
        raise other_coordinator_error(joined, offer.url)
    if joined.role != role:
        raise other_role_error(joined)
    if role == "reader" and ledger.list_unsent(offer.digest):
        raise stored_answers_error(joined.title, joined.study)
    return joined


def make_joined_study(offer: Offer, source: str) -> JoinedStudy:
    """Return the record of a study that is not agreed to yet."""
    manifest = offer.manifest
    return JoinedStudy(
        offer.digest,
        offer.url,
        offer.url,
        offer.key,
        manifest.to_bytes(),
        manifest.study.title,
        source,
    )


async def _find_only_study(client: Client, prefix: str, agreed: Collection[str]) -> str:
    """Return the digest of the only study that matches."""
    listed = [one for one in await client.fetch_studies() if _is_digest(one["digest"])]
    found = [
        one
        for one in listed
        if (one["digest"].startswith(prefix) if prefix else one["status"] == "open")
    ]
    found = [one for one in found if not prefix and one["digest"] in agreed] or found
    if len(found) == 1:
        return str(found[0]["digest"])
    names = "; ".join(
        f"{shorten_digest(bytes.fromhex(one['digest']))} {escape_text(one['title'][:200])}"
        for one in (found or listed)[:_MAX_LISTED]
    )
    if found:
        raise UsageError(
            "USAGE-001",
            f"The coordinator at {escape_text(client.url)} offers {len(found)} studies: {names}.",
            fix="Choose one: --study DIGEST",
        )
    condition = f"begins with {prefix!a:.70}" if prefix else "is open"
    raise UsageError(
        "USAGE-001",
        f"No study at {escape_text(client.url)} {condition}.",
        why=f"It offers: {names}." if names else "It offers no studies.",
        fix="Choose one: --study DIGEST"
        if names
        else "Ask the analyst for the address, and when the study begins.",
    )


def normalize_digest(study: str | None) -> str:
    """Return the digits of a digest or of its beginning, without hyphens; empty for None."""
    return (study or "").replace("-", "").lower()


def is_full_digest(study: str | None) -> bool:
    """Return whether a text is a whole digest, so that only this study can match it."""
    return _is_digest(normalize_digest(study))


def _is_digest(text: str) -> bool:
    return len(text) == _DIGEST_DIGITS and set(text) <= set("0123456789abcdef")
