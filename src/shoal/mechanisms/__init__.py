"""Randomised mechanisms. All noise in shoal is drawn here, exactly.

Protocols call the mechanisms with values that must not leave the peer. Each draw is exact: integers
in, integers out, from a cryptographic source.
"""
