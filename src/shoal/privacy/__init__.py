"""Privacy events, accounting and the ledger core."""
