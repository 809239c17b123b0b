-- The ledger file, version 1. Statements never change after release; a later version is another file.
-- SQLite stores the text of each statement, and the ledger compares it: keep comments outside of the statements.

PRAGMA application_id = 1397247820; -- "SHOL"
PRAGMA user_version = 1;

-- Append-only. The ledger's state is computed from these rows alone.
CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    prev BLOB NOT NULL,
    hash BLOB NOT NULL,
    body BLOB NOT NULL
);

-- Copy of the last row of the log: it shows whether a damaged file has lost its last rows.
CREATE TABLE head (
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL
);

-- Bytes of each drawn release; the log has their SHA-256.
CREATE TABLE outbox (
    study TEXT NOT NULL,
    question TEXT NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (study, question)
);
