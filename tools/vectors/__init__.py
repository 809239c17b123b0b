"""Test vectors of the wire specification, ``docs/reference/wire.md``.

``python -m tools.vectors`` writes them; the tests replay them as another implementation would.

The inputs that must be decoded or rejected are written here by hand. Only derived bytes,
probabilities and digests are computed, so a change of code that changes a vector shows in the diff.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.vectors.anonml import make_anonml
from tools.vectors.crypto import make_crypto
from tools.vectors.ddml import make_ddml
from tools.vectors.encoding import make_cbor, make_messages
from tools.vectors.manifests import make_manifests
from tools.vectors.mechanisms import make_mechanisms
from tools.vectors.pfds import make_pfds
from tools.vectors.sdq import make_sdq


@dataclass(frozen=True)
class VectorFile:
    """One file of vectors: the sentence at its head, and the function that makes its content."""

    about: str
    make: Callable[[], dict[str, Any]]


FILES = {
    "cbor.json": VectorFile(
        "The profile: plain data that is read, and bytes that are refused.", make_cbor
    ),
    "messages.json": VectorFile(
        "The envelope: messages of an example protocol that are read, and what is refused "
        "in their place.",
        make_messages,
    ),
    "mechanisms.json": VectorFile(
        "Randomised answers: chances as integers over 2^64, the epsilon that is "
        "accounted, and wire forms of reports.",
        make_mechanisms,
    ),
    "manifests.json": VectorFile(
        "The starter studies without keys, roster or relay: the manifest's bytes and its digest.",
        make_manifests,
    ),
    "anonml.json": VectorFile(
        "AnonML: what follows from a ticket, which features each partition is asked "
        "about, and its messages.",
        make_anonml,
    ),
    "ddml.json": VectorFile("DDML: its messages.", make_ddml),
    "crypto.json": VectorFile(
        "Secure sums: what is bound to a round, shares of secrets, keys that are agreed "
        "on, boxes, and masked numbers.",
        make_crypto,
    ),
    "sdq.json": VectorFile(
        "SDQ: its messages with those of secure sums and joint computations, the digest "
        "of what is asked, and what is signed.",
        make_sdq,
    ),
    "pfds.json": VectorFile(
        "PFDS: its messages, the digest of what is asked, and who answers which tables.", make_pfds
    ),
}


def render_file(name: str) -> str:
    """Return the content that a file of vectors must have."""
    file = FILES[name]
    head = {
        "about": file.about,
        "specification": "docs/reference/wire.md",
        "written_by": "python -m tools.vectors",
    }
    return json.dumps({**head, **file.make()}, indent=1) + "\n"
