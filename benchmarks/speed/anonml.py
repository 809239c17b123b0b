"""AnonML with a million people, one core: seconds and memory, aggregation, messages.

Aggregation is compared with multi-freq-ldpy. The people are synthetic, with the 12 features of a
census. Learning is timed from encoded columns (``simulate``) and from a dataframe
(``AnonMLClassifier.fit``), including noise. Aggregation counts packed reports and estimates, at
epsilon 1, with the same mechanism in both programs.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.competitors.environments import HERE, make_environment, run_script
from benchmarks.measure import Measure, rate
from benchmarks.speed.samplers import CELLS, MECHANISMS
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.mechanisms.frequency_oracle import FrequencyOracle, Reports
from shoal.protocols.anonml.aggregator import AnonMLAggregator
from shoal.protocols.anonml.params import AnonMLPlusParams
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.population import simulate
from shoal.protocols.anonml.variants import make_script
from shoal.protocols.base import run_local

BENCH = "anonml-speed"
N_PEOPLE = 1_000_000
N_PEERS = 1_000
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SCHEMA = Schema(
    [Numeric(name, 0, 100, missing=False) for name in ("age", "education", "gain", "loss", "hours")]
    + [
        Categorical(name, [str(i) for i in range(n)], missing=False)
        for name, n in {
            "class": 9,
            "marital": 7,
            "job": 15,
            "relation": 6,
            "race": 5,
            "sex": 2,
            "country": 42,
        }.items()
    ],
    label=Categorical("income", ["low", "high"], missing=False),
)
_STUDY = bytes(32)

Encoded = dict[str, npt.NDArray[np.float64] | npt.NDArray[np.int64]]
Labels = npt.NDArray[np.int64]


def measures() -> Iterator[Measure]:
    """Yield a million people first, then aggregation, then messages."""
    columns, labels = make_people(N_PEOPLE)
    yield from _learning(columns, labels)
    yield from _fitting(columns, labels)
    yield from _aggregation()
    yield _messages()


def make_people(n: int) -> tuple[Encoded, Labels]:
    """Return encoded rows in which every feature is weakly associated with the label."""
    rng = np.random.default_rng(0)
    labels = (rng.random(n) < 0.25).astype(np.int64)
    columns: Encoded = {}
    for feature in SCHEMA.features:
        if isinstance(feature, Numeric):
            columns[feature.name] = np.round(100 * rng.beta(2 + labels, 5))
        else:
            columns[feature.name] = np.minimum(
                rng.integers(0, len(feature.values), n) + labels, len(feature.values) - 1
            )
    return columns, labels


def _learning(columns: Encoded, labels: Labels) -> Iterator[Measure]:
    def learn(epsilon: float) -> object:
        return simulate(
            make_script(AnonMLPlusParams(SCHEMA, epsilon, N_PEOPLE), _STUDY),
            columns,
            labels,
            SeededEntropy(0),
        )

    took = {epsilon: _seconds(partial(learn, epsilon)) for epsilon in EPSILONS}
    for epsilon, seconds in took.items():
        yield Measure(BENCH, f"learn_million_cpu_s_eps{epsilon:g}", seconds, "s", "lower")
    yield Measure(BENCH, "learn_million_cpu_s", max(took.values()), "s", "lower", target=3.0)
    tracemalloc.start()
    learn(max(took, key=took.__getitem__))
    yield Measure(
        BENCH, "learn_million_peak_mb", tracemalloc.get_traced_memory()[1] / 1e6, "MB", "lower"
    )
    tracemalloc.stop()


def _fitting(columns: Encoded, labels: Labels) -> Iterator[Measure]:
    """Yield figures from a dataframe: cells are first checked by the schema."""
    import pandas as pd

    from shoal.estimators.anonml import AnonMLClassifier

    texts = {
        feature.name: np.array(feature.values)
        for feature in SCHEMA.features
        if isinstance(feature, Categorical)
    }
    frame = pd.DataFrame(
        {
            name: texts[name][column.astype(int)] if name in texts else column
            for name, column in columns.items()
        }
    )
    answers = np.array(["low", "high"])[labels]
    fit = partial(AnonMLClassifier(epsilon=1.0, schema=SCHEMA, random_state=0).fit, frame, answers)
    yield Measure(BENCH, "fit_million_cpu_s_eps1", _seconds(fit), "s", "lower")


def _aggregation() -> Iterator[Measure]:
    """Yield each mechanism and its competitor; the worst is compared with the target."""
    competitor = "multi-freq-ldpy"
    theirs = run_script(
        make_environment(competitor, competitor), HERE / "multi_freq_ldpy_reports.py"
    )
    entropy = SystemEntropy()
    for m, n in CELLS.items():
        ratios = []
        for name, kind in MECHANISMS.items():
            mechanism = kind(1.0, m)
            reports = mechanism.report_many(entropy.below_many(m, n), entropy)
            ours = rate(partial(_aggregate, mechanism, reports, n), n)
            ratios.append(ours / theirs[f"{name}_{m}_aggregate"])
            yield Measure(
                BENCH, f"aggregate_{name}_m{m}", ours, "1/s", "higher", None, competitor, ratios[-1]
            )
        yield Measure(
            BENCH,
            f"aggregate_m{m}_vs_{competitor}",
            min(ratios),
            "x",
            "higher",
            10,
            competitor,
            min(ratios),
        )


def _aggregate(mechanism: FrequencyOracle, reports: Reports, n: int) -> object:
    return mechanism.debias(mechanism.tally(reports), n)


def _messages() -> Measure:
    """Yield answers a second through real messages.

    State machines, ledgers and encoding are included, all parties in one process.
    """
    columns, labels = make_people(N_PEERS)
    script = make_script(AnonMLPlusParams(SCHEMA, 1.0, N_PEERS), _STUDY)
    entropy = SeededEntropy(0)

    def peer(i: int) -> AnonMLPeer:
        row = {name: column[i : i + 1] for name, column in columns.items()}
        return AnonMLPeer(
            _STUDY, script, entropy.spawn("ticket", i).bytes(32), row, labels[i : i + 1]
        )

    peers = {f"peer-{i}": peer(i) for i in range(N_PEERS)}
    seconds = _seconds(lambda: run_local(AnonMLAggregator(_STUDY, script), peers, entropy), runs=1)
    return Measure(BENCH, "message_answers_per_s", N_PEERS / seconds, "1/s", "higher")


def _seconds(work: Callable[[], object], runs: int = 2) -> float:
    """Return the processor time of the best of some runs."""
    took = []
    for _ in range(runs):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)
