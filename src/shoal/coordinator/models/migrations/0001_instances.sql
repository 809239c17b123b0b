-- Model instances of DDML, version 1: never edited after release; a later version is a file of its own.

PRAGMA application_id = 1397247821; -- "SHOM"
PRAGMA user_version = 1;

CREATE TABLE study (
    number INTEGER PRIMARY KEY,
    study TEXT NOT NULL UNIQUE,
    k INTEGER NOT NULL,
    p INTEGER NOT NULL,
    n_merged INTEGER NOT NULL DEFAULT 0,
    kept_from INTEGER NOT NULL DEFAULT 0 -- the first epoch whose names are remembered
);

-- Little-endian int32. An instance keeps its size, so that it is overwritten in place.
CREATE TABLE instance (
    number INTEGER NOT NULL REFERENCES study,
    slot INTEGER NOT NULL,
    weights BLOB NOT NULL,
    PRIMARY KEY (number, slot)
);

-- The names of merged updates, for as long as they may come again.
CREATE TABLE merged_update (
    number INTEGER NOT NULL REFERENCES study,
    epoch INTEGER NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (number, epoch, id)
) WITHOUT ROWID;

-- Little-endian float64, in units of the grid.
CREATE TABLE average (
    number INTEGER PRIMARY KEY REFERENCES study,
    n_folds INTEGER NOT NULL,
    weights BLOB NOT NULL
);

CREATE TABLE refusal (
    number INTEGER NOT NULL REFERENCES study,
    reason TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (number, reason)
) WITHOUT ROWID;
