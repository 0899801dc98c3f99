/*
 * The fencing tokens of package redlock, as a Promela model for the model checker spin.
 *
 * Redlock in two lines: a client sets the same key on N independent Redis nodes, with a random value of its own and a
 * TTL, and has the lock when a majority did so. Nothing in that stops a client that was paused: it goes on when
 * somebody else has the lock. So each hold gets a token, and the resource that the lock protects refuses a token
 * smaller than one it has seen. This model is about these tokens: N nodes without a common memory have to agree on
 * numbers that are never given twice and that grow from one holder to the next.
 *
 * The protocol. Beside the lock key, each node keeps a counter, which neither release nor expiry deletes.
 *
 *   round 1  acquire: a node whose lock is free stores the attempt's owner value and increments its counter. It answers
 *            with the counter. When a majority has granted, the token t is the largest counter among the grants.
 *   round 2  raise, where the counter is lower than t: "set it to t, if the lock is still mine and the counter is not
 *            past t". When the counters of a majority are at t, the attempt has the lock, with token t.
 *   later    verify and extend ask the same as raise. A majority of acknowledgements says that, when they were sent,
 *            no greater token had been issued. Release deletes the key of its owner only.
 *
 * Why it works. Only the holder of a node's lock changes that node's counter, so each value of a counter is due to one
 * owner; two tokens have a node in common, and there they differ, in the order in which the node was held.
 *
 * The world is as bad as it can be. A request that was sent may be executed at each node at any later time, never, or
 * any number of times: that is loss, delay, reordering, resending by a client library, and a socket buffer of a process
 * that hung, in one. Any reply may be lost, or come late. A client may give up at any point, so a refusal, which makes
 * it give up, needs no step of its own.
 *
 * What is checked, as assertions:
 *
 *   UNIQ  no token is issued twice
 *   RT    a token is greater than all that were issued before its attempt started            (order in real time)
 *   HO    a token is greater than all that were issued before it            (order of holds; not with EXPIRE=1)
 *   ME    nobody is given a lock that somebody else holds                 (mutual exclusion; not with EXPIRE=1)
 *   VER   an acknowledged verify, extend or unlock: no greater token was issued before it was sent
 *                                                                                         (with VERIFY and UNLOCK)
 *
 * Parameters, each -DNAME=value for spin:
 *
 *   N        nodes, 3 or 5                    C, A     clients, and attempts of each, one after the other; C*A <= 6
 *   FMAX     the counters' largest value, at most 7
 *   JUMP     0: a grant increments the counter. 1: it sets it to any greater value, as acquire.lua does, which takes
 *            the clock and the counters of other nodes into account.
 *   EXPIRE   1: any key may expire at any time: no assumption about time at all. 0: only when its attempt is over, as
 *            it is when the TTL outlives what the client relies on; then expiry is the same as release, and needs no
 *            step of its own. 2: the same for a holder that extends (with VERIFY): a key also expires when its TTL began
 *            before the extension was sent that the holder relies on. So nodes that missed an extension lose the lock.
 *   VERIFY   1: holders may send verify or extend.
 *   UNLOCK   1: holders may wait for the answers to their release. (Everybody may stop holding, at any time.)
 *   AHEAD    1: a grant that comes after the token was chosen, with a counter past it, is remembered, and that node
 *            verifies, extends and unlocks by its own counter (docs/adr/0010). VER does not survive that without
 *            assumptions about time; the rest does.
 *   HEAL     1: a holder also acquires again on nodes that lost the lock, under the same owner, and remembers the new
 *            counter (docs/adr/0026; with AHEAD). What that must not leave behind is in heal.pml.
 *   LOSS     what the first node may forget, once. 1: everything (no persistence). 2: it goes back to an earlier state
 *            (appendfsync everysec); what had expired since then stays expired, what had been released comes back.
 *   CLOCK    1: with LOSS, a grant is also above all that the node's counter was before, as a clock ensures.
 *
 * A model that cannot fail proves nothing. So there are bugs to plant, each with -D and its name; they are marked BUG
 * below, where they are. run.sh runs it all, with bugs and without.
 */
