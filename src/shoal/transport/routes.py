"""The routes of a coordinator, as both sides spell them. A study is named by the digest of its manifest, 64 hexadecimal digits."""

from __future__ import annotations

ROOT = "/v1"
STUDIES = f"{ROOT}/studies"
OPENAPI = f"{ROOT}/openapi.json"

ISSUING = f"{ROOT}/issuing"
GATEWAY = f"{ROOT}/gateway"
KEYS = f"{ROOT}/ohttp-keys"
"""Of a coordinator: its keys for manifests, the gateway to which sealed requests go, and the gateway's key as RFC 9458 has it."""

RELAYING = f"{ROOT}/relaying"
REQUESTS = f"{ROOT}/requests"
PACKETS = f"{ROOT}/packets"
"""Of a relay: what it serves, sealed requests that are answered at once, and (followed by a study) sealed packets for its spool."""

CBOR = "application/cbor"
JSON = "application/json"
PROBLEM = "application/problem+json"
RAW = "application/octet-stream"
SEALED, OPENED = "message/ohttp-req", "message/ohttp-res"


def study_route(study: str, what: str = "") -> str:
    """The route of a study, or of one of its parts.

    Parameters
    ----------
    study
        The digest in hexadecimal.
    what
        ``manifest``, ``label``, ``board``, ``progress``, ``model``, ``members``, ``received`` (read); ``enrolments``, ``mailbox``,
        ``messages``, ``leave`` (signed); ``batches`` (the relay's); ``submissions``, ``draw``,
        ``update`` (anonymous, but for an update under DDML's admission ``signed``); ``close`` (the analyst's).

    Examples
    --------
    >>> study_route("7f" * 32, "board")[-12:]
    '7f7f7f/board'
    """
    return f"{STUDIES}/{study}/{what}" if what else f"{STUDIES}/{study}"
