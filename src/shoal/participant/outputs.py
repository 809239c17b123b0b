"""What a participant keeps of a study: the release of a PFDS holder, signed, or the model that the coordinator has published.

A home model contains its holder's rows without noise. It is never written.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from shoal.crypto.roster import Identity
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, StoreError, UsageError
from shoal.names import shown
from shoal.protocols.machines import PeerState
from shoal.protocols.pfds.dataset import draw
from shoal.protocols.pfds.publishing import model_of
from shoal.protocols.pfds.reader import Hearing
from shoal.protocols.pfds.sharing_data import dataset_of
from shoal.protocols.pfds.sharing_peer import SharingTrees
from shoal.releases.artefact import write
from shoal.releases.content import Release
from shoal.study.manifest import Manifest
from shoal.study.pfds import params_of

RELEASE, MODEL = "release", "model.json"


def release_of(manifest: Manifest, state: PeerState, entropy: Entropy) -> Release | None:
    """What a holder of a PFDS study publishes, by the state in which its peer has finished; None where nothing of it was shared.

    Parameters
    ----------
    manifest
        The study.
    state
        The peer's: it holds the pooled model as it was published, or the holder's own private data.
    entropy
        Draws the rows of variant plus from the model, as many as the study declares.

    Privacy
    -------
    Free: everything in it follows from what was published.
    """
    params = params_of(manifest.study)
    if isinstance(state, SharingTrees):
        return None if state.data is None else Release(manifest, dataset_of(params, state.data), is_simulated=False)
    if not isinstance(state, Hearing) or state.published is None:
        return None
    model = model_of(params, state.published)
    return Release(manifest, draw(model, params.size, entropy), is_simulated=False, model=model)


def write_release(directory: Path, release: Release, signer: str, identity: Identity) -> Path:
    """Write and sign a release into a directory, which is made where there is none; the path of it."""
    path = prepared(directory) / RELEASE
    write(path, release, signer, identity, inferred=False)
    return path


def write_model(directory: Path, content: bytes) -> Path:
    """Write a model as the coordinator published it, if it is a JSON object; the path of it. Another file is never overwritten."""
    try:
        if not isinstance(json.loads(content), dict):
            raise ValueError
    except (ValueError, RecursionError):
        what = f"{len(content)} bytes from the coordinator are not a model."
        raise RemoteProtocolError("NET-002", what, fix="Ask its analyst for the model by another way.") from None
    path = prepared(directory) / MODEL
    part = None
    try:
        handle, part = tempfile.mkstemp(prefix=f".{MODEL}.", dir=directory)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)
    except FileExistsError:
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            what = f"{shown(str(path))} is already there, and is something else."
            raise UsageError("NEW-001", what, fix="Choose a new directory: --out DIR") from None
    except OSError as error:
        raise _unwritable(directory, error) from None
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)
    return path


def prepared(directory: Path) -> Path:
    """A directory to write into, made where there is none; an error before anything is spent is better than one at the end."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13))
    except (OSError, ValueError) as error:
        raise _unwritable(directory, error) from None
    return directory


def _unwritable(directory: Path, error: OSError | ValueError) -> StoreError:
    reason = (isinstance(error, OSError) and error.strerror) or "no directory has such a name"
    return StoreError("NEW-001", f"{shown(str(directory))} cannot be written: {reason}.", fix="Choose another directory: --out DIR")
