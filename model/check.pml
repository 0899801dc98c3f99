/* A property that fails is named when spin replays the counterexample. */
#define CHECK(p, name) if :: (p) :: else -> printf("\nviolated: "); printf(#name); printf("\n"); assert(false) fi
