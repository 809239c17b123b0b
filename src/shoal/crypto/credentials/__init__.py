"""Anonymous credentials: BBS signatures with per-context pseudonyms."""
