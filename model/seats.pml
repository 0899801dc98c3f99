/*
 * A group in etcd: one queue for its places, where a caller reads, reckons, and writes on condition that what it has read
 * still holds. group.pml is about servers that execute a step.
 *
 * The world: each of P callers acquires once. With RW=0 it wants 1 or 2 of S permits, and with SMALL some programs have
 * the limit S-1. With RW=1 it is a reader, a writer, which may become a reader, or a reader that may become a writer by
 * a second entry. With TRY it may ask once, instead of waiting. A transaction is executed at any time after the reading
 * on which it rests. LOST times its caller hears nothing, and it is executed later, or never. LEAVES times a caller that
 * waits leaves, by revoking its lease, after which nothing can be written with it. CRASHES times a caller crashes, and
 * its entries end at any later time. A waiter looks when what it watches is deleted; and, after a crash or a loss, when
 * it renews its lease.
 *
 * What is checked:
 *
 *   LIMIT  nobody has a number that another one has, or that is not below its own n; a writer is alone, and relies alone
 *   TOKEN  a writer has a greater token than all before it, a reader a greater one than all writers before it
 *   FIFO   nobody is granted anything before one that waited earlier, except an upgrade, and a reader before one that
 *          waits to be upgradeable. A caller that tries does not wait
 *   HELD   a caller that tries is not refused if there is room for it beside all waiters
 *   STUCK  all callers are served, or leave
 *
 * With STAY=1, nobody returns anything while somebody has room that waits: then STUCK says that all who have room are
 * served.
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
#ifndef TRY
#define TRY 0
#endif
#ifndef STAY
#define STAY 0
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
#if P > 3 || S > 3
#error outside what the model is written for
#endif

#define PERMIT    1
#define SHARED    2
#define UPGRADE   3                                    /* a reader that may become a writer */
#define EXCLUSIVE 4

/* What etcd has. */
byte kind[4];                                        /* the entry of a holder; 0: there is none */
bool raised[4];                                      /* its second entry, which is exclusive: an upgrade */
byte numbers[4];                                     /* bits */
byte ticket[4];                                      /* the entry of a waiter, 1 for the first; 0: there is none */
bool raises[4];                                      /* the entry that waits for an upgrade */
bool over[4], overRaise[4];                          /* the lease is revoked, or has ended */

/* Transactions: of each caller the one that it waits for, and with LATE added one that it does not wait for any more. */
#define LATE 4
byte op[8];
#define ALONE 1                                      /* takes what it wants if the group is empty, and reads it otherwise */
#define NEW   2                                      /* takes it, if nobody has come since */
#define PUT   3                                      /* waits */
#define LOOK  4                                      /* reads who is before it, or all */
#define SERVE 5                                      /* serves those who have room */
bool up[8];                                          /* it is about the upgrade of the caller */
bool sameHolders[8], same[8];                        /* no holder, or nobody, was created since the reading */
byte served[8], servedUps[8];                        /* bits: whom a SERVE serves */
short gets[8];                                       /* with which numbers: three bits each */
byte answer[4];
#define GOT     1
#define MAY     2                                    /* NEW */
#define BEHIND  3                                    /* there is no room, or others come: it queues, or is refused */
#define COME    4                                    /* others come, or are about to be served: it queues */
#define HELP    5                                    /* SERVE */
#define WATCHES 6
#define GONE    7
#define AGAIN   8
#define NOTHING 9                                    /* there was no answer */

/* What a waiter watches: the entry of a waiter, or those of holders. */
byte watched[4];
#define HOLDERS 7
bool deleted[4];                                     /* one of a holder was, since the reading */
bool first[4];
bool stale[4];

/* What the callers know. */
byte want[4], weight[4], limit[4];
bool tries[4];
byte relies[4], on[4];
bool releases[4], helps[4];
byte done, dead;

byte counter, token[4], greatest, written;
byte lost, leaves, crashes;
bool room;
byte i1, i2, j1, f1, w1, t1, reading, them, ups1;          /* scratch, 0 between steps */
short gt;
byte hk[4], hn[4], hr[4], stop;

