"""Audit of PFDS: outputs of holders with one unit and without it, to a hostile aggregator.

`shoal.audit.study` calls `AUDITED`. Variant paper: the tree, the counts and the data
(`shoal.audit.pfds_paper`). Trust local: a holder's tables. Secure sums: all sums, with colluders.

The largest allowed numbers of holders collude and are missing, so that only the promised noise
hides the unit. The aggregator of secure sums pretends to have learned a model that is wrong about
the unit, so that each sum depends on the unit as strongly as possible.

Some studies run in full, with messages, secure sums and ledgers. For the others the peers compute
what they would answer, for many studies together; the sums are the same.

The numbers that the unit changes are compared by the noise that they should have. In fewer studies
`shoal.audit.distinguishers` compares the other numbers too, and `shoal.audit.replay` compares all
that leaves outside the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np

from shoal.audit import pfds_paper
from shoal.audit.bound import Keys
from shoal.audit.distinguishers import (
    MAX_NUMBERS,
    SEARCH_SAMPLES,
    Reports,
    choose_evenly,
    observe_reports,
    stack_rows,
)
from shoal.audit.observations import (
    AuditedProtocol,
    Observation,
    Observations,
    compute_evidence,
    rank_samples,
)
from shoal.audit.replay import RunPeer, WrapPeer, count_replays, keep_peer, replay_neighbours
from shoal.crypto.identity import Identity, Roster
from shoal.data.schema import Categorical
from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.distributed_gaussian import DistributedGaussian
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.messages.base import Message
from shoal.privacy.accountant import Loss
from shoal.privacy.events import Event
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Effects,
    MemoryLedger,
    Started,
    run_input,
    run_local,
)
from shoal.protocols.pfds.aggregator import PFDSSecureSumAggregatorState, SecureSumAggregator
from shoal.protocols.pfds.messages import HolderTables, PFDSScriptState
from shoal.protocols.pfds.paper.peer import PaperPeer
from shoal.protocols.pfds.params import GRID, Floats, Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.peer import LocalPeer, SecureSumPeer
from shoal.protocols.pfds.refinement import MAX_WEIGHT, ONE
from shoal.protocols.pfds.script import Answers, SecureSumScript
from shoal.protocols.pfds.tables import TABLES, price_tables
from shoal.protocols.secagg.member import SumMember
from shoal.protocols.secagg.messages import SumParameters
from shoal.study.manifest import Manifest
from shoal.study.pfds import build_params
from shoal.study.spec import Study

MakePeer = Callable[[SecureSumScript, SumMember, PFDSRows], SecureSumPeer]
"""Constructor of a peer: the class, or a changed one that an audit must detect.

