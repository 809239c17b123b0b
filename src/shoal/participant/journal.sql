-- The journal, version 2 of the ledger's file. Statements never change after release; a later version is another file.
-- IF NOT EXISTS: two processes may upgrade the file at the same time. SQLite does not store these words.
-- SQLite stores the text of each statement, and the ledger compares it: keep comments outside of the statements.

PRAGMA user_version = 2;

-- The secret from which all keys of this participant are derived.
CREATE TABLE IF NOT EXISTS identity (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    seed BLOB NOT NULL
);

-- Each coordinator's key at the first contact.
CREATE TABLE IF NOT EXISTS coordinators (
    url TEXT PRIMARY KEY,
    key BLOB NOT NULL
);

-- Studies that the participant agreed to: status, and how a study had ended when it was left.
CREATE TABLE IF NOT EXISTS studies (
    study TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    recipient TEXT NOT NULL,
    key BLOB NOT NULL,
    manifest BLOB NOT NULL,
    title TEXT NOT NULL,
    source TEXT NOT NULL,
    role TEXT NOT NULL,
    ticket BLOB NOT NULL,
    invitation TEXT,
    name TEXT,
    position INTEGER,
    standing TEXT NOT NULL,
    reason TEXT,
    ended TEXT
);

-- Each consent: study, coordinator, and time in milliseconds since 1970.
CREATE TABLE IF NOT EXISTS consents (
    study TEXT NOT NULL,
    url TEXT NOT NULL,
    at INTEGER NOT NULL
);

-- A peer's state, and the number of the last applied message.
CREATE TABLE IF NOT EXISTS machines (
    study TEXT PRIMARY KEY,
    state BLOB NOT NULL,
    cursor INTEGER NOT NULL
);

-- Messages to be delivered, in order. The bytes of an answer are in the ledger's outbox, under its question.
CREATE TABLE IF NOT EXISTS letters (
    number INTEGER PRIMARY KEY,
    study TEXT NOT NULL,
    payload BLOB,
    question TEXT,
    CHECK ((payload IS NULL) <> (question IS NULL))
);

-- Milliseconds since 1970.
CREATE TABLE IF NOT EXISTS alarms (
    study TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (study, at)
);

-- Joint computations in progress. Their state is in memory only: a row that is found after a restart means that one failed.
CREATE TABLE IF NOT EXISTS tasks (
    study TEXT NOT NULL,
    task TEXT NOT NULL,
    PRIMARY KEY (study, task)
);
