/*
 * How some of the locks that stand for the places of a key are acquired: permits of a semaphore, and the shared and
 * exclusive locks of an rwlock. The places, the gate and the intent lock are ordinary locks with a queue, which are
 * right by themselves: that is the matter of the other models.
 *
 * The world: each of P callers acquires once, and is a reader (one place), a caller with a weight (two of the places),
 * a writer (all of them) or a reader that may upgrade. A lock goes to the first that waits for it, at any later time.
 * LOSSES times a lock expires under its holder, who knows at once: its validity was over before (E2, E3). LEAVES times
 * a caller that waits leaves. What a caller gives back, it gives back at once, in any order with what the others do.
 * CRASHES times a caller crashes: what it has expires at any later time, and what it waits for is granted to nobody.
 * Programs may have different limits n: with SMALL, some use the first S-1 places only.
 *
 * What is checked:
 *
 *   EXC    nobody relies on a place while a writer relies on all of them
 *   LIMIT  callers whose validity is not over, by their own clocks, rely on no more places together than the greatest n
 *          of their programs says, and none of them has a place beyond its own n
 *   OVER   who asks after another one has come to the gate is not served before that one, unless it lost the gate
 *   STUCK  all callers are served, or leave
 *
 * Parameters: P callers; S places, 3 at most; LOSSES; LEAVES; CRASHES; SMALL; STEP, 1: the store can take the first free
 * places in one step, if nobody holds or waits for the gate; KINDS, which callers there are: 1 readers, 2 weights, 4
 * writers, 8 upgrades, added up. The bugs to plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef P
#define P 3
#endif
#ifndef S
#define S 2
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef LEAVES
#define LEAVES 1
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef SMALL
#define SMALL 0
#endif
#ifndef STEP
#define STEP 0
#endif
#ifndef KINDS
#define KINDS 13
#endif

#define GATE   0
#define INTENT 1
#define FIRST  2
#ifdef BEYOND                                          /* BUG: a program uses one place beyond its own n */
#define EXTRA 1
#else
#define EXTRA 0
#endif
#define LOCKS  (FIRST+S+EXTRA)
#define END    (FIRST+limit[SELF]+EXTRA)               /* the caller uses the places before this one */

byte owner[5];                                         /* 0: nobody */
chan queue[5] = [P] of { byte };                       /* who waits, in the order of arrival */

mtype = { reader, weight, writer, upgrade };
byte limit[P+1];                                       /* n of the program; 0: it has not begun */
byte relies[P+1];                                      /* on how many places, while its validity is not over */
bool alone[P+1];                                       /* relies on all places */
byte lost[P+1];                                        /* of the locks that it has, it has lost: 1 the gate, 2 the intent
                                                          lock, 4 a place, added up */
bool came[P+1];                                        /* waits for the gate, or has it */
byte after[P+1];                                       /* bits: those at the gate when this one began to ask */
byte done;                                             /* bits: callers that are through, or have crashed */
byte dead;                                             /* bits: callers that have crashed */
byte losses, leaves, crashes;
byte i1, i2, i3;                                       /* scratch, 0 between steps */

#define SELF (_pid+1)
#define NAME 64+SELF
#define BIT(p) (1 << (p))

/* How many places the caller has. */
#if defined(GATE_COUNTS)                               /* BUG: the gate has the name of a place */
#define MORE (owner[GATE] == SELF)
#elif defined(LOST_COUNTS)                             /* BUG: what was granted counts, although it is lost */
#define MORE ((lost[SELF] & 4) > 0)
#else
#define MORE 0
#endif
#define HAS ((owner[2] == SELF) + (owner[3] == SELF) + (owner[4] == SELF) + MORE)
/* l is free, and nobody waits for it. */
#define FREE(l) (owner[l] == 0 && len(queue[l]) == 0)
#define UNUSED  (FREE(2) + (END > 3 && FREE(3)) + (END > 4 && FREE(4)))

