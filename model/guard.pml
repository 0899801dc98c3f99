/*
 * The restart guard: nodes that forget, and rest before they grant again. fence.pml is about tokens, which hold
 * whatever happens to locks. This is about exclusion, when nodes forget locks that have not ended.
 *
 * A marker in the data of a node names the process that the node was when it began to rest, and says when that was. The
 * script that grants compares it: if there is none, or it names another process, or it is from the future, the node
 * begins to rest. While it rests, a node grants nothing. It goes on extending and releasing.
 *
 * Time is in ticks, which are the same for all that counts down. A TTL has M of them, a rest G. A client relies on a
 * lock for M ticks from when it asked, and a key lives for M ticks from when the script was executed. So exclusion is
 * sound as long as no node forgets.
 *
 * What a node may do, a few times:
 *
 *   come back empty          another process, no data: no persistence, or an empty replica that is promoted
 *   be emptied               the same process, no data: FLUSHALL
 *   go back                  another process, with the data of an earlier moment: an old RDB, an AOF that lacks the
 *                            last second, a replica that lagged and is promoted
 *   be given its own past    the same process, with the data of an earlier moment: a replica that lagged was promoted,
 *                            had the node follow it, and gave way to it again (FAILBACK). The history of its data is
 *                            another one then (master_replid), which is what names a process here
 *   have its clock put back  by BACK ticks. TTLs and rests last longer then, also those of data that are on disk
 *
 * ME is checked: no client gets, or extends, a lock that another one relies on.
 *
 * Parameters, each -DNAME=value: N nodes, 1 or 3; C clients with A attempts each, C*A <= 4; M, G; FORGETS, how often
 * nodes forget; STEPS, how often a clock is put back; QUEUE=1 (with N=1): clients wait in a queue on the node, and who
 * frees the lock grants it to one of them, who claims it within a window. Bugs to plant, each with -D and its name, are
 * marked BUG.
 */
#include "check.pml"

#ifndef N
#define N 1
#endif
#ifndef C
#define C 2
#endif
#ifndef A
#define A 1
#endif
#ifndef M
#define M 2
#endif
#ifdef GUARD_SHORT                                     /* BUG: TTLs may be longer than the guard */
#define G (M-1)
#endif
#ifndef G
#define G M
#endif
#ifndef FORGETS
#define FORGETS 1
#endif
#ifndef STEPS
#define STEPS 0
#endif
#ifndef BACK
#define BACK (G+1)
#endif
#ifndef QUEUE
#define QUEUE 0
#endif
#ifndef FAILBACK
#define FAILBACK 0
#endif

#define MAJ         (N/2+1)
#define BIT(i)      (1<<(i))
#define MAJORITY(s) (((s)&1)+(((s)>>1)&1)+(((s)>>2)&1) >= MAJ)
#define WINDOW      1                                  /* ticks to claim a lock that was granted from the queue */

/* ---- Owners ---------------------------------------------------------------------------------------------------------
 * Each attempt has an owner value of its own, 1..OWNERS; 0 is nobody. A1 is the first attempt of the first client. */
#define OWNERS      (C*A)
#define OWNER(c,a)  ((c)*A+(a)+1)
#define CLIENT(o)   (((o)-1)/A)
#define CURRENT(o)  (attempt[CLIENT(o)] == ((o)-1)%A)
#define NAME(o)     65+CLIENT(o), 1+((o)-1)%A

/* ---- State ---------------------------------------------------------------------------------------------------------
 * Requests go to all nodes and stay on their way for ever, so they may be executed late, often, or never. */
bool sentAcquire[OWNERS+1];
bool sentRelease[OWNERS+1];

/* A client. */
mtype = { idle, acquiring, holding };
mtype phase[C] = idle;
byte attempt[C];
byte votes[C];                                         /* the nodes that have granted, or extended; a set of bits */
byte asked[C];                                         /* what is left of a TTL that began when it asked */
byte relies[C];                                        /* for how long it still relies on the lock */
bool extends[C];                                       /* it waits for the answers to an extension */

