/*
 * The fencing tokens of package redlock, as a Promela model for the model checker spin.
 *
 * Redlock in two lines: a client sets the same key on N independent Redis nodes, with a random value of its own and a
 * TTL, and has the lock when a majority did so. Nothing in that stops a client that was paused: it goes on when
 * somebody else has the lock. So each hold gets a token, and the resource that the lock protects refuses a token
 * smaller than one it has seen. This model is about these tokens: N nodes without a common memory have to agree on
 * numbers that are never given twice and that grow from one holder to the next.
 *
 * The protocol. Each node keeps two numbers. The *slot's counter* is the largest counter that was ever drawn for any
 * lock of the hash slot. Neither release nor expiry deletes it, and other locks of the slot raise it, too. The *lock's
 * counter* is in the value of the lock key, beside the owner, and goes with it.
 *
 *   round 1  acquire: a node whose lock is free draws a number past the slot's counter. It becomes the slot's counter,
 *            and the value of the lock is the attempt's owner with that number, which is the answer. When a majority
 *            has granted, the token t is the largest counter among the grants.
 *   round 2  raise, where the counter is lower than t: "if the lock is mine and its counter is not past t, set it to t,
 *            and the slot's counter to t if that is lower". When the locks' counters of a majority are at t, the
 *            attempt has the lock, with token t.
 *   later    extend asks the same as raise. Verify asks whether raise would say yes, and changes nothing. A majority of
 *            answers says that, when they were asked for, no greater token had been issued. Release deletes the key of
 *            its owner only.
 *
 * Why it works. Only the holder of a node's lock changes the counter of that lock, and a grant is past all counters
 * that the lock had before. So each counter of a lock is due to one owner. Two tokens have a node in common, and there
 * they differ, in the order in which the node was held.
 *
 * The world is as bad as it can be. A request that was sent may be executed at each node at any later time, never, or
 * any number of times: that is loss, delay, reordering, resending by a client library, and a socket buffer of a process
 * that hung, in one. Any reply may be lost, or come late. A client may give up at any point, so a refusal, which makes
 * it give up, needs no step of its own.
 *
 * What is checked:
 *
 *   UNIQ  no token is issued twice
 *   RT    a token is greater than all that were issued before its attempt started            (order in real time)
 *   HO    a token is greater than all that were issued before it            (order of holds; not with EXPIRE=1)
 *   ME    nobody is given a lock that somebody else holds                 (mutual exclusion; not with EXPIRE=1)
 *   VER   an acknowledged verify, extend or unlock: no greater token was issued before it was sent
 *                                                                                 (with CERT, VERIFY and UNLOCK)
 *   OWN   a token is a number that some node drew for this attempt                                    (with DRAWN)
 *   KEEP  a node refuses the owner of its lock only if a number past the token was drawn for it       (with DRAWN)
 *
 * Parameters, each -DNAME=value for spin:
 *
 *   N        nodes, 3 or 5                    C, A     clients, and attempts of each, one after the other; C*A <= 6
 *   FMAX     the counters' largest value, at most 7
 *   BLOCK    the tokens of an attempt, from its token on. All of them count as issued when the attempt has won. A grant
 *            and a raise move the slot's counter to the last of them; extend, and a grant that heals, to the first.
 *   BUMP     1: the slot's counter may rise at any time, because other locks of the slot draw from it. So a grant may
 *            also have any greater number, as it has when a script takes the clock and a hint into account.
 *   EXPIRE   1: any key may expire at any time: no assumption about time at all. 0: only when its attempt is over, as
 *            it is when the TTL outlives what the client relies on; then expiry is the same as release, and needs no
 *            step of its own. 2: the same for a holder that extends (with VERIFY). A key also expires when its TTL
 *            began before the extension was sent that the holder relies on. So nodes that missed an extension lose
 *            the lock.
 *   VERIFY   1: holders may send extend, or a raise again.
 *   CERT     1: holders may send verify. Only its own answers count, of nodes whose counter is not past the token.
 *   UNLOCK   1: holders may wait for the answers to their release. (Everybody may stop holding, at any time.)
 *   AHEAD    1: a grant that comes after the token was chosen, with a counter past it, is remembered, and that node
 *            extends and unlocks by its own counter (docs/adr/0010). For these, VER does not survive that without
 *            assumptions about time; for verify, it does (docs/adr/0035).
 *   HEAL     1: a holder also acquires again on nodes that lost the lock, under the same owner, and remembers the new
 *            counter (docs/adr/0026; with AHEAD). What that must not leave behind is in heal.pml.
 *   DRAWN    1: OWN and KEEP are checked, which need a record of all that was drawn.
 *   LOSS     what the first node may forget, once. 1: everything (no persistence). 2: it goes back to an earlier state
 *            (appendfsync everysec); what had expired since then stays expired, what had been released comes back.
 *   CLOCK    1: with LOSS, a grant is also above all that the node's counter was before, as a clock ensures.
 *
 * A model that cannot fail proves nothing. So there are bugs to plant, each with -D and its name; they are marked BUG
 * here and in node.pml. run.sh runs it all, with bugs and without.
 */
