"""The published result of a study, as JSON.

The scheduler and the model server of DDML call `encode_result` when a study ends; everyone may
fetch the bytes. They contain plain data only: nothing in them can run, and ``from_plain`` of each
protocol's model reads the model again.
"""

from __future__ import annotations

import json

from shoal.study.handle import StudyHandle


def encode_result(handle: StudyHandle, result: object) -> bytes:
    """Return the JSON of a finished study: its model, its counts and the label's statement.

    Raises
    ------
    LocalProtocolError
        ``PROTO-001``: the result is of another protocol than the study.
    """
    study = handle.study
    document = {
        "study": handle.digest.hex(),
        "title": study.title,
        "protocol": study.protocol,
        "variant": study.variant,
        **handle.protocol.make_result(handle, result),
        "statement": handle.label().to_dict(),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
