"""Taking part in a study over HTTP, from the study that was agreed to until it needs nothing more, through any number of restarts."""

from __future__ import annotations

from functools import partial

from shoal.clock import Clock
from shoal.crypto.credentials import Credential
from shoal.crypto.roster import Identity
from shoal.domain import Columns
from shoal.entropy import Entropy, require_system
from shoal.errors import ConsentError
from shoal.participant.client import Client
from shoal.participant.course import Course, Tell
from shoal.participant.credentials import check_place, credential_of, keep, registration_of, ticket_of
from shoal.participant.endings import Finished
from shoal.participant.identity import identity_for, seed_of
from shoal.participant.journal import Joined, Journal, Role
from shoal.participant.objections import in_another_role, met_elsewhere, would_be_shared
from shoal.participant.offers import Offer
from shoal.participant.packets import Packets
from shoal.participant.peers import peer_of
from shoal.participant.posting import Crowd, Posted, waits
from shoal.participant.wires import Wire, has_ticket, is_enrolled, wire_of
from shoal.protocols.base import Account, Computer, Ledger
from shoal.study.anonymity import has_tokens, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.forms import Enrolment

__all__ = ["Finished", "Tell", "run"]


async def run(
    journal: Journal,
    ledger: Ledger,
    offer: Offer,
    table: Columns | None,
    client: Client,
    clock: Clock,
    entropy: Entropy,
    computer: Computer | None = None,
    *,
    role: Role = "sharer",
    on_progress: Tell = lambda _: None,
) -> Finished:
    """Take part in a study that was agreed to, or go on with it, until it needs nothing more.

    Parameters
    ----------
    journal, ledger
        The participant's; both are of one file.
    offer, table
        The study (`shoal.participant.offers.take_up` has written it down), and the participant's data.
    client, clock, entropy
        The coordinator, the time, and where all that is drawn comes from.
    computer
        What runs joint computations, for this participant alone; None where the study has none.
    role
        What the participant wants to do now, which must be what it agreed to.
    on_progress
        Is told what goes on.

    Raises
    ------
    ConsentError
        ``CONSENT-001``: the study was not agreed to, or at another coordinator, or in another role.
    UsageError, RemoteProtocolError
        Something is left to send, and the study does not take it by this way: see `shoal.participant.ways.Via.allow`.
    StoreError
        The ledger's file cannot be written; nothing was sent that was not stored.
    RefusedError
        The coordinator does not take this participant.

    Privacy
    -------
    All that leaves with a price is reserved in the ledger before it is drawn, stored before it is sending, and sent as it is stored.
    Whoever only reads sends nothing, also not what the ledger holds for a preview.
    """
    require_system(entropy)
    with journal.hold(offer.digest):
        joined = journal.study(offer.digest)
        if joined is None or joined.standing in ("previewed", "left"):
            what = f"You have not agreed to the study {offer.manifest.short}."
            raise ConsentError("CONSENT-001", what, fix="Read its label and agree: shoal join URL --data FILE")
        if joined.key != offer.key:
            raise met_elsewhere(joined, offer.url)
        if joined.role != role:
            raise in_another_role(joined)
        if role == "reader" and ledger.unsent(offer.digest):
            raise would_be_shared(joined.title, joined.study)
        if joined.standing == "agreed" or journal.load(joined.study).letters:
            client.via.allow(offer.manifest)
        manifest, identity = offer.manifest, identity_for(offer.manifest, seed_of(journal, entropy))
        async with client.apart() as apart:
            if has_tokens(manifest):
                credential = await _registered(journal, manifest, joined, identity, client, entropy, on_progress)
                packets, crowd = Packets(journal, manifest, credential, entropy), Crowd(apart, manifest, identity.public)
                ticket = ticket_of(manifest, credential) if manifest.study.protocol == "anonml" else b""
                wire = _wire_with_tokens(manifest, joined, identity, packets, crowd, apart, clock, entropy, on_progress)
            else:
                if joined.standing == "agreed":
                    joined = await _enrol(journal, manifest, joined, identity, client, on_progress)
                ticket, wire = joined.ticket, wire_of(manifest, joined, identity, client, apart)
            peer = peer_of(manifest, table, identity, ticket=ticket, position=joined.position, role=joined.role)
            account = Account(ledger, manifest.digest, joined.source, joined.recipient, joined.title)
            return await Course(journal, joined, peer, account, wire, client, clock, entropy, computer, on_progress).run()


async def _enrol(journal: Journal, manifest: Manifest, joined: Joined, identity: Identity, client: Client, tell: Tell) -> Joined:
    """Enrol, unless that was done before or is not needed. Enrolling again gives the same name."""
    if is_enrolled(manifest, joined):
        return joined
    await client.insist(partial(client.via.check, manifest), partial(waits, tell))
    form = Enrolment(invitation=joined.invitation, ticket=joined.ticket.hex() if has_ticket(manifest) else None)
    enrolled = await client.insist(partial(client.enrol, joined.study, identity, form), partial(waits, tell))
    journal.enrolled(joined.study, enrolled.name, enrolled.position)
    tell("enrolled")
    found = journal.study(joined.study)
    assert found is not None
    return found


async def _registered(
    journal: Journal, manifest: Manifest, joined: Joined, identity: Identity, client: Client, entropy: Entropy, tell: Tell
) -> Credential:
    """The participant's credential: one that is here, of which nobody is told; or else one for which it registers, under its key."""
    found = credential_of(journal, manifest)
    if found is not None:
        check_place(manifest, found)
        return found
    assert manifest.issuer_key is not None
    issuer, scope = manifest.issuer_key, scope_of(manifest)
    await client.insist(partial(client.via.check, manifest), partial(waits, tell))
    registration = registration_of(journal, manifest, entropy)
    form = Enrolment(invitation=joined.invitation, commitment=registration.commitment(issuer, scope).hex())
    enrolled = await client.insist(partial(client.enrol, joined.study, identity, form), partial(waits, tell))
    credential = registration.accept(issuer, scope, bytes.fromhex(enrolled.issued or ""))
    check_place(manifest, credential)
    keep(journal, manifest, credential)
    journal.enrolled(joined.study, enrolled.name, enrolled.position)
    tell("registered")
    return credential


def _wire_with_tokens(
    manifest: Manifest,
    joined: Joined,
    identity: Identity,
    packets: Packets,
    crowd: Crowd,
    apart: Client,
    clock: Clock,
    entropy: Entropy,
    tell: Tell,
) -> Wire:
    """What carries packets, each at a time of its own; or updates, each at once."""
    if manifest.study.protocol == "anonml":
        return Posted(apart, joined.study, packets, crowd, clock, entropy)

    async def mint(question: str, number: int, body: bytes) -> bytes:
        await crowd.check(tell)
        return packets.token(question, number, body)

    return wire_of(manifest, joined, identity, apart, apart, mint)