inline clear() {
	i1 = 0; i2 = 0; j1 = 0; f1 = 0; w1 = 0; t1 = 0; reading = 0; them = 0; ups1 = 0; gt = 0; stop = 0;
	hk[1] = 0; hk[2] = 0; hk[3] = 0; hn[1] = 0; hn[2] = 0; hn[3] = 0; hr[1] = 0; hr[2] = 0; hr[3] = 0
}

#define SELF (_pid+1)
#define BIT(p) (1 << (p))
#define CRASHED(p) ((dead & BIT(p)) > 0)
#define NAME(p) 64+(p)

/* f1 becomes the numbers that o can have beside hk, hn and hr; 0: what it wants is not free. */
#define ALL 128
inline fit(o, k) {
	f1 = 0; j1 = 1; i2 = 0;
	do
	:: j1 <= P ->
		if
		:: k == PERMIT -> i2 = i2 | hn[j1]
		:: k == SHARED -> i2 = i2 + (hk[j1] == EXCLUSIVE || hr[j1])
		:: k == UPGRADE -> i2 = i2 + (hk[j1] >= UPGRADE || hr[j1])
		:: k == EXCLUSIVE -> i2 = i2 + (j1 != o && (hk[j1] > 0 || hr[j1]))
		fi;
		j1++
	:: else -> break
	od;
	if
	:: k != PERMIT -> f1 = (i2 == 0 -> ALL : 0)
	:: else ->
		j1 = 0; t1 = 0;
		do
		:: j1 < limit[o] && t1 < weight[o] ->
			if :: (i2 & BIT(j1)) == 0 -> f1 = f1 | BIT(j1); t1++ :: else fi;
			j1++
		:: else -> break
		od;
		f1 = (t1 < weight[o] -> 0 : f1)
	fi
}

inline copy() {
	i1 = 1; reading = 0; them = 0; ups1 = 0; gt = 0; stop = false;
	do
	:: i1 <= P ->
		hk[i1] = kind[i1]; hn[i1] = numbers[i1]; hr[i1] = raised[i1];
		reading = reading + (ticket[i1] > 0 && want[i1] == SHARED);
		i1++
	:: else -> break
	od
}

/* A waiter that does not fit keeps those behind it out, but for those that only try, and for those that want to be
 * upgradeable, whom readers pass. */
#define STOPS(o) (!tries[o])

/* them, ups1 and gt become who can be served: upgrades, and then the others in their order, before a newcomer. */
inline next(newcomer) {
	copy(); reading = reading + (want[newcomer] == SHARED);
	i1 = 1;
	do
	:: i1 <= P && !stop ->
		if
		:: raises[i1] && kind[i1] == UPGRADE ->
			fit(i1, EXCLUSIVE);
			if
			:: f1 > 0 -> ups1 = ups1 | BIT(i1); hr[i1] = true
			:: else -> stop = true
			fi
		:: else
		fi;
		i1++
	:: else -> break
	od;
	w1 = 1;
	do
	:: w1 <= P && !stop ->
		i1 = 1;
		do
		:: i1 <= P && ticket[i1] != w1 -> i1++
		:: else -> break
		od;
		if
		:: i1 <= P ->
			fit(i1, want[i1]);
			if
			:: f1 > 0 ->
				reading = reading - (want[i1] == SHARED);
				hk[i1] = want[i1]; hn[i1] = f1 & ~ALL; them = them | BIT(i1); gt = gt | ((f1 & ~ALL) << (3 * (i1 - 1)))
			:: else ->
#ifdef OVERTAKEN                                       /* BUG: a waiter that fits is served before one that does not */
				skip
#else
				stop = STOPS(i1) && !(want[i1] == UPGRADE && reading > 0)
#endif
			fi
		:: else
		fi;
		w1++
	:: else -> break
	od
}

/* room becomes whether a waiter has room. */
inline clean() {
	if
	:: STAY -> next(0); room = (them > 0 || ups1 > 0)
	:: else
	fi;
	clear()
}

inline drop(o) {
	if
	:: ticket[o] > 0 ->
		i1 = 1;
		do
		:: i1 <= P -> ticket[i1] = ticket[i1] - (ticket[i1] > ticket[o]); i1++
		:: else -> break
		od;
		ticket[o] = 0
	:: else
	fi
}

