/*
 * The time of a store in a record: package record, over a Store that is a ServerClock.
 *
 * Each answer tells the time on the clock of the machine that has given it, rounded down. A record says from which time
 * on others may take its lock. Its owner writes what it believes of the store's time, and that may be wrong by any
 * amount: its machine may have been suspended since it was told, a cache may have answered, the clock may have been
 * set. So it relies on a record only if the answer to a request that it has sent after it began to count tells a time
 * that is early enough. If not, it writes the record again, and in the end without one, for those who watch.
 *
 * The world: one owner, which acquires the lock and extends it, by less, too; and others, who take the lock if an
 * answer tells a time that is late enough, or if they have watched the record for its length. The store executes a
 * request, and tells its time, at any moments until the answer arrives, in any order. An answer may tell no time. The
 * success of a write may be reported as a conflict, and answers may be lost; what was given up may be executed later.
 * The clocks of the store's machines differ by at most D ticks, from each other and from what they said before. Time
 * passes at the same speed for all.
 *
 * What is checked:
 *
 *   ME       when others take the lock, the owner does not rely on it
 *
 * record.pml has the rest of the protocol: several owners, tokens, undoing, releases.
 *
 * Parameters: L, the length in ticks; R, in ticks, the unit of the times that are told; D; OFF, by how much the clocks
 * do differ; V writes that take effect; N ticks; MISSES, how many ends that are too early are written. The bugs to
 * plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef L
#define L 3
#endif
#ifndef R
#define R 2
#endif
#ifndef D
#define D 1
#endif
#ifndef OFF
#define OFF D
#endif
#ifndef V
#define V 3
#endif
#ifndef N
#define N 6
#endif
#ifndef MISSES
#define MISSES 1
#endif

#define NONE 255

#ifdef NO_RESOLUTION                                   /* BUG: a time that is told is believed to be exact */
#define ROUND 0
#else
#define ROUND (R-1)                                    /* in whole ticks */
#endif
#ifdef NO_SKEW                                         /* BUG: all machines are believed to have one clock */
#define SKEW 0
#else
#define SKEW D
#endif

byte now;                                              /* the least that a clock of the store shows */

/* The record, of which the owner writes all versions but the last. */
byte version;                                          /* 0: there is none */
byte length;
byte ends;                                             /* others may take the lock from then on; 0: they watch */
bool taken;                                            /* by others */

/* The owner. */
bool relied;                                           /* has had the lock */
byte own;                                              /* the version that it writes over */
byte ownEnds;
byte misses;                                           /* how often it has written what did not cover it */
byte ask;                                              /* ticks of what it asks for */
byte promise;                                          /* ticks of the longest that it has asked for */
byte valid;                                            /* ticks of what it relies on */

/* Its write on its way. What it gives up stays until it is executed, or cannot be. */
bool sent;
bool waits;
bool done;                                             /* executed */
bool stored;
bool dated;
byte told;
byte wlength;
byte wends;

/* Others. */
mtype = { idle, looks, writes };
mtype others = idle;
bool read;
byte rversion;
byte rlength;
byte rends;
bool rdated;
byte rtold;
byte sees;                                             /* the version that they watch */
byte count;                                            /* ticks that they have to watch it yet */

inline tick(x) { x = x - (x > 0) }
#define LATER(x, y) (x > y -> x : y)

#ifdef FALLS                                           /* BUG: the end of an extension may be an earlier one */
#define FLOOR 0
#else
#define FLOOR ownEnds
#endif
#ifdef REGAINS                                         /* BUG: what others watch gets an end again */
#define WATCHED false
#else
#define WATCHED (own > 0 && ownEnds == 0)
#endif
#ifdef SHORTENS                                        /* BUG: an extension covers only what it asks for */
#define COVERS ask
#else
#define COVERS promise
#endif