inline drop(l) {
	if
	:: owner[l] == SELF -> owner[l] = 0
	:: else -> if :: queue[l]??[eval(SELF)] -> queue[l]??eval(SELF) :: else fi
	fi
}
/* Leaves the places, except n of those that the caller has. */
inline keep(n) {
	i1 = FIRST; i2 = n;
	do
	:: i1 < END ->
		if
		:: owner[i1] == SELF && i2 > 0 -> i2--
		:: else -> drop(i1)
		fi;
		i1++
	:: else -> break
	od;
	i1 = 0; i2 = 0
}
inline back() { keep(0); drop(GATE); drop(INTENT); came[SELF] = false; lost[SELF] = 0; relies[SELF] = 0 }

/* Begins to ask. */
inline ask() {
	after[SELF] = 0; i1 = 1;
	do
	:: i1 <= P -> if :: came[i1] -> after[SELF] = after[SELF] | BIT(i1) :: else fi; i1++
	:: else -> break
	od;
	i1 = 0
}
inline come() {
	came[SELF] = true; queue[GATE]!SELF;
	i1 = 1;                                        /* nobody has asked since */
	do
	:: i1 <= P -> after[i1] = after[i1] & ~BIT(SELF); i1++
	:: else -> break
	od;
	i1 = 0
}

/* The caller has what it wants. */
inline enter(all) {
	printf("%c is served\n", NAME);
	relies[SELF] = n;
	i1 = 1; i2 = 0; i3 = 0;
	do
	:: i1 <= P ->
		i2 = i2 + relies[i1]; i3 = (limit[i1] > i3 -> limit[i1] : i3);
		CHECK(i1 == SELF || !relies[i1] || !(all || alone[i1]), EXC);
		CHECK(i1 == SELF || !came[i1] || (after[SELF] & BIT(i1)) == 0, OVER);
		i1++
	:: else -> break
	od;
	CHECK(i2 <= i3, LIMIT);
	i1 = FIRST + limit[SELF];
	do
	:: i1 < LOCKS -> CHECK(owner[i1] != SELF, LIMIT); i1++
	:: else -> break
	od;
	i1 = 0; i2 = 0; i3 = 0;
	alone[SELF] = all; came[SELF] = false
}

/* Takes the first n places that are free. */
inline take(n) {
	i1 = FIRST; i2 = n;
	do
	:: i1 < END -> if :: i2 > 0 && FREE(i1) -> owner[i1] = SELF; i2-- :: else fi; i1++
	:: else -> break
	od;
	i1 = 0; i2 = 0
}
#ifdef IGNORES_GATE                                    /* BUG: the step does not look at the gate */
#define OPEN true
#else
#define OPEN (FREE(GATE) && (kind != writer || FREE(INTENT)))
#endif
#ifdef MISSES                                          /* BUG: a writer does without the last place */
#define ALL (S-1)
#else
#define ALL S
#endif
#if defined(LOST_GATE)                                 /* BUG: who has lost the gate goes on with what it has */
#define GONE (lost[SELF] & 6)
#elif defined(LOST_INTENT)                             /* BUG: who has lost the intent lock goes on */
#define GONE (lost[SELF] & 5)
#elif defined(LOST_PLACE) || defined(LOST_COUNTS)     /* BUG: who has lost a place does not wait for it again */
#define GONE (lost[SELF] & 3)
#else
#define GONE (lost[SELF])
#endif
#define LEAVE(l) leaves < LEAVES && owner[l] != SELF -> leaves++; printf("%c leaves\n", NAME)

#define CRASHED(p) ((dead & BIT(p)) > 0)
#if CRASHES > 0
#define MORTAL provided (!CRASHED(_pid+1))
#else
#define MORTAL                                         /* spin merges no steps of what is provided with a condition */
#endif
inline is(what, places, most) {
	kind = what; n = places; limit[SELF] = most; printf("%c is a %e, n is %d\n", NAME, kind, limit[SELF])
}

