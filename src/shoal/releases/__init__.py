"""Releases of PFDS: synthetic rows with a signed privacy statement; how to verify them."""
