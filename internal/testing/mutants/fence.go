package main

import "strings"

// What is planted in package fence.
var fenceMutants = func() []mutant {
	const (
		steps = "fence/steps.go"
		enter = `	for _, h := range holds {
		if err := s.enter(ctx, conn, h); err != nil {
			return err
		}
	}
`
		limit  = "	if limit, back"
		do     = "	if err := do(ctx, conn); err != nil {\n		return err\n	}\n"
		check  = "	if err := s.check(ctx, conn, holds); err != nil {\n		return ended(ctx, err)\n	}\n"
		inTx   = "return do(ctx, conn.(*ofSQL).tx)"
		repeat = "func() error { return s.run("
		redis  = "fence/redis.go"
		raises = "if not digits or #digits > #token or #digits == #token and digits > token then return seen end"
		looks  = "local seen = redis.call('GET', table.remove(KEYS)) "
		eval   = "	cmd := append(drivers.Command{\"EVAL\", inFront(lua), strconv.Itoa(len(keys))}, keys...)\n"
	)
	units := func(names string) killer { return test("fence", names) }
	database := func(names string) killer { return testIn("internal/testing/fences", names) }
	return []mutant{
		{"fence: the check is in another transaction", []patch{{steps, check, ""}, {"fence/sql.go", inTx,
			"if err := do(ctx, conn.(*ofSQL).tx); err != nil {\n		return err\n	}\n" +
				"	tx := must(db.Begin())\n	defer tx.Rollback()\n	return s.Check(ctx, tx, holds...)"},
			{"fence/sql.go", "func (s SQL) names()",
				"func must(tx *sql.Tx, _ error) *sql.Tx { return tx }\n\nfunc (s SQL) names()"}},
			[]killer{database("TestNobodyEntersBetweenCheckAndCommit/PostgreSQL")}},
		{"fence: the check is before the write", []patch{{steps, check, ""}, {steps, do, check + do}},
			[]killer{units("TestOrderOfSteps")}},
		{"fence: a resource is entered after BEGIN, in the transaction",
			[]patch{{steps, enter + limit, limit}, {steps, do, enter + do}}, []killer{units("TestOrderOfSteps")}},
		{"fence: a resource is entered after BEGIN, by another connection", []patch{{steps, enter + limit, limit},
			{"fence/sql.go", inTx, "if err := s.Enter(ctx, db, holds...); err != nil {\n		return err\n	}\n	" + inTx}},
			[]killer{database("TestInTx/PostgreSQL/Repeatable_Read/WhoEntersReadsWhatWasCheckedBefore")}},
		{"fence: an equal token is refused", []patch{{"fence/fence.go", "case seen > h.Token:", "case seen >= h.Token:"}},
			[]killer{units("TestOrderOfSteps")}},
		{"fence: a smaller token of the resource is accepted",
			[]patch{{"fence/fence.go", "case seen < h.Token:", "case seen < h.Token && seen > h.Token:"}},
			[]killer{database("TestInTx/SQLite/Default/CheckNeedsAnEntry")}},
		{"fence: a greater token of the resource is accepted",
			[]patch{{"fence/fence.go", "case seen > h.Token:", "case seen > h.Token && seen < h.Token:"}},
			[]killer{database("TestInTx/SQLite/Default/OnlyTheNewestHolderWrites")}},
		{"fence: the check of PostgreSQL shares the row", []patch{{"fence/sql.go", "$1 FOR UPDATE", "$1 FOR KEY SHARE"}},
			[]killer{database("TestInTx/PostgreSQL/Read_Committed/WhoEntersReadsWhatWasCheckedBefore")}},
		{"fence: the check of MySQL takes no lock", []patch{{"fence/sql.go", "? FOR UPDATE", "?"}},
			[]killer{database("TestInTx/MariaDB/Repeatable_Read/WhoEntersReadsWhatWasCheckedBefore")}},
		{"fence: the check of SQLite takes no lock", []patch{{"fence/sql.go",
			`"UPDATE " + table + " SET " + token + " = " + token + " WHERE " + resource + " = $1 RETURNING " + token`,
			`"SELECT " + token + " FROM " + table + " WHERE " + resource + " = $1"`}},
			[]killer{units("TestOrderOfSteps")}},
		{"fence: MySQL counts the rows that have changed", []patch{{"fence/sql.go", `"SELECT "+token+" FROM "+table+`,
			`"SELECT IF(ROW_COUNT() = 0, "+token+" + 1, "+token+") FROM "+table+`}},
			[]killer{database("TestInTx/MariaDB/Repeatable_Read/OnlyTheNewestHolderWrites")}},
		{"fence: two resources in any order", []patch{
			{"fence/fence.go", "cmp.Compare(a.Resource, b.Resource)", "cmp.Compare(0, 0)"}},
			[]killer{units("TestOrderOfSteps")}},
		{"fence: what is repeated does not enter again", []patch{
			{steps, repeat, "func() error {\n		defer func() { ctx = context.WithValue(ctx, tries, true) }()\n		return s.run("},
			{steps, enter + limit, "	if ctx.Value(tries) == nil {\n" + enter + "	}\n" + limit}},
			[]killer{units("TestAllStepsAreRepeated"),
				database("TestInTx/PostgreSQL/Repeatable_Read/WhoIsPausedInTheTransactionWritesNothing")}},
		{"fence: nobody notices that the transaction has ended", []patch{{steps, `"RELEASE SAVEPOINT fence"`, `"DO 1"`}},
			[]killer{database("TestFunctionIgnoresADeadlock|TestFunctionsTransactionHasEnded")}},
		{"fence: a COMMIT that is not answered is repeated",
			[]patch{{steps, "errors.Is(err, ErrUnknown) || try == tries", "try == tries"}},
			[]killer{units("TestOutcomeOfCommitIsUnknown")}},
		{"fence: MySQL's limit stays", []patch{{steps, "broken = conn.Exec(ctx, back)", "_, _ = ctx, back"}},
			[]killer{database("TestLimitIsGivenBack")}},
		{"fence: several rows may have a token", []patch{{"fence/sql.go", "if len(seen) > 1 {", "if len(seen) > 2 {"}},
			[]killer{database("TestResourceHasOneRow")}},
		{"fence: names of an AllLease go to its keys in order",
			[]patch{{"fence/fence.go", "len(resource) == 1 && len(keys) == 1", "len(resource) == len(keys)"}},
			[]killer{units("TestWhatIsRefused")}},
		{"fence: a Redis forgets a greater token", []patch{{redis, raises, "if not digits then return seen end"}},
			[]killer{database("TestRedis$/goredis/OnlyTheNewestHolderWrites")}},
		{"fence: a Redis refuses an equal token", []patch{{redis, "digits > token then return seen end",
			"digits >= token then return '9' .. seen end"}},
			[]killer{database("TestRedis$/goredis/OnlyTheNewestHolderWrites")}},
		{"fence: a Redis compares numbers that Lua has not", []patch{{redis, raises,
			"if not digits or tonumber(digits) > tonumber(token) then return seen end"}},
			[]killer{database("TestRedis$/goredis/TokensThatLuaHasNoNumberFor")}},
		{"fence: a write in a Redis makes the fence", []patch{{redis, looks, "local key = table.remove(KEYS) " +
			"redis.call('SET', key, ARGV[#ARGV], 'NX') local seen = redis.call('GET', key) "}},
			[]killer{database("TestRedis$/goredis/WriteNeedsAnEntry")}},
		{"fence: a write in a Redis accepts a smaller token of the resource", []patch{{redis,
			"if seen ~= table.remove(ARGV) then", "if tonumber(seen or '0') > tonumber(table.remove(ARGV)) then"}},
			[]killer{database("TestRedis$/goredis/WriteNeedsAnEntry")}},
		{"fence: a script of Redis is not the one that checks", []patch{{redis, eval, `
	first := append(drivers.Command{"EVAL", front + "return 1", strconv.Itoa(len(holds))}, keys[len(keys)-len(holds):]...)
	for _, h := range holds {
		first = append(first, strconv.FormatUint(h.Token, 10))
	}
	if got, err := r.Driver.Do(ctx, append(first, strconv.Itoa(len(holds)))); err != nil || got[0] != int64(1) {
		return nil, fmt.Errorf("%v %w", got, err)
	}
	lua = "for i = 1, tonumber(table.remove(ARGV)) do table.remove(KEYS) table.remove(ARGV) end " + lua
` + strings.Replace(eval, "inFront(lua)", "lua", 1)}},
			[]killer{database("TestNobodyEntersBetweenCheckAndWrite")}},
		{"fence: nobody enters before a handler of HTTP", []patch{{"fence/http.go",
			"status, err = entered(h.Enter(r.Context(), holds...))", "status, err = 0, nil"}},
			[]killer{units("TestAnswersInPlaceOfTheHandler")}},
		{"fence: HTTP has no bound for tokens", []patch{{"fence/http.go", "ahead > 0 && token >", "ahead > 0 && 0 >"}},
			[]killer{units("TestAnswersInPlaceOfTheHandler")}},
		{"fence: the handler of HTTP has no holds",
			[]patch{{"fence/http.go", "WithHolds(r.Context(), holds...)", "r.Context()"}},
			[]killer{units("TestHoldsTravelByHTTP")}},
	}
}()
