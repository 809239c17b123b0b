-- What a relay keeps. No row says when a packet came, from where, or after which other; its place in the file is drawn.
CREATE TABLE packets (
    place BLOB NOT NULL PRIMARY KEY,
    study TEXT NOT NULL,
    phase INTEGER NOT NULL,
    digest BLOB NOT NULL,
    part INTEGER,
    sealed BLOB NOT NULL,
    UNIQUE (study, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX of_part ON packets (study, part, phase);

-- The time of each phase as it was first heard, in milliseconds, and how many of its releases are settled.
CREATE TABLE phases (
    study TEXT NOT NULL,
    phase INTEGER NOT NULL,
    opened INTEGER NOT NULL,
    closes INTEGER NOT NULL,
    settled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (study, phase)
) STRICT, WITHOUT ROWID;

-- The key of the coordinator as it was first met.
CREATE TABLE coordinator (one INTEGER PRIMARY KEY CHECK (one = 1), key BLOB NOT NULL) STRICT;
