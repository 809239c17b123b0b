"""The peer of variant plus with trust local: a holder that publishes the tables that fall to it, once, and trains at home.

It asks its ledger when it starts, since nobody need ask it: which tables are its own follows from the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from shoal.entropy import Entropy
from shoal.messages.base import Array, Message
from shoal.privacy.events import Event
from shoal.protocols.base import Effects, unpriced
from shoal.protocols.pfds.joining import checked_prices
from shoal.protocols.pfds.local import TABLES, answer, attributes_of, price
from shoal.protocols.pfds.messages import Tables
from shoal.protocols.pfds.params import Params, Rows
from shoal.protocols.pfds.reader import Hearer, Hearing


class TablesPeer(Hearer[Hearing]):
    """One holder's side.

    Parameters
    ----------
    params, study
        The public figures of the study, and the digest of its manifest.
    holder
        Its place on the roster, counted from 0.
    rows
        The holder's rows, at most as many of one unit as the study allows.

    Notes
    -----
    Ref: errata P-03.

    Privacy
    -------
    The scope of the study's parameters. The tables cost the study's epsilon, and leave once. All of their noise is in them.
    """

    def __init__(self, params: Params, study: bytes, holder: int, rows: Rows) -> None:
        super().__init__(params, study, rows)
        self.attributes = attributes_of(params, study, holder)
        self._prices = self.prices()

    def prices(self) -> Mapping[str, Event]:
        """What every question costs."""
        return checked_prices(self.params, {} if self.params.is_bare else {TABLES: price(self.params)})

    def initial(self) -> Hearing:
        return Hearing()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced(question)
        return self._prices[question]

    def started(self, state: Hearing, now: datetime, entropy: Entropy) -> tuple[Hearing, Effects]:
        return (state, ()) if state.is_over else self.ask(state, TABLES)

    def answer(self, state: Hearing, question: str, entropy: Entropy) -> Message:
        assert self._rows is not None
        return Tables(study=self.study, counts=Array.of(answer(self.params, self._rows.reveal(), self.attributes, entropy)))