#include "check.pml"

#ifndef N
#define N 3
#endif
#ifndef MAJ
#define MAJ (N/2+1)
#endif
#ifndef C
#define C 2
#endif
#ifndef A
#define A 1
#endif
#ifndef FMAX
#define FMAX 3
#endif
#ifndef BLOCK
#define BLOCK 1
#endif
#ifndef BUMP
#define BUMP 0
#endif
#ifndef EXPIRE
#define EXPIRE 1
#endif
#ifndef VERIFY
#define VERIFY 0
#endif
#ifndef CERT
#define CERT 0
#endif
#ifndef UNLOCK
#define UNLOCK 0
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef HEAL
#define HEAL 0
#endif
#ifndef EMAX
#define EMAX 2                                         /* extensions of a hold, with EXPIRE=2 */
#endif
#ifndef DRAWN
#define DRAWN 0
#endif
#ifndef LOSS
#define LOSS 0
#endif
#ifndef CLOCK
#define CLOCK 0
#endif
#if (N != 3 && N != 5) || FMAX > 7 || C*A > 6
#error outside what the model is written for
#endif

/* ---- Owners ---------------------------------------------------------------------------------------------------------
 * Each attempt has an owner value of its own, 1..OWNERS; 0 is nobody. */

#ifndef SAMEOWNER
#define OWNERS        (C*A)
#define OWNER(c,a)    ((c)*A+(a)+1)
#define CLIENT(o)     (((o)-1)/A)
#define CURRENT(o)    (attempt[CLIENT(o)] == ((o)-1)%A)
#else                                                  /* BUG: one value for all attempts of a client */
#define OWNERS        C
#define OWNER(c,a)    ((c)+1)
#define CLIENT(o)     ((o)-1)
#define CURRENT(o)    (attempt[CLIENT(o)] < A)
#endif

/* ---- State -------------------------------------------------------------------------------------------------------*/

/* What was sent, by owner. Requests go to all nodes and stay on their way for ever. */
bool sentAcquire[OWNERS+1];
byte sentRaise[OWNERS+1];                              /* the token it asks for; extend is the same */
bool sentRelease[OWNERS+1];

/* A client. */
mtype = { idle, acquiring, raising, holding, extending, verifying, unlocking };
mtype phase[C] = idle;
byte attempt[C];                                       /* the number of this attempt */
byte grant[C*N];                                       /* the counter in each node's grant, 0 = no grant; after round
                                                        * 1 only with AHEAD */
byte token[C];                                         /* since round 1 */
byte acks[C];                                          /* the nodes that have answered yes to it, a set of bits */

/* For the assertions only; no client can see it. */
byte issued;                                           /* all tokens ever issued, a set of bits */
byte newest;                                           /* the largest of them */
byte before[C];                                        /* newest, when the attempt or the verify started */
#if DRAWN
byte drawn[OWNERS+1];                                  /* all numbers that were drawn for an owner, a set of bits */
#endif