/* A node. A time that may be in the past is more by ZERO. */
#define ZERO        BACK
byte process[N];                                       /* the one that runs, and its history: never the same again */
byte lock[N];
byte left[N];                                          /* of the lock's TTL */
byte queue[N];                                         /* clients that wait, a set of bits by owner */
byte marker[N];                                        /* the process that the marker names, 0: there is none */
byte rest[N];                                          /* what is left of the rest by the marker, more by ZERO */

/* Its data at an earlier moment, on disk or on a replica. */
bool saved[N];
byte savedLock[N], savedLeft[N], savedQueue[N], savedMarker[N], savedRest[N];

byte forgot, steps;
byte i1;                                               /* scratch, 0 between steps */

/* ---- The guard -------------------------------------------------------------------------------------------------- */

#if   defined(NO_GUARD)                                /* BUG: nodes never rest */
#define KNOWN(i)    true
#define RESTED(i)   true
#elif defined(NOT_COMPARED)                            /* BUG: any marker will do */
#define KNOWN(i)    (marker[i] > 0 && rest[i] <= G + ZERO)
#define RESTED(i)   (KNOWN(i) && rest[i] <= ZERO)
#elif defined(FUTURE_RESTED)                           /* BUG: a marker from the future counts as one from long ago */
#define KNOWN(i)    (marker[i] == process[i])
#define RESTED(i)   (KNOWN(i) && (rest[i] <= ZERO || rest[i] > G + ZERO))
#else
#define KNOWN(i)    (marker[i] == process[i] && rest[i] <= G + ZERO)
#define RESTED(i)   (KNOWN(i) && rest[i] <= ZERO)
#endif
#ifdef TOUCH_RESTED                                    /* BUG: who opens a client ends the rest */
#define TOUCHED     ZERO
#else
#define TOUCHED     (G + ZERO)
#endif

/* What a node grants, to a client that asks. A client that holds the lock asks for it again when its lease heals. */
#ifdef MARK_APART                                      /* BUG: the marker is compared by a script of its own, before */
#define GRANTS(o,i) (looked[o] & BIT(i))
byte looked[OWNERS+1];
#elif defined(HEAL_RESTING)                            /* a lease that heals does not wait for the rest */
#define GRANTS(o,i) (RESTED(i) || (CURRENT(o) && phase[CLIENT(o)] == holding))
#else
#define GRANTS(o,i) RESTED(i)
#endif
#ifdef HANDOVER_RESTING                                /* BUG: who frees the lock grants it, also if the node rests */
#define HANDS(i)    true
#else
#define HANDS(i)    RESTED(i)
#endif
#ifdef CLAIM_RESTING                                   /* BUG: what was granted is claimed while the node rests */
#define CLAIMED(i)  true
#else
#define CLAIMED(i)  RESTED(i)
#endif

/* ---- A node ------------------------------------------------------------------------------------------------------*/

#define ME _pid                                        /* nodes are the processes 0..N-1 */

inline free(i) { lock[i] = 0; left[i] = 0 }
inline blank(i) { free(i); queue[i] = 0; marker[i] = 0; rest[i] = 0 }
inline restore(i) {
	blank(i);
	queue[i] = savedQueue[i]; marker[i] = savedMarker[i]; rest[i] = savedRest[i];
	if
	:: savedLock[i] > 0 && savedLeft[i] > ZERO -> lock[i] = savedLock[i]; left[i] = savedLeft[i] - ZERO
	:: else
	fi;
	discard(i)
}
inline discard(i) {
	saved[i] = false; savedLock[i] = 0; savedLeft[i] = 0; savedQueue[i] = 0; savedMarker[i] = 0; savedRest[i] = 0
}
inline grant(o, i) { lock[i] = o; left[i] = M; queue[i] = queue[i] & ~BIT(o) }
inline hears(o, i) {
	if
	:: CURRENT(o) && phase[CLIENT(o)] == acquiring -> votes[CLIENT(o)] = votes[CLIENT(o)] | BIT(i)
	:: else
	fi
}

