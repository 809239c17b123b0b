"""Vectors of the manifests of the starter studies, and of one with keys and a schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.schedule import Schedule
from shoal.study.starters import STARTER_PROTOCOLS, read_starter


def make_manifests() -> dict[str, Any]:
    """Return the manifest bytes and digests of the starter studies."""
    manifests = {
        protocol: Manifest(parse_study_text(read_starter(protocol)))
        for protocol in STARTER_PROTOCOLS
    }
    manifests["anonml, scheduled"] = replace(
        manifests["anonml"],
        issuer_key=b"\x80" + bytes(95),
        gateway_key=b"\x09" + bytes(31),
        schedule=Schedule(1_893_456_000_000, 86_400_000),
    )
    return {
        name: {
            "bytes": manifest.to_bytes().hex(),
            "digest": manifest.digest.hex(),
            "short": manifest.short_digest,
        }
        for name, manifest in manifests.items()
    }
