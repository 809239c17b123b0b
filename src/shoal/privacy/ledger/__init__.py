"""The ledger core, without I/O."""
