"""The aggregator of variant paper: it passes on what holders share, says whose trees label, and ends the study. Nobody trusts it.

=====================  =================================================================================================================
phase                  what it waits for
=====================  =================================================================================================================
trees                  a whole tree of every holder; each is passed on to everyone as soon as it is whole
data                   after ``Label``: the data of every holder whose tree is whole; each is passed on as it comes
=====================  =================================================================================================================

When the time of a phase is up it goes on with what is there. Who has no whole tree by then is left out with all that it sent; too few
trees end the study. Who has no data is left out with its data alone: its tree was shared, and labels. A tree or data that cannot be is
refused and counts as not sent. Counts of levels are for their holder, which makes its data from them: they come here because all that is
released does, and go no further.
"""

from __future__ import annotations

from datetime import datetime

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.protocols.base import EVERYONE, Effects, Finish, Moment, Send, WakeAt
from shoal.protocols.pfds.messages import Data, Ended, Label, Leaves, Left, LevelCounts, PassedOn, Splits
from shoal.protocols.pfds.publishing import Publisher, Publishing
from shoal.protocols.pfds.sharing import labels_of_leaves, published, tree_pieces, with_data, with_piece, with_tree
from shoal.protocols.sums.gathering import Failure

NO_TREE = "no whole tree came from it in time"
NO_DATA = "its data did not come in time; its tree labels"


class Gathering(Publishing):
    """What holders have shared.

    Parameters
    ----------
    deadline
        Until when the phase lasts; None before the beginning.
    pieces
        What has come.
    label
        Whose trees label; None while trees are waited for.
    """

    deadline: Moment | None = None
    pieces: tuple[PassedOn, ...] = ()
    label: Label | None = None


class SharingAggregator(Publisher[Gathering]):
    """The side that everyone shares through; what it is given is private already.

    Notes
    -----
    Ref: PFDS Algorithm 2.
    """

    def initial(self) -> Gathering:
        return Gathering()

    def started(self, state: Gathering, now: datetime, entropy: Entropy) -> tuple[Gathering, Effects]:
        return self._wait(state, now) if state.deadline is None else (state, ())

    def received(self, state: Gathering, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Gathering, Effects]:
        if sender not in self.names or not isinstance(message, Splits | Leaves | LevelCounts | Data):
            raise RemoteProtocolError("PROTO-003", f"{sender} does not send a {message.type_name} in this study.")
        if state.is_over or isinstance(message, LevelCounts):
            return state, ()
        if isinstance(message, Data):
            return self._data(state, sender, message)
        if state.label is not None:
            return state, ()
        shared = labels_of_leaves(self.params, message) if isinstance(message, Leaves) else message
        pieces = with_piece(self.params, state.pieces, PassedOn(study=self.study, holder=sender, shared=shared))
        if pieces is state.pieces or not with_tree(self.params, pieces, [sender]):
            return state.replace(pieces=pieces), ()
        passed = tuple(Send(EVERYONE, piece) for piece in tree_pieces(pieces, sender))
        state = state.replace(pieces=pieces)
        if len(self._whole(state)) < len(self.names):
            return state, passed
        state, effects = self._labelled(state, now)
        return state, (*passed, *effects)

    def waited(self, state: Gathering, now: datetime) -> tuple[Gathering, Effects]:
        if state.deadline is None or now < state.deadline:
            return state, ()
        if state.label is not None:
            return self._end(state, state.label)
        n, minimum = len(self._whole(state)), self.params.minimum
        if n < minimum:
            what = f"The study is given up: {n} holders shared a whole tree in time; {minimum} are needed."
            return self.give_up(state, Failure(code="PFDS-004", what=what, why="What they sent is spent."), now)
        return self._labelled(state, now)

    def _wait(self, state: Gathering, now: datetime) -> tuple[Gathering, Effects]:
        deadline = now + self.patience
        return state.replace(deadline=deadline), (WakeAt(deadline),)

    def _whole(self, state: Gathering) -> tuple[str, ...]:
        return with_tree(self.params, state.pieces, self.names)

    def _labelled(self, state: Gathering, now: datetime) -> tuple[Gathering, Effects]:
        """No tree counts any more but those that are whole."""
        label = Label(study=self.study, holders=self._whole(state))
        state, effects = self._wait(state.replace(label=label), now)
        return state, (Send(EVERYONE, label), *effects)

    def _data(self, state: Gathering, sender: str, data: Data) -> tuple[Gathering, Effects]:
        label = state.label
        if label is None or sender not in label.holders:
            raise RemoteProtocolError("PFDS-003", f"{sender} shares data, and no tree by which it could be made.")
        piece = PassedOn(study=self.study, holder=sender, shared=data)
        pieces = with_piece(self.params, state.pieces, piece)
        if pieces is state.pieces:
            return state, ()
        state = state.replace(pieces=pieces)
        if with_data(pieces, label.holders) != label.holders:
            return state, (Send(EVERYONE, piece),)
        state, effects = self._end(state, label)
        return state, (Send(EVERYONE, piece), *effects)

    def _end(self, state: Gathering, label: Label) -> tuple[Gathering, Effects]:
        sharing = with_data(state.pieces, label.holders)
        missing = [name for name in self.names if name not in sharing]
        left_out = tuple(Left(holder=name, reason=NO_DATA if name in label.holders else NO_TREE) for name in missing)
        ended = Ended(study=self.study, holders=sharing, left_out=left_out)
        result = published(self.params, state.pieces, label, ended)
        return state.replace(is_over=True), (Send(EVERYONE, ended), Finish(result))
