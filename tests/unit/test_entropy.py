"""Random sources: no repetition, forks, copies, keys, and exact uniformity."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from shoal import entropy as module
from shoal.entropy import SeededEntropy, SystemEntropy, require_system
from shoal.errors import LocalProtocolError


def in_a_child(source: SystemEntropy | SeededEntropy, n: int) -> bytes:
    """Return the draws of a source in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            os.write(write, source.bytes(n) + source.word().to_bytes(8, "little"))
        finally:
            os._exit(0)
    os.close(write)
    drawn = b"".join(iter(lambda: os.read(read, 1 << 12), b""))
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    return drawn


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
class TestFork:
    """Two processes never share a draw."""

    def test_forked_child_has_independent_stream(self) -> None:
        source = SystemEntropy()
        source.word()
        first, second = in_a_child(source, 32), in_a_child(source, 32)
        here = source.bytes(32) + source.word().to_bytes(8, "little")
        assert len(first) == len(second) == 40
        assert len({first[:32], second[:32], here[:32]}) == 3
        assert len({first[32:], second[32:], here[32:]}) == 3

    def test_lock_held_at_fork_does_not_block_child(self) -> None:
        source = SystemEntropy()
        with source._lock:
            assert len(in_a_child(source, 8)) == 16

    def test_deleted_source_is_not_restarted(self) -> None:
        before = len(module._LIVE)
        source = SystemEntropy()
        assert len(module._LIVE) == before + 1
        del source
        assert len(module._LIVE) <= before
        assert len(in_a_child(SystemEntropy(), 8)) == 16


@pytest.mark.parametrize("source", [SystemEntropy(), SeededEntropy(1)])
def test_source_cannot_be_copied_or_pickled(source: SystemEntropy) -> None:
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="same draws again"):
            attempt(source)


def test_threads_never_share_a_draw() -> None:
    source = SystemEntropy()
    start = threading.Barrier(8)

    def draw(_: int) -> list[int]:
        start.wait()
        found = [source.word() for _ in range(3000)]
        for _ in range(50):
            found += source.words(20, np.uint64).tolist()
        return found

    with ThreadPoolExecutor(8) as pool:
        words = [word for part in pool.map(draw, range(8)) for word in part]
    assert len(words) == 8 * 4000
    assert Counter(words).most_common(1)[0][1] == 1


def test_key_is_replaced_after_one_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    fresh = os.urandom

    def urandom(n: int) -> bytes:
        keys.append(fresh(n))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", urandom)
    source = SystemEntropy()
    first = source.bytes(1 << 16)
    for _ in range(15):
        source.bytes(1 << 16)
    assert len(keys) == 1
    second = source.bytes(1 << 16)
    assert len(keys) == 2
    assert keys[0] != keys[1]
    for key, drawn in zip(keys, (first, second), strict=True):
        assert drawn == Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(
            bytes(1 << 16)
        )


def test_new_key_discards_buffered_words() -> None:
    source = SystemEntropy()
    source.word()
    assert source._words
    for _ in range(17):
        source.bytes(1 << 16)
    assert source._words == []


