"""Sweeps: the studies of a grid, and values that are rejected."""

from __future__ import annotations

import pytest

from shoal.errors import ShoalError
from shoal.simulation.metrics import ClassificationScores, RegressionScores, RunMean
from shoal.simulation.sweep import make_grid, parse_sweeps, summarise, vary
from shoal.study.loader import parse_study_text
from shoal.study.starters import read_starter

STUDY = parse_study_text(read_starter("anonml"))
PAPER_TABLE = "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 2\n[privacy]"
PAPER = parse_study_text(
    read_starter("anonml")
    .replace('variant = "plus"', 'variant = "paper"')
    .replace("[privacy]", PAPER_TABLE)
)


def test_sweep_without_values_is_the_study() -> None:
    [point] = make_grid(STUDY, {})
    assert point.study == STUDY and point.name == "" and point.settings == {}


def test_several_sweeps_make_a_grid() -> None:
    points = make_grid(PAPER, parse_sweeps(["epsilon=0.5,1", "n_partitions=1,3"]))
    assert [point.name for point in points] == [
        f"epsilon={e},n_partitions={n}" for e in ("0.5", "1") for n in (1, 3)
    ]
    made = [
        (point.study.privacy.epsilon, point.study.anonml.n_partitions)
        for point in points
        if point.study.anonml
    ]
    assert made == [(0.5, 1), (0.5, 3), (1.0, 1), (1.0, 3)]
    assert {point.study.anonml.subset_size for point in points if point.study.anonml} == {2}


def test_smaller_size_lowers_the_minimum() -> None:
    assert vary(STUDY, {"size": 100}).participation.minimum == 100
    assert vary(STUDY, {"size": 10**6}).participation.minimum == 2000


def test_parse_sweep_ignores_spaces() -> None:
    assert parse_sweeps([" epsilon = 1, 2 "]) == {"epsilon": [1.0, 2.0]}


def test_point_name_has_all_digits() -> None:
    [point] = make_grid(STUDY, parse_sweeps(["size=1234567", "epsilon=0.123456789"]))
    assert point.name == "size=1234567,epsilon=0.123456789"


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["colour=1"], "colour cannot be varied"),
        (["epsilon=1", "epsilon=2"], "epsilon is given twice"),
        (["epsilon"], "epsilon takes numbers"),
        (["epsilon=1,,2"], "epsilon takes numbers"),
        (["size=1.5"], "size takes whole numbers"),
        (["epsilon=1_0"], "epsilon takes numbers with commas between, not 1_0"),
        (["size=1_000"], "size takes whole numbers"),
        (["epsilon="], "epsilon takes numbers with commas between; no value is given."),
        (["\x1b[2J=1"], "'\\x1b[2J' cannot be varied"),
    ],
)
def test_parse_sweep_rejects_invalid_text(texts: list[str], what: str) -> None:
    with pytest.raises(ShoalError) as error:
        parse_sweeps(texts)
    assert error.value.code == "SIM-004" and what in error.value.what


@pytest.mark.parametrize(
    ("sweep", "code"),
    [
        ("epsilon=-1", "SPEC-013"),
        ("epsilon=nan", "SPEC-013"),
        ("epsilon=100", "SPEC-013"),
        ("size=0", "SPEC-013"),
        ("n_subsets=2", "SPEC-022"),
        ("epsilon=1,1.0", "SIM-004"),
    ],
)
def test_sweep_rejects_values_that_break_a_rule(sweep: str, code: str) -> None:
    with pytest.raises(ShoalError) as error:
        make_grid(STUDY, parse_sweeps([sweep]))
    assert error.value.code == code


def test_sweep_rejects_subsets_that_do_not_fit_the_features() -> None:
    with pytest.raises(ShoalError) as error:
        make_grid(PAPER, parse_sweeps(["n_subsets=3"]))
    assert error.value.code == "SPEC-021" and "k_h k_s <= k_f" in error.value.what


def test_summary_is_mean_and_standard_error_of_each_measure() -> None:
    assert summarise([ClassificationScores(0.7, auc, 0.5) for auc in (0.6, 0.8, 1.0)]) == {
        "accuracy": RunMean(0.7, 0.0),
        "auc": RunMean(0.8, pytest.approx(0.2 / 3**0.5)),  # type: ignore[arg-type]
        "f1": RunMean(0.5, 0.0),
    }


def test_summary_of_errors_has_their_measures() -> None:
    assert summarise([RegressionScores(rmse, 0.1, 0.5) for rmse in (1.0, 3.0)]) == {
        "rmse": RunMean(2.0, 1.0),
        "mean_absolute_error": RunMean(0.1, 0.0),
        "r_squared": RunMean(0.5, 0.0),
    }


def test_sweep_varies_settings_of_ddml() -> None:
    texts = ["n_updates=2", "n_instances=5", "learning_rate=0.5", "clip=2", "batch_size=1"]
    [point] = make_grid(parse_study_text(read_starter("ddml")), parse_sweeps(texts))
    study = point.study
    assert study.ddml is not None and study.privacy.n_updates == 2
    assert (
        study.ddml.n_instances,
        study.ddml.learning_rate,
        study.ddml.clip,
        study.ddml.batch_size,
    ) == (5, 0.5, 2.0, 1)


@pytest.mark.parametrize(
    "text",
    ["n_updates=2", "n_instances=5", "clip=1", "n_holders=5", "max_colluders=1", "delta=1e-6"],
)
def test_sweep_rejects_a_setting_of_another_protocol(text: str) -> None:
    with pytest.raises(ShoalError) as error:
        make_grid(STUDY, parse_sweeps([text]))
    assert error.value.code == "SPEC-022"


