-- The rows mean what they meant, so requests for locks go on saying version 3: only listings need this migration.

-- list returns a page of the locks that are not over, by their names from a_from on and before a_end, which is null if
-- there is no end. It looks at a_limit rows of the index at most. last is the last of them, or null if there are fewer.
CREATE OR REPLACE FUNCTION @schema@.list(
	a_from bytea, a_end bytea, a_limit int, OUT last bytea, OUT names bytea[], OUT owners text[], OUT labels text[],
	OUT remaining bigint[], OUT held bigint[], OUT fences bigint[], OUT waiting bigint[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t timestamptz := clock_timestamp();
BEGIN
	WITH page AS (
		SELECT k.* FROM @schema@.locks k WHERE k.name >= a_from AND (a_end IS NULL OR k.name < a_end)
		ORDER BY k.name LIMIT a_limit
	)
	SELECT (SELECT (array_agg(p.name ORDER BY p.name))[a_limit] FROM page p), coalesce(array_agg(l.name), '{}'),
		array_agg(left(l.token, 8)), array_agg(l.label), array_agg(@schema@.until(l.expires, t)),
		array_agg((extract(epoch FROM t - l.since) * 1000000)::bigint), array_agg(l.fence), array_agg((
			SELECT count(*) FROM @schema@.waiters w WHERE w.name = l.name AND @schema@.present(w.seen, t)
		))
	INTO last, names, owners, labels, remaining, held, fences, waiting FROM page l WHERE l.expires > t;
END $$;

REVOKE EXECUTE ON FUNCTION @schema@.list FROM PUBLIC;
