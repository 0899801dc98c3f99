/*
 * The nodes of fence.pml, and their scripts.
 */

/* A node: the owner and the counter in the lock's value, and the counter of the slot. */
byte lock[N];
byte counter[N];
byte fence[N];

#if EXPIRE==2
byte stamp[N];                                         /* the extension with which the TTL of the key began */
#endif

/* Forgetting. */
#if LOSS==1 || LOSS==2
byte floor;                                            /* the first node's counter before it forgot; 0: it has not */
#endif
#if LOSS==2
bool saved;                                            /* the state on disk */
byte savedLock;
byte savedCounter;
byte savedFence;
#endif

#ifdef RAISE_NOL
byte writer[N];                                        /* who set the slot's counter */
#endif

/* ---- The scripts of a node -----------------------------------------------------------------------------------------
 * Each is one command of Redis, and so one step. For each: when it does something, what it does, and when its reply can
 * make a difference. Executions that neither change the node nor are heard by the client are left out. */

/* HEARS: the client of o waits for an answer to this. If not, or if the reply is lost, nobody hears it. A reply that
 * is late needs no step of its own: the client may take its time to act on what it has heard. */
#define HEARS(o, p) (CURRENT(o) && phase[CLIENT(o)] == p)
#define GRANT(o,i)  grant[CLIENT(o)*N+(i)]
/* With AHEAD, a node that has not answered yet may do so later. */
#define HEARSGRANT(o,i) (HEARS(o, acquiring) || HEALS(o) || \
	(AHEAD && CURRENT(o) && token[CLIENT(o)] > 0 && GRANT(o,i) == 0))
/* With HEAL, it may grant again. */
#define HEALS(o)    (HEAL && (HEARS(o, holding) || HEARS(o, extending) || HEARS(o, verifying)))
#ifdef HEAL_COUNTS                                     /* BUG: a grant counts for the extension that it comes with */
#define COUNTS(o,i) acks[CLIENT(o)] = (HEARS(o, extending) -> acks[CLIENT(o)] | BIT(i) : acks[CLIENT(o)])
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

/* acquire.lua, of a lock that is free: it draws c1, the next number of the slot. */
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
#ifdef GRANT_FIRST                                     /* BUG: moves the slot's counter to the first token */
#define MORE(o)     0
#else
#define MORE(o)     (HEALS(o) -> 0 : BLOCK-1)
#endif
#define FREE(o,i)   (sentAcquire[o] && lock[i] == 0 && LOWEST(i)+BLOCK-1 <= FMAX)
inline acquire(o, i) {
	d_step {
		c1 = LOWEST(i); lock[i] = o; counter[i] = c1; fence[i] = c1+MORE(o); BEGINS(o, i);
#ifdef RAISE_NOL
		writer[i] = o;
#endif
#if DRAWN
		drawn[o] = drawn[o] | BIT(c1);
#endif
		printf("%c%d acquires at node %d: granted, counter %d", NAME(o), i+1, c1)
	}
}
/* acquire.lua, delivered again to the holder of the lock: the lock's counter as it is. */
#ifdef AGAIN_SLOT                                      /* BUG: the slot's counter, which other locks have raised */
#define AGAIN(i)    fence[i]
#else
#define AGAIN(i)    counter[i]
#endif
#ifdef OWNRET                                          /* BUG (with RAISE_NOL): knowing the writer does not help */
#define OWNS(o,i)   (sentAcquire[o] && lock[i] == o && writer[i] == o)
#else
#define OWNS(o,i)   (sentAcquire[o] && lock[i] == o)
#endif