/* An entry was created. */
inline created(holder) {
	i1 = 0;
	do
	:: i1 < 8 -> same[i1] = false; sameHolders[i1] = sameHolders[i1] && !(holder); i1++
	:: else -> break
	od;
	i1 = 0
}

/* An entry of a holder was deleted. */
inline deletes() {
	i1 = 1;
	do
	:: i1 <= P -> deleted[i1] = true; i1++
	:: else -> break
	od;
	i1 = 0
}

#define PASSES(a, b) (tries[b] || want[a] == SHARED && want[b] == UPGRADE)

/* o has what it wants: an upgrade, or the numbers f1. came is its ticket, and 9 that of a newcomer. */
inline grant(o, ups, came) {
	counter++;
	if
	:: ups ->
		printf("%c is granted an upgrade\n", NAME(o));
		raises[o] = false; raised[o] = true
	:: else ->
		printf("%c is granted kind %d, numbers %d\n", NAME(o), want[o], f1 & ~ALL);
		i1 = 1;
		do
		:: i1 <= P ->
			CHECK(i1 == o || ticket[i1] == 0 || ticket[i1] > came || CRASHED(i1) || PASSES(o, i1), FIFO);
			i1++
		:: else -> break
		od;
		drop(o); kind[o] = want[o]; numbers[o] = f1 & ~ALL
	fi;
	token[o] = counter;
	created(true);
	i1 = 1;
	do
	:: i1 <= P ->
		CHECK(i1 == o || (numbers[o] & numbers[i1]) == 0, LIMIT);
		CHECK(i1 == o || !(raised[i1] || kind[i1] == EXCLUSIVE) || kind[o] == 0, LIMIT);
		CHECK(i1 == o || !(raised[o] || kind[o] == EXCLUSIVE) || kind[i1] == 0, LIMIT);
		CHECK(i1 == o || kind[o] != UPGRADE || kind[i1] != UPGRADE, LIMIT);
		i1++
	:: else -> break
	od;
	CHECK(numbers[o] < BIT(limit[o]), LIMIT)
}

#ifdef NO_HOLDERS                                      /* BUG: a grant rests on an old reading */
#define HOLDERS_ARE(x) true
#else
#define HOLDERS_ARE(x) sameHolders[x]
#endif
#ifdef NO_WAITERS                                      /* BUG: a newcomer does not see a waiter that comes */
#define ALL_ARE(x) HOLDERS_ARE(x)
#else
#define ALL_ARE(x) same[x]
#endif
#define THERE(o)       (ticket[o] > 0)
#define UPGRADEABLE(o) (kind[o] == UPGRADE)

inline read(x) { same[x] = true; sameHolders[x] = true }

/* w1 becomes who waits just before o, and is not passed if it is careful. */
inline before(o, careful) {
	w1 = 0; i1 = 1;
	do
	:: i1 <= P ->
		w1 = (ticket[i1] > 0 && ticket[i1] < ticket[o] && !(careful && PASSES(o, i1)) &&
			(w1 == 0 || ticket[i1] > ticket[w1]) -> i1 : w1);
		i1++
	:: else -> break
	od;
	i1 = 0
}

/* A caller is refused only if holders, and waiters that can be served, leave no room for it. */
inline refused(o) {
	copy(); i1 = 1; w1 = 0;
	do
	:: i1 <= P ->
		if
		:: i1 != o && ticket[i1] > 0 && ticket[i1] < (ticket[o] > 0 -> ticket[o] : 9) ->
			fit(i1, want[i1]);
			if
			:: f1 > 0 -> hk[i1] = want[i1]; hn[i1] = f1 & ~ALL
			:: else -> w1 = (tries[i1] -> w1 : 99)
			fi
		:: i1 != o && raises[i1] -> w1 = 99
		:: else
		fi;
		i1++
	:: else -> break
	od;
	fit(o, want[o]);
	CHECK(f1 == 0 || w1 == 99, HELD)
}

