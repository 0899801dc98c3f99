/*
 * One state and one queue for a group of places: permits, or shared and exclusive locks. places.pml is about places
 * that are locks, with a gate.
 *
 * The world: each of P callers acquires once. With RW=0 it is a caller of S permits with a weight of 1 or 2, and with
 * SMALL some programs have the limit S-1. With RW=1 it is a reader, a writer, which may become a reader, or a reader
 * that may become a writer: it gets a second entry beside the first, which it then releases. A request is executed once the caller has sent it, at any later time, also when the caller
 * has ended. DUP times a request is executed once more. LOST times a request, an answer or the news of a grant is lost.
 * LEAVES times a caller that waits leaves, and CRASHES times a caller crashes. What it has ends at any later time, and
 * from then on its place in the queue may be passed over. LOSSES times an entry ends under a caller that lives, whose
 * validity was over before (E2, E3). HEART says that waiters ask again: without it, only what is told goes on, and
 * nothing may be lost.
 *
 * What is checked:
 *
 *   LIMIT  nobody relies on a number that another one relies on, or that is not below its own n; a writer relies alone
 *   TOKEN  a writer has a greater token than all before it, a reader a greater one than all writers before it
 *   FIFO   nobody is granted anything before one that was in the queue earlier, except an upgrade, and a reader before
 *          one that waits to be upgradeable, whom it is in the way of by nothing
 *   NOBODY nothing is granted to a caller whose release was executed
 *   TOLD   after each step, the first that waits and lives cannot have all that it wants, nor can a reader behind
 *          those that wait to be upgradeable
 *   STUCK  all callers are served, or leave
 *
 * The bugs to plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef P
#define P 3
#endif
#ifndef S
#define S 2
#endif
#ifndef RW
#define RW 0
#endif
#ifndef SMALL
#define SMALL 0
#endif
#ifndef DUP
#define DUP 0
#endif
#ifndef LOST
#define LOST 0
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef HEART
#define HEART 1
#endif
#if P > 3 || S > 3
#error outside what the model is written for
#endif

#define PERMIT    1
#define SHARED    2
#define UPGRADE   3                                    /* a reader that may become a writer */
#define EXCLUSIVE 4

/* What the server has. */
byte kind[4];                                        /* of the entry of this owner; 0: it has none */
bool raised[4];                                      /* it has an exclusive entry as well: an upgrade */
byte numbers[4];                                     /* bits: the numbers of a permit */
byte token[4];
byte counter;
byte ticket[4];                                      /* in the queue, 1 for the first; 0: not in it */
byte raises;                                           /* who waits to become a writer */
bool tomb[4];                                        /* released: what comes late of this owner does nothing */

/* What is on its way. */
bool asked[4], again[4];                           /* a request; one that was executed already */
bool releases[4];
bool undoes[4];                                        /* the release of an upgrade that has failed */
byte told[4];                                        /* the answer, or the news */
#define WAIT    1
#define GRANTED 2
#define NEWS    3

/* What the callers know. */
byte want[4], weight[4], limit[4];
bool waits[4];                                       /* has asked, and is not served yet */
bool raising[4];
byte relies[4];                                      /* the kind, while its validity is not over */
byte on[4];                                          /* the numbers that it relies on */
bool gone[4];                                        /* its entry has ended, and it knows that */
byte done, dead;                                       /* bits: callers that are through; that have crashed */

/* For the assertions only. */
byte greatest, written;                                /* tokens that were relied on; by writers */
byte dups, lost, leaves, crashes, losses;
byte i1, i2, h1, f1, w1, t1;                              /* scratch, 0 between steps */

#define SELF (_pid+1)
#define BIT(p) (1 << (p))
#define CRASHED(p) ((dead & BIT(p)) > 0)
#define NAME(p) 64+(p)

/* f1 becomes the numbers that o can have, 0: what it wants is not free. A caller that may become a writer, and has to
 * wait for readers, has its entry already. */
