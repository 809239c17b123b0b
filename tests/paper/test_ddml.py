"""The DDML paper's main results at reduced size: order and rough size.

The data are MNIST, known weights and the example studies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.paper.ddml import data as ddml_data
from benchmarks.paper.ddml import known_weights as ddml_known
from benchmarks.paper.ddml import mnist as ddml_mnist
from benchmarks.paper.ddml import mnist_log3 as ddml_mnist_log3
from benchmarks.paper.ddml import whole_update as ddml_update
from benchmarks.paper.ddml.mnist import PAPER, Images
from shoal.protocols.ddml.population.schedule import StrategyChoice

needs_images = pytest.mark.skipif(
    not ddml_mnist.is_there(),
    reason="mnist.npz is not in $SHOAL_DATA or ../shared/data; `make data` fetches it",
)
needs_tables = pytest.mark.skipif(
    not all(ddml_data.is_there(study) for study in ddml_data.FILES),
    reason="the datasets are not in $SHOAL_DATA or ../shared/data",
)

N = 12_000


@pytest.fixture(autouse=True, scope="module")
def reduced_mnist() -> Iterator[None]:
    """Use a fifth of the images, half of the passes, and five times the learning rate.

    Half of the learning remains.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ddml_mnist, "N_PASSES", 10)
        yield


@cache
def some() -> tuple[Images, Images]:
    asked, unseen = ddml_mnist.images()
    return Images(asked.pixels[:N], asked.digits[:N]), unseen


@cache
def compute_accuracy(
    k: int = 10, strategy: StrategyChoice | None = None, epsilon: float = math.inf, **changes: Any
) -> float:
    asked, unseen = some()
    params = replace(PAPER, n_instances=k, epsilon=epsilon, **{"learning_rate": 0.005, **changes})
    return unseen.accuracy(ddml_mnist.learn(params, asked, 1, strategy).model.weights)


@needs_images
def test_more_instances_learn_more_slowly() -> None:
    one, ten, fifty = compute_accuracy(1), compute_accuracy(10), compute_accuracy(50)
    assert one > 0.89
    assert one > ten + 0.02 > fifty + 0.04


@needs_images
def test_k_instances_match_batches_of_k_devices() -> None:
    """Check that batches of k squared rows do not match (errata D-05), for any N_c."""
    assert compute_accuracy(10) == pytest.approx(compute_accuracy(1, ("batch", 10)), abs=0.015)
    assert compute_accuracy(1, ("batch", 100)) < compute_accuracy(10) - 0.04


@needs_images
def test_other_merge_strategies_are_not_better() -> None:
    """Check Figure 3.

    Replacing the same instance and accepting one update in k are the same; averaging halves the
    learning rate.
    """
    discard, same, averaged = (
        compute_accuracy(20),
        compute_accuracy(20, "same"),
        compute_accuracy(20, "average"),
    )
    assert same == pytest.approx(discard, abs=0.03) and compute_accuracy(
        20, "accept"
    ) == pytest.approx(same, abs=0.015)
    assert averaged == pytest.approx(compute_accuracy(20, "same-average"), abs=0.015)
    assert averaged < min(same, discard) - 0.01
    assert compute_accuracy(20, "average", learning_rate=0.01) == pytest.approx(discard, abs=0.02)


@needs_images
def test_noise_costs_accuracy_and_blending_regains_it() -> None:
    bare, mild, strong = (
        compute_accuracy(),
        compute_accuracy(epsilon=math.log(32)),
        compute_accuracy(epsilon=math.log(3)),
    )
    assert bare > mild > strong + 0.1
    asked, unseen = some()
    params = replace(
        ddml_mnist_log3.private("blend"),
        centred=False,
        size=N // 10,
        n_updates=10,
        epsilon=10 * math.log(3),
    )
    assert unseen.accuracy(ddml_mnist.learn(params, asked, 1).model.weights) > strong + 0.1


def test_known_weights_are_recovered() -> None:
    """Check Figure 5, with a hundredth of the updates and ten times the learning rate."""
    given = ddml_known.devices(200_000)
    bare = replace(
        ddml_known.CASES[1],
        n_passes=5,
        changes={**ddml_known.CASES[1].changes, "learning_rate": 0.05},
    )
    found = ddml_known.learn(bare, given)
    assert ddml_known.error(found.averaged) < 0.25 < ddml_known.error(np.zeros(33))
    errors = {
        case.name: ddml_known.error(ddml_known.learn(replace(case, n_passes=5), given).averaged)
        for case in ddml_known.CASES[2:]
    }
    assert errors["known_log32_blend_1e7"] < errors["known_log32_discard_1e7"] - 0.1


def test_model_has_form_of_paper() -> None:
    assert ddml_known.params_for(ddml_known.CASES[0]).n_weights == len(ddml_known.TRUE) == 33
    assert ddml_known.devices(200_000).targets.mean() == pytest.approx(0.377, abs=0.01)


def test_whole_update_protection_costs_accuracy() -> None:
    given = ddml_data.dense(50_000, 10_000)
    reached = {
        (merge, epsilon): ddml_update.auc(
            replace(given.params, merge=merge, epsilon=epsilon), given.split, range(2)
        ).value
        for merge in ddml_update.MERGES
        for epsilon in (1.0, 8.0)
    }
    assert 0.88 < reached["blend", 8.0] < 0.905
    assert reached["blend", 1.0] < reached["blend", 8.0] - 0.05
    assert reached["discard", 8.0] < reached["blend", 8.0] - 0.02


@needs_tables
@pytest.mark.parametrize(("study", "least"), [("adult-ddml", 0.85), ("phishing-ddml", 0.93)])
def test_example_studies_learn(study: str, least: float) -> None:
    given = ddml_data.example(study)
    assert len(given.split.train_labels) == pytest.approx(given.params.size, rel=0.05)
    assert (
        least
        < ddml_update.auc(given.params, given.split, range(3)).value
        < ddml_update.no_privacy(given).auc
    )


@needs_tables
def test_choice_of_settings_never_uses_test_rows() -> None:
    given = ddml_data.example("phishing-ddml").split
    inner = ddml_data.development(given)
    assert len(inner.train_labels) + len(inner.test_labels) == len(given.train_labels)
    name = next(iter(given.train_columns))
    assert np.array_equal(
        np.sort(np.concatenate([inner.train_columns[name], inner.test_columns[name]])),
        np.sort(given.train_columns[name]),
    )
