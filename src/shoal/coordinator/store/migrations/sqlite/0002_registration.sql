-- Version 2: anonymous credentials.

-- Which credentials count in a study; NULL for one without.
ALTER TABLE study ADD COLUMN scope BLOB;

-- Who has registered for credentials of a scope: one commitment for each, and what the issuer has signed for it. It is of a person, and
-- nothing in it is in what that person submits.
CREATE TABLE registration (
    scope BLOB NOT NULL,
    member BLOB NOT NULL, -- the public key
    commitment BLOB NOT NULL, -- its digest
    issued BLOB NOT NULL,
    PRIMARY KEY (scope, member)
) WITHOUT ROWID;

-- Which submissions are on the list of what has arrived, and how many lists there have been.
ALTER TABLE submission ADD COLUMN is_told INTEGER NOT NULL DEFAULT 0;
ALTER TABLE standing ADD COLUMN n_told INTEGER NOT NULL DEFAULT 0;
