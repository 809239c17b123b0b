"""All that a miner and its colluders see of a whole study of SDQ, drawn again and again with one unit there and without it.

As many databases collude, and as many are missing, as may be: what hides the unit is the noise that was promised, and no more. Where two
databases are selected to add it, nobody colludes, as the label says.

Some studies are run in full, with the peers' own messages, secure sums and ledgers. For the others the peers are asked for what they would
put into the sums, for many studies at once; the sums are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.audit.looks import Look, Seen, ranked
from shoal.audit.miners import Helper, Pretence, elsewhere, hostile_courses, neighbours
from shoal.crypto.roster import Identity, Roster
from shoal.entropy import Entropy
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.mechanisms.shares import SharedLaplace
from shoal.privacy.accountant import Loss
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, MemoryLedger, run_local
from shoal.protocols.joint.computing import selected
from shoal.protocols.sdq.aggregator import Mining, SDQAggregator
from shoal.protocols.sdq.joining import n_parties
from shoal.protocols.sdq.noise import mechanism_of
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.script import Part, Round, Script
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.terms import Terms
from shoal.study.manifest import Manifest
from shoal.study.sdq import script_of
from shoal.study.spec import Study

MakePeer = Callable[[Script, Member, Table], SDQPeer]
"""What makes a peer of a script, a place on the roster and rows: the class itself, or one that a doubter has altered."""

Floats = npt.NDArray[np.float64]

RUNS = 3
"""Studies that are run in full, with each of the neighbours: about a second each for ten databases and ten rounds."""
_BLOCK = 1 << 14
_PATIENCE = timedelta(hours=1)


@dataclass(frozen=True, eq=False)
class Watched:
    """A part of a round, as the miner looks at it.

    Parameters
    ----------
    params
        The public figures of the study.
    number, asked
        Which round, and what is asked in it.
    part, start
        The part, and where it begins in the answer to the round.
    where
        Which of its counts the unit changes; the others tell nothing. For a choice, all scores.
    sums
        ``(2, k)`` what these are over all databases without the unit, and with it.
    """

    params: Params
    number: int
    asked: Round
    part: Part
    start: int
    where: Ints
    sums: Ints

    def repeated(self, n: int) -> Round:
        """The round for n studies at once, with nothing else in it."""
        count, where = self.part.count, self.where
        many = replace(self.part, count=lambda table: np.tile(count(table)[where], n), size=n * where.size)
        return replace(self.asked, parts=(many,))

    def read(self, answer: Ints) -> Ints:
        """What one answer to the round tells: ``(1, k)`` sums, or the ``(1,)`` position that was chosen."""
        return answer if self.asked.is_choice else answer[np.newaxis, self.start + self.where]

    def learned(self, noisy_sums: Ints) -> Ints:
        """What is learned of ``(n, k)`` noisy sums: themselves, or of scores the ``(n,)`` positions of the largest."""
        return np.argmax(noisy_sums, axis=1) if self.asked.is_choice else noisy_sums

    def evidence(self, seen: Ints) -> Floats:
        """``(n,)``: how much likelier the unit makes what was learned, by the logarithm of the ratio."""
        if self.asked.is_choice:
            return self._of_choices[seen]
        mechanism = mechanism_of(self.params, self.part)
        assert isinstance(mechanism, SharedLaplace)
        closer = np.abs(seen - self.sums[0]) - np.abs(seen - self.sums[1])
        return np.asarray(float(mechanism.rate) * closer.sum(axis=1))

    @cached_property
    def _of_choices(self) -> Floats:
        choice = NoisyMax(self.part.epsilon, CountScore(self.params.max_rows), self.params.scope)
        without, with_unit = (np.log(choice.chances(scores)) for scores in self.sums)
        return np.asarray(with_unit - without)


@dataclass(frozen=True, eq=False)
class Run:
    """A study that was run in full.

    Parameters
    ----------
    evidence
        ``(n_rounds,)`` what was learned of each round says for the unit; 0 of one that was not answered.
    charged
        What each ledger has counted, in grains, of those that do not collude.
    packets
        Most answers of one of them.
    """

    evidence: Floats
    charged: tuple[int, ...]
    packets: int


class Stage:
    """A study with a hostile miner, on which databases can be put.

    Parameters
    ----------
    study
        Digest of the manifest.
    script
        The course of the study.
    make_peer
        What makes a peer.
    """

    def __init__(self, study: bytes, script: Script, make_peer: MakePeer = SDQPeer) -> None:
        self.script = script
        self.params = script.params
        self.make_peer = make_peer
        n, courses = self.params.n_databases, hostile_courses(script)
        identities = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(n)]
        self._terms = Terms(study, Roster(tuple(map(str, range(n))), tuple(one.public for one in identities)), self.params.minimum)
        self._n_hidden = _n_hidden(self.params)
        self.rounds = [asked for course in courses if (asked := script.round(course)) is not None]
        n_choices = sum(asked.is_choice for asked in self.rounds)
        # Nobody of a committee may be missing; whoever is needed for that alone puts nothing into the sums.
        n_present = max(self.params.minimum, n_parties(self.params, True) if n_choices else 0)
        self._members = [Member(self._terms, me, identities[me]) for me in range(n_present)]
        self._tables, self._others = neighbours(self.params, courses[-1].choices[:n_choices]), elsewhere(self.params)
        self._miner = Pretence(script, (*courses[:-1], *courses[-2:]))
        self.watched = [one for number in range(len(self.rounds)) for one in self._watch(number)]

    def _watch(self, number: int) -> list[Watched]:
        asked, watched, start = self.rounds[number], [], 0
        for part in asked.parts:
            sums = np.stack([part.count(table) + (self._n_hidden - 1) * part.count(self._others) for table in self._tables])
            where = np.arange(part.size) if asked.is_choice else np.flatnonzero(sums[0] != sums[1])
            watched += [Watched(self.params, number, asked, part, start, where, sums[:, where])] if where.size else []
            start += part.size
        return watched

    def _hidden(self, which: int) -> list[tuple[SDQPeer, Table]]:
        """The databases that do not collude, and their rows: the first one has the unit or, for 0, has not."""
        tables = [self._tables[which], *[self._others] * (self._n_hidden - 1)]
        return [(self.make_peer(self.script, self._members[me], table), table) for me, table in enumerate(tables)]

    def draw(self, which: int, n: int, entropy: Entropy) -> Floats:
        """``(n, n_rounds)``: the evidence of n studies."""
        hidden = self._hidden(which)
        blocks = [self._block(hidden, min(_BLOCK, n - start), entropy) for start in range(0, n, _BLOCK)]
        return np.concatenate([np.zeros((0, len(self.rounds))), *blocks])

    def _block(self, hidden: list[tuple[SDQPeer, Table]], n: int, entropy: Entropy) -> Floats:
        evidence = np.zeros((n, len(self.rounds)))
        for watched in self.watched:
            asked, noisy_sums = watched.repeated(n), np.zeros(n * watched.where.size, np.int64)
            roles = selected(dict.fromkeys(range(len(hidden)), ()), entropy) if self.params.noise == "two-selected" else {}
            for me, (peer, table) in enumerate(hidden):
                noisy_sums += peer.noisy(asked, table, roles.get(me), entropy)
            evidence[:, watched.number] += watched.evidence(watched.learned(noisy_sums.reshape(n, -1)))
        return evidence

    def run(self, which: int, entropy: Entropy) -> Run:
        """A study from beginning to end, in which the last question is asked twice."""
        names, hidden = self._terms.roster.names, self._hidden(which)
        peers = {names[peer.member.me]: peer for peer, _ in hidden}
        ledgers = {name: MemoryLedger() for name in peers}
        peers |= {names[member.me]: Helper(self.script, member, self._others) for member in self._members[len(hidden) :]}
        miner = SDQAggregator(self._miner, self._terms, _PATIENCE)
        state = run_local(miner, peers, entropy, ledgers=ledgers).states[AGGREGATOR]
        assert isinstance(state, Mining)
        evidence, learned = np.zeros(len(self.rounds)), state.learned
        for watched in self.watched:
            if watched.number < len(learned):
                evidence[watched.number] += watched.evidence(watched.read(learned[watched.number])).item()
        entries = [ledger.entries.values() for ledger in ledgers.values()]
        return Run(evidence, tuple(sum(entry.cost for entry in some) for some in entries), max(map(len, entries)))


def _n_hidden(params: Params) -> int:
    """Databases of which the adversary that the label names knows nothing; worked out here, and not by what makes the noise."""
    if params.noise == "two-selected":
        return params.n_databases
    return 1 if params.trust == "local" else params.minimum - params.max_colluders


def look(study: Study, claim: Loss, whole: Loss, samples: int, entropy: Entropy, make_peer: MakePeer) -> Seen:
    """Draw so many studies with a unit and without it, `RUNS` of them in full, and compare all that the miner learns.

    Parameters
    ----------
    study
        The study.
    claim, whole
        What the label states, and what it says that everything costs; of what ledgers have counted, the sum is reported that misses it.
    samples, entropy, make_peer
        As for the audit.
    """
    stage = Stage(Manifest(study).digest, script_of(study), make_peer)
    drawn, runs = [], []
    for which in (0, 1):
        full = [stage.run(which, entropy) for _ in range(RUNS)]
        drawn.append(np.concatenate([[run.evidence for run in full], stage.draw(which, samples - RUNS, entropy)]))
        runs += full
    told = {"all that was learned": [evidence.sum(axis=1) for evidence in drawn]}
    if len(stage.rounds) > 1:
        told |= {f"what was learned of {asked.question}": [evidence[:, i] for evidence in drawn] for i, asked in enumerate(stage.rounds)}
    rows = (f"all {stage.params.unit}s but one", f"all {stage.params.unit}s")
    charged = [total for run in runs for total in run.charged]
    return Seen(
        tuple(Look(seen_in, rows, *ranked(*both), claim) for seen_in, both in told.items()),
        max(charged, key=lambda total: abs(total - grains_up(whole.epsilon))),
        max(run.packets for run in runs),
        None,
        f"each of two tables, {RUNS} of them in full, with messages and secure sums",
    )
