/*
 * The queue in which clients wait for a lock on one Redis server, as a Promela model for the model checker spin.
 *
 * A client that cannot have the lock joins a queue on the server. A release also grants the lock to the first waiter of
 * the queue, and tells it by a message, which may get lost. Such a grant lives for a short window only. The waiter has
 * to claim the lock, which makes it live for its whole TTL. So a waiter that has died stops the others for that window,
 * and no longer.
 *
 * What is on the server, for one lock (queue.pml):
 *
 *   lock, counter, mark   the value of the lock key: its owner, its counter, and a mark if somebody waits
 *   fence                 the largest counter that was ever drawn for a lock of the hash slot
 *   place                 the queue: waiters by ticket. A waiter keeps its ticket, and goes back to its place with it
 *   place, tomb           a hash of waiters and tombstones, which exists only while it has any
 *
 * What a client can ask for. Each is a script, and so one step:
 *
 *   acquire    the usual case (many.lua): takes the lock if it is free and the hash does not exist. Otherwise the
 *              script does nothing, and answers so.
 *   enqueue    takes the lock if it is free and nobody waits. Otherwise it puts the client into the queue and marks the
 *              lock. This is also the heartbeat of a waiter.
 *   claim      if the lock is the client's, makes it live for its whole TTL. The answer has the lock's counter.
 *   release    the usual case (many.lua): deletes the lock if its value is the client's, without a mark, and its
 *              counter is not past the client's token. Otherwise the script does nothing, and answers so.
 *   handover   a release in any other case, and the end of waiting. It deletes the lock if it is the client's, takes
 *              the client out of the queue, and grants the lock to the first waiter (hand_on). If a request of the
 *              attempt is unanswered, it leaves a tombstone, by which the server refuses that request when it arrives.
 *   extend     if the lock is the client's and its counter is not past the token, makes it live for its whole TTL.
 *
 * The world. A client that waits may send a request at any time. Either it hears the answer. Then the request was
 * executed in between, and nothing is lost by taking sending, execution and answer for one step. Or it does not hear
 * it, and goes on. Then the request is in doubt: it may be executed later, never, or any number of times, also after
 * the attempt has ended. A request whose answer was heard is not executed again, because drivers send once (but see
 * DUP). A handover is repeated until it is answered. So it may be executed any number of times, at any later time, or
 * never if its client has died. Clients give up at any point, and stop before they act on what they have heard.
 * Messages about grants may come at any time, whether there was a grant or not, or never: a waiting client may claim
 * whenever it likes. When the lock is handed on, any waiter may be skipped: its heartbeats are overdue, or its channel
 * has no subscriber.
 *
 * What is checked:
 *
 *   ME       nobody holds the lock while somebody else does                                      (not with EXPIRE=1)
 *   UNIQ     no token is given twice                                                                  (with TOKENS=1)
 *   RT       a token is greater than all that were given before its attempt started                   (with TOKENS=1)
 *   HO       a token is greater than all that were given before it                     (with TOKENS=1, not EXPIRE=1)
 *   OWN      a token is a number that was drawn for this owner                                           (with OWN=1)
 *   VER      a confirmed extend: no greater token was given before it was sent                        (with EXTEND=1)
 *   NOBODY   the lock is not granted to an attempt of which a release or handover was executed
 *   FIFO     nobody is granted the lock while a live client is before it in the queue
 *   ONCE     the owner of the lock is not in the queue as well, so a usual release need not look there
 *   STRAND   no script leaves the lock free and a live client in the queue
 *   FOREIGN  another library, which compares and deletes its own value, can release what it took       (with OTHER=1)
 *
 * A hold begins when a client acts on an answer in which its whole TTL was seen set. It ends when the client says so.
 *
 * Parameters, each -DNAME=value for spin:
 *
 *   C, A     clients, and attempts of each, one after the other; C*A <= 6
 *   SHORT    1: the last client makes one attempt less.
 *   TOKENS   1: counters up to FMAX; what would need a larger one does not happen. 0: no counters, and no such bound.
 *            Then ME, NOBODY, FIFO, ONCE, STRAND and FOREIGN are for any number of grants.
 *   BLOCK    how many tokens an enqueue or a claim asks for. All of them count as given with the first: UNIQ, RT and
 *            HO are for each, VER is for those of others. OWN is for the first, because a claim does not draw the
 *            others: other locks may have. acquire, and a grant to another waiter, draw one.
 *   BUMP     1: other locks of the slot draw from the same counter, at any time.
 *   EXPIRE   1: lock and queue may expire at any time: no assumption about time at all. 0: the lock expires when its
 *            owner does not hold it (then the client finds that an answer comes too late to be of use), the queue when
 *            no live client is in it.
 *   LATE     1: an answer may also be heard after its client has gone on, and takes the request out of doubt. 0: once
 *            in doubt, always in doubt.
 *   DUP      1: requests that were answered may be executed again, too. NOBODY is then promised only after a handover
 *            with a tombstone: docs/safety.md says what a repetition does otherwise. (-DALWAYS: as if it were.)
 *   TRYLOCK  1: clients may ask without wanting to wait.
 *   EXTEND   1: holders may send extend.
 *   MINHOLD  1: a handover may keep the lock for nobody, for a while.
 *   FORCE    1: an operator may take the lock from anybody; only with EXPIRE=1, for it breaks ME as DEL does.
 *   OTHER    1: another library sets and deletes the same key, without a queue.
 *
 * The bugs to plant, each with -D and its name, are marked BUG, here, in server.pml and in queue.pml.
 */
