/*
 * Locks in a store that replaces a record if its version is still the one that was read: package record.
 *
 * A client looks at the record. If the lock is free, it writes its own record over that version. If another one has
 * the lock, the client watches: it counts the length of the record from when the first reply that showed this version
 * arrived, and writes over it when that is over. Holders write their record anew to extend it. An attempt that is given
 * up while its write may still take effect is undone, by another write over the same version.
 *
 * The world: a request is executed at any later time or never, whether its sender still waits or not. A write may be
 * executed twice, and the second answer may be the one that arrives. It may also be refused for no reason, and executed
 * later. Replies may be late or lost. Clients give up, crash and stand still at any time. Time passes in ticks, at the
 * same speed for all: what a holder relies on is counted from before its write was sent.
 *
 * With FOREIGN, the record has other locks, too, those of a group. Others write about them, and leave this lock as it
 * is. So what is known of the lock counts by its nonce, and what is written expects the version of the record.
 *
 * With CLOCK, all clients read one clock, as the processes of one machine do, and the record says when its length is
 * over on it. Whoever reads the record then takes the lock without watching. A restart of the machine, after which the
 * clock is another one, is not here: it ends all clients.
 *
 * What is checked:
 *
 *   ME       nobody relies on the lock while somebody else does
 *   TOK      a token is greater than those of all holders that began before
 *   CLEAN    what was given up, and perhaps undone, is not in the record, and does not come there
 *   DEAD     whoever has known what the record says of the lock for its length, takes it, whatever others write
 *
 * Parameters: C clients of A attempts; L, the length in ticks; V writes that take effect; W writes of a client that
 * are under way, 1 or 2; SHORT, 1: extensions may ask for a tick only; FOREIGN, how often others write; CLOCK. The bugs
 * to plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef C
#define C 2
#endif
#ifndef A
#define A 1
#endif
#ifndef L
#define L 2
#endif
#ifndef V
#define V 5
#endif
#ifndef W
#define W 2
#endif
#ifndef SHORT
#define SHORT 0
#endif
#ifndef FOREIGN
#define FOREIGN 0
#endif

/* The record. */
byte version;                                          /* 0: there is none */
byte nonce;                                            /* that of what is written about the lock */
byte others;                                           /* how often others have written */
byte owner;                                            /* the attempt that has the lock; 0: free */
byte length;
byte last;                                             /* the last token */
byte ends;                                             /* with CLOCK: ticks until the length is over */
byte writes;

/* The clients. */
mtype = { idle, looks, locks, holds, releases, undoes, asks };   /* asks: whether it has to undo more */
mtype phase[C] = idle;
byte attempt[C];                                       /* 1 to C*A; 0: none yet */
byte tries[C];
byte token[C];
byte own[C];                                           /* the version of its record */
byte over[C];                                          /* what its lock was written over */
bool doubt[C];                                         /* that write may take effect yet */
byte sees[C];                                          /* the nonce that it watches */
byte heard[C];                                         /* with FOREIGN: the nonce that it knows */
byte knows[C];                                         /* and the ticks until it has known that for its length */
bool seen[C];

/* Ticks that are left. */
byte count[C];                                         /* of the record that it watches */
byte ask[C];                                           /* of what it has asked for */
byte valid[C];                                         /* of what it relies on */
byte promise[C];                                       /* of the longest that it has asked for */

/* A read on its way. */
byte get[C];                                           /* 1: sent; 2: the reply is on its way */
byte gversion[C];
byte gnonce[C];
byte gowner[C];
byte glength[C];
byte glast[C];
byte ago[C];                                           /* ticks since it was sent */
byte gends[C];                                         /* with CLOCK: ticks until what it shows is over */

/* Writes on their way. */
mtype = { lock, extension, free };
bool sent[C*W];
mtype kind[C*W];
byte whose[C*W];
byte expects[C*W];
byte asksfor[C*W];                                     /* the length */
byte draws[C*W];                                       /* the token */
byte result[C*W];                                      /* 0: none yet; 1: stored; 2: a conflict */
byte stored[C*W];                                      /* the version */
byte due[C*W];                                         /* with CLOCK: ticks until its length is over */
byte waits[C];                                         /* for the answer to that write, from 1; 0: for none */

/* For the assertions only. */
bool ended[C*A+1];                                     /* was given up */
byte newest;                                           /* the greatest token of a holder */
byte i1;                                               /* scratch, 0 between steps */

#ifdef CLOCK
#define CLOCKED 1
#else
#define CLOCKED 0
#endif
#ifdef FIRST_END                                       /* BUG: an extension leaves the end as it is */
#define END(i) (kind[i] == extension -> ends : due[i])
#else
#define END(i) due[i]
#endif

