"""Audit of SDQ: a hostile miner with colluders, in studies with one unit and without it.

`shoal.audit.study` calls `AUDITED`. The largest allowed numbers of databases collude and are
missing, so that only the promised noise hides the unit. If two databases are selected to add the
noise, none colludes, as the label states.

The miner pretends to have learned results that lead the script along the unit's own cells, so that
each round depends on the unit, and at the end it asks its last question again. Its colluders put
nothing into the sums, as the miner would only subtract it.

Some studies run in full, with the peers' messages, secure sums and ledgers. For the others the
peers compute what they would put into the sums, for many studies together; the sums are the same.

The sums that the unit changes are compared by the noise that they should have. In some studies
other sums are opened too, and `shoal.audit.distinguishers` compares all of them. One study is
replayed (`shoal.audit.replay`): all that leaves outside the answers is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.distinguishers import (
    MAX_NUMBERS,
    SEARCH_SAMPLES,
    Reports,
    choose_evenly,
    observe_reports,
)
from shoal.audit.observations import AuditedProtocol, Observation, Observations, rank_samples
from shoal.audit.replay import WrapPeer, keep_peer, replay_neighbours
from shoal.crypto.identity import Identity, Roster
from shoal.entropy import Entropy
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.privacy.accountant import Loss
from shoal.privacy.events import Event
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, MemoryLedger, run_local
from shoal.protocols.mpc.computer import select_pair
from shoal.protocols.sdq.aggregator import SDQAggregator, SDQAggregatorState
from shoal.protocols.sdq.committee import count_parties
from shoal.protocols.sdq.messages import SDQAsk
from shoal.protocols.sdq.noise import make_mechanism
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.script import Answers, RoundPart, SDQRound, SDQScript, SDQScriptState
from shoal.protocols.secagg.member import SumMember
from shoal.protocols.secagg.messages import SumParameters
from shoal.study.manifest import Manifest
from shoal.study.sdq import build_script
from shoal.study.spec import Study

_MANY = 1 << 40
"""Rows that the miner pretends to have counted with the unit."""


def make_hostile_states(script: SDQScript) -> tuple[SDQScriptState, ...]:
    """Return the states of all rounds, and the last state, of a miner that follows the unit.

    The unit has the first cell in all attributes, and the miner follows it to the last level. A
    choice is pretended to select the narrowest candidate, the last of equal ones: the label prices
    this path.
    """
    arities = script.params.arities
    states: list[SDQScriptState] = [SDQScriptState()]
    answers: Answers = ()
    while current := script.make_round(states[-1]):
        false_answers = (
            np.arange(current.size)[:, np.newaxis]
            if current.is_choice
            else np.where(np.arange(current.size) == 0, _MANY, 0)[np.newaxis]
        )
        next_states = [script.advance(states[-1], (*answers, answer)) for answer in false_answers]
        chosen = (
            max(range(len(next_states)), key=lambda i: (-arities[next_states[i].choices[-1]], i))
            if current.is_choice
            else 0
        )
        states, answers = [*states, next_states[chosen]], (*answers, false_answers[chosen])
    return tuple(states)


def make_neighbours(params: SDQParams, path: tuple[int, ...]) -> tuple[CellTable, CellTable]:
    """Return the rows of the unit's database without the unit, and with it.

    The unit's rows have the first cell in all attributes and the first class. In the cells of the
    path's attributes up to each choice the second class outnumbers the unit's rows; in the cells of
    other candidates it does not. So the unit raises the scores of all candidates but the one of the
    path, by the largest possible amount. At the first choice that one leads by the same amount
    without the unit.

    Notes
    -----
    For a set S of attributes, let f(S) be the excess of the second class over the first in the
    unit's cells of S. It must be max_rows if S is a prefix of the path, and 0 otherwise. f(S) is
    the sum, over all sets that contain S, of the rows that agree with the unit exactly there; these
    follow from f by Möbius inversion.
    """
    k, n_features = len(path), len(params.arities)
    cells, labels = [], []
    for agreeing in range(1 << k):
        weight = sum(
            (-1) ** (i - agreeing.bit_count()) for i in range(max(1, agreeing.bit_length()), k + 1)
        )
        # Each feature of a study has a second cell.
        row = np.ones(n_features, np.int64)
        row[[path[i] for i in range(k) if agreeing >> i & 1]] = 0
        cells += [row] * abs(weight) * params.max_rows
        labels += [int(weight > 0)] * abs(weight) * params.max_rows
    without = CellTable(
        np.reshape(cells, (-1, n_features)).astype(np.int64), np.array(labels, np.int64)
    )
    unit = np.zeros((params.max_rows, n_features), np.int64)
    return without, CellTable(
        np.concatenate([without.cells, unit]), np.concatenate([without.labels, unit[:, 0]])
    )


def make_other_table(params: SDQParams) -> CellTable:
    """Return the rows of each other database: one row that shares no cell with the unit."""
    return CellTable(np.ones((1, len(params.arities)), np.int64), np.array([1]))


class SDQScriptedAggregator(SDQScript):
    """A script that ignores all answers.

    Parameters
    ----------
    script
        The script of the study.
    states
        The state of each round, and the last state.
    """

    def __init__(self, script: SDQScript, states: tuple[SDQScriptState, ...]) -> None:
        super().__init__(script.params)
        self.script = script
        self.states = states

    @property
    def prices(self) -> Mapping[str, Event]:
        return self.script.prices

    @property
    def costliest_questions(self) -> tuple[tuple[str, int], ...]:
        return self.script.costliest_questions

    def make_round(self, state: SDQScriptState) -> SDQRound | None:
        return self.script.make_round(state)

    def advance(self, state: SDQScriptState, answers: Answers) -> SDQScriptState:  # noqa: ARG002 - the states are fixed
        return self.states[len(answers)]

    def build_model(self, state: SDQScriptState, answers: Answers) -> None:  # noqa: ARG002 - it learns nothing
        return None


class SDQAuditColluder(SDQPeer):
    """A colluder: puts nothing into the sums, and answers repeated questions.

    Its ledger does not limit it.
    """

    def _make_round(self, ask: SDQAsk) -> SDQRound:
        current = super()._make_round(ask)
        return replace(current, question=f"{current.question} {ask.round}")

    def price(self, question: str) -> Event:
        return super().price(question.partition(" ")[0])

    def draw_noisy_answer(
        self,
        asked: SDQRound,
        table: CellTable,  # noqa: ARG002 - it adds nothing to the sums
        role: int | None,  # noqa: ARG002
        entropy: Entropy,  # noqa: ARG002
    ) -> Ints:
        return np.zeros(asked.size, np.int64)


MakePeer = Callable[[SDQScript, SumMember, CellTable], SDQPeer]
"""Constructor of a peer: the class, or a changed one that an audit must detect.

