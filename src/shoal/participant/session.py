"""A participant in contact with one coordinator: offers, consent, previews, taking part.

``shoal join`` and ``shoal.cli.fleet`` open a `ParticipantSession` and call its methods step by
step.

Two rules must hold. Nothing is sent under the participant's name before it has agreed. No answer
that will be sent is drawn before that: `shoal.participant.preview` draws examples.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.clock import Clock
from shoal.crypto.identity import Identity
from shoal.entropy import Entropy, require_system
from shoal.errors import TransportError, UsageError
from shoal.mpyc.runner import MPyCWorkers
from shoal.participant.client import Client
from shoal.participant.consent import (
    PricedOffer,
    other_coordinator_error,
    other_role_error,
    price_offer,
    refuse_if_over_limits,
    refuse_if_voided,
    stored_answers_error,
    study_changed_error,
    study_not_named_error,
)
from shoal.participant.delivery import ProgressCallback, StudyContext, report_retry
from shoal.participant.driver import ParticipationResult
from shoal.participant.journal import (
    JOINED_STATUSES,
    JoinedStudy,
    Journal,
    Role,
    find_agreed_versions,
)
from shoal.participant.keys import derive_identity, ensure_seed
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.network import NetworkPath
from shoal.participant.offers import (
    Offer,
    fetch_offer,
    find_agreed,
    make_joined_study,
    normalize_digest,
    record_consent,
)
from shoal.participant.preview import ShownAnswer, draw_example, list_sent_answers
from shoal.participant.runner import make_release, run, write_model, write_release
from shoal.privacy.ledger.state import HELD_STATES, LedgerEntry
from shoal.study.handle import StudyHandle
from shoal.study.protocol import EncodedRows
from shoal.transport.api import MAX_WAIT_SECONDS, MessagePage

_MIN_DIGITS = 12
"""Fewest digits of a digest that identify a study."""
_MAX_NUMBER = 10**15 - 1
"""A number larger than that of any message: a poll after it returns the status only."""


def void_held(ledger: LedgerFile, study: str) -> list[LedgerEntry]:
    """Void each release of a study that is held and was never sent; return these releases."""
    held = _list_held(ledger, study)
    for entry in held:
        ledger.void(study, entry.release.question)
    return held


@dataclass
class ParticipantSession:
    """A participant's file and a connection to one coordinator; the methods are steps of joining.

    Parameters
    ----------
    ledger, journal
        Both are in the same file.
    """

    ledger: LedgerFile
    journal: Journal
    client: Client
    clock: Clock
    entropy: Entropy

    async def fetch_offer(self, study: str | None, *, is_review: bool = False) -> Offer:
        """Return the study as the coordinator offers it, or else as the participant joined it.

        The journal's record is used if the coordinator cannot be reached or does not list the
        study. If `study` is None and several studies are open, the one that the participant has
        agreed to and not finished is returned.

        Parameters
        ----------
        is_review
            Whether the participant reads a changed study again: the journal is not used.
        """
        digits, pinned = normalize_digest(study), self.journal.find_pinned_key(self.client.url)
        if is_review:
            return await fetch_offer(self.client, study, pinned)
        known = [
            one
            for one in self.journal.list_studies()
            if one.url == self.client.url and one.study.startswith(digits)
        ]
        agreed = [one for one in known if one.standing == "agreed"]
        try:
            return await fetch_offer(self.client, study, pinned, {one.study for one in agreed})
        except (TransportError, UsageError):
            found = agreed or [one for one in known if one.standing in JOINED_STATUSES]
            if len(found) != 1:
                raise
            return Offer.from_joined(found[0])

    def find_joined(self, offer: Offer) -> JoinedStudy | None:
        """Return the journal's record of a study that was agreed to and not left, if any."""
        known = self.journal.find_study(offer.digest)
        return known if known is not None and known.standing in JOINED_STATUSES else None

    def is_known_coordinator(self, offer: Offer) -> bool:
        """Return whether an earlier study had the same address and coordinator key."""
        return any(
            one.url == offer.url
            and one.key == offer.key
            and one.standing in (*JOINED_STATUSES, "left")
            for one in self.journal.list_studies()
        )

    def refuse_if_changed(self, offer: Offer) -> None:
        """Raise ``CONSENT-001`` if the participant agreed to another version of the study.

        Call it before the label is shown: the study must not look like a new one.
        """
        for one in self._find_agreed_versions(offer):
            raise study_changed_error(one, offer.digest)

    def refuse_other_coordinator(self, offer: Offer) -> None:
        """Raise ``CONSENT-001`` if the journal has the study of another coordinator."""
        known = self.journal.find_study(offer.digest)
        if known is not None and known.key != offer.key:
            raise other_coordinator_error(known, offer.url)

    def refuse_if_not_named(self, offer: Offer, study: str | None) -> None:
        """Raise ``CONSENT-001`` for a study of a known coordinator that ``--study`` does not name.

        This applies to a study that is new or was left, if there is no person to ask for consent.
        """
        if len(normalize_digest(study)) >= _MIN_DIGITS:
            return
        known = self.journal.find_study(offer.digest)
        # A participant who left has declined, and --yes alone does not revoke that.
        is_met = known is not None and known.standing != "left"
        if not is_met and any(
            one.url == offer.url or one.key == offer.key for one in self.journal.list_studies()
        ):
            raise study_not_named_error(
                offer.manifest.study.title, offer.url, offer.digest, has_left=known is not None
            )

    def refuse_role(self, offer: Offer, role: Role) -> None:
        """Raise if the study has no such role, or the participant has agreed to the other one.

        The codes are ``HOST-003`` and ``CONSENT-001``.
        """
        offer.study.check_role(is_reader=role == "reader")
        joined = self.find_joined(offer)
        if joined is not None and joined.role != role:
            raise other_role_error(joined)
        if role == "reader" and _list_held(self.ledger, offer.digest):
            raise stored_answers_error(offer.manifest.study.title, offer.digest)

    def _find_agreed_versions(self, offer: Offer) -> list[JoinedStudy]:
        return find_agreed_versions(self.journal.list_studies(), make_joined_study(offer, ""))

    def price_offer(self, offer: Offer, source: str) -> PricedOffer:
        """Return the study with its label for this participant."""
        return price_offer(
            offer.study, self.ledger, source, self.clock.now(), self.client.network_path.name
        )

    def refuse_if_voided(self, offer: Offer) -> None:
        """Raise ``BUDGET-005`` if answers to the study were drawn and voided."""
        refuse_if_voided(offer.manifest, self.ledger)

    def refuse_if_over_limits(self, priced: PricedOffer, max_epsilon: float | None) -> None:
        """Raise if the whole study costs more than the participant allows.

        See `shoal.participant.consent.refuse_if_over_limits`.
        """
        refuse_if_over_limits(priced, self.ledger, self.clock.now(), max_epsilon)

    def agree(
        self,
        offer: Offer,
        source: str,
        *,
        role: Role = "sharer",
        invitation: str | None = None,
        is_reviewed: bool = False,
    ) -> JoinedStudy:
        """Record that the participant agrees; see `shoal.participant.offers.record_consent`.

        If the participant has reviewed a changed study, the earlier versions are left: releases
        that are held for them and were never sent are voided.
        """
        versions = self._find_agreed_versions(offer) if is_reviewed else []
        with ExitStack() as stack:
            # Another process that takes part now could send an answer that is voided here.
            for one in versions:
                stack.enter_context(self.journal.lock_study(one.study))
            joined = record_consent(
                self.journal,
                offer,
                source,
                self.entropy,
                role=role,
                invitation=invitation,
                is_reviewed=is_reviewed,
            )
            for one in versions:
                void_held(self.ledger, one.study)
        return joined

    def draw_example(self, offer: Offer, rows: EncodedRows) -> tuple[ShownAnswer, ...]:
        """Draw answers as examples; see `shoal.participant.preview.draw_example`."""
        identity = self._derive_identity(offer.study)
        return draw_example(offer.study, rows, identity, self.entropy, self.clock.now())

    def list_sent_answers(self, offer: Offer) -> tuple[tuple[ShownAnswer, ...], int]:
        """Return the answers that have arrived, and the number of those that still wait."""
        n_waiting = sum(entry.study == offer.digest for entry in self.ledger.list_pending())
        return list_sent_answers(offer.study, self.ledger), n_waiting

    def _derive_identity(self, study: StudyHandle) -> Identity:
        return derive_identity(study.manifest, ensure_seed(self.journal, self.entropy))

    def _make_context(
        self, study: StudyHandle, joined: JoinedStudy, on_progress: ProgressCallback
    ) -> StudyContext:
        return StudyContext(
            study,
            joined,
            self.journal,
            self.ledger,
            self.client,
            self.clock,
            self.entropy,
            on_progress,
        )

    async def take_part(
        self,
        offer: Offer,
        rows: EncodedRows | None,
        on_progress: ProgressCallback,
        role: Role = "sharer",
    ) -> ParticipationResult:
        """Take part in a study that was agreed to, or resume; see `shoal.participant.runner`.

        Parameters
        ----------
        rows
            The participant's data, encoded; a reader may have none.
        """
        study = offer.study
        require_system(self.entropy)
        with self.journal.lock_study(offer.digest), ExitStack() as stack:
            joined = find_agreed(self.journal, self.ledger, offer, role)
            computation = (
                stack.enter_context(MPyCWorkers())
                if study.protocol.has_joint_computations(study.study)
                else None
            )
            return await run(self._make_context(study, joined, on_progress), rows, computation)

    async def write_result(
        self,
        offer: Offer,
        result: ParticipationResult,
        directory: Path,
        on_progress: ProgressCallback,
    ) -> Path | None:
        """Write the result of a study; return its path, or None if there is no result.

        The result is the release of a PFDS holder, or else the published model, which this method
        waits for.
        """
        joined = self.journal.find_study(offer.digest)
        assert joined is not None, "the participant took part"
        if joined.role == "sharer":
            release = make_release(offer.study, result.state, self.entropy)
            if release is not None:
                identity = self._derive_identity(offer.study)
                return write_release(directory, release, joined.name or "holder", identity)
        async with self.client.open_isolated() as isolated_client:
            on_progress("waiting for the model")
            status, schedule = "open", offer.manifest.schedule
            while status == "open":
                if schedule is not None:
                    await isolated_client.sleep(schedule.cadence.total_seconds())
                page = await self._poll_status(isolated_client, offer, on_progress)
                status = page.status
            if status != "done":
                return None
            return write_model(directory, await isolated_client.fetch_model(offer.digest))

    async def _poll_status(
        self, isolated_client: Client, offer: Offer, on_progress: ProgressCallback
    ) -> MessagePage:
        """Return the status of the study when the study has ended, or after a while.

        In a study with a schedule the participant waits, not the coordinator.
        """
        wait = MAX_WAIT_SECONDS if offer.manifest.schedule is None else 0
        return await self.client.retry(
            partial(isolated_client.fetch_broadcasts, offer.digest, _MAX_NUMBER, wait),
            partial(report_retry, on_progress),
        )


def _list_held(ledger: LedgerFile, study: str) -> list[LedgerEntry]:
    return [
        entry
        for entry in ledger.list_pending()
        if entry.study == study and entry.state in HELD_STATES
    ]


@asynccontextmanager
async def open_session(
    path: Path,
    url: str,
    clock: Clock,
    entropy: Entropy,
    network_path: NetworkPath | None = None,
) -> AsyncIterator[ParticipantSession]:
    """Open a participant's file and a connection to the coordinator at an address.

    Parameters
    ----------
    path
        The file with ledger and journal.
    network_path
        How to reach the coordinator; None for a direct connection.
    """
    async with Client(url, clock, entropy, network_path=network_path) as client:
        with LedgerFile(path, clock) as ledger, Journal(path, clock) as journal:
            yield ParticipantSession(ledger, journal, client, clock, entropy)