/* What a newcomer finds. Waiters that have room are about to be served. */
inline admit(o, ups) {
	next(o);
	if
	:: ups && kind[o] != UPGRADE -> answer[o] = GONE
	:: ups ->
		copy(); fit(o, EXCLUSIVE); answer[o] = (f1 > 0 -> MAY : BEHIND)
	:: !ups && stop -> answer[o] = BEHIND
	:: else ->
		fit(o, want[o]);
		gt = f1 & ~ALL;
#ifdef KEPT_OUT                                        /* BUG: a waiter keeps out those for whom there is room, too */
		answer[o] = (them > 0 || ups1 > 0 || f1 == 0 -> BEHIND : MAY);
#else
		answer[o] = (f1 == 0 -> BEHIND : (them > 0 || ups1 > 0 -> COME : MAY))
#endif
	fi;
	if
	:: answer[o] == BEHIND && tries[o] && !ups -> refused(o)
	:: else
	fi
}

inline perform(x, o) {
	f1 = 0;
	if
	:: op[x] == ALONE ->
		i1 = 1; w1 = 0;
		do
		:: i1 <= P -> w1 = w1 + (kind[i1] > 0 || raised[i1] || ticket[i1] > 0 || raises[i1]); i1++
		:: else -> break
		od;
		if
		:: w1 == 0 && !up[x] && !over[o] -> copy(); fit(o, want[o]); grant(o, false, 9); f1 = GOT
		:: w1 == 0 && !up[x] && over[o] -> f1 = GONE
		:: else ->
			if
			:: x == o -> read(x); admit(o, up[x]); gets[x] = gt; f1 = answer[o]
			:: else
			fi
		fi
	:: op[x] == NEW ->
		if
		:: ALL_ARE(x) && (!up[x] && !over[o] || up[x] && UPGRADEABLE(o) && !overRaise[o]) ->
			f1 = gets[x] + ALL; grant(o, up[x], 9); f1 = GOT
		:: else -> f1 = COME
		fi
	:: op[x] == PUT ->
		f1 = GONE;
		if
		:: up[x] && !overRaise[o] -> raises[o] = true; created(false); f1 = AGAIN
		:: !up[x] && !over[o] && ticket[o] == 0 && kind[o] == 0 ->
			i1 = 1; w1 = 0;
			do
			:: i1 <= P -> w1 = (ticket[i1] > w1 -> ticket[i1] : w1); i1++
			:: else -> break
			od;
			ticket[o] = w1 + 1; created(false); f1 = AGAIN
		:: else
		fi
	:: op[x] == LOOK ->
		before(o, false);
		if
		:: (helps[o] -> false : (up[x] -> raised[o] : kind[o] > 0)) -> f1 = GOT
		:: !helps[o] && (up[x] -> !raises[o] || kind[o] != UPGRADE : ticket[o] == 0) -> f1 = GONE
		:: else ->
			first[o] = first[o] || up[x] || helps[o] || w1 == 0;
			if
			:: !first[o] && !tries[o] && !(PASSES(o, w1)) -> watched[o] = w1; f1 = WATCHES
			:: else ->
				read(x); next(0);
				if
				:: them > 0 || ups1 > 0 -> served[x] = them; servedUps[x] = ups1; gets[x] = gt; f1 = HELP
				:: helps[o] -> f1 = GONE
				:: tries[o] && !up[x] -> w1 = 0; refused(o); f1 = BEHIND
				:: else ->
					before(o, true);
					first[o] = (w1 == 0 || up[x]);
					watched[o] = (first[o] -> HOLDERS : w1);
					deleted[o] = false; f1 = WATCHES
				fi
			fi
		fi
	:: op[x] == SERVE ->
		i1 = 1; w1 = HOLDERS_ARE(x);
		do
		:: i1 <= P ->
			w1 = w1 && !((served[x] & BIT(i1)) && !(THERE(i1)));
			w1 = w1 && !((servedUps[x] & BIT(i1)) && !(raises[i1] && UPGRADEABLE(i1)));
			i1++
		:: else -> break
		od;
		if
		:: w1 ->
			w1 = 1; them = served[x]; ups1 = servedUps[x];
			do
			:: w1 <= P ->
				if :: ups1 & BIT(w1) -> grant(w1, true, 0) :: else fi;
				w1++
			:: else -> break
			od;
			do
					:: them > 0 ->                                   /* in their order */
				w1 = 0; j1 = 1;
				do
				:: j1 <= P ->
					w1 = ((them & BIT(j1)) && (w1 == 0 || ticket[j1] < ticket[w1]) -> j1 : w1); j1++
				:: else -> break
				od;
				them = them & ~BIT(w1);
				f1 = ((gets[x] >> (3 * (w1 - 1))) & 7) + ALL;
				grant(w1, false, ticket[w1])
			:: else -> break
			od
		:: else
		fi;
		f1 = AGAIN
	fi;
	if
	:: x == o -> answer[o] = f1; first[o] = first[o] && f1 == WATCHES || up[x]
	:: else
	fi;
	op[x] = 0; up[x] = (x == o -> up[x] : false);
	if :: f1 == HELP || f1 == MAY :: else -> served[x] = 0; servedUps[x] = 0; gets[x] = 0; same[x] = false; sameHolders[x] = false fi
}

