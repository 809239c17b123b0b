"""Words of a text and their neighbours as numbers: hashed n-grams, the same on every machine."""

from __future__ import annotations

import re
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

MAX_NGRAM = 3
MAX_BUCKETS = 1 << 20
MAX_GRAMS = 256
"""Most different n-grams of one text that are used; those that come later are left out, so that a row has a bounded size."""

_WORD = re.compile(r"\w+")


def hashed_ngrams(text: str, longest: int, buckets: int) -> npt.NDArray[np.int64]:
    """The buckets of a text's n-grams, of one word up to ``longest`` words, each once and in rising order.

    Notes
    -----
    Ref: DDML §VI-B (uni-, bi- and tri-grams).

    Examples
    --------
    >>> hashed_ngrams("red fish", 2, 1000).size, hashed_ngrams("", 2, 1000).size
    (3, 0)
    """
    words = _WORD.findall(text.casefold())[:MAX_GRAMS]
    grams = [" ".join(words[start : start + n]) for n in range(1, longest + 1) for start in range(len(words) - n + 1)]
    unique = list(dict.fromkeys(grams))[:MAX_GRAMS]
    return np.unique(np.fromiter((_bucket(gram, buckets) for gram in unique), np.int64, len(unique)))


def _bucket(gram: str, buckets: int) -> int:
    return int.from_bytes(blake2b(gram.encode(), digest_size=8).digest(), "big") % buckets
