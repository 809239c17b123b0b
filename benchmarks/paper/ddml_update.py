"""How well DDML predicts when a whole update is protected: one row and one update on each device, k-closest, one merge after another.

Each study is run as its file says but for epsilon and the merge, with learning rate and clip by the rule; and again with those that were
best on a part of the rows to learn from. The test rows choose no settings. epsilon is all that a device spends: its one update (replace
one, against everyone who sees it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from benchmarks.measure import Measure
from benchmarks.paper.ddml_data import Example, development, example
from benchmarks.paper.ddml_mnist import ENGINE, short
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.params import Merge, Params
from shoal.protocols.ddml.population import Devices, simulate
from shoal.sim.ddml import scores, without_privacy
from shoal.sim.runs import Split
from shoal.sim.scores import Mean, Scores, mean_of, most_common

EPSILONS = (1.0, 2.0, 4.0, 8.0)
MERGES: tuple[Merge, ...] = ("blend", "discard")
SEEDS = 20
CHOICE_SEEDS = 5
CLIP_FACTORS = (0.5, 1.0, 2.0)
RATE_FACTORS = (0.2, 0.5, 1.0, 2.0)
"""What is chosen from, in parts of what the rule says."""


@dataclass(frozen=True)
class Row:
    """A study at several budgets, with the AUC that is aimed at for some of them with ``blend``."""

    key: str
    title: str
    study: str
    goals: Mapping[float, float] = field(default_factory=dict)

    def is_asked(self, only: str) -> bool:
        """Whether a name that begins so is, or may be, one of this row's."""
        return self.key.startswith(only) or only.startswith(self.key)


ROWS = (
    Row("update_dense", "33 weights, made up", "dense", {4.0: 0.87}),
    Row("update_adult", "Adult", "adult-ddml", {4.0: 0.82}),
    Row("update_phishing", "Phishing", "phishing-ddml"),
)


def auc(params: Params, split: Split, seeds: range) -> Mean:
    """AUC on the rows set aside, over several runs."""
    devices = Devices.of(params, split.asked, split.labels)
    runs = (simulate(params, devices, SeededEntropy(seed).spawn(repr(params)), engine=ENGINE).model for seed in seeds)
    found = [scores(params, model, split) for model in runs]
    return mean_of([one.auc for one in found if isinstance(one, Scores)])


def chosen(params: Params, split: Split) -> Params:
    """Clip and learning rate with which runs are best on rows that are kept from those to learn from."""
    inner, rates = development(split), params.rates
    grid = [
        replace(params, clip=rates.clip * clip, learning_rate=rates.learning_rate * rate)
        for clip, rate in product(CLIP_FACTORS, RATE_FACTORS)
    ]
    return max(grid, key=lambda one: auc(one, inner, range(100, 100 + CHOICE_SEEDS)).value)


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Names that begin with ``only``: AUC and its standard error by epsilon, merge and settings, and what is possible without privacy."""
    for row in ROWS:
        if not row.is_asked(only):
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
    """The same as a table; a figure in bold misses its target."""
    yield "| | " + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS) + " | no privacy |"
    yield "|---" * (len(EPSILONS) + 2) + "|"
    for row in ROWS:
        if not row.is_asked(only):
            continue
        given = example(row.study)
        for merge, settings in product(MERGES, ("rule", "chosen")):
            goals = row.goals if merge == "blend" else {}
            cells = [_cell(_score(given, settings, merge, epsilon, seeds), goals.get(epsilon, 0.0)) for epsilon in EPSILONS]
            yield " | ".join([f"| {row.title}, `{merge}`, {settings}", *cells, f"{short(no_privacy(given).auc)} |"])


def _score(given: Example, settings: str, merge: Merge, epsilon: float, seeds: int) -> Mean:
    params = replace(given.params, epsilon=epsilon, merge=merge)
    return auc(chosen(params, given.split) if settings == "chosen" else params, given.split, range(seeds))


def _cell(score: Mean, goal: float) -> str:
    shown = short(score.value) + ("" if score.error is None else f" ({short(score.error)})")
    return f"**{shown}**" if score.value < goal else shown


def trivial(given: Example) -> Scores:
    return most_common(2, given.split.labels, given.split.unseen_labels)


def no_privacy(given: Example) -> Scores:
    found = without_privacy(given.params, given.split)
    assert isinstance(found, Scores)
    return found
