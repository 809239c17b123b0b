-- The coordinator's store, version 1. Statements never change after release; a later version is another file.
-- The tables are those of SQLite. Tables that must not be linked to each other share no column.

CREATE TABLE secret (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    analyst_digest BYTEA NOT NULL,
    signing_seed BYTEA NOT NULL
);

-- Columns of a study that never change.
CREATE TABLE study (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    manifest BYTEA NOT NULL,
    opened BIGINT NOT NULL,
    patience BIGINT NOT NULL,
    by_invitation BOOLEAN NOT NULL,
    seats TEXT, -- JSON
    queries BYTEA NOT NULL
);

-- Columns of a study that change often, in a short row. A writer locks this row first.
CREATE TABLE standing (
    study BIGINT PRIMARY KEY REFERENCES study,
    status TEXT NOT NULL DEFAULT 'open',
    has_begun BOOLEAN NOT NULL DEFAULT false,
    is_mixed BOOLEAN NOT NULL DEFAULT true, -- whether tickets and enrolments were rewritten in sorted order
    holder TEXT,
    until BIGINT NOT NULL DEFAULT 0,
    term BIGINT NOT NULL DEFAULT 0,
    n_letters BIGINT NOT NULL DEFAULT 0,
    n_accepted BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50); -- an updated row stays on its page

CREATE TABLE state (
    study BIGINT PRIMARY KEY REFERENCES study,
    state BYTEA NOT NULL
);

CREATE TABLE ending (
    study BIGINT PRIMARY KEY REFERENCES study,
    result BYTEA,
    reason TEXT
);

CREATE TABLE invitation (
    study BIGINT NOT NULL REFERENCES study,
    digest BYTEA NOT NULL,
    PRIMARY KEY (study, digest)
);

CREATE TABLE enrolment (
    study BIGINT NOT NULL REFERENCES study,
    key_digest BYTEA NOT NULL,
    name TEXT NOT NULL,
    has_left BOOLEAN NOT NULL DEFAULT false,
    PRIMARY KEY (study, key_digest),
    UNIQUE (study, name)
);

CREATE TABLE ticket (
    study BIGINT NOT NULL,
    digest BYTEA NOT NULL,
    PRIMARY KEY (study, digest)
);

-- Largest number of answers in each phase, from all enrolled participants together.
CREATE TABLE expected (
    study BIGINT NOT NULL REFERENCES study,
    phase BIGINT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (study, phase)
);

-- Names of submissions, and digests of their bytes. Tables with frequent writes have no foreign key.
CREATE TABLE submission (
    study BIGINT NOT NULL,
    name BYTEA NOT NULL,
    digest BYTEA NOT NULL,
    PRIMARY KEY (study, name)
);

CREATE TABLE nonce (
    study BIGINT NOT NULL,
    nonce BYTEA NOT NULL,
    expires BIGINT NOT NULL,
    PRIMARY KEY (study, nonce)
);

-- Accepted inputs that are not yet applied. A number is never used twice.
CREATE TABLE held (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    study BIGINT NOT NULL,
    sender TEXT NOT NULL,
    payload BYTEA NOT NULL,
    name BYTEA
);
CREATE INDEX held_by_study ON held (study, number);

CREATE TABLE alarm (
    study BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (study, at)
);

CREATE TABLE letter (
    study BIGINT NOT NULL,
    number BIGINT NOT NULL,
    recipient TEXT, -- NULL for everyone
    payload BYTEA NOT NULL,
    PRIMARY KEY (study, number)
);

CREATE TABLE refusal (
    study BIGINT NOT NULL,
    code TEXT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (study, code)
);

-- Model instances of DDML.
CREATE TABLE ddml (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    study TEXT NOT NULL UNIQUE,
    k BIGINT NOT NULL,
    p BIGINT NOT NULL,
    n_merged BIGINT NOT NULL DEFAULT 0,
    kept_from BIGINT NOT NULL DEFAULT 0 -- the first epoch with rows in ddml_update
) WITH (fillfactor = 50); -- every merge updates the row: it stays on its page

-- Little-endian int32. It does not compress well: it is stored outside of the row, uncompressed.
CREATE TABLE ddml_instance (
    number BIGINT NOT NULL REFERENCES ddml,
    slot BIGINT NOT NULL,
    weights BYTEA NOT NULL,
    PRIMARY KEY (number, slot)
);
ALTER TABLE ddml_instance ALTER COLUMN weights SET STORAGE EXTERNAL;

-- Names of merged updates, as long as a repetition can be accepted. A foreign key would cost a lookup in every merge.
CREATE TABLE ddml_update (
    number BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    id BYTEA NOT NULL,
    PRIMARY KEY (number, epoch, id)
);

-- Little-endian float64, in units of the grid.
CREATE TABLE ddml_average (
    number BIGINT PRIMARY KEY REFERENCES ddml,
    n_folds BIGINT NOT NULL,
    weights BYTEA NOT NULL
);

CREATE TABLE ddml_refusal (
    number BIGINT NOT NULL REFERENCES ddml,
    reason TEXT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (number, reason)
);
