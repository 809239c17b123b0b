"""An entropy that hands out chosen words, for the paths that a real source takes once in 2^64
draws.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.entropy import Word


class Scripted:
    """Entropy that returns words from a list.

    Narrower words are the same numbers. An exhausted list fails the test.
    """

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def bytes(self, n: int) -> bytes:
        return bytes(self.left.pop(0) for _ in range(n))

    def words(self, n: int, dtype: type[Word]) -> npt.NDArray[Word]:
        return np.array([self.left.pop(0) for _ in range(n)], dtype)

    def word(self) -> int:
        return self.left.pop(0)

    def below(self, bound: int) -> int:
        return self.left.pop(0) % bound

    def below_many(self, bound: int, n: int) -> npt.NDArray[np.int64]:
        return np.array([self.below(bound) for _ in range(n)], np.int64)
