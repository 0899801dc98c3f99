/*
 * How a lock is handed over among the callers of one process, while other processes want it. The store is any that
 * grants several fencing tokens at once.
 *
 * A grant is what the store has granted: an owner value, and a block of tokens. Its leases are what callers have, one
 * after the other. Unlock either passes the lock on, by which one lease ends and the next begins in one step, or
 * releases it. The store knows of neither, and compares the owner only.
 *
 * The world: each grant may be of another process, or of the same one, some callers of which go to the store. The store
 * makes one after the other. Each is heard of at some later time, or never. Whether Unlock passes the lock on is left
 * open: nobody may wait, or the 50 ms may be over. A release is executed at any time, or never. The validity of a grant
 * ends at any time, and its lease with it. The store lets the lock expire only after that (E2, E3). Holders ask the
 * store for more time, and a refusal may come under a later lease. They also bind a transaction to what the store has
 * of the lock. It takes effect at any time while the owner has the lock there. The store may forget the lock (FORGET),
 * but not fall behind its counter, because that begins at the clock.
 *
 * What is checked:
 *
 *   ME       nobody relies on a lease while somebody else does                                 (until it has forgotten)
 *   HO       a token is greater than that of every lease that began before                     (until it has forgotten)
 *   UNIQ     no token is given twice
 *   BLOCK    no token belongs to two grants, and a lease has a token of its own grant
 *   LOST     once the process has heard that a grant is lost, none of its leases is relied on, or begins
 *   BOUND    a transaction does not take effect beside a lease that has a later token
 *
 * Parameters: G grants, of N tokens at most; FORGET; ORDER, 1: HO also when the store has forgotten, which is not
 * promised. The bugs to plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef G
#define G 3
#endif
#ifndef N
#define N 3
#endif
#ifndef FORGET
#define FORGET 0
#endif
#ifndef ORDER
#define ORDER 0
#endif
#define TOKENS (G*N+1)

/* The store. */
byte owner;                                            /* the grant that has the lock; 0: none */
byte counter;
bool forgot;

/* What the process knows of each grant. */
mtype = { idle, granted, held, over };                 /* over: a release was sent, or nothing will come of the grant */
mtype phase[G+1] = idle;
byte token[G+1];                                       /* of the lease that has the lock; before that, the first one */
byte more[G+1];                                        /* tokens for further leases; 0: none will come */
bool valid[G+1];                                       /* the validity is not over */
bool relies[G+1];                                      /* somebody relies on the lease */

/* On their way. */
bool release[G+1];
byte extend[G+1];                                      /* the token of the lease that has asked for more time */
bool denied[G+1];                                      /* was refused, and the answer is under way */
byte bound[G+1];                                       /* the token of the lease that has bound a transaction */

/* For the assertions only. */
byte whose[TOKENS+1];                                  /* to which grant a token belongs */
bool given[TOKENS+1];
byte newest;                                           /* the largest of those that were given */
bool lost[G+1];                                        /* the process has heard so */
byte i1;                                               /* scratch, 0 between steps */

#define SELF (_pid+1)
#define NAME 64+SELF

/* The lease of the token t begins. */
inline begin(t) {
	printf("%c has the lock, token %d\n", NAME, t);
	i1 = 1;
	do
	:: i1 <= G -> CHECK(forgot || !relies[i1], ME); i1++
	:: else -> break
	od;
	i1 = 0;
	CHECK(!given[t], UNIQ);
#ifndef SKIP_BLOCK                                     /* for bugs that break more than this */
	CHECK(whose[t] == SELF, BLOCK);
#endif
	CHECK((forgot && !ORDER) || t > newest, HO);
	CHECK(!lost[SELF], LOST);
	given[t] = true; newest = (t > newest -> t : newest);
	token[SELF] = t; relies[SELF] = true
}

#ifdef OVERLAP                                         /* BUG: the counter is not raised to the last of them */
#define END(n) (token[SELF])
#else
#define END(n) (token[SELF] + (n) - 1)
#endif
inline grant(n) {                                      /* at the store: a block of n tokens */
	phase[SELF] = granted; owner = SELF; valid[SELF] = true;
	token[SELF] = counter+1; more[SELF] = (n)-1; counter = END(n);
	printf("%c is granted the tokens %d to %d\n", NAME, token[SELF], token[SELF]+(n)-1);
	i1 = token[SELF];
	do
	:: i1 < token[SELF]+(n) ->
#ifndef SKIP_BLOCK
		CHECK(whose[i1] == 0, BLOCK);
#endif
		whose[i1] = SELF; i1++
	:: else -> break
	od;
	i1 = 0
}

