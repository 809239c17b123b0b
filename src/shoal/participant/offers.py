"""A study as a coordinator offers it: its manifest, checked against digest, signature and the key that was seen first; and taking it up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from shoal.entropy import Entropy, require_system
from shoal.errors import RemoteProtocolError, SpecError, UsageError
from shoal.names import shown
from shoal.participant.client import Client
from shoal.participant.identity import seed_of
from shoal.participant.journal import Joined, Journal, Role, Standing
from shoal.participant.wires import has_ticket
from shoal.study.anonymity import check_delivery
from shoal.study.manifest import Manifest, short
from shoal.transport.forms import TICKET_BYTES
from shoal.transport.signing import verify_published

_DIGITS = 64
_MOST_LISTED = 12


@dataclass(frozen=True)
class Offer:
    """A study that is offered at an address, by the coordinator with a key.

    Parameters
    ----------
    url, key
        Where, and by whom.
    manifest, digest
        The study, and its digest in hexadecimal.
    """

    url: str
    manifest: Manifest
    digest: str
    key: bytes

    @classmethod
    def of(cls, joined: Joined) -> Offer:
        """The offer that was taken up, as the journal has it: a participant goes on by what it agreed to."""
        return cls(joined.url, _checked(Manifest.from_bytes(joined.manifest)), joined.study, joined.key)


async def fetch(client: Client, study: str | None = None, pinned: bytes | None = None, agreed: Collection[str] = ()) -> Offer:
    """Fetch a study's manifest and check it.

    Parameters
    ----------
    client
        The coordinator.
    study
        The digest, or its beginning, with or without hyphens; None for the only one that is open.
    pinned
        The key under which the coordinator was met first, if it was (`Journal.pinned`).
    agreed
        Digests of studies that were agreed to: of several that are open, the one of these is meant.

    Raises
    ------
    UsageError
        ``USAGE-001``: there is no such study, or several.
    RemoteProtocolError
        ``AUTH-004``: the manifest is another one than its name says, is not signed, or is signed by another key than before. ``HOST-003``:
        the study would not be as anonymous as its label says.
    """
    wanted = digits_of(study)
    digest = wanted if names_all(wanted) else await _only(client, wanted, agreed)
    published = await client.published(digest)
    try:
        manifest = Manifest.from_bytes(published.manifest)
    except SpecError as error:
        raise RemoteProtocolError("AUTH-004", "The coordinator publishes something that is no manifest.", why=error.what) from None
    if manifest.digest.hex() != digest:
        what = f"The coordinator publishes study {manifest.short} under the digest {short(bytes.fromhex(digest))}."
        raise RemoteProtocolError("AUTH-004", what, why="Somebody has changed it, or everyone is given another one.")
    verify_published(published.key, manifest.digest, published.signature)
    if pinned not in (None, published.key):
        raise RemoteProtocolError(
            "AUTH-004",
            f"The coordinator at {shown(client.url)} has another key than before.",
            why="It was set up anew, or somebody answers in its place.",
            fix="Ask its analyst, by another way than this one, whether the key was changed; if so, take part under another address.",
        )
    return Offer(client.url, _checked(manifest), digest, published.key)


def _checked(manifest: Manifest) -> Manifest:
    """A manifest whose study can be as anonymous as it says: nobody who offers one is trusted to have seen to it."""
    try:
        check_delivery(manifest)
    except SpecError as error:
        what = f"The study {shown(manifest.study.title)} cannot be joined as it is offered: {error.what}"
        raise RemoteProtocolError(error.code, what, why=error.why, fix="Ask its analyst. Nothing was sent.") from None
    return manifest


def take_up(
    journal: Journal,
    offer: Offer,
    source: str,
    entropy: Entropy,
    *,
    standing: Standing = "agreed",
    role: Role = "sharer",
    invitation: str | None = None,
    is_reviewed: bool = False,
) -> Joined:
    """Write down that the participant agrees to a study, or looks at it (``previewed``); its ticket, if it has one, is drawn once for all.

    Parameters
    ----------
    journal, offer, source
        Where it is written, the study, and which data it is about.
    entropy
        Where the ticket comes from.
    standing, role, invitation
        How the study stands, whether the participant answers, and the code it was invited with.
    is_reviewed
        See `Journal.enter`, which also says what is refused.
    """
    # A backup that is made from now on has the same keys, and so is known to be the same participant.
    seed_of(journal, entropy)
    ticket = require_system(entropy).bytes(TICKET_BYTES) if has_ticket(offer.manifest) else b""
    joined = replace(joined_of(offer, source), role=role, ticket=ticket, invitation=invitation, standing=standing)
    return journal.enter(joined, is_reviewed=is_reviewed)


def joined_of(offer: Offer, source: str) -> Joined:
    """A study that was looked at just now, for the first time."""
    manifest = offer.manifest
    return Joined(offer.digest, offer.url, offer.url, offer.key, manifest.to_bytes(), manifest.study.title, source)


async def _only(client: Client, prefix: str, agreed: Collection[str]) -> str:
    """The digest of the one study that is meant."""
    listed = [one for one in await client.studies() if _is_digest(one["digest"])]
    found = [one for one in listed if (one["digest"].startswith(prefix) if prefix else one["status"] == "open")]
    found = [one for one in found if not prefix and one["digest"] in agreed] or found
    if len(found) == 1:
        return str(found[0]["digest"])
    names = "; ".join(f"{short(bytes.fromhex(one['digest']))} {shown(one['title'][:200])}" for one in (found or listed)[:_MOST_LISTED])
    meant = f"begins with {prefix!a:.70}" if prefix else "is open"
    if found:
        raise UsageError("USAGE-001", f"At {shown(client.url)} are {len(found)} studies: {names}.", fix="Name one: --study DIGEST")
    why = f"There is: {names}." if names else "There is none at all."
    fix = "Name one: --study DIGEST" if names else "Ask the analyst for the address, and when the study begins."
    raise UsageError("USAGE-001", f"At {shown(client.url)} no study {meant}.", why=why, fix=fix)


def digits_of(study: str | None) -> str:
    """The digits by which a study is named, without hyphens; none where it is not named."""
    return (study or "").replace("-", "").lower()


def names_all(study: str | None) -> bool:
    """Whether a study is named by its whole digest, so that whatever is shown in its place is known for something else."""
    return _is_digest(digits_of(study))


def _is_digest(text: str) -> bool:
    return len(text) == _DIGITS and set(text) <= set("0123456789abcdef")