#ifndef SHORT
#define SHORT 0
#endif
#ifndef BUMP
#define BUMP 0
#endif
#ifndef EXPIRE
#define EXPIRE 0
#endif
#ifndef LATE
#define LATE 0
#endif
#ifndef TRYLOCK
#define TRYLOCK 0
#endif
#ifndef EXTEND
#define EXTEND 0
#endif
#ifndef MINHOLD
#define MINHOLD 0
#endif
#ifndef FORCE
#define FORCE 0
#endif
#ifndef OTHER
#define OTHER 0
#endif
#if FORCE && !EXPIRE
#error an operator breaks ME
#endif

#define CURRENT(o)  (attempt[CLIENT(o)] == ((o)-1)%A)
#define ALIVE(o)    (CURRENT(o) && phase[CLIENT(o)] != idle)
#define SKIPS(h)    true
#define SKIPPED(h)  skip

#include "queue.pml"

/* Is a live client in the queue? */
#define LIVEIN(o)   (place[o] > 0 && ALIVE(o))
#if OWNERS == 1
#define LIVEWAITERS LIVEIN(1)
#elif OWNERS == 2
#define LIVEWAITERS (LIVEIN(1) || LIVEIN(2))
#elif OWNERS == 3
#define LIVEWAITERS (LIVEIN(1) || LIVEIN(2) || LIVEIN(3))
#elif OWNERS == 4
#define LIVEWAITERS (LIVEIN(1) || LIVEIN(2) || LIVEIN(3) || LIVEIN(4))
#else
#define LIVEWAITERS (LIVEIN(1) || LIVEIN(2) || LIVEIN(3) || LIVEIN(4) || LIVEIN(5) || LIVEIN(6))
#endif

/* ---- State -------------------------------------------------------------------------------------------------------*/

/* The network: what was sent and may be executed unheard, a set of the bits below; and what ends an attempt. */
#define ACQUIRE   1
#define ENQUEUE   2                                    /* without a ticket */
#define HEARTBEAT 4                                    /* with the ticket */
#define NOWAIT    8                                    /* TryLock */
#define CLAIM     16
byte wire[OWNERS+1];
byte handovers[OWNERS+1];                              /* 1: handover was sent, 2: with a tombstone */
byte releases[OWNERS+1];                               /* release was sent, with this counter */

/* A client. */
mtype = { idle, waiting, told, holding, extending };
mtype phase[C] = idle;                                 /* told: it has heard of its lock, and not acted on it yet */
byte attempt[C];
byte got[C];                                           /* the counter it was told; its token while it holds */
#if BLOCK > 1
byte size[C];                                          /* how many tokens it has, from that on */
#define HAS(o, n)   size[CLIENT(o)] = n
#define LASTOF(c)   (got[c] + size[c] - 1)
#else
#define HAS(o, n)   skip
#define LASTOF(c)   got[c]
#endif
byte doubt[C];                                         /* its requests that are in doubt; without LATE, 1 for any */

/* For the assertions only; no client can see it. */
byte given;                                            /* all tokens ever given, a set of bits */
byte newest;                                           /* the largest of them */
byte before[C];                                        /* newest, when the attempt or the extension started */

#if OTHER
bool stranger;                                         /* the other library holds the lock */
#endif
#ifdef MARK_APART
bool half[OWNERS+1];
#endif

#include "server.pml"

#if OTHER
/* Another library: SET NX PX, and a script that compares and deletes. */
active proctype Stranger()
{
end:	do
	:: d_step { lock == 0 && !stranger -> lock = STRANGER; stranger = true; printf("another library takes the lock\n") }
	:: d_step { stranger -> stranger = false; printf("another library forgets the lock\n") }
	:: d_step { lock == STRANGER && stranger ->
		stranger = false; printf("another library releases\n");
		CHECK(!mark, FOREIGN);
		vanish() }
	:: d_step { lock == STRANGER && (!stranger || EXPIRE) -> vanish(); printf("its lock expires\n") }
	od
}
#endif