#ifndef N
#define N 3
#endif
#ifndef MAJ
#define MAJ (N/2+1)
#endif
#ifndef C
#define C 2
#endif
#ifndef A
#define A 1
#endif
#ifndef FMAX
#define FMAX 3
#endif
#ifndef JUMP
#define JUMP 0
#endif
#ifndef EXPIRE
#define EXPIRE 1
#endif
#ifndef VERIFY
#define VERIFY 0
#endif
#ifndef UNLOCK
#define UNLOCK 0
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef HEAL
#define HEAL 0
#endif
#ifndef EMAX
#define EMAX 2                                         /* extensions of a hold, with EXPIRE=2 */
#endif
#ifndef LOSS
#define LOSS 0
#endif
#ifndef CLOCK
#define CLOCK 0
#endif
#if (N != 3 && N != 5) || FMAX > 7 || C*A > 6
#error outside what the model is written for
#endif

/* ---- Owners ---------------------------------------------------------------------------------------------------------
 * Each attempt has an owner value of its own, 1..OWNERS; 0 is nobody. */

#ifndef SAMEOWNER
#define OWNERS        (C*A)
#define OWNER(c,a)    ((c)*A+(a)+1)
#define CLIENT(o)     (((o)-1)/A)
#define CURRENT(o)    (attempt[CLIENT(o)] == ((o)-1)%A)
#else                                                  /* BUG: one value for all attempts of a client */
#define OWNERS        C
#define OWNER(c,a)    ((c)+1)
#define CLIENT(o)     ((o)-1)
#define CURRENT(o)    (attempt[CLIENT(o)] < A)
#endif

/* ---- State ----------------------------------------------------------------------------------------------------------*/

/* A node: the lock key's value and the fencing counter. */
byte lock[N];
byte fence[N];

/* What was sent, by owner. Requests go to all nodes and stay on their way for ever. */
bool sentAcquire[OWNERS+1];
byte sentRaise[OWNERS+1];                              /* the token it asks for; verify and extend are the same */
bool sentRelease[OWNERS+1];

/* A client. */
mtype = { idle, acquiring, raising, holding, verifying, unlocking };
mtype phase[C] = idle;
byte attempt[C];                                       /* the number of this attempt */
byte grant[C*N];                                       /* the counter in each node's grant, 0 = no grant; after round
                                                        * 1 only with AHEAD */
byte token[C];                                         /* since round 1 */
byte acks[C];                                          /* the nodes that have answered yes to it, a set of bits */

/* For the assertions only; no client can see it. */
byte issued;                                           /* all tokens ever issued, a set of bits */
byte newest;                                           /* the largest of them */
byte before[C];                                        /* newest, when the attempt or the verify started */

#if EXPIRE==2
/* When the TTL of a key began, and what clients rely on: the number of a holder's extension, 0 for the acquisition. */
byte stamp[N];
byte asked[C];                                         /* the last extension that was sent */
byte relied[C];                                        /* the last one that was confirmed */
#endif

/* Forgetting. */
#if LOSS==1 || LOSS==2
byte floor;                                            /* the first node's counter before it forgot; 0: it has not */
#endif
#if LOSS==2
bool saved;                                            /* the state on disk */
byte savedLock;
byte savedFence;
#endif

#ifdef RAISE_NOL
byte writer[N];                                        /* who set the counter */
#endif

/* Scratch, 0 between steps: a counter, an index, a set of nodes, a token. */
byte c1, i1, n1, t1;

/* ---- Sets of nodes --------------------------------------------------------------------------------------------------*/

#define BIT(i)      (1<<(i))
#define SIZE(s)     (((s)&1)+(((s)>>1)&1)+(((s)>>2)&1)+(((s)>>3)&1)+(((s)>>4)&1))
#define MAJORITY(s) (SIZE(s) >= MAJ)