Its arguments are script, member and rows.
"""

_BLOCK = 1 << 12
_PHASE_TIMEOUT = timedelta(hours=1)


def make_plus_neighbours(params: PFDSParams) -> tuple[PFDSRows, PFDSRows]:
    """Return the rows of variant plus without the unit, and with it.

    The unit shares no cell with the other rows in features of two or more cells.
    """
    first, last = params.starts[:-1], params.starts[1:] - 1
    sides: Ints = GRID * np.eye(params.n_sides, dtype=np.int64)
    with_unit = PFDSRows(
        np.stack([last, *[first] * params.max_rows]), sides[[0, *[-1] * params.max_rows]]
    )
    return with_unit.take(np.arange(1)), with_unit


def make_hostile_state(script: SecureSumScript, step: int) -> PFDSScriptState:
    """Return the state that a hostile aggregator asks everyone to count with.

    Its model is certain of the first class, and wrong about the unit.
    """
    return script.initial_state.replace(step=step, intercept=-MAX_WEIGHT * ONE)


class PFDSScriptedAggregator(SecureSumScript):
    """A script that ignores all answers."""

    @property
    def initial_state(self) -> PFDSScriptState:
        return super().initial_state.replace(intercept=-MAX_WEIGHT * ONE)

    def advance(self, state: PFDSScriptState, answers: Answers) -> PFDSScriptState:
        return state.replace(step=len(answers))


class SilentAggregator(SecureSumAggregator):
    """An aggregator that does not publish its model."""

    def _publish_model(
        self, state: PFDSSecureSumAggregatorState
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        return state.replace(is_over=True), ()


class PFDSAuditColluder(SecureSumPeer):
    """A colluder: puts nothing into the sums, as the aggregator would only subtract it."""

    def draw_noisy_answer(
        self,
        script_state: PFDSScriptState,
        rows: PFDSRows,
        entropy: Entropy,  # noqa: ARG002 - it adds no noise
    ) -> Ints:
        return np.zeros(len(self.script.count(script_state, rows)), np.int64)


class RepeatedSumScript(SecureSumScript):
    """A script that asks for some numbers of each answer, repeated for n studies.

    Parameters
    ----------
    script
        The script of the study.
    where
        Question -> positions of the numbers.
    n
        Number of studies.
    """

    def __init__(self, script: SecureSumScript, where: Mapping[str, Ints], n: int) -> None:
        super().__init__(script.params)
        self.script = script
        self.where = where
        self.n = n

    @property
    def prices(self) -> Mapping[str, Event]:
        return self.script.prices

    def find_mechanism(self, question: str) -> DistributedLaplace | DistributedGaussian | None:
        return self.script.find_mechanism(question)

    def count(self, state: PFDSScriptState, rows: PFDSRows) -> Ints:
        return np.tile(
            self.script.count(state, rows)[self.where[self.questions[state.step]]], self.n
        )


@dataclass(frozen=True, eq=False)
class PFDSSumsAuditRun:
    """A study that was run in full.

    Parameters
    ----------
    evidence
        ``(n_questions,)`` evidence of each sum for the unit; 0 if the study did not finish.
    charges
        Total charge of each honest holder's ledger, in grains.
    packets
        Most answers of one honest holder.
    """

    evidence: Floats
    charges: tuple[int, ...]
    packets: int


class PFDSSumsAuditHarness:
    """A study of secure sums with a hostile aggregator, in which holders are run.

    Parameters
    ----------
    study
        Digest of the manifest.
    """

    def __init__(
        self, study: bytes, params: PFDSParams, make_peer: MakePeer = SecureSumPeer
    ) -> None:
        self.script = PFDSScriptedAggregator(params)
        self.params = params
        self.make_peer = make_peer
        self.prices = self.script.prices
        n = params.n_holders
        identities = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(n)]
        self._sum_parameters = SumParameters(
            study,
            Roster(tuple(map(str, range(n))), tuple(one.public_key for one in identities)),
            params.minimum,
        )
        self._members = [
            SumMember(self._sum_parameters, me, identities[me]) for me in range(params.minimum)
        ]
        # The label's promise, computed here independently of the code that makes the noise.
        self._n_honest = params.minimum - params.max_colluders
        self._states = [
            make_hostile_state(self.script, step) for step in range(len(self.script.questions))
        ]
        self._tables = make_plus_neighbours(params)
        others = self._tables[0]
        counts = [
            np.stack([self.script.count(state, rows) for rows in self._tables])
            for state in self._states
        ]
        changed = [np.flatnonzero(both[0] != both[1]) for both in counts]
        other_counts = [
            (self._n_honest - 1) * self.script.count(state, others) for state in self._states
        ]
        self.where = dict(zip(self.script.questions, changed, strict=True))
        most = max(1, MAX_NUMBERS // len(changed))
        self._searched = {
            question: np.union1d(at, np.arange(both.shape[1])[choose_evenly(both.shape[1], most)])
            for (question, at), both in zip(self.where.items(), counts, strict=True)
        }
        self.sums = [
            (both + other)[:, at]
            for both, other, at in zip(counts, other_counts, changed, strict=True)
        ]

    def _make_honest_peers(
        self, script: SecureSumScript, which: int
    ) -> list[tuple[SecureSumPeer, PFDSRows]]:
        """Return the honest holders and their rows.

        The first one has the unit if ``which`` is 1.
        """
        rows = [self._tables[which], *[self._tables[0]] * (self._n_honest - 1)]
        return [
            (self.make_peer(script, self._members[me], own), own) for me, own in enumerate(rows)
        ]

    def draw(self, which: int, n: int, entropy: Entropy) -> Floats:
        """Return the evidence of the sums of n studies for the unit, ``(n, n_questions)``."""
        blocks = [
            self._draw_block(which, min(_BLOCK, n - start), entropy)
            for start in range(0, n, _BLOCK)
        ]
        return np.concatenate([np.zeros((0, len(self._states))), *blocks])

    def _draw_block(self, which: int, n: int, entropy: Entropy) -> Floats:
        return self._compute_evidence(self._draw_sums(self.where, which, n, entropy))

    def _draw_sums(
        self, where: Mapping[str, Ints], which: int, n: int, entropy: Entropy
    ) -> list[Ints]:
        """Return some noisy sums of each answer in n studies, ``(n, k)`` each."""
        honest = self._make_honest_peers(RepeatedSumScript(self.script, where, n), which)
        answers = [
            sum(peer.draw_noisy_answer(state, rows, entropy) for peer, rows in honest)
            for state in self._states
        ]
        return [np.reshape(answer, (n, -1)) for answer in answers]

    def draw_numbers(self, which: int, n: int, entropy: Entropy) -> Ints:
        """Return the searched sums of n studies, ``(n, k)``."""
        return np.concatenate(self._draw_sums(self._searched, which, n, entropy), axis=1)

    def _compute_evidence(self, noisy_sums: list[Ints]) -> Floats:
        evidence = [
            compute_evidence(event, *both)
            for event, both in zip(
                self.prices.values(), zip(noisy_sums, self.sums, strict=True), strict=True
            )
        ]
        return np.stack(evidence, axis=1)

    def run(self, which: int, entropy: Entropy, wrap: WrapPeer = keep_peer) -> PFDSSumsAuditRun:
        """Run a whole study; ``wrap`` replaces the peer of the holder that may have the unit."""
        names, honest = (
            self._sum_parameters.roster.names,
            self._make_honest_peers(self.script, which),
        )
        peers: dict[str, Any] = {names[peer.member.me]: peer for peer, _ in honest}
        peers[names[0]] = wrap(peers[names[0]])
        ledgers = {name: MemoryLedger() for name in peers}
        peers |= {
            names[member.me]: PFDSAuditColluder(self.script, member, self._tables[0])
            for member in self._members[self._n_honest :]
        }
        state = run_local(
            SilentAggregator(self.script, self._sum_parameters, _PHASE_TIMEOUT),
            peers,
            entropy,
            ledgers=ledgers,
        ).states[AGGREGATOR]
        assert isinstance(state, PFDSSecureSumAggregatorState)
        evidence, entries = (
            np.zeros(len(self._states)),
            [ledger.entries.values() for ledger in ledgers.values()],
        )
        if len(state.noisy_sums) == len(self._states):
            evidence = self._compute_evidence(
                [
                    answer[np.newaxis, at]
                    for answer, at in zip(state.noisy_sums, self.where.values(), strict=True)
                ]
            )[0]
        return PFDSSumsAuditRun(
            evidence,
            tuple(sum(entry.cost for entry in some) for some in entries),
            max(map(len, entries)),
        )


MakeLocalPeer = Callable[[PFDSParams, bytes, int, PFDSRows], LocalPeer]
"""Constructor of a peer of trust local: the class, or a changed one that an audit must detect.

