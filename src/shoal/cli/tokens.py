"""How ``shoal serve`` admits anonymous packets: by tokens of its own issuer, or by tickets."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import UsageError
from shoal.study.anonymity import is_anonymous
from shoal.study.manifest import Manifest
from shoal.transport.forms import Issuing


@dataclass(frozen=True)
class Tokens:
    """How anonymous packets are admitted.

    Parameters
    ----------
    epoch, relay
        Whose credentials count, and through whom packets come; None for those of each study alone, and for packets that come directly.
    are_used
        Whether they are admitted by tokens, and not by tickets.
    """

    epoch: str | None
    relay: str | None
    are_used: bool = True

    def are_for(self, manifest: Manifest) -> bool:
        """Whether a study needs tokens."""
        return self.are_used and is_anonymous(manifest.study)

    def manifest(self, draft: Manifest, issuing: Issuing | None) -> Manifest:
        """A study with a coordinator's keys, where it needs tokens."""
        if issuing is None or not self.are_for(draft):
            return draft
        issuer_key, gateway_key = bytes.fromhex(issuing.issuer_key), bytes.fromhex(issuing.gateway_key)
        return replace(draft, issuer_key=issuer_key, gateway_key=gateway_key, relay=self.relay, epoch=self.epoch)


def tokens_of(manifests: Sequence[Manifest], epoch: str | None, relay: str | None, *, tickets: bool) -> Tokens:
    """How the studies that are named admit packets, by the options.

    Raises
    ------
    UsageError
        ``USAGE-001``: an option has no study to which it belongs. ``USAGE-002``: tokens need something that is not installed.
    """
    tokens = Tokens(epoch, relay, not tickets)
    are_needed = any(map(tokens.are_for, manifests))
    for option, value in (("--epoch", epoch), ("--relay", relay)):
        if value is not None and not are_needed:
            what = "with --tickets" if tickets else "where no study is named whose packets are anonymous"
            raise UsageError("USAGE-001", f"{option} means nothing {what}.", fix=f"Leave {option} out.")
    if are_needed and any(importlib.util.find_spec(name) is None for name in ("pyblst", "py_arkworks_bls12381")):
        raise UsageError(
            "USAGE-002",
            "Anonymous packets are admitted by tokens, which need libraries that are not installed.",
            fix="pip install 'shoal[anonymous]'",
        )
    return tokens