/* raise.lua, and extend.lua, which does the same to the counters. */
#define ASKED(o)    (sentRaise[o] > 0)
#define MINE(o,i)   (lock[i] == o)
#ifdef COMPARE_SLOT                                    /* BUG: compares the slot's counter, which others raise */
#define COMPARED(i) fence[i]
#else
#define COMPARED(i) counter[i]
#endif
#if   defined(RAISE_LE_ANY)                            /* BUG: without asking who has the lock */
#define RAISES(o,i) (ASKED(o) && fence[i] <= sentRaise[o])
#elif defined(RAISE_NOL)                               /* BUG: the same, but an equal counter must be one's own */
#define RAISES(o,i) (ASKED(o) && (fence[i] < sentRaise[o] || (fence[i] == sentRaise[o] && writer[i] == o)))
#elif defined(RAISE_PAST)                              /* BUG: also says yes when the counter is past the token */
#define RAISES(o,i) (ASKED(o) && MINE(o,i))
#else
#define RAISES(o,i) (ASKED(o) && MINE(o,i) && COMPARED(i) <= sentRaise[o])
#endif
#if defined(RAISE_LE_ANY) || defined(RAISE_NOL)
#define CHANGES(o,i) (fence[i] < sentRaise[o])
#elif defined(RAISE_NOTHING)                           /* BUG: says yes although it could not write, as extend does */
#define CHANGES(o,i) false
#else
#define CHANGES(o,i) (counter[i] < sentRaise[o])
#endif
/* Where it leaves the slot's counter at least. An extension is sent when the attempt has won. */
#if   defined(RAISE_FIRST)                             /* BUG: raises the slot's counter to the first token */
#define LAST(o)     sentRaise[o]
#elif VERIFY
#define LAST(o)     (HEARS(o, raising) -> sentRaise[o]+BLOCK-1 : sentRaise[o])
#else
#define LAST(o)     (sentRaise[o]+BLOCK-1)
#endif
#define HEARSRAISE(o) ((HEARS(o, raising) || HEARS(o, extending)) && token[CLIENT(o)] == sentRaise[o])
inline raise(o, i) {
	if
	:: CHANGES(o, i) ->
		counter[i] = (lock[i] != 0 -> sentRaise[o] : 0);
#ifndef RAISE_VALUE                                    /* BUG: raises the counter of the lock only */
		fence[i] = (fence[i] < LAST(o) -> LAST(o) : fence[i]);
#endif
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
#define CERTIFIES(o,i) (lock[i] == o && counter[i] <= BOUND(o, i))
#endif
inline vanish(i) {
#ifdef NOPERSIST                                       /* BUG: there is no counter but that of the lock */
	fence[i] = 0;
#endif
#if EXPIRE==2
	stamp[i] = 0;
#endif
	lock[i] = 0; counter[i] = 0
}
#if   EXPIRE==0
#define EXPIRES(i)  false
#elif EXPIRE==1
#define EXPIRES(i)  (lock[i] != 0)
#else
#define EXPIRES(i)  (lock[i] != 0 && CURRENT(lock[i]) && stamp[i] < relied[CLIENT(lock[i])])
#endif

/* ---- A node ------------------------------------------------------------------------------------------------------*/

#define ME _pid                                        /* nodes are the processes 0..N-1 */

#define heard       printf("\n")
#define unheard     printf(" (reply lost)\n")

#define DELIVER(o) \
	:: atomic { \
		FREE(o, ME) -> acquire(o, ME); \
		if \
		:: HEARSGRANT(o, ME) -> d_step { GRANT(o, ME) = c1; c1 = 0; COUNTS(o, ME); heard } \
		:: d_step { c1 = 0; unheard } \
		fi } \
	:: d_step { OWNS(o, ME) && HEARSGRANT(o, ME) -> \
		GRANT(o, ME) = AGAIN(ME); COUNTS(o, ME); \
		printf("%c%d acquires at node %d: granted again, counter %d\n", NAME(o), ME+1, AGAIN(ME)) } \
	:: d_step { RAISES(o, ME) && HEARSRAISE(o) -> \
		raise(o, ME); heard; BEGINS(o, ME); acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME) } \
	:: d_step { AHEAD && MINE(o, ME) && HEARS(o, extending) && \
		COMPARED(ME) > token[CLIENT(o)] && COMPARED(ME) <= BOUND(o, ME) -> \
		printf("%c%d extends by the counter %d at node %d: accepted\n", NAME(o), BOUND(o, ME), ME+1); BEGINS(o, ME); \
		acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME) } \
	:: d_step { RAISES(o, ME) && CHANGES(o, ME) -> \
		raise(o, ME); unheard } \
	LACKSMEMORY(o) \
	ANSWERS(o) \
	REFUSES(o) \
	:: d_step { RELEASES(o, ME) && HEARS(o, unlocking) && CERTIFIES(o, ME) -> \
		vanish(ME); acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME); \
		printf("%c%d releases at node %d: deleted, no newer token\n", NAME(o), ME+1) } \
	:: d_step { RELEASES(o, ME) -> \
		vanish(ME); printf("%c%d releases at node %d: deleted (reply lost)\n", NAME(o), ME+1) }

