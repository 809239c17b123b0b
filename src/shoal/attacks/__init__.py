"""Participants that cheat: tools for tests and for doubters."""
