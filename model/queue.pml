/*
 * What is on one Redis server for a lock that clients queue for, and how it is granted. handoff.pml and progress.pml
 * include this file. They say who is ALIVE, and which waiters hand_on may skip (SKIPS) and what is then remembered
 * (SKIPPED).
 */
#include "check.pml"

#ifndef C
#define C 2
#endif
#ifndef A
#define A 1
#endif
#ifndef TOKENS
#define TOKENS 1
#endif
#ifndef FMAX
#define FMAX 3
#endif
#ifndef BLOCK
#define BLOCK 1
#endif
#ifndef DUP
#define DUP 0
#endif
#ifndef OWN
#define OWN 0
#endif
#if C*A > 6 || FMAX > 7
#error outside what the model is written for
#endif

/* Each attempt has an owner value of its own, 1..OWNERS; 0 is nobody. */
#define OWNERS        (C*A)
#define OWNER(c,a)    ((c)*A+(a)+1)
#define CLIENT(o)     (((o)-1)/A)
#define STRANGER      (OWNERS+1)                       /* another library */
#define REST          (OWNERS+2)                       /* nobody: the lock was released and is kept for MinHold */

/* The value of the lock. */
byte lock;                                             /* the owner; 0: the lock is free */
byte counter;
bool mark;                                             /* somebody waits */

/* The counter of the hash slot. */
byte fence;

/* The queue, and the hash with waiters and tombstones. */
byte place[OWNERS+1];                                  /* the ticket; 0: not in the queue */
bool tomb[OWNERS+1];

/* What its owner does not hold may expire at any time. So it makes a difference whether a lock lives for the claim
 * window only where a client holds it without having claimed it, and that takes a bug. Elsewhere this stays false. */
bool window;

byte ticket[OWNERS+1];                                 /* what a client has been told */

/* For the assertions only; no client can see it. */
bool ended[OWNERS+1];                                  /* a release of the attempt has been executed */
#if OWN
byte drawn[FMAX+1];                                    /* for whom a number was drawn */
#endif

/* Scratch, 0 between steps. */
byte h1, i1, s1, t1;

/* The steps are printed when spin replays a counterexample. A1 is the first attempt of the first client. */
#define NAME(o)     65+CLIENT(o), 1+((o)-1)%A
#define DONE        printf("\n")

#if OWNERS == 1
#define WAITERS     (place[1] > 0)
#define TOMBS       (tomb[1])
#elif OWNERS == 2
#define WAITERS     (place[1] || place[2])
#define TOMBS       (tomb[1] || tomb[2])
#elif OWNERS == 3
#define WAITERS     (place[1] || place[2] || place[3])
#define TOMBS       (tomb[1] || tomb[2] || tomb[3])
#elif OWNERS == 4
#define WAITERS     (place[1] || place[2] || place[3] || place[4])
#define TOMBS       (tomb[1] || tomb[2] || tomb[3] || tomb[4])
#else
#define WAITERS     (place[1] || place[2] || place[3] || place[4] || place[5] || place[6])
#define TOMBS       (tomb[1] || tomb[2] || tomb[3] || tomb[4] || tomb[5] || tomb[6])
#endif

/* The usual case to acquire: the lock is free, and the hash does not exist. */
#ifdef ACQUIRE_ALONE                                   /* BUG: does not look at the hash */
#define USUAL       (lock == 0)
#else
#define USUAL       (lock == 0 && !WAITERS && !TOMBS)
#endif

/* ---- The queue ---------------------------------------------------------------------------------------------------*/

/* Tickets are times, which grow. Only their order matters, so after each change the values in use become 1, 2, 3, …,
 * and one more than all of them is the time now. */
#define LAST (2*OWNERS+1)
inline renumber() {
	t1 = LAST;
	do
	:: t1 > 0 ->
		i1 = 1;
		do
		:: i1 > OWNERS || place[i1] == t1 || ticket[i1] == t1 -> break
		:: else -> i1++
		od;
		if
		:: i1 > OWNERS ->
			i1 = 1;
			do
			:: i1 <= OWNERS ->
				place[i1] = place[i1] - (place[i1] > t1);
				ticket[i1] = ticket[i1] - (ticket[i1] > t1);
				i1++
			:: else -> break
			od
		:: else
		fi;
		t1--
	:: else -> break
	od;
	i1 = 0
}