Its arguments are script, member and rows.
"""

Floats = npt.NDArray[np.float64]

RUNS = 3
"""Studies to run in full with each neighbour.

Each takes about a second for ten databases and ten rounds.
"""
_BLOCK = 1 << 14
_PHASE_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True, eq=False)
class ObservedPart:
    """A part of a round, as the miner observes it.

    Parameters
    ----------
    number, asked
        Number of the round, and the round.
    part, start
        The part, and where it begins in the answer to the round.
    where
        The counts that the unit changes; the others carry no information. For a choice, all
        scores.
    sums
        ``(2, k)`` their sums over all databases without the unit, and with it.
    """

    params: SDQParams
    number: int
    asked: SDQRound
    part: RoundPart
    start: int
    where: Ints
    sums: Ints

    def repeat(self, n: int) -> SDQRound:
        """Return the round for n studies together, with only this part."""
        count, where = self.part.count, self.where
        many = replace(
            self.part, count=lambda table: np.tile(count(table)[where], n), size=n * where.size
        )
        return replace(self.asked, parts=(many,))

    def read_answer(self, answer: Ints) -> Ints:
        """Return the sums ``(1, k)`` in an answer to the round, or the chosen position ``(1,)``."""
        return answer if self.asked.is_choice else answer[np.newaxis, self.start + self.where]

    def reduce_sums(self, noisy_sums: Ints) -> Ints:
        """Return ``(n, k)`` noisy sums, or for a choice the positions ``(n,)`` of their maxima."""
        return np.argmax(noisy_sums, axis=1) if self.asked.is_choice else noisy_sums

    def compute_evidence(self, learned: Ints) -> Floats:
        """Return the log-likelihood ratio of a study with the unit to one without it, ``(n,)``."""
        if self.asked.is_choice:
            return self._choice_evidence[learned]
        mechanism = make_mechanism(self.params, self.part)
        assert isinstance(mechanism, DistributedLaplace)
        closer = np.abs(learned - self.sums[0]) - np.abs(learned - self.sums[1])
        return np.asarray(float(mechanism.rate) * closer.sum(axis=1))

    @cached_property
    def _choice_evidence(self) -> Floats:
        choice = NoisyMax(self.part.epsilon, CountScore(self.params.max_rows), self.params.scope)
        without, with_unit = (np.log(choice.chances(scores)) for scores in self.sums)
        return np.asarray(with_unit - without)


@dataclass(frozen=True, eq=False)
class SDQAuditRun:
    """A study that was run in full.

    Parameters
    ----------
    evidence
        ``(n_rounds,)`` evidence of each round for the unit; 0 for a round without an answer.
    charges
        Total charge of each honest database's ledger, in grains.
    packets
        Most answers of one honest database.
    """

    evidence: Floats
    charges: tuple[int, ...]
    packets: int


class SDQAuditHarness:
    """A study with a hostile miner, in which databases are run.

    Parameters
    ----------
    study
        Digest of the manifest.
    """

    def __init__(self, study: bytes, script: SDQScript, make_peer: MakePeer = SDQPeer) -> None:
        self.script = script
        self.params = script.params
        self.make_peer = make_peer
        n, states = self.params.n_databases, make_hostile_states(script)
        identities = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(n)]
        self._sum_parameters = SumParameters(
            study,
            Roster(tuple(map(str, range(n))), tuple(one.public_key for one in identities)),
            self.params.minimum,
        )
        self._n_honest = _count_honest(self.params)
        self.rounds = [one for state in states if (one := script.make_round(state)) is not None]
        n_choices = sum(one.is_choice for one in self.rounds)
        # All parties of a committee must be present. Those that only the committee needs put
        # nothing into the sums.
        n_present = max(self.params.minimum, count_parties(self.params, True) if n_choices else 0)
        self._members = [
            SumMember(self._sum_parameters, me, identities[me]) for me in range(n_present)
        ]
        self._tables, self._others = (
            make_neighbours(self.params, states[-1].choices[:n_choices]),
            make_other_table(self.params),
        )
        self._miner = SDQScriptedAggregator(script, (*states[:-1], *states[-2:]))
        self.observed_parts = [
            one for number in range(len(self.rounds)) for one in self._observe_round(number, 0)
        ]
        n_parts = sum(len(one.parts) for one in self.rounds)
        self._searched_parts = [
            one
            for number in range(len(self.rounds))
            for one in self._observe_round(number, max(1, MAX_NUMBERS // n_parts))
        ]

    def _observe_round(self, number: int, n_others: int) -> list[ObservedPart]:
        """Return the parts of a round, with the counts that the unit changes.

        Up to ``n_others`` evenly spaced counts of each part are added.
        """
        current, observed, start = self.rounds[number], [], 0
        for part in current.parts:
            sums = np.stack(
                [
                    part.count(table) + (self._n_honest - 1) * part.count(self._others)
                    for table in self._tables
                ]
            )
            changed = np.flatnonzero(sums[0] != sums[1])
            others = np.arange(part.size if n_others else 0)
            where = (
                np.arange(part.size)
                if current.is_choice
                else np.union1d(changed, others[choose_evenly(others.size, n_others)])
            )
            observed += (
                [ObservedPart(self.params, number, current, part, start, where, sums[:, where])]
                if where.size
                else []
            )
            start += part.size
        return observed

    def _make_honest_peers(self, which: int) -> list[tuple[SDQPeer, CellTable]]:
        """Return the honest databases and their rows.

        The first one has the unit if ``which`` is 1.
        """
        tables = [self._tables[which], *[self._others] * (self._n_honest - 1)]
        return [
            (self.make_peer(self.script, self._members[me], table), table)
            for me, table in enumerate(tables)
        ]

    def draw(self, which: int, n: int, entropy: Entropy) -> Floats:
        """Return the evidence of n studies, ``(n, n_rounds)``."""
        honest = self._make_honest_peers(which)
        blocks = [
            self._draw_block(honest, min(_BLOCK, n - start), entropy)
            for start in range(0, n, _BLOCK)
        ]
        return np.concatenate([np.zeros((0, len(self.rounds))), *blocks])

    def _draw_block(
        self, honest: list[tuple[SDQPeer, CellTable]], n: int, entropy: Entropy
    ) -> Floats:
        evidence = np.zeros((n, len(self.rounds)))
        for observed in self.observed_parts:
            learned = self._draw_part(observed, honest, n, entropy)
            evidence[:, observed.number] += observed.compute_evidence(learned)
        return evidence

    def _draw_part(
        self,
        observed: ObservedPart,
        honest: list[tuple[SDQPeer, CellTable]],
        n: int,
        entropy: Entropy,
    ) -> Ints:
        """Return what the miner learns from a part in n studies."""
        repeated, noisy_sums = observed.repeat(n), np.zeros(n * observed.where.size, np.int64)
        roles = (
            select_pair(dict.fromkeys(range(len(honest)), ()), entropy)
            if self.params.noise == "two-selected"
            else {}
        )
        for me, (peer, table) in enumerate(honest):
            noisy_sums += peer.draw_noisy_answer(repeated, table, roles.get(me), entropy)
        return observed.reduce_sums(noisy_sums.reshape(n, -1))

    def draw_numbers(self, which: int, n: int, entropy: Entropy) -> Ints:
        """Return the searched sums and choices of n studies, ``(n, k)``."""
        honest = self._make_honest_peers(which)
        learned = [
            self._draw_part(observed, honest, n, entropy).reshape(n, -1)
            for observed in self._searched_parts
        ]
        return np.concatenate(learned, axis=1)

    def run(self, which: int, entropy: Entropy, wrap: WrapPeer = keep_peer) -> SDQAuditRun:
        """Run a whole study, in which the last question is asked twice.

        ``wrap`` replaces the peer of the database that may have the unit.
        """
        names, honest = self._sum_parameters.roster.names, self._make_honest_peers(which)
        peers: dict[str, Any] = {names[peer.member.me]: peer for peer, _ in honest}
        peers[names[0]] = wrap(peers[names[0]])
        ledgers = {name: MemoryLedger() for name in peers}
        peers |= {
            names[member.me]: SDQAuditColluder(self.script, member, self._others)
            for member in self._members[len(honest) :]
        }
        miner = SDQAggregator(self._miner, self._sum_parameters, _PHASE_TIMEOUT)
        state = run_local(miner, peers, entropy, ledgers=ledgers).states[AGGREGATOR]
        assert isinstance(state, SDQAggregatorState)
        evidence, learned = np.zeros(len(self.rounds)), state.noisy_sums
        for observed in self.observed_parts:
            if observed.number < len(learned):
                evidence[observed.number] += observed.compute_evidence(
                    observed.read_answer(learned[observed.number])
                ).item()
        entries = [ledger.entries.values() for ledger in ledgers.values()]
        return SDQAuditRun(
            evidence,
            tuple(sum(entry.cost for entry in some) for some in entries),
            max(map(len, entries)),
        )


def _count_honest(params: SDQParams) -> int:
    """Return the number of databases that the label's adversary has no information from.

    It is computed here, independently of the code that makes the noise.
    """
    if params.noise == "two-selected":
        return params.n_databases
    return 1 if params.trust == "local" else params.minimum - params.max_colluders


def observe_study(
    study: Study, claim: Loss, whole: Loss, samples: int, entropy: Entropy, make_peer: MakePeer
) -> Observations:
    """Draw studies with a unit and without it, `RUNS` of them in full, and compare all results.

    Parameters
    ----------
    claim
        The loss that the label states.
    whole
        The loss of all releases. The charge that differs from it the most is reported.
    """
    harness = SDQAuditHarness(Manifest(study).digest, build_script(study), make_peer)
    drawn, runs = [], []
    for which in (0, 1):
        full = [harness.run(which, entropy) for _ in range(RUNS)]
        drawn.append(
            np.concatenate(
                [[run.evidence for run in full], harness.draw(which, samples - RUNS, entropy)]
            )
        )
        runs += full
    numbers = {"all results": [evidence.sum(axis=1) for evidence in drawn]}
    if len(harness.rounds) > 1:
        numbers |= {
            f"the result of {one.question}": [evidence[:, i] for evidence in drawn]
            for i, one in enumerate(harness.rounds)
        }
    rows = (f"all {harness.params.unit}s but one", f"all {harness.params.unit}s")
    charges = [total for run in runs for total in run.charges]
    searched = [
        harness.draw_numbers(which, min(samples, SEARCH_SAMPLES), entropy) for which in (0, 1)
    ]
    observations = [
        Observation(seen_in, rows, *rank_samples(*both), claim) for seen_in, both in numbers.items()
    ]
    return Observations(
        (*observations, *observe_reports(rows, Reports.from_numbers(*searched), claim)),
        max(charges, key=lambda total: abs(total - grains_up(whole.epsilon))),
        max(run.packets for run in runs),
        None,
        f"each of two tables, {RUNS} of them in full, with messages and secure sums",
        replay_neighbours({rows: harness.run}, 1, entropy),
    )


SAMPLES = 200_000
"""Studies with each of the tables: half a minute, because most are drawn together."""


def _observe(
    study: Study,
    claim: Loss,
    whole: Loss,
    samples: int,
    entropy: Entropy,
    make_peer: MakePeer | None,
) -> Observations:
    return observe_study(study, claim, whole, samples, entropy, make_peer or SDQPeer)


AUDITED = AuditedProtocol("sdq", _observe, lambda _: SAMPLES, lambda _: True)