/* What can have no effect any more is as if it had not been. */
inline tidy() {
	if
	:: owner != SELF -> bound[SELF] = 0; release[SELF] = false
	:: else
	fi;
	if
	:: phase[SELF] == over -> extend[SELF] = 0; denied[SELF] = false
	:: else
	fi;
	if
	:: phase[SELF] == over && owner != SELF -> valid[SELF] = false; token[SELF] = 0; more[SELF] = 0
	:: else
	fi
}
inline vanish() { owner = 0; tidy() }

#define MAYGRANT (phase[SELF] == idle && owner == 0 && (SELF == 1 || phase[SELF-1] != idle))

/* May Unlock pass the lock on? */
#ifdef PAST                                            /* BUG: does not count the tokens */
#define ANYLEFT  (token[SELF] < TOKENS)
#else
#define ANYLEFT  (more[SELF] > 0)
#endif
#if defined(LATE)                                      /* BUG: hands on after the validity */
#define HASIT    (phase[SELF] == held)
#elif defined(RELEASED)                                /* BUG: hands on after a release was sent */
#define HASIT    (relies[SELF] || valid[SELF] && phase[SELF] == over)
#else
#define HASIT    (relies[SELF])
#endif
#define PASSES   (HASIT && ANYLEFT)

active [G] proctype Grant()
{
end:	do
	/* What the store does. */
	:: d_step { MAYGRANT -> grant(1) }             /* nobody else waits for it */
	:: d_step { MAYGRANT && N > 1 -> grant(N) }
	:: d_step { owner == SELF && !valid[SELF] -> printf("the lock of %c expires\n", NAME); vanish() }
	:: d_step { FORGET && owner == SELF -> printf("the store forgets the lock of %c\n", NAME); forgot = true; vanish() }
	:: d_step { release[SELF] && owner == SELF -> printf("the release of %c is executed\n", NAME); vanish() }
	:: d_step { extend[SELF] && !denied[SELF] && owner == SELF -> extend[SELF] = 0; printf("%c is extended\n", NAME) }
	:: d_step { extend[SELF] && !denied[SELF] && owner != SELF ->
		denied[SELF] = true; printf("%c is not extended\n", NAME) }
	:: d_step { bound[SELF] && owner == SELF ->
		printf("the transaction of %c takes effect, token %d\n", NAME, bound[SELF]);
		i1 = 1;
		do
		:: i1 <= G -> CHECK(!(relies[i1] && token[i1] > bound[SELF]), BOUND); i1++
		:: else -> break
		od;
		i1 = 0; bound[SELF] = 0 }

	/* What the process does, and its clock. */
	:: d_step { phase[SELF] == granted && valid[SELF] -> phase[SELF] = held; begin(token[SELF]) }
	:: d_step { phase[SELF] == granted && !valid[SELF] -> phase[SELF] = over; release[SELF] = true; tidy() }
	:: d_step { valid[SELF] ->
		valid[SELF] = false; relies[SELF] = false; printf("the validity of %c is over\n", NAME) }
	:: d_step { PASSES ->
		printf("%c passes the lock on: ", NAME);
		relies[SELF] = false; more[SELF] = more[SELF] - (more[SELF] > 0); begin(token[SELF]+1) }
	:: d_step { phase[SELF] == held ->
		phase[SELF] = over; relies[SELF] = false; release[SELF] = true; printf("%c releases\n", NAME); tidy() }
#ifdef AGAIN                                           /* BUG: the second Unlock of a lease hands on */
	:: d_step { phase[SELF] == held && given[token[SELF]-1] && whose[token[SELF]-1] == SELF && PASSES ->
		more[SELF]--; begin(token[SELF]+1) }
#endif
#ifdef RELEASES_NEXT                                   /* BUG: the second Unlock of a lease releases the next one */
	:: d_step { phase[SELF] == held && whose[token[SELF]-1] == SELF ->
		release[SELF] = true; printf("%c releases, for a former lease\n", NAME) }
#endif
	:: d_step { relies[SELF] && extend[SELF] == 0 ->
		extend[SELF] = token[SELF]; printf("%c sends extend\n", NAME) }
	:: d_step { denied[SELF] ->
		printf("%c hears that it lacks the lock\n", NAME);
		lost[SELF] = (lost[SELF] || phase[SELF] == held);
#ifdef LOST_ALONE                                      /* BUG: it is the loss of the lease that has asked */
		relies[SELF] = (relies[SELF] && token[SELF] != extend[SELF]);
#else
		relies[SELF] = false;
#endif
		CHECK(!relies[SELF], LOST);
		denied[SELF] = false; extend[SELF] = 0 }
	:: d_step { relies[SELF] && bound[SELF] == 0 ->
		bound[SELF] = token[SELF]; printf("%c binds a transaction\n", NAME);
#ifndef BIND_PASSES                                    /* BUG: what was bound does not end the hand-overs */
		more[SELF] = 0
#endif
	}
	od
}