#define GOT(c,i)    (grant[(c)*N+(i)] > 0)
#if N==3
#define GRANTS(c)   (GOT(c,0)+GOT(c,1)+GOT(c,2))
#else
#define GRANTS(c)   (GOT(c,0)+GOT(c,1)+GOT(c,2)+GOT(c,3)+GOT(c,4))
#endif

/* The steps are printed when spin replays a counterexample. A1 is the first attempt of the first client. */
#ifndef SAMEOWNER
#define NAME(o)     65+CLIENT(o), 1+((o)-1)%A
#else
#define NAME(o)     65+CLIENT(o), 1+attempt[CLIENT(o)]
#endif

/* ---- The scripts of a node --------------------------------------------------------------------------------------------
 * Each is one command of Redis, and so one step. For each: when it does something, what it does, and when its reply can
 * make a difference. Executions that neither change the node nor are heard by the client are left out. */

/* HEARS: the client of o waits for an answer to this. If not, or if the reply is lost, nobody hears it. A reply that
 * is late needs no step of its own: the client may take its time to act on what it has heard. */
#define HEARS(o, p) (CURRENT(o) && phase[CLIENT(o)] == p)
#define GRANT(o,i)  grant[CLIENT(o)*N+(i)]
/* With AHEAD, a node that has not answered yet may do so later. */
#define HEARSGRANT(o,i) (HEARS(o, acquiring) || (AHEAD && CURRENT(o) && token[CLIENT(o)] > 0 && GRANT(o,i) == 0) || HEALS(o))
/* With HEAL, it may grant again. */
#define HEALS(o)    (HEAL && (HEARS(o, holding) || HEARS(o, verifying)))
#ifdef HEAL_COUNTS                                     /* BUG: a grant counts for the extension that it comes with */
#define COUNTS(o,i) acks[CLIENT(o)] = (HEARS(o, verifying) -> acks[CLIENT(o)] | BIT(i) : acks[CLIENT(o)])
#else
#define COUNTS(o,i) skip
#endif
/* The TTL of a key begins anew. A request of old that is executed now has no less. */
#if EXPIRE==2
#define BEGINS(o,i) stamp[i] = (CURRENT(o) -> asked[CLIENT(o)] : 0)
#else
#define BEGINS(o,i) skip
#endif
/* What node i is asked to compare its counter with. */
#define BOUND(o,i)  (AHEAD && GRANT(o,i) > token[CLIENT(o)] -> GRANT(o,i) : token[CLIENT(o)])

/* acquire.lua, of a lock that is free: the counter rises. c1 is its new value. */
#if (LOSS==1 || LOSS==2) && CLOCK==1
#define BASE(i)     (((i)==0 && floor > fence[i]) -> floor : fence[i])
#else
#define BASE(i)     fence[i]
#endif
#ifdef GRANT_SAME                                      /* BUG: the counter does not rise with every grant */
#define LOWEST(i)   (BASE(i) > 0 -> BASE(i) : 1)
#else
#define LOWEST(i)   (BASE(i)+1)
#endif
#define FREE(o,i)   (sentAcquire[o] && lock[i] == 0 && LOWEST(i) <= FMAX)
inline choose(i) {
	c1 = LOWEST(i);
	do
	:: JUMP && c1 < FMAX -> c1++
	:: break
	od
}
inline acquire(o, i) {
	d_step {
		lock[i] = o; fence[i] = c1; BEGINS(o, i);
#ifdef RAISE_NOL
		writer[i] = o;
#endif
		printf("%c%d acquires at node %d: granted, counter %d", NAME(o), i+1, c1)
	}
}
/* acquire.lua, delivered again to the holder of the lock: the counter as it is. */
#ifdef OWNRET                                          /* BUG (with RAISE_NOL): remembering the writer does not cure it */
#define OWNS(o,i)   (sentAcquire[o] && lock[i] == o && writer[i] == o)
#else
#define OWNS(o,i)   (sentAcquire[o] && lock[i] == o)
#endif

