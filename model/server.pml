/*
 * The server of handoff.pml, and its scripts.
 */

/* No script leaves the lock free while a live client waits. */
inline stranded() {
#ifndef SKIP_STRAND                                    /* for bugs that break more than this */
	i1 = 1;
	do
	:: i1 <= OWNERS ->
		CHECK(!(lock == 0 && place[i1] > 0 && ALIVE(i1)), STRAND);
		i1++
	:: else -> break
	od;
	i1 = 0
#endif
}

/* ---- The scripts ----------------------------------------------------------------------------------------------------
 * For each: when it does something or tells something, and what. What does neither is left out. */

#ifdef ENQUEUE_NOTOMB                                  /* BUG: ignores the tombstone */
#define REFUSED(o)     false
#else
#define REFUSED(o)     tomb[o]
#endif
#ifdef CLAIM_ANY                                       /* BUG: does not compare the owner */
#define MINE(o)        (lock != 0)
#else
#define MINE(o)        (lock == o)
#endif
#ifdef CLAIM_SLOT                                      /* BUG: answers with the counter of the slot */
#define MYCOUNTER      fence
#else
#define MYCOUNTER      counter
#endif
#ifdef CLAIM_NOMARK                                    /* BUG: writes the value anew, without the mark */
#define REWRITES       mark = false
#else
#define REWRITES       skip
#endif
#ifdef HANDOVER_ANY                                    /* BUG: deletes whosever lock it is */
#define DELETES(o)     (lock != 0)
#else
#define DELETES(o)     (lock == o)
#endif
#if   defined(LEAVE_STAYS)                             /* BUG: with a tombstone, but the waiter stays in the queue */
#define LEAVES(o)      skip
#elif defined(LEAVE_TOMB)                              /* BUG: a waiter leaves the queue only if it has a tombstone */
#define LEAVES(o)      place[o] = (handovers[o] == 2 -> 0 : place[o]); renumber()
#else
#define LEAVES(o)      place[o] = 0; renumber()
#endif
#ifdef MARK_FOREIGN                                    /* BUG: marks what another library has set */
#define OURS           true
#else
#define OURS           (lock <= OWNERS)
#endif
#ifdef RELEASE_MARKED                                  /* BUG: compares the owner, and does not see the mark */
#define EXACT(o)       true
#else
#define EXACT(o)       (!mark && counter <= releases[o])
#endif
#ifdef EXTEND_ANY                                      /* BUG: does not look at the counter */
#define PAST(o)        false
#else
#define PAST(o)        (counter > got[CLIENT(o)])
#endif
#ifdef FORGET_DOUBT                                    /* BUG: an answer is taken for that to earlier requests, too */
#define ANSWERED(o)    doubt[CLIENT(o)] = 0
#else
#define ANSWERED(o)    skip
#endif
#if DUP
#define AGAIN(o, b)    wire[o] = wire[o] | (b)
#else
#define AGAIN(o, b)    skip
#endif

/* o sends b, and hears the answer; or an earlier b is executed, unheard. With LATE, there is at most one of a kind in
 * doubt, so that an answer which comes late tells which. */
#define WAITS(o)       (CURRENT(o) && phase[CLIENT(o)] == waiting)
#define HASTICKET(o)   (ticket[o] > 0)                 /* then it sends heartbeats */
#define CALLS(o, b)    (WAITS(o) && HASTICKET(o) == ((b) == HEARTBEAT) && \
	!(LATE && (doubt[CLIENT(o)] & (b))))
#define COMES(o, b)    (wire[o] & (b))

/* What is heard: the ticket; or that the lock is granted for its whole TTL. */
inline hears(o, b) {
	if
	:: CALLS(o, b) -> d_step {
		if
		:: lock == o -> phase[CLIENT(o)] = told; got[CLIENT(o)] = counter; HAS(o, ((b) == ACQUIRE -> 1 : BLOCK))
		:: place[o] > 0 && ticket[o] == 0 -> ticket[o] = place[o]
		:: else
		fi;
		AGAIN(o, b); ANSWERED(o); DONE }
	:: COMES(o, b) -> printf(", unheard\n")
	:: LATE && COMES(o, b) && CURRENT(o) && (doubt[CLIENT(o)] & (b)) -> d_step {
		doubt[CLIENT(o)] = doubt[CLIENT(o)] & ~(b); wire[o] = wire[o] & ~(b);
		printf(", heard late\n") }
	fi
}

