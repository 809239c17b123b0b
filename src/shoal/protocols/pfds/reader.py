"""Who hears of what variant plus publishes: every holder, and those that share nothing.

===================  ================================================================================================================
given                done
===================  ================================================================================================================
``SharedModel``      check it; train the home model on it and the own rows; finish with that
``Ended``            answer nothing more; where it says why there is nothing, give up for that reason
===================  ================================================================================================================

Both may come in either order. A model is taken once.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self, TypeVar

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.names import shown
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.base import Abort, Effects, Finish, Peer, PeerState, unpriced
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.messages import MAX_REASON, MESSAGES, Ask, Ended, SharedModel
from shoal.protocols.pfds.params import Params, Rows
from shoal.protocols.pfds.publishing import model_of
from shoal.protocols.sums.messages import SumAgreement, SumKeyList, SumSurvivors

FOR_SHARERS = Ask | SumKeyList | SumSurvivors | SumAgreement
"""What is sent to everyone and concerns only those that share."""


class Hearing(PeerState):
    """What was published.

    Parameters
    ----------
    published
        The model; from it and the rows the home model can be made again.
    is_over
        Whether nothing more is answered.
    """

    published: SharedModel | None = None
    is_over: bool = False

    def over(self) -> Self:
        """The study is over for this peer."""
        return self.replace(is_over=True)


H = TypeVar("H", bound=Hearing)


class Hearer(Peer[H]):
    """A peer that ends with what is published.

    Parameters
    ----------
    params
        The public figures of the study.
    study
        Digest of the manifest.
    rows
        The peer's own; None for one that has none, and finishes with the pooled model.

    Privacy
    -------
    The home model contains the rows without noise. It is the peer's result, in its own process, and no message or state holds it.
    """

    messages = MESSAGES

    def __init__(self, params: Params, study: bytes, rows: Rows | None) -> None:
        self.params = params
        self.study = study
        self._rows = None if rows is None else Private(rows)

    def received(self, state: H, message: Message, now: datetime, entropy: Entropy) -> tuple[H, Effects]:
        match message:
            case SharedModel():
                return self._published(state, message, entropy)
            case Ended():
                return (state, ()) if state.is_over else (state.over(), ending(message))
        return self.heard(state, message, entropy)

    def heard(self, state: H, message: Message, entropy: Entropy) -> tuple[H, Effects]:
        """Take a message that neither publishes nor ends."""
        raise RemoteProtocolError("PROTO-003", f"An aggregator does not send a {message.type_name}.")

    def _published(self, state: H, message: SharedModel, entropy: Entropy) -> tuple[H, Effects]:
        if state.published is not None:
            if message != state.published:
                raise RemoteProtocolError("PFDS-003", "A second model is published, which is another than the first.")
            return state, ()
        model = model_of(self.params, message)
        result = model if self._rows is None else at_home(model, self._rows.reveal(), entropy)
        return state.over().replace(published=message), (Finish(result),)


def ending(ended: Ended) -> Effects:
    """How a peer ends whose aggregator asks no more: it waits for the model, or gives up. The reason is a stranger's words."""
    if ended.reason is None:
        return ()
    what = f"The study ends without a result. Its aggregator says: {shown(ended.reason)[:MAX_REASON]}"
    return (Abort(RemoteProtocolError("PFDS-004", what, why="What was sent is spent.")),)


class Reader(Hearer[Hearing]):
    """Shares nothing, takes what others share, and trains at home. It asks its ledger for nothing."""

    def initial(self) -> Hearing:
        return Hearing()

    def price(self, question: str) -> Event:
        raise unpriced(question)

    def answer(self, state: Hearing, question: str, entropy: Entropy) -> Message:
        raise unpriced(question)

    def heard(self, state: Hearing, message: Message, entropy: Entropy) -> tuple[Hearing, Effects]:
        return (state, ()) if isinstance(message, FOR_SHARERS) else super().heard(state, message, entropy)
