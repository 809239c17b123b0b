"""Variant `plus`: one question per person; the rule that designs the questions.

Every person answers one question, with the whole budget.

``placing`` (12 phases)
    Is your number above this point? A bisection for each quantile of each number without bins.
``answers``
    Which bin and label (a table); or single bits, at small budgets.
``blocks`` (at large budgets)
    Which levels of a few features, and which label.

The question is drawn independently of the row, and cut points and levels come from other people's
answers. So each person spends the price of one answer, once.

`choose_rule` chooses bins, kinds of questions and shares of people. It depends on epsilon, the
declared size n, the number of features J, the number of classes and the trust level. It never sees
data, and none of its constants was fitted to a dataset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.privacy.events import Event
from shoal.privacy.rounding import compute_share
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml import evidence as ev
from shoal.protocols.anonml.assignment import Words, compute_thresholds, find_parts
from shoal.protocols.anonml.evidence import N_LEVELS
from shoal.protocols.anonml.messages import AnonMLPublication
from shoal.protocols.anonml.params import AnonMLPlusParams, count_cells
from shoal.protocols.anonml.posterior import choose_levels, learn_scores
from shoal.protocols.anonml.quantiles import (
    N_BISECTION_BATCHES,
    QuantileSearch,
    candidate_edges,
    grid_edges,
)
from shoal.protocols.anonml.questions import (
    AboveQuestion,
    AgreementQuestion,
    BlockQuestion,
    CellQuestion,
    Ints,
    LabelQuestion,
    Question,
    SideQuestion,
    Tally,
    choose_table_mechanism,
    count_joint_cells,
    make_response,
    price_answer,
)
from shoal.protocols.anonml.script import AnonMLScript, Tallies

_MEDIAN, _QUARTILES = (0.5,), (0.25, 0.5, 0.75)
_MANY_FEATURES = 20
"""Number of features from which on only the median of a number is placed, at epsilon below 3."""
_MAX_BITS_EPSILON = 1.5
"""Epsilon below which features may be asked about by single bits."""
_MAX_BITS_SIZE = 900
"""Effective answers for each feature below which single bits are more accurate than tables."""
_MIN_GRID_EPSILON = 3
"""Epsilon from which on a public grid is added to the quantiles."""
_MIN_BLOCK_EPSILON = 6
"""Epsilon from which on some people may answer about several features."""
_BLOCK_SHARE = Fraction(3, 10)
"""Share of the people who answer about several features."""
_MIN_ANSWERS_PER_PAIR = 250
"""Smallest number of such answers about each pair of features."""
_MAX_BLOCK_SIZE = 4
"""Largest number of features in such a question."""
_MAX_COMBINATIONS = 1 << 32
"""Largest number of possible choices of these features."""
_PLACING_SHARE, _BITS_PLACING_SHARE = Fraction(4, 100), Fraction(6, 100)
"""Shares of the people who place quantiles: with tables, and with single bits."""


@dataclass(frozen=True)
class QuestionRule:
    """The questions of a study, and the shares of people who are asked them.

    Parameters
    ----------
    targets
        Quantiles that are placed privately, for each number without public bins.
    placing
        Share of the people who place them.
    has_lowest
        Whether the lowest value is a separate bin.
    grid
        Numbers of equal and growing widths of a public grid that is added to the quantiles.
    is_one_bit
        Whether features with two sides are asked about by single bits.
    blocks
        Share of the people who answer about several features, at the end.
    block_size
        Number of features in such a question.
    """

    targets: tuple[float, ...]
    placing: Fraction = Fraction(0)
    has_lowest: bool = True
    grid: tuple[int, int] | None = None
    is_one_bit: bool = False
    blocks: Fraction = Fraction(0)
    block_size: int = 0


def choose_rule(params: AnonMLPlusParams) -> QuestionRule:
    """Return the questions for a study, from its public parameters alone."""
    epsilon, n, j = params.epsilon, params.size, params.n_features
    if params.trust == "shuffled":
        # The anonymity set of a message is its phase, so there is one phase only.
        return QuestionRule((), grid=(4, 4))
    placing_share = _PLACING_SHARE if params.unbinned else Fraction(0)
    effective_size = n * math.tanh(epsilon / 2) ** 2
    if epsilon < _MAX_BITS_EPSILON and effective_size / j < _MAX_BITS_SIZE and params.n_labels == 2:
        bits_share = _BITS_PLACING_SHARE if params.unbinned else Fraction(0)
        return QuestionRule(_MEDIAN, bits_share, has_lowest=False, is_one_bit=True)
    if epsilon < _MIN_GRID_EPSILON:
        return QuestionRule(_MEDIAN if j >= _MANY_FEATURES else _QUARTILES, placing_share)
    size = choose_block_size(epsilon, j)
    # Answers about each pair of features, if every answer is about six pairs.
    per_pair = float(_BLOCK_SHARE) * n * 12 / (j * (j - 1)) if j > 1 else 0.0
    if (
        epsilon >= _MIN_BLOCK_EPSILON
        and params.n_labels == 2
        and per_pair >= _MIN_ANSWERS_PER_PAIR
        and math.comb(j, size) <= _MAX_COMBINATIONS
    ):
        return QuestionRule(
            _QUARTILES, placing_share, grid=(12, 0), blocks=_BLOCK_SHARE, block_size=size
        )
    return QuestionRule(_QUARTILES, placing_share, grid=(4, 4))


def choose_block_size(epsilon: float, n_features: int) -> int:
    """Return the number of features in a block question.

    It is the largest for which randomised response over their levels and the label is accurate.
    """
    affordable = math.floor((epsilon - math.log(2)) / math.log(N_LEVELS))
    return max(2, min(_MAX_BLOCK_SIZE, n_features, affordable))


_QUESTION_NAME = "answer"
"""Name of every question: a person answers one, so the ledger needs no other name."""
_SIDE_SHARE = Fraction(3, 10)
"""Share of the answers about a feature that are about its side alone; the others are about the
agreement of side and label.
"""
_LABEL_SHARE = Fraction(1, 10)
"""Share of the answers by single bits that are about the label alone."""
_MIN_TABLE_SHARE = Fraction(1, 4)
"""Share of tables in the main phase from which on these show the label shares well enough."""


@dataclass(frozen=True)
class QuestionSlot:
    """A question with the share of the people who are asked it."""

    phase: int
    question: int
    share: Fraction


class AnonMLPlusScript(AnonMLScript):
    """Variant ``plus``.

    Privacy
    -------
    Unit person, replace, against everyone: ``epsilon`` for the one answer of a person.
    """

    params: AnonMLPlusParams

    def __init__(self, params: AnonMLPlusParams) -> None:
        self.params = params
        # A whole number of grains, so that the charge never exceeds the declared budget.
        self.epsilon = compute_share(params.epsilon, Fraction(1))
        self.rule = choose_rule(params)
        self.schema = _reduce_to_sides(params.schema) if self.rule.is_one_bit else params.schema
        self.n_steps = N_BISECTION_BATCHES if self.rule.placing else 0
        self.n_phases = self.n_steps + 1 + bool(self.rule.blocks)
        self._questions = lru_cache(maxsize=4)(self._make_questions)

    @cached_property
    def _searches(self) -> tuple[tuple[Numeric, QuantileSearch], ...]:
        """Every quantile to be placed, in the state before the first answer."""
        return tuple(
            (number, QuantileSearch.begin(candidate_edges(number.low, number.high), target))
            for number in self.params.unbinned
            for target in self.rule.targets
        )

    @cached_property
    def _asked_by_bits(self) -> tuple[bool, ...]:
        """For each feature, whether it is asked about by single bits, which needs two sides."""
        return tuple(
            self.rule.is_one_bit and _has_two_sides(feature) for feature in self.schema.features
        )

    @cached_property
    def _main_questions(self) -> tuple[tuple[str, int, Fraction], ...]:
        """The questions of the main phase: kind, feature, and share of that phase."""
        j, by_bits = self.params.n_features, self._asked_by_bits
        each = Fraction(1, j)
        labels = (
            _LABEL_SHARE
            if any(by_bits) and each * (j - sum(by_bits)) < _MIN_TABLE_SHARE
            else Fraction(0)
        )
        questions: list[tuple[str, int, Fraction]] = []
        for i in range(j):
            if by_bits[i]:
                bits = each * (1 - labels)
                questions += [
                    ("side", i, bits * _SIDE_SHARE),
                    ("agree", i, bits * (1 - _SIDE_SHARE)),
                ]
            else:
                questions.append(("table", i, each))
        if labels:
            questions.append(("label", -1, each * sum(by_bits) * labels))
        return tuple(questions)

    @cached_property
    def slots(self) -> tuple[QuestionSlot, ...]:
        """All questions of all phases, with their shares of the people, which sum to 1."""
        placing, blocks = self.rule.placing, self.rule.blocks
        slots = [
            QuestionSlot(step, i, placing / (N_BISECTION_BATCHES * len(self._searches)))
            for step in range(self.n_steps)
            for i in range(len(self._searches))
        ]
        slots += [
            QuestionSlot(self.n_steps, i, (1 - placing) * (1 - blocks) * share)
            for i, (_, _, share) in enumerate(self._main_questions)
        ]
        if blocks:
            slots.append(QuestionSlot(self.n_steps + 1, 0, (1 - placing) * blocks))
        return tuple(slots)

    @cached_property
    def _slot_edges(self) -> npt.NDArray[np.uint64]:
        return compute_thresholds([slot.share for slot in self.slots])

    @cached_property
    def _slot_positions(self) -> tuple[Ints, Ints]:
        """Phase and question of each slot."""
        return np.array([slot.phase for slot in self.slots], np.int64), np.array(
            [slot.question for slot in self.slots], np.int64
        )

    def assign_positions(self, words: Words) -> Ints:
        return find_parts(words[:, 0], self._slot_edges)

    def find_groups(self, phase: int, positions: Ints) -> Ints:
        phases, questions = self._slot_positions
        return np.where(phases == phase, questions, -1)[positions]

    def list_question_numbers(self, phase: int, group: int) -> tuple[int, ...]:
        return () if group < 0 else (group,)

    def question_name(self, phase: int, question: int) -> str:
        return _QUESTION_NAME

    @cached_property
    def prices(self) -> dict[str, Event]:
        """The cost of the answer.

        A person's question is not known in advance: all cost the same, and the event describes the
        largest table.
        """
        epsilon, n_labels = self.epsilon, self.params.n_labels
        tables = [
            feature
            for feature, by_bits in zip(self.schema.features, self._asked_by_bits, strict=True)
            if not by_bits
        ]
        sizes = [
            n_labels * (feature.n_bins or self.max_cuts(feature) + 1 + feature.missing)
            for feature in tables
        ]
        mechanism = choose_table_mechanism(epsilon, max(sizes)) if sizes else make_response(epsilon)
        return {_QUESTION_NAME: price_answer(mechanism, epsilon, *self.params.columns)}

    def max_cuts(self, number: Feature) -> int:
        assert isinstance(number, Numeric)
        return len(self.rule.targets) + len(self._list_public_cuts(number))

    def _list_public_cuts(self, number: Numeric) -> set[float]:
        """Return the cut points that need no answers."""
        grid = (
            grid_edges(number.low, number.high, *self.rule.grid).tolist() if self.rule.grid else []
        )
        return {*grid, *([float(number.low)] if self.rule.has_lowest else [])}

    def publication_sizes(self, phase: int) -> tuple[int, int, int]:
        if phase < self.n_steps:
            return len(self._searches), 0, 0
        return 0, len(self.params.unbinned), self.params.n_features if phase > self.n_steps else 0

    def publish(self, tallies: Tallies) -> AnonMLPublication:
        phase = len(tallies)
        searches = self._run_searches(tallies)
        if phase < self.n_steps:
            return AnonMLPublication(points=tuple(search.point for search in searches))
        with_cuts = AnonMLPublication(cuts=self._place_cuts(searches))
        if phase == self.n_steps:
            return with_cuts
        levels = choose_levels(self._collect_evidence(with_cuts, tallies), self.params.n_labels)
        return with_cuts.replace(levels=tuple(tuple(level.tolist()) for level in levels))

    def _run_searches(self, tallies: Tallies) -> tuple[QuantileSearch, ...]:
        searches = [search for _, search in self._searches]
        for counted in tallies[: self.n_steps]:
            searches = [
                search.update(int(tally.counts[1]), tally.n, make_response(self.epsilon))
                for search, tally in zip(searches, counted, strict=True)
            ]
        return tuple(searches)

    def _place_cuts(self, searches: tuple[QuantileSearch, ...]) -> tuple[tuple[float, ...], ...]:
        cuts = []
        for i, number in enumerate(self.params.unbinned):
            n = len(self.rule.targets)
            placed = {search.point for search in searches[i * n : (i + 1) * n]}
            cuts.append(tuple(sorted(placed | self._list_public_cuts(number))))
        return tuple(cuts)

    def questions(self, phase: int, publication: AnonMLPublication) -> tuple[Question, ...]:
        return self._questions(phase, publication)

    def _make_questions(self, phase: int, publication: AnonMLPublication) -> tuple[Question, ...]:
        bit = make_response(self.epsilon)
        if phase < self.n_steps:
            return tuple(
                AboveQuestion(f"quantile of {number.name}", bit, number, point)
                for (number, _), point in zip(self._searches, publication.points, strict=True)
            )
        features = tuple(self.bin_schema(publication).features)
        if phase == self.n_steps:
            return tuple(
                self._make_main_question(kind, None if i < 0 else features[i])
                for kind, i, _ in self._main_questions
            )
        size = self.rule.block_size
        mechanism = make_response(self.epsilon, 2 * N_LEVELS**size)
        return (
            BlockQuestion(
                "levels",
                mechanism,
                features,
                tuple(np.array(level, np.int64) for level in publication.levels),
                size,
            ),
        )

    def _make_main_question(self, kind: str, feature: Feature | None) -> Question:
        bit = make_response(self.epsilon)
        if feature is None:
            return LabelQuestion("label", bit)
        if kind == "table":
            n_labels = self.params.n_labels
            mechanism = choose_table_mechanism(self.epsilon, count_joint_cells([feature], n_labels))
            return CellQuestion(f"table of {feature.name}", mechanism, (feature,), n_labels)
        return (SideQuestion if kind == "side" else AgreementQuestion)(
            f"{kind} of {feature.name}", bit, feature
        )

    def learn(self, tallies: Tallies, entropy: Entropy) -> AdditiveModel:
        publication = self.publish(tallies[: self.n_steps])
        schema = self.bin_schema(publication)
        evidence = self._collect_evidence(publication, tallies)
        label_bit = next(
            (
                self._make_noisy_bit(tally)
                for (kind, _, _), tally in self._zip_main_tallies(tallies)
                if kind == "label"
            ),
            None,
        )
        scores = learn_scores(
            evidence, self.params.n_labels, label_bit, self._collect_blocks(publication, tallies)
        )
        return AdditiveModel(schema, scores.label_shares, scores.scores)

    def _zip_main_tallies(self, tallies: Tallies) -> list[tuple[tuple[str, int, Fraction], Tally]]:
        return list(zip(self._main_questions, tallies[self.n_steps], strict=True))

    def _make_noisy_bit(self, tally: Tally) -> ev.NoisyBit:
        return ev.NoisyBit(int(tally.counts[1]), tally.n, make_response(self.epsilon))

    def _collect_evidence(
        self, publication: AnonMLPublication, tallies: Tallies
    ) -> list[ev.FeatureEvidence]:
        features = self.bin_schema(publication).features
        by_question = {(kind, i): tally for (kind, i, _), tally in self._zip_main_tallies(tallies)}
        evidence = []
        for i, feature in enumerate(features):
            shape = ev.FeatureBins(
                count_cells(feature), isinstance(feature, Numeric), feature.missing
            )
            if self._asked_by_bits[i]:
                side, agree = (
                    self._make_noisy_bit(by_question["side", i]),
                    self._make_noisy_bit(by_question["agree", i]),
                )
                is_placed = feature.name in {number.name for number in self.params.unbinned}
                is_median = (
                    isinstance(feature, Numeric)
                    and is_placed
                    and list(feature.bins or ()) != [feature.low]
                )
                n_placed = self._count_placing_answers(feature.name, tallies)
                evidence.append(
                    ev.FeatureEvidence(
                        shape, side=side, agree=agree, n_placed=n_placed, is_lowest=not is_median
                    )
                )
            else:
                tally = by_question["table", i]
                mechanism = choose_table_mechanism(
                    self.epsilon, count_cells(feature) * self.params.n_labels
                )
                evidence.append(
                    ev.FeatureEvidence(
                        shape, table=ev.NoisyLabelTable(tally.counts, tally.n, mechanism)
                    )
                )
        return evidence

    def _count_placing_answers(self, name: str, tallies: Tallies) -> int:
        positions = [i for i, (number, _) in enumerate(self._searches) if number.name == name]
        return sum(counted[i].n for counted in tallies[: self.n_steps] for i in positions)

    def _collect_blocks(
        self, publication: AnonMLPublication, tallies: Tallies
    ) -> ev.BlockCounts | None:
        if not self.rule.blocks:
            return None
        phase = self.n_steps + 1
        question = self.questions(phase, self.publish(tallies[:phase]))[0]
        assert isinstance(question, BlockQuestion) and isinstance(
            question.mechanism, RandomizedResponse
        )
        j, counts = self.params.n_features, tallies[phase][0].counts
        singles = counts[: question.n_singles].reshape(j, N_LEVELS, 2)
        pairs = counts[question.n_singles :].reshape(-1, N_LEVELS, N_LEVELS)
        return ev.BlockCounts(
            question.levels,
            singles,
            singles.sum((1, 2)),
            pairs,
            pairs.sum((1, 2)),
            question.mechanism,
        )


def _reduce_to_sides(schema: Schema) -> Schema:
    """Return the schema with only the middle one of several public cut points.

    At a small budget a number is asked about by its side alone.
    """
    features = [
        replace(feature, bins=(feature.bins[len(feature.bins) // 2],))
        if isinstance(feature, Numeric) and feature.bins
        else feature
        for feature in schema.features
    ]
    return Schema(features, schema.label)


def _has_two_sides(feature: Feature) -> bool:
    """Return whether a feature is cut once or has two categories.

    A number without public bins will be cut once.
    """
    if isinstance(feature, Categorical):
        return feature.n_bins == 2
    return feature.bins is None or len(feature.bins) == 1
