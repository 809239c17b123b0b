-- Version 2: anonymous credentials. The tables are those of SQLite.

-- Scope of the credentials that a study accepts; NULL for a study without credentials.
ALTER TABLE study ADD COLUMN scope BYTEA;

-- Members that have registered for credentials of a scope: one commitment each, and the issuer's signature for it.
-- A row identifies a person; submissions contain nothing from it.
CREATE TABLE registration (
    scope BYTEA NOT NULL,
    member BYTEA NOT NULL, -- the public key
    commitment BYTEA NOT NULL, -- its digest
    issued BYTEA NOT NULL,
    PRIMARY KEY (scope, member)
);

-- Whether a submission is on the published list of received packets; number of lists so far.
ALTER TABLE submission ADD COLUMN is_told BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE standing ADD COLUMN n_told INTEGER NOT NULL DEFAULT 0;
