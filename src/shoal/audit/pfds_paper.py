"""Audit of variant `paper` of PFDS: tree, counts and data, with one unit and without it.

`shoal.audit.pfds` calls this module. The price of a question holds for all earlier answers, so a
question may be asked as if the levels above were any tree. Here they are those of a known tree
with levels that each cut a little off the first number. It is as deep as the study's trees and
never wide, and it keeps all rows together. A peer draws all nodes of a level together, so the
known trees of many studies are drawn as one tree, below a root that separates them.

Each question is put to the real peer, and only the part of the answer about the unit's own node
is read; this can only lower the bound. Data are made in one study at a time. Some peers run in
full, with the levels that they draw themselves, their messages and their ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.bound import Keys
from shoal.audit.observations import compute_evidence
from shoal.audit.replay import WrapPeer, keep_peer
from shoal.data.schema import Categorical
from shoal.entropy import Entropy
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Input,
    MemoryLedger,
    OutgoingMessage,
    Received,
    Send,
    Started,
    run_input,
)
from shoal.protocols.pfds.messages import (
    MESSAGES,
    ForwardedPiece,
    LabellingHolders,
    LeafCounts,
    LeafLabels,
    LevelCounts,
    LevelSplits,
    SyntheticData,
)
from shoal.protocols.pfds.paper.aggregator import (
    decode_counts,
    decode_level,
    encode_level,
    label_leaves,
)
from shoal.protocols.pfds.paper.peer import PaperPeer
from shoal.protocols.pfds.paper.script import (
    TreeRows,
    compute_prices,
    encode_values,
    list_questions,
)
from shoal.protocols.pfds.paper.synthesis import decode_dataset
from shoal.protocols.pfds.paper.tree import SplitLevel, TreeShape, compute_depth, compute_max_leaves
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams

_SLICE = 1 / 64
"""Share of the first number's range that each level of the known tree cuts off."""


@dataclass(frozen=True, eq=False)
class KnownTree:
    """The known tree of a study, or of several studies below one root, and the rows of a holder.

    Parameters
    ----------
    params
        The study's parameters; for several studies with one more attribute, the study's number.
    n
        Number of studies.
    levels
        All levels; for several studies with one more at the top.
    tables
        The rows without the unit of each study, and with it. In each study all rows reach the last
        leaf.
    """

    params: PFDSParams
    n: int
    levels: tuple[SplitLevel, ...]
    tables: tuple[TreeRows, TreeRows]

    @cached_property
    def splits(self) -> tuple[LevelSplits, ...]:
        """The levels as a peer stores them; the digest of the study does not matter."""
        return tuple(encode_level(bytes(32), level, i) for i, level in enumerate(self.levels, 1))

    @cached_property
    def n_rows(self) -> Ints:
        """Rows of each class in one study, without the unit's."""
        return np.bincount(self.tables[0].outcomes, minlength=2) // self.n

    @cached_property
    def middles(self) -> Floats:
        """The values of the second class's rows."""
        middles: Floats = self.tables[0].values[self.tables[0].outcomes == 1][0]
        return middles


def make_levels(params: PFDSParams, first: Sequence[SplitLevel] = ()) -> tuple[SplitLevel, ...]:
    """Return the levels of the known tree, below the levels ``first``.

    Each level cuts a slice off the first number; without numbers it splits the attributes in order
    of their number of categories, the smallest first.
    """
    shape, levels = TreeShape.from_params(params), list(first)
    numbers = np.flatnonzero(shape.is_number)
    order = (
        np.repeat(numbers[:1], compute_depth(params))
        if numbers.size
        else np.argsort(shape.fans, kind="stable")
    )
    order = order[~np.isin(order, [level.attributes[0] for level in first])]
    for attribute in order[: compute_depth(params) - 1].tolist():
        n = count_nodes(params, levels)
        attributes = np.full(n, attribute, np.int16)
        lows, highs = shape.find_active_ranges(levels, np.arange(n), attributes)
        levels.append(SplitLevel(attributes, lows + _SLICE * (highs - lows)))
    return tuple(levels)