/* A server that is out of memory refuses acquire and raise as a whole, because the slot's counter is written first.
 * extend leaves the counters as they are, and prolongs the lock's life all the same. */
#if VERIFY
#define LACKSMEMORY(o) \
	:: d_step { RAISES(o, ME) && CHANGES(o, ME) && HEARS(o, extending) && token[CLIENT(o)] == sentRaise[o] -> \
		printf("%c%d extends at node %d, which is out of memory: accepted\n", NAME(o), ME+1); BEGINS(o, ME); \
		acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME) }
#elif defined(LOCK_FIRST)                              /* BUG: the lock is written before the slot's counter */
#define LACKSMEMORY(o) \
	:: d_step { FREE(o, ME) -> \
		lock[ME] = o; counter[ME] = LOWEST(ME); \
		printf("%c%d acquires at node %d, which is then out of memory\n", NAME(o), ME+1) }
#else
#define LACKSMEMORY(o)
#endif

/* verify.lua: a raise that would say yes, and changes nothing. So it makes a difference only if it is heard. */
#if   defined(CERT_ANY)                                /* BUG: does not look at the counter */
#define CERTAIN(o,i) true
#elif defined(CERT_AHEAD)                              /* BUG: counts late and healed grants, which extend */
#define CERTAIN(o,i) (counter[i] <= BOUND(o, i))
#else
#define CERTAIN(o,i) (counter[i] <= token[CLIENT(o)])
#endif
#if CERT
#define ANSWERS(o) \
	:: d_step { MINE(o, ME) && HEARS(o, verifying) && CERTAIN(o, ME) -> \
		printf("%c%d verifies at node %d: yes\n", NAME(o), ME+1); \
		acks[CLIENT(o)] = acks[CLIENT(o)] | BIT(ME) }
#else
#define ANSWERS(o)
#endif

#if DRAWN
#define REFUSES(o) \
	:: d_step { ASKED(o) && MINE(o, ME) && !RAISES(o, ME) && drawn[o] < BIT(sentRaise[o]+1) -> \
		CHECK(false, KEEP) }
#else
#define REFUSES(o)
#endif

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
		:: ME == 0 && savedLock == lock[ME] -> savedLock = 0; savedCounter = 0
		:: else
		fi;
#endif
		printf("the lock of %c%d expires at node %d\n", NAME(lock[ME]), ME+1); vanish(ME) }
#if BUMP
	:: d_step { fence[ME] < FMAX ->
#ifdef RAISE_NOL
		writer[ME] = 0;
#endif
		fence[ME]++; printf("another lock draws %d at node %d\n", fence[ME], ME+1) }
#endif
#if LOSS==1
	:: d_step { ME == 0 && floor == 0 && fence[ME] > 0 ->
		floor = fence[ME]; lock[ME] = 0; counter[ME] = 0; fence[ME] = 0;
		printf("node %d loses everything\n", ME+1) }
#endif
#if LOSS==2
	:: d_step { ME == 0 && !saved && floor == 0 ->
		saved = true; savedLock = lock[ME]; savedCounter = counter[ME]; savedFence = fence[ME];
		printf("node %d is saved to disk\n", ME+1) }
	:: d_step { ME == 0 && saved && fence[ME] > 0 ->
		saved = false; floor = fence[ME];
		lock[ME] = savedLock; counter[ME] = savedCounter; fence[ME] = savedFence;
		savedLock = 0; savedCounter = 0; savedFence = 0;
		printf("node %d goes back to what is on disk: counter %d\n", ME+1, fence[ME]) }
#endif
	od
}
