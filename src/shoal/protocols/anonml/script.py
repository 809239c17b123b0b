"""The course of a study: phases, the questions of each, who is asked them, and what is learned from the counts.

Everything here is a public function of the parameters and of the counts so far. Peer, aggregator and the vectorised population follow
the same script, and none of them decides anything that is not in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from shoal.domain import Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.privacy.events import Event
from shoal.protocols.anonml.assignment import Words
from shoal.protocols.anonml.messages import Publication
from shoal.protocols.anonml.model import Model
from shoal.protocols.anonml.params import Params
from shoal.protocols.anonml.questions import Ints, Question, Tally

Tallies = tuple[tuple[Tally, ...], ...]
"""What was counted: phase -> question -> tally. Its length is the phase that comes next."""


class Script(ABC):
    """The course of one study.

    Parameters
    ----------
    params
        What all parties agree on.

    Attributes
    ----------
    schema
        What is asked about: the declared schema, or a coarser one.
    n_phases
        How many times people are asked; nobody is asked in all of them.
    """

    params: Params
    schema: Schema
    n_phases: int

    @abstractmethod
    def publish(self, tallies: Tallies) -> Publication:
        """What is published before the next phase."""

    @abstractmethod
    def questions(self, phase: int, publication: Publication) -> tuple[Question, ...]:
        """The questions of a phase."""

    @abstractmethod
    def place(self, words: Words) -> Ints:
        """The place of each person in the course, ``(n,)``, by the words alone."""

    @abstractmethod
    def group_at(self, phase: int, places: Ints) -> Ints:
        """The group in a phase of each of these places, ``(n,)``; -1 for those who are not asked."""

    def group_of(self, phase: int, words: Words) -> Ints:
        """The group in a phase of people with these words."""
        return self.group_at(phase, self.place(words))

    @abstractmethod
    def asked(self, phase: int, group: int) -> tuple[int, ...]:
        """Which questions of the phase a group is asked."""

    @abstractmethod
    def name_of(self, phase: int, question: int) -> str:
        """The name under which a person's ledger knows the question; a person answers each name once."""

    @property
    @abstractmethod
    def prices(self) -> dict[str, Event]:
        """What each name costs."""

    @abstractmethod
    def learn(self, tallies: Tallies, entropy: Entropy) -> Model:
        """The model, from the counts of all phases."""

    @abstractmethod
    def max_cuts(self, number: Feature) -> int:
        """Most cut points that may be published for a number."""

    @abstractmethod
    def expected(self, phase: int) -> tuple[int, int, int]:
        """How many points, lists of cut points and lists of levels the publication of a phase has."""

    def check(self, phase: int, publication: Publication) -> None:
        """Blame an aggregator whose publication is not of the kind that the script calls for."""
        shown = (len(publication.points), len(publication.cuts), len(publication.levels))
        if not 0 <= phase < self.n_phases or shown != self.expected(phase):
            raise _unfit(f"Phase {phase} of this study does not come with {shown} points, cuts and levels.")
        # Nothing is known yet, so everyone must be asked the same: a question made up for one person would show whose answer it is.
        if phase == 0 and publication != self.publish(()):
            raise _unfit("The first phase is not opened as the study says.")
        numbers = self.params.unbinned
        for number, cuts in zip(numbers, publication.cuts, strict=False):
            inside = all(number.low <= cut < number.high for cut in cuts)
            if not 1 <= len(cuts) <= self.max_cuts(number) or not inside or list(cuts) != sorted(set(cuts)):
                raise _unfit(f"The cut points of {number.name} do not cut its range.")
        for feature, levels in zip(self.binned(publication).features, publication.levels, strict=False):
            if len(levels) != feature.n_bins or max(levels) > 2:
                raise _unfit(f"The levels of {feature.name} do not fit its bins.")

    def binned(self, publication: Publication) -> Schema:
        """The schema with the published cut points, where there are any yet."""
        cuts = iter(publication.cuts)
        features = [
            replace(feature, bins=next(cuts, None)) if isinstance(feature, Numeric) and feature.bins is None else feature
            for feature in self.schema.features
        ]
        return Schema(features, self.schema.label)


def _unfit(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("MSG-005", what, why="What is published before a phase follows from the study.")
