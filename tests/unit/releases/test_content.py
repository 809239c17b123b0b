"""The content of a release: consistent parts, statement, and charged row count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import SpecError
from shoal.protocols.pfds import tables
from shoal.protocols.pfds.fitting import fit_own_model, fit_ridge_model
from shoal.protocols.pfds.params import PFDSRows
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.population import simulate
from shoal.releases.content import PFDSRelease, compute_noisy_row_count
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.pfds import build_params
from shoal.study.plan import make_plan
from shoal.study.starters import read_starter
from tests.support.releases import (
    N_ROWS,
    NOT_MISSING,
    PAPER,
    SUMS,
    make_release,
    make_study,
    real_rows,
)


def test_release_statement_equals_statement_of_the_study() -> None:
    release = make_release()
    assert release.statement == make_plan(release.manifest.study).make_statement(
        digest=release.manifest.short_digest
    )


def test_release_statement_contains_simulation_and_notes() -> None:
    plain = make_release()
    noted = replace(plain, is_simulated=True, notes=("the weather",)).statement
    assert (
        noted.simulated
        and noted.digest == ""
        and noted.not_covered == ("the weather", *plain.statement.not_covered)
    )


def test_release_has_a_model_in_plus_and_none_in_paper() -> None:
    plus, paper = make_release(), make_release(PAPER, NOT_MISSING)
    for release, model in ((plus, None), (paper, plus.model)):
        with pytest.raises(SpecError) as caught:
            replace(release, model=model)
        assert caught.value.code == "REL-002"


def test_release_rejects_models_fitted_on_own_rows() -> None:
    release = make_release()
    params, columns = release.params, real_rows(release.manifest.study)
    rows = PFDSRows.from_columns(
        params, params.schema.encode(columns), params.schema.encode_label(columns)
    )
    assert release.model is not None
    for model in (
        fit_own_model(params, rows),
        fit_ridge_model(params, rows),
        fit_personal_model(release.model, rows, SeededEntropy(1)),
        release.model.to_plain(),
    ):
        for given in (release, make_release(PAPER, NOT_MISSING)):
            with pytest.raises(SpecError, match="its model is not a pooled model") as caught:
                replace(given, model=model)  # type: ignore[arg-type]
            assert caught.value.code == "REL-002" and "must not be released" in str(
                caught.value.fix
            )


def test_release_rejects_other_protocols() -> None:
    with pytest.raises(SpecError, match="a study with protocol sdq releases no rows"):
        PFDSRelease(Manifest(parse_study_text(read_starter("sdq"))), make_release().dataset, False)


@pytest.mark.parametrize("edits", [(), (SUMS,)])
def test_noisy_row_count_has_the_stated_deviation(edits: tuple[tuple[str, str], ...]) -> None:
    study = make_study(*edits)
    params, digest = build_params(study), Manifest(study).digest
    cells = np.zeros((N_ROWS, len(params.arities)), np.int64) + params.starts[:-1]
    rows = PFDSRows(cells, np.tile([192, 64], (N_ROWS, 1)), np.arange(N_ROWS) % params.n_holders)
    runs = [
        compute_noisy_row_count(
            params, simulate(params, rows, digest, SeededEntropy(seed)).answers, params.n_holders
        )
        for seed in range(60)
    ]
    [deviation] = {run.deviation for run in runs}
    found = np.array([run.rows for run in runs]) - N_ROWS
    assert abs(found.mean()) < 4 * deviation / np.sqrt(60)
    assert 0.6 * deviation < found.std() < 1.5 * deviation
    # Half of the noise, by variance, is on each side.
    shares = np.array([run.shares for run in runs])
    assert np.all(
        np.abs(shares.mean(axis=0) - [0.75, 0.25]) < 4 * deviation / N_ROWS / np.sqrt(2 * 60)
    )


def test_noisy_row_count_clips_negative_shares() -> None:
    params = build_params(make_study())
    for sides, shares in (((500, -900), [1, 0]), ((-500, -900), [1, 0]), ((0, 0), [0.5, 0.5])):
        counted = compute_noisy_row_count(params, (np.array([*sides, *sides]) * 256,), 1)
        assert counted.shares == shares and counted.rows == 2 * sum(sides) / tables.choose_n_tables(
            params
        )


def test_release_rejects_count_with_other_classes() -> None:
    release = make_release()
    assert release.noisy_count is not None
    with pytest.raises(SpecError, match="the classes of its charged count") as caught:
        replace(release, noisy_count=release.noisy_count.replace(shares=[0.5, 0.25, 0.25]))
    assert caught.value.code == "REL-002"
