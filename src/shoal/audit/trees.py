"""All that a holder shares in variant paper of PFDS, tree, counts and data, drawn again and again with one unit there and without it.

Each question is put to the real peer as if the levels above were those of a known tree (`shoal.audit.known`), and what is read of an answer
is what it says of the unit's own node. That can only make the bound lower. Data are made in one study at a time, and some peers are run in
full, with the levels that they draw themselves, their messages and their ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.known import Known, many_studies, one_study, width
from shoal.audit.looks import evidence
from shoal.entropy import Entropy
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode
from shoal.protocols.base import AGGREGATOR, START, Account, Input, MemoryLedger, Outbound, Received, Send, Started, settle
from shoal.protocols.pfds.messages import MESSAGES, Data, Label, LeafLabels, Leaves, LevelCounts, PassedOn, Splits
from shoal.protocols.pfds.paper import Points, prices, questions, values_of
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.sharing import counts_of, labels_of_leaves, level_of
from shoal.protocols.pfds.sharing_data import dataset_of
from shoal.protocols.pfds.sharing_peer import SharingPeer
from shoal.protocols.pfds.tree import Shape

MakePeer = Callable[[Params, bytes, str, Points], SharingPeer]
"""What makes a peer of parameters, digest, name and rows: the class itself, or one that a doubter has altered."""

MOST_STUDIES = 1 << 13
"""Most studies that are drawn as one."""
_NAME = "0"


@dataclass(frozen=True)
class Run:
    """A peer that was run in full: what its ledger has counted, in grains, and how many messages it has sent."""

    charged: int
    packets: int


class Stage:
    """A study on which holders of variant paper can be put; all others, and those who pass things on, are the adversary's.

    Parameters
    ----------
    study
        Digest of the manifest.
    params
        The public figures of the study.
    make_peer
        What makes a peer.
    """

    def __init__(self, study: bytes, params: Params, make_peer: MakePeer = SharingPeer) -> None:
        self.study = study
        self.params = params
        self.make_peer = make_peer
        self.prices = prices(params)
        self.one = one_study(params)
        self.many = many_studies(params, MOST_STUDIES)
        self._label = Label(study=study, holders=tuple(map(str, range(params.minimum))))
        nothing = Leaves(study=study, counts=Array.of(np.zeros(width(params, self.one.levels) * params.n_outcomes, np.int32)))
        self._others = tuple(piece for name in self._label.holders[1:] for piece in self._pieces(name, self.one.splits, nothing))

    def _pieces(self, name: str, splits: Sequence[Splits], leaves: Leaves) -> list[PassedOn]:
        shared: list[Splits | LeafLabels] = [*splits, labels_of_leaves(self.params, leaves)]
        return [PassedOn(study=self.study, holder=name, shared=one.replace(study=self.study)) for one in shared]

    def draw(self, which: int, n: int, entropy: Entropy) -> Floats:
        """``(n, n_questions)``: what each answer says for the unit, in n studies with it or, for 0, without it."""
        blocks = [self._block(which, entropy) for _ in range(-(-n // self.many.n))]
        return np.concatenate([np.zeros((0, len(self.prices))), *blocks])[:n]

    def _block(self, which: int, entropy: Entropy) -> Floats:
        many, lower = self.many, len(self.many.levels) - len(self.one.levels)
        peer = self.make_peer(many.params, self.study, _NAME, many.tables[which])
        said = []
        for question in self.prices:
            kind, _, number = question.partition("/")
            above = int(number) - 1 + lower if kind == "split" else len(many.levels)
            put = f"count/{int(number) + lower}" if kind == "count" else question
            said.append(self.says(question, peer.answer(peer.initial().replace(own=many.splits[:above]), put, entropy), many))
        return np.stack(said, axis=1)

    def says(self, question: str, answer: Message, known: Known) -> Floats:
        """``(n,)``: what an answer says for the unit of each study, by what it tells of its node."""
        match answer:
            case Splits():
                level = level_of(answer)
                attributes, values = (_lasts(array, known.n) for array in (level.attributes, level.splits))
                above, below = self._of_splits
                said = np.where(values <= known.middles[attributes], below, above)
                return np.where(Shape.of(known.params).is_number[attributes], said, 0.0)
            case Leaves():
                return self._of_counts(question, _lasts(counts_of(known.params, answer)[:, 0], known.n), int(known.n_rows[0]))
        assert isinstance(answer, LevelCounts)
        return self._of_counts(question, _lasts(_numbers(answer), known.n), int(known.n_rows.sum()))

    def _of_counts(self, question: str, seen: Ints, without: int) -> Floats:
        sums = np.array([[without], [without + self.params.max_rows]])
        return evidence(self.prices[question], seen.astype(np.int64)[:, np.newaxis], sums)

    @cached_property
    def _of_splits(self) -> tuple[float, float]:
        """What a split value above the middle says, and one below it: j of t candidates are below, each half of the time."""
        t, rate = self.params.n_candidates, self.prices["split/1"].epsilon
        below = sum(math.comb(t, j) / 2**t * j / (j + (t - j) * math.exp(-rate)) for j in range(t + 1))
        return math.log(2 * (1 - below)), math.log(2 * below)

    def share(self, which: int, n: int, entropy: Entropy) -> dict[str, Floats]:
        """What n peers share in one study each, in words what was looked at and what it says, ``(n,)``.

        The data speak for the unit by how many of their rows are in each of its nodes. Of counts, the root's has the unit, and that of the
        first node below it has not: were their noise the same, the difference would tell.
        """
        data, roots, apart = np.zeros(n), np.zeros(n), np.zeros(n)
        asked = [question for question in questions(self.params) if not question.startswith("split")]
        for i in range(n):
            peer, own = self.make_peer(self.params, self.study, _NAME, self.one.tables[which]), list[Message](self.one.splits)
            for question in asked:
                own.append(peer.answer(peer.initial().replace(own=tuple(own)), question, entropy))
            data[i] = self._of_data(peer, own, entropy)
            firsts = [int(_numbers(message)[0]) for message in own if isinstance(message, LevelCounts)]
            roots[i], apart[i] = firsts[0] if firsts else 0, firsts[0] - firsts[1] if len(firsts) > 1 else 0
        return {"the data alone": data, "the number of all rows": roots, "how the counts of two levels differ": apart}

    def _of_data(self, peer: SharingPeer, own: list[Message], entropy: Entropy) -> float:
        (leaves,) = (message for message in own if isinstance(message, Leaves))
        state = peer.initial().replace(own=tuple(own), pieces=(*self._others, *self._pieces(_NAME, self.one.splits, leaves)))
        sent = [effect.message for effect in peer.received(state, self._label, START, entropy)[1] if isinstance(effect, Send)]
        if not sent:
            return 0.0
        assert isinstance(sent[0], Data)
        values, shape = values_of(self.params, dataset_of(self.params, sent[0]).columns), Shape.of(self.params)
        said = 0.0
        for question in self.prices:
            kind, _, number = question.partition("/")
            if kind != "split":
                levels = self.one.levels[: int(number) - 1] if number else self.one.levels
                inside = shape.route(levels, values) == width(self.params, levels) - 1
                said += float(self._of_counts(question, np.array([inside.sum()]), int(self.one.n_rows.sum()))[0])
        return said

    def run(self, which: int, entropy: Entropy) -> Run:
        """A peer from beginning to end; it is started twice, and told twice to label."""
        peer, ledger = self.make_peer(self.params, self.study, _NAME, self.one.tables[which]), MemoryLedger()
        account = Account(ledger, self.study, "the rows", "the aggregator", "an audit")
        state, sent = peer.initial(), list[Message]()

        def give(given: Input) -> None:
            nonlocal state
            state, work = settle(peer, state, given, START, entropy, account)
            for item in work:
                assert isinstance(item, Outbound)
                payload = item.payload if item.question is None else account.mark_sending(item.question)
                sent.append(decode(payload, MESSAGES, self.study))

        give(Started())
        give(Started())
        splits = [message for message in sent if isinstance(message, Splits)]
        own = [self._pieces(_NAME, splits, message) for message in sent if isinstance(message, Leaves)]
        for message in (*self._others, *(own[0] if own else ()), self._label, self._label):
            give(Received(AGGREGATOR, message))
        return Run(sum(entry.cost for entry in ledger.entries.values()), len(sent))


def _numbers(counts: LevelCounts) -> Ints:
    numbers: Ints = counts.counts.expect("int64", counts.counts.count)
    return numbers


def _lasts(array: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """What a level says of its last node in each of n studies, which have equally many nodes."""
    return array.reshape(n, -1)[:, -1]
