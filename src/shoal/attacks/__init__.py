"""Attacks, for tests and for sceptics."""
