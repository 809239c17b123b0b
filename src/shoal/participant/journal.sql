-- The journal, version 2 of the ledger's file: never edited after release; a later version is a file of its own.
-- IF NOT EXISTS is for two processes that meet at an old file; SQLite does not keep these words.

PRAGMA user_version = 2;

-- The secret of which all keys of this participant are made.
CREATE TABLE IF NOT EXISTS identity (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    seed BLOB NOT NULL
);

-- The key under which each coordinator was met first.
CREATE TABLE IF NOT EXISTS coordinators (
    url TEXT PRIMARY KEY,
    key BLOB NOT NULL
);

-- What was agreed to, how it stands, and how it had ended when it was left.
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

-- When which study was agreed to, and where: milliseconds since 1970. A line for each time.
CREATE TABLE IF NOT EXISTS consents (
    study TEXT NOT NULL,
    url TEXT NOT NULL,
    at INTEGER NOT NULL
);

-- A peer's state, and the last letter that went into it.
CREATE TABLE IF NOT EXISTS machines (
    study TEXT PRIMARY KEY,
    state BLOB NOT NULL,
    cursor INTEGER NOT NULL
);

-- What waits to be delivered, in order. An answer's bytes are in the outbox of the ledger, under its question.
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

-- Joint computations under way. They live in memory: whoever finds one here after a restart knows that it broke off.
CREATE TABLE IF NOT EXISTS tasks (
    study TEXT NOT NULL,
    task TEXT NOT NULL,
    PRIMARY KEY (study, task)
);
