"""Enrol, take part, keep the results.

`shoal.participant.session` calls `run` with an open `StudyContext`, and writes the results with
the functions below: the signed release of a PFDS holder, or the model that the coordinator
published.

Two rules must hold. `run` can be interrupted and called again at any point. A personal model
contains its holder's rows without noise, so no function here writes it.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from shoal.crypto.credentials.issuance import Credential
from shoal.crypto.identity import Identity
from shoal.entropy import Entropy, require_system
from shoal.errors import RemoteProtocolError, StoreError, UsageError
from shoal.files import write_new
from shoal.participant.anonymous_delivery import AnonymitySet, PacketStore, ScheduledDelivery
from shoal.participant.client import Client
from shoal.participant.consent import refuse_if_too_late_to_join, too_late_to_join_error
from shoal.participant.delivery import (
    Delivery,
    ProgressCallback,
    StudyContext,
    is_enrolled,
    make_delivery,
)
from shoal.participant.driver import ParticipationResult, StudyDriver
from shoal.participant.keys import (
    check_partition,
    derive_identity,
    derive_ticket,
    ensure_registration,
    ensure_seed,
    find_credential,
    store_credential,
)
from shoal.participant.reading import BroadcastReader, draw_reading_times
from shoal.protocols.base import JointComputation
from shoal.protocols.ddml.messages import DDMLUpdate
from shoal.protocols.machines import PeerState
from shoal.protocols.pfds.aggregator import read_shared_model
from shoal.protocols.pfds.dataset import draw_dataset
from shoal.protocols.pfds.paper.peer import PFDSPaperSharerState
from shoal.protocols.pfds.paper.synthesis import decode_dataset
from shoal.protocols.pfds.peer import PFDSPeerState
from shoal.releases.artifact import write_signed_release
from shoal.releases.content import PFDSRelease
from shoal.study.delivery import compute_scope
from shoal.study.handle import StudyHandle
from shoal.study.protocol import EncodedRows, Seat
from shoal.text import escape_text
from shoal.transport.api import Enrolment

__all__ = ["ParticipationResult", "ProgressCallback", "run"]


async def run(
    context: StudyContext, rows: EncodedRows | None, computation: JointComputation | None = None
) -> ParticipationResult:
    """Take part in a study until it needs nothing more; resume if an earlier run has begun.

    Parameters
    ----------
    rows
        The participant's data, encoded; a reader may have none.
    computation
        Runs joint computations for this participant alone; None if the study has none.

    Raises
    ------
    UsageError, RemoteProtocolError
        Answers are left to send, and the study does not accept them over this network path: see
        `shoal.participant.network.base.NetworkPath.check_allowed`.
    StoreError
        The ledger's file cannot be written. Nothing was sent that was not stored.
    RefusedError
        The coordinator does not accept this participant.

    Privacy
    -------
    Everything that leaves with a price is reserved in the ledger before it is drawn, stored before
    it is marked as sending, and sent as it is stored. A reader sends nothing, including answers
    that the ledger has stored for a preview.
    """
    entropy = require_system(context.entropy)
    study, manifest, joined = context.study, context.study.manifest, context.joined
    if joined.standing == "agreed" or context.journal.load(joined.study).messages:
        context.client.network_path.check_allowed(manifest)
    identity = derive_identity(manifest, ensure_seed(context.journal, entropy))
    async with context.client.open_isolated() as isolated_client:
        delivery: Delivery
        if study.has_tokens:
            credential = await _register(context, identity)
            ticket = derive_ticket(study, credential) if study.protocol.has_packets else b""
            delivery = _make_token_delivery(context, identity, credential, ticket, isolated_client)
        else:
            if joined.standing == "agreed":
                context = await _enrol(context, identity)
            ticket = context.joined.ticket
            delivery = make_delivery(context, identity, isolated_client)
        seat = Seat(identity, ticket, context.joined.position, joined.role == "reader")
        peer = study.make_peer(rows, seat)
        return await StudyDriver(context, peer, delivery, computation).run()


async def _enrol(context: StudyContext, identity: Identity) -> StudyContext:
    """Enrol if the study needs it and it was not done before; return the updated context.

    Enrolling again gives the same name.
    """
    study, joined, client = context.study, context.joined, context.client
    if is_enrolled(context):
        return context
    await context.retry(partial(client.network_path.check, study))
    form = Enrolment(
        invitation=joined.invitation, ticket=joined.ticket.hex() if study.has_tickets else None
    )
    enrolled = await context.retry(partial(client.enrol, joined.study, identity, form))
    context.journal.record_enrolment(joined.study, enrolled.name, enrolled.position)
    context.on_progress("enrolled")
    found = context.journal.find_study(joined.study)
    assert found is not None
    return replace(context, joined=found)


async def _register(context: StudyContext, identity: Identity) -> Credential:
    """Return the participant's credential; register for one if none is stored.

    A stored credential is used without contacting the issuer.
    """
    study, joined, client = context.study, context.joined, context.client
    manifest = study.manifest
    found = find_credential(context.journal, manifest)
    if found is not None:
        check_partition(study, found)
        return found
    assert manifest.issuer_key is not None
    refuse_if_too_late_to_join(study, context.clock.now())
    issuer, scope = manifest.issuer_key, compute_scope(manifest)
    await context.retry(partial(client.network_path.check, study))
    registration = ensure_registration(context.journal, manifest, context.entropy)
    form = Enrolment(
        invitation=joined.invitation, commitment=registration.make_commitment(issuer, scope).hex()
    )
    enrolled = await context.retry(partial(client.enrol, joined.study, identity, form))
    credential = registration.accept(issuer, scope, bytes.fromhex(enrolled.issued or ""))
    check_partition(study, credential)
    store_credential(context.journal, manifest, credential)
    context.journal.record_enrolment(joined.study, enrolled.name, enrolled.position)
    context.on_progress("registered")
    return credential


def _make_token_delivery(
    context: StudyContext,
    identity: Identity,
    credential: Credential,
    ticket: bytes,
    isolated_client: Client,
) -> Delivery:
    """Return the delivery with tokens: packets at random times, or updates without delay.

    Raise ``CONSENT-001`` if the time to join has passed for the participant's question.
    """
    study = context.study
    packets = PacketStore(context.journal, study, credential, context.entropy)
    anonymity_set = AnonymitySet(isolated_client, study, identity.public_key)
    if study.protocol.has_packets:
        own_phases = [phase for phase, n in enumerate(study.count_answers(ticket)) if n]
        last, now = study.schedule.get_window(max(own_phases)), context.clock.now()
        saved = context.journal.load(context.joined.study)
        if context.joined.standing == "agreed" and saved.state is None and now >= last.joins_until:
            raise too_late_to_join_error(study.study.title, last.joins_until, now)
        broadcasts = BroadcastReader(
            study,
            context.joined.key,
            own_phases,
            isolated_client.network_path,
            context.clock,
            context.on_progress,
            saved.cursor,
        )
        return ScheduledDelivery(
            isolated_client,
            context.joined.study,
            packets,
            anonymity_set,
            broadcasts,
            draw_reading_times(study, last, now, context.entropy),
            context.clock,
            context.entropy,
        )

    async def mint(question: str, number: int, update: DDMLUpdate) -> bytes:
        await anonymity_set.check_membership(context.on_progress)
        return packets.mint_token(question, number, update)

    return make_delivery(context, identity, isolated_client, mint)


RELEASE_NAME, MODEL_NAME = "release", "model.json"
_ANOTHER_DIRECTORY = "Choose another directory: --out DIR"


def make_release(study: StudyHandle, state: PeerState, entropy: Entropy) -> PFDSRelease | None:
    """Return the release of a PFDS holder; None if nothing was shared, or in other protocols.

    Parameters
    ----------
    state
        Last state of the peer. It contains the published pooled model, or the holder's own private
        release.
    entropy
        Draws the rows of variant ``plus`` from the model; the study declares their number.

    Privacy
    -------
    Free: everything in it follows from what was published.
    """
    manifest = study.manifest
    if isinstance(state, PFDSPaperSharerState):
        if state.data is None:
            return None
        data = decode_dataset(study.params, state.data)
        return PFDSRelease(manifest, data, is_simulated=False)
    if not isinstance(state, PFDSPeerState) or state.published is None:
        return None
    model = read_shared_model(study.params, state.published)
    data = draw_dataset(model, study.params.size, entropy)
    return PFDSRelease(manifest, data, is_simulated=False, model=model)


def write_release(directory: Path, release: PFDSRelease, signer: str, identity: Identity) -> Path:
    """Write a signed release into a directory; return its path. Create the directory."""
    path = prepare_directory(directory) / RELEASE_NAME
    write_signed_release(path, release, signer, identity, is_inferred=False)
    return path


def write_model(directory: Path, content: bytes) -> Path:
    """Write a model as the coordinator published it, if it is a JSON object; return its path.

    A file with other content is never overwritten.
    """
    try:
        if not isinstance(json.loads(content), dict):
            raise ValueError
    except (ValueError, RecursionError):
        what = f"The coordinator sent {len(content)} bytes that are not a model."
        raise RemoteProtocolError(
            "NET-002", what, fix="Ask the study's analyst for the model, by e-mail for example."
        ) from None
    path = prepare_directory(directory) / MODEL_NAME
    try:
        write_new(path, content, fix=_ANOTHER_DIRECTORY, mode=0o600)
    except UsageError:
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            what = f"{escape_text(str(path))} already exists with other content."
            raise UsageError("NEW-001", what, fix="Choose a new directory: --out DIR") from None
    return path


def prepare_directory(directory: Path) -> Path:
    """Create a directory if needed and check that it can be written; return it.

    The check runs before anything is spent, so that a study does not end with this error.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13))
    except (OSError, ValueError) as error:
        raise _unwritable_error(directory, error) from None
    return directory


def _unwritable_error(directory: Path, error: OSError | ValueError) -> StoreError:
    reason = (isinstance(error, OSError) and error.strerror) or "this is not a valid directory name"
    return StoreError(
        "NEW-001",
        f"{escape_text(str(directory))} cannot be written: {reason}.",
        fix=_ANOTHER_DIRECTORY,
    )
