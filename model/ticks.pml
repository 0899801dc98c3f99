/*
 * The ticks of a job in one record: packages once and record.
 *
 * Each tick is to be run once. An attempt looks at its clock, reads the record, and writes it over that version with
 * the tick and its own mark, unless the tick is there. When it is granted the tick, it looks at its clock again, and
 * runs the tick if the window is not over. Whoever writes the record may drop a tick when the window and the skew are
 * over by its clock. An attempt that is given up while its write may still take effect is undone, by another write
 * over the same version.
 *
 * The world: a request is executed at any later time or never, whether its sender still waits or not. A write may be
 * executed twice, and the second answer may be the one that arrives. It may also be refused for no reason, and executed
 * later. Replies may be late or lost. Attempts stand still, and are given up, at any time. The clocks of all instances
 * differ by the skew at most. There is one tick; the record changes for others, too.
 *
 * What is checked:
 *
 *   ONCE     the tick is run once
 *   CLEAN    the tick is not claimed by an attempt that was undone, and will not be
 *
 * Parameters: A attempts; W, the window, and S, the skew, in ticks of the clock; OFF, by how much the clocks do differ;
 * N ticks; V writes that take effect. The bugs to plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef A
#define A 3
#endif
#ifndef W
#define W 1
#endif
#ifndef S
#define S 1
#endif
#ifndef OFF
#define OFF S
#endif
#ifndef N
#define N 4
#endif
#ifndef V
#define V 6
#endif

byte now;

/* The record. */
byte version;
byte mark;                                             /* of the attempt that has claimed the tick; 0: none */

/* The attempts. */
mtype = { idle, looks, writes, granted, undoes, over };
mtype phase[A] = idle;
byte ahead[A];                                         /* its clock */
byte expects[A];                                       /* the version that its write replaces */
bool doubt[A];                                         /* the write may take effect yet */
bool sent[A];                                          /* and has not */
bool stored[A];                                        /* the answer says so, if it arrives */
bool read[A];                                          /* its read has an answer on its way */
byte rversion[A];
byte rmark[A];

/* For the assertions only. */
bool undone[A];
byte runs;

#define SELF _pid
#define NAME 65+SELF
#define CLOCK (now + ahead[SELF])
#ifdef SAME_MARK                                       /* BUG: the attempts of one call have one mark */
#define MARK(i) (i < 2 -> 1 : i+1)
#else
#define MARK(i) (i+1)
#endif
#ifdef NO_SKEW                                         /* BUG: a tick is dropped when the window is over */
#define DROP W
#elif defined(EARLY)                                   /* BUG: a tick is dropped because there is no room */
#define DROP 0
#else
#define DROP (W+S)
#endif
#ifdef NO_LOOK                                         /* BUG: the clock is not looked at again */
#define INTIME true
#else
#define INTIME (CLOCK <= W)
#endif
#ifdef NO_SWAP                                         /* BUG: a write does not compare */
#define EXPECTED(i) true
#else
#define EXPECTED(i) (version == expects[i])
#endif
#ifdef REFUSED                                         /* BUG: a conflict proves that a write has no effect */
#define DOUBTS false
#else
#define DOUBTS doubt[SELF]
#endif

inline rest(p) { phase[SELF] = p; read[SELF] = false; rversion[SELF] = 0; rmark[SELF] = 0 }

/* Without the lock; what was sent has to be undone if it is in doubt. */
inline giveUp() {
	printf("%c gives up\n", NAME);
#ifdef NO_UNDO                                         /* BUG: what was given up is not undone */
	undone[SELF] = true; rest(over)
#else
	if
	:: doubt[SELF] -> rest(undoes)
	:: else -> undone[SELF] = true; rest(over)
	fi
#endif
}

active [A] proctype Attempt()
{
	d_step { if :: ahead[SELF] = 0 :: ahead[SELF] = OFF fi }
end:	do
	:: d_step { phase[SELF] == idle && CLOCK <= W -> phase[SELF] = looks }
	:: d_step { phase[SELF] == looks && !read[SELF] ->
		read[SELF] = true; rversion[SELF] = version; rmark[SELF] = mark; printf("%c reads version %d\n", NAME, version) }
	:: d_step { phase[SELF] == looks && read[SELF] ->
		if
		:: rversion[SELF] != expects[SELF] -> doubt[SELF] = false
		:: else
		fi;
		if
		:: rmark[SELF] == MARK(SELF) -> doubt[SELF] = false; rest(granted); printf("%c sees its claim\n", NAME)
		:: rmark[SELF] != 0 && rmark[SELF] != MARK(SELF) -> giveUp()
		:: rmark[SELF] == 0 ->
			expects[SELF] = rversion[SELF]; doubt[SELF] = true; sent[SELF] = true; stored[SELF] = false;
			rest(writes); printf("%c writes over version %d\n", NAME, expects[SELF])
		fi }
	:: d_step { phase[SELF] == writes && stored[SELF] ->
		doubt[SELF] = false; rest(granted); printf("%c has the tick\n", NAME) }
	:: d_step { phase[SELF] == writes -> printf("%c is told of a conflict\n", NAME); doubt[SELF] = DOUBTS; rest(looks) }
	:: d_step { phase[SELF] == writes || phase[SELF] == looks -> giveUp() }
	:: d_step { phase[SELF] == granted ->
		if
		:: INTIME -> runs++; printf("%c runs the tick\n", NAME); CHECK(runs <= 1, ONCE)
		:: else -> printf("%c is too late\n", NAME)
		fi;
		rest(over) }

	/* Undoing writes over the same version, and goes on until another one is seen without the mark. */
	:: d_step { phase[SELF] == undoes && version == expects[SELF] && version < V ->
#ifdef READS                                           /* BUG: undoing only reads */
		if
		:: mark != MARK(SELF) -> undone[SELF] = true; rest(over)
		:: else -> version++; mark = 0
		fi
#else
		version++; mark = (mark == MARK(SELF) -> 0 : mark); printf("%c undoes, version %d\n", NAME, version)
#endif
		}
	:: d_step { phase[SELF] == undoes && version != expects[SELF] ->
		if
		:: mark == MARK(SELF) -> expects[SELF] = version
		:: else -> undone[SELF] = true; rest(over); printf("%c is undone\n", NAME)
		fi }

	/* The store executes its write. */
	:: d_step { sent[SELF] && EXPECTED(SELF) && version < V ->
		sent[SELF] = false; stored[SELF] = true; version++; mark = MARK(SELF);
		printf("version %d has the claim of %c\n", version, NAME); CHECK(!undone[SELF], CLEAN) }
	:: d_step { sent[SELF] && version != expects[SELF] -> sent[SELF] = false }
	od
}

/* Attempts for other ticks. */
active proctype Others()
{
end:	do
	:: d_step { version < V -> version++; printf("version %d is for another tick\n", version) }
	:: d_step { version < V && mark > 0 && now + OFF > DROP ->
		version++; mark = 0; printf("version %d drops the tick\n", version) }
	:: d_step { now < N -> now++; printf("tick: %d\n", now) }
	od
}
