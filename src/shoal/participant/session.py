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
from shoal.errors import ConsentError, TransportError, UsageError
from shoal.mpc.children import Children
from shoal.names import shown
from shoal.participant.client import Client
from shoal.participant.consent import Asked, asked_of, refuse_if_too_much
from shoal.participant.identity import identity_for, seed_of
from shoal.participant.journal import Joined, Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, fetch, take_up
from shoal.participant.outputs import release_of, write_model, write_release
from shoal.participant.peers import peer_of
from shoal.participant.preview import Drawn, Preview
from shoal.participant.runner import Finished, Tell, run
from shoal.participant.wires import Anonymous, Device, wire_of
from shoal.protocols.ledger import Account
from shoal.study.manifest import Manifest
from shoal.transport.forms import MAX_WAIT_SECONDS, Letters

_TAKEN_UP = ("agreed", "finished", "over", "aborted")
_LATEST = 10**15 - 1
"""A number that no letter has: who asks for what comes after it hears only how the study stands."""


def computes(manifest: Manifest) -> bool:
    """Whether a study has joint computations, which run in a child process."""
    settings = manifest.study.sdq
    return settings is not None and (settings.choice == "mpc" or settings.noise == "two-selected")


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

    async def offer(self, study: str | None) -> Offer:
        """The study that is meant: as the coordinator offers it, or, where it cannot or does not say, the one that was taken up before."""
        pinned = self.journal.pinned(self.client.url)
        try:
            return await fetch(self.client, study, pinned)
        except (TransportError, UsageError):
            digits = (study or "").replace("-", "").lower()
            known = [one for one in self.journal.studies() if one.url == self.client.url and one.study.startswith(digits)]
            known = [one for one in known if one.standing in _TAKEN_UP]
            if len(known) != 1:
                raise
            return Offer.of(known[0])

    def taken_up(self, offer: Offer) -> Joined | None:
        """The study as the journal has it, if it was agreed to and not left."""
        known = self.journal.study(offer.digest)
        return known if known is not None and known.standing in _TAKEN_UP else None

    def refuse_if_changed(self, offer: Offer) -> None:
        """Refuse a study of which another form was agreed to, before it is read as if it were a new one: ``CONSENT-001``."""
        title = offer.manifest.study.title
        for one in self.journal.studies():
            if (one.url, one.title, one.standing) == (offer.url, title, "agreed") and one.study != offer.digest:
                raise ConsentError(
                    "CONSENT-001",
                    f"The study {shown(title)} changed since you agreed: digest {one.study[:12]} became {offer.digest[:12]}.",
                    why="What you agreed to is the study with the first digest. Nothing was sent under the second.",
                    fix=f"Read it again: shoal join {shown(offer.url)} --review",
                )

    def asked(self, offer: Offer, source: str) -> Asked:
        """The label of a study for this participant."""
        return asked_of(offer.manifest, self.ledger, source, self.clock.now())

    def refuse_if_too_much(self, asked: Asked, max_epsilon: float | None) -> None:
        """See `shoal.participant.consent`."""
        refuse_if_too_much(asked, self.ledger, self.clock.now(), max_epsilon)

    def agree(self, offer: Offer, source: str, **how: Any) -> Joined:
        """Write down that the participant agrees; see `shoal.participant.offers.take_up`."""
        return take_up(self.journal, offer, source, self.entropy, **how)

    async def preview(self, offer: Offer, table: Columns, source: str) -> tuple[Drawn, ...]:
        """Draw and hold what can be drawn without sending anything; see `shoal.participant.preview`."""
        manifest, now = offer.manifest, self.clock.now()
        with self.journal.hold(offer.digest):
            joined = take_up(self.journal, offer, source, self.entropy, standing="previewed")
            if manifest.study.protocol == "pfds" and not manifest.roster and joined.position is None:
                return ()
            identity = identity_for(manifest, seed_of(self.journal, self.entropy))
            peer = peer_of(manifest, table, identity, ticket=joined.ticket, position=joined.position)
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

    async def take_part(self, offer: Offer, table: Columns | None, tell: Tell) -> Finished:
        """Take part in a study that was agreed to, or go on with it; see `shoal.participant.runner`."""
        with ExitStack() as stack:
            computer = stack.enter_context(Children()) if computes(offer.manifest) else None
            return await run(self.journal, self.ledger, offer, table, self.client, self.clock, self.entropy, computer, on_progress=tell)

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
        return await self.client.insist(
            partial(apart.board, study, _LATEST, MAX_WAIT_SECONDS), lambda error: tell(f"trying again ({error.code}): {error.what}")
        )


@asynccontextmanager
async def opened(path: Path, url: str, clock: Clock, entropy: Entropy, ca: Path | None = None) -> AsyncIterator[Session]:
    """A session with the coordinator at an address, by a participant whose ledger is in a file."""
    async with Client(url, clock, entropy, ca=ca) as client:
        with LedgerFile(path, clock) as ledger, Journal(path, clock) as journal:
            yield Session(ledger, journal, client, clock, entropy)
