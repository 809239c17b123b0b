"""Base class of the two variants: phases, questions, prices, learning.

Everything here is a public function of the parameters and of the counts so far. Peer, aggregator
and the vectorised population follow the same script; none of them may decide anything that is not
in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from shoal.data.schema import Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.privacy.events import Event
from shoal.protocols.additive_model import ClassificationModel
from shoal.protocols.anonml.assignment import Words
from shoal.protocols.anonml.messages import AnonMLPublication
from shoal.protocols.anonml.params import AnonMLParams
from shoal.protocols.anonml.questions import Ints, Question, Tally

Tallies = tuple[tuple[Tally, ...], ...]
"""Counts: phase -> question -> tally. The length is the number of the next phase."""


class AnonMLScript(ABC):
    """The phases of one study.

    Attributes
    ----------
    schema
        The schema of the questions: the declared one, or a coarser one.
    n_phases
        Number of phases; no person is asked in all of them.
    """

    params: AnonMLParams
    schema: Schema
    n_phases: int

    @abstractmethod
    def publish(self, tallies: Tallies) -> AnonMLPublication:
        """Return the publication that opens the next phase."""

    @abstractmethod
    def questions(self, phase: int, publication: AnonMLPublication) -> tuple[Question, ...]:
        """Return the questions of a phase."""

    @abstractmethod
    def assign_positions(self, words: Words) -> Ints:
        """Return the position of each person in the script, ``(n,)``, from the words alone."""

    @abstractmethod
    def find_groups(self, phase: int, positions: Ints) -> Ints:
        """Return the group in a phase of each position, ``(n,)``; -1 for those not asked."""

    def assign_groups(self, phase: int, words: Words) -> Ints:
        """Return the group in a phase of people with these words."""
        return self.find_groups(phase, self.assign_positions(words))

    @abstractmethod
    def list_question_numbers(self, phase: int, group: int) -> tuple[int, ...]:
        """Return the questions of the phase that a group is asked."""

    @abstractmethod
    def question_name(self, phase: int, question: int) -> str:
        """Return the question's name in a person's ledger; a person answers each name once."""

    @property
    @abstractmethod
    def prices(self) -> dict[str, Event]:
        """The cost of each name."""

    @abstractmethod
    def learn(self, tallies: Tallies, entropy: Entropy) -> ClassificationModel:
        """Return the model, learned from the counts of all phases."""

    @abstractmethod
    def max_cuts(self, number: Feature) -> int:
        """Return the largest number of cut points that may be published for a number."""

    @abstractmethod
    def publication_sizes(self, phase: int) -> tuple[int, int, int]:
        """Return the numbers of points, cut lists and level lists in a phase's publication."""

    def check_publication(self, phase: int, publication: AnonMLPublication) -> None:
        """Raise `RemoteProtocolError` for a publication that does not follow the script."""
        shown = (len(publication.points), len(publication.cuts), len(publication.levels))
        if not 0 <= phase < self.n_phases or shown != self.publication_sizes(phase):
            raise _bad_publication_error(
                f"Phase {phase} of this study does not publish {shown} points, cuts and levels."
            )
        # Before the first answers everyone must be asked the same: a question made up for one
        # person would identify that person's answer.
        if phase == 0 and publication != self.publish(()):
            raise _bad_publication_error(
                "The publication of the first phase does not follow from the study."
            )
        numbers = self.params.unbinned
        for number, cuts in zip(numbers, publication.cuts, strict=False):
            inside = all(number.low <= cut < number.high for cut in cuts)
            if (
                not 1 <= len(cuts) <= self.max_cuts(number)
                or not inside
                or list(cuts) != sorted(set(cuts))
            ):
                raise _bad_publication_error(
                    f"The cut points of {number.name} are not rising points inside its range."
                )
        for feature, levels in zip(
            self.bin_schema(publication).features, publication.levels, strict=False
        ):
            if len(levels) != feature.n_bins or max(levels) > 2:
                raise _bad_publication_error(f"The levels of {feature.name} do not match its bins.")

    def bin_schema(self, publication: AnonMLPublication) -> Schema:
        """Return the schema with the published cut points, if there are any yet."""
        cuts = iter(publication.cuts)
        features = [
            replace(feature, bins=next(cuts, None))
            if isinstance(feature, Numeric) and feature.bins is None
            else feature
            for feature in self.schema.features
        ]
        return Schema(features, self.schema.label)


def _bad_publication_error(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "MSG-005", what, why="The study determines what is published before a phase."
    )
