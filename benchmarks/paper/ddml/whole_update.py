"""AUC of DDML with protected whole updates: one row and one update on each device.

The mechanism is k-closest, with one merge after another. Each study is run as its file says, except
for epsilon and the merge, with learning rate and clip of the rule; and again with those that were
best on a part of the training rows. No settings are chosen on the test rows. epsilon is the total
cost of a device: its one update (replace one, against everyone who sees it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from benchmarks.measure import Measure
from benchmarks.paper.ddml.data import Example, development, example
from benchmarks.paper.ddml.mnist import ENGINE, short
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.params import DDMLParams, Merge
from shoal.protocols.ddml.population import DevicePopulation, simulate
from shoal.simulation.ddml import score_glm_without_privacy, score_model
from shoal.simulation.metrics import ClassificationScores, RunMean, compute_mean, score_most_common
from shoal.simulation.run import Split, make_seed_text

EPSILONS = (1.0, 2.0, 4.0, 8.0)
MERGES: tuple[Merge, ...] = ("blend", "discard")
SEEDS = 20
CHOICE_SEEDS = 5
CLIP_FACTORS = (0.5, 1.0, 2.0)
RATE_FACTORS = (0.2, 0.5, 1.0, 2.0)
"""Candidates, as multiples of the rule's value."""


@dataclass(frozen=True)
class Row:
    """A study at several budgets, with a target AUC for some of them with ``blend``."""

    key: str
    title: str
    study: str
    goals: Mapping[float, float] = field(default_factory=dict)

    def matches(self, only: str) -> bool:
        """Return whether a name that begins with ``only`` may be one of this row's."""
        return self.key.startswith(only) or only.startswith(self.key)


ROWS = (
    Row("update_dense", "33 weights, made up", "dense", {4.0: 0.87}),
    Row("update_adult", "Adult", "adult-ddml", {4.0: 0.82}),
    Row("update_phishing", "Phishing", "phishing-ddml"),
)


def auc(params: DDMLParams, split: Split, seeds: range) -> RunMean:
    """Return the AUC on the test rows, over several runs."""
    devices = DevicePopulation.from_columns(params, split.train_columns, split.train_labels)
    runs = (
        simulate(
            params, devices, SeededEntropy(seed).spawn(make_seed_text(params)), engine=ENGINE
        ).model
        for seed in seeds
    )
    found = [score_model(params, model, split) for model in runs]
    return compute_mean([one.auc for one in found if isinstance(one, ClassificationScores)])


def chosen(params: DDMLParams, split: Split) -> DDMLParams:
    """Return clip and learning rate that are best on a part of the training rows."""
    inner, rates = development(split), params.rates
    grid = [
        replace(params, clip=rates.clip * clip, learning_rate=rates.learning_rate * rate)
        for clip, rate in product(CLIP_FACTORS, RATE_FACTORS)
    ]
    return max(grid, key=lambda one: auc(one, inner, range(100, 100 + CHOICE_SEEDS)).value)


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield AUC and its standard error by epsilon, merge and settings.

    Names begin with ``only``. The AUC without privacy is included.
    """
    for row in ROWS:
        if not row.matches(only):
            continue
        given = example(row.study)
        yield Measure("ddml", f"{row.key}_trivial", trivial(given).auc, "AUC", "higher")
        yield Measure("ddml", f"{row.key}_no_privacy", no_privacy(given).auc, "AUC", "higher")
        for settings, merge, epsilon in product(("rule", "chosen"), MERGES, EPSILONS):
            if (name := f"{row.key}_{settings}_{merge}_eps{epsilon:g}").startswith(only):
                score = _score(given, settings, merge, epsilon, seeds)
                goal = row.goals.get(epsilon) if merge == "blend" else None
                yield Measure("ddml", name, score.value, "AUC", "higher", goal)
                if score.error is not None:
                    yield Measure("ddml", f"{name}_se", score.error, "AUC", "lower")


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield the same as a table; a figure in bold misses its target."""
    yield "| | " + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS) + " | no privacy |"
    yield "|---" * (len(EPSILONS) + 2) + "|"
    for row in ROWS:
        if not row.matches(only):
            continue
        given = example(row.study)
        for merge, settings in product(MERGES, ("rule", "chosen")):
            goals = row.goals if merge == "blend" else {}
            cells = [
                _cell(_score(given, settings, merge, epsilon, seeds), goals.get(epsilon, 0.0))
                for epsilon in EPSILONS
            ]
            yield " | ".join(
                [
                    f"| {row.title}, `{merge}`, {settings}",
                    *cells,
                    f"{short(no_privacy(given).auc)} |",
                ]
            )


def _score(given: Example, settings: str, merge: Merge, epsilon: float, seeds: int) -> RunMean:
    params = replace(given.params, epsilon=epsilon, merge=merge)
    return auc(
        chosen(params, given.split) if settings == "chosen" else params, given.split, range(seeds)
    )


def _cell(score: RunMean, goal: float) -> str:
    shown = short(score.value) + ("" if score.error is None else f" ({short(score.error)})")
    return f"**{shown}**" if score.value < goal else shown


def trivial(given: Example) -> ClassificationScores:
    return score_most_common(2, given.split.train_labels, given.split.test_labels)


def no_privacy(given: Example) -> ClassificationScores:
    found = score_glm_without_privacy(given.params, given.split)
    assert isinstance(found, ClassificationScores)
    return found
