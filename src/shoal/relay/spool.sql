-- What a relay keeps. No row says when a packet came, from where, or after which other; its place in the file is drawn.
-- Of one that the coordinator has, or that is rubbish, the digest stays, so that it is known if it comes again.
CREATE TABLE packets (
    place BLOB NOT NULL PRIMARY KEY,
    study TEXT NOT NULL,
    phase INTEGER NOT NULL,
    digest BLOB NOT NULL,
    part INTEGER,
    is_shown INTEGER NOT NULL DEFAULT FALSE, -- whether the coordinator has been shown it
    sealed BLOB,
    UNIQUE (study, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX of_part ON packets (study, part, phase);

-- The time of each phase as it was first heard, in milliseconds; how many of its releases are settled; and whether what was refused is to
-- go again.
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

-- The key of the coordinator as it was first met.
CREATE TABLE coordinator (one INTEGER PRIMARY KEY CHECK (one = 1), key BLOB NOT NULL) STRICT;
