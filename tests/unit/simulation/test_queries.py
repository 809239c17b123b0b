"""Free counts of simulated databases: true counts, noise, and the study's limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Columns, as_columns
from shoal.errors import ShoalError, UsageError
from shoal.simulation.queries import SimulatedDatabases
from shoal.study.label import SIMULATED
from shoal.study.loader import parse_study_text
from shoal.study.spec import Study
from shoal.study.starters import read_starter

N = 2000
RNG = np.random.default_rng(4)
WARDS = np.array(["surgery", "medicine", "maternity", "emergency"], object)[RNG.integers(0, 4, N)]
BACK = np.where(RNG.random(N) < 0.3, "yes", "no").astype(object)
PATIENTS = np.arange(N) // 4


def study(
    epsilon_release: float = 1.0,
    n_queries: int = 5,
    features: str = '["ward", "age", "readmitted"]',
    edit: Any = ("", ""),
) -> Study:
    queries = (
        f"[queries]\nfeatures = {features}\nn_queries = {n_queries}\nepsilon_release = "
        f"{epsilon_release}\n"
    )
    return parse_study_text(read_starter("sdq").replace(*edit, 1) + queries)


def by_row() -> tuple[str, str]:
    """Return the change that makes the row the unit."""
    text = read_starter("sdq")
    return text[text.index("[data]") : text.index("[privacy]")], ""


def rows(**more: Any) -> Columns:
    made = {
        "patient": PATIENTS,
        "age": np.arange(N) % 100,
        "ward": WARDS,
        "nights": np.arange(N) % 30,
        "lives_alone": ["no"] * N,
    }
    return as_columns({**made, "readmitted": BACK, **more})


def refused(ask: Any) -> ShoalError:
    with pytest.raises(ShoalError) as error:
        ask()
    return error.value


EXACT = study(50.0, edit=by_row())
"""So dear that the noise of a count is 0 all but surely."""


class TestCounts:
    def test_counts_without_noise_are_those_of_the_rows(self) -> None:
        databases = SimulatedDatabases(EXACT, rows())
        assert int(databases.count(ward="surgery", readmitted="yes").counts) == np.sum(
            (WARDS == "surgery") & (BACK == "yes")
        )
        assert (
            int(databases.count(ward=["surgery", "maternity"]).counts)
            == np.isin(WARDS, ["surgery", "maternity"]).sum()
        )
        assert int(databases.count().counts) == N
        joint = databases.histogram("ward", "readmitted")
        assert joint.counts.shape == (4, 2) and int(joint.counts[1, 1]) == np.sum(
            (WARDS == "medicine") & (BACK == "yes")
        )
        wards, back = databases.marginals("ward", "readmitted")
        assert (
            wards.features == ("ward",)
            and wards.counts.sum() == N
            and back.counts.tolist() == [np.sum(BACK == "no"), np.sum(BACK == "yes")]
        )

    def test_counts_of_people_use_their_first_rows_in_each_database(self) -> None:
        held = np.arange(N) % 2 * 5 + np.arange(N) // 4 % 5
        databases = SimulatedDatabases(study(50.0), rows(site=held), holder="site")
        # Every patient has two rows in each of two databases, which are as many as may be used.
        assert int(databases.count().counts) == N
        one = ("max_rows_per_person = 2 ", "max_rows_per_person = 1 ")
        assert (
            int(
                SimulatedDatabases(study(50.0, edit=one), rows(site=held), holder="site")
                .count()
                .counts
            )
            == N // 2
        )

    def test_counts_have_noise_of_the_stated_deviation(self) -> None:
        spec = study(0.2, n_queries=1)
        tables = [
            SimulatedDatabases(spec, rows(), seed=seed).histogram("age", "ward")
            for seed in range(40)
        ]
        misses = np.concatenate([(table.counts - tables[0].counts).ravel() for table in tables[1:]])
        # The difference of two draws; eight standard errors of a variance with the kurtosis of few
        # shares.
        assert np.std(misses) == pytest.approx(math.sqrt(2) * tables[0].deviation, rel=0.25)

    def test_counts_depend_on_the_seed_and_the_number_of_the_query(self) -> None:
        def asked(seed: int) -> list[Any]:
            databases = SimulatedDatabases(study(0.1), rows(), seed=seed)
            return [databases.histogram("ward").counts.tolist() for _ in range(2)]

        assert asked(1) == asked(1) and asked(1)[0] != asked(1)[1] and asked(1)[0] != asked(2)[0]


class TestLimits:
    def test_queries_above_the_limit_of_the_study_are_rejected(self) -> None:
        databases = SimulatedDatabases(study(n_queries=2), rows())
        databases.count(ward="surgery")
        # What is refused is not asked, and does not count.
        assert refused(lambda: databases.histogram("nights")).code == "SDQ-002"
        databases.marginals("ward", "age")
        error = refused(lambda: databases.count(ward="surgery"))
        assert error.code == "SDQ-002" and "query 3" in error.what and databases.n_asked == 2

    @pytest.mark.parametrize("features", [("nights",), ("ward", "ward"), ()])
    def test_query_of_an_unnamed_feature_is_rejected(self, features: tuple[str, ...]) -> None:
        databases = SimulatedDatabases(study(), rows())
        assert (
            refused(lambda: databases.histogram(*features)).code
            == refused(lambda: databases.marginals(*features)).code
            == "SDQ-002"
        )

    @pytest.mark.parametrize("feature", [["ward"], 3, None, np.array(["ward", "age"]), {"ward"}])
    def test_query_with_a_feature_that_is_not_a_name_is_rejected(self, feature: Any) -> None:
        databases = SimulatedDatabases(study(), rows())
        for ask in (databases.histogram, databases.marginals):
            error = refused(lambda: ask(feature))
            assert (
                isinstance(error, UsageError)
                and error.code == "SDQ-002"
                and '("ward")' in str(error.fix)
            )

    def test_error_of_a_query_names_the_allowed_ones(self) -> None:
        databases = SimulatedDatabases(study(), rows())
        asks = [
            lambda: databases.count(nights="any"),
            lambda: databases.histogram("nights"),
            databases.histogram,
            lambda: databases.marginals("age", "age"),
        ]
        for ask in asks:
            error = refused(ask)
            assert isinstance(error, UsageError) and error.code == "SDQ-002"
            assert (
                error.fix
                == "[queries] allow 5 counts in all, by: ward, age, readmitted; each of them once "
                "in a count."
            )
        assert (
            refused(lambda: databases.count(ward=[3])).code == "SDQ-002" and databases.n_asked == 0
        )

    def test_result_of_a_query_names_the_cells(self) -> None:
        error = refused(lambda: SimulatedDatabases(study(), rows()).count(ward="cellar"))
        assert error.code == "SDQ-002" and "surgery" in str(error.fix)

    @pytest.mark.parametrize(
        ("protocol", "words"),
        [("sdq", "it has no [queries]"), ("anonml", "this study has another protocol")],
    )
    def test_study_without_free_queries_is_rejected(self, protocol: str, words: str) -> None:
        error = refused(
            lambda: SimulatedDatabases(parse_study_text(read_starter(protocol)), rows())
        )
        assert error.code == "SIM-002" and words in error.what

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("study", None),
            ("study", read_starter("sdq")),
            ("columns", [[1]]),
            ("columns", None),
            ("holder", 3),
            ("holder", ["site"]),
        ]
        + [("seed", wrong) for wrong in ("1", 1.0, True, None)],
    )
    def test_arguments_of_a_wrong_type_are_rejected(self, name: str, value: Any) -> None:
        error = refused(
            lambda: SimulatedDatabases(**{"study": study(), "columns": rows(), name: value})
        )
        assert (
            error.code == "USAGE-001"
            and error.what.endswith(f": {name}.")
            and str(error.fix).startswith(f"Give {name}: ")
        )

    @pytest.mark.parametrize("holder", [None, "site"])
    def test_databases_without_rows_are_rejected(self, holder: str | None) -> None:
        nobody = {name: column[:0] for name, column in rows(site=np.arange(N)).items()}
        assert refused(lambda: SimulatedDatabases(study(), nobody, holder=holder)).code == "SIM-003"

    def test_another_number_of_databases_is_rejected(self) -> None:
        assert (
            refused(
                lambda: SimulatedDatabases(study(), rows(site=np.arange(N) % 3), holder="site")
            ).code
            == "SIM-007"
        )


def test_repr_describes_the_databases() -> None:
    databases = SimulatedDatabases(study(), rows())
    databases.count()
    assert (
        databases.simulated
        and repr(databases)
        == "<a simulation of 10 databases: 1 of 5 counts used, nothing is protected>"
    )
    assert databases.privacy.simulated and SIMULATED in " ".join(
        str(databases.privacy).replace("│", " ").split()
    )
    assert databases.privacy.epsilon == 1.0 + 5 * 1.0