/* raise.lua, and extend.lua, which does the same to the counter. */
#define ASKED(o)    (sentRaise[o] > 0)
#define MINE(o,i)   (lock[i] == o)
#if   defined(RAISE_LE_ANY)                            /* BUG: without asking who has the lock */
#define RAISES(o,i) (ASKED(o) && fence[i] <= sentRaise[o])
#elif defined(RAISE_NOL)                               /* BUG: the same, but an equal counter must be one's own */
#define RAISES(o,i) (ASKED(o) && (fence[i] < sentRaise[o] || (fence[i] == sentRaise[o] && writer[i] == o)))
#elif defined(RAISE_PAST)                              /* BUG: also says yes when the counter is past the token */
#define RAISES(o,i) (ASKED(o) && MINE(o,i))
#else
#define RAISES(o,i) (ASKED(o) && MINE(o,i) && fence[i] <= sentRaise[o])
#endif
#define CHANGES(o,i) (fence[i] < sentRaise[o])
#define HEARSRAISE(o) ((HEARS(o, raising) || HEARS(o, verifying)) && token[CLIENT(o)] == sentRaise[o])
inline raise(o, i) {
	if
	:: CHANGES(o, i) ->
		fence[i] = sentRaise[o];
#ifdef RAISE_NOL
		writer[i] = o
#endif
	:: else
	fi;
	printf("%c%d raises to %d at node %d: accepted", NAME(o), sentRaise[o], i+1)
}

/* release.lua. It says whether the counter was past the token. */
#ifdef REL_NOCMP                                       /* BUG: deletes whosever lock it is */
#define RELEASES(o,i) (sentRelease[o] && lock[i] != 0)
#else
#define RELEASES(o,i) (sentRelease[o] && lock[i] == o)
#endif
#ifdef UNLOCK_ANY                                      /* BUG: any deletion counts as "no newer token" */
#define CERTIFIES(o,i) (lock[i] == o)
#else
#define CERTIFIES(o,i) (lock[i] == o && fence[i] <= BOUND(o, i))
#endif
inline vanish(i) {
#ifdef NOPERSIST                                       /* BUG: the counter is part of the lock key */
	fence[i] = 0;
#endif
#if EXPIRE==2
	stamp[i] = 0;
#endif
	lock[i] = 0
}
#if   EXPIRE==0
#define EXPIRES(i)  false
#elif EXPIRE==1
#define EXPIRES(i)  (lock[i] != 0)
#else
#define EXPIRES(i)  (lock[i] != 0 && CURRENT(lock[i]) && stamp[i] < relied[CLIENT(lock[i])])
#endif

/* ---- A node ---------------------------------------------------------------------------------------------------------*/

#define ME _pid                                        /* nodes are the processes 0..N-1 */

#define heard       printf("\n")
#define unheard     printf(" (reply lost)\n")

#define DELIVER(o) \
	:: atomic { \
		FREE(o, ME) -> choose(ME); acquire(o, ME); \
		if \
		:: HEARSGRANT(o, ME) -> d_step { GRANT(o, ME) = c1; c1 = 0; COUNTS(o, ME); heard } \
		:: d_step { c1 = 0; unheard } \
		fi } \
	:: d_step { OWNS(o, ME) && HEARSGRANT(o, ME) -> \
		GRANT(o, ME) = fence[ME]; COUNTS(o, ME); \
		printf("%c%d acquires at node %d: granted again, counter %d\n", NAME(o), ME+1, fence[ME]) } \
	:: d_step { RAISES(o, ME) && HEARSRAISE(o) -> \
		raise(o, ME); heard; BEGINS(o, ME); acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME) } \
	:: d_step { AHEAD && MINE(o, ME) && HEARS(o, verifying) && \
		fence[ME] > token[CLIENT(o)] && fence[ME] <= BOUND(o, ME) -> \
		printf("%c%d verifies by the counter %d at node %d: accepted\n", NAME(o), BOUND(o, ME), ME+1); BEGINS(o, ME); \
		acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME) } \
	:: d_step { RAISES(o, ME) && CHANGES(o, ME) -> \
		raise(o, ME); unheard } \
	:: d_step { RELEASES(o, ME) && HEARS(o, unlocking) && CERTIFIES(o, ME) -> \
		vanish(ME); acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME); \
		printf("%c%d releases at node %d: deleted, no newer token\n", NAME(o), ME+1) } \
	:: d_step { RELEASES(o, ME) -> \
		vanish(ME); printf("%c%d releases at node %d: deleted (reply lost)\n", NAME(o), ME+1) }