def make_neighbours(
    params: PFDSParams, levels: tuple[SplitLevel, ...], heap: int
) -> tuple[TreeRows, TreeRows]:
    """Return the rows of a holder without the unit, and with it.

    Notes
    -----
    The unit's rows have the lowest numbers and the first class. Without the unit, three groups of
    rows make a split of any number below its middle worth the same as one above: the first class at
    the lowest numbers, the second, larger by the unit, in the middle, and the first again at the
    highest. With the unit a split below the middle is worth that number of rows more, and one above
    is not.
    """
    shape, unit = TreeShape.from_params(params), params.max_rows
    lowest = shape.lows.copy()
    for a in np.flatnonzero(shape.is_number):
        lowest[a] = shape.find_active_ranges(
            levels, np.array([count_nodes(params, levels) - 1]), np.array([a], np.int16)
        )[0][0]
    numbers = np.stack([lowest, (lowest + shape.highs) / 2, np.nextafter(shape.highs, lowest)])
    places, sizes = (
        np.where(shape.is_number, numbers, shape.fans - 1.0),
        [heap, heap + unit, heap, unit],
    )
    whole = TreeRows(places[np.repeat([0, 1, 2, 0], sizes)], np.repeat([0, 1, 0, 0], sizes))
    return whole.take(np.arange(len(whole) - unit)), whole


