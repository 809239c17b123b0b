"""The table of the protocols.

`shoal.study.validation` reads it to check a study file, and `shoal.study.plan` to price a study.
Other layers reach a protocol through `shoal.study.handle.StudyHandle`, or here if they have a
`Study` alone. The table is apart from the interface (`shoal.study.protocol`) and the handle
because the implementations import the first, and the second imports manifests, which are validated.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.study.anonml import AnonMLProtocol
from shoal.study.ddml import DDMLProtocol
from shoal.study.pfds import PFDSProtocol
from shoal.study.protocol import StudyDesign, StudyProtocol
from shoal.study.sdq import SDQProtocol
from shoal.study.spec import Study

PROTOCOLS: Mapping[str, StudyProtocol] = {
    protocol.name: protocol
    for protocol in (AnonMLProtocol(), DDMLProtocol(), SDQProtocol(), PFDSProtocol())
}
"""Name in the study file -> the protocol."""


def get_protocol(study: Study) -> StudyProtocol:
    """Return the protocol of a study."""
    return PROTOCOLS[study.protocol]


def make_design(study: Study, digest: bytes) -> StudyDesign:
    """Return a study with its parameters and script; `digest` is that of its manifest."""
    return StudyDesign(PROTOCOLS[study.protocol], study, digest)