#if EXPIRE==2
/* What clients rely on: the number of a holder's extension, 0 for the acquisition. */
byte asked[C];                                         /* the last extension that was sent */
byte relied[C];                                        /* the last one that was confirmed */
#endif

/* Scratch, 0 between steps: a counter, an index, a set of nodes, a token. */
byte c1, i1, n1, t1;

/* ---- Sets of nodes -----------------------------------------------------------------------------------------------*/

#define BIT(i)      (1<<(i))
#define BITS(t)     (((1<<BLOCK)-1)<<(t))              /* a block that begins at t */
#define SIZE(s)     (((s)&1)+(((s)>>1)&1)+(((s)>>2)&1)+(((s)>>3)&1)+(((s)>>4)&1))
#define MAJORITY(s) (SIZE(s) >= MAJ)

#define GOT(c,i)    (grant[(c)*N+(i)] > 0)
#if N==3
#define GRANTS(c)   (GOT(c,0)+GOT(c,1)+GOT(c,2))
#else
#define GRANTS(c)   (GOT(c,0)+GOT(c,1)+GOT(c,2)+GOT(c,3)+GOT(c,4))
#endif

/* The steps are printed when spin replays a counterexample. A1 is the first attempt of the first client. */
#ifndef SAMEOWNER
#define NAME(o)     65+CLIENT(o), 1+((o)-1)%A
#else
#define NAME(o)     65+CLIENT(o), 1+attempt[CLIENT(o)]
#endif

#include "node.pml"

/* ---- A client ----------------------------------------------------------------------------------------------------*/

#define SELF (_pid-N)                                  /* clients are the processes that follow the nodes */
#define ATTEMPT OWNER(SELF, attempt[SELF])
#define MYNAME 65+SELF, attempt[SELF]+1

inline forgetGrants(c) {
	i1 = 0;
	do
	:: i1 < N -> grant[(c)*N+i1] = 0; i1++
	:: else -> break
	od;
	i1 = 0
}
inline forget(c) {
#if EXPIRE==2
	asked[c] = 0; relied[c] = 0;
#endif
	acks[c] = 0; token[c] = 0; before[c] = 0
}

/* The attempt has won, with token t. */
inline win(c, t) {
	printf("%c%d has the lock, token %d\n", MYNAME, t);
#ifndef SKIP_UNIQ                                      /* for bugs that break more than this */
	CHECK(!(issued & BITS(t)), UNIQ);
#endif
	CHECK(t > before[c], RT);
#if DRAWN
	CHECK(drawn[ATTEMPT] & BIT(t), OWN);
#endif
#if EXPIRE!=1 && LOSS==0
	CHECK(t > newest, HO);
	i1 = 0;
	do
	:: i1 < C -> CHECK(phase[i1] != holding && phase[i1] != extending && phase[i1] != verifying, ME); i1++
	:: else -> break
	od;
	i1 = 0;
#endif
	issued = issued | BITS(t);
	if
	:: t+BLOCK-1 > newest -> newest = t+BLOCK-1
	:: else
	fi;
	forget(c);
#if VERIFY || CERT || UNLOCK || AHEAD
	token[c] = t;                                  /* otherwise it is not needed any more */
#endif
#ifdef STALE_ACK                                       /* BUG: extend and verify count answers from before they began */
	acks[c] = n1;
#endif
	phase[c] = holding
}

/* Round 1 is over: t1 becomes the largest counter granted, n1 the nodes that have it. */
inline tally(c) {
	t1 = 0; n1 = 0; i1 = 0;
	do
	:: i1 < N ->
		if
		:: grant[(c)*N+i1] > t1 -> t1 = grant[(c)*N+i1]; n1 = BIT(i1)
		:: grant[(c)*N+i1] == t1 && t1 > 0 -> n1 = n1 | BIT(i1)
		:: else
		fi;
		i1++
	:: else -> break
	od;
	i1 = 0
#if !AHEAD
	; forgetGrants(c)
#endif
}