active [P] proctype Caller() MORTAL
{
	mtype kind;
	byte n;                                        /* how many places it wants */
	short l, last, by;                             /* scratch */

	if
	:: d_step { KINDS & 1 -> is(reader, 1, S) }
	:: d_step { (KINDS & 1) && SMALL && S > 1 -> is(reader, 1, S-1) }
	:: d_step { (KINDS & 2) && S > 1 -> is(weight, 2, S) }
	:: d_step { KINDS & 4 -> is(writer, ALL, S) }
	:: d_step { KINDS & 8 -> is(upgrade, 1, S) }
	fi;

again:	skip; d_step { ask() }
	if
	:: d_step { STEP && kind != upgrade && OPEN && UNUSED >= n -> take(n); enter(kind == writer) }; goto work
	:: !(STEP && kind != upgrade && OPEN && UNUSED >= n)
	fi;
#ifdef GATE_FIRST                                      /* BUG: the gate before the intent lock */
	if
	:: kind == writer -> d_step { come() }; owner[GATE] == SELF || GONE
	:: kind != writer
	fi;
#endif
	if
	:: kind == writer || kind == upgrade -> queue[INTENT]!SELF;
		if
		:: owner[INTENT] == SELF || GONE
		:: LEAVE(INTENT); goto out
		fi
	:: kind == reader || kind == weight
	fi;

gate:
#ifndef NO_GATE                                        /* BUG: places are waited for without the gate */
	if
	:: owner[GATE] == SELF
	:: d_step { owner[GATE] != SELF -> come() }
	fi;
	if
	:: owner[GATE] == SELF || GONE
	:: LEAVE(GATE); goto out
	fi;
#endif
	if                                             /* the requests arrive in this order, or the other way round */
	:: l = FIRST; last = END; by = 1
	:: l = END-1; last = FIRST-1; by = -1
	fi;
	do
	:: d_step { l != last && owner[l] != SELF -> queue[l]!SELF; l = l + by }
	:: d_step { l != last && owner[l] == SELF -> l = l + by }
	:: l == last -> break
	od;
	if
	:: d_step { !GONE && HAS >= n ->
		keep(n); drop(GATE); lost[SELF] = 0;
		if :: kind == writer -> drop(INTENT) :: else fi;
		enter(kind == writer || kind == upgrade && n > 1) }
	:: GONE -> printf("%c gives everything back\n", NAME);
		if
		:: d_step { relies[SELF] || kind == upgrade && n > 1 -> back() }; goto out
		:: d_step { !relies[SELF] && !(kind == upgrade && n > 1) -> back() }; goto again
		fi
	:: LEAVE(FIRST); goto out
	fi;

work:	if
	:: true
	:: d_step { kind == upgrade && n == 1 && lost[SELF] == 0 -> printf("%c upgrades\n", NAME); n = S; ask() }; goto gate
	fi;
out:	skip; d_step { printf("%c ends\n", NAME); back(); done = done | BIT(SELF) }
}

/* What the store does. */
inline serve(l) { d_step { l < LOCKS && owner[l] == 0 && len(queue[l]) > 0 ->
	queue[l]?owner[l]; printf("%c gets lock %d\n", 64+owner[l], l) } }
#ifdef PAST_TTL                                        /* BUG: a caller relies on a place after its TTL */
#define RELIES
#else
#define RELIES relies[owner[l]] = 0;
#endif
#ifdef LEAKS                                           /* BUG: what a crashed caller has does not expire */
#define DEAD false
#else
#define DEAD CRASHED(owner[l])
#endif
inline expire(l) { d_step { l < LOCKS && owner[l] > 0 && (DEAD || losses < LOSSES && !CRASHED(owner[l])) ->
	printf("%c loses lock %d\n", 64+owner[l], l);
	if
	:: CRASHED(owner[l])
	:: else -> losses++; RELIES
		lost[owner[l]] = lost[owner[l]] | (l == GATE -> 1 : (l == INTENT -> 2 : 4));
		if :: l == GATE -> came[owner[l]] = false :: else fi
	fi;
	owner[l] = 0 } }
inline crash(p) { d_step { p <= P && crashes < CRASHES && (done & BIT(p)) == 0 ->
	crashes++; printf("%c crashes\n", 64+p); done = done | BIT(p); dead = dead | BIT(p);
	relies[p] = 0; came[p] = false } }

active proctype Store()
{
end:	do
	:: serve(0) :: serve(1) :: serve(2) :: serve(3) :: serve(4)
	:: expire(0) :: expire(1) :: expire(2) :: expire(3) :: expire(4)
	:: crash(1) :: crash(2) :: crash(3)
	od
}

active proctype Watch()
{
end:	do
	:: timeout -> CHECK(done == BIT(P+1)-2, STUCK)
	od
}
