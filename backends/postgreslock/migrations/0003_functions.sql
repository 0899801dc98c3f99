-- The functions that are the only way to locks. @schema@ stands for the schema.
--
-- Each function that changes a lock first takes an advisory lock of the transaction for the name of the lock. So two
-- requests about one lock never run at the same time, also if the lock has no row yet. A transaction of a user that
-- InTx protects does not have that lock: it has a share of the row.

-- Before the first release, the versions 1 and 2 had functions, too. Their tokens were not in blocks, so a program that
-- hands locks over must not use them. This brings them up to date. Locks, waiters and rights stay, and tokens go on.
-- Programs of that time can use the new functions. Only those with advisory locks, which did not exclude others, are
-- refused.
DROP FUNCTION IF EXISTS @schema@.acquire(bytea, text, text, bigint, text, text),
	@schema@.acquire_some(bytea[], text[], text, bigint, int, bytea[], boolean),
	@schema@.acquire_many(bytea[], text[], text, bigint), @schema@.extend(bytea, text, bigint),
	@schema@.advisory_slot, @schema@.advisory_acquire, @schema@.advisory_wait, @schema@.advisory_extend,
	@schema@.advisory_keep, @schema@.advisory_release, @schema@.advisory_sessions, @schema@.advisory_inspect,
	@schema@.advisory_force;
DROP TABLE IF EXISTS @schema@.advisory;
ALTER SEQUENCE @schema@.fences INCREMENT 128;

CREATE OR REPLACE FUNCTION @schema@.slot(a_name bytea) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT hashtextextended(encode(a_name, 'hex') COLLATE "C", 4711);
$$;

