"""Pages for people: what a coordinator shows in a browser, and a participant's own ledger. From plain data, without I/O."""
