-- The coordinator's store, version 1. Statements never change after release; a later version is another file.
-- Tables whose insertion order must stay hidden have no rowid. Tables that must not be linked to each other share no column.

PRAGMA application_id = 1397247811; -- "SHOC"

CREATE TABLE secret (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    analyst_digest BLOB NOT NULL,
    signing_seed BLOB NOT NULL
);

-- Columns of a study that never change.
CREATE TABLE study (
    number INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    manifest BLOB NOT NULL,
    opened INTEGER NOT NULL,
    patience INTEGER NOT NULL,
    by_invitation INTEGER NOT NULL,
    seats TEXT, -- JSON
    queries BLOB NOT NULL
);

-- Columns of a study that change often, in a short row. A writer locks this row first.
CREATE TABLE standing (
    study INTEGER PRIMARY KEY REFERENCES study,
    status TEXT NOT NULL DEFAULT 'open',
    has_begun INTEGER NOT NULL DEFAULT 0,
    is_mixed INTEGER NOT NULL DEFAULT 1, -- whether tickets and enrolments were rewritten in sorted order
    holder TEXT,
    until INTEGER NOT NULL DEFAULT 0,
    term INTEGER NOT NULL DEFAULT 0,
    n_letters INTEGER NOT NULL DEFAULT 0,
    n_accepted INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE state (
    study INTEGER PRIMARY KEY REFERENCES study,
    state BLOB NOT NULL
);

CREATE TABLE ending (
    study INTEGER PRIMARY KEY REFERENCES study,
    result BLOB,
    reason TEXT
);

CREATE TABLE invitation (
    study INTEGER NOT NULL REFERENCES study,
    digest BLOB NOT NULL,
    PRIMARY KEY (study, digest)
) WITHOUT ROWID;

CREATE TABLE enrolment (
    study INTEGER NOT NULL REFERENCES study,
    key_digest BLOB NOT NULL,
    name TEXT NOT NULL,
    has_left INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (study, key_digest),
    UNIQUE (study, name)
) WITHOUT ROWID;

CREATE TABLE ticket (
    study INTEGER NOT NULL REFERENCES study,
    digest BLOB NOT NULL,
    PRIMARY KEY (study, digest)
) WITHOUT ROWID;

-- Largest number of answers in each phase, from all enrolled participants together.
CREATE TABLE expected (
    study INTEGER NOT NULL REFERENCES study,
    phase INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (study, phase)
) WITHOUT ROWID;

-- Names of submissions, and digests of their bytes.
CREATE TABLE submission (
    study INTEGER NOT NULL REFERENCES study,
    name BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (study, name)
) WITHOUT ROWID;

CREATE TABLE nonce (
    study INTEGER NOT NULL REFERENCES study,
    nonce BLOB NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (study, nonce)
) WITHOUT ROWID;

-- Accepted inputs that are not yet applied. A number is never used twice.
CREATE TABLE held (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    study INTEGER NOT NULL REFERENCES study,
    sender TEXT NOT NULL,
    payload BLOB NOT NULL,
    name BLOB
);
CREATE INDEX held_by_study ON held (study, number);

CREATE TABLE alarm (
    study INTEGER NOT NULL REFERENCES study,
    at INTEGER NOT NULL,
    PRIMARY KEY (study, at)
) WITHOUT ROWID;

CREATE TABLE letter (
    study INTEGER NOT NULL REFERENCES study,
    number INTEGER NOT NULL,
    recipient TEXT, -- NULL for everyone
    payload BLOB NOT NULL,
    PRIMARY KEY (study, number)
);

CREATE TABLE refusal (
    study INTEGER NOT NULL REFERENCES study,
    code TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (study, code)
) WITHOUT ROWID;

-- Model instances of DDML.
CREATE TABLE ddml (
    number INTEGER PRIMARY KEY,
    study TEXT NOT NULL UNIQUE,
    k INTEGER NOT NULL,
    p INTEGER NOT NULL,
    n_merged INTEGER NOT NULL DEFAULT 0,
    kept_from INTEGER NOT NULL DEFAULT 0 -- the first epoch with rows in ddml_update
);

-- Little-endian int32. The size of an instance is constant, so that it is overwritten in place.
CREATE TABLE ddml_instance (
    number INTEGER NOT NULL REFERENCES ddml,
    slot INTEGER NOT NULL,
    weights BLOB NOT NULL,
    PRIMARY KEY (number, slot)
);

-- Names of merged updates, as long as a repetition can be accepted.
CREATE TABLE ddml_update (
    number INTEGER NOT NULL REFERENCES ddml,
    epoch INTEGER NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (number, epoch, id)
) WITHOUT ROWID;

-- Little-endian float64, in units of the grid.
CREATE TABLE ddml_average (
    number INTEGER PRIMARY KEY REFERENCES ddml,
    n_folds INTEGER NOT NULL,
    weights BLOB NOT NULL
);

CREATE TABLE ddml_refusal (
    number INTEGER NOT NULL REFERENCES ddml,
    reason TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (number, reason)
) WITHOUT ROWID;
