-- What locks consist of. @schema@ stands for the schema.

-- A row is a lock that is held or kept, or a lock that has ended and whose row nobody has removed yet. A grant always
-- inserts a row. It never changes the row of another owner.
CREATE TABLE @schema@.locks (
	name bytea PRIMARY KEY,
	token text NOT NULL, -- of the owner; empty if there is none, as after a release that keeps the lock
	label text NOT NULL,
	fence bigint NOT NULL,
	since timestamptz NOT NULL,
	expires timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Waiters of all locks, in the order of their arrival. A crash of the server empties the table, and the waiters queue
-- anew. So the table needs no log.
CREATE UNLOGGED TABLE @schema@.waiters (
	name bytea NOT NULL,
	place bigint GENERATED ALWAYS AS IDENTITY,
	ticket text NOT NULL, -- names the waiter in notifications; it is no token
	channel text NOT NULL,
	seen timestamptz NOT NULL,
	PRIMARY KEY (name, place)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Tokens of attempts that were undone: a request that arrives after its own undoing does nothing. No request outlives
-- the server, so the table needs no log.
CREATE UNLOGGED TABLE @schema@.undone (
	token text PRIMARY KEY,
	until timestamptz NOT NULL
);

-- Fencing tokens of all locks. Each grant has the 128 from its number on, so one draw is enough for a block of them.
CREATE SEQUENCE @schema@.fences INCREMENT 128;

-- The life of the data at the last grant: when the server was started, and the file of this table. A standby has no
-- rows of unlogged tables when it is promoted. Data that were restored have another life: a dump has the row, but the
-- table gets another file when it is made anew, when it is emptied (TRUNCATE), and in a copy of the database. A crash
-- empties the table, also one that the server itself survives. The timeline of the log would say no more, and some
-- managed services refuse to tell it.
CREATE UNLOGGED TABLE @schema@.history (life text NOT NULL);