#define DELIVER(o) \
	:: d_step { sentAcquire[o] && lock[ME] == 0 && GRANTS(o, ME) -> \
		grant(o, ME); LOOKS(o, ~BIT(ME) &); hears(o, ME); \
		printf("%c%d acquires at node %d: granted\n", NAME(o), ME+1) } \
	LOOK(o) \
	:: d_step { sentAcquire[o] && lock[ME] == o && CURRENT(o) && phase[CLIENT(o)] == acquiring && !QUEUE && \
		!(votes[CLIENT(o)] & BIT(ME)) -> \
		hears(o, ME); printf("%c%d acquires at node %d: granted again\n", NAME(o), ME+1) } \
	:: d_step { CURRENT(o) && extends[CLIENT(o)] && lock[ME] == o && !(votes[CLIENT(o)] & BIT(ME)) -> \
		left[ME] = (left[ME] < M -> M : left[ME]); votes[CLIENT(o)] = votes[CLIENT(o)] | BIT(ME); \
		printf("%c%d extends at node %d: yes\n", NAME(o), ME+1) } \
	:: d_step { sentRelease[o] && (lock[ME] == o || (queue[ME] & BIT(o))) -> \
		if \
		:: lock[ME] == o -> free(ME) \
		:: else \
		fi; \
		queue[ME] = queue[ME] & ~BIT(o); printf("%c%d releases at node %d\n", NAME(o), ME+1) } \
	:: d_step { QUEUE && sentAcquire[o] && lock[ME] != 0 && lock[ME] != o && !(queue[ME] & BIT(o)) -> \
		queue[ME] = queue[ME] | BIT(o); printf("%c%d waits\n", NAME(o)) } \
	:: d_step { (queue[ME] & BIT(o)) && lock[ME] == 0 && HANDS(ME) -> \
		lock[ME] = o; left[ME] = WINDOW; queue[ME] = queue[ME] & ~BIT(o); \
		printf("the lock is granted to %c%d, from the queue\n", NAME(o)) } \
	:: d_step { QUEUE && CURRENT(o) && phase[CLIENT(o)] == acquiring && lock[ME] == o && CLAIMED(ME) && \
		!(votes[CLIENT(o)] & BIT(ME)) -> \
		left[ME] = (left[ME] < M -> M : left[ME]); hears(o, ME); printf("%c%d claims\n", NAME(o)) }

#ifdef MARK_APART
#define LOOKS(o, set) looked[o] = set looked[o]
#define LOOK(o) \
	:: d_step { sentAcquire[o] && RESTED(ME) && !(looked[o] & BIT(ME)) -> \
		looked[o] = looked[o] | BIT(ME); printf("%c%d looks at the marker of node %d: rested\n", NAME(o), ME+1) }
#else
#define LOOKS(o, set) skip
#define LOOK(o)
#endif

active [N] proctype Node()
{
	d_step { process[ME] = 1; marker[ME] = 1; rest[ME] = 0 };  /* it has rested for long */
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
	/* somebody asks, or opens a Locker */
	:: d_step { !KNOWN(ME) ->
		marker[ME] = process[ME]; rest[ME] = TOUCHED; printf("node %d begins to rest\n", ME+1) }
	:: d_step { forgot < FORGETS ->
		saved[ME] = true; savedLock[ME] = lock[ME]; savedLeft[ME] = left[ME] + ZERO; savedQueue[ME] = queue[ME];
		savedMarker[ME] = marker[ME]; savedRest[ME] = rest[ME];
		printf("the data of node %d are saved\n", ME+1) }
	:: d_step { forgot < FORGETS -> forgot++; process[ME]++; blank(ME); discard(ME);
		printf("node %d comes back empty\n", ME+1) }
	:: d_step { forgot < FORGETS -> forgot++; blank(ME); discard(ME); printf("node %d is emptied\n", ME+1) }
	:: d_step { forgot < FORGETS && saved[ME] -> forgot++; process[ME]++; restore(ME);
		printf("node %d goes back to what was saved\n", ME+1) }
#if FAILBACK
	:: d_step { forgot < FORGETS && saved[ME] -> forgot++; restore(ME);
#ifndef RUN_ID                                         /* BUG: a process is known by its run id alone */
		process[ME]++;
#endif
		printf("node %d, the same process, is given what was saved\n", ME+1) }
#endif
	:: d_step { steps < STEPS ->
		steps++; 
		left[ME] = (lock[ME] > 0 -> left[ME] + BACK : 0);
		rest[ME] = (marker[ME] > 0 -> rest[ME] + BACK : 0);
		savedLeft[ME] = (savedLock[ME] > 0 -> savedLeft[ME] + BACK : 0);
		savedRest[ME] = (savedMarker[ME] > 0 -> savedRest[ME] + BACK : 0);
		printf("the clock of node %d is put back\n", ME+1) }
	od
}

