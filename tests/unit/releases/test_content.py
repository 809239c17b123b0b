"""What a release says: parts that belong together, the statement of its study, and the charged count of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from release_cases import N_ROWS, NOT_MISSING, PAPER, SUMS, real_rows, release_of, study_of
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError
from shoal.protocols.pfds import local
from shoal.protocols.pfds.fitting import own_model, ridge_model
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.params import Rows
from shoal.protocols.pfds.population import simulate
from shoal.releases.content import Release, counted_rows
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.pfds import params_of
from shoal.study.plan import make_plan
from shoal.study.templates import study_text


def test_the_statement_is_that_of_the_study() -> None:
    release = release_of()
    assert release.statement == make_plan(release.manifest.study).statement(digest=release.manifest.short)


def test_a_simulation_and_notes_are_in_the_statement() -> None:
    plain = release_of()
    noted = replace(plain, is_simulated=True, notes=("the weather",)).statement
    assert noted.simulated and noted.digest == "" and noted.not_covered == ("the weather", *plain.statement.not_covered)


def test_variant_plus_has_a_model_and_variant_paper_none() -> None:
    plus, paper = release_of(), release_of(PAPER, NOT_MISSING)
    for release, model in ((plus, None), (paper, plus.model)):
        with pytest.raises(SpecError) as caught:
            replace(release, model=model)
        assert caught.value.code == "REL-002"


def test_a_model_of_rows_themselves_is_not_released() -> None:
    release = release_of()
    params, columns = release.params, real_rows(release.manifest.study)
    rows = Rows.of(params, params.schema.encode(columns), params.schema.encode_label(columns))
    assert release.model is not None
    for model in (
        own_model(params, rows),
        ridge_model(params, rows),
        at_home(release.model, rows, SeededEntropy(1)),
        release.model.to_plain(),
    ):
        for given in (release, release_of(PAPER, NOT_MISSING)):
            with pytest.raises(SpecError, match="its model is not one that was released") as caught:
                replace(given, model=model)  # type: ignore[arg-type]
            assert caught.value.code == "REL-002" and "never leaves" in str(caught.value.fix)


def test_other_protocols_release_nothing() -> None:
    with pytest.raises(SpecError, match="its study is of sdq"):
        Release(Manifest(parse(study_text("sdq"))), release_of().dataset, False)


@pytest.mark.parametrize("edits", [(), (SUMS,)])
def test_rows_are_counted_with_the_noise_that_is_stated(edits: tuple[tuple[str, str], ...]) -> None:
    study = study_of(*edits)
    params, digest = params_of(study), Manifest(study).digest
    cells = np.zeros((N_ROWS, len(params.arities)), np.int64) + params.starts[:-1]
    rows = Rows(cells, np.tile([192, 64], (N_ROWS, 1)), np.arange(N_ROWS) % params.n_holders)
    runs = [counted_rows(params, simulate(params, rows, digest, SeededEntropy(seed)).answers, params.n_holders) for seed in range(60)]
    [deviation] = {run.deviation for run in runs}
    found = np.array([run.rows for run in runs]) - N_ROWS
    assert abs(found.mean()) < 4 * deviation / np.sqrt(60)
    assert 0.6 * deviation < found.std() < 1.5 * deviation
    # Half of the noise, by variance, is on each side.
    shares = np.array([run.shares for run in runs])
    assert np.all(np.abs(shares.mean(axis=0) - [0.75, 0.25]) < 4 * deviation / N_ROWS / np.sqrt(2 * 60))


def test_shares_that_noise_has_made_negative_are_none() -> None:
    params = params_of(study_of())
    for sides, shares in (((500, -900), [1, 0]), ((-500, -900), [1, 0]), ((0, 0), [0.5, 0.5])):
        counted = counted_rows(params, (np.array([*sides, *sides]) * 256,), 1)
        assert counted.shares == shares and counted.rows == 2 * sum(sides) / local.n_tables(params)


def test_a_count_is_of_the_classes_of_its_study() -> None:
    release = release_of()
    assert release.counted is not None
    with pytest.raises(SpecError, match="other classes") as caught:
        replace(release, counted=release.counted.replace(shares=[0.5, 0.25, 0.25]))
    assert caught.value.code == "REL-002"
