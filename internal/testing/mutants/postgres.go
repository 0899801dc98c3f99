package main

// front is how the waiters for permits that may have their turn are found.
const front = "AND @schema@.present(v.seen, t)\n\t\t\t\tORDER BY v.place LIMIT 64\n\t\t\t) w\n\t\t),"

// postgresGroupMutants are bugs in groups in PostgreSQL.
var postgresGroupMutants = []mutant{
	onPostgres("newcomers overtake those who wait", "(mine IS NULL AND a_from = '' OR w.place < mine)", "w.place < mine"),
	onPostgres("a weight is overtaken for ever", front, "AND v.weight = 1 "+front),
	onPostgres("a freed place that nobody is told of", "AND e.token = a_token;\n	END IF;\n	PERFORM @schema@.tell(a_name);",
		"AND e.token = a_token;\n	END IF;"),
	onPostgres("what is freed is handed to one", "WHERE a_all OR u.i = 64", "WHERE a_all AND u.i = 1 OR u.i = 64"),
	onPostgres("who is behind the last that was told hears of nothing", "WHERE a_all OR u.i = 64", "WHERE a_all"),
	onPostgres("waiters far behind look for their turn", "present(w.seen, t) LIMIT 64\n			) f;\n			IF before.count < 64",
		"present(w.seen, t) LIMIT 1000\n			) f;\n			IF before.count < 1000"),
	onPostgres("waiters look for their turn while what is free is for others",
		"before.sum::int + a_weight)) >= before.sum + a_weight", "a_weight)) >= a_weight"),
	onPostgres("those who have their turn get the same", "q.free[q.upto - q.weight + 1 : q.upto]", "q.free[1 : q.weight]"),
	onPostgres("an expired place is not free", "v.name = a_name AND v.expires <= clock_timestamp()",
		"v.name = a_name AND v.expires <= clock_timestamp() - interval '1 hour'"),
	onPostgres("an entry is extended after its end", "NOT e.owned OR e.expires <= clock_timestamp()",
		"NOT e.owned"),
	onPostgres("what is over waits for a step of its group", "			RETURN 'gone';",
		"			PERFORM @schema@.enter(a_name);\n			RETURN 'gone';"),
	onPostgres("an extension does not see one before it", "k.token = a_token FOR NO KEY UPDATE;", "k.token = a_token;"),
	onPostgres("a downgrade lets others beside a transaction",
		"v.token = a_token FOR UPDATE SKIP LOCKED));\n	IF FOUND", "v.token = a_token));\n	IF FOUND"),
	onPostgres("a place beyond the caller's limit", "least(a_n, a_most", "least(a_n + 1, a_most"),
	onPostgres("a part of what is wanted is granted", "cardinality(free) >= a_weight", "cardinality(free) > 0"),
	onPostgres("permits are not kept after their release", "CASE was WHEN 'held' THEN a_keep ELSE 0 END", "0"),
	onPostgres("what is kept is free", "unnest(e.numbers) FROM @schema@.entries e WHERE e.name = a_name",
		"unnest(e.numbers) FROM @schema@.entries e WHERE e.name = a_name AND e.owned"),
	onPostgres("the first that has died is not passed",
		"w.place < mine) AND @schema@.present(w.seen, t)", "w.place < mine)"),
	onPostgres("who has died has its turn", front,
		"AND ('infinity' > t OR true"+front[len("AND @schema@.present(v.seen, t"):]),
	onPostgres("locks of places are not seen",
		"IF NOT EXISTS (SELECT FROM @schema@.entries k", "IF false AND NOT EXISTS (SELECT FROM @schema@.entries k"),
	onPostgres("a lock of a name of a group is not seen", "k.name = ANY (a_apart || a_name)", "k.name = ANY (a_apart)"),
	onPostgres("what comes after its undoing is executed",
		"IF EXISTS (SELECT FROM @schema@.undone u WHERE u.token = a_token) THEN", "IF false THEN"),
	onPostgres("owners wait for a step that grants",
		"PERFORM @schema@.settle();\n	SELECT * INTO e", "PERFORM @schema@.enter(a_name);\n	SELECT * INTO e"),
	onPostgres("extensions wait for each other", "\n				FOR NO KEY UPDATE SKIP LOCKED", "\n				FOR NO KEY UPDATE"),
	onPostgres("a holder is wanted that is not in the way", "THEN e.numbers[1] < w.n ELSE", "THEN true ELSE"),
	onPostgres("who upgrades is told of its own upgrade", "AND w.upgrades <> a_token\n", "\n"),
	onPostgres("readers wait behind those that wait to be upgradeable",
		"NOT @schema@.excludes(f.before, f.kind)", "f.before < 2"),
	onPostgres("readers overtake a writer that waits", "NOT @schema@.excludes(f.before, f.kind)", "f.kind > 0"),
	onPostgres("a writer is beside readers", "AND (a_kind < 3 OR NOT EXISTS", "AND (true OR NOT EXISTS"),
	onPostgres("an upgrade waits behind others", "CASE WHEN a_from = '' THEN p.next ELSE -p.next END", "p.next"),
	onPostgres("what is not held is upgraded", "IF a_from <> '' AND NOT", "IF false AND NOT"),
	onPostgres("a transaction that ends a lease does not keep it", "= a_token FOR UPDATE SKIP LOCKED));\n	END IF;",
		"= a_token));\n	END IF;"),
	onPostgres("one of several is taken that was not named",
		"\n		AND (a_owner <> '' OR json_array_length(owners) < 2)", ""),
}

func onPostgres(name, old, changed string) mutant {
	return mutant{"groups in PostgreSQL: " + name,
		[]patch{{"backends/postgreslock/migrations/0005_groups.sql", old, changed}},
		[]killer{testIn("backends/postgreslock",
			"TestOneServer/Groups|TestOneServer/Conformance/(Kinds|Group|Upgrade|Downgrade)")}}
}
