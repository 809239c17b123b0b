"""Random sources: the operating system's CSPRNG, and a seeded stream for simulations.

All random bits of shoal come from here: AES-256 in counter mode, keyed by the operating system or
by a seed. Both sources draw bytes, words and exact uniform integers. A change must keep:

- `SystemEntropy` is for everything that is released. `SeededEntropy` is for simulations; it is a
  different type, and `require_system` rejects it.
- `SystemEntropy` takes a new key from the operating system after each mebibyte, so that later
  access to its memory does not reveal earlier draws, and in each forked child, so that two
  processes never share a draw.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from typing import NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from shoal.errors import LocalProtocolError

Word = TypeVar("Word", np.uint8, np.uint16, np.uint32, np.uint64)

_KEY_BYTES = 32
_BUFFER_BYTES = 1 << 13
_KEY_LIFE_BYTES = 1 << 20
_ZEROS = bytes(1 << 16)


class Entropy(Protocol):
    """A source of independent uniform bits."""

    def bytes(self, n: int) -> bytes:
        """Draw ``n`` random bytes."""
        ...

    def words(self, n: int, dtype: type[Word]) -> npt.NDArray[Word]:
        """Draw ``n`` uniform words of an unsigned type, read only."""
        ...

    def word(self) -> int:
        """Draw one uniform 64-bit integer; the fast path of a single report."""
        ...

    def below(self, bound: int) -> int:
        """Draw one uniform integer in ``[0, bound)``, exactly."""
        ...

    def below_many(self, bound: int, n: int) -> npt.NDArray[np.int64]:
        """Draw ``n`` uniform integers in ``[0, bound)``, exactly."""
        ...


class _CounterMode:
    """AES-256-CTR as a stream of bytes, and the draws that both sources make from it."""

    def __init__(self, key: bytes) -> None:
        self._lock = threading.Lock()
        self._rekey(key)

    def _rekey(self, key: bytes) -> None:
        self._stream: CipherContext = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._words: list[int] = []

    def _draw(self, n: int) -> bytes:
        """Return ``n`` bytes of the stream; the caller holds the lock."""
        if n <= len(_ZEROS):
            return self._stream.update(memoryview(_ZEROS)[:n])
        whole, rest = divmod(n, len(_ZEROS))
        return b"".join([self._draw(len(_ZEROS)) for _ in range(whole)] + [self._draw(rest)])

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: a copy would give the same draws "
            "again"
        )

    def bytes(self, n: int) -> bytes:
        with self._lock:
            return self._draw(n)

    def words(self, n: int, dtype: type[Word]) -> npt.NDArray[Word]:
        return np.frombuffer(self.bytes(n * np.dtype(dtype).itemsize), dtype)

    def word(self) -> int:
        try:
            return self._words.pop()  # atomic: two threads never take the same word
        except IndexError:
            with self._lock:
                words = np.frombuffer(self._draw(_BUFFER_BYTES), "<u8").tolist()
                word = words.pop()
                self._words = words
                return int(word)

    def below(self, bound: int) -> int:
        """Draw one uniform integer in ``[0, bound)`` by multiply and shift (Lemire 2019).

        It uses a multiple of 64 bits that is large enough for the bound. Draws that would cause a
        bias are rejected.
        """
        if bound < 1:
            raise ValueError(f"below({bound}): the bound must be at least 1")
        bits = 64
        while bound >> bits:
            bits += 64
        while True:
            word = self.word()
            for _ in range(bits // 64 - 1):
                word = word << 64 | self.word()
            product = word * bound
            low = product & ((1 << bits) - 1)
            # Uniform from 2**bits % bound on, which is below the bound: the division is rarely
            # needed.
            if low >= bound or low >= (1 << bits) % bound:
                return product >> bits

    def below_many(self, bound: int, n: int) -> npt.NDArray[np.int64]:
        if not 1 <= bound <= 1 << 32:
            raise ValueError(f"below_many({bound}): the bound must be between 1 and 2**32")
        product = self.words(n, np.uint32).astype(np.uint64)
        product *= np.uint64(bound)
        drawn = (product >> np.uint64(32)).view(np.int64)
        again = np.flatnonzero(product.astype(np.uint32) < (1 << 32) % bound)
        if again.size:
            drawn[again] = self.below_many(bound, again.size)
        return drawn


class SystemEntropy(_CounterMode):
    """The cryptographic source of every real release, keyed by the operating system.

    Examples
    --------
    >>> entropy = SystemEntropy()
    >>> len(entropy.bytes(16)), 0 <= entropy.below(6) < 6
    (16, True)
    """

    def __init__(self) -> None:
        self._drawn = 0
        super().__init__(os.urandom(_KEY_BYTES))
        _LIVE.add(self)

    def _draw(self, n: int) -> bytes:
        if self._drawn >= _KEY_LIFE_BYTES:
            self._rekey(os.urandom(_KEY_BYTES))
            self._drawn = 0
        self._drawn += n
        return super()._draw(n)

    def _restart(self) -> None:
        """Take a new key and a new lock in a forked child: the parent uses the old ones."""
        self._lock = threading.Lock()
        self._drawn = 0
        self._rekey(os.urandom(_KEY_BYTES))


_LIVE: weakref.WeakSet[SystemEntropy] = weakref.WeakSet()


def _restart_in_child() -> None:
    for entropy in _LIVE:
        entropy._restart()


os.register_at_fork(after_in_child=_restart_in_child)


class SeededEntropy(_CounterMode):
    """A reproducible stream for simulations and tests; `require_system` rejects it.

    Examples
    --------
    >>> SeededEntropy(7).below(100) == SeededEntropy(7).below(100)
    True
    >>> SeededEntropy(7).spawn("peer", 1).word() == SeededEntropy(7).spawn("peer", 2).word()
    False
    """

    def __init__(self, seed: int | str) -> None:
        self._key = hashlib.sha256(f"shoal seeded entropy {seed!r}".encode()).digest()
        super().__init__(self._key)

    def spawn(self, *path: int | str) -> SeededEntropy:
        """Return an independent stream identified by a path.

        It does not depend on how much of this stream was used.
        """
        return SeededEntropy(f"{self._key.hex()} {path!r}")


def require_system(entropy: Entropy) -> SystemEntropy:
    """Return the source if a real release may use it.

    Raise ``ENTROPY-001`` for any other type, subclasses included.
    """
    if type(entropy) is not SystemEntropy:
        raise LocalProtocolError(
            "ENTROPY-001",
            f"A real release would draw its noise from {type(entropy).__name__} instead of "
            "SystemEntropy.",
            why="Noise that can be predicted protects nothing.",
            fix="Use SystemEntropy() here, or run the study as a simulation: shoal simulate",
        )
    return entropy
