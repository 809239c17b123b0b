"""From counts to scores: the truth for many answers, zero for none, and always finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.mechanisms.calibrate import choose_mechanism
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.protocols.anonml.evidence import (
    N_LEVELS,
    BlockCounts,
    FeatureBins,
    FeatureEvidence,
    NoisyBit,
    NoisyLabelTable,
)
from shoal.protocols.anonml.posterior import choose_levels, learn_scores

BIT = RandomizedResponse(1.0, 2)
N = 10**9
# (bin, label) shares of three features.
RISING = np.array([[0.30, 0.02], [0.25, 0.08], [0.20, 0.15]])
CATEGORY = np.array([[0.40, 0.05], [0.35, 0.20]])
SAME = np.outer([0.5, 0.3, 0.2], [0.75, 0.25])


def make_table(cells, n=N, epsilon=1.0):
    mechanism = choose_mechanism(epsilon, cells.size, n)
    chances = float(mechanism.q) + cells.ravel() * float(mechanism.p - mechanism.q)
    return NoisyLabelTable(np.round(n * chances).astype(np.int64), n, mechanism)


def asked(cells, is_ordered=True, n=N):
    return FeatureEvidence(FeatureBins(len(cells), is_ordered, False), make_table(cells, n))


def log_ratio(cells):
    """log(P(bin | label) / P(bin)), ``(L, B)``."""
    return np.log(cells / cells.sum(0) / cells.sum(1, keepdims=True)).T


def test_learn_scores_of_many_answers_finds_truth():
    found = learn_scores([asked(RISING), asked(CATEGORY, False), asked(SAME)], 2)
    assert found.label_shares == pytest.approx([0.75, 0.25], abs=1e-3)
    for j, cells in enumerate((RISING, CATEGORY, SAME)):
        assert found.bin_shares[j] == pytest.approx(cells.sum(1), abs=1e-3)
        assert found.scores[j] == pytest.approx(log_ratio(cells), abs=0.02)


def test_learn_scores_of_several_classes_is_one_against_rest():
    cells = np.array([[0.20, 0.10, 0.05], [0.05, 0.20, 0.10], [0.10, 0.05, 0.15]])
    found = learn_scores([asked(cells), asked(cells, False)], 3)
    assert found.label_shares == pytest.approx(cells.sum(0), abs=1e-3)
    for score in found.scores:
        assert score == pytest.approx(log_ratio(cells), abs=0.02)


def bits_of(cells, high, n=N, **known):
    """Bits about a feature of which bin 1 is the high side."""
    t = float(BIT.p - BIT.q)
    h = np.where(np.arange(len(cells)) == 1, 1.0, -1.0)
    side, agree = (h * cells.sum(1)).sum(), (h * (cells[:, 1] - cells[:, 0])).sum()
    count = [NoisyBit(round(n * (1 + t * mean) / 2), n, BIT) for mean in (side, agree)]
    return FeatureEvidence(high, side=count[0], agree=count[1], **known)


def label_bit(share, n=N):
    return NoisyBit(round(n * (1 + float(BIT.p - BIT.q) * (2 * share - 1)) / 2), n, BIT)


def test_learn_scores_of_bits_finds_truth_with_tables_or_label_bit():
    two = FeatureBins(2, is_ordered=False, has_missing=False)
    beside = learn_scores([asked(RISING), bits_of(CATEGORY, two, is_lowest=True)], 2)
    assert beside.scores[1] == pytest.approx(log_ratio(CATEGORY), abs=0.02)
    assert beside.scores[0] == pytest.approx(log_ratio(RISING), abs=0.02)
    alone = learn_scores([bits_of(CATEGORY, two, is_lowest=True)], 2, label_bit(0.25))
    assert alone.label_shares == pytest.approx([0.75, 0.25], abs=1e-3)
    assert alone.scores[0] == pytest.approx(log_ratio(CATEGORY), abs=0.02)


def test_rare_side_is_not_confused_with_rare_label():
    cells = np.outer([0.9, 0.1], [0.9, 0.1])
    found = learn_scores(
        [bits_of(cells, FeatureBins(2, False, False), is_lowest=True)], 2, label_bit(0.1)
    )
    assert found.scores[0] == pytest.approx(np.zeros((2, 2)), abs=0.01)


def test_missing_values_are_on_low_side_of_bit():
    cells = np.array([[0.25, 0.05], [0.35, 0.20], [0.15, 0.00]])
    found = learn_scores(
        [bits_of(cells, FeatureBins(3, True, True), is_lowest=True)], 2, label_bit(0.25)
    )
    merged = np.array([cells[0] + cells[2], cells[1]])
    assert found.scores[0][:, :2] == pytest.approx(log_ratio(merged), abs=0.02)
    assert (found.scores[0][:, 2] == found.scores[0][:, 0]).all()
    assert found.bin_shares[0] == pytest.approx([0.225, 0.55, 0.225], abs=1e-3)


def test_scores_correspond_to_valid_shares():
    """For two labels, the shares of bins within them average to the shares of the bins."""
    found = learn_scores([asked(RISING, n=3000), asked(CATEGORY, n=3000)], 2)
    for score in found.scores:
        assert found.label_shares @ np.exp(score) == pytest.approx(np.ones(score.shape[1]))


def test_scores_of_few_answers_are_small():
    few, many = (learn_scores([asked(RISING, n=n)], 2).scores[0] for n in (100, 100_000))
    assert np.abs(few).max() < np.abs(many).max() / 2


@pytest.mark.parametrize("n_labels", [2, 3])
def test_scores_without_answers_are_zero(n_labels):
    shape = FeatureBins(3, is_ordered=True, has_missing=True)
    empty = NoisyLabelTable(
        np.zeros(3 * n_labels, np.int64), 0, choose_mechanism(1.0, 3 * n_labels, 1)
    )
    found = learn_scores([FeatureEvidence(shape, empty), FeatureEvidence(shape)], n_labels)
    assert found.label_shares.tolist() == pytest.approx([1 / n_labels] * n_labels)
    for score, shares in zip(found.scores, found.bin_shares, strict=True):
        assert score.shape == (n_labels, 3)
        assert not score.any()
        assert shares.tolist() == pytest.approx([1 / 3] * 3)


def test_feature_without_answers_scores_zero_among_others():
    empty = NoisyLabelTable(np.zeros(6, np.int64), 0, choose_mechanism(1.0, 6, 1))
    found = learn_scores([asked(RISING), FeatureEvidence(FeatureBins(3, True, False), empty)], 2)
    assert found.scores[0].any()
    assert not found.scores[1].any()


def test_label_shares_are_pooled_by_precision():
    sure, unsure = (
        asked(np.outer([0.5, 0.5], [0.8, 0.2])),
        asked(np.outer([0.5, 0.5], [0.2, 0.8]), n=1000),
    )
    assert learn_scores([sure, unsure], 2).label_shares == pytest.approx([0.8, 0.2], abs=0.01)
    assert learn_scores([unsure], 2, label_bit(0.2)).label_shares == pytest.approx(
        [0.8, 0.2], abs=0.01
    )
    assert learn_scores([unsure], 2, NoisyBit(0, 0, BIT)).label_shares[1] > 0.6


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_label_shares_are_never_zero(share):
    found = learn_scores([asked(np.outer([0.5, 0.5], [1 - share, share]))], 2)
    assert min(found.label_shares) == pytest.approx(0.02)
    assert found.label_shares.sum() == pytest.approx(1)


def test_scores_never_exclude_a_label():
    found = learn_scores([asked(np.array([[0.5, 0.0], [0.0, 0.5]]))], 2)
    assert found.scores[0].min() == pytest.approx(np.log(0.03), abs=1e-3)


def test_levels_follow_associations():
    cells = np.array([[0.25, 0.05], [0.05, 0.15], [0.22, 0.06], [0.08, 0.14]])
    low, high, again, middle = choose_levels([asked(cells, False)], 2)[0]
    assert (low, again) == (0, 0)
    assert 0 < middle <= high == choose_levels([asked(cells, False)], 2)[0].max()
    assert choose_levels([FeatureEvidence(FeatureBins(5, True, False))], 2)[0].tolist() == [0] * 5


def blocks_of(tables, rng, n, copied=False, epsilon=8.0, size=2):
    """Block answers of n peers, by random response; features are independent given the label, but
    for the second if it is a copy.
    """
    J = len(tables)
    found = choose_levels([asked(cells, False) for cells in tables], 2)
    y = (rng.random(n) < tables[0].sum(0)[1]).astype(np.int64)
    bins = np.zeros((n, J), np.int64)
    for j, cells in enumerate(tables):
        for label in (0, 1):
            bins[y == label, j] = rng.choice(
                len(cells), (y == label).sum(), p=cells[:, label] / cells[:, label].sum()
            )
    if copied:
        bins[:, 1] = bins[:, 0]
    level = np.stack([found[j][bins[:, j]] for j in range(J)], axis=1)
    chosen = np.sort(np.argsort(rng.random((n, J)), axis=1)[:, :size], axis=1)
    mine = np.take_along_axis(level, chosen, 1)
    mechanism = RandomizedResponse(epsilon, 2 * N_LEVELS**size)
    reports = mechanism.report_many((mine[:, 0] * N_LEVELS + mine[:, 1]) * 2 + y, SeededEntropy(4))
    first, second, said = reports // 2 // N_LEVELS, reports // 2 % N_LEVELS, reports % 2
    singles = np.zeros((J, N_LEVELS, 2), np.int64)
    np.add.at(singles, (chosen[:, 0], first, said), 1)
    np.add.at(singles, (chosen[:, 1], second, said), 1)
    pair = {
        at: i
        for i, at in enumerate(zip(*(part.tolist() for part in np.triu_indices(J, 1)), strict=True))
    }
    pairs = np.zeros((len(pair), N_LEVELS, N_LEVELS), np.int64)
    np.add.at(pairs, ([pair[a, b] for a, b in chosen.tolist()], first, second), 1)
    return BlockCounts(found, singles, singles.sum((1, 2)), pairs, pairs.sum((1, 2)), mechanism)


def test_blocks_refine_vague_tables():
    tables, rng = (RISING, RISING[::-1].copy(), CATEGORY), np.random.default_rng(8)
    vague = [asked(cells, n=300) for cells in tables]
    without, with_blocks = (
        learn_scores(vague, 2),
        learn_scores(vague, 2, None, blocks_of(tables, rng, 20_000)),
    )

    def error(found):
        return sum(
            np.abs(score - log_ratio(cells)).max()
            for score, cells in zip(found.scores, tables, strict=True)
        )

    assert error(with_blocks) < error(without) / 2
    assert with_blocks.label_shares == pytest.approx([0.75, 0.25], abs=0.02)


def test_blocks_detect_redundant_features():
    tables = (RISING, RISING, RISING)
    blocks = blocks_of(tables, np.random.default_rng(7), 20_000, copied=True)
    first, second, other = (
        np.ptp(score[1] - score[0])
        for score in learn_scores([asked(cells) for cells in tables], 2, None, blocks).scores
    )
    assert (first + second) / 2 < 0.8 * other
    assert min(first, second) > 0.4 * other


def test_blocks_alone_suffice():
    tables, rng = (CATEGORY, SAME, RISING), np.random.default_rng(9)
    found = learn_scores(
        [FeatureEvidence(FeatureBins(len(cells), False, False)) for cells in tables],
        2,
        None,
        blocks_of(tables, rng, 50_000),
    )
    assert found.scores[0] == pytest.approx(log_ratio(CATEGORY), abs=0.15)


def any_table(draw, shape, n_labels):
    mechanism = choose_mechanism(
        draw(st.sampled_from([1e-9, 0.1, 1.0, 8.0, 64.0])), shape.n_bins * n_labels, 1
    )
    n = draw(st.sampled_from([0, 1, 2, 10, 10**6]))
    shares = draw(
        st.lists(
            st.sampled_from([0.0, 0.01, 0.5, 1.0]),
            min_size=shape.n_bins * n_labels,
            max_size=shape.n_bins * n_labels,
        )
    )
    return NoisyLabelTable(np.round(n * np.array(shares)).astype(np.int64), n, mechanism)


def any_bit(draw):
    n = draw(st.sampled_from([0, 1, 2, 10, 10**6]))
    return NoisyBit(
        round(n * draw(st.floats(0, 1))),
        n,
        RandomizedResponse(draw(st.sampled_from([1e-9, 0.5, 64.0])), 2),
    )


@st.composite
def anything(draw):
    n_labels = draw(st.integers(2, 4))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        is_ordered = draw(st.booleans())
        if n_labels == 2 and draw(st.booleans()):
            shape = FeatureBins(draw(st.integers(2, 3)), is_ordered, False)
            found.append(
                FeatureEvidence(
                    shape,
                    None,
                    any_bit(draw),
                    any_bit(draw),
                    draw(st.sampled_from([0, 1, 1000])),
                    draw(st.booleans()),
                )
            )
        else:
            shape = FeatureBins(draw(st.integers(1, 6)), is_ordered, draw(st.booleans()))
            shape = FeatureBins(
                max(shape.n_bins, 1 + shape.has_missing), shape.is_ordered, shape.has_missing
            )
            found.append(FeatureEvidence(shape, any_table(draw, shape, n_labels)))
    return found, n_labels, any_bit(draw) if n_labels == 2 and draw(st.booleans()) else None


@pytest.mark.untraced
@settings(deadline=None)
@given(anything())
def test_scores_of_any_counts_are_finite(given_counts):
    evidence, n_labels, label = given_counts
    found = learn_scores(evidence, n_labels, label)
    assert found.label_shares.sum() == pytest.approx(1)
    assert (found.label_shares > 0).all()
    for one, score, shares in zip(evidence, found.scores, found.bin_shares, strict=True):
        assert score.shape == (n_labels, one.shape.n_bins)
        assert np.isfinite(score).all()
        assert shares.sum() == pytest.approx(1)
        assert (shares > 0).all()


@st.composite
def any_blocks(draw):
    J = draw(st.integers(1, 4))
    shapes = [FeatureBins(draw(st.integers(1, 5)), draw(st.booleans()), False) for _ in range(J)]
    shapes = [FeatureBins(max(2, shape.n_bins), shape.is_ordered, False) for shape in shapes]
    evidence = [FeatureEvidence(shape, any_table(draw, shape, 2)) for shape in shapes]
    counts = st.sampled_from([0, 1, 3, 1000])
    singles = np.array(draw(st.lists(counts, min_size=J * 6, max_size=J * 6)), np.int64).reshape(
        J, N_LEVELS, 2
    )
    n_pairs = J * (J - 1) // 2
    pairs = np.array(
        draw(st.lists(counts, min_size=n_pairs * 9, max_size=n_pairs * 9)), np.int64
    ).reshape(n_pairs, N_LEVELS, N_LEVELS)
    mechanism = RandomizedResponse(draw(st.sampled_from([0.01, 6.0, 64.0])), 18)
    return evidence, BlockCounts(
        choose_levels(evidence, 2),
        singles,
        singles.sum((1, 2)),
        pairs,
        pairs.sum((1, 2)),
        mechanism,
    )


@pytest.mark.untraced
@settings(deadline=None)
@given(any_blocks())
def test_scores_of_any_blocks_are_finite(counts):
    evidence, blocks = counts
    found = learn_scores(evidence, 2, None, blocks)
    assert all(np.isfinite(score).all() for score in found.scores)
    assert (found.label_shares > 0).all()


@pytest.mark.parametrize(("n_features", "n_bins"), [(300, 3), (2, 400)])
def test_learn_scores_handles_many_features_and_bins(n_features, n_bins):
    rng = np.random.default_rng(1)
    mechanism = choose_mechanism(2.0, 2 * n_bins, 1)
    counts = rng.binomial(1000, float(mechanism.q), (n_features, 2 * n_bins))
    found = learn_scores(
        [
            FeatureEvidence(
                FeatureBins(n_bins, True, True), NoisyLabelTable(count, 1000, mechanism)
            )
            for count in counts
        ],
        2,
    )
    assert all(np.isfinite(score).all() for score in found.scores)
