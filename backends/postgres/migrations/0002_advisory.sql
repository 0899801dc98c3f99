-- Locks that are advisory locks of sessions. The lock itself is in the memory of the server, and ends with the session.
-- A session that is not used for the TTL is ended by the server (idle_session_timeout, PostgreSQL 14). So nothing here
-- ends a lock. The table says who has it, for people and for those who are refused.

-- A row is a session that has, or had, an advisory lock. The sessions end with the server, so the table needs no log.
CREATE UNLOGGED TABLE @schema@.advisory (
	slot bigint PRIMARY KEY, -- two names with the same slot exclude each other
	name bytea NOT NULL,
	pid int NOT NULL,
	token text NOT NULL,
	label text NOT NULL,
	fence bigint NOT NULL,
	since timestamptz NOT NULL,
	expires timestamptz NOT NULL -- if the session is not used until then
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- advisory_slot differs from slot, which requests about rows lock. Advisory locks are those of the whole database, so
-- the schema is part of the hash.
CREATE FUNCTION @schema@.advisory_slot(a_name bytea) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT hashtextextended('@schema@ ' || encode(a_name, 'hex') COLLATE "C", 4712);
$$;

-- advisory_acquire grants the lock to this session, or returns no fence and describes the owner. a_has says that the
-- session has it already, from advisory_wait. a_pid is the process of the server that the client talks to. A proxy that
-- shares connections tells its clients another one, and would give the lock to the next client.
--
-- The TTL is set before the lock is taken. A session that was refused and is going to wait (a_waits) has one, too, so
-- that a lock that is granted to a waiter that has died ends soon. The waiter has one more request to make by then.
CREATE FUNCTION @schema@.advisory_acquire(
	a_name bytea, a_token text, a_label text, a_ttl bigint, a_pid bigint, a_waits boolean, a_has boolean,
	OUT fence bigint, OUT remaining bigint, OUT label text, OUT kept boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	s bigint := @schema@.advisory_slot(a_name);
	l @schema@.locks;
	t timestamptz;
BEGIN
	IF current_setting('server_version_num')::int < 140000 THEN
		RAISE EXCEPTION 'advisory locks need idle_session_timeout, which this server does not have'
			USING ERRCODE = 'LKVER';
	END IF;
	IF pg_backend_pid() <> a_pid THEN
		RAISE EXCEPTION 'there is a proxy between the client and the server' USING ERRCODE = 'LKPRX';
	END IF;
	PERFORM @schema@.settle();
	PERFORM set_config('idle_session_timeout', a_ttl::text, false);
	kept := false;
	IF NOT a_has AND NOT pg_try_advisory_lock(s) THEN
		IF a_waits THEN
			PERFORM set_config('idle_session_timeout', least(greatest(a_ttl, 1000), 5000)::text, false);
		ELSE
			RESET idle_session_timeout;
		END IF;
		SELECT a.label, greatest(0, ceil(extract(epoch FROM a.expires - clock_timestamp()) * 1000000))
		INTO label, remaining FROM @schema@.advisory a WHERE a.slot = s;
		RETURN;
	END IF;
	BEGIN
		-- A release that keeps the lock leaves a row of locks. So does a program that uses rows.
		SELECT * INTO l FROM @schema@.locks k WHERE k.name = a_name AND k.expires > clock_timestamp();
		IF FOUND THEN
			PERFORM pg_advisory_unlock(s);
			RESET idle_session_timeout;
			kept := true;
			label := l.label;
			remaining := greatest(0, ceil(extract(epoch FROM l.expires - clock_timestamp()) * 1000000));
			RETURN;
		END IF;
		fence := @schema@.next_fence();
		IF fence % 1000 = 0 THEN
			PERFORM @schema@.sweep(interval '1 minute');
			DELETE FROM @schema@.advisory a WHERE a.ctid = ANY (ARRAY(SELECT d.ctid FROM @schema@.advisory d
				WHERE d.expires < clock_timestamp() - interval '1 minute' FOR UPDATE SKIP LOCKED));
		END IF;
		t := clock_timestamp();
		INSERT INTO @schema@.advisory AS a
		VALUES (s, a_name, pg_backend_pid(), a_token, a_label, fence, t, t + a_ttl * interval '1 millisecond')
		ON CONFLICT (slot) DO UPDATE SET name = excluded.name, pid = excluded.pid, token = excluded.token,
			label = excluded.label, fence = excluded.fence, since = excluded.since, expires = excluded.expires;
	EXCEPTION WHEN query_canceled OR OTHERS THEN
		-- The error takes back the TTL, and would leave the lock.
		PERFORM pg_advisory_unlock(s);
		RAISE;
	END;
END $$;

-- advisory_wait returns when the session has the lock. After a_limit it fails. It keeps a snapshot, and so keeps
-- vacuum from removing rows, for as long as it runs.
CREATE FUNCTION @schema@.advisory_wait(a_name bytea, a_limit bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM set_config('lock_timeout', a_limit::text, true);
	PERFORM pg_advisory_lock(@schema@.advisory_slot(a_name));
END $$;

-- advisory_extend is called in the session that has the lock. The TTL counts from the end of the call.
CREATE FUNCTION @schema@.advisory_extend(a_name bytea, a_token text, a_ttl bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM set_config('lock_timeout', '2s', true);
	PERFORM set_config('idle_session_timeout', a_ttl::text, false);
	UPDATE @schema@.advisory a SET expires = clock_timestamp() + a_ttl * interval '1 millisecond'
	WHERE a.slot = @schema@.advisory_slot(a_name) AND a.token = a_token;
END $$;

-- advisory_keep keeps the name taken, also beyond the session. It has to be committed before the lock is released.
CREATE FUNCTION @schema@.advisory_keep(a_name bytea, a_fence bigint, a_keep bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t timestamptz;
BEGIN
	PERFORM @schema@.enter(a_name);
	t := clock_timestamp();
	INSERT INTO @schema@.locks AS k VALUES (a_name, '', '', a_fence, t, t + a_keep * interval '1 microsecond')
	ON CONFLICT (name) DO UPDATE SET token = '', label = '', fence = excluded.fence, since = excluded.since,
		expires = excluded.expires WHERE k.expires <= t;
END $$;

-- advisory_release says whether the session had the lock. The row goes first: advisory_force relies on it.
CREATE FUNCTION @schema@.advisory_release(a_name bytea, a_token text)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	s bigint := @schema@.advisory_slot(a_name);
BEGIN
	PERFORM set_config('lock_timeout', '2s', true);
	DELETE FROM @schema@.advisory a WHERE a.slot = s AND a.token = a_token;
	RESET idle_session_timeout;
	RETURN pg_advisory_unlock(s);
END $$;

-- advisory_sessions lists the sessions that have or want the advisory lock of a slot.
CREATE FUNCTION @schema@.advisory_sessions(a_slot bigint, OUT pid int, OUT granted boolean)
RETURNS SETOF record LANGUAGE sql STABLE AS $$
	SELECT l.pid, l.granted FROM pg_catalog.pg_locks l
	WHERE l.locktype = 'advisory' AND (l.classid::bigint << 32) | l.objid::bigint = a_slot AND l.objsubid = 1
		AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database());
$$;

-- advisory_inspect has the columns of inspect. A session whose row is not there yet shows as an owner without a name.
CREATE FUNCTION @schema@.advisory_inspect(
	a_name bytea,
	OUT owner text, OUT label text, OUT remaining bigint, OUT held bigint, OUT fence bigint, OUT waiting bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	s bigint := @schema@.advisory_slot(a_name);
	holder int := (SELECT p.pid FROM @schema@.advisory_sessions(s) p WHERE p.granted);
	t timestamptz := clock_timestamp();
	a @schema@.advisory;
BEGIN
	SELECT i.owner, i.label, i.remaining, i.held, i.fence INTO owner, label, remaining, held, fence
	FROM @schema@.inspect(a_name) i;
	waiting := (SELECT count(*) FROM @schema@.advisory_sessions(s) p WHERE NOT p.granted);
	IF owner IS NULL AND holder IS NOT NULL THEN
		SELECT * INTO a FROM @schema@.advisory v WHERE v.slot = s AND v.pid = holder;
		owner := coalesce(left(a.token, 8), '');
		label := coalesce(a.label, '');
		remaining := CASE WHEN a.expires IS NULL THEN 0
			ELSE greatest(1, ceil(extract(epoch FROM a.expires - t) * 1000000)) END;
		held := coalesce(extract(epoch FROM t - a.since) * 1000000, 0);
		fence := coalesce(a.fence, fence);
	END IF;
END $$;

-- advisory_force ends the session that has the lock, which needs the rights of pg_terminate_backend: the owner of this
-- function has to have them. A release cannot come between, because it removes the row first.
CREATE FUNCTION @schema@.advisory_force(
	a_name bytea, a_owner text, OUT done boolean,
	OUT owner text, OUT label text, OUT remaining bigint, OUT held bigint, OUT fence bigint, OUT waiting bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	s bigint := @schema@.advisory_slot(a_name);
	holder int;
BEGIN
	SELECT v.pid INTO holder FROM @schema@.advisory v
	WHERE v.slot = s AND starts_with(v.token, a_owner) FOR UPDATE;
	SELECT i.* INTO owner, label, remaining, held, fence, waiting FROM @schema@.advisory_inspect(a_name) i;
	done := EXISTS (SELECT FROM @schema@.advisory_sessions(s) p WHERE p.granted AND p.pid = holder);
	IF done AND NOT pg_terminate_backend(holder, 2000) THEN
		RAISE EXCEPTION 'the session % has not ended within two seconds', holder USING ERRCODE = 'LKEND';
	END IF;
	IF NOT done AND owner = '' THEN -- a lock that is kept
		done := (SELECT f.done FROM @schema@.force_release(a_name, a_owner) f);
	END IF;
END $$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;