#ifdef FORGETS_OTHERS                                  /* BUG: who writes leaves out what it does not know */
#define BLIND owner = 0; nonce = version;
#else
#define BLIND
#endif

#define SELF _pid
#define NAME 65+SELF
#define SLOT (waits[SELF]-1)

/* The lock is its own: it relies on it from now on. */
inline begin(v) {
	doubt[SELF] = false; own[SELF] = v; get[SELF] = 0; waits[SELF] = 0; over[SELF] = 0;
	if
	:: ask[SELF] > 0 ->
		phase[SELF] = holds; valid[SELF] = ask[SELF]; promise[SELF] = ask[SELF];
		printf("%c has the lock, token %d\n", NAME, token[SELF]);
		i1 = 0;
		do
		:: i1 < C -> CHECK(i1 == SELF || valid[i1] == 0, ME); i1++
		:: else -> break
		od;
		i1 = 0;
		CHECK(token[SELF] > newest, TOK);
		newest = (token[SELF] > newest -> token[SELF] : newest)
	:: else -> phase[SELF] = releases; printf("%c has the lock too late\n", NAME)
	fi
}

/* The attempt is over, without the lock. */
inline giveUp() {
	ended[attempt[SELF]] = true; phase[SELF] = idle; doubt[SELF] = false; get[SELF] = 0; waits[SELF] = 0;
	over[SELF] = 0; ask[SELF] = 0; token[SELF] = 0;
	printf("%c has given up\n", NAME);
	CHECK(owner != attempt[SELF], CLEAN)
}

/* The hold is over. */
inline leave() {
	phase[SELF] = idle; get[SELF] = 0; waits[SELF] = 0; valid[SELF] = 0; ask[SELF] = 0; promise[SELF] = 0;
	own[SELF] = 0; token[SELF] = 0
}

/* Sends a write. It takes the first place, and is not sent if there is none. */
#define FIRST (!sent[SELF*W] -> SELF*W : SELF*W+W-1)
#define ROOM  (!sent[FIRST])
inline send(k, v, l, t) {
	i1 = FIRST;
	sent[i1] = true; kind[i1] = k; whose[i1] = attempt[SELF]; expects[i1] = v; asksfor[i1] = l; draws[i1] = t;
	result[i1] = 0; waits[SELF] = i1+1; due[i1] = CLOCKED*l; i1 = 0
}

/* A write that nobody waits for and that can have no effect is as if it had not been. So is a reply that was heard. */
inline tidy() {
	if
	:: get[SELF] == 0 -> gversion[SELF] = 0; gnonce[SELF] = 0; gowner[SELF] = 0; glength[SELF] = 0; glast[SELF] = 0;
		ago[SELF] = 0; gends[SELF] = 0
	:: else
	fi;
	i1 = 0;
	do
	:: i1 < C*W ->
		if
		:: sent[i1] && waits[i1/W] != i1+1 && (result[i1] == 1 || expects[i1] != version) ->
			sent[i1] = false; kind[i1] = 0; whose[i1] = 0; expects[i1] = 0; asksfor[i1] = 0; draws[i1] = 0;
			result[i1] = 0; stored[i1] = 0; due[i1] = 0
		:: else
		fi;
		i1++
	:: else -> break
	od;
	i1 = 0
}

#ifdef NO_NONCE                                        /* BUG: what says the same has the same version */
#define VERSION(i) (kind[i] == free -> 2*draws[i]+2 : 2*draws[i]+1)
#elif defined(DELETES)                                 /* BUG: a release deletes the record */
#define VERSION(i) (kind[i] == free -> 0 : writes)
#else
#define VERSION(i) (writes)
#endif

/* The store executes the write i. */
inline execute(i) {
	if
	:: expects[i] == version ->
		writes++; version = VERSION(i); result[i] = 1; stored[i] = version;
		nonce = version;
		length = asksfor[i]; last = draws[i]; ends = END(i); owner = (kind[i] == free -> 0 : whose[i]);
		printf("a write of %c is stored, version %d\n", NAME, version);
		CHECK(kind[i] == free || !ended[whose[i]], CLEAN)
	:: else -> result[i] = 2; printf("a write of %c is a conflict\n", NAME)
	fi;
	tidy()
}

#ifdef FROM_SENT                                       /* BUG: counts from when the read was sent */
#define SINCE ago[SELF]
#else
#define SINCE 0
#endif

#ifdef VERSION_SEEN                                    /* BUG: the length counts for the version */
#define SEEN gversion[SELF]
#elif defined(PLACE_SEEN)                              /* BUG: it counts for the lock, whatever is written about it */
#define SEEN 1
#else
#define SEEN gnonce[SELF]
#endif

