"""Variant `paper`: private medians, then one perturbed table per feature subset.

``medians`` (15 phases)
    A fifteenth of the people: for each number without bins, is it greater than the estimate?
``tables``
    Everyone: which combination of bins and label, for each subset of the person's partition.

Medians follow Algorithm 1 of the paper.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np

from shoal.data.schema import Feature
from shoal.entropy import Entropy
from shoal.mechanisms.frequency_oracle import FrequencyOracle
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.privacy.events import Event
from shoal.protocols.anonml.assignment import Words, scale_words
from shoal.protocols.anonml.ensemble import SubsetTable, WeightedVote, train
from shoal.protocols.anonml.messages import AnonMLPublication
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.anonml.params import AnonMLPaperParams, count_cells, draw_feature_subsets
from shoal.protocols.anonml.quantiles import N_MEDIAN_BATCHES, MedianSearch
from shoal.protocols.anonml.questions import (
    AboveQuestion,
    CellQuestion,
    Ints,
    Question,
    choose_table_mechanism,
    count_joint_cells,
    make_response,
    price_answer,
)
from shoal.protocols.anonml.script import AnonMLScript, Tallies

MECHANISMS = ("random-response", "rappor", "pq")
"""The paper's three mechanisms; an answer uses the one of least expected error."""


class AnonMLPaperScript(AnonMLScript):
    """Variant ``paper``.

    Parameters
    ----------
    seed
        The shared source of randomness: the study's digest.

    Notes
    -----
    Ref: AnonML §VI-A, §VII-B Algorithm 1, §VII-C, §VII-D.

    Privacy
    -------
    Unit person, replace, against everyone: ``epsilon_release`` for each of ``n_releases`` answers;
    they add up.
    """

    params: AnonMLPaperParams

    def __init__(self, params: AnonMLPaperParams, seed: bytes) -> None:
        self.params = params
        self.schema = params.schema
        self.n_steps = N_MEDIAN_BATCHES if params.unbinned else 0
        self.n_phases = self.n_steps + 1
        self.subsets = draw_feature_subsets(
            seed, params.n_features, params.n_partitions, params.n_subsets, params.subset_size
        )
        self._questions = lru_cache(maxsize=4)(self._make_questions)

    def assign_positions(self, words: Words) -> Ints:
        return scale_words(words[:, 0], N_MEDIAN_BATCHES) * self.params.n_partitions + scale_words(
            words[:, 1], self.params.n_partitions
        )

    def find_groups(self, phase: int, positions: Ints) -> Ints:
        batch, partition = np.divmod(positions, self.params.n_partitions)
        return partition if phase == self.n_steps else np.where(batch == phase, 0, -1)

    def list_question_numbers(self, phase: int, group: int) -> tuple[int, ...]:
        if group < 0:
            return ()
        if phase < self.n_steps:
            return tuple(range(len(self.params.unbinned)))
        first = group * self.params.n_subsets
        return tuple(range(first, first + self.params.n_subsets))

    def question_name(self, phase: int, question: int) -> str:
        if phase < self.n_steps:
            return f"median/{self.params.unbinned[question].name}"
        return f"table/{question % self.params.n_subsets}"

    @cached_property
    def prices(self) -> dict[str, Event]:
        """The cost of each name.

        A person's partition is not known in advance: all tables cost the same, and the event
        describes the largest possible table.
        """
        epsilon, numbers = self.params.epsilon_release, self.params.unbinned
        medians = {
            f"median/{number.name}": price_answer(make_response(epsilon), epsilon, number.name)
            for number in numbers
        }
        cells = sorted(
            (feature.n_bins or 2 + feature.missing for feature in self.schema.features),
            reverse=True,
        )
        largest = math.prod(cells[: self.params.subset_size]) * self.params.n_labels
        table = price_answer(
            choose_table_mechanism(epsilon, largest, MECHANISMS), epsilon, *self.params.columns
        )
        return medians | {f"table/{i}": table for i in range(self.params.n_subsets)}

    def max_cuts(self, number: Feature) -> int:
        return 1

    def publication_sizes(self, phase: int) -> tuple[int, int, int]:
        n = len(self.params.unbinned)
        return (n, 0, 0) if phase < self.n_steps else (0, n, 0)

    @cached_property
    def _bit_mechanism(self) -> RandomizedResponse | None:
        return None if self.params.is_noiseless else make_response(self.params.epsilon_release)

    def publish(self, tallies: Tallies) -> AnonMLPublication:
        searches = [MedianSearch.begin(number.low, number.high) for number in self.params.unbinned]
        for counted in tallies[: self.n_steps]:
            searches = [
                search.update(int(tally.counts[1]), tally.n, self._bit_mechanism)
                for search, tally in zip(searches, counted, strict=True)
            ]
        points = tuple(float(search.estimate) for search in searches)
        return (
            AnonMLPublication(points=points)
            if len(tallies) < self.n_steps
            else AnonMLPublication(cuts=tuple((point,) for point in points))
        )

    def questions(self, phase: int, publication: AnonMLPublication) -> tuple[Question, ...]:
        return self._questions(phase, publication)

    def _make_questions(self, phase: int, publication: AnonMLPublication) -> tuple[Question, ...]:
        if phase < self.n_steps:
            return tuple(
                AboveQuestion(f"median of {number.name}", self._bit_mechanism, number, point)
                for number, point in zip(self.params.unbinned, publication.points, strict=True)
            )
        features = self.bin_schema(publication).features
        questions = []
        for part in self.subsets:
            for subset in part:
                chosen = tuple(features[j] for j in subset)
                name = f"table of {', '.join(feature.name for feature in chosen)}"
                mechanism = self._choose_mechanism(count_joint_cells(chosen, self.params.n_labels))
                questions.append(CellQuestion(name, mechanism, chosen, self.params.n_labels))
        return tuple(questions)

    def _choose_mechanism(self, size: int) -> FrequencyOracle | None:
        return (
            None
            if self.params.is_noiseless
            else choose_table_mechanism(self.params.epsilon_release, size, MECHANISMS)
        )

    def learn(self, tallies: Tallies, entropy: Entropy) -> VoteModel:
        publication = self.publish(tallies[: self.n_steps])
        schema, params = self.bin_schema(publication), self.params
        subsets = [subset for part in self.subsets for subset in part]
        trained = []
        for subset, tally, question in zip(
            subsets, tallies[self.n_steps], self.questions(self.n_steps, publication), strict=True
        ):
            n_bins = tuple(count_cells(schema.features[j]) for j in subset)
            table = SubsetTable(
                subset, n_bins, params.n_labels, tally.counts, tally.n, question.mechanism
            )
            trained.append(train(table, params.classifier, params.score, entropy))
        return VoteModel(
            schema,
            WeightedVote(
                tuple(classifier for classifier in trained if classifier is not None),
                params.n_labels,
            ),
        )
