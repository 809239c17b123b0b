"""Vectors of the manifests of the starter studies."""

from __future__ import annotations

from typing import Any

from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.starters import STARTER_PROTOCOLS, read_starter


def make_manifests() -> dict[str, Any]:
    """Return the manifest bytes and digests of the starter studies."""
    found = {}
    for protocol in STARTER_PROTOCOLS:
        manifest = Manifest(parse_study_text(read_starter(protocol)))
        found[protocol] = {
            "bytes": manifest.to_bytes().hex(),
            "digest": manifest.digest.hex(),
            "short": manifest.short_digest,
        }
    return found
