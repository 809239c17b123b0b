-- Version 2: anonymous credentials.

-- Scope of the credentials that a study accepts; NULL for a study without credentials.
ALTER TABLE study ADD COLUMN scope BLOB;

-- Members that have registered for credentials of a scope: one commitment each, and the issuer's signature for it.
-- A row identifies a person; submissions contain nothing from it.
CREATE TABLE registration (
    scope BLOB NOT NULL,
    member BLOB NOT NULL, -- the public key
    commitment BLOB NOT NULL, -- its digest
    issued BLOB NOT NULL,
    PRIMARY KEY (scope, member)
) WITHOUT ROWID;

-- Whether a submission is on the published list of received packets; number of lists so far.
ALTER TABLE submission ADD COLUMN is_told INTEGER NOT NULL DEFAULT 0;
ALTER TABLE standing ADD COLUMN n_told INTEGER NOT NULL DEFAULT 0;
