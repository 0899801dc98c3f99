-- Groups of permits, or of shared, upgradeable and exclusive locks: see package backend. The rows of locks mean what
-- they meant, so requests for locks go on saying version 3: only requests about groups and tools need this migration.
--
-- A function with queries that is not part of the query that calls it is in PL/pgSQL, which plans them once for each
-- connection. One in SQL would be parsed and planned again with each call.

-- A row is what one owner has of a group. It counts until its time is over, and until a step that needs it has deleted
-- it then. That step does not wait for a transaction that keeps the row, as one does that InTx protects.
CREATE TABLE @schema@.entries (
	name bytea NOT NULL,
	token text NOT NULL,
	kind int NOT NULL, -- 0: permits, 1: shared, 2: upgradeable, 3: exclusive
	numbers int[] NOT NULL, -- of the permits, in ascending order
	owned boolean NOT NULL, -- false: it was released, and is kept
	label text NOT NULL,
	fence bigint NOT NULL,
	since timestamptz NOT NULL,
	expires timestamptz NOT NULL,
	handed int NOT NULL, -- 0: its owner knows of it; else see hand_on
	PRIMARY KEY (name, token)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Shared locks may be many. The others are looked for, and there are two at most.
CREATE INDEX entries_few ON @schema@.entries (name) WHERE kind > 1;

-- What a waiter wants of a group; kind is null if it wants a lock. Upgrades have negative places, because they come
-- before all others, and name the owner of what is upgraded. The token is that of the waiter's last request, or null if
-- it was undone.
ALTER TABLE @schema@.waiters ADD kind int, ADD n int, ADD weight int, ADD upgrades text, ADD token text, ADD label text;

CREATE FUNCTION @schema@.excludes(a int, b int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT a + b > 3';

-- expire deletes what is over, and says whether there was something. What is handed to a waiter ends within three
-- seconds, unless the clock was set back since then.
CREATE FUNCTION @schema@.expire(a_name bytea) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM @schema@.entries e WHERE e.name = a_name AND e.token = ANY (ARRAY(
		SELECT v.token FROM @schema@.entries v WHERE v.name = a_name AND (v.expires <= clock_timestamp() OR
			v.handed > 0 AND v.expires > clock_timestamp() + interval '3 seconds')
		FOR UPDATE SKIP LOCKED));
	RETURN FOUND;
END $$;

-- vacant returns the first numbers below a_n that nobody has, in ascending order, or null. There are a_most of them at
-- least, unless there are fewer. They are sought among as many numbers as are taken, and that many more.
CREATE FUNCTION @schema@.vacant(a_name bytea, a_n int, a_most int) RETURNS int[] LANGUAGE plpgsql AS $$
BEGIN
	RETURN array_agg(f.i ORDER BY f.i) FROM (
		SELECT generate_series(0, least(a_n, a_most + (
			SELECT coalesce(sum(cardinality(e.numbers)), 0)::int FROM @schema@.entries e WHERE e.name = a_name
		)) - 1) EXCEPT SELECT unnest(e.numbers) FROM @schema@.entries e WHERE e.name = a_name
	) f(i);
END $$;

-- fits says that no lock excludes one of that kind, beside the one that it upgrades.
CREATE FUNCTION @schema@.fits(a_name bytea, a_kind int, a_from text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN NOT EXISTS (
		SELECT FROM @schema@.entries e
		WHERE e.name = a_name AND e.kind > 1 AND @schema@.excludes(e.kind, a_kind) AND e.token <> a_from
	) AND (a_kind < 3 OR NOT EXISTS (SELECT FROM @schema@.entries e WHERE e.name = a_name AND e.token <> a_from));
END $$;

CREATE FUNCTION @schema@.may_upgrade(a_name bytea, a_from text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN EXISTS (
		SELECT FROM @schema@.entries e
		WHERE e.name = a_name AND e.token = a_from AND e.kind = 2 AND e.owned AND e.expires > clock_timestamp()
	);
END $$;

-- take returns what a request gets that nobody comes before: the lowest numbers, which are none for a lock, or null.
CREATE FUNCTION @schema@.take(a_name bytea, a_kind int, a_n int, a_weight int, a_from text)
RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
	free int[];
BEGIN
	IF a_kind = 0 THEN
		free := @schema@.vacant(a_name, a_n, a_weight);
		RETURN CASE WHEN cardinality(free) >= a_weight THEN free[:a_weight] END;
	END IF;
	RETURN CASE WHEN @schema@.fits(a_name, a_kind, a_from) THEN '{}'::int[] END;
END $$;

-- hand_on grants to waiters what they want, and notifies them: permits to the first ones, up to the first for which
-- there is no room, and locks to those that no waiter before them excludes. It looks at 64 waiters, and the last one
-- that it serves hands on to those behind them (handed = 2).
--
-- Each claims its entry with its next request, which changes that row and needs no advisory lock. So claims do not wait
-- for each other's commits. An entry that nobody claims, because the waiter has died, ends when that would have been
-- passed over in the queue. A waiter that would have less than a second for the claim is only told that it has its
-- turn, and so is one whose last token was undone.
--
-- a_lived says that the group was not empty before this step, or that nobody has a lock of one of its places. If that
-- is not known, nothing is granted in an empty group: waiters are told, and their requests look.
CREATE FUNCTION @schema@.hand_on(a_name bytea, a_kind int, a_lived boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	w @schema@.waiters;
	t timestamptz := clock_timestamp();
	top int := 0; -- the kind of the lock that excludes most
	ahead int := 0; -- the same of the locks that w and those before it want
	before int; -- the same without w
	numbers int[];
	free int[];
	below int := 0; -- the limit of free
	looked int := 0;
	waits boolean := false; -- one was only told
	last text; -- the token of the last one that was served
	fence bigint;
	sweeps boolean := false;
BEGIN
	IF NOT EXISTS (SELECT FROM @schema@.waiters v WHERE v.name = a_name) THEN
		RETURN;
	END IF;
	PERFORM @schema@.expire(a_name);
	IF a_kind > 0 THEN
		SELECT coalesce(max(e.kind), 0) INTO top FROM @schema@.entries e WHERE e.name = a_name AND e.kind > 1;
	END IF;
	a_lived := a_lived OR EXISTS (SELECT FROM @schema@.entries e WHERE e.name = a_name);
	FOR w IN
		SELECT * FROM @schema@.waiters v WHERE v.name = a_name AND @schema@.present(v.seen, t)
			AND (a_kind = 0 OR v.kind = 3 OR NOT @schema@.excludes(top, v.kind))
		ORDER BY v.place LIMIT 64
	LOOP
		looked := looked + 1;
		IF a_kind = 0 THEN
			IF w.n <> below THEN
				EXIT WHEN waits; -- what that is to have counts as free here
				below := w.n;
				free := @schema@.vacant(a_name, below, below);
			END IF;
			EXIT WHEN cardinality(free) >= w.weight IS NOT TRUE;
			numbers := free[:w.weight];
			free := free[w.weight + 1:];
		ELSE
			numbers := '{}';
			before := ahead;
			ahead := greatest(ahead, w.kind);
			CONTINUE WHEN @schema@.excludes(before, w.kind) OR w.kind = 3 AND NOT @schema@.fits(a_name, 3, w.upgrades)
				AND (w.upgrades = '' OR @schema@.may_upgrade(a_name, w.upgrades));
		END IF;
		PERFORM pg_notify(w.channel, w.ticket);
		IF a_lived AND w.token IS NOT NULL AND w.seen > t - interval '2 seconds'
			AND (w.upgrades = '' OR @schema@.may_upgrade(a_name, w.upgrades))
		THEN
			DELETE FROM @schema@.waiters v WHERE v.name = a_name AND v.place = w.place RETURNING v.seen INTO w.seen;
			fence := @schema@.next_fence();
			INSERT INTO @schema@.entries VALUES (
				a_name, w.token, w.kind, numbers, true, w.label, fence, t, least(w.seen, t) + interval '3 seconds', 1);
			last := w.token;
			sweeps := sweeps OR fence / 128 % 1000 = 0;
		ELSE
			waits := true;
		END IF;
	END LOOP;
	IF looked = 64 AND last IS NOT NULL THEN
		UPDATE @schema@.entries e SET handed = 2 WHERE e.name = a_name AND e.token = last;
	END IF;
	IF sweeps THEN -- at the end, because that hands on, too, and perhaps in this group
		PERFORM @schema@.sweep(interval '1 minute');
	END IF;
END $$;

-- tell hands on, or notifies the waiter for a lock whose turn it is.
CREATE OR REPLACE FUNCTION @schema@.tell(a_name bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	w @schema@.waiters;
BEGIN
	SELECT * INTO w FROM @schema@.waiters v
	WHERE v.name = a_name AND @schema@.present(v.seen, clock_timestamp()) ORDER BY v.place LIMIT 1;
	IF w.kind IS NOT NULL THEN
		PERFORM @schema@.hand_on(a_name, w.kind, false);
	ELSIF w.name IS NOT NULL THEN
		PERFORM pg_notify(w.channel, w.ticket);
	END IF;
END $$;

-- stand says that a waiter is there that has 64 others before it, and what acquire_entry answers. Such a waiter has
-- nothing to look for: what can be handed on is seen by the others, and so are locks of programs that have one for each
-- place. So it needs no advisory lock, for which those of a process with many waiters would stand in line until they
-- count as dead. If it has fewer others before it, or waits with another token, of which those that hand on have to know,
-- stand returns null.
--
-- If the waiter is handed something meanwhile, or a later request gives it another token, it has to ask again. It must
-- not do so in this transaction, which may have its row then.
CREATE FUNCTION @schema@.stand(
	a_name bytea, a_token text, a_ticket text, a_kind int, OUT remaining bigint, OUT label text
) LANGUAGE plpgsql AS $$
DECLARE
	mine bigint;
	t timestamptz := clock_timestamp();
	labels text[];
BEGIN
	SELECT w.place INTO mine FROM @schema@.waiters w
	WHERE w.name = a_name AND w.ticket = a_ticket AND w.token = a_token;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	labels := ARRAY(
		SELECT coalesce(w.label, '') FROM @schema@.waiters w
		WHERE w.name = a_name AND w.place < mine AND @schema@.present(w.seen, t)
			AND (a_kind = 0 OR @schema@.excludes(w.kind, a_kind))
		ORDER BY w.place LIMIT 64);
	IF cardinality(labels) < 64 THEN
		RETURN;
	END IF;
	PERFORM @schema@.settle();
	UPDATE @schema@.waiters w SET seen = clock_timestamp()
	WHERE w.name = a_name AND w.place = mine AND w.token = a_token;
	remaining := CASE WHEN FOUND THEN 0 ELSE 1 END;
	label := labels[1];
END $$;

-- acquire_entry grants what a request wants of a group, or returns no fence. It then describes the owner of something
-- that is in the way or, if waiters come before the request, the first of them. The fence is 0 if the lock that is to
-- be upgraded is not held. If it refuses a request that has a ticket, the request gets a place in the queue.
--
-- a_apart are names of locks that programs have which make a lock of each place. They do not see the group, so nobody
-- gets anything of it while it is empty and such a lock is taken, or one that has the name of the group.
CREATE FUNCTION @schema@.acquire_entry(
	a_name bytea, a_token text, a_label text, a_ttl bigint, a_ticket text, a_channel text, a_version int,
	a_kind int, a_n int, a_weight int, a_from text, a_apart bytea[],
	OUT fence bigint, OUT remaining bigint, OUT label text, OUT numbers int[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	e @schema@.entries;
	mine bigint;
	ahead @schema@.waiters; -- the first that comes before the request
	before record; -- of those that come before it, at most 64: how many they are, and what they want together
	freed boolean := false;
	t timestamptz;
BEGIN
	PERFORM @schema@.suit(a_version);
	FOR entered IN 0 .. 1 LOOP
		IF entered = 1 THEN
			IF a_ticket <> '' AND a_from = '' THEN
				SELECT f.remaining, f.label INTO remaining, label FROM @schema@.stand(a_name, a_token, a_ticket, a_kind) f;
				IF remaining IS NOT NULL THEN
					RETURN;
				END IF;
			END IF;
			PERFORM @schema@.enter(a_name);
		END IF;
		IF EXISTS (SELECT FROM @schema@.undone u WHERE u.token = a_token) THEN
			RAISE EXCEPTION 'the attempt was undone before it arrived' USING ERRCODE = 'LKUND';
		END IF;
		SELECT * INTO e FROM @schema@.entries k WHERE k.name = a_name AND k.token = a_token;
		-- A claim, or the same request once more. It must not have the row while it waits for the advisory lock.
		IF FOUND AND e.owned AND (entered = 1 OR e.handed < 2 AND e.expires > clock_timestamp()) THEN
			IF @schema@.extend(a_name, a_token, a_ttl) = 'held' THEN
				fence := e.fence;
				numbers := e.numbers;
				IF e.handed = 2 THEN
					PERFORM @schema@.hand_on(a_name, a_kind, true);
				END IF;
				RETURN;
			END IF;
		END IF;
	END LOOP;
	t := clock_timestamp();
	IF e.name IS NOT NULL THEN
		freed := @schema@.expire(a_name);
	END IF;
	IF a_ticket <> '' THEN
		SELECT w.place INTO mine FROM @schema@.waiters w WHERE w.name = a_name AND w.ticket = a_ticket;
	END IF;
	IF a_from <> '' AND NOT @schema@.may_upgrade(a_name, a_from) THEN
		DELETE FROM @schema@.waiters w WHERE w.name = a_name AND w.place = mine;
		PERFORM @schema@.tell(a_name);
		fence := 0;
		RETURN;
	END IF;
	IF NOT EXISTS (SELECT FROM @schema@.entries k WHERE k.name = a_name AND k.expires > t) AND EXISTS (
		SELECT FROM @schema@.locks k WHERE k.name = ANY (a_apart || a_name) AND k.expires > t UNION ALL
		SELECT FROM @schema@.waiters w
		WHERE w.name = ANY (a_apart || a_name) AND w.kind IS NULL AND @schema@.present(w.seen, t)
	) THEN
		RAISE EXCEPTION 'a program has a lock for one of the places, or waits for it: it is of another version'
			USING ERRCODE = 'LKAPT';
	END IF;
	SELECT * INTO ahead FROM @schema@.waiters w
	WHERE w.name = a_name AND (mine IS NULL AND a_from = '' OR w.place < mine) AND @schema@.present(w.seen, t)
		AND (a_kind = 0 OR @schema@.excludes(w.kind, a_kind))
	ORDER BY w.place LIMIT 1;
	IF ahead.name IS NULL THEN
		numbers := @schema@.take(a_name, a_kind, a_n, a_weight, a_from);
		IF numbers IS NULL AND @schema@.expire(a_name) THEN
			freed := true;
			numbers := @schema@.take(a_name, a_kind, a_n, a_weight, a_from);
		END IF;
	END IF;
	IF numbers IS NULL AND a_ticket <> '' THEN
		IF mine IS NULL THEN
			DELETE FROM @schema@.waiters w WHERE w.name = a_name AND w.seen < t - interval '1 minute';
			INSERT INTO @schema@.waiters (name, place, ticket, channel, seen, kind, n, weight, upgrades, token, label)
			OVERRIDING SYSTEM VALUE
			SELECT a_name, CASE WHEN a_from = '' THEN p.next ELSE -p.next END, a_ticket, a_channel, t,
				a_kind, a_n, a_weight, a_from, a_token, a_label
			FROM nextval(pg_get_serial_sequence('@schema@.waiters', 'place')::regclass) p(next);
		ELSE
			UPDATE @schema@.waiters w SET seen = t, channel = a_channel, token = a_token
			WHERE w.name = a_name AND w.place = mine;
			-- Many look for a turn every second, so that is cheap for those who cannot have one.
			IF a_kind = 0 AND ahead.name IS NOT NULL THEN
				SELECT count(*), sum(f.weight) INTO before FROM (
					SELECT w.weight FROM @schema@.waiters w
					WHERE w.name = a_name AND w.place < mine AND @schema@.present(w.seen, t) LIMIT 64
				) f;
				IF before.count < 64 AND (EXISTS (SELECT FROM @schema@.entries k WHERE k.name = a_name AND k.expires <= t)
					OR cardinality(@schema@.vacant(a_name, a_n, before.sum::int + a_weight)) >= before.sum + a_weight
				) THEN
					freed := true;
				END IF;
			END IF;
		END IF;
	END IF;
	IF numbers IS NOT NULL THEN
		DELETE FROM @schema@.waiters w WHERE w.name = a_name AND w.place = mine;
		fence := @schema@.next_fence();
		t := clock_timestamp();
		INSERT INTO @schema@.entries
		VALUES (a_name, a_token, a_kind, numbers, true, a_label, fence, t, t + a_ttl * interval '1 microsecond', 0);
		IF fence / 128 % 1000 = 0 THEN -- now, because that hands on, too, and perhaps in this group
			PERFORM @schema@.sweep(interval '1 minute');
		END IF;
	END IF;
	IF freed OR fence IS NOT NULL AND mine IS NOT NULL THEN
		PERFORM @schema@.hand_on(a_name, a_kind, true);
	END IF;
	IF freed AND fence IS NULL THEN -- perhaps to this request
		SELECT * INTO e FROM @schema@.entries k WHERE k.name = a_name AND k.token = a_token;
		IF FOUND AND @schema@.extend(a_name, a_token, a_ttl) = 'held' THEN
			fence := e.fence;
			numbers := e.numbers;
			IF e.handed = 2 THEN
				PERFORM @schema@.hand_on(a_name, a_kind, true);
			END IF;
		END IF;
	END IF;
	IF fence IS NOT NULL THEN
		RETURN;
	END IF;
	remaining := 0;
	label := ahead.label;
	IF ahead.name IS NULL THEN
		-- Nothing tells when a transaction ends that keeps a row, so whoever has the turn looks again after a tenth of a
		-- second.
		SELECT CASE WHEN k.expires <= t THEN 100000 ELSE @schema@.until(k.expires, t) END, k.label
		INTO remaining, label FROM @schema@.entries k
		WHERE k.name = a_name AND k.token <> a_from
			AND CASE WHEN a_kind = 0 THEN k.numbers[1] < a_n ELSE @schema@.excludes(k.kind, a_kind) END
		ORDER BY k.expires LIMIT 1;
	END IF;
END $$;

-- extend takes no advisory lock for an entry, so that the owners in a group do not wait for each other's commits. It
-- waits for a step that ends the entry, because that has its row, and for another extension, which may have come just
-- in time.
CREATE OR REPLACE FUNCTION @schema@.extend(a_name bytea, a_token text, a_ttl bigint, a_asks boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	l @schema@.locks;
	e @schema@.entries;
	was text;
BEGIN
	PERFORM @schema@.settle();
	SELECT * INTO e FROM @schema@.entries k WHERE k.name = a_name AND k.token = a_token FOR NO KEY UPDATE;
	IF FOUND THEN
		IF NOT e.owned OR e.expires <= clock_timestamp() THEN
			RETURN 'gone';
		END IF;
		UPDATE @schema@.entries k
		SET handed = 0, expires = greatest(CASE k.handed WHEN 0 THEN k.expires END,
			clock_timestamp() + a_ttl * interval '1 microsecond')
		WHERE k.name = a_name AND k.token = a_token;
		RETURN CASE WHEN a_asks AND EXISTS (
			SELECT FROM @schema@.waiters w
			WHERE w.name = a_name AND @schema@.present(w.seen, clock_timestamp()) AND w.upgrades <> a_token
				AND CASE WHEN e.kind = 0 THEN e.numbers[1] < w.n ELSE @schema@.excludes(e.kind, w.kind) END
		) THEN 'wanted' ELSE 'held' END;
	END IF;
	PERFORM pg_advisory_xact_lock(@schema@.slot(a_name));
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

CREATE OR REPLACE FUNCTION @schema@.extend_some(a_names bytea[], a_tokens text[], a_ttls bigint[], a_asks boolean[])
RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	was text[] := array_fill(NULL::text, ARRAY[cardinality(a_names)]);
BEGIN
	FOR i IN 1 .. cardinality(a_names) LOOP
		IF EXISTS (SELECT FROM @schema@.entries e WHERE e.name = a_names[i] AND e.token = a_tokens[i]) THEN
			PERFORM FROM @schema@.entries e WHERE e.name = a_names[i] AND e.token = a_tokens[i]
				FOR NO KEY UPDATE SKIP LOCKED;
			CONTINUE WHEN NOT FOUND;
			was[i] := @schema@.extend(a_names[i], a_tokens[i], a_ttls[i], a_asks[i]);
		ELSIF pg_try_advisory_xact_lock(@schema@.slot(a_names[i])) THEN
			was[i] := @schema@.extend(a_names[i], a_tokens[i], a_ttls[i], a_asks[i]);
		END IF;
	END LOOP;
	RETURN was;
END $$;

-- share makes a lock of a group a shared one. If a transaction that InTx protects has a share of the row, nobody else
-- may get a lock beside it yet, so the lock stays what it is. Its owner says the same with the next extension.
CREATE FUNCTION @schema@.share(a_name bytea, a_token text, a_ttl bigint, a_asks boolean)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM @schema@.enter(a_name);
	PERFORM FROM @schema@.entries e WHERE e.name = a_name AND e.token = a_token FOR NO KEY UPDATE; -- after an extension
	UPDATE @schema@.entries e SET kind = 1
	WHERE e.name = a_name AND e.kind > 1 AND e.owned AND e.expires > clock_timestamp() AND e.token = ANY (ARRAY(
		SELECT v.token FROM @schema@.entries v WHERE v.name = a_name AND v.token = a_token FOR UPDATE SKIP LOCKED));
	IF FOUND THEN
		PERFORM @schema@.hand_on(a_name, 1, true);
	END IF;
	RETURN @schema@.extend(a_name, a_token, a_ttl, a_asks);
END $$;

-- free_entry is free for an entry. a_lived is that of hand_on.
CREATE FUNCTION @schema@.free_entry(a_name bytea, a_token text, a_kind int, a_keep bigint, a_lived boolean)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF a_keep = 0 THEN
		DELETE FROM @schema@.entries e WHERE e.ctid = ANY (ARRAY(
			SELECT v.ctid FROM @schema@.entries v WHERE v.name = a_name AND v.token = a_token FOR UPDATE SKIP LOCKED));
	END IF;
	IF a_keep > 0 OR NOT FOUND THEN
		UPDATE @schema@.entries e
		SET owned = false, label = '', expires = clock_timestamp() + a_keep * interval '1 microsecond'
		WHERE e.name = a_name AND e.token = a_token;
	END IF;
	PERFORM @schema@.hand_on(a_name, a_kind, a_lived);
END $$;

CREATE OR REPLACE FUNCTION @schema@.release(a_name bytea, a_token text, a_keep bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	l @schema@.locks;
	e @schema@.entries;
	was text;
BEGIN
	PERFORM @schema@.enter(a_name);
	IF a_keep = 0 THEN -- see 0003_functions.sql
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	SELECT * INTO e FROM @schema@.entries k WHERE k.name = a_name AND k.token = a_token AND k.owned;
	IF e.name IS NOT NULL THEN
		was := CASE WHEN e.expires > clock_timestamp() THEN 'held' ELSE 'gone' END;
		PERFORM @schema@.free_entry(a_name, a_token, e.kind, CASE was WHEN 'held' THEN a_keep ELSE 0 END, was = 'held');
		RETURN was;
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

CREATE OR REPLACE FUNCTION @schema@.undo(a_name bytea, a_token text, a_ticket text, a_late bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM @schema@.enter(a_name);
	IF a_ticket <> '' THEN
		DELETE FROM @schema@.waiters w WHERE w.name = a_name AND w.ticket = a_ticket;
	ELSE -- the waiter stays, and has another token when it asks again
		UPDATE @schema@.waiters w SET token = NULL WHERE w.name = a_name AND w.token = a_token;
	END IF;
	IF a_late > 0 THEN
		INSERT INTO @schema@.undone VALUES (a_token, clock_timestamp() + a_late * interval '1 microsecond')
			ON CONFLICT DO NOTHING;
	END IF;
	IF @schema@.release(a_name, a_token, 0) = 'gone' THEN -- the next waiter may have the turn now
		PERFORM @schema@.tell(a_name);
	END IF;
END $$;

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
		WHEN l.token = a_token AND l.fence = a_fence OR EXISTS (
			SELECT FROM @schema@.entries e
			WHERE e.name = a_name AND e.token = a_token AND e.fence = a_fence AND e.owned
		) THEN 'held'
		WHEN l.name IS NULL OR l.token = '' THEN 'gone'
		ELSE 'taken'
	END;
END $$;

CREATE OR REPLACE FUNCTION @schema@.in_tx(a_name bytea, a_token text, a_fence bigint, a_idle bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	ends timestamptz;
	idle interval := current_setting('idle_in_transaction_session_timeout')::interval;
	snapshot boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
BEGIN
	-- A share keeps others out also if the lock turns out to have expired, so its time is limited first.
	IF idle = interval '0' OR idle > a_idle * interval '1 millisecond' THEN
		PERFORM set_config('idle_in_transaction_session_timeout', a_idle::text, true);
	END IF;
	SELECT k.expires INTO ends FROM @schema@.locks k
	WHERE k.name = a_name AND k.token = a_token AND k.fence = a_fence FOR KEY SHARE;
	IF NOT FOUND THEN
		SELECT e.expires INTO ends FROM @schema@.entries e
		WHERE e.name = a_name AND e.token = a_token AND e.fence = a_fence AND e.owned FOR KEY SHARE;
	END IF;
	IF NOT FOUND OR NOT snapshot AND ends <= clock_timestamp() THEN
		IF snapshot AND NOT EXISTS (
			SELECT FROM @schema@.locks k WHERE k.name = a_name AND k.fence > a_fence UNION ALL
			SELECT FROM @schema@.entries e WHERE e.name = a_name AND e.fence > a_fence
		) THEN
			RAISE EXCEPTION 'the snapshot of this transaction does not show the lock' USING ERRCODE = 'LKSNP';
		END IF;
		RETURN CASE WHEN @schema@.verify(a_name, a_token, a_fence) = 'taken' THEN 'taken' ELSE 'gone' END;
	END IF;
	RETURN 'held';
END $$;

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
	FOR l IN SELECT DISTINCT e.name FROM @schema@.entries e WHERE e.expires < limit_at LIMIT 1000 LOOP
		IF pg_try_advisory_xact_lock(@schema@.slot(l.name)) AND @schema@.expire(l.name) THEN
			PERFORM @schema@.tell(l.name);
		END IF;
	END LOOP;
	DELETE FROM @schema@.waiters w WHERE w.ctid = ANY (ARRAY(
		SELECT v.ctid FROM @schema@.waiters v WHERE v.seen < limit_at FOR UPDATE SKIP LOCKED));
	DELETE FROM @schema@.undone u WHERE u.ctid = ANY (ARRAY(
		SELECT v.ctid FROM @schema@.undone v WHERE v.until < limit_at FOR UPDATE SKIP LOCKED));
END $$;

-- inspect_all describes the owner of a lock, or all owners of a group in the order in which their time ends.
CREATE FUNCTION @schema@.inspect_all(
	a_name bytea, OUT grouped boolean, OUT owners json, OUT fence bigint, OUT waiting bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t timestamptz := clock_timestamp();
BEGIN
	SELECT bool_or(o.numbers IS NOT NULL), json_agg(json_build_object(
		'Owner', left(o.token, 8), 'Kept', NOT o.owned, 'Label', o.label, 'Remaining', @schema@.until(o.expires, t),
		'Held', (extract(epoch FROM t - o.since) * 1000000)::bigint, 'Fence', o.fence,
		'Kind', coalesce(o.kind, 0), 'Numbers', o.numbers
	) ORDER BY o.expires) INTO grouped, owners
	FROM (
		SELECT k.token, k.token <> '' AS owned, k.label, k.expires, k.since, k.fence, NULL::int AS kind, NULL::int[] AS numbers
		FROM @schema@.locks k WHERE k.name = a_name UNION ALL
		SELECT e.token, e.owned, e.label, e.expires, e.since, e.fence, e.kind, e.numbers
		FROM @schema@.entries e WHERE e.name = a_name
	) o WHERE o.expires > t;
	SELECT s.last_value + 127 INTO fence FROM @schema@.fences s;
	SELECT count(*) INTO waiting FROM @schema@.waiters w WHERE w.name = a_name AND @schema@.present(w.seen, t);
END $$;

-- list_groups returns the names of the first groups from a_from on that have entries, and before a_end, which is null
-- if there is no end.
CREATE FUNCTION @schema@.list_groups(a_from bytea, a_end bytea, a_limit int)
RETURNS bytea[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	names bytea[] := '{}';
	last bytea;
BEGIN
	FOR i IN 1 .. a_limit LOOP
		SELECT e.name INTO last FROM @schema@.entries e
		WHERE e.name >= a_from AND (last IS NULL OR e.name > last) AND (a_end IS NULL OR e.name < a_end)
		ORDER BY e.name LIMIT 1;
		EXIT WHEN NOT FOUND;
		names := names || last;
	END LOOP;
	RETURN names;
END $$;

-- force returns what inspect_all says, and whether something was then taken from an owner: of a group, from the one
-- whose time is over first, unless there are several and none is named.
CREATE FUNCTION @schema@.force(
	a_name bytea, a_owner text,
	OUT done boolean, OUT grouped boolean, OUT owners json, OUT fence bigint, OUT waiting bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	whose text;
	k int;
BEGIN
	PERFORM @schema@.enter(a_name);
	SELECT i.* INTO grouped, owners, fence, waiting FROM @schema@.inspect_all(a_name) i;
	SELECT o.token, o.kind INTO whose, k FROM (
		SELECT l.token, l.expires, NULL::int AS kind FROM @schema@.locks l WHERE l.name = a_name UNION ALL
		SELECT e.token, e.expires, e.kind FROM @schema@.entries e WHERE e.name = a_name
	) o WHERE o.expires > clock_timestamp() AND starts_with(o.token, a_owner)
		AND (a_owner <> '' OR json_array_length(owners) < 2)
	ORDER BY o.expires LIMIT 1;
	done := FOUND;
	IF done AND grouped THEN
		PERFORM @schema@.free_entry(a_name, whose, k, 0, true);
	ELSIF done THEN
		PERFORM @schema@.free(a_name, 0);
	END IF;
END $$;

REVOKE EXECUTE ON FUNCTION @schema@.excludes, @schema@.expire, @schema@.vacant, @schema@.fits, @schema@.may_upgrade,
	@schema@.take, @schema@.hand_on, @schema@.stand, @schema@.acquire_entry, @schema@.share, @schema@.free_entry,
	@schema@.inspect_all, @schema@.list_groups, @schema@.force FROM PUBLIC;

-- Whoever may do something with locks may do the same with groups. The grantee 0 is PUBLIC.
DO $$
DECLARE
	given record;
BEGIN
	FOR given IN
		SELECT format('GRANT EXECUTE ON FUNCTION %s TO %s', n.new,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END) AS text
		FROM (VALUES ('verify', '@schema@.acquire_entry, @schema@.share, @schema@.inspect_all'),
			('list', '@schema@.list_groups'), ('force_release', '@schema@.force')) n(old, new), pg_proc p, aclexplode(p.proacl) a
		WHERE p.proname = n.old AND p.pronamespace = '@schema@'::regnamespace AND a.grantee <> p.proowner
	LOOP
		EXECUTE given.text;
	END LOOP;
END $$;