@pytest.mark.parametrize("n", [0, 1, 1 << 16, (1 << 16) + 1, 5 << 16])
def test_bytes_returns_n_bytes(n: int) -> None:
    assert len(SystemEntropy().bytes(n)) == n
    seeded = SeededEntropy(0)
    whole = seeded.bytes(n)
    again = SeededEntropy(0)
    assert whole == b"".join(again.bytes(1 << 12) for _ in range(n >> 12)) + again.bytes(
        n % (1 << 12)
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_words_have_requested_type(dtype: type[np.uint64]) -> None:
    words = SystemEntropy().words(1000, dtype)
    assert words.dtype == dtype
    assert words.size == 1000
    assert int(words.max()) >> (8 * words.itemsize - 1) == 1


class TestSeeded:
    """Reproducible, and for simulation only."""

    def test_same_seed_gives_same_stream(self) -> None:
        one, two = SeededEntropy(5), SeededEntropy(5)
        assert one.bytes(100) == two.bytes(100)
        assert [one.word() for _ in range(2000)] == [two.word() for _ in range(2000)]
        assert one.below_many(10, 50).tolist() == two.below_many(10, 50).tolist()

    def test_different_seeds_give_different_streams(self) -> None:
        assert len({SeededEntropy(seed).bytes(16) for seed in (5, 6, "5", "x")}) == 4

    def test_seeded_stream_is_fixed(self) -> None:
        assert SeededEntropy(7).bytes(8).hex() == "1c9587189fefb00b"

    def test_spawned_stream_depends_on_path_only(self) -> None:
        parent = SeededEntropy(1)
        before = parent.spawn("peer", 3).bytes(16)
        parent.bytes(1000)
        assert parent.spawn("peer", 3).bytes(16) == before
        assert parent.spawn("peer", 4).bytes(16) != before
        assert parent.spawn("peer", "3").bytes(16) != before


class Weaker(SystemEntropy):
    """A subclass, which could change the draws."""


class TestRequireSystem:
    """Only the system source is accepted for a real release."""

    def test_accepts_system_entropy(self) -> None:
        source = SystemEntropy()
        assert require_system(source) is source

    @pytest.mark.parametrize("source", [SeededEntropy(1), Weaker()])
    def test_rejects_any_other_source(self, source: SystemEntropy) -> None:
        with pytest.raises(LocalProtocolError) as caught:
            require_system(source)
        assert caught.value.code == "ENTROPY-001"
        assert type(source).__name__ in str(caught.value)


class TestBelow:
    """Exact uniform integers: all words are counted."""

    class Words(SeededEntropy):
        """Entropy with given words."""

        def __init__(self, *words: int) -> None:
            super().__init__(0)
            self._script = list(words)

        def word(self) -> int:
            return self._script.pop(0)

        def words(self, n: int, dtype: type[np.uint32]) -> np.ndarray:  # type: ignore[override]
            return np.array([self._script.pop(0) for _ in range(n)], dtype)

    @pytest.mark.parametrize(
        "bound", [1, 2, 3, 1000, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**100, 10**60]
    )
    def test_below_is_in_range(self, bound: int) -> None:
        source = SystemEntropy()
        drawn = [source.below(bound) for _ in range(200)]
        assert all(0 <= value < bound for value in drawn)
        if bound > 2**60:
            assert len(set(drawn)) == 200
            assert max(drawn) > bound // 2

    def test_below_redraws_biased_words(self) -> None:
        # 3 * w mod 2^64 < 2^64 mod 3 = 1 only for w = 0.
        assert self.Words(0, 1).below(3) == 0
        assert self.Words(0, 0, 2**64 - 1).below(3) == 2

    def test_below_many_redraws_biased_words(self) -> None:
        assert self.Words(0, 2**32 - 1, 1 << 31).below_many(3, 2).tolist() == [1, 2]

    @pytest.mark.parametrize("bound", [3, 5, 6, 255])
    def test_below_outcomes_have_equal_numbers_of_words(self, bound: int) -> None:
        # The same rule with eight bits, where all words can be tried; at 32 and 64 bits only the
        # width differs.
        kept = [word * bound >> 8 for word in range(256) if (word * bound & 255) >= 256 % bound]
        assert set(Counter(kept).values()) == {256 // bound}

    def test_below_outcome_boundaries_at_full_width(self) -> None:
        bound = 3 << 62
        for value in (0, 1, bound // 2, bound - 1):
            words = [
                w
                for w in range((value << 64) // bound - 1, ((value + 1) << 64) // bound + 2)
                if 0 <= w < 2**64
            ]
            fair = [
                w
                for w in words
                if (w * bound) >> 64 == value and (w * bound) % 2**64 >= 2**64 % bound
            ]
            assert len(fair) == 1
            assert self.Words(*fair).below(bound) == value

    @pytest.mark.parametrize("bound", [1, 2, 7, 1 << 31, 1 << 32])
    def test_below_many_is_in_range(self, bound: int) -> None:
        drawn = SystemEntropy().below_many(bound, 1000)
        assert drawn.dtype == np.int64
        assert drawn.min() >= 0
        assert drawn.max() < bound
        assert drawn.max() >= bound // 2

    @pytest.mark.parametrize("bound", [0, -1])
    def test_below_rejects_empty_range(self, bound: int) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            SystemEntropy().below(bound)
        with pytest.raises(ValueError, match="between 1"):
            SystemEntropy().below_many(bound, 2)

    def test_below_many_rejects_bounds_above_32_bits(self) -> None:
        with pytest.raises(ValueError, match=r"2\*\*32"):
            SystemEntropy().below_many((1 << 32) + 1, 2)