/* enqueue, of an owner that has the lock already: granted by somebody else, or by an earlier request. It has to claim
 * the lock. */
inline enqueueMine(o, b, t) {
	d_step {
		printf("%c%d enqueues: it has the lock", NAME(o));
#ifdef ENQUEUE_REJOIN                                  /* BUG: the heartbeat puts a waiter back that was granted */
		join(o, t); mark = true;
#else
		place[o] = 0; renumber();
#endif
		CHECK(place[o] == 0, ONCE)
	};
#if   defined(BELIEVE)                                 /* BUG: takes any grant for one of its whole TTL */
	hears(o, b)
#elif defined(BLOCK_BELIEVED)                          /* BUG: does not claim, and takes the block for granted */
	hears(o, b)
#else
	DONE
#endif
}

/* enqueue, of a lock that somebody else has. */
inline enqueueHeld(o, b, t) {
#ifdef MARK_APART                                      /* BUG: two scripts: one marks, the next joins */
	if
	:: !half[o] -> d_step { half[o] = true; mark = true; printf("%c%d marks\n", NAME(o)) }
	:: else ->
		d_step { half[o] = false; join(o, t); printf("%c%d joins", NAME(o)) };
		hears(o, b)
	fi
#else
	d_step {
		join(o, t);
#ifndef NOMARK                                         /* BUG: joins without marking */
		if
		:: OURS -> mark = true
		:: else
		fi;
#endif
		printf("%c%d enqueues: waits", NAME(o)) };
	hears(o, b)
#endif
}

/* enqueue, of a lock that is free. */
inline enqueueFree(o, b, t) {
	printf("%c%d enqueues: ", NAME(o));
	if
	:: !WAITERS -> grant(o, 0, false, BLOCK)
	:: else -> d_step { join(o, t) }; hand_on(o)
	fi;
	if
	:: (b) == NOWAIT && lock != o -> d_step { place[o] = 0; renumber() }
	:: else
	fi;
	hears(o, b)
}

#define ENQUEUES(o, b, t) \
	:: atomic { (COMES(o, b) || CALLS(o, b)) && lock == o && !REFUSED(o) && REMARKABLE(o) -> enqueueMine(o, b, t) } \
	:: atomic { (COMES(o, b) || CALLS(o, b)) && lock != 0 && lock != o && !REFUSED(o) && \
		(place[o] == 0 || ticket[o] == 0 || !mark || COMES(o, b)) -> enqueueHeld(o, b, t) } \
	:: atomic { (COMES(o, b) || CALLS(o, b)) && lock == 0 && !REFUSED(o) && MORE -> enqueueFree(o, b, t) }
#if defined(BELIEVE) || defined(ENQUEUE_REJOIN) || defined(BLOCK_BELIEVED)
#define REMARKABLE(o)  true
#else
#define REMARKABLE(o)  (place[o] > 0)
#endif

inline extend(o) {
	phase[CLIENT(o)] = holding;
	printf("%c%d extends: yes\n", NAME(o));
	CHECK(before[CLIENT(o)] <= LASTOF(CLIENT(o)), VER);
	before[CLIENT(o)] = 0
}

/* What a tombstone refuses for ever need not be remembered. */
#if defined(ENQUEUE_NOTOMB) || defined(JOIN_DEL) || defined(TOMB_SHORT) || defined(ACQUIRE_ALONE)
#define SETTLED(o)     releases[o] = 0
#else
#define SETTLED(o)     releases[o] = 0; wire[o] = (tomb[o] -> 0 : wire[o]); ticket[o] = (tomb[o] -> 0 : ticket[o])
#endif

inline leave(o) {
	printf("%c%d hands over: ", NAME(o));
	if
	:: DELETES(o) -> vanish()
	:: else
	fi;
	left(o)
}
inline keep(o) {
	printf("%c%d hands over, and keeps the lock for nobody\n", NAME(o));
	vanish(); lock = REST; left(o)
}
inline left(o) {
	LEAVES(o);
	tomb[o] = (handovers[o] == 2); ended[o] = true; SETTLED(o)
}

/* A claim of a block. It raises the counter of the slot, if the server does not refuse that. If the answer is not
 * heard, it may be executed at any time. */
