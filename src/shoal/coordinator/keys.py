"""The keys of a coordinator that belong into manifests: of its issuer and of its gateway, both made of the one secret that it keeps."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.crypto.masks import derive, public_of
from shoal.transport.forms import Issuing

if TYPE_CHECKING:
    from shoal.crypto.credentials import Issuer

_ISSUER, _GATEWAY = b"shoal issuer 1", b"shoal gateway 1"


class Keys:
    """The secret keys of a coordinator. The issuer's is made when it is first asked for: it needs what not every coordinator has installed.

    Parameters
    ----------
    signing_seed
        What the store keeps.
    """

    def __init__(self, signing_seed: bytes) -> None:
        self._seed = signing_seed

    @cached_property
    def issuer(self) -> Issuer:
        """Signs registrations; ``USAGE-002`` where the extra ``anonymous`` is not installed."""
        from shoal.crypto.credentials import Issuer

        return Issuer.from_seed(derive(self._seed, _ISSUER))

    @cached_property
    def gateway(self) -> bytes:
        """The secret X25519 key to which requests and packets are sealed, 32 bytes."""
        return derive(self._seed, _GATEWAY)

    @cached_property
    def gateway_key(self) -> bytes:
        """The public key of the gateway, 32 bytes."""
        return public_of(self.gateway)

    @cached_property
    def issuing(self) -> Issuing:
        """Both public keys, as everyone may know them."""
        return Issuing(issuer_key=self.issuer.key.hex(), gateway_key=self.gateway_key.hex())