def test_sweep_varies_settings_of_sdq() -> None:
    study = parse_study_text(read_starter("sdq"))
    [point] = make_grid(study, parse_sweeps(["max_colluders=1", "depth=2"]))
    assert point.study.sdq is not None and (
        point.study.sdq.max_colluders,
        point.study.sdq.depth,
    ) == (1, 2)
    assert point.study.participation.minimum == study.participation.minimum


@pytest.mark.parametrize(("n", "minimum"), [(5, 4), (10, 9), (40, 39)])
def test_sweep_of_databases_keeps_the_number_that_may_drop_out(n: int, minimum: int) -> None:
    study = parse_study_text(read_starter("sdq").replace("minimum = 10", "minimum = 9"))
    varied = vary(study, {"n_databases": n, "max_colluders": 1})
    assert varied.sdq is not None and (varied.sdq.n_databases, varied.participation.minimum) == (
        n,
        minimum,
    )


@pytest.mark.parametrize(("n", "c", "choice"), [(3, 1, "mpc"), (12, 4, "mpc"), (60, 20, "sums")])
def test_sdq_settings_with_a_default_rule_follow_it_again(n: int, c: int, choice: str) -> None:
    default = read_starter("sdq").replace("max_colluders = 3", "")
    varied = vary(parse_study_text(default), {"n_databases": n}).sdq
    assert varied is not None and (varied.max_colluders, varied.choice) == (c, choice)
    written = parse_study_text(read_starter("sdq") + '\nchoice = "sums"\n')
    assert vary(written, {"n_databases": 12}).sdq == written.sdq.model_copy(
        update={"n_databases": 12}
    )  # type: ignore[union-attr]


def test_sdq_rows_are_not_compared_with_databases() -> None:
    assert vary(parse_study_text(read_starter("sdq")), {"size": 4}).participation.minimum == 10


@pytest.mark.parametrize(
    "settings",
    [{"n_databases": 1}, {"n_databases": 3, "max_colluders": 3}, {"n_databases": 3}, {"depth": 99}],
)
def test_sweep_rejects_impossible_sdq_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ShoalError, match="sweep  ") as error:
        vary(parse_study_text(read_starter("sdq")), settings)
    assert error.value.code in ("SPEC-013", "SPEC-021")


HOLDERS = parse_study_text(read_starter("pfds"))
SUMS = parse_study_text(read_starter("pfds").replace('trust = "local"', 'trust = "secure-sum"'))
TREES = parse_study_text(
    read_starter("pfds")
    .replace('variant = "plus"', 'variant = "paper"')
    .replace("range = [0, 730]", "range = [0, 730]\nmissing = false")
)


def test_sweep_varies_settings_of_pfds() -> None:
    [point] = make_grid(
        SUMS, parse_sweeps(["n_holders=30", "max_colluders=2", "delta=1e-6", "size=10"])
    )
    study = point.study
    assert study.pfds is not None and (
        study.pfds.n_holders,
        study.pfds.max_colluders,
        study.privacy.delta,
    ) == (30, 2, 1e-6)
    # As many as before may drop out, and rows are not counted against them.
    assert study.participation.minimum == 25 and study.participation.size == 10
    assert vary(HOLDERS, {"size": 4}).participation.minimum == 15


def test_pfds_settings_with_a_default_rule_follow_it_again() -> None:
    varied = vary(SUMS, {"n_holders": 30}).pfds
    assert (
        SUMS.pfds is not None
        and SUMS.pfds.max_colluders == 7
        and varied is not None
        and varied.max_colluders == 10
    )
    assert vary(SUMS, {"n_holders": 30, "max_colluders": 7}).pfds.max_colluders == 7  # type: ignore[union-attr]
    trees = vary(TREES, {"max_depth": 2}).pfds
    assert (
        TREES.pfds is not None
        and TREES.pfds.n_levels == 4
        and trees is not None
        and (trees.max_depth, trees.n_levels) == (2, 2)
    )
    assert vary(TREES, {"n_holders": 30}).pfds == TREES.pfds.model_copy(update={"n_holders": 30})


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"max_colluders": 1}, "SPEC-022", "max_colluders has no meaning with trust local"),
        ({"max_depth": 3}, "SPEC-022", "max_depth belongs to the trees of the paper's variant"),
        ({"delta": 1e-6}, "SPEC-022", "it has no delta"),
        (
            {"depth": 3},
            "SPEC-022",
            "depth is a setting of sdq; the protocol of this study is pfds.",
        ),
        ({"n_databases": 3}, "SPEC-022", "n_databases is a setting of sdq"),
        ({"clip": 1.0}, "SPEC-022", "clip is a setting of ddml"),
        ({"n_holders": 0}, "SPEC-013", "n_holders"),
    ],
)
def test_sweep_rejects_impossible_pfds_settings(
    settings: dict[str, float], code: str, words: str
) -> None:
    with pytest.raises(ShoalError, match="sweep  ") as error:
        vary(HOLDERS, settings)
    assert (
        error.value.code == code
        and words in error.value.what
        and "[sdq]" not in error.value.what
        and error.value.fix
    )


def test_error_of_a_sweep_names_the_protocol_and_its_settings() -> None:
    with pytest.raises(ShoalError) as error:
        vary(STUDY, {"max_colluders": 1})
    assert (
        error.value.what
        == "sweep  max_colluders is a setting of sdq and pfds; the protocol of this study is "
        "anonml."
    )
    assert (
        error.value.fix
        == "Vary epsilon, size, or a setting of anonml: n_partitions, n_subsets, subset_size."
    )