#if BLOCK > 1
#ifdef CLAIM_SHORT                                     /* BUG: does not raise it to the last token */
#define RAISES         skip
#else
#define RAISES         fence = (fence < counter+BLOCK-1 -> counter+BLOCK-1 : fence)
#endif
#define CLAIMSBLOCK(o) \
	:: d_step { WAITS(o) && lock == o && counter+BLOCK-1 <= FMAX -> \
		window = false; ANSWERED(o); RAISES; \
		phase[CLIENT(o)] = told; got[CLIENT(o)] = counter; HAS(o, BLOCK); \
		printf("%c%d claims a block: counter %d, of the slot %d\n", NAME(o), counter, fence) } \
	:: d_step { lock == o && fence < counter+BLOCK-1 && counter+BLOCK-1 <= FMAX -> \
		RAISES; printf("%c%d claims a block, unheard: of the slot %d\n", NAME(o), fence) }
#else
#define CLAIMSBLOCK(o)
#endif

#define DELIVER(o) \
	:: atomic { (COMES(o, ACQUIRE) || CALLS(o, ACQUIRE)) && USUAL && MORE -> \
		printf("%c%d acquires: ", NAME(o)); grant(o, 0, false, 1); hears(o, ACQUIRE) } \
	ENQUEUES(o, ENQUEUE, 0) \
	ENQUEUES(o, HEARTBEAT, ticket[o]) \
	:: atomic { (COMES(o, NOWAIT) || TRYLOCK && CALLS(o, NOWAIT)) && lock == 0 && !REFUSED(o) && MORE -> \
		enqueueFree(o, NOWAIT, 0) } \
	:: d_step { WAITS(o) && MINE(o) -> \
		window = false; REWRITES; ANSWERED(o); \
		phase[CLIENT(o)] = told; got[CLIENT(o)] = MYCOUNTER; HAS(o, 1); \
		printf("%c%d claims: counter %d\n", NAME(o), MYCOUNTER) } \
	CLAIMSBLOCK(o) \
	:: d_step { CURRENT(o) && phase[CLIENT(o)] == extending && lock == o && !PAST(o) -> extend(o) } \
	:: d_step { handovers[o] == 1 && lock == o && EXACT(o) -> \
		vanish(); ended[o] = true; SETTLED(o); \
		printf("%c%d releases: deleted\n", NAME(o)); stranded() } \
	:: atomic { handovers[o] > 0 && \
		(lock == o || place[o] > 0 || !ended[o] || (lock == 0 && WAITERS) || DELETES(o)) -> \
		d_step { leave(o) }; \
		hand_on(0); \
		d_step { DONE; stranded() } } \
	:: d_step { MINHOLD && handovers[o] > 0 && lock == o -> keep(o) }

/* ---- The server --------------------------------------------------------------------------------------------------*/

active proctype Server()
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
	/* the lock expires; a client that has heard of it and comes too late does not hold it */
	:: d_step { lock > 0 && lock <= OWNERS &&
		(EXPIRE || window || !(CURRENT(lock) && (phase[CLIENT(lock)] == holding || phase[CLIENT(lock)] == extending))) ->
		printf("the lock of %c%d expires\n", NAME(lock));
		if
		:: !EXPIRE && CURRENT(lock) && phase[CLIENT(lock)] == told ->
			phase[CLIENT(lock)] = waiting; got[CLIENT(lock)] = 0; HAS(lock, 0)
		:: else
		fi;
		vanish() }
#if MINHOLD
	:: d_step { lock == REST -> vanish(); printf("the lock is kept no longer\n") }
#endif
	/* the queue expires */
	:: d_step { WAITERS && (EXPIRE || !LIVEWAITERS) ->
		i1 = 1;
		do
		:: i1 <= OWNERS -> place[i1] = 0; i1++
		:: else -> break
		od;
		renumber();
#ifdef TOMB_SHORT                                      /* BUG: the hash lives no longer than its waiters */
		forgetTombs();
#endif
		printf("the queue expires\n") }
#if BUMP
	:: d_step { fence < FMAX -> fence++; printf("another lock draws counter %d\n", fence) }
#endif
#if FORCE
	:: atomic { lock > 0 && lock <= OWNERS ->
		d_step {
			printf("an operator takes the lock from %c%d: ", NAME(lock));
			tomb[lock] = true; place[lock] = 0; ended[lock] = true; vanish() };
		hand_on(0);
		d_step { DONE; stranded() } }
#endif
	od
}
