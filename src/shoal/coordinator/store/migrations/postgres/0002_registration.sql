-- Version 2: anonymous credentials. The tables are those of SQLite.

-- Which credentials count in a study; NULL for one without.
ALTER TABLE study ADD COLUMN scope BYTEA;

-- Who has registered for credentials of a scope: one commitment for each, and what the issuer has signed for it. It is of a person, and
-- nothing in it is in what that person submits.
CREATE TABLE registration (
    scope BYTEA NOT NULL,
    member BYTEA NOT NULL, -- the public key
    commitment BYTEA NOT NULL, -- its digest
    issued BYTEA NOT NULL,
    PRIMARY KEY (scope, member)
);

-- Which submissions are on the list of what has arrived, and how many lists there have been.
ALTER TABLE submission ADD COLUMN is_told BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE standing ADD COLUMN n_told INTEGER NOT NULL DEFAULT 0;