/* The reply to a read arrives. */
inline hear() {
	get[SELF] = 0;
	if
	:: FOREIGN > 0 && (!seen[SELF] || heard[SELF] != gnonce[SELF]) ->
		heard[SELF] = gnonce[SELF]; knows[SELF] = glength[SELF]
	:: else
	fi;
	if
	:: !seen[SELF] || sees[SELF] != SEEN ->
		seen[SELF] = true; sees[SELF] = SEEN;
		count[SELF] = (glength[SELF] > SINCE -> glength[SELF] - SINCE : 0)
	:: else
	fi;
	if
	:: doubt[SELF] && gversion[SELF] != over[SELF] && gowner[SELF] != attempt[SELF] -> doubt[SELF] = false
	:: else
	fi
}
#define HEARD (get[SELF] == 2)
#define MINE  (gowner[SELF] == attempt[SELF])
#define WATCHED (sees[SELF] == SEEN && seen[SELF] && count[SELF] == 0)
#define OPEN  (gowner[SELF] == 0 || WATCHED || CLOCKED && gends[SELF] == 0)
#define ANSWERED (waits[SELF] > 0 && result[SLOT] > 0)

#ifdef FORGETS                                         /* BUG: a free record has no tokens */
#define LAST 0
#else
#define LAST token[SELF]
#endif

inline tick(x) { x = x - (x > 0) }