/* If nobody is told of a change, each waiter looks once more: when it renews its lease. */
inline beat() {
	i1 = 1;
	do
	:: i1 <= P -> stale[i1] = true; i1++
	:: else -> break
	od;
	i1 = 0
}

inline ask(x) { op[SELF] = x }

inline enter(o) {
	relies[o] = (raised[o] -> EXCLUSIVE : kind[o]); on[o] = numbers[o];
	i1 = 1;
	do
	:: i1 <= P ->
		CHECK(i1 == o || !relies[i1] || (on[o] & on[i1]) == 0, LIMIT);
		CHECK(i1 == o || !relies[i1] || (relies[o] != EXCLUSIVE && relies[i1] != EXCLUSIVE), LIMIT);
		i1++
	:: else -> break
	od;
	CHECK(relies[o] != EXCLUSIVE || token[o] > greatest, TOKEN);
	CHECK(token[o] > written, TOKEN);
	greatest = (token[o] > greatest -> token[o] : greatest);
	written = (relies[o] == EXCLUSIVE -> token[o] : written);
	clean()
}

inline is(k, w, n) {
	want[SELF] = k; weight[SELF] = w; limit[SELF] = n;
	printf("%c is of kind %d, weight %d, n is %d\n", NAME(SELF), k, w, n)
}

#if CRASHES > 0
#define MORTAL provided (!CRASHED(_pid+1))
#else
#define MORTAL
#endif

#ifdef DEAF                                            /* BUG: nobody is told that a holder has left */
#define HEARS false
#else
#define HEARS deleted[SELF]
#endif
#define HAS   (up[SELF] -> raised[SELF] : kind[SELF] > 0)
#define WAITS (up[SELF] -> raises[SELF] : ticket[SELF] > 0)
#define WAKES (!(WAITS) || (watched[SELF] == HOLDERS && HEARS) || \
	(watched[SELF] > 0 && watched[SELF] < HOLDERS && ticket[watched[SELF]] == 0) || stale[SELF])

/* Asks until the caller has what it wants (GOT), or will not have it (GONE). */
inline acquires() {
	do
	:: d_step { answer[SELF] == GOT -> answer[SELF] = 0; watched[SELF] = 0 }; break
	:: d_step { answer[SELF] == GONE -> watched[SELF] = 0 }; break
	:: d_step { answer[SELF] == MAY -> answer[SELF] = 0; ask(NEW) }
	:: d_step { answer[SELF] == BEHIND && tries[SELF] && !up[SELF] -> answer[SELF] = GONE }
	:: d_step { answer[SELF] == BEHIND && !(tries[SELF] && !up[SELF]) || answer[SELF] == COME -> answer[SELF] = 0; ask(PUT) }
	:: d_step { answer[SELF] == AGAIN -> answer[SELF] = 0; ask(LOOK) }
	:: d_step { answer[SELF] == HELP -> answer[SELF] = 0; ask(SERVE) }
	:: d_step { answer[SELF] == WATCHES && (WAKES) -> answer[SELF] = 0; stale[SELF] = false; watched[SELF] = 0; ask(LOOK) }
	:: d_step { answer[SELF] == WATCHES && leaves < LEAVES ->
		leaves++; answer[SELF] = GONE; printf("%c leaves\n", NAME(SELF)) }
	:: d_step { answer[SELF] == NOTHING && !(WAITS) -> answer[SELF] = GONE }
	:: d_step { answer[SELF] == NOTHING && (WAITS) -> answer[SELF] = 0; ask(LOOK) }
	od;
	skip
}

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
	if
	:: ask(ALONE)
	:: d_step { TRY -> tries[SELF] = true; printf("%c tries\n", NAME(SELF)); ask(ALONE) }
	fi;
	acquires();
	if
	:: answer[SELF] == GONE -> goto out
	:: else
	fi;
	d_step { kind[SELF] > 0 -> enter(SELF) };
	if
	:: true
	:: d_step { relies[SELF] == EXCLUSIVE -> kind[SELF] = SHARED; relies[SELF] = SHARED; helps[SELF] = true;
		printf("%c becomes a reader\n", NAME(SELF));
#ifdef LOWER_SILENT                                    /* BUG: a writer that becomes a reader tells nobody */
		helps[SELF] = false;
#else
		ask(LOOK);
#endif
		clean() };
		if
		:: helps[SELF] -> acquires(); d_step { helps[SELF] = false; answer[SELF] = 0 }
		:: else
		fi
	:: d_step { relies[SELF] == UPGRADE -> printf("%c asks to become a writer\n", NAME(SELF)); up[SELF] = true; ask(ALONE) };
		acquires();
		if
		:: d_step { answer[SELF] != GONE -> enter(SELF) }
		:: else
		fi;
		d_step { relies[SELF] = 0; overRaise[SELF] = true; raises[SELF] = false;
			if :: raised[SELF] -> raised[SELF] = false; deletes() :: else fi; clean() }
	fi;
