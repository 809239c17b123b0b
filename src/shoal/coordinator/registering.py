"""Who registers gets a credential: one for each person and scope, at a place that the issuer draws."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import Executor

from shoal.coordinator.keys import Keys
from shoal.coordinator.store.base import Store
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.study.anonymity import Slots, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.forms import Enrolled


class Registrar:
    """Registers participants, in one worker.

    Parameters
    ----------
    store, keys
        Where registrations are kept, and what they are signed with.
    entropy
        What places and signatures are drawn from.
    executor, issuing
        Where the store's calls run, and where commitments are checked and signed.
    """

    def __init__(self, store: Store, keys: Keys, entropy: Entropy, executor: Executor, issuing: Executor) -> None:
        self._store, self._keys, self._entropy = store, keys, entropy
        self._executor, self._issuing = executor, issuing

    async def register(
        self, manifest: Manifest, slots: Slots, key: bytes, commitment: bytes, invitation: bytes | None, nonce: bytes, expires: int
    ) -> Enrolled:
        """Enrol a key, and issue to it what its commitment asks for: once, and the same from then on.

        Raises
        ------
        RemoteProtocolError
            ``TOKEN-002``: it is no commitment. And what `Store.register` raises.
        """
        run, study, digest = asyncio.get_running_loop().run_in_executor, manifest.digest.hex(), hashlib.sha256(commitment).digest()
        issued = await run(self._executor, self._store.registered, study, key, digest)
        if issued is None:
            issued = await run(self._issuing, self._issue, scope_of(manifest), slots.n_places, commitment)
        # Whoever was faster with the same commitment has had another signature on it, and that one is told.
        given = (study, key, digest, issued, invitation, nonce, expires)
        name, kept = await run(self._executor, self._store.register, *given)
        return Enrolled(name=name, issued=kept.hex())

    def _issue(self, scope: bytes, n_places: int, commitment: bytes) -> bytes:
        return self._keys.issuer.issue(scope, commitment, self._entropy.below(n_places), self._entropy)


def commitment_of(form: str | None) -> bytes:
    """The commitment in an enrolment; ``MSG-005`` where there is none."""
    if form is None:
        raise RemoteProtocolError("MSG-005", "Who enrols in this study gives a commitment, and this one did not.")
    return bytes.fromhex(form)