active [N] proctype Node()
{
end:	do
	DELIVER(1)
#if OWNERS > 1
	DELIVER(2)
#endif
#if OWNERS > 2
	DELIVER(3)
#endif
#if OWNERS > 3
	DELIVER(4)
#endif
#if OWNERS > 4
	DELIVER(5)
#endif
#if OWNERS > 5
	DELIVER(6)
#endif
	:: d_step { EXPIRES(ME) ->
#if LOSS==2 && !defined(REVIVE)                        /* BUG: what has expired comes back: clock stepped, or evicted */
		if
		:: ME == 0 && savedLock == lock[ME] -> savedLock = 0
		:: else
		fi;
#endif
		printf("the lock of %c%d expires at node %d\n", NAME(lock[ME]), ME+1); vanish(ME) }
#if LOSS==1
	:: d_step { ME == 0 && floor == 0 && fence[ME] > 0 ->
		floor = fence[ME]; lock[ME] = 0; fence[ME] = 0;
		printf("node %d loses everything\n", ME+1) }
#endif
#if LOSS==2
	:: d_step { ME == 0 && !saved && floor == 0 ->
		saved = true; savedLock = lock[ME]; savedFence = fence[ME];
		printf("node %d is saved to disk\n", ME+1) }
	:: d_step { ME == 0 && saved && fence[ME] > 0 ->
		saved = false; floor = fence[ME];
		lock[ME] = savedLock; fence[ME] = savedFence; savedLock = 0; savedFence = 0;
		printf("node %d goes back to what is on disk: counter %d\n", ME+1, fence[ME]) }
#endif
	od
}

/* ---- A client -------------------------------------------------------------------------------------------------------*/

#define SELF (_pid-N)                                  /* clients are the processes that follow the nodes */
#define ATTEMPT OWNER(SELF, attempt[SELF])
#define MYNAME 65+SELF, attempt[SELF]+1

inline forgetGrants(c) {
	i1 = 0;
	do
	:: i1 < N -> grant[(c)*N+i1] = 0; i1++
	:: else -> break
	od;
	i1 = 0
}
inline forget(c) {
#if EXPIRE==2
	asked[c] = 0; relied[c] = 0;
#endif
	acks[c] = 0; token[c] = 0; before[c] = 0
}

/* The attempt has won, with token t. */
inline win(c, t) {
	printf("%c%d has the lock, token %d\n", MYNAME, t);
#ifndef SKIP_UNIQ                                      /* for bugs that break more than this */
	assert(!(issued & BIT(t)));                    /* UNIQ */
#endif
	assert(t > before[c]);                         /* RT */
#if EXPIRE!=1 && LOSS==0
	assert(t > newest);                            /* HO */
	i1 = 0;
	do
	:: i1 < C -> assert(phase[i1] != holding && phase[i1] != verifying); i1++       /* ME */
	:: else -> break
	od;
	i1 = 0;
#endif
	issued = issued | BIT(t);
	if
	:: t > newest -> newest = t
	:: else
	fi;
	forget(c);
#if VERIFY || UNLOCK || AHEAD
	token[c] = t;                                  /* otherwise it is not needed any more */
#endif
#ifdef STALE_ACK                                       /* BUG: verify counts answers from before it began */
	acks[c] = n1;
#endif
	phase[c] = holding
}

