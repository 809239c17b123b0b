"""Free counts of simulated databases: true counts and noise, what the study allows, and no more of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.domain import Columns, as_columns
from shoal.errors import ShoalError, UsageError
from shoal.sim.queries import Databases
from shoal.study.label import SIMULATED
from shoal.study.load import parse
from shoal.study.spec import Study
from shoal.study.templates import study_text

N = 2000
RNG = np.random.default_rng(4)
WARDS = np.array(["surgery", "medicine", "maternity", "emergency"], object)[RNG.integers(0, 4, N)]
BACK = np.where(RNG.random(N) < 0.3, "yes", "no").astype(object)
PATIENTS = np.arange(N) // 4


def study(epsilon_release: float = 1.0, n_queries: int = 5, features: str = '["ward", "age", "readmitted"]', edit: Any = ("", "")) -> Study:
    queries = f"[queries]\nfeatures = {features}\nn_queries = {n_queries}\nepsilon_release = {epsilon_release}\n"
    return parse(study_text("sdq").replace(*edit, 1) + queries)


def by_row() -> tuple[str, str]:
    """The edit that makes the row the unit."""
    text = study_text("sdq")
    return text[text.index("[data]") : text.index("[privacy]")], ""


def rows(**more: Any) -> Columns:
    made = {"patient": PATIENTS, "age": np.arange(N) % 100, "ward": WARDS, "nights": np.arange(N) % 30, "lives_alone": ["no"] * N}
    return as_columns({**made, "readmitted": BACK, **more})


def refused(ask: Any) -> ShoalError:
    with pytest.raises(ShoalError) as error:
        ask()
    return error.value


EXACT = study(50.0, edit=by_row())
"""So dear that the noise of a count is 0 all but surely."""


class TestCounts:
    def test_are_those_of_the_rows(self) -> None:
        databases = Databases(EXACT, rows())
        assert int(databases.count(ward="surgery", readmitted="yes").counts) == np.sum((WARDS == "surgery") & (BACK == "yes"))
        assert int(databases.count(ward=["surgery", "maternity"]).counts) == np.isin(WARDS, ["surgery", "maternity"]).sum()
        assert int(databases.count().counts) == N
        joint = databases.histogram("ward", "readmitted")
        assert joint.counts.shape == (4, 2) and int(joint.counts[1, 1]) == np.sum((WARDS == "medicine") & (BACK == "yes"))
        wards, back = databases.marginals("ward", "readmitted")
        assert (
            wards.features == ("ward",)
            and wards.counts.sum() == N
            and back.counts.tolist() == [np.sum(BACK == "no"), np.sum(BACK == "yes")]
        )

    def test_of_people_are_of_their_first_rows_in_each_database(self) -> None:
        held = np.arange(N) % 2 * 5 + np.arange(N) // 4 % 5
        databases = Databases(study(50.0), rows(site=held), holder="site")
        # Every patient has two rows in each of two databases, which are as many as may be used.
        assert int(databases.count().counts) == N
        one = ("max_rows_per_person = 2 ", "max_rows_per_person = 1 ")
        assert int(Databases(study(50.0, edit=one), rows(site=held), holder="site").count().counts) == N // 2

    def test_carry_noise_of_the_deviation_that_is_told(self) -> None:
        spec = study(0.2, n_queries=1)
        tables = [Databases(spec, rows(), seed=seed).histogram("age", "ward") for seed in range(40)]
        misses = np.concatenate([(table.counts - tables[0].counts).ravel() for table in tables[1:]])
        # The difference of two draws; eight standard errors of a variance with the kurtosis of few shares.
        assert np.std(misses) == pytest.approx(math.sqrt(2) * tables[0].deviation, rel=0.25)

    def test_follow_from_the_seed_and_the_number_of_the_query(self) -> None:
        def asked(seed: int) -> list[Any]:
            databases = Databases(study(0.1), rows(), seed=seed)
            return [databases.histogram("ward").counts.tolist() for _ in range(2)]

        assert asked(1) == asked(1) and asked(1)[0] != asked(1)[1] and asked(1)[0] != asked(2)[0]


class TestLimits:
    def test_no_more_than_the_study_allows(self) -> None:
        databases = Databases(study(n_queries=2), rows())
        databases.count(ward="surgery")
        # What is refused is not asked, and does not count.
        assert refused(lambda: databases.histogram("nights")).code == "SDQ-002"
        databases.marginals("ward", "age")
        error = refused(lambda: databases.count(ward="surgery"))
        assert error.code == "SDQ-002" and "query 3" in error.what and databases.n_asked == 2

    @pytest.mark.parametrize("features", [("nights",), ("ward", "ward"), ()])
    def test_nothing_that_it_does_not_name(self, features: tuple[str, ...]) -> None:
        databases = Databases(study(), rows())
        assert refused(lambda: databases.histogram(*features)).code == refused(lambda: databases.marginals(*features)).code == "SDQ-002"

    @pytest.mark.parametrize("feature", [["ward"], 3, None, np.array(["ward", "age"]), {"ward"}])
    def test_a_feature_has_a_name(self, feature: Any) -> None:
        databases = Databases(study(), rows())
        for ask in (databases.histogram, databases.marginals):
            error = refused(lambda: ask(feature))  # noqa: B023
            assert isinstance(error, UsageError) and error.code == "SDQ-002" and '("ward"), names with commas' in str(error.fix)

    def test_whoever_asks_is_told_what_is_allowed(self) -> None:
        databases = Databases(study(), rows())
        asks = [
            lambda: databases.count(nights="any"),
            lambda: databases.histogram("nights"),
            databases.histogram,
            lambda: databases.marginals("age", "age"),
        ]
        for ask in asks:
            error = refused(ask)
            assert isinstance(error, UsageError) and error.code == "SDQ-002"
            assert error.fix == "[queries] allow 5 counts in all, by: ward, age, readmitted; each of them once in a count."
        assert refused(lambda: databases.count(ward=[3])).code == "SDQ-002" and databases.n_asked == 0

    def test_cells_have_names(self) -> None:
        error = refused(lambda: Databases(study(), rows()).count(ward="cellar"))
        assert error.code == "SDQ-002" and "surgery" in str(error.fix)

    @pytest.mark.parametrize(("protocol", "words"), [("sdq", "it has no [queries]"), ("anonml", "its protocol is another one")])
    def test_a_study_without_free_counts_has_a_sentence(self, protocol: str, words: str) -> None:
        error = refused(lambda: Databases(parse(study_text(protocol)), rows()))
        assert error.code == "SIM-002" and words in error.what

    @pytest.mark.parametrize(
        ("name", "value"),
        [("study", None), ("study", study_text("sdq")), ("columns", [[1]]), ("columns", None), ("holder", 3), ("holder", ["site"])]
        + [("seed", wrong) for wrong in ("1", 1.0, True, None)],
    )
    def test_arguments_of_another_kind_have_a_sentence(self, name: str, value: Any) -> None:
        error = refused(lambda: Databases(**{"study": study(), "columns": rows(), name: value}))
        assert error.code == "USAGE-001" and error.what.endswith(f": {name}.") and str(error.fix).startswith(f"Give {name}: ")

    @pytest.mark.parametrize("holder", [None, "site"])
    def test_without_rows_there_is_nothing_to_count(self, holder: str | None) -> None:
        nobody = {name: column[:0] for name, column in rows(site=np.arange(N)).items()}
        assert refused(lambda: Databases(study(), nobody, holder=holder)).code == "SIM-003"

    def test_as_many_databases_as_the_study_has(self) -> None:
        assert refused(lambda: Databases(study(), rows(site=np.arange(N) % 3), holder="site")).code == "SIM-007"


def test_it_says_what_it_is() -> None:
    databases = Databases(study(), rows())
    databases.count()
    assert databases.simulated and repr(databases) == "<a simulation of 10 databases: 1 of 5 counts asked, nothing is protected>"
    assert databases.privacy.simulated and SIMULATED in " ".join(str(databases.privacy).replace("│", " ").split())
    assert databases.privacy.epsilon == 1.0 + 5 * 1.0
