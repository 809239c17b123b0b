"""A hostile aggregator of PFDS's secure sums, the holders that help it, and what the sums tell it of a unit.

As many holders collude, and as many are missing, as may be, so that what hides the unit is the noise that was promised, and no more. The
aggregator pretends to have learned a model that is wrong about the unit, so that every sum tells of it as much as it can.

Some studies are run in full, with messages, secure sums and ledgers. For the others the peers are asked for what they would put into the
sums, for many studies at once; the sums are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from shoal.audit.looks import evidence
from shoal.crypto.roster import Identity, Roster
from shoal.entropy import Entropy
from shoal.mechanisms.shared_gaussian import SharedGaussian
from shoal.mechanisms.shares import SharedLaplace
from shoal.privacy.events import Event
from shoal.protocols.base import AGGREGATOR, Effects, MemoryLedger, run_local
from shoal.protocols.pfds.params import GRID, Floats, Ints, Params, Rows
from shoal.protocols.pfds.scoring import MOST, ONE
from shoal.protocols.pfds.summing_aggregator import Summing, SummingAggregator
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.sums import Answers, Course, SumScript
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.terms import Terms

MakePeer = Callable[[SumScript, Member, Rows], SummingPeer]
"""What makes a peer of a script, a place on the roster and rows: the class itself, or one that a doubter has altered."""

_BLOCK = 1 << 12
_PATIENCE = timedelta(hours=1)


def unit_and_others(params: Params) -> tuple[Rows, Rows]:
    """The rows of variant plus without the unit, and with it: it shares no cell with them where a feature has two."""
    first, last = params.starts[:-1], params.starts[1:] - 1
    sides: Ints = GRID * np.eye(params.n_sides, dtype=np.int64)
    with_unit = Rows(np.stack([last, *[first] * params.max_rows]), sides[[0, *[-1] * params.max_rows]])
    return with_unit.take(np.arange(1)), with_unit


def hostile_course(script: SumScript, step: int) -> Course:
    """What the aggregator asks everyone to count with: a model that is sure of the first class, and wrong about the unit."""
    return script.start.replace(step=step, intercept=-MOST * ONE)


class Pretence(SumScript):
    """A script whose aggregator takes no notice of answers."""

    @property
    def start(self) -> Course:
        return super().start.replace(intercept=-MOST * ONE)

    def advance(self, course: Course, answers: Answers) -> Course:
        return course.replace(step=len(answers))


class Silent(SummingAggregator):
    """An aggregator that keeps what it has learned to itself."""

    def _published(self, state: Summing) -> tuple[Summing, Effects]:
        return state.replace(is_over=True), ()


class Helper(SummingPeer):
    """A colluder: it puts nothing into the sums, where the aggregator would only take it away."""

    def noisy(self, course: Course, rows: Rows, entropy: Entropy) -> Ints:  # noqa: ARG002
        return np.zeros(len(self.script.count(course, rows)), np.int64)


class Repeated(SumScript):
    """A script that asks for some numbers of each answer, as often as there are studies.

    Parameters
    ----------
    script
        The study's.
    where
        Which numbers, by question.
    n
        How many studies.
    """

    def __init__(self, script: SumScript, where: Mapping[str, Ints], n: int) -> None:
        super().__init__(script.params)
        self.script = script
        self.where = where
        self.n = n

    @property
    def prices(self) -> Mapping[str, Event]:
        return self.script.prices

    def mechanism(self, question: str) -> SharedLaplace | SharedGaussian | None:
        return self.script.mechanism(question)

    def count(self, course: Course, rows: Rows) -> Ints:
        return np.tile(self.script.count(course, rows)[self.where[self.questions[course.step]]], self.n)


@dataclass(frozen=True, eq=False)
class Run:
    """A study that was run in full.

    Parameters
    ----------
    evidence
        ``(n_questions,)`` what each sum says for the unit; 0 where not all were made.
    charged
        What each ledger has counted, in grains, of those that do not collude.
    packets
        Most answers of one of them.
    """

    evidence: Floats
    charged: tuple[int, ...]
    packets: int


class Sums:
    """A study of secure sums with a hostile aggregator, on which holders can be put.

    Parameters
    ----------
    study
        Digest of the manifest.
    params
        The public figures of the study.
    make_peer
        What makes a peer of a script, a place on the roster and rows.
    """

    def __init__(self, study: bytes, params: Params, make_peer: MakePeer = SummingPeer) -> None:
        self.script = Pretence(params)
        self.params = params
        self.make_peer = make_peer
        self.prices = self.script.prices
        n = params.n_holders
        identities = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(n)]
        self._terms = Terms(study, Roster(tuple(map(str, range(n))), tuple(one.public for one in identities)), params.minimum)
        self._members = [Member(self._terms, me, identities[me]) for me in range(params.minimum)]
        # What the label promises, worked out here and not by what makes the noise.
        self._n_hidden = params.minimum - params.max_colluders
        self._courses = [hostile_course(self.script, step) for step in range(len(self.script.questions))]
        self._tables = unit_and_others(params)
        others = self._tables[0]
        counts = [np.stack([self.script.count(course, rows) for rows in self._tables]) for course in self._courses]
        moved = [np.flatnonzero(both[0] != both[1]) for both in counts]
        hidden = [(self._n_hidden - 1) * self.script.count(course, others) for course in self._courses]
        self.where = dict(zip(self.script.questions, moved, strict=True))
        self.sums = [(both + more)[:, at] for both, more, at in zip(counts, hidden, moved, strict=True)]

    def _hidden(self, script: SumScript, which: int) -> list[tuple[SummingPeer, Rows]]:
        """The holders that do not collude, and their rows: the first one has the unit or, for 0, has not."""
        rows = [self._tables[which], *[self._tables[0]] * (self._n_hidden - 1)]
        return [(self.make_peer(script, self._members[me], own), own) for me, own in enumerate(rows)]

    def draw(self, which: int, n: int, entropy: Entropy) -> Floats:
        """``(n, n_questions)``: what the sums of n studies say for the unit."""
        blocks = [self._block(which, min(_BLOCK, n - start), entropy) for start in range(0, n, _BLOCK)]
        return np.concatenate([np.zeros((0, len(self._courses))), *blocks])

    def _block(self, which: int, n: int, entropy: Entropy) -> Floats:
        hidden = self._hidden(Repeated(self.script, self.where, n), which)
        answers = [sum(peer.noisy(course, rows, entropy) for peer, rows in hidden) for course in self._courses]
        return self._says([np.reshape(answer, (n, -1)) for answer in answers])

    def _says(self, seen: list[Ints]) -> Floats:
        said = [evidence(event, *both) for event, both in zip(self.prices.values(), zip(seen, self.sums, strict=True), strict=True)]
        return np.stack(said, axis=1)

    def run(self, which: int, entropy: Entropy) -> Run:
        """A study from beginning to end."""
        names, hidden = self._terms.roster.names, self._hidden(self.script, which)
        peers = {names[peer.member.me]: peer for peer, _ in hidden}
        ledgers = {name: MemoryLedger() for name in peers}
        peers |= {names[member.me]: Helper(self.script, member, self._tables[0]) for member in self._members[self._n_hidden :]}
        state = run_local(Silent(self.script, self._terms, _PATIENCE), peers, entropy, ledgers=ledgers).states[AGGREGATOR]
        assert isinstance(state, Summing)
        said, entries = np.zeros(len(self._courses)), [ledger.entries.values() for ledger in ledgers.values()]
        if len(state.learned) == len(self._courses):
            said = self._says([answer[np.newaxis, at] for answer, at in zip(state.learned, self.where.values(), strict=True)])[0]
        return Run(said, tuple(sum(entry.cost for entry in some) for some in entries), max(map(len, entries)))
