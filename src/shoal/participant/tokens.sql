-- Credentials and packets, version 3 of the ledger's file: never edited after release; a later version is a file of its own.

PRAGMA user_version = 3;

-- For each issuer and scope: the secret that a registration was drawn with, kept before its commitment is sent; and what came of it.
CREATE TABLE IF NOT EXISTS credentials (
    issuer BLOB NOT NULL,
    scope BLOB NOT NULL,
    registration BLOB NOT NULL,
    credential BLOB,
    PRIMARY KEY (issuer, scope)
);

-- What was minted for each question, once: the packet, or the token of an update; as it was sealed, and for which way; when it is due, in
-- milliseconds since 1970; and how far it has come.
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
