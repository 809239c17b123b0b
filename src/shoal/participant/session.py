"""One participant and one coordinator while they talk: all that ``shoal join`` and the fleet do, step by step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.clock import Clock
from shoal.domain import Columns
from shoal.entropy import Entropy
from shoal.errors import TransportError, UsageError
from shoal.mpc.children import Children
from shoal.participant.client import Client
from shoal.participant.consent import Asked, asked_of, refuse_if_too_much, refuse_if_voided
from shoal.participant.credentials import NOTHING_BEFORE, credential_of, ticket_of
from shoal.participant.identity import identity_for, seed_of
from shoal.participant.journal import Joined, Journal, Role, forms_agreed_to
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.objections import has_changed, in_another_role, not_named, would_be_shared
from shoal.participant.offers import Offer, digits_of, fetch, joined_of, take_up
from shoal.participant.outputs import release_of, write_model, write_release
from shoal.participant.peers import check_role, peer_of
from shoal.participant.posting import waits
from shoal.participant.preview import Drawn, Preview
from shoal.participant.runner import Finished, Tell, run
from shoal.participant.via import Via
from shoal.participant.wires import Anonymous, Device, wire_of
from shoal.privacy.ledger import HELD, Entry
from shoal.protocols.ledger import Account
from shoal.study.anonymity import has_tokens
from shoal.study.manifest import Manifest
from shoal.transport.forms import MAX_WAIT_SECONDS, Letters

_TAKEN_UP = ("agreed", "finished", "over", "aborted")
_DIGITS_NAMED = 12
"""Digits of a digest that name a study without doubt."""
_LATEST = 10**15 - 1
"""A number that no letter has: who asks for what comes after it hears only how the study stands."""


def computes(manifest: Manifest) -> bool:
    """Whether a study has joint computations, which run in a child process."""
    settings = manifest.study.sdq
    return settings is not None and (settings.choice == "mpc" or settings.noise == "two-selected")


def void_held(ledger: LedgerFile, study: str) -> list[Entry]:
    """Give up all that is held for a study and was never sending; what that was."""
    held = _held(ledger, study)
    for entry in held:
        ledger.void(study, entry.release.question)
    return held


@dataclass
class Session:
    """A participant's file, and a coordinator.

    Parameters
    ----------
    ledger, journal
        The participant's, of one file.
    client, clock, entropy
        The coordinator, the time, and where all that is drawn comes from.
    """

    ledger: LedgerFile
    journal: Journal
    client: Client
    clock: Clock
    entropy: Entropy

    async def offer(self, study: str | None, *, is_review: bool = False) -> Offer:
        """The study that is meant: as the coordinator offers it, or, where it cannot or does not say, the one that was taken up before.

        Where none is named and several are open, it is the one that was agreed to and goes on. A review is of what the coordinator offers.
        """
        digits, pinned = digits_of(study), self.journal.pinned(self.client.url)
        if is_review:
            return await fetch(self.client, study, pinned)
        known = [one for one in self.journal.studies() if one.url == self.client.url and one.study.startswith(digits)]
        agreed = [one for one in known if one.standing == "agreed"]
        try:
            return await fetch(self.client, study, pinned, {one.study for one in agreed})
        except (TransportError, UsageError):
            found = agreed or [one for one in known if one.standing in _TAKEN_UP]
            if len(found) != 1:
                raise
            return Offer.of(found[0])

    def taken_up(self, offer: Offer) -> Joined | None:
        """The study as the journal has it, if it was agreed to and not left."""
        known = self.journal.study(offer.digest)
        return known if known is not None and known.standing in _TAKEN_UP else None

    def is_met(self, offer: Offer) -> bool:
        """Whether a study of this coordinator, at this address and by this key, was agreed to before."""
        return any(one.url == offer.url and one.key == offer.key and one.standing in (*_TAKEN_UP, "left") for one in self.journal.studies())

    def refuse_if_changed(self, offer: Offer) -> None:
        """Refuse a study of which another form was agreed to, before it is read as if it were a new one: ``CONSENT-001``."""
        for one in self._forms(offer):
            raise has_changed(one, offer.digest)

    def refuse_if_not_named(self, offer: Offer, study: str | None) -> None:
        """Refuse a study that nobody has named, and that is new or was left, of a coordinator that was met: ``CONSENT-001``.

        Where nobody is asked.
        """
        if len(digits_of(study)) >= _DIGITS_NAMED:
            return
        known = self.journal.study(offer.digest)
        # Whoever has left has said no, and --yes alone does not take that back.
        is_met = known is not None and known.standing != "left"
        if not is_met and any(one.url == offer.url or one.key == offer.key for one in self.journal.studies()):
            raise not_named(offer.manifest.study.title, offer.url, offer.digest, has_left=known is not None)

    def refuse_role(self, offer: Offer, role: Role) -> None:
        """Refuse to read what cannot be read, or to do in a study otherwise than was agreed: ``HOST-003``, ``CONSENT-001``."""
        check_role(offer.manifest, role)
        joined = self.taken_up(offer)
        if joined is not None and joined.role != role:
            raise in_another_role(joined)
        if role == "reader" and _held(self.ledger, offer.digest):
            raise would_be_shared(offer.manifest.study.title, offer.digest)

    def _forms(self, offer: Offer) -> list[Joined]:
        return forms_agreed_to(self.journal.studies(), joined_of(offer, ""))

    def asked(self, offer: Offer, source: str) -> Asked:
        """The label of a study for this participant."""
        return asked_of(offer.manifest, self.ledger, source, self.clock.now(), self.client.via.name)

    def refuse_if_voided(self, offer: Offer) -> None:
        """See `shoal.participant.consent`."""
        refuse_if_voided(offer.manifest, self.ledger)

    def refuse_if_too_much(self, asked: Asked, max_epsilon: float | None) -> None:
        """See `shoal.participant.consent`."""
        refuse_if_too_much(asked, self.ledger, self.clock.now(), max_epsilon)

    def agree(self, offer: Offer, source: str, *, is_reviewed: bool = False, **how: Any) -> Joined:
        """Write down that the participant agrees; see `shoal.participant.offers.take_up`.

        Other forms of the study, where it was read again, are left: what is held for them and was never sending is voided.
        """
        forms = self._forms(offer) if is_reviewed else []
        with ExitStack() as stack:
            # Whoever takes part at this moment could send what is voided here.
            for one in forms:
                stack.enter_context(self.journal.hold(one.study))
            joined = take_up(self.journal, offer, source, self.entropy, is_reviewed=is_reviewed, **how)
            for one in forms:
                void_held(self.ledger, one.study)
        return joined

    async def preview(self, offer: Offer, table: Columns, source: str) -> tuple[Drawn, ...]:
        """Draw and hold what can be drawn without sending anything; see `shoal.participant.preview`.

        Nobody registers for it: to register is to be named, and whoever only looks has not agreed to that.
        """
        manifest, now = offer.manifest, self.clock.now()
        await self.client.via.check(manifest)
        with self.journal.hold(offer.digest):
            joined = take_up(self.journal, offer, source, self.entropy, standing="previewed")
            if manifest.study.protocol == "pfds" and not manifest.roster and joined.position is None:
                return ()
            if self.nothing_to_show(offer) is not None:
                return ()
            identity = identity_for(manifest, seed_of(self.journal, self.entropy))
            peer = peer_of(manifest, table, identity, ticket=self._ticket(manifest, joined), position=joined.position)
            account = Account(self.ledger, manifest.digest, joined.source, joined.recipient, joined.title)
            looked = Preview(peer, account, self.entropy)
            draws = looked.start(now)
            async with self.client.apart() as apart:
                match wire_of(manifest, joined, identity, apart, apart):
                    case Anonymous():
                        for letter in (await apart.board(offer.digest, 0)).letters:
                            looked.hear(letter.payload, now)
                    case Device() as device:
                        for draw in draws:
                            instance = await device.deliver(draw, None)
                            assert instance is not None, "a device begins with a draw"
                            looked.hear(instance, now)
            return looked.drawn()

    def nothing_to_show(self, offer: Offer) -> str | None:
        """Why a preview cannot draw an answer before the participant is registered; None where it can."""
        manifest = offer.manifest
        is_needed = has_tokens(manifest) and manifest.study.protocol == "anonml"
        return NOTHING_BEFORE if is_needed and credential_of(self.journal, manifest) is None else None

    def _ticket(self, manifest: Manifest, joined: Joined) -> bytes:
        if not has_tokens(manifest) or manifest.study.protocol != "anonml":
            return joined.ticket
        credential = credential_of(self.journal, manifest)
        assert credential is not None, "nothing is drawn without one"
        return ticket_of(manifest, credential)

    async def take_part(self, offer: Offer, table: Columns | None, tell: Tell, role: Role = "sharer") -> Finished:
        """Take part in a study that was agreed to, or go on with it; see `shoal.participant.runner`."""
        with ExitStack() as stack:
            computer = stack.enter_context(Children()) if computes(offer.manifest) else None
            who = self.journal, self.ledger
            return await run(*who, offer, table, self.client, self.clock, self.entropy, computer, role=role, on_progress=tell)

    async def keep(self, offer: Offer, finished: Finished, directory: Path, tell: Tell) -> Path | None:
        """Write what a study has come to: a holder's release, or else the model, which is waited for; None where there is none."""
        joined = self.journal.study(offer.digest)
        assert joined is not None, "it was taken part in"
        if offer.manifest.study.protocol == "pfds" and joined.role == "sharer":
            release = release_of(offer.manifest, finished.state, self.entropy)
            if release is not None:
                identity = identity_for(offer.manifest, seed_of(self.journal, self.entropy))
                return write_release(directory, release, joined.name or "holder", identity)
        async with self.client.apart() as apart:
            tell("waiting for the model")
            while (heard := await self._standing(apart, offer.digest, tell)).status == "open":
                pass
            return write_model(directory, await apart.model(offer.digest)) if heard.status == "done" else None

    async def _standing(self, apart: Client, study: str, tell: Tell) -> Letters:
        """How the study stands, as soon as it does not go on, or after a while."""
        return await self.client.insist(partial(apart.board, study, _LATEST, MAX_WAIT_SECONDS), partial(waits, tell))


def _held(ledger: LedgerFile, study: str) -> list[Entry]:
    return [entry for entry in ledger.pending() if entry.study == study and entry.state in HELD]


@asynccontextmanager
async def opened(
    path: Path, url: str, clock: Clock, entropy: Entropy, ca: Path | None = None, via: Via | None = None
) -> AsyncIterator[Session]:
    """A session with the coordinator at an address, reached directly or otherwise, by a participant whose ledger is in a file."""
    async with Client(url, clock, entropy, ca=ca, via=via) as client:
        with LedgerFile(path, clock) as ledger, Journal(path, clock) as journal:
            yield Session(ledger, journal, client, clock, entropy)