def make_known_tree(params: PFDSParams) -> KnownTree:
    """Return the known tree of a study.

    Its groups of rows are larger than the noise, so that no count is near 0, at which data are
    truncated.
    """
    levels = make_levels(params)
    widest = max(
        float(event.parameters.get("scale", 1.0)) for event in compute_prices(params).values()
    )
    return KnownTree(
        params,
        1,
        levels,
        make_neighbours(params, levels, min(math.ceil(8 * widest), params.size // 8)),
    )


def make_combined_tree(params: PFDSParams, most: int) -> KnownTree:
    """Return the known trees of up to ``most`` studies as one tree, without groups of rows.

    It has fewer studies if a tree of all of them could be too large, and one if necessary.
    """
    fans, levels = TreeShape.from_params(params).fans, make_levels(params)
    n = min(most, compute_max_leaves(params) // int(count_nodes(params, levels) * fans.max()))
    if n < 2:
        return KnownTree(params, 1, levels, make_neighbours(params, levels, 0))
    name = next(str(i) for i in count() if str(i) not in params.columns)
    which = Categorical(name, [str(i) for i in range(n)], missing=False)
    schema = replace(params.schema, features=(*params.schema.features, which))
    wide = replace(params, schema=schema, max_depth=compute_depth(params))
    levels = make_levels(wide, [SplitLevel(np.array([len(fans)], np.int16), np.zeros(1))])
    tables = []
    for table in make_neighbours(wide, levels, 0):
        values = np.tile(table.values, (n, 1))
        values[:, -1] = np.repeat(np.arange(n), len(table))
        tables.append(TreeRows(values, np.tile(table.outcomes, n)))
    return KnownTree(wide, n, levels, (tables[0], tables[1]))


def count_nodes(params: PFDSParams, levels: Sequence[SplitLevel]) -> int:
    """Return the number of nodes below some levels."""
    return TreeShape.from_params(params).count_below(levels[-1]) if levels else 1


MakePeer = Callable[[PFDSParams, bytes, str, TreeRows], PaperPeer]
"""Constructor of a peer: the class, or a changed one that an audit must detect.

Its arguments are parameters, digest, name and rows.
"""

MOST_STUDIES = 1 << 13
"""Most studies that are drawn as one tree."""
_NAME = "0"


@dataclass(frozen=True)
class PFDSPaperAuditRun:
    """A peer that was run in full: its charge in grains, and the number of its messages."""

    charge: int
    packets: int


class PFDSPaperAuditHarness:
    """A study of variant paper in which holders are run.

    The other holders and the coordinator belong to the adversary.

    Parameters
    ----------
    study
        Digest of the manifest.
    """

    def __init__(self, study: bytes, params: PFDSParams, make_peer: MakePeer = PaperPeer) -> None:
        self.study = study
        self.params = params
        self.make_peer = make_peer
        self.prices = compute_prices(params)
        self.known_tree = make_known_tree(params)
        self.combined_tree = make_combined_tree(params, MOST_STUDIES)
        self._label = LabellingHolders(study=study, holders=tuple(map(str, range(params.minimum))))
        empty = LeafCounts(
            study=study,
            counts=Array.from_values(
                np.zeros(count_nodes(params, self.known_tree.levels) * params.n_outcomes, np.int32)
            ),
        )
        self._others = tuple(
            piece
            for name in self._label.holders[1:]
            for piece in self._make_pieces(name, self.known_tree.splits, empty)
        )

    def _make_pieces(
        self, name: str, splits: Sequence[LevelSplits], leaves: LeafCounts
    ) -> list[ForwardedPiece]:
        shared: list[LevelSplits | LeafLabels] = [*splits, label_leaves(self.params, leaves)]
        return [
            ForwardedPiece(study=self.study, holder=name, shared=one.replace(study=self.study))
            for one in shared
        ]

    def draw(self, which: int, n: int, entropy: Entropy) -> Floats:
        """Return the evidence of each answer for the unit, ``(n, n_questions)``.

        The n studies have the unit if ``which`` is 1.
        """
        blocks = [self._draw_block(which, entropy) for _ in range(-(-n // self.combined_tree.n))]
        return np.concatenate([np.zeros((0, len(self.prices))), *blocks])[:n]

    def _draw_block(self, which: int, entropy: Entropy) -> Floats:
        many, lower = (
            self.combined_tree,
            len(self.combined_tree.levels) - len(self.known_tree.levels),
        )
        peer = self.make_peer(many.params, self.study, _NAME, many.tables[which])
        evidence = []
        for question in self.prices:
            kind, _, number = question.partition("/")
            above = int(number) - 1 + lower if kind == "split" else len(many.levels)
            combined = f"count/{int(number) + lower}" if kind == "count" else question
            evidence.append(
                self.compute_evidence(
                    question,
                    peer.answer(
                        peer.initial_state().replace(own=many.splits[:above]), combined, entropy
                    ),
                    many,
                )
            )
        return np.stack(evidence, axis=1)

    def compute_evidence(self, question: str, answer: Message, known: KnownTree) -> Floats:
        """Return the evidence of an answer for the unit of each study, ``(n,)``.

        It uses only what the answer says about the unit's node.
        """
        match answer:
            case LevelSplits():
                level = decode_level(answer)
                attributes, values = (
                    _select_last_nodes(array, known.n) for array in (level.attributes, level.splits)
                )
                above, below = self._split_evidence
                evidence = np.where(values <= known.middles[attributes], below, above)
                return np.where(
                    TreeShape.from_params(known.params).is_number[attributes], evidence, 0.0
                )
            case LeafCounts():
                return self._compute_count_evidence(
                    question,
                    _select_last_nodes(decode_counts(known.params, answer)[:, 0], known.n),
                    int(known.n_rows[0]),
                )
        assert isinstance(answer, LevelCounts)
        return self._compute_count_evidence(
            question, _select_last_nodes(_read_counts(answer), known.n), int(known.n_rows.sum())
        )

    def _compute_count_evidence(self, question: str, noisy_counts: Ints, without: int) -> Floats:
        sums = np.array([[without], [without + self.params.max_rows]])
        return compute_evidence(
            self.prices[question], noisy_counts.astype(np.int64)[:, np.newaxis], sums
        )

    @cached_property
    def _split_evidence(self) -> tuple[float, float]:
        """Evidence of a split value above the middle, and of one below it.

        j of t candidates are below, each with probability 1/2.
        """
        t, rate = self.params.n_candidates, self.prices["split/1"].epsilon
        below = sum(
            math.comb(t, j) / 2**t * j / (j + (t - j) * math.exp(-rate)) for j in range(t + 1)
        )
        return math.log(2 * (1 - below)), math.log(2 * below)

    def draw_data_evidence(
        self, which: int, n: int, entropy: Entropy
    ) -> tuple[dict[str, Floats], list[Keys]]:
        """Return the evidence of what n peers share: description -> evidence, ``(n,)``.

        Also return all numbers in the answers of each peer. Each peer is in one study. The evidence
        of the data is the number of their rows in each of the unit's nodes. Of the counts, the
        root's contains the unit, and that of the first node below it does not: if their noise were
        the same, their difference would reveal the unit.
        """
        data, roots, differences = np.zeros(n), np.zeros(n), np.zeros(n)
        questions = [
            question for question in list_questions(self.params) if not question.startswith("split")
        ]
        numbers = []
        for i in range(n):
            peer, own = (
                self.make_peer(self.params, self.study, _NAME, self.known_tree.tables[which]),
                list[Message](self.known_tree.splits),
            )
            for question in questions:
                own.append(
                    peer.answer(peer.initial_state().replace(own=tuple(own)), question, entropy)
                )
            data[i] = self._compute_data_evidence(peer, own, entropy)
            numbers.append(self._read_numbers(peer, own, entropy))
            firsts = [
                int(_read_counts(message)[0]) for message in own if isinstance(message, LevelCounts)
            ]
            roots[i], differences[i] = (
                firsts[0] if firsts else 0,
                firsts[0] - firsts[1] if len(firsts) > 1 else 0,
            )
        evidence = {
            "the data alone": data,
            "the number of all rows": roots,
            "the difference of the counts of two levels": differences,
        }
        return evidence, numbers

    def _read_numbers(self, peer: PaperPeer, own: list[Message], entropy: Entropy) -> Keys:
        """Return all numbers in a peer's answers, with the next level of each known one."""
        splits = self.known_tree.splits
        levels = [
            peer.answer(peer.initial_state().replace(own=splits[:above]), question, entropy)
            for above, question in enumerate(
                question for question in self.prices if question.startswith("split")
            )
        ]
        arrays = [
            getattr(message, name)
            for message in (*levels, *own[len(splits) :])
            for name in message.report_fields
        ]
        return np.concatenate(
            [array.expect(array.element, array.count).astype(np.int64) for array in arrays]
        )

    def _compute_data_evidence(
        self, peer: PaperPeer, own: list[Message], entropy: Entropy
    ) -> float:
        (leaves,) = (message for message in own if isinstance(message, LeafCounts))
        state = peer.initial_state().replace(
            own=tuple(own),
            pieces=(*self._others, *self._make_pieces(_NAME, self.known_tree.splits, leaves)),
        )
        sent = [
            effect.message
            for effect in peer.on_message(state, self._label, START, entropy)[1]
            if isinstance(effect, Send)
        ]
        if not sent:
            return 0.0
        assert isinstance(sent[0], SyntheticData)
        values, shape = (
            encode_values(self.params, decode_dataset(self.params, sent[0]).columns),
            TreeShape.from_params(self.params),
        )
        evidence = 0.0
        for question in self.prices:
            kind, _, number = question.partition("/")
            if kind != "split":
                levels = (
                    self.known_tree.levels[: int(number) - 1] if number else self.known_tree.levels
                )
                inside = shape.route(levels, values) == count_nodes(self.params, levels) - 1
                evidence += float(
                    self._compute_count_evidence(
                        question, np.array([inside.sum()]), int(self.known_tree.n_rows.sum())
                    )[0]
                )
        return evidence

    def run(self, which: int, entropy: Entropy, wrap: WrapPeer = keep_peer) -> PFDSPaperAuditRun:
        """Run one peer in full; it is started twice, and asked twice to label.

        ``wrap`` replaces the peer.
        """
        tables, ledger = self.known_tree.tables, MemoryLedger()
        peer = wrap(self.make_peer(self.params, self.study, _NAME, tables[which]))
        account = ledger.account(self.study, "the rows", "the aggregator", "an audit")
        state, sent = peer.initial_state(), list[Message]()

        def handle_input(given: Input) -> None:
            nonlocal state
            state, work = run_input(peer, state, given, START, entropy, account)
            for item in work:
                assert isinstance(item, OutgoingMessage)
                payload = (
                    item.payload if item.question is None else account.mark_sending(item.question)
                )
                sent.append(decode(payload, MESSAGES, self.study))

        handle_input(Started())
        handle_input(Started())
        splits = [message for message in sent if isinstance(message, LevelSplits)]
        own = [
            self._make_pieces(_NAME, splits, message)
            for message in sent
            if isinstance(message, LeafCounts)
        ]
        for message in (*self._others, *(own[0] if own else ()), self._label, self._label):
            handle_input(Received(AGGREGATOR, message))
        return PFDSPaperAuditRun(sum(entry.cost for entry in ledger.entries.values()), len(sent))


def _read_counts(counts: LevelCounts) -> Ints:
    numbers: Ints = counts.counts.expect("int64", counts.counts.count)
    return numbers


def _select_last_nodes(array: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """Return a level's values of the last node in each of n studies of equal size."""
    return array.reshape(n, -1)[:, -1]
