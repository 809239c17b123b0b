"""PFDS at reduced size on Bike Sharing: each kind of trust, and the paper's method."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.paper.pfds.data import Split, is_there, splits, task
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.fitting import fit_own_model, fit_ridge_model
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.paper.population import simulate_paper
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.population import simulate

pytestmark = pytest.mark.skipif(
    not is_there(task("bike")),
    reason="the dataset is not in $SHOAL_DATA or ../shared/data; `make data` fetches it",
)

HOLDERS = range(0, 50, 10)


@cache
def split() -> Split:
    return next(iter(splits("bike", 1, development=True)))


def make_params(**settings: object) -> PFDSParams:
    one = split()
    return PFDSParams(
        one.training.schema,
        1.0,
        len(one.training.labels),
        n_holders=one.n_holders,
        minimum=one.n_holders,
        **settings,
    )  # type: ignore[arg-type]


def make_rows(study: PFDSParams) -> PFDSRows:
    training = split().training
    return PFDSRows.from_columns(study, training.columns, training.labels, split().owners)


def compute_error(model: object) -> float:
    """Return the mean square error on unseen rows, as a share of the label's variance.

    The mean alone has 1.
    """
    test = split().test
    assert hasattr(model, "predict")
    return float(np.mean((model.predict(test.columns) - test.labels) ** 2) / np.var(test.labels))


@cache
def train_shared_model(trust: str, delta: float = 0.0) -> tuple[PooledModel, PFDSRows]:
    study = make_params(trust=trust, delta=delta)
    return simulate(study, make_rows(study), bytes(32), SeededEntropy(1)).model, make_rows(study)


def compute_personal_error(trust: str, delta: float = 0.0) -> float:
    model, pool = train_shared_model(trust, delta)
    return float(
        np.mean(
            [
                compute_error(
                    fit_personal_model(model, pool.take(pool.owners == h), SeededEntropy(h))
                )
                for h in HOLDERS
            ]
        )
    )


def test_sharing_improves_personal_models_and_secure_sums_more() -> None:
    study = make_params()
    pool = make_rows(study)
    alone = float(
        np.mean([compute_error(fit_own_model(study, pool.take(pool.owners == h))) for h in HOLDERS])
    )
    everyone = compute_error(fit_ridge_model(study, pool))
    assert (
        everyone
        < compute_personal_error("secure-sum", 1e-6)
        < compute_personal_error("local")
        < alone
        < 1
    )


def test_paper_as_written_is_no_better_than_mean() -> None:
    """Check errata P-01."""
    study, training = make_params(variant="paper"), split().training
    released = simulate_paper(
        study, training.columns, training.labels, split().owners, SeededEntropy(1)
    ).datasets
    columns = {
        name: np.concatenate([one.columns[name] for one in released]) for name in study.schema.names
    }
    labels = np.concatenate([one.labels for one in released])
    assert compute_error(fit_ridge_model(study, PFDSRows.from_columns(study, columns, labels))) > 1
