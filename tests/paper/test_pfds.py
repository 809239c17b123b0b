"""PFDS at reduced size on Bike Sharing itself: what sharing brings under each kind of trust, and what the paper's own method brings."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.paper.pfds_data import Split, is_there, splits, task
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.fitting import own_model, ridge_model
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.paper_population import simulate_paper
from shoal.protocols.pfds.params import Params, Rows
from shoal.protocols.pfds.population import simulate

pytestmark = pytest.mark.skipif(
    not is_there(task("bike")), reason="the dataset is not in $SHOAL_DATA or ../shared/data; `make data` fetches it"
)

HOLDERS = range(0, 50, 10)


@cache
def split() -> Split:
    return next(iter(splits("bike", 1, development=True)))


def params(**settings: object) -> Params:
    one = split()
    return Params(one.training.schema, 1.0, len(one.training.labels), n_holders=one.n_holders, minimum=one.n_holders, **settings)  # type: ignore[arg-type]


def rows(study: Params) -> Rows:
    training = split().training
    return Rows.of(study, training.columns, training.labels, split().whose)


def error(model: object) -> float:
    """Mean square on rows that nobody holds, as a share of the label's variance there: the mean alone has 1."""
    test = split().test
    assert hasattr(model, "predict")
    return float(np.mean((model.predict(test.columns) - test.labels) ** 2) / np.var(test.labels))


@cache
def shared(trust: str, delta: float = 0.0) -> tuple[Model, Rows]:
    study = params(trust=trust, delta=delta)
    return simulate(study, rows(study), bytes(32), SeededEntropy(1)).model, rows(study)


def at_homes(trust: str, delta: float = 0.0) -> float:
    model, pool = shared(trust, delta)
    return float(np.mean([error(at_home(model, pool.take(pool.whose == h), SeededEntropy(h))) for h in HOLDERS]))


def test_sharing_helps_at_home_and_secure_sums_help_more() -> None:
    study = params()
    pool = rows(study)
    alone = float(np.mean([error(own_model(study, pool.take(pool.whose == h))) for h in HOLDERS]))
    everyone = error(ridge_model(study, pool))
    assert everyone < at_homes("secure-sum", 1e-6) < at_homes("local") < alone < 1


def test_the_paper_as_written_is_no_better_than_the_mean() -> None:
    """Errata P-01."""
    study, training = params(variant="paper"), split().training
    released = simulate_paper(study, training.columns, training.labels, split().whose, SeededEntropy(1)).datasets
    columns = {name: np.concatenate([one.columns[name] for one in released]) for name in study.schema.names}
    labels = np.concatenate([one.labels for one in released])
    assert error(ridge_model(study, Rows.of(study, columns, labels))) > 1