/* ---- A client ----------------------------------------------------------------------------------------------------*/

#define SELF (_pid-N)                                  /* clients are the processes that follow the nodes */
#define ATTEMPT OWNER(SELF, attempt[SELF])
#define MYNAME 65+SELF, attempt[SELF]+1

inline gets() {
	relies[SELF] = asked[SELF]; asked[SELF] = 0; votes[SELF] = 0; extends[SELF] = false; phase[SELF] = holding;
	i1 = 0;
	do
	:: i1 < C -> CHECK(i1 == SELF || phase[i1] != holding, ME); i1++
	:: else -> break
	od;
	i1 = 0
}
inline ends(c) {
	sentRelease[OWNER(c, attempt[c])] = true;
	asked[c] = 0; relies[c] = 0; votes[c] = 0; extends[c] = false; attempt[c]++; phase[c] = idle
}

active [C] proctype Client()
{
end:	do
	:: d_step { phase[SELF] == idle && attempt[SELF] < A ->
		sentAcquire[ATTEMPT] = true; asked[SELF] = M; phase[SELF] = acquiring; printf("%c%d starts\n", MYNAME) }
	/* who waits asks again, and claims what it was granted */
	:: d_step { QUEUE && phase[SELF] == acquiring && asked[SELF] < M ->
		asked[SELF] = M; votes[SELF] = 0; printf("%c%d asks again\n", MYNAME) }
	:: d_step { phase[SELF] == acquiring && MAJORITY(votes[SELF]) && asked[SELF] > 0 ->
		printf("%c%d has the lock\n", MYNAME); gets() }
	:: d_step { phase[SELF] == holding && !extends[SELF] ->
		extends[SELF] = true; asked[SELF] = M; votes[SELF] = 0; printf("%c%d sends extend\n", MYNAME) }
	:: d_step { phase[SELF] == holding && extends[SELF] && MAJORITY(votes[SELF]) ->
		printf("%c%d has extended the lock\n", MYNAME); gets() }
	:: d_step { phase[SELF] != idle -> printf("%c%d ends\n", MYNAME); ends(SELF) }
	od
}

/* ---- Time --------------------------------------------------------------------------------------------------------*/

inline less(x) { x = (x > 0 -> x - 1 : 0) }

active proctype Time()
{
end:	do
	:: d_step {
		printf("a tick\n");
		i1 = 0;
		do
		:: i1 < C ->
			less(asked[i1]); less(relies[i1]);
			if
			:: phase[i1] == holding && relies[i1] == 0 -> ends(i1)
			:: phase[i1] == holding && extends[i1] && asked[i1] == 0 -> extends[i1] = false; votes[i1] = 0
			:: phase[i1] == acquiring && asked[i1] == 0 && !QUEUE -> ends(i1)
			:: else
			fi;
			i1++
		:: else -> break
		od;
		i1 = 0;
		do
		:: i1 < N ->
			less(left[i1]); less(rest[i1]); less(savedLeft[i1]); less(savedRest[i1]);
			if
			:: left[i1] == 0 -> lock[i1] = 0
			:: else
			fi;
			i1++
		:: else -> break
		od;
		i1 = 0 }
	od
}