-- suit refuses a program that does not know what these tables mean, or that needs newer ones. a_version is the last
-- migration that the program knows. Programs from before the first release do not say it. A migration that gives
-- something another meaning raises the lower limit.
CREATE OR REPLACE FUNCTION @schema@.suit(a_version int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF a_version > 3 THEN
		RAISE EXCEPTION 'the tables have version 3, and the program needs version %', a_version USING ERRCODE = 'LKOLD';
	ELSIF a_version < 1 THEN
		RAISE EXCEPTION 'the tables have version 3, and the program knows version %', a_version USING ERRCODE = 'LKNEW';
	END IF;
END $$;

-- settle makes the transaction fit for a request.
CREATE OR REPLACE FUNCTION @schema@.settle() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'transactions of this connection begin as %, and locks need read committed',
			current_setting('transaction_isolation') USING ERRCODE = 'LKISO';
	END IF;
	-- With off, a crash would forget locks and tokens. With local, a failover to a synchronous standby would.
	IF current_setting('synchronous_commit') IN ('off', 'local') THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	PERFORM set_config('lock_timeout', '2s', true);
END $$;

CREATE OR REPLACE FUNCTION @schema@.enter(a_name bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM @schema@.settle();
	PERFORM pg_advisory_xact_lock(@schema@.slot(a_name));
END $$;

-- next_fence returns the first of 128 tokens that are greater than all earlier ones. A standby that is promoted may
-- lack the latest ones, and so may data that were restored. The tokens of a new life therefore begin at the
-- microseconds of the server's clock, which runs ahead of all tokens while there are fewer than 7,812 grants per second
-- on average.
CREATE OR REPLACE FUNCTION @schema@.next_fence() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	now_in text := (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint || ' ' ||
		pg_relation_filepath('@schema@.history');
BEGIN
	IF NOT EXISTS (SELECT FROM @schema@.history h WHERE h.life = now_in) THEN
		LOCK TABLE @schema@.history IN SHARE ROW EXCLUSIVE MODE;
		IF NOT EXISTS (SELECT FROM @schema@.history h WHERE h.life = now_in) THEN
			PERFORM setval('@schema@.fences', greatest(nextval('@schema@.fences'),
				(extract(epoch FROM clock_timestamp()) * 1000000)::bigint));
			DELETE FROM @schema@.history;
			INSERT INTO @schema@.history VALUES (now_in);
		END IF;
	END IF;
	RETURN nextval('@schema@.fences');
END $$;

-- present says whether a waiter is there, by the time at which it was last seen. A waiter that has not been seen for
-- three seconds has died or is stopped. If the clock was set back, waiters were seen in the future: those that are
-- there ask again within about a second.
CREATE OR REPLACE FUNCTION @schema@.present(seen timestamptz, t timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
	SELECT seen > t - interval '3 seconds' AND seen < t + interval '3 seconds';
$$;

-- tell notifies the waiter whose turn it is.
CREATE OR REPLACE FUNCTION @schema@.tell(a_name bytea) RETURNS void LANGUAGE sql AS $$
	SELECT pg_notify(w.channel, w.ticket) FROM (
		SELECT channel, ticket FROM @schema@.waiters
		WHERE name = a_name AND @schema@.present(seen, clock_timestamp()) ORDER BY place LIMIT 1
	) w;
$$;

-- sweep removes what holders and waiters that have died have left.
CREATE OR REPLACE FUNCTION @schema@.sweep(a_age interval) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	limit_at timestamptz := clock_timestamp() - a_age;
	l record;
BEGIN
	FOR l IN SELECT k.name FROM @schema@.locks k WHERE k.expires < limit_at LIMIT 1000 LOOP
		IF pg_try_advisory_xact_lock(@schema@.slot(l.name)) THEN
			PERFORM FROM @schema@.locks k WHERE k.name = l.name AND k.expires < limit_at FOR UPDATE SKIP LOCKED;
			IF FOUND THEN
				DELETE FROM @schema@.locks k WHERE k.name = l.name;
			END IF;
		END IF;
	END LOOP;
	DELETE FROM @schema@.waiters w WHERE w.ctid = ANY (ARRAY(
		SELECT v.ctid FROM @schema@.waiters v WHERE v.seen < limit_at FOR UPDATE SKIP LOCKED));
	DELETE FROM @schema@.undone u WHERE u.ctid = ANY (ARRAY(
		SELECT v.ctid FROM @schema@.undone v WHERE v.until < limit_at FOR UPDATE SKIP LOCKED));
END $$;

CREATE OR REPLACE FUNCTION @schema@.until(expires timestamptz, t timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT greatest(0, ceil(extract(epoch FROM expires - t) * 1000000))::bigint;
$$;

-- look says whether a request may be granted the lock (free). If so, no other transaction can take it before this one
-- ends. Otherwise it describes the owner. fence is that of an earlier delivery of the same request, which was granted.
-- mine is the place of the request in the queue. The clock is read after the locks were taken, because a request may
-- have to wait for them.
CREATE OR REPLACE FUNCTION @schema@.look(
	a_name bytea, a_token text, a_ticket text,
	OUT free boolean, OUT fence bigint, OUT mine bigint, OUT remaining bigint, OUT label text
) LANGUAGE plpgsql AS $$
DECLARE
	l @schema@.locks;
	t timestamptz;
BEGIN
	IF EXISTS (SELECT FROM @schema@.undone u WHERE u.token = a_token) THEN
		RAISE EXCEPTION 'the attempt was undone before it arrived' USING ERRCODE = 'LKUND';
	END IF;
	SELECT * INTO l FROM @schema@.locks k WHERE k.name = a_name;
	t := clock_timestamp();
	free := false;
	IF l.token = a_token AND l.expires > t THEN
		fence := l.fence;
		RETURN;
	END IF;
	IF a_ticket <> '' THEN
		SELECT w.place INTO mine FROM @schema@.waiters w WHERE w.name = a_name AND w.ticket = a_ticket;
	END IF;
	remaining := @schema@.until(l.expires, t);
	label := CASE WHEN l.expires > t THEN l.label ELSE '' END;
	IF (l.name IS NULL OR l.expires <= t) AND NOT EXISTS (
		SELECT FROM @schema@.waiters w
		WHERE w.name = a_name AND (mine IS NULL OR w.place < mine) AND @schema@.present(w.seen, t)
	) THEN
		-- A transaction that InTx protects keeps the row until it ends, and so keeps others out. Nothing tells when it
		-- ends, so whoever has the turn looks again after a tenth of a second.
		IF l.name IS NOT NULL THEN
			PERFORM FROM @schema@.locks k WHERE k.name = a_name FOR UPDATE SKIP LOCKED;
		END IF;
		free := l.name IS NULL OR FOUND;
		remaining := 100000;
	END IF;
END $$;

-- grant_lock grants a lock for which look has said that it is free.
CREATE OR REPLACE FUNCTION @schema@.grant_lock(a_name bytea, a_token text, a_label text, a_ttl bigint, a_mine bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	fence bigint;
	t timestamptz;
BEGIN
	DELETE FROM @schema@.locks k WHERE k.name = a_name;
	DELETE FROM @schema@.waiters w WHERE a_mine IS NOT NULL AND w.name = a_name AND w.place = a_mine;
	fence := @schema@.next_fence();
	IF fence / 128 % 1000 = 0 THEN
		PERFORM @schema@.sweep(interval '1 minute');
	END IF;
	t := clock_timestamp();
	INSERT INTO @schema@.locks VALUES (a_name, a_token, a_label, fence, t, t + a_ttl * interval '1 microsecond');
	RETURN fence;
END $$;

-- acquire grants the lock, or returns no fence and describes the owner. If it refuses a request that has a ticket, the
-- request gets a place in the queue.
CREATE OR REPLACE FUNCTION @schema@.acquire(
	a_name bytea, a_token text, a_label text, a_ttl bigint, a_ticket text, a_channel text,
	a_version int DEFAULT 1, OUT fence bigint, OUT remaining bigint, OUT label text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	was record;
	t timestamptz;
BEGIN
	PERFORM @schema@.suit(a_version);
	PERFORM @schema@.enter(a_name);
	SELECT * INTO was FROM @schema@.look(a_name, a_token, a_ticket);
	t := clock_timestamp();
	IF was.fence IS NOT NULL THEN -- the same request once more
		PERFORM @schema@.extend(a_name, a_token, a_ttl);
		fence := was.fence;
		RETURN;
	END IF;
	IF was.free THEN
		fence := @schema@.grant_lock(a_name, a_token, a_label, a_ttl, was.mine);
		RETURN;
	END IF;
	remaining := was.remaining;
	label := was.label;
	IF a_ticket = '' THEN
		RETURN;
	END IF;
	IF was.mine IS NOT NULL THEN
		UPDATE @schema@.waiters w SET seen = t, channel = a_channel WHERE w.name = a_name AND w.place = was.mine;
	ELSE
		DELETE FROM @schema@.waiters w WHERE w.name = a_name AND w.seen < t - interval '1 minute';
		INSERT INTO @schema@.waiters (name, ticket, channel, seen) VALUES (a_name, a_ticket, a_channel, t);
	END IF;
END $$;

-- acquire_some grants the first free ones of several locks, as many as are wanted, or none. If it refuses, it describes
-- the owner of a lock, whose number refused is. The numbers of the gates follow those of the locks: nobody may hold or
-- wait for a gate, unless a_spare is more than 0 and that many locks are free beside the wanted ones. It looks at all
-- locks before it grants the first one: a refusal that has to take grants back is an error in the server's log.
--
-- Without a_wait, it passes over locks that another transaction is changing, so callers that come at the same time get
-- different locks and do not wait for each other's commits. If it cannot tell then whether enough locks are free, it
-- returns nothing. With a_wait, it waits for those transactions first.
--
-- The advisory locks that it may have to wait for are taken in one order, and before all others. So two calls cannot
-- wait for each other. Those of the gates are shared, because it only looks at them.
CREATE OR REPLACE FUNCTION @schema@.acquire_some(
	a_names bytea[], a_tokens text[], a_label text, a_ttl bigint, a_want int, a_gates bytea[], a_wait boolean,
	a_version int DEFAULT 1, a_spare int DEFAULT 0, OUT fences bigint[], OUT refused int, OUT remaining bigint, OUT label text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	was record;
	t timestamptz;
	own int;
	held int;              -- the first lock that another owner has at the time t
	places int[];          -- the locks that no other owner has then, beginning with the own ones
	chosen int[] := '{}';
	grants bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(a_names)]);
	i int;
BEGIN
	PERFORM @schema@.suit(a_version);
	PERFORM @schema@.settle();
	FOR was IN
		SELECT l.slot, bool_or(l.changes) AS changes FROM (
			SELECT @schema@.slot(g) AS slot, false AS changes FROM unnest(a_gates) g
			UNION ALL SELECT @schema@.slot(n), true FROM unnest(a_names) n WHERE a_wait
		) l GROUP BY l.slot ORDER BY l.slot
	LOOP
		IF was.changes THEN
			PERFORM pg_advisory_xact_lock(was.slot);
		ELSE
			PERFORM pg_advisory_xact_lock_shared(was.slot);
		END IF;
	END LOOP;
	t := clock_timestamp();
	SELECT count(*) FILTER (WHERE k.token = n.token), min(n.i) FILTER (WHERE k.token <> n.token),
		coalesce(array_agg(n.i::int ORDER BY k.name IS NULL, n.i) FILTER (WHERE k.name IS NULL OR k.token = n.token), '{}')
	INTO own, held, places
	FROM unnest(a_names, a_tokens) WITH ORDINALITY n(name, token, i)
	LEFT JOIN @schema@.locks k ON k.name = n.name AND k.expires > t;
	IF own < a_want THEN
		SELECT cardinality(a_names) + g.i, @schema@.until(k.expires, t), k.label INTO refused, remaining, label
		FROM unnest(a_gates) WITH ORDINALITY g(name, i)
		LEFT JOIN @schema@.locks k ON k.name = g.name AND k.expires > t
		WHERE k.name IS NOT NULL OR EXISTS (
			SELECT FROM @schema@.waiters w WHERE w.name = g.name AND @schema@.present(w.seen, t)
		) ORDER BY g.i LIMIT 1;
		IF FOUND AND (a_spare = 0 OR a_want + a_spare > (
			SELECT count(*) FROM unnest(places) p(i) WHERE NOT EXISTS (
				SELECT FROM @schema@.waiters w WHERE w.name = a_names[p.i] AND @schema@.present(w.seen, t)
			)
		)) THEN
			RETURN;
		END IF;
		refused := NULL;
		remaining := NULL;
		label := NULL;
	END IF;
	IF cardinality(places) < a_want THEN
		refused := held;
		SELECT @schema@.until(k.expires, t), k.label INTO remaining, label
		FROM @schema@.locks k WHERE k.name = a_names[held];
		RETURN;
	END IF;
	FOREACH i IN ARRAY places LOOP
		EXIT WHEN cardinality(chosen) = a_want;
		IF a_wait OR pg_try_advisory_xact_lock(@schema@.slot(a_names[i])) THEN
			SELECT * INTO was FROM @schema@.look(a_names[i], a_tokens[i], '');
			IF was.fence IS NOT NULL OR was.free THEN
				chosen := chosen || i;
				grants[i] := was.fence;
			ELSIF a_wait THEN
				refused := i;
				remaining := was.remaining;
				label := was.label;
			END IF;
		END IF;
	END LOOP;
	IF cardinality(chosen) < a_want THEN
		RETURN;
	END IF;
	refused := NULL;
	FOREACH i IN ARRAY chosen LOOP
		IF grants[i] IS NULL THEN
			grants[i] := @schema@.grant_lock(a_names[i], a_tokens[i], a_label, a_ttl, NULL);
		ELSE -- the same request once more
			PERFORM @schema@.extend(a_names[i], a_tokens[i], a_ttl);
		END IF;
	END LOOP;
	fences := grants;
END $$;

-- owner says whether a token has a lock: held, gone or taken.
CREATE OR REPLACE FUNCTION @schema@.owner(l @schema@.locks, a_token text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE
		WHEN l.name IS NULL OR l.token = '' OR l.expires <= clock_timestamp() THEN 'gone'
		WHEN l.token <> a_token THEN 'taken'
		ELSE 'held'
	END;
$$;

-- extend returns wanted instead of held if the caller asks for that and somebody waits for the lock.
CREATE OR REPLACE FUNCTION @schema@.extend(a_name bytea, a_token text, a_ttl bigint, a_asks boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	l @schema@.locks;
	was text;
BEGIN
	PERFORM @schema@.enter(a_name);
	SELECT * INTO l FROM @schema@.locks k WHERE k.name = a_name;
	was := @schema@.owner(l, a_token);
	IF was = 'held' THEN
		UPDATE @schema@.locks k
		SET expires = greatest(k.expires, clock_timestamp() + a_ttl * interval '1 microsecond') WHERE k.name = a_name;
		IF a_asks AND EXISTS (
			SELECT FROM @schema@.waiters w WHERE w.name = a_name AND @schema@.present(w.seen, clock_timestamp())
		) THEN
			was := 'wanted';
		END IF;
	END IF;
	RETURN was;
END $$;

-- free ends a lock, and keeps it taken for a while if a_keep is positive. A transaction that InTx protects may have a
-- share of the row. The row then stays, without an owner, until that transaction has ended.
CREATE OR REPLACE FUNCTION @schema@.free(a_name bytea, a_keep bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF a_keep = 0 THEN
		PERFORM FROM @schema@.locks k WHERE k.name = a_name FOR UPDATE SKIP LOCKED;
		IF FOUND THEN
			DELETE FROM @schema@.locks k WHERE k.name = a_name;
			PERFORM @schema@.tell(a_name);
			RETURN;
		END IF;
	END IF;
	UPDATE @schema@.locks k
	SET token = '', label = '', expires = clock_timestamp() + a_keep * interval '1 microsecond' WHERE k.name = a_name;
	PERFORM @schema@.tell(a_name);
END $$;

-- release answers before its commit is on the disk, and before a synchronous standby has it, unless the lock is kept.
-- So a crash may bring back a lock that was released just before. It ends with its TTL, and nobody else has it
-- meanwhile. A later grant waits until it is on the disk itself, and the releases before it are there then, too.
CREATE OR REPLACE FUNCTION @schema@.release(a_name bytea, a_token text, a_keep bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	l @schema@.locks;
	was text;
BEGIN
	PERFORM @schema@.enter(a_name);
	IF a_keep = 0 THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	SELECT * INTO l FROM @schema@.locks k WHERE k.name = a_name;
	was := @schema@.owner(l, a_token);
	IF was = 'held' THEN
		PERFORM @schema@.free(a_name, a_keep);
	ELSIF l.token = a_token THEN -- it has expired, and nobody has taken it
		PERFORM @schema@.free(a_name, 0);
	END IF;
	RETURN was;
END $$;

-- extend_some and release_some extend and release several locks. They pass over a lock that another transaction is
-- changing, for which they return null. So they wait for nobody, and take the locks in any order.
CREATE OR REPLACE FUNCTION @schema@.extend_some(a_names bytea[], a_tokens text[], a_ttls bigint[], a_asks boolean[])
RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	was text[] := array_fill(NULL::text, ARRAY[cardinality(a_names)]);
BEGIN
	FOR i IN 1 .. cardinality(a_names) LOOP
		IF pg_try_advisory_xact_lock(@schema@.slot(a_names[i])) THEN
			was[i] := @schema@.extend(a_names[i], a_tokens[i], a_ttls[i], a_asks[i]);
		END IF;
	END LOOP;
	RETURN was;
END $$;

CREATE OR REPLACE FUNCTION @schema@.release_some(a_names bytea[], a_tokens text[])
RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	was text[] := array_fill(NULL::text, ARRAY[cardinality(a_names)]);
BEGIN
	FOR i IN 1 .. cardinality(a_names) LOOP
		IF pg_try_advisory_xact_lock(@schema@.slot(a_names[i])) THEN
			was[i] := @schema@.release(a_names[i], a_tokens[i], 0);
		END IF;
	END LOOP;
	RETURN was;
END $$;

-- undo ends an attempt: its place in the queue, and its lock if it has been granted. If a_late is positive, a request
-- of the attempt may still arrive, and does nothing during that time.
CREATE OR REPLACE FUNCTION @schema@.undo(a_name bytea, a_token text, a_ticket text, a_late bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM @schema@.enter(a_name);
	IF a_ticket <> '' THEN
		DELETE FROM @schema@.waiters w WHERE w.name = a_name AND w.ticket = a_ticket;
	END IF;
	IF a_late > 0 THEN
		INSERT INTO @schema@.undone VALUES (a_token, clock_timestamp() + a_late * interval '1 microsecond')
			ON CONFLICT DO NOTHING;
	END IF;
	IF @schema@.release(a_name, a_token, 0) = 'gone' THEN -- the next waiter may have the turn now
		PERFORM @schema@.tell(a_name);
	END IF;
END $$;

-- verify does not look at the time: while the row is there, nobody has been granted the lock since.
CREATE OR REPLACE FUNCTION @schema@.verify(a_name bytea, a_token text, a_fence bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	l @schema@.locks;
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'a standby can prove nothing' USING ERRCODE = 'read_only_sql_transaction';
	END IF;
	SELECT * INTO l FROM @schema@.locks k WHERE k.name = a_name;
	RETURN CASE
		WHEN l.name IS NULL OR l.token = '' THEN 'gone'
		WHEN l.token <> a_token OR l.fence <> a_fence THEN 'taken'
		ELSE 'held'
	END;
END $$;

-- in_tx takes a share of the row until the transaction of the caller ends. Extending a lock is possible meanwhile. A
-- grant to another owner is not: it deletes the row. A transaction with a snapshot does not see later extensions, so it
-- does not look at the time: if it gets its share, nobody has been granted the lock since.
CREATE OR REPLACE FUNCTION @schema@.in_tx(a_name bytea, a_token text, a_fence bigint, a_idle bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	l @schema@.locks;
	idle interval := current_setting('idle_in_transaction_session_timeout')::interval;
	snapshot boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
BEGIN
	-- A share keeps others out also if the lock turns out to have expired, so its time is limited first.
	IF idle = interval '0' OR idle > a_idle * interval '1 millisecond' THEN
		PERFORM set_config('idle_in_transaction_session_timeout', a_idle::text, true);
	END IF;
	SELECT * INTO l FROM @schema@.locks k
	WHERE k.name = a_name AND k.token = a_token AND k.fence = a_fence FOR KEY SHARE;
	IF NOT FOUND OR NOT snapshot AND l.expires <= clock_timestamp() THEN
		IF snapshot AND NOT EXISTS (SELECT FROM @schema@.locks k WHERE k.name = a_name AND k.fence > a_fence) THEN
			RAISE EXCEPTION 'the snapshot of this transaction does not show the lock' USING ERRCODE = 'LKSNP';
		END IF;
		RETURN CASE WHEN @schema@.verify(a_name, a_token, a_fence) = 'taken' THEN 'taken' ELSE 'gone' END;
	END IF;
	RETURN 'held';
END $$;

CREATE OR REPLACE FUNCTION @schema@.inspect(
	a_name bytea,
	OUT owner text, OUT label text, OUT remaining bigint, OUT held bigint, OUT fence bigint, OUT waiting bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	l @schema@.locks;
	t timestamptz;
BEGIN
	SELECT * INTO l FROM @schema@.locks k WHERE k.name = a_name;
	t := clock_timestamp();
	IF l.expires > t THEN
		owner := left(l.token, 8);
		label := l.label;
		remaining := ceil(extract(epoch FROM l.expires - t) * 1000000);
		held := extract(epoch FROM t - l.since) * 1000000;
		fence := l.fence;
	ELSE
		SELECT s.last_value + 127 INTO fence FROM @schema@.fences s;
	END IF;
	SELECT count(*) INTO waiting FROM @schema@.waiters w
	WHERE w.name = a_name AND @schema@.present(w.seen, t);
END $$;

-- force_release returns the lock as it was before, and whether it was taken from its owner.
CREATE OR REPLACE FUNCTION @schema@.force_release(
	a_name bytea, a_owner text, OUT done boolean,
	OUT owner text, OUT label text, OUT remaining bigint, OUT held bigint, OUT fence bigint, OUT waiting bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM @schema@.enter(a_name);
	SELECT i.* INTO owner, label, remaining, held, fence, waiting FROM @schema@.inspect(a_name) i;
	SELECT starts_with(k.token, a_owner) INTO done FROM @schema@.locks k
	WHERE k.name = a_name AND k.expires > clock_timestamp();
	done := coalesce(done AND remaining IS NOT NULL, false);
	IF done THEN
		PERFORM @schema@.free(a_name, 0);
	END IF;
END $$;

-- raise_tokens makes all tokens that are granted from now on greater than a_past. Every grant reads history before it
-- draws a token, and keeps its lock of that table until it ends. So nobody draws one between the look and the change.
CREATE OR REPLACE FUNCTION @schema@.raise_tokens(a_past bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF a_past IS NULL OR a_past >= 1::bigint << 52 THEN
		RAISE EXCEPTION 'tokens can be raised past a number below 2^52' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	PERFORM @schema@.settle();
	LOCK TABLE @schema@.history IN ACCESS EXCLUSIVE MODE;
	PERFORM setval('@schema@.fences', a_past) FROM @schema@.fences s WHERE s.last_value < a_past;
END $$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;

-- A function that was made anew has no rights. Those of programs are the rights to verify, which was replaced.
DO $$
DECLARE
	program oid;
BEGIN
	FOR program IN
		SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
		WHERE p.oid = '@schema@.verify(bytea, text, bigint)'::regprocedure AND a.grantee NOT IN (0, p.proowner)
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION @schema@.acquire, @schema@.acquire_some, @schema@.extend, '
			'@schema@.extend_some, @schema@.release_some TO %s', program::regrole);
	END LOOP;
END $$;
