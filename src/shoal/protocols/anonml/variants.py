"""`make_script`: choose the variant of a study.

Participants, the coordinator and simulations call it. All parties of a study must build the same
script from the manifest.
"""

from __future__ import annotations

from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.params import AnonMLParams, AnonMLPlusParams
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.script import AnonMLScript


def make_script(params: AnonMLParams, seed: bytes) -> AnonMLScript:
    """Return the script of a study; ``seed`` is the digest of its manifest."""
    return (
        AnonMLPlusScript(params)
        if isinstance(params, AnonMLPlusParams)
        else AnonMLPaperScript(params, seed)
    )
