"""HTML pages of the dashboard and the ledger, made from plain data without I/O."""