#ifdef NORAISE                                         /* BUG: no second round */
#define AGREED(s) true
#else
#define AGREED(s) MAJORITY(s)
#endif

active [C] proctype Client()
{
end:	do
	/* an attempt begins */
	:: d_step { phase[SELF] == idle && attempt[SELF] < A ->
		sentAcquire[ATTEMPT] = true;
		before[SELF] = newest; phase[SELF] = acquiring;
		printf("%c%d starts\n", MYNAME) }

	/* a majority has granted: the token is chosen; grants that come later have no part in it */
	:: d_step { phase[SELF] == acquiring && GRANTS(SELF) >= MAJ ->
		tally(SELF);
		if
		:: AGREED(n1) -> win(SELF, t1)
		:: else ->
			acks[SELF] = n1; token[SELF] = t1;
			sentRaise[ATTEMPT] = t1; phase[SELF] = raising;
			printf("%c%d chooses token %d\n", MYNAME, t1)
		fi;
		t1 = 0; n1 = 0 }

	/* a majority's counters are at the token */
	:: d_step { phase[SELF] == raising && MAJORITY(acks[SELF]) ->
		t1 = token[SELF]; n1 = acks[SELF]; win(SELF, t1); t1 = 0; n1 = 0 }

	/* the end of an attempt, or of a hold: given up, out of time, or released without waiting for the answers */
	:: d_step { phase[SELF] != idle ->
		printf("%c%d ends\n", MYNAME);
		sentRelease[ATTEMPT] = true;
		forgetGrants(SELF); forget(SELF); attempt[SELF]++; phase[SELF] = idle }

#if VERIFY
	/* extend */
#if EXPIRE==2
	:: d_step { phase[SELF] == holding && asked[SELF] < EMAX ->
		asked[SELF]++;
#else
	:: d_step { phase[SELF] == holding ->
#endif
		sentRaise[ATTEMPT] = token[SELF];
		before[SELF] = newest; phase[SELF] = extending;
		printf("%c%d sends extend\n", MYNAME) }
	:: d_step { phase[SELF] == extending && MAJORITY(acks[SELF]) ->
		printf("%c%d has extended, token %d\n", MYNAME, token[SELF]);
#ifndef SKIP_VER
		CHECK(before[SELF] <= token[SELF]+BLOCK-1, VER);
#endif
#if EXPIRE==2
		relied[SELF] = asked[SELF];
#endif
		acks[SELF] = 0; before[SELF] = 0; phase[SELF] = holding }
#if EXPIRE==2
	:: d_step { phase[SELF] == extending ->
		printf("%c%d does not learn what became of it\n", MYNAME);
		acks[SELF] = 0; before[SELF] = 0; phase[SELF] = holding }
#endif
#endif
#if CERT
	/* verify */
	:: d_step { phase[SELF] == holding ->
		before[SELF] = newest; phase[SELF] = verifying;
		printf("%c%d sends verify\n", MYNAME) }
	:: d_step { phase[SELF] == verifying && MAJORITY(acks[SELF]) ->
		printf("%c%d has verified token %d\n", MYNAME, token[SELF]);
		CHECK(before[SELF] <= token[SELF]+BLOCK-1, VER);
		acks[SELF] = 0; before[SELF] = 0; phase[SELF] = holding }
#endif
#if UNLOCK
	/* unlock, by a caller that wants to know whether it held the lock until then */
	:: d_step { phase[SELF] == holding ->
		sentRelease[ATTEMPT] = true;
		before[SELF] = newest; phase[SELF] = unlocking;
		acks[SELF] = 0;
		printf("%c%d sends release\n", MYNAME) }
	:: d_step { phase[SELF] == unlocking && MAJORITY(acks[SELF]) ->
		printf("%c%d has released, token %d\n", MYNAME, token[SELF]);
		CHECK(before[SELF] <= token[SELF]+BLOCK-1, VER);
		forgetGrants(SELF); forget(SELF); attempt[SELF]++; phase[SELF] = idle }
#endif
	od
}