#define ALL 128
inline fit(o, k) {
	f1 = 0; i1 = 1; i2 = 0;
	do
	:: i1 <= P ->
		if
		:: k == PERMIT -> i2 = i2 | numbers[i1]
		:: k == SHARED -> i2 = i2 + (kind[i1] == EXCLUSIVE || raised[i1])
		:: k == UPGRADE -> i2 = i2 + (kind[i1] >= UPGRADE || raised[i1])
		:: k == EXCLUSIVE -> i2 = i2 + (i1 != o && (kind[i1] > 0 || raised[i1]))
		fi;
		i1++
	:: else -> break
	od;
	if
	:: k != PERMIT -> f1 = (i2 == 0 -> ALL : 0)
	:: else ->
#ifdef COUNTS                                          /* BUG: counts what is held, and takes the next numbers */
		i1 = (i2 & 1) + (i2 >> 1 & 1) + (i2 >> 2 & 1);
		f1 = (i1 + weight[o] <= limit[o] -> (BIT(weight[o]) - 1) << i1 : 0);
#else
		i1 = 0; h1 = 0;
		do
#ifdef BEYOND                                          /* BUG: takes numbers that only others may have */
		:: i1 < S && h1 < weight[o] ->
#else
		:: i1 < limit[o] && h1 < weight[o] ->
#endif
			if :: (i2 & BIT(i1)) == 0 -> f1 = f1 | BIT(i1); h1++ :: else fi;
			i1++
		:: else -> break
		od;
		if
		:: h1 < weight[o] ->
#ifdef PARTS                                           /* BUG: a caller gets what is free of what it wants */
			skip
#else
			f1 = 0
#endif
		:: else
		fi;
		h1 = 0
#endif
	fi;
	i1 = 0; i2 = 0
}

/* Takes o out of the queue. */
inline drop(o) {
	if
	:: ticket[o] > 0 ->
		i1 = 1;
		do
		:: i1 <= P -> ticket[i1] = ticket[i1] - (ticket[i1] > ticket[o]); i1++
		:: else -> break
		od;
		ticket[o] = 0; i1 = 0
	:: else
	fi;
	if :: raises == o -> raises = 0 :: else fi
}

inline grant(o, k) {
	printf("%c is granted kind %d, numbers %d\n", NAME(o), k, f1);
	i1 = 1;
	do
	:: i1 <= P ->
		CHECK(i1 == o || raises == o || ticket[i1] == 0 || CRASHED(i1) || (ticket[o] > 0 && ticket[o] < ticket[i1]) ||
			(k == SHARED && want[i1] == UPGRADE), FIFO);
		i1++
	:: else -> break
	od;
	i1 = 0;
	CHECK(raises == 0 || raises == o || CRASHED(raises), FIFO);
	CHECK(!tomb[o], NOBODY);
	if
	:: raises == o ->
		raised[o] = true;
#ifdef REPLACES                                        /* BUG: an upgrade takes the place of what it is of */
		kind[o] = EXCLUSIVE
#endif
	:: else -> kind[o] = k; numbers[o] = f1 & ~ALL
	fi;
#ifdef SAME                                            /* BUG: a writer that was a reader keeps its token */
	if :: raises == o :: else -> counter++; token[o] = counter fi;
#else
	counter++; token[o] = counter;
#endif
	drop(o)
}

/* h1 becomes who is next: an upgrade, or else the first of the queue behind t1 that are passed. */
inline next() {
	h1 = raises; i1 = 1;
	do
	:: i1 <= P -> h1 = (h1 == 0 && ticket[i1] == t1 + 1 -> i1 : h1); i1++
	:: else -> break
	od;
	i1 = 0
}
#define PASSED(o) (raises != o && want[o] == UPGRADE)
#ifdef STRICT                                          /* BUG: readers wait behind those that want to be upgradeable */
#define PASS(o) false
#else
#define PASS(o) PASSED(o)
#endif

/* w1 becomes whether a newcomer waits behind others. */
inline behind(o) {
	w1 = (raises > 0); i1 = 1;
	do
	:: i1 <= P -> w1 = w1 || (i1 != o && ticket[i1] > 0 && !(want[o] == SHARED && PASS(i1))); i1++
	:: else -> break
	od;
	i1 = 0
}

