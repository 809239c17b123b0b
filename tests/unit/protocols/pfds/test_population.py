"""A simulated population counts, adds noise and learns like real holders."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Feature
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.pfds.population import PFDSSimulationResult, draw_sum, simulate
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.pfds.tables import draw_answers, pool_tables
from tests.support.pfds import LABELS, TWO, followed, make_params, make_rows

DIGEST = bytes(range(32))


def run_simulation(
    params: PFDSParams, seed: int = 1, **options: int | tuple[int, ...]
) -> PFDSSimulationResult:
    return simulate(params, make_rows(params), DIGEST, SeededEntropy(seed), **options)  # type: ignore[arg-type]


def list_answers(learned: PFDSSimulationResult) -> list[list[int]]:
    return [one.tolist() for one in learned.answers]


@pytest.mark.parametrize("label", LABELS)
def test_simulation_without_noise_equals_sums_of_the_script(label: str) -> None:
    params = make_params(LABELS[label], epsilon=math.inf)
    script = SecureSumScript(params)
    counted = [one for _, one in followed(script, make_rows(params))][:-1]
    learned = run_simulation(params)
    assert list_answers(learned) == [one.tolist() for one in counted]
    assert learned.model.weights.tolist() == script.build_model(tuple(counted)).weights.tolist()


@pytest.mark.parametrize("trust", ["local", "secure-sum"])
@pytest.mark.parametrize("label", LABELS)
def test_simulated_model_predicts_the_label(label: str, trust: str) -> None:
    params = make_params(LABELS[label], epsilon=2.0, trust=trust)
    model = run_simulation(params).model
    rows = make_rows(params, seed=9)
    scores = model.compute_scores(rows.cells)
    if params.is_number:
        assert np.corrcoef(scores[:, 0], rows.sides[:, 1])[0, 1] > 0.8
    else:
        decided = np.argmax(scores, axis=1) if params.n_models > 1 else scores[:, 0] > 0
        assert (decided == np.argmax(rows.sides, axis=1)).mean() > 0.7


@pytest.mark.parametrize("figures", [{"trust": "local"}, {}, {"delta": 1e-6}])
def test_simulation_is_repeatable_with_a_seed(figures: dict[str, object]) -> None:
    params = make_params(**figures)
    first, again, other = (list_answers(run_simulation(params, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_local_simulation_draws_answers_of_each_sharer() -> None:
    params = make_params(trust="local")
    rows = make_rows(params)
    by_holder = draw_answers(params, DIGEST, rows, [2, 5, 6], SeededEntropy(3))
    learned = simulate(params, rows, DIGEST, SeededEntropy(3), sharers=[6, 2, 5])
    assert list_answers(learned) == [by_holder[holder].tolist() for holder in (2, 5, 6)]
    assert learned.model.weights.tolist() == pool_tables(params, DIGEST, by_holder).weights.tolist()


@pytest.mark.parametrize("label", [TWO, LABELS["number"]])
def test_simulation_sums_rows_of_sharers_only(label: Feature) -> None:
    params = make_params(label, epsilon=math.inf, minimum=2)
    rows = make_rows(params)
    some = simulate(params, rows, DIGEST, SeededEntropy(1), sharers=(1, 3))
    assert rows.owners is not None
    own = rows.take((rows.owners == 1) | (rows.owners == 3))
    assert list_answers(some) == list_answers(simulate(params, own, DIGEST, SeededEntropy(1)))
    assert some.answers[1].sum() == 256 * len(own)


def test_simulation_draws_noise_of_answering_holders() -> None:
    params = make_params(minimum=4)
    everyone, told, fewer, sharers = (
        list_answers(run_simulation(params, **options))
        for options in ({}, {"n_answering": 8}, {"n_answering": 4}, {"sharers": (0, 1, 2, 3)})
    )
    assert everyone == told != fewer
    assert sharers[0] != fewer[0]


def test_simulation_rejects_fewer_holders_than_the_minimum() -> None:
    params = make_params(minimum=4)
    for options in ({"n_answering": 3}, {"sharers": (0, 1, 2)}):
        with pytest.raises(UsageError, match="3 of 8 holders answer; a sum of fewer than 4"):
            run_simulation(params, **options)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_noise_variance_follows_number_of_holders(delta: float) -> None:
    params = make_params(minimum=4, delta=delta)
    script = SecureSumScript(params)
    nobody = make_rows(params, 0)
    mechanism = script.find_mechanism("tables")
    assert mechanism is not None
    for n in (4, 8):
        noise = np.concatenate(
            [
                draw_sum(script, script.initial_state, nobody, n, SeededEntropy(i))
                for i in range(100)
            ]
        )
        assert noise.var() / mechanism.variance(n) == pytest.approx(1, abs=0.25)
