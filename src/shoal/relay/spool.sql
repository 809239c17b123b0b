-- Sealed packets. Rows have no time, sender or order of arrival; the primary key is random.
-- The digest of an acknowledged or invalid packet stays, so that a repetition is recognised.
CREATE TABLE packets (
    place BLOB NOT NULL PRIMARY KEY,
    study TEXT NOT NULL,
    phase INTEGER NOT NULL,
    digest BLOB NOT NULL,
    part INTEGER,
    is_shown INTEGER NOT NULL DEFAULT FALSE, -- whether it was in a part that the coordinator has answered
    sealed BLOB,
    UNIQUE (study, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX of_part ON packets (study, part, phase);

-- First recorded window of each phase, in milliseconds; number of batches made; whether refused packets must be resent.
CREATE TABLE phases (
    study TEXT NOT NULL,
    phase INTEGER NOT NULL,
    opened INTEGER NOT NULL,
    closes INTEGER NOT NULL,
    settled INTEGER NOT NULL DEFAULT 0,
    is_again INTEGER NOT NULL DEFAULT FALSE,
    PRIMARY KEY (study, phase)
) STRICT, WITHOUT ROWID;

-- Studies that have ended.
CREATE TABLE ended (study TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;

-- The coordinator's key at the first contact.
CREATE TABLE coordinator (one INTEGER PRIMARY KEY CHECK (one = 1), key BLOB NOT NULL) STRICT;