#ifdef ONLY_FIRST                                      /* BUG: those behind the first are not looked at */
#define MORE false
#else
#define MORE true
#endif
#ifdef DEAD_FIRST                                      /* BUG: a dead waiter stays the first */
#define SKIPS(o) false
#define TOLD(o)  (!CRASHED(o))
#else
#define SKIPS(o) CRASHED(o)
#define TOLD(o)  true
#endif

inline serve(o) {
	w1 = o;
	fit(w1, (raises == w1 -> EXCLUSIVE : want[w1]));
	f1 = (t1 > 0 && want[w1] != SHARED -> 0 : f1);     /* only readers pass others */
	if
	:: f1 > 0 -> grant(w1, (raises == w1 -> EXCLUSIVE : want[w1])); told[w1] = NEWS
	:: else
	fi
}

/* Hands places to those that wait, in order, up to the first that cannot have what it wants, but for those that are
 * passed. A waiter is told; self is asking, and is answered. */
inline hand_on(self) {
	do
	:: true ->
		next();
		i2 = h1;
		if
		:: i2 == 0 || !(TOLD(i2)) -> break
		:: i2 > 0 && SKIPS(i2) -> drop(i2)
		:: i2 > 0 && TOLD(i2) && !SKIPS(i2) ->
			h1 = 0; serve(i2);
			if
			:: f1 > 0 && MORE
			:: f1 == 0 && PASS(w1) -> t1++
			:: else -> break
			fi
		fi
	od;
	h1 = 0; f1 = 0; i2 = 0; w1 = 0; t1 = 0
}
/* The scripts. */
inline ask(o) {
#ifdef LATE                                            /* BUG: a request that comes late is executed */
	if
	:: false
#else
	if
	:: tomb[o]
#endif
	:: else ->
		hand_on(o);
		if
		:: kind[o] > 0 -> skip                 /* it was granted before */
		:: else ->
			fit(o, want[o]);
			behind(o);
			if
#if defined(OVERTAKES)                                 /* BUG: a newcomer takes what is free although others wait */
			:: f1 > 0 && (true || w1) -> grant(o, want[o])
#else
			:: f1 > 0 && w1 == 0 -> grant(o, want[o])
#endif
			:: else ->
				if
				:: ticket[o] == 0 ->
					i1 = 1; i2 = 0;
					do
					:: i1 <= P -> i2 = (ticket[i1] > i2 -> ticket[i1] : i2); i1++
					:: else -> break
					od;
					ticket[o] = i2 + 1; i1 = 0
				:: else
				fi
			fi;
			f1 = 0; i2 = 0; w1 = 0
		fi;
		told[o] = (kind[o] > 0 -> GRANTED : WAIT)
	fi
}
inline check() {
	do
	:: true ->
		next(); w1 = h1; h1 = 0;
		if
		:: w1 > 0 && !CRASHED(w1) ->
			fit(w1, (raises == w1 -> EXCLUSIVE : want[w1]));
			CHECK(f1 == 0 || t1 > 0 && want[w1] != SHARED, TOLD);
			if :: PASSED(w1) -> t1++ :: else -> break fi
		:: else -> break
		fi
	od;
	f1 = 0; w1 = 0; t1 = 0
}
inline release(o) {
	printf("%c is released\n", NAME(o));
	kind[o] = 0; numbers[o] = 0; drop(o); tomb[o] = true;
#ifndef SILENT                                         /* BUG: what is released is handed to nobody */
	hand_on(0)
#endif
}
inline raise(o) {
	if
	:: kind[o] == UPGRADE ->
#ifdef BEHIND                                          /* BUG: an upgrade waits behind the others */
		i1 = 1; i2 = 0;
		do
		:: i1 <= P -> i2 = (ticket[i1] > i2 -> ticket[i1] : i2); i1++
		:: else -> break
		od;
		ticket[o] = i2 + 1; i1 = 0; i2 = 0;
		want[o] = EXCLUSIVE;
#else
		raises = o;
#endif
		hand_on(o)
	:: else
	fi
}
inline undo(o) {
	printf("the upgrade of %c is undone\n", NAME(o));
	if :: raises == o -> raises = 0 :: else fi;
	raised[o] = false;
#ifdef REPLACES
	kind[o] = 0;
#endif
	hand_on(0)
}
inline lower(o) {
	if
	:: kind[o] == EXCLUSIVE -> printf("%c becomes a reader\n", NAME(o)); kind[o] = SHARED; relies[o] = SHARED;
#ifndef LOWER_SILENT                                   /* BUG: a writer that becomes a reader tells nobody */
		hand_on(0)
#endif
	:: else
	fi
}