/* ---- A client ----------------------------------------------------------------------------------------------------*/

#define SELF (_pid-1-OTHER)
#define ME   OWNER(SELF, attempt[SELF])
#define MYNAME 65+SELF, attempt[SELF]+1
#define BITS ((1<<(LASTOF(SELF)+1)) - (1<<got[SELF]))  /* its tokens */

/* Does the attempt end without a tombstone? */
#if   defined(LEAVE_NOTOMB)                            /* BUG: also while a request is unanswered */
#define CLEAN true
#elif defined(RELEASE_DOUBT)                           /* BUG: a holder does not mind requests in doubt */
#define CLEAN (doubt[SELF] == 0 || phase[SELF] == holding)
#else
#define CLEAN (doubt[SELF] == 0)
#endif

inline tidy() {                                        /* a ticket that nobody needs any more */
	if
	:: ticket[ME] > 0 && !(wire[ME] & HEARTBEAT) -> ticket[ME] = 0; renumber()
	:: else
	fi
}

/* b was sent, and no answer came. */
#define LOSES(b) \
	:: d_step { phase[SELF] == waiting && HASTICKET(ME) == ((b) == HEARTBEAT) && !(wire[ME] & (b)) -> \
		wire[ME] = wire[ME] | (b); \
		doubt[SELF] = (LATE -> doubt[SELF] | (b) : 1); \
		printf("%c%d has no answer: ", MYNAME); printf(#b); DONE }

active [C] proctype Client()
{
end:	do
	/* An attempt begins. Where clients are all alike, the first of them may as well be the first to begin. */
	:: d_step { phase[SELF] == idle && attempt[SELF] < A-(SHORT && SELF == C-1) &&
		(SHORT || SELF == 0 || attempt[SELF-1] > 0 || phase[SELF-1] != idle) ->
		before[SELF] = newest; phase[SELF] = waiting; printf("%c%d starts\n", MYNAME) }

	LOSES(ACQUIRE)
	LOSES(ENQUEUE)
	LOSES(HEARTBEAT)
#if TRYLOCK
	LOSES(NOWAIT)
#endif
	/* A claim in doubt does nothing, should it be executed: what it prolongs is nobody's, and may expire all the same. */
	:: d_step { phase[SELF] == waiting && doubt[SELF] == 0 ->
		doubt[SELF] = (LATE -> CLAIM : 1); printf("%c%d has no answer: CLAIM\n", MYNAME) }

	/* it has the lock */
	:: d_step { phase[SELF] == told ->
		printf("%c%d has the lock, token %d\n", MYNAME, got[SELF]);
#if TOKENS
#ifndef SKIP_UNIQ                                      /* for bugs that break more than this */
		CHECK(!(given & BITS), UNIQ);
#endif
		CHECK(got[SELF] > before[SELF], RT);
		given = given | BITS;
#if OWN
		CHECK(drawn[got[SELF]] == ME, OWN);
#endif
#endif
#if !EXPIRE
#if OTHER
		CHECK(!stranger, ME);
#endif
		i1 = 0;
		do
		:: i1 < C ->
			CHECK(phase[i1] != holding && phase[i1] != extending, ME);
			i1++
		:: else -> break
		od;
		i1 = 0;
#if TOKENS
		CHECK(got[SELF] > newest, HO);
#endif
#endif
		newest = (LASTOF(SELF) > newest -> LASTOF(SELF) : newest);
		before[SELF] = 0; tidy();
		phase[SELF] = holding }

	/* it extends; an extension that is not answered is not believed, and does no harm */
	:: d_step { EXTEND && phase[SELF] == holding ->
		before[SELF] = newest; phase[SELF] = extending; printf("%c%d sends extend\n", MYNAME) }

	/* the end of an attempt or of a hold: given up, out of time, released, or dead */
	:: d_step { phase[SELF] != idle ->
		printf("%c%d ends", MYNAME);
		if
		:: CLEAN -> handovers[ME] = 1; releases[ME] = (got[SELF] > 0 -> got[SELF] : FMAX)
		:: else -> handovers[ME] = 2; printf(", with a tombstone")
		fi;
		DONE;
		got[SELF] = 0; HAS(ME, 0); doubt[SELF] = 0; before[SELF] = 0; tidy();
		attempt[SELF]++; phase[SELF] = idle }
	od
}
