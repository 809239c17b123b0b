-- The ledger file, version 1: never edited after release; a later version is a file of its own.

PRAGMA application_id = 1397247820; -- "SHOL"
PRAGMA user_version = 1;

-- Append-only. What the ledger says is the fold of these rows; nothing else is kept of it.
CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    prev BLOB NOT NULL,
    hash BLOB NOT NULL,
    body BLOB NOT NULL
);

-- The last row of the log once more, so that a damaged file which has lost its end is found.
CREATE TABLE head (
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL
);

-- The bytes of each release that was drawn; the log has their SHA-256.
CREATE TABLE outbox (
    study TEXT NOT NULL,
    question TEXT NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (study, question)
);
