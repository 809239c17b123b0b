"""The script of variant ``paper``: medians by Algorithm 1, then one perturbed table for each subset of a person's partition.

==================  ===========================================================================================
phase               what is asked
==================  ===========================================================================================
medians (15 times)  a fifteenth of the people: for each number without bins, is it greater than the estimate?
tables              everyone: which combination of bins and label, for each subset of the own partition
==================  ===========================================================================================
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np

from shoal.domain import Feature
from shoal.entropy import Entropy
from shoal.mechanisms.reports import FrequencyMechanism
from shoal.mechanisms.response import RandomResponse
from shoal.privacy.events import Event
from shoal.protocols.anonml.assignment import Words, below
from shoal.protocols.anonml.classifiers import train
from shoal.protocols.anonml.median import N_BATCHES, MedianSearch
from shoal.protocols.anonml.messages import Publication
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.anonml.params import Paper, cells_of
from shoal.protocols.anonml.partitions import feature_subsets
from shoal.protocols.anonml.questions import Above, Cell, Ints, Question, charge, n_joint_cells, response, table_mechanism
from shoal.protocols.anonml.script import Script, Tallies
from shoal.protocols.anonml.vote import Vote

MECHANISMS = ("random-response", "rappor", "pq")
"""The paper's three, of which the one of least expected error answers."""


class PaperScript(Script):
    """Variant ``paper``.

    Parameters
    ----------
    params
        What all parties agree on.
    seed
        The shared source of randomness: the study's digest.

    Notes
    -----
    Ref: AnonML §VI-A, §VII-B Algorithm 1, §VII-C, §VII-D.

    Privacy
    -------
    Unit person, replace, against everyone: ``epsilon_release`` for each of ``n_releases`` answers; they add up.
    """

    params: Paper

    def __init__(self, params: Paper, seed: bytes) -> None:
        self.params = params
        self.schema = params.schema
        self.n_steps = N_BATCHES if params.unbinned else 0
        self.n_phases = self.n_steps + 1
        self.subsets = feature_subsets(seed, params.n_features, params.n_partitions, params.n_subsets, params.subset_size)
        self._questions = lru_cache(maxsize=4)(self._make_questions)

    def place(self, words: Words) -> Ints:
        return below(words[:, 0], N_BATCHES) * self.params.n_partitions + below(words[:, 1], self.params.n_partitions)

    def group_at(self, phase: int, places: Ints) -> Ints:
        batch, partition = np.divmod(places, self.params.n_partitions)
        return partition if phase == self.n_steps else np.where(batch == phase, 0, -1)

    def asked(self, phase: int, group: int) -> tuple[int, ...]:
        if group < 0:
            return ()
        if phase < self.n_steps:
            return tuple(range(len(self.params.unbinned)))
        first = group * self.params.n_subsets
        return tuple(range(first, first + self.params.n_subsets))

    def name_of(self, phase: int, question: int) -> str:
        if phase < self.n_steps:
            return f"median/{self.params.unbinned[question].name}"
        return f"table/{question % self.params.n_subsets}"

    @cached_property
    def prices(self) -> dict[str, Event]:
        """A person's partition is not known beforehand: all tables cost the same, and the largest that could be stands for them."""
        epsilon, numbers = self.params.epsilon_release, self.params.unbinned
        medians = {f"median/{number.name}": charge(response(epsilon), epsilon, number.name) for number in numbers}
        cells = sorted((feature.n_bins or 2 + feature.missing for feature in self.schema.features), reverse=True)
        largest = math.prod(cells[: self.params.subset_size]) * self.params.n_labels
        table = charge(table_mechanism(epsilon, largest, MECHANISMS), epsilon, *self.params.columns)
        return medians | {f"table/{i}": table for i in range(self.params.n_subsets)}

    def max_cuts(self, number: Feature) -> int:
        return 1

    def expected(self, phase: int) -> tuple[int, int, int]:
        n = len(self.params.unbinned)
        return (n, 0, 0) if phase < self.n_steps else (0, n, 0)

    @cached_property
    def _bit(self) -> RandomResponse | None:
        return None if self.params.is_bare else response(self.params.epsilon_release)

    def publish(self, tallies: Tallies) -> Publication:
        searches = [MedianSearch.begin(number.low, number.high) for number in self.params.unbinned]
        for counted in tallies[: self.n_steps]:
            told = zip(searches, counted, strict=True)
            searches = [search.told(int(tally.counts[1]), tally.n, self._bit) for search, tally in told]
        points = tuple(float(search.estimate) for search in searches)
        return Publication(points=points) if len(tallies) < self.n_steps else Publication(cuts=tuple((point,) for point in points))

    def questions(self, phase: int, publication: Publication) -> tuple[Question, ...]:
        return self._questions(phase, publication)

    def _make_questions(self, phase: int, publication: Publication) -> tuple[Question, ...]:
        if phase < self.n_steps:
            asked = zip(self.params.unbinned, publication.points, strict=True)
            return tuple(Above(f"median of {number.name}", self._bit, number, point) for number, point in asked)
        features = self.binned(publication).features
        questions = []
        for part in self.subsets:
            for subset in part:
                chosen = tuple(features[j] for j in subset)
                name = f"table of {', '.join(feature.name for feature in chosen)}"
                mechanism = self._table(n_joint_cells(chosen, self.params.n_labels))
                questions.append(Cell(name, mechanism, chosen, self.params.n_labels))
        return tuple(questions)

    def _table(self, size: int) -> FrequencyMechanism | None:
        return None if self.params.is_bare else table_mechanism(self.params.epsilon_release, size, MECHANISMS)

    def learn(self, tallies: Tallies, entropy: Entropy) -> VoteModel:
        publication = self.publish(tallies[: self.n_steps])
        schema, params = self.binned(publication), self.params
        subsets = [subset for part in self.subsets for subset in part]
        trained = []
        for subset, tally, question in zip(subsets, tallies[self.n_steps], self.questions(self.n_steps, publication), strict=True):
            n_bins = tuple(cells_of(schema.features[j]) for j in subset)
            trained.append(
                train(tally.counts, tally.n, question.mechanism, subset, n_bins, params.n_labels, params.classifier, params.score, entropy)
            )
        return VoteModel(schema, Vote(tuple(one for one in trained if one is not None), params.n_labels))
