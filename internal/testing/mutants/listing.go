package main

// listingMutants are bugs in listings.
var listingMutants = []mutant{
	{"a cursor is worth something to every server",
		[]patch{{"internal/redis/node/list.go", "if p.ID != id {", "if p.ID != id && false {"}},
		[]killer{test("internal/redis/node", "TestListingBeginsAnewOnAnotherServer")}},
	{"a master whose slots have changed is not asked again",
		[]patch{{"internal/redis/node/list.go", "return p.ID + strings.Join(fields, \" \"), ends", "return p.ID, ends"}},
		[]killer{test("internal/redis/node", "TestListingOfAClusterWhoseSlotsMove")}},
	{"a listing of a cluster ends while slots move",
		[]patch{{"internal/redis/node/list.go", "		yield(nil, n.fault(errSettling))\n", ""}},
		[]killer{test("internal/redis/node", "TestListingOfAClusterWhoseSlotsMove")}},
	{"a step of a listing needs a right to a key that users of locks have not",
		[]patch{{"internal/redis/script/commands.go", "name := inSlot(slot, prefix, fenceName)",
			"name := inSlot(slot, \"\", fenceName)"}},
		[]killer{test("single", "TestUserOfTheDocumentation")}},
	{"the first page of a listing in memory is all",
		[]patch{{"memory/inspect.go", "		found = found[:0]\n		return true\n",
			"		found = found[:0]\n		return false\n"}},
		[]killer{test("memory", "TestConformance/virtual_time/ListingIsComplete")}},
}
