"""A simulated population counts what all holders would, adds what they would, and learns the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfds_sums import LABELS, TWO, followed, params_of, rows_of
from shoal.domain import Feature
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.protocols.pfds.local import answers_of, pooled
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.population import Learned, answer, simulate
from shoal.protocols.pfds.sums import SumScript

DIGEST = bytes(range(32))


def run(params: Params, seed: int = 1, **options: int | tuple[int, ...]) -> Learned:
    return simulate(params, rows_of(params), DIGEST, SeededEntropy(seed), **options)  # type: ignore[arg-type]


def seen(learned: Learned) -> list[list[int]]:
    return [one.tolist() for one in learned.answers]


@pytest.mark.parametrize("label", LABELS)
def test_without_noise_the_sums_are_those_of_the_script(label: str) -> None:
    params = params_of(LABELS[label], epsilon=math.inf)
    script = SumScript(params)
    counted = [one for _, one in followed(script, rows_of(params))][:-1]
    learned = run(params)
    assert seen(learned) == [one.tolist() for one in counted]
    assert learned.model.weights.tolist() == script.model(tuple(counted)).weights.tolist()


@pytest.mark.parametrize("trust", ["local", "secure-sum"])
@pytest.mark.parametrize("label", LABELS)
def test_what_is_learned_predicts(label: str, trust: str) -> None:
    params = params_of(LABELS[label], epsilon=2.0, trust=trust)
    model = run(params).model
    rows = rows_of(params, seed=9)
    scores = model.scores(rows.cells)
    if params.is_number:
        assert np.corrcoef(scores[:, 0], rows.sides[:, 1])[0, 1] > 0.8
    else:
        decided = np.argmax(scores, axis=1) if params.n_models > 1 else scores[:, 0] > 0
        assert (decided == np.argmax(rows.sides, axis=1)).mean() > 0.7


@pytest.mark.parametrize("figures", [{"trust": "local"}, {}, {"delta": 1e-6}])
def test_the_same_seed_gives_the_same_answers(figures: dict[str, object]) -> None:
    params = params_of(**figures)
    first, again, other = (seen(run(params, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_trust_local_is_what_each_sharer_answers() -> None:
    params = params_of(trust="local")
    rows = rows_of(params)
    by_holder = answers_of(params, DIGEST, rows, [2, 5, 6], SeededEntropy(3))
    learned = simulate(params, rows, DIGEST, SeededEntropy(3), sharers=[6, 2, 5])
    assert seen(learned) == [by_holder[holder].tolist() for holder in (2, 5, 6)]
    assert learned.model.weights.tolist() == pooled(params, DIGEST, by_holder).weights.tolist()


@pytest.mark.parametrize("label", [TWO, LABELS["number"]])
def test_only_the_rows_of_sharers_are_summed(label: Feature) -> None:
    params = params_of(label, epsilon=math.inf, minimum=2)
    rows = rows_of(params)
    some = simulate(params, rows, DIGEST, SeededEntropy(1), sharers=(1, 3))
    assert rows.whose is not None
    own = rows.take((rows.whose == 1) | (rows.whose == 3))
    assert seen(some) == seen(simulate(params, own, DIGEST, SeededEntropy(1)))
    assert some.answers[1].sum() == 256 * len(own)


def test_the_noise_is_of_those_who_answer() -> None:
    params = params_of(minimum=4)
    everyone, told, fewer, sharers = (
        seen(run(params, **options)) for options in ({}, {"n_answering": 8}, {"n_answering": 4}, {"sharers": (0, 1, 2, 3)})
    )
    assert everyone == told != fewer
    assert sharers[0] != fewer[0]


def test_fewer_than_the_noise_is_made_for_are_refused() -> None:
    params = params_of(minimum=4)
    for options in ({"n_answering": 3}, {"sharers": (0, 1, 2)}):
        with pytest.raises(UsageError, match="3 of 8 holders answer; a sum of fewer than 4"):
            run(params, **options)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_fewer_holders_add_less_noise(delta: float) -> None:
    params = params_of(minimum=4, delta=delta)
    script = SumScript(params)
    nobody = rows_of(params, 0)
    mechanism = script.mechanism("tables")
    assert mechanism is not None
    for n in (4, 8):
        noise = np.concatenate([answer(script, script.start, nobody, n, SeededEntropy(i)) for i in range(100)])
        assert noise.var() / mechanism.variance(n) == pytest.approx(1, abs=0.25)