Its arguments are parameters, digest, place on the roster and rows.
"""

RUNS = 1
"""Peers or studies to run in full with each neighbour.

A study of sums among fifty holders takes ten seconds.
"""
DATA_SAMPLES = 2000
"""Most holders of variant paper that share data: half a minute."""
_ALL = "all releases"


@dataclass(frozen=True, eq=False)
class Samples:
    """Observations of many peers or studies with the same rows.

    Parameters
    ----------
    evidence
        Description of what was observed -> its evidence for the unit, ``(n,)``. First all releases;
        then the answer to each question, in order; then parts without a separate price.
    numbers
        The searched numbers of each output.
    charges
        Total charges of ledgers, in grains.
    packets
        Most answers of one peer.
    """

    evidence: Mapping[str, Floats]
    numbers: Sequence[Keys]
    charges: tuple[int, ...]
    packets: int


def draw_sums(harness: PFDSSumsAuditHarness, which: int, n: int, entropy: Entropy) -> Samples:
    """Draw n studies of sums, `RUNS` of them in full."""
    runs = [harness.run(which, entropy) for _ in range(RUNS)]
    evidence = np.concatenate(
        [[run.evidence for run in runs], harness.draw(which, n - RUNS, entropy)]
    )
    charges = tuple(total for run in runs for total in run.charges)
    return Samples(
        _label_evidence(evidence, harness.prices),
        list(harness.draw_numbers(which, min(n, SEARCH_SAMPLES), entropy)),
        charges,
        max(run.packets for run in runs),
    )


def widen_params(params: PFDSParams, n: int) -> PFDSParams:
    """Return parameters with features of n cells: cell i is the unit's cell in study i."""
    names, values = params.schema.names, [str(i) for i in range(n)]
    return replace(
        params,
        schema=replace(
            params.schema,
            features=tuple(Categorical(name, values, missing=False) for name in names),
        ),
    )