out:	skip;
	d_step { relies[SELF] = 0; on[SELF] = 0; answer[SELF] = 0; releases[SELF] = true }
	!releases[SELF];
	d_step { done = done | BIT(SELF) }
}

inline ended(o) {
	over[o] = true; overRaise[o] = true; raises[o] = false; drop(o);
	if
	:: kind[o] > 0 || raised[o] -> kind[o] = 0; raised[o] = false; numbers[o] = 0; deletes()
	:: else
	fi
}

inline executed(o) { d_step { o <= P && op[o] > 0 && !CRASHED(o) ->
	perform(o, o); clean() } }
inline late(o) { d_step { o <= P && op[o+LATE] > 0 ->
	printf("what %c has sent comes late\n", NAME(o)); perform(o+LATE, o); clean() } }
inline loses(o) { d_step { o <= P && op[o] > 0 && op[o] != LOOK && lost < LOST && !CRASHED(o) && !helps[o] ->
	lost++; printf("%c hears nothing\n", NAME(o));
	op[o+LATE] = op[o]; up[o+LATE] = up[o]; same[o+LATE] = same[o]; sameHolders[o+LATE] = sameHolders[o];
	served[o+LATE] = served[o]; servedUps[o+LATE] = servedUps[o]; gets[o+LATE] = gets[o];
	op[o] = 0; same[o] = false; sameHolders[o] = false; served[o] = 0; servedUps[o] = 0; gets[o] = 0;
	answer[o] = NOTHING; beat() } }
inline released(o) { d_step { o <= P && releases[o] && (!room || kind[o] == 0) -> printf("%c is released\n", NAME(o)); ended(o); clean(); releases[o] = false } }
inline ends(o) { d_step { o <= P && CRASHED(o) && (kind[o] > 0 || raised[o] || ticket[o] > 0 || raises[o] || !over[o]) ->
	printf("the entries of %c end\n", NAME(o)); ended(o); clean() } }
inline crash(o) { d_step { o <= P && crashes < CRASHES && (done & BIT(o)) == 0 && !releases[o] ->
	crashes++; printf("%c crashes\n", NAME(o)); done = done | BIT(o); dead = dead | BIT(o);
	relies[o] = 0; on[o] = 0; answer[o] = 0;
	if :: op[o+LATE] == 0 && op[o] != LOOK -> op[o+LATE] = op[o]; up[o+LATE] = up[o]; same[o+LATE] = same[o];
		sameHolders[o+LATE] = sameHolders[o]; served[o+LATE] = served[o]; servedUps[o+LATE] = servedUps[o];
		gets[o+LATE] = gets[o] :: else fi;
	op[o] = 0; beat() } }

active proctype Etcd()
{
end:	do
	:: executed(1) :: executed(2) :: executed(3)
	:: late(1) :: late(2) :: late(3)
	:: loses(1) :: loses(2) :: loses(3)
	:: released(1) :: released(2) :: released(3)
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