/* Round 1 is over: t1 becomes the largest counter granted, n1 the nodes that have it. */
inline tally(c) {
	t1 = 0; n1 = 0; i1 = 0;
	do
	:: i1 < N ->
		if
		:: grant[(c)*N+i1] > t1 -> t1 = grant[(c)*N+i1]; n1 = BIT(i1)
		:: grant[(c)*N+i1] == t1 && t1 > 0 -> n1 = n1 | BIT(i1)
		:: else
		fi;
		i1++
	:: else -> break
	od;
	i1 = 0
#if !AHEAD
	; forgetGrants(c)
#endif
}

#ifdef NORAISE                                         /* BUG: no second round */
#define AGREED(s) true
#else
#define AGREED(s) MAJORITY(s)
#endif

active [C] proctype Client()
{
end:	do
	/* an attempt begins */
	:: d_step { phase[SELF] == idle && attempt[SELF] < A ->
		sentAcquire[ATTEMPT] = true;
		before[SELF] = newest; phase[SELF] = acquiring;
		printf("%c%d starts\n", MYNAME) }

	/* a majority has granted: the token is chosen; grants that come later have no part in it */
	:: d_step { phase[SELF] == acquiring && GRANTS(SELF) >= MAJ ->
		tally(SELF);
		if
		:: AGREED(n1) -> win(SELF, t1)
		:: else ->
			acks[SELF] = n1; token[SELF] = t1;
			sentRaise[ATTEMPT] = t1; phase[SELF] = raising;
			printf("%c%d chooses token %d\n", MYNAME, t1)
		fi;
		t1 = 0; n1 = 0 }

	/* a majority's counters are at the token */
	:: d_step { phase[SELF] == raising && MAJORITY(acks[SELF]) ->
		t1 = token[SELF]; n1 = acks[SELF]; win(SELF, t1); t1 = 0; n1 = 0 }

	/* the end of an attempt, or of a hold: given up, out of time, or released without waiting for the answers */
	:: d_step { phase[SELF] != idle ->
		printf("%c%d ends\n", MYNAME);
		sentRelease[ATTEMPT] = true;
		forgetGrants(SELF); forget(SELF); attempt[SELF]++; phase[SELF] = idle }

#if VERIFY
	/* verify or extend */
#if EXPIRE==2
	:: d_step { phase[SELF] == holding && asked[SELF] < EMAX ->
		asked[SELF]++;
#else
	:: d_step { phase[SELF] == holding ->
#endif
		sentRaise[ATTEMPT] = token[SELF];
		before[SELF] = newest; phase[SELF] = verifying;
		printf("%c%d sends verify\n", MYNAME) }
	:: d_step { phase[SELF] == verifying && MAJORITY(acks[SELF]) ->
		printf("%c%d has verified token %d\n", MYNAME, token[SELF]);
#ifndef SKIP_VER
		assert(before[SELF] <= token[SELF]);   /* VER */
#endif
#if EXPIRE==2
		relied[SELF] = asked[SELF];
#endif
		acks[SELF] = 0; before[SELF] = 0; phase[SELF] = holding }
#if EXPIRE==2
	:: d_step { phase[SELF] == verifying ->
		printf("%c%d does not learn what became of it\n", MYNAME);
		acks[SELF] = 0; before[SELF] = 0; phase[SELF] = holding }
#endif
#endif
#if UNLOCK
	/* unlock, by a caller that wants to know whether it held the lock until then */
	:: d_step { phase[SELF] == holding ->
		sentRelease[ATTEMPT] = true;
		before[SELF] = newest; phase[SELF] = unlocking;
		acks[SELF] = 0;
		printf("%c%d sends release\n", MYNAME) }
	:: d_step { phase[SELF] == unlocking && MAJORITY(acks[SELF]) ->
		printf("%c%d has released, token %d\n", MYNAME, token[SELF]);
		assert(before[SELF] <= token[SELF]);   /* VER */
		forgetGrants(SELF); forget(SELF); attempt[SELF]++; phase[SELF] = idle }
#endif
	od
}
