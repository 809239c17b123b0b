-- Credentials and packets, version 3 of the ledger's file. Statements never change after release; a later version is another file.
-- SQLite stores the text of each statement, and the ledger compares it: keep comments outside of the statements.

PRAGMA user_version = 3;

-- For each issuer and scope: the secret of the registration, stored before its commitment is sent; and the credential.
CREATE TABLE IF NOT EXISTS credentials (
    issuer BLOB NOT NULL,
    scope BLOB NOT NULL,
    registration BLOB NOT NULL,
    credential BLOB,
    PRIMARY KEY (issuer, scope)
);

-- One packet, or token of an update, for each question: its bytes, the network path, the sealed form for this path,
-- the time at which it is due in milliseconds since 1970, and its status.
CREATE TABLE IF NOT EXISTS packets (
    study TEXT NOT NULL,
    question TEXT NOT NULL,
    packet BLOB NOT NULL,
    via TEXT,
    sealed BLOB,
    due INTEGER NOT NULL,
    standing TEXT NOT NULL,
    PRIMARY KEY (study, question)
);