active [C] proctype Client()
{
end:	do
	/* What the store and the network do. */
	:: d_step { get[SELF] == 1 ->
		get[SELF] = 2; gversion[SELF] = version; gnonce[SELF] = nonce; gowner[SELF] = owner; glength[SELF] = length;
		glast[SELF] = last;
		gends[SELF] = ends;
		printf("%c reads version %d\n", NAME, version) }
	:: d_step { sent[SELF*W] && writes < V -> execute(SELF*W) }
	:: d_step { W > 1 && sent[SELF*W+W-1] && writes < V -> execute(SELF*W+W-1) }
	:: d_step { SELF == 0 && others < FOREIGN && writes < V ->
		others++; writes++; version = writes; printf("others write, version %d\n", version); BLIND
		if
		:: true
		:: last++                                      /* they have acquired something */
		fi;
		tidy() }
	:: d_step { waits[SELF] > 0 && result[SLOT] == 0 ->
		result[SLOT] = 2; printf("a write of %c is refused for no reason\n", NAME) }

	/* Time. */
	:: d_step { SELF == 0 ->
		i1 = 0;
		do
		:: i1 < C ->
			tick(count[i1]); tick(knows[i1]); tick(ask[i1]); tick(valid[i1]); tick(promise[i1]); tick(gends[i1]);
			tick(due[i1*W]);
			if
			:: W > 1 -> tick(due[i1*W+W-1])
			:: else
			fi;
			ago[i1] = (get[i1] > 0 && ago[i1] < L -> ago[i1]+1 : ago[i1]); i1++
		:: else -> break
		od;
		tick(ends); i1 = 0; printf("tick\n") }

	/* An attempt. */
	:: d_step { phase[SELF] == idle && tries[SELF] < A ->
		tries[SELF]++; attempt[SELF] = SELF*A + tries[SELF]; phase[SELF] = looks }
	:: d_step { (phase[SELF] == looks || phase[SELF] == asks) && get[SELF] == 0 ->
		get[SELF] = 1; ago[SELF] = 0; printf("%c sends a read\n", NAME);
		ask[SELF] = (phase[SELF] == looks && !doubt[SELF] -> L : ask[SELF]) }
	:: d_step { phase[SELF] == looks && HEARD && (MINE || !OPEN) ->
		hear();
		if
		:: MINE -> begin(gversion[SELF])
		:: else ->
			CHECK(FOREIGN == 0 || heard[SELF] != gnonce[SELF] || knows[SELF] > 0 || doubt[SELF], DEAD);
			printf("%c finds the lock held, version %d\n", NAME, gversion[SELF])
		fi;
		tidy() }
	:: d_step { phase[SELF] == looks && HEARD && !MINE && OPEN && ROOM ->
		hear();
		token[SELF] = glast[SELF]+1; over[SELF] = gversion[SELF]; doubt[SELF] = true; phase[SELF] = locks;
		send(lock, over[SELF], L, token[SELF]);
		printf("%c writes its lock over version %d\n", NAME, over[SELF]);
		tidy() }
	:: d_step { phase[SELF] == locks && ANSWERED ->
		if
		:: result[SLOT] == 1 -> begin(stored[SLOT])
#ifdef OWN_CONFLICT                                    /* BUG: a conflict is the lock of another one */
		:: else -> giveUp()
#else
		:: else -> waits[SELF] = 0; phase[SELF] = looks
#endif
		fi;
		tidy() }
	:: d_step { (phase[SELF] == looks || phase[SELF] == locks) ->    /* gives up */
		get[SELF] = 0; waits[SELF] = 0;
		if
		:: !doubt[SELF] -> giveUp()
#ifdef NO_UNDO                                         /* BUG: what is in doubt is not undone */
		:: else -> giveUp()
#elif defined(UNDO_READS)                              /* BUG: it is undone only if it is there */
		:: else -> phase[SELF] = asks
#else
		:: else -> phase[SELF] = (FOREIGN > 0 -> asks : undoes)    /* others may have written over it already */
#endif
		fi;
		tidy() }

	/* Undoing. */
	:: d_step { phase[SELF] == undoes && waits[SELF] == 0 && ROOM ->
		send(free, over[SELF], 0, LAST); printf("%c undoes over version %d\n", NAME, over[SELF]) }
	:: d_step { phase[SELF] == undoes && ANSWERED ->
		if
		:: result[SLOT] == 1 -> giveUp()
		:: else -> waits[SELF] = 0; phase[SELF] = asks
		fi;
		tidy() }
	:: d_step { phase[SELF] == asks && HEARD ->
		hear();
		if
		:: MINE -> over[SELF] = gversion[SELF]; phase[SELF] = undoes
		:: !MINE && gversion[SELF] != over[SELF] -> giveUp()
#ifdef UNDO_READS
		:: else -> giveUp()
#else
		:: else -> phase[SELF] = undoes
#endif
		fi;
		tidy() }

	/* A hold. */
	:: d_step { phase[SELF] == holds && valid[SELF] > 0 && waits[SELF] == 0 && get[SELF] == 0 && ROOM ->
		ask[SELF] = L; promise[SELF] = L;
		send(extension, own[SELF], promise[SELF], token[SELF]); printf("%c extends\n", NAME) }
	:: d_step { SHORT && phase[SELF] == holds && valid[SELF] > 0 && waits[SELF] == 0 && get[SELF] == 0 && ROOM ->
		ask[SELF] = 1; promise[SELF] = (promise[SELF] > 1 -> promise[SELF] : 1);
#ifdef SHORTENS                                        /* BUG: the length is that of the last extension */
		send(extension, own[SELF], 1, token[SELF]);
#else
		send(extension, own[SELF], promise[SELF], token[SELF]);
#endif
		printf("%c extends by a tick\n", NAME) }
	:: d_step { phase[SELF] == holds && ANSWERED ->
		if
		:: result[SLOT] == 1 ->
			own[SELF] = stored[SLOT];
			if
			:: valid[SELF] > 0 && ask[SELF] > valid[SELF] -> valid[SELF] = ask[SELF]
			:: else
			fi;
			printf("%c is extended\n", NAME)
		:: else -> get[SELF] = 1; ago[SELF] = 0
		fi;
		waits[SELF] = 0; tidy() }
	:: d_step { phase[SELF] == holds && HEARD ->
		hear();
		if
		:: MINE -> own[SELF] = gversion[SELF]
		:: else -> printf("%c has lost the lock\n", NAME); leave()
		fi;
		tidy() }
	:: d_step { phase[SELF] == holds && (waits[SELF] > 0 || get[SELF] > 0) ->    /* no answer */
		waits[SELF] = 0; get[SELF] = 0; tidy() }
	:: d_step { phase[SELF] == holds -> phase[SELF] = releases; valid[SELF] = 0; waits[SELF] = 0; get[SELF] = 0; tidy() }
	:: d_step { phase[SELF] == releases && waits[SELF] == 0 && get[SELF] == 0 && ROOM ->
		send(free, own[SELF], 0, LAST); printf("%c releases version %d\n", NAME, own[SELF]) }
	:: d_step { phase[SELF] == releases && ANSWERED ->
		if
		:: result[SLOT] == 1 -> leave()
		:: else -> waits[SELF] = 0; get[SELF] = 1; ago[SELF] = 0
		fi;
		tidy() }
	:: d_step { phase[SELF] == releases && HEARD ->
		hear();
		if
		:: MINE -> own[SELF] = gversion[SELF]
		:: else -> leave()
		fi;
		tidy() }
	:: d_step { (phase[SELF] == holds || phase[SELF] == releases) && waits[SELF] == 0 ->    /* crashes, or stops trying */
		printf("%c is gone\n", NAME); leave(); tidy() }
	od
}