/* The caller relies on what it was granted. An answer may be late, so its entry may have ended: it knows that by its
 * own clock, which began when the request was sent (E2). */
inline enter(o) {
	printf("%c is served\n", NAME(o));
	relies[o] = kind[o]; on[o] = numbers[o]; waits[o] = false; raising[o] = false;
	i1 = 1;
	do
	:: i1 <= P ->
		CHECK(i1 == o || !relies[i1] || (on[o] & on[i1]) == 0, LIMIT);
		CHECK(i1 == o || !relies[i1] || (relies[o] != EXCLUSIVE && relies[i1] != EXCLUSIVE), LIMIT);
		CHECK(i1 == o || !relies[i1] || relies[o] != UPGRADE || relies[i1] != UPGRADE, LIMIT);
		i1++
	:: else -> break
	od;
	CHECK(on[o] < BIT(limit[o]), LIMIT);
	i1 = (on[o] & 1) + (on[o] >> 1 & 1) + (on[o] >> 2 & 1);
	CHECK(relies[o] != PERMIT || i1 == weight[o], LIMIT);
	i1 = 0;
	CHECK(relies[o] != EXCLUSIVE || token[o] > greatest, TOKEN);
	CHECK(token[o] > written, TOKEN);
	greatest = (token[o] > greatest -> token[o] : greatest);
	written = (relies[o] == EXCLUSIVE -> token[o] : written)
}

inline is(k, w, n) {
	want[SELF] = k; weight[SELF] = w; limit[SELF] = n;
	printf("%c is of kind %d, weight %d, n is %d\n", NAME(SELF), k, w, n)
}


/* Each time something has ended or was lost of which nobody is told, each waiter asks once more: after a heartbeat. */
bool stale[4];
inline beat() {
	i1 = 1;
	do
	:: i1 <= P -> stale[i1] = (waits[i1] || raising[i1]) && !CRASHED(i1); i1++
	:: else -> break
	od;
	i1 = 0
}

#if CRASHES > 0
#define MORTAL provided (!CRASHED(_pid+1))
#else
#define MORTAL
#endif

#define RAISED (raised[SELF] || kind[SELF] == EXCLUSIVE)

active [P] proctype Caller() MORTAL
{
	if
	:: d_step { !RW -> is(PERMIT, 1, S) }
	:: d_step { !RW && S > 1 -> is(PERMIT, 2, S) }
	:: d_step { !RW && SMALL && S > 1 -> is(PERMIT, 1, S-1) }
	:: d_step { RW -> is(SHARED, 0, S) }
	:: d_step { RW -> is(EXCLUSIVE, 0, S) }
	:: d_step { RW -> is(UPGRADE, 0, S) }
	fi;
	d_step { asked[SELF] = true; waits[SELF] = true }

wait:	do
	:: d_step { told[SELF] == GRANTED && kind[SELF] > 0 -> told[SELF] = 0; enter(SELF) }; break
	:: d_step { told[SELF] == GRANTED && kind[SELF] == 0 -> told[SELF] = 0 }     /* too late */
	:: d_step { told[SELF] == WAIT -> told[SELF] = 0 }
	:: d_step { told[SELF] == NEWS && !asked[SELF] -> told[SELF] = 0; asked[SELF] = true }
	:: d_step { HEART && told[SELF] == 0 && !asked[SELF] && stale[SELF] -> stale[SELF] = false; asked[SELF] = true }
	:: d_step { leaves < LEAVES -> leaves++; waits[SELF] = false; printf("%c leaves\n", NAME(SELF)) }; goto out
	od;

	if
	:: true
	:: d_step { relies[SELF] == EXCLUSIVE && !gone[SELF] -> lower(SELF); check() }
	:: d_step { relies[SELF] == UPGRADE && !gone[SELF] ->
		printf("%c asks to become a writer\n", NAME(SELF)); raising[SELF] = true; raise(SELF) };
		do
		:: d_step { told[SELF] && RAISED && !gone[SELF] -> told[SELF] = 0;
			raised[SELF] = false; kind[SELF] = EXCLUSIVE; enter(SELF) }; break
		:: d_step { told[SELF] && !(RAISED) -> told[SELF] = 0 }
		:: d_step { HEART && told[SELF] == 0 && stale[SELF] -> stale[SELF] = false; hand_on(0);
			told[SELF] = (RAISED -> NEWS : 0) }
		:: d_step { gone[SELF] -> undoes[SELF] = true; raising[SELF] = false } -> break
		:: d_step { leaves < LEAVES && raising[SELF] -> leaves++; undoes[SELF] = true; raising[SELF] = false;
			printf("%c gives the upgrade up\n", NAME(SELF)) } -> break
		od
	fi;
out:	skip;
	d_step { relies[SELF] = 0; on[SELF] = 0; releases[SELF] = true }
	!releases[SELF] && !undoes[SELF];
	d_step { done = done | BIT(SELF); told[SELF] = 0 }
}

