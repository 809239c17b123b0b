"""The script of variant ``plus``: every person answers one question, with the whole budget.

======================  ===========================================================================================
phase                   what is asked, of which share of the people
======================  ===========================================================================================
placing (12 times)      is your number above this point? By bisection, for each quantile of each number without bins
answers                 which bin and label (a table); or single bits, at small budgets
blocks (large budgets)  which levels of a few features, and which label
======================  ===========================================================================================

The question is drawn without a look at the row, and cut points and levels come from other people's answers. So each person spends the
price of one answer, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.mechanisms.response import RandomResponse
from shoal.privacy.events import Event
from shoal.privacy.rounding import share
from shoal.protocols.anonml import evidence as ev
from shoal.protocols.anonml.assignment import Words, part_of, thresholds
from shoal.protocols.anonml.bisection import N_BATCHES, Search
from shoal.protocols.anonml.evidence import N_LEVELS
from shoal.protocols.anonml.grids import candidate_edges, grid_edges
from shoal.protocols.anonml.messages import Publication
from shoal.protocols.anonml.model import AdditiveModel
from shoal.protocols.anonml.params import Plus, cells_of
from shoal.protocols.anonml.questions import (
    Above,
    Agree,
    Block,
    Cell,
    Ints,
    LabelIs,
    Question,
    Side,
    Tally,
    charge,
    n_joint_cells,
    response,
    table_mechanism,
)
from shoal.protocols.anonml.rule import choose
from shoal.protocols.anonml.script import Script, Tallies
from shoal.protocols.anonml.shrinkage import learn, levels

_ONLY = "answer"
_SIDES = Fraction(3, 10)
_LABELS = Fraction(1, 10)
_ENOUGH_TABLES = Fraction(1, 4)


@dataclass(frozen=True)
class Slot:
    """A question with the share of the people who are asked it."""

    phase: int
    question: int
    share: Fraction


class PlusScript(Script):
    """Variant ``plus``.

    Parameters
    ----------
    params
        What all parties agree on.

    Privacy
    -------
    Unit person, replace, against everyone: ``epsilon`` for the one answer of a person.
    """

    params: Plus

    def __init__(self, params: Plus) -> None:
        self.params = params
        # A whole number of grains, so that what is charged is never more than what is declared.
        self.epsilon = share(params.epsilon, Fraction(1))
        self.rule = choose(params)
        self.schema = _two_sided(params.schema) if self.rule.is_one_bit else params.schema
        self.n_steps = N_BATCHES if self.rule.placing else 0
        self.n_phases = self.n_steps + 1 + bool(self.rule.blocks)
        self._questions = lru_cache(maxsize=4)(self._make_questions)

    @cached_property
    def _searches(self) -> tuple[tuple[Numeric, Search], ...]:
        """Every quantile that is to be placed, before anything is known about it."""
        return tuple(
            (number, Search.begin(candidate_edges(number.low, number.high), target))
            for number in self.params.unbinned
            for target in self.rule.targets
        )

    @cached_property
    def _asked_by_bits(self) -> tuple[bool, ...]:
        """For each feature, whether single bits tell of it: it must have two sides."""
        return tuple(self.rule.is_one_bit and _has_two_sides(feature) for feature in self.schema.features)

    @cached_property
    def _main(self) -> tuple[tuple[str, int, Fraction], ...]:
        """The questions of the main phase: kind, feature, and share of that phase."""
        j, by_bits = self.params.n_features, self._asked_by_bits
        each = Fraction(1, j)
        labels = _LABELS if any(by_bits) and each * (j - sum(by_bits)) < _ENOUGH_TABLES else Fraction(0)
        asked: list[tuple[str, int, Fraction]] = []
        for i in range(j):
            if by_bits[i]:
                bits = each * (1 - labels)
                asked += [("side", i, bits * _SIDES), ("agree", i, bits * (1 - _SIDES))]
            else:
                asked.append(("table", i, each))
        if labels:
            asked.append(("label", -1, each * sum(by_bits) * labels))
        return tuple(asked)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All questions of all phases, with their shares of the people, which sum to 1."""
        placing, blocks = self.rule.placing, self.rule.blocks
        found = [
            Slot(step, i, placing / (N_BATCHES * len(self._searches))) for step in range(self.n_steps) for i in range(len(self._searches))
        ]
        found += [Slot(self.n_steps, i, (1 - placing) * (1 - blocks) * share) for i, (_, _, share) in enumerate(self._main)]
        if blocks:
            found.append(Slot(self.n_steps + 1, 0, (1 - placing) * blocks))
        return tuple(found)

    @cached_property
    def _edges(self) -> npt.NDArray[np.uint64]:
        return thresholds([slot.share for slot in self.slots])

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        """Phase and question of each slot."""
        return np.array([slot.phase for slot in self.slots], np.int64), np.array([slot.question for slot in self.slots], np.int64)

    def place(self, words: Words) -> Ints:
        return part_of(words[:, 0], self._edges)

    def group_at(self, phase: int, places: Ints) -> Ints:
        phases, questions = self._places
        return np.where(phases == phase, questions, -1)[places]

    def asked(self, phase: int, group: int) -> tuple[int, ...]:
        return () if group < 0 else (group,)

    def name_of(self, phase: int, question: int) -> str:
        return _ONLY

    @cached_property
    def prices(self) -> dict[str, Event]:
        """Which question a person is asked is not known beforehand: all cost the same, and the largest table stands for them."""
        epsilon, n_labels = self.epsilon, self.params.n_labels
        tables = [feature for feature, by_bits in zip(self.schema.features, self._asked_by_bits, strict=True) if not by_bits]
        sizes = [n_labels * (feature.n_bins or self.max_cuts(feature) + 1 + feature.missing) for feature in tables]
        mechanism = table_mechanism(epsilon, max(sizes)) if sizes else response(epsilon)
        return {_ONLY: charge(mechanism, epsilon, *self.params.columns)}

    def max_cuts(self, number: Feature) -> int:
        assert isinstance(number, Numeric)
        return len(self.rule.targets) + len(self._public_cuts(number))

    def _public_cuts(self, number: Numeric) -> set[float]:
        """The cut points that need no answers."""
        grid = grid_edges(number.low, number.high, *self.rule.grid).tolist() if self.rule.grid else []
        return {*grid, *([float(number.low)] if self.rule.has_lowest else [])}

    def expected(self, phase: int) -> tuple[int, int, int]:
        if phase < self.n_steps:
            return len(self._searches), 0, 0
        return 0, len(self.params.unbinned), self.params.n_features if phase > self.n_steps else 0

    def publish(self, tallies: Tallies) -> Publication:
        phase = len(tallies)
        searches = self._searched(tallies)
        if phase < self.n_steps:
            return Publication(points=tuple(search.point for search in searches))
        with_cuts = Publication(cuts=self._cuts(searches))
        if phase == self.n_steps:
            return with_cuts
        found = levels(self._evidence(with_cuts, tallies), self.params.n_labels)
        return with_cuts.replace(levels=tuple(tuple(level.tolist()) for level in found))

    def _searched(self, tallies: Tallies) -> tuple[Search, ...]:
        searches = [search for _, search in self._searches]
        for counted in tallies[: self.n_steps]:
            told = zip(searches, counted, strict=True)
            searches = [search.told(int(tally.counts[1]), tally.n, response(self.epsilon)) for search, tally in told]
        return tuple(searches)

    def _cuts(self, searches: tuple[Search, ...]) -> tuple[tuple[float, ...], ...]:
        cuts = []
        for i, number in enumerate(self.params.unbinned):
            n = len(self.rule.targets)
            placed = {search.point for search in searches[i * n : (i + 1) * n]}
            cuts.append(tuple(sorted(placed | self._public_cuts(number))))
        return tuple(cuts)

    def questions(self, phase: int, publication: Publication) -> tuple[Question, ...]:
        return self._questions(phase, publication)

    def _make_questions(self, phase: int, publication: Publication) -> tuple[Question, ...]:
        bit = response(self.epsilon)
        if phase < self.n_steps:
            asked = zip(self._searches, publication.points, strict=True)
            return tuple(Above(f"quantile of {number.name}", bit, number, point) for (number, _), point in asked)
        features = tuple(self.binned(publication).features)
        if phase == self.n_steps:
            return tuple(self._main_question(kind, None if i < 0 else features[i]) for kind, i, _ in self._main)
        size = self.rule.block_size
        mechanism = response(self.epsilon, 2 * N_LEVELS**size)
        return (Block("levels", mechanism, features, tuple(np.array(level, np.int64) for level in publication.levels), size),)

    def _main_question(self, kind: str, feature: Feature | None) -> Question:
        bit = response(self.epsilon)
        if feature is None:
            return LabelIs("label", bit)
        if kind == "table":
            n_labels = self.params.n_labels
            mechanism = table_mechanism(self.epsilon, n_joint_cells([feature], n_labels))
            return Cell(f"table of {feature.name}", mechanism, (feature,), n_labels)
        return (Side if kind == "side" else Agree)(f"{kind} of {feature.name}", bit, feature)

    def learn(self, tallies: Tallies, entropy: Entropy) -> AdditiveModel:
        publication = self.publish(tallies[: self.n_steps])
        schema = self.binned(publication)
        evidence = self._evidence(publication, tallies)
        label_bit = next((self._bit(tally) for (kind, _, _), tally in self._main_tallies(tallies) if kind == "label"), None)
        scores = learn(evidence, self.params.n_labels, label_bit, self._blocks(publication, tallies))
        return AdditiveModel(schema, scores.label_shares, scores.scores)

    def _main_tallies(self, tallies: Tallies) -> list[tuple[tuple[str, int, Fraction], Tally]]:
        return list(zip(self._main, tallies[self.n_steps], strict=True))

    def _bit(self, tally: Tally) -> ev.Bit:
        return ev.Bit(int(tally.counts[1]), tally.n, response(self.epsilon))

    def _evidence(self, publication: Publication, tallies: Tallies) -> list[ev.Evidence]:
        features = self.binned(publication).features
        of = {(kind, i): tally for (kind, i, _), tally in self._main_tallies(tallies)}
        found = []
        for i, feature in enumerate(features):
            shape = ev.Shape(cells_of(feature), isinstance(feature, Numeric), feature.missing)
            if self._asked_by_bits[i]:
                side, agree = self._bit(of["side", i]), self._bit(of["agree", i])
                is_placed = feature.name in {number.name for number in self.params.unbinned}
                is_median = isinstance(feature, Numeric) and is_placed and list(feature.bins or ()) != [feature.low]
                n_placed = self._n_placed(feature.name, tallies)
                found.append(ev.Evidence(shape, side=side, agree=agree, n_placed=n_placed, is_lowest=not is_median))
            else:
                tally = of["table", i]
                mechanism = table_mechanism(self.epsilon, cells_of(feature) * self.params.n_labels)
                found.append(ev.Evidence(shape, table=ev.Table(tally.counts, tally.n, mechanism)))
        return found

    def _n_placed(self, name: str, tallies: Tallies) -> int:
        mine = [i for i, (number, _) in enumerate(self._searches) if number.name == name]
        return sum(counted[i].n for counted in tallies[: self.n_steps] for i in mine)

    def _blocks(self, publication: Publication, tallies: Tallies) -> ev.Blocks | None:
        if not self.rule.blocks:
            return None
        phase = self.n_steps + 1
        question = self.questions(phase, self.publish(tallies[:phase]))[0]
        assert isinstance(question, Block) and isinstance(question.mechanism, RandomResponse)
        j, counts = self.params.n_features, tallies[phase][0].counts
        singles = counts[: question.n_singles].reshape(j, N_LEVELS, 2)
        pairs = counts[question.n_singles :].reshape(-1, N_LEVELS, N_LEVELS)
        return ev.Blocks(question.levels, singles, singles.sum((1, 2)), pairs, pairs.sum((1, 2)), question.mechanism)


def _two_sided(schema: Schema) -> Schema:
    """The schema with the middle one of several public cut points: at a small budget a number is asked about by its side alone."""
    features = [
        replace(feature, bins=(feature.bins[len(feature.bins) // 2],)) if isinstance(feature, Numeric) and feature.bins else feature
        for feature in schema.features
    ]
    return Schema(features, schema.label)


def _has_two_sides(feature: Feature) -> bool:
    """Whether a feature is cut once, or is of two categories; a number without public bins will be cut once."""
    if isinstance(feature, Categorical):
        return feature.n_bins == 2
    return feature.bins is None or len(feature.bins) == 1