/* h1 becomes the first of the queue, 0 if nobody is in it. */
inline first() {
	h1 = 0; i1 = 1;
	do
	:: i1 <= OWNERS ->
		if
		:: place[i1] > 0 && (h1 == 0 || place[i1] < place[h1]) -> h1 = i1
		:: else
		fi;
		i1++
	:: else -> break
	od;
	i1 = 0
}

/* o joins the queue, at ticket t if it has one, or else at the end. If it has a place, it keeps that. */
inline join(o, t) {
#ifdef JOIN_DEL                                        /* BUG: the first to join deletes the hash, with tombstones */
	if
	:: !WAITERS -> forgetTombs()
	:: else
	fi;
#endif
	if
	:: place[o] == 0 -> place[o] = (t > 0 -> t : LAST); renumber()
	:: else
	fi
}

inline forgetTombs() {
	i1 = 1;
	do
	:: i1 <= OWNERS -> tomb[i1] = false; i1++
	:: else -> break
	od;
	i1 = 0
}

/* ---- What grants -------------------------------------------------------------------------------------------------*/

#if TOKENS
#define MORE (fence + BLOCK <= FMAX)
#else
#define MORE true
#endif

#ifdef GRANT_SAME                                      /* BUG: the counter does not rise with every grant */
#define NEXT (fence > 0 -> fence : 1)
#else
#define NEXT (fence + 1)
#endif

/* The lock becomes o's. s was its ticket in the queue, 0: it did not wait. w: it has to be claimed within a window.
 * n: how many tokens it has. */
#ifdef BLOCK_SHORT                                     /* BUG: the slot's counter is not raised to the last of them */
#define END(n)    counter
#else
#define END(n)    (counter + (n) - 1)
#endif
inline grant(o, s, w, n) {
	d_step {
		lock = o; printf("granted to %c%d", NAME(o));
#if TOKENS
		counter = NEXT; fence = END(n); printf(", counter %d, of the slot %d", counter, fence);
#endif
#ifdef BELIEVE
		window = w;
#endif
#if OWN
		drawn[counter] = o;
#endif
#ifdef GRANT_NOMARK                                    /* BUG: forgets that others still wait */
		mark = false;
#else
		mark = (s > 0 && WAITERS);             /* an owner that has not waited finds nobody in the queue */
#endif
		if
		:: mark -> printf(", marked")
		:: else
		fi;
#if   defined(SKIP_NOBODY)                             /* for bugs that break more than this */
		skip;
#elif DUP && !defined(ALWAYS)
		CHECK(!(ended[o] && tomb[o]), NOBODY);
#else
		CHECK(!ended[o], NOBODY);
#endif
#ifndef SKIP_ONCE                                      /* for bugs that break more than this */
		CHECK(place[o] == 0, ONCE);
#endif
#ifndef SKIP_FIFO                                      /* for bugs that break more than this */
		i1 = 1;
		do
		:: i1 <= OWNERS ->
			CHECK(!(i1 != o && place[i1] > 0 && ALIVE(i1) && (s == 0 || place[i1] < s)), FIFO);
			i1++
		:: else -> break
		od;
		i1 = 0
#endif
	}
}

inline vanish() {
	lock = 0; counter = 0; mark = false; window = false
}

/* hand_on, of queue.lua: the lock, if it is free, is granted to the first waiter who can be told, or who is asking. */
#ifdef HAND_HELD                                       /* BUG: does not look whether the lock is free */
#define TAKEN     false
#else
#define TAKEN     (lock != 0)
#endif
inline hand_on(self) {
	do
	:: TAKEN -> break
	:: else ->
		d_step { first(); s1 = place[h1] }
		if
		:: h1 == 0 -> break
		:: h1 != 0 && MORE ->
#ifndef NOPOP                                          /* BUG: grants without taking the waiter out of the queue */
			place[h1] = 0;
#endif
			grant(h1, s1, h1 != self, (h1 == self -> BLOCK : 1));
			break
		:: h1 != 0 && h1 != self && SKIPS(h1) ->
			d_step { SKIPPED(h1); place[h1] = 0; printf("%c%d skipped, ", NAME(h1)) }
		fi
	od;
	skip;
	d_step {
		if
		:: h1 > 0 || self > 0 -> renumber()
		:: else
		fi;
		h1 = 0; s1 = 0 }
}