#ifdef PAST_TTL                                        /* BUG: a caller relies on an entry after its end */
#define RELIES
#else
#define RELIES relies[o] = 0; on[o] = 0;
#endif
#ifdef LEAKS                                           /* BUG: what a crashed caller has does not end */
#define ENDS(o) false
#else
#define ENDS(o) CRASHED(o)
#endif
inline executed(o) { d_step { o <= P && asked[o] ->
	asked[o] = false; again[o] = true; printf("%c asks\n", NAME(o)); ask(o); check() } }
inline repeated(o) { d_step { o <= P && again[o] && dups < DUP ->
	dups++; printf("%c asks, again\n", NAME(o)); ask(o) } }
inline released(o) { d_step { o <= P && releases[o] -> release(o); check(); releases[o] = false } }
inline undone(o) { d_step { o <= P && undoes[o] -> undo(o); check(); undoes[o] = false } }
inline losesAsk(o) { d_step { o <= P && asked[o] && lost < LOST ->
	lost++; asked[o] = false; beat(); printf("the request of %c is lost\n", NAME(o)) } }
inline losesNews(o) { d_step { o <= P && told[o] && lost < LOST ->
	lost++; told[o] = 0; beat(); printf("what %c is told is lost\n", NAME(o)) } }
inline ends(o) { d_step { o <= P && (kind[o] > 0 || raised[o] && CRASHED(o)) && (ENDS(o) || losses < LOSSES && !CRASHED(o)) ->
	printf("the entry of %c ends\n", NAME(o));
	if
	:: CRASHED(o) -> raised[o] = false
	:: else -> losses++; RELIES gone[o] = !waits[o]
	fi;
	if :: raises == o -> raises = 0 :: else fi;
	kind[o] = 0; numbers[o] = 0; beat() } }
inline crash(o) { d_step { o <= P && crashes < CRASHES && (done & BIT(o)) == 0 ->
	crashes++; printf("%c crashes\n", NAME(o)); done = done | BIT(o); dead = dead | BIT(o);
	relies[o] = 0; on[o] = 0; waits[o] = false; raising[o] = false; told[o] = 0; beat() } }

active proctype Server()
{
end:	do
	:: executed(1) :: executed(2) :: executed(3)
	:: repeated(1) :: repeated(2) :: repeated(3)
	:: released(1) :: released(2) :: released(3)
	:: undone(1) :: undone(2) :: undone(3)
	:: losesAsk(1) :: losesAsk(2) :: losesAsk(3)
	:: losesNews(1) :: losesNews(2) :: losesNews(3)
	:: ends(1) :: ends(2) :: ends(3)
	:: crash(1) :: crash(2) :: crash(3)
	od
}

active proctype Watch()
{
end:	do
	:: timeout -> CHECK(done == BIT(P+1)-2, STUCK)
	od
}