/* Writes the record over the version own, to last for l. */
inline write(l) {
	sent = true; waits = true; ask = l; promise = LATER(promise, l); wlength = COVERS;
	if
	:: WATCHED || misses >= MISSES -> wends = 0
	:: else ->
		select(wends : 1 .. N+1);                           /* whatever the owner believes */
		wends = LATER(wends, FLOOR)
	fi;
	printf("the owner writes over version %d, to end at %d\n", own, wends)
}
inline forget() {
	sent = false; waits = false; done = false; stored = false; dated = false; told = 0; wlength = 0; wends = 0
}

#ifdef NO_CHECK                                        /* BUG: what it knew of the time is believed */
#define COVERED true
#elif defined(ENDS_ONLY)                               /* BUG: it is enough that the time of the others has not come */
#define COVERED (wends == 0 || told != NONE && wends > told)
#else
#define COVERED (wends == 0 || told != NONE && wends >= told + ROUND + SKEW + wlength)
#endif
#ifdef FROM_REPLY                                      /* BUG: it counts from when the answer has come */
#define ASKED L
#else
#define ASKED ask
#endif

active proctype Owner()
{
end:	do
	:: atomic { !sent && !taken && (valid > 0 || !relied) && version < V -> write(L) }
	:: atomic { !sent && valid > 0 && version < V -> write(1) }
	:: d_step { waits && done && dated ->
		if
		:: stored ->
			own++; ownEnds = wends;
			if
			:: COVERED ->
				relied = true; valid = LATER(valid, ASKED); misses = 0;
				printf("the owner relies on version %d for %d\n", own, valid)
			:: else -> misses++; printf("version %d does not cover it\n", own)
			fi
		:: else ->                                       /* it reads the record */
			if
			:: !taken -> own = version; ownEnds = ends
			:: else -> printf("the owner has lost the lock\n"); valid = 0; relied = true
			fi
		fi;
		forget() }
	:: d_step { waits -> waits = false; printf("the owner has no answer\n");
		if
		:: done -> own = version; ownEnds = ends; forget()
		:: else
		fi }
	:: d_step { sent && !waits && done -> own = version; ownEnds = ends; forget() }
	:: d_step { sent && !done && !taken ->
		done = true; stored = true; version++; length = wlength; ends = wends;
		printf("version %d is stored, and ends at %d\n", version, ends) }
	:: d_step { sent && !done && taken -> done = true; stored = false }
	:: d_step { waits && stored -> stored = false; printf("the owner is told of a conflict\n") }
	:: d_step { waits && !dated -> dated = true; told = ((now + OFF) / R) * R; printf("the owner is told %d\n", told) }
	:: d_step { waits && !dated -> dated = true; told = (now / R) * R; printf("the owner is told %d\n", told) }
	:: d_step { waits && !dated -> dated = true; told = NONE }
	od
}

#define PAST (rends > 0 && rtold != NONE && rtold >= rends)
#define SEEN (sees == rversion && count == 0)

active proctype Others()
{
end:	do
	:: d_step { others == idle && version > 0 && !taken -> others = looks }
	:: d_step { others == looks && !read ->
		read = true; rversion = version; rlength = length; rends = ends; printf("others read version %d\n", version) }
	:: d_step { others == looks && !rdated ->
		rdated = true; rtold = ((now + OFF) / R) * R; printf("others are told %d\n", rtold) }
	:: d_step { others == looks && !rdated -> rdated = true; rtold = (now / R) * R; printf("others are told %d\n", rtold) }
	:: d_step { others == looks && !rdated -> rdated = true; rtold = NONE }
	:: d_step { others == looks && read && rdated ->
		if
		:: sees != rversion -> sees = rversion; count = rlength
		:: else
		fi;
		others = (PAST || SEEN -> writes : idle);
		read = false; rdated = false; rends = 0; rlength = 0; rtold = 0; rversion = (others == writes -> rversion : 0) }
	:: d_step { others == writes ->
		if
		:: rversion == version ->
			taken = true; printf("others take the lock\n"); CHECK(valid == 0, ME)
		:: else
		fi;
		others = idle; rversion = 0 }

	/* Time. */
	:: d_step { now < N -> tick(ask); tick(promise); tick(valid); tick(count); now++; printf("tick: %d\n", now) }
	od
}
