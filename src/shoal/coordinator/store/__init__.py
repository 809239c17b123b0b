"""Where a coordinator keeps its studies: one contract, in SQLite and in PostgreSQL."""