def draw_tables(
    study: bytes, params: PFDSParams, which: int, n: int, entropy: Entropy, make_peer: MakeLocalPeer
) -> Samples:
    """Draw n holders with trust local, and run `RUNS` more in full; these are started twice.

    Up to `SEARCH_SAMPLES` more draw the tables of the study, of which all cells are searched.
    """
    ledgers = [MemoryLedger() for _ in range(RUNS)]
    for ledger in ledgers:
        run_local_peer(
            make_peer(params, study, 0, make_plus_neighbours(params)[which]), ledger, entropy
        )
    charges = [sum(entry.cost for entry in ledger.entries.values()) for ledger in ledgers]
    packets = max(len(ledger.entries) for ledger in ledgers)
    own, numbers = make_plus_neighbours(params)[which], []
    for _ in range(min(n, SEARCH_SAMPLES)):
        peer = make_peer(params, study, 0, own)
        numbers.append(_read_tables(peer.answer(peer.initial_state(), TABLES, entropy)))
    wide = widen_params(params, _BLOCK)
    units = np.repeat(
        wide.starts[:-1] + np.arange(_BLOCK)[:, np.newaxis], params.max_rows * which, axis=0
    )
    sides: Ints = np.zeros((len(units), params.n_sides), np.int64)
    sides[:, -1] = GRID
    evidence = [np.zeros(0)]
    for _ in range(-(-n // _BLOCK)):
        peer = make_peer(wide, study, 0, PFDSRows(units, sides))
        counts = _read_tables(peer.answer(peer.initial_state(), TABLES, entropy))
        noisy_counts = counts.reshape(-1, _BLOCK, params.n_sides)[:, :, -1].T
        sums = np.repeat([[0], [GRID * params.max_rows]], noisy_counts.shape[1], axis=1)
        evidence.append(compute_evidence(price_tables(params), noisy_counts, sums))
    return Samples({_ALL: np.concatenate(evidence)[:n]}, numbers, tuple(charges), packets)


def run_local_peer(peer: Any, ledger: MemoryLedger, entropy: Entropy) -> None:
    """Run a peer of trust local in full; it is started twice."""
    account = ledger.account(peer.study, "the rows", "the aggregator", "an audit")
    state = peer.initial_state()
    for _ in range(2):
        state, _ = run_input(peer, state, Started(), START, entropy, account)


def make_local_run(study: bytes, params: PFDSParams, make_peer: MakeLocalPeer) -> RunPeer:
    """Return the run of a peer of trust local with one of two tables, for replays."""
    tables = make_plus_neighbours(params)

    def run(which: int, entropy: SeededEntropy, wrap: WrapPeer) -> None:
        run_local_peer(wrap(make_peer(params, study, 0, tables[which])), MemoryLedger(), entropy)

    return run


def _read_tables(message: Message) -> Ints:
    assert isinstance(message, HolderTables)
    counts: Ints = message.counts.expect("int64", message.counts.count)
    return counts


def draw_trees(
    harness: pfds_paper.PFDSPaperAuditHarness, which: int, n: int, entropy: Entropy
) -> Samples:
    """Draw n holders of variant paper, and run `RUNS` more in full.

    At most `DATA_SAMPLES` of them share data.
    """
    runs = [harness.run(which, entropy) for _ in range(RUNS)]
    evidence = _label_evidence(harness.draw(which, n, entropy), harness.prices)
    more, numbers = harness.draw_data_evidence(which, min(n, DATA_SAMPLES), entropy)
    return Samples(
        evidence | more,
        numbers,
        tuple(run.charge for run in runs),
        max(run.packets for run in runs),
    )


def _label_evidence(evidence: Floats, prices: Mapping[str, Event]) -> dict[str, Floats]:
    return {_ALL: evidence.sum(axis=1)} | {
        f"the answer to {question}": evidence[:, i] for i, question in enumerate(prices)
    }


def observe_study(
    study: Study,
    claim: Loss,
    whole: Loss,
    samples: int,
    entropy: Entropy,
    make_peer: Callable[..., Any] | None = None,
) -> Observations:
    """Draw peers or studies with a unit and without it, and compare all that is shared.

    Parameters
    ----------
    claim
        The loss that the label states.
    whole
        The loss of all releases. The charge that differs from it the most is reported.

    Notes
    -----
    The answer to each question is also compared with its price. If the noise is Gaussian,
    everything is compared with (epsilon, delta), and also with the sum of rhos that the label's
    epsilon follows from.
    """
    params, digest = build_params(study), Manifest(study).digest
    prices: Mapping[str, Event]
    run: RunPeer
    if params.variant == "paper":
        trees = pfds_paper.PFDSPaperAuditHarness(digest, params, make_peer or PaperPeer)
        drawn = [draw_trees(trees, which, samples, entropy) for which in (0, 1)]
        run, n_replays = trees.run, count_replays(min(samples, DATA_SAMPLES))
        subset = f"{min(samples, DATA_SAMPLES)} with data, {RUNS} in full"
        prices, description = (
            trees.prices,
            f"each of two tables, on trees with known upper levels; {subset}",
        )
    elif params.trust == "local":
        drawn = [
            draw_tables(digest, params, which, samples, entropy, make_peer or LocalPeer)
            for which in (0, 1)
        ]
        run = make_local_run(digest, params, make_peer or LocalPeer)
        prices, n_replays = {TABLES: price_tables(params)}, count_replays(samples)
        description = f"each of two tables, and {RUNS} in full"
    else:
        sums = PFDSSumsAuditHarness(digest, params, make_peer or SecureSumPeer)
        drawn = [draw_sums(sums, which, samples, entropy) for which in (0, 1)]
        run, n_replays = sums.run, 1
        prices, description = (
            sums.prices,
            f"each of two tables, {RUNS} of them in full, with messages and secure sums",
        )
    rows = (f"all {params.unit}s but one", f"all {params.unit}s")
    parts = {
        f"the answer to {question}": Loss(event.scope, event.epsilon, event.delta, "price")
        for question, event in prices.items()
    }
    observations = []
    for seen_in, first in drawn[0].evidence.items():
        keys = rank_samples(first, drawn[1].evidence[seen_in])
        is_part = seen_in in parts
        observations.append(
            Observation(
                seen_in,
                rows,
                *keys,
                parts.get(seen_in, claim),
                is_part,
                is_zcdp=is_part and params.delta > 0,
            )
        )
        if params.delta and not is_part:
            observations.append(
                Observation(
                    f"{seen_in}, as a zero-concentrated sum", rows, *keys, claim, is_zcdp=True
                )
            )
    reports = Reports.from_numbers(*stack_rows(drawn[0].numbers, drawn[1].numbers, np.int64))
    observations += observe_reports(rows, reports, claim)
    charges = [total for one in drawn for total in one.charges]
    worst = max(charges, key=lambda total: abs(total - grains_up(whole.epsilon)))
    packets = max(one.packets for one in drawn)
    return Observations(
        tuple(observations),
        worst,
        packets,
        None,
        description,
        replay_neighbours({rows: run}, n_replays, entropy),
    )


LOCAL_SAMPLES = 200_000
"""Holders with each of the tables: half a minute, because most are drawn together."""
SUM_SAMPLES = 100_000
"""Studies with secure sums: a minute if noise is drawn in the shares of fifty holders."""


def choose_samples(study: Study) -> int:
    """Return the default number of samples."""
    return SUM_SAMPLES if study.trust == "secure-sum" else LOCAL_SAMPLES


AUDITED = AuditedProtocol(
    "pfds", observe_study, choose_samples, lambda study: study.trust == "secure-sum"
)
