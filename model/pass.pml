/*
 * A lease that is passed on, in a text, from one process to another, on one store whose scripts are atomic: ADR 91.
 *
 * The exporter ends its lease, and then has the store replace its owner value by that of the text. Whoever has the text
 * resumes: one step replaces the value of the text by one of the attempt, and draws a greater token. If that request is
 * executed again, the answer is the same, and the TTL stays, so the validity counts from the first request. An attempt
 * that is given up is undone: one step frees the lock if it has the value of the text or of the attempt. So the text is
 * used up, and the request that is in doubt finds nothing when it arrives. An export that is given up is undone by two
 * releases: the first one with the exporter's value, and when that was not found, one with the value of the text.
 *
 * The world: a request is executed at any later time, or never, or twice, whether its sender still waits or not. Replies
 * may never be heard. Another client waits for the lock, and takes it when it is free. A process that is gone is one
 * whose release is never executed.
 *
 * What is checked:
 *
 *   ME       nobody relies on the lock while somebody else does
 *   ONE      at most one lease comes of the text
 *   TOK      a token is greater than those of all holders that began before
 *   CLEAN    an attempt that was undone is not granted the lock
 *   GONE     once the lock is exported, no request of the exporter from before changes it
 *   TIME     an export that is executed again leaves the time
 *   UNDONE   an undo that was executed leaves neither the owner value of the attempt nor that of the text
 *
 * Parameters: R processes that resume, with an attempt each; L, the TTL in ticks; X requests that are executed; WAITER
 * is 1 if somebody waits. The bugs to plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef R
#define R 2
#endif
#ifndef L
#define L 2
#endif
#ifndef X
#define X 5
#endif
#ifndef WAITER
#define WAITER 1
#endif

/* The processes: 0 is the exporter, 1 to R resume, R+1 waits for the lock. */
#define P (R+1+WAITER)
#define EXPORTER 0
#define OTHER (R+1)

/* The owner values. Each attempt has one of its own. */
#define OF(p) (p+1)
#ifdef KEEPS_OWNER                                     /* BUG: the text has the exporter's own value */
#define TEXT OF(EXPORTER)
#else
#define TEXT (P+1)
#endif
#ifdef SAME_OWNER                                      /* BUG: who resumes goes on with the value of the text */
#define RESUMED(p) TEXT
#else
#define RESUMED(p) OF(p)
#endif

/* The store. */
byte owner = OF(EXPORTER);                             /* 0: free */
byte counter = 1;                                      /* the last token */
byte ttl = L;
byte done;                                             /* requests executed */
bool exported;
byte lasts;                                            /* ticks that the text or the new lease may last */

/* The processes. */
#define IDLE 0
#define ASKS 1
#define HOLDS 2
#define ENDED 3
byte phase[P];
byte valid[P];                                         /* ticks that it relies on */
bool known;                                            /* the text was returned */

/* Requests on their way: one of each kind of each process. */
#define KINDS 4
#define TAKE 0                                         /* acquire, export or resume */
#define EXTEND 1                                       /* of the exporter; its answer is heard at once, or never */
#define RELEASE 2
#define UNDO 3
bool sent[P*KINDS];
byte answer[P];                                        /* of TAKE: the token; 0: none */
byte left[P];                                          /* ticks that are valid if the answer is yes */
byte eleft;                                            /* the same of EXTEND */

/* For the assertions only. */
bool undone[P];
byte newest = 1;
byte leases;
byte i1;

#define SELF _pid
#define NAME 65+SELF
#define RESUMES (SELF > EXPORTER && SELF <= R)
#define IS(k) sent[SELF*KINDS+k]

inline begin() {
	phase[SELF] = HOLDS; valid[SELF] = left[SELF]; left[SELF] = 0;
	printf("%c has the lock, token %d\n", NAME, answer[SELF]);
	leases = leases + (RESUMES -> 1 : 0);
	CHECK(leases <= 1, ONE);
	i1 = 0;
	do
	:: i1 < P -> CHECK(i1 == SELF || valid[i1] == 0, ME); i1++
	:: else -> break
	od;
	i1 = 0;
	CHECK(answer[SELF] > newest, TOK);
	newest = (answer[SELF] > newest -> answer[SELF] : newest); answer[SELF] = 0
}

inline grant(o) {
#ifdef SAME_TOKEN                                      /* BUG: who resumes has the token of the exporter */
	counter = (RESUMES -> counter : counter+1);
#else
	counter++;
#endif
	owner = o; ttl = L; lasts = L;
	CHECK(!undone[SELF], CLEAN);
	answer[SELF] = (phase[SELF] == ASKS -> counter : 0)
}

/* The store executes the request of SELF that takes the lock. */
inline take() {
	if
	:: SELF == EXPORTER ->
		if
		:: owner == OF(EXPORTER) || owner == TEXT ->
			CHECK(!undone[SELF], CLEAN);
#ifdef BEGINS_AGAIN                                    /* BUG: an export that is executed again begins the TTL anew */
			lasts = (exported -> lasts : L); ttl = L;
#else
			lasts = (exported -> lasts : L); ttl = (exported -> ttl : L);
#endif
			CHECK(ttl <= lasts, TIME);
			owner = TEXT; exported = true; answer[SELF] = (phase[SELF] == ASKS); printf("the lock is exported\n")
		:: else
		fi
	:: SELF == OTHER ->
		if
		:: owner == 0 -> grant(OF(SELF)); printf("%c is granted the lock\n", NAME)
		:: else
		fi
	:: else ->
		if
		:: owner == TEXT -> grant(RESUMED(SELF)); printf("%c is resumed, token %d\n", NAME, counter)
		:: owner != TEXT && owner == OF(SELF) ->
			answer[SELF] = (phase[SELF] == ASKS -> counter : 0); printf("%c is answered again\n", NAME)
#ifdef RESUMES_FREE                                    /* BUG: a lock whose TTL is over is resumed */
		:: owner == 0 -> grant(OF(SELF))
#endif
		:: else
		fi
	fi
}

#define MINE (owner == (RESUMES -> RESUMED(SELF) : OF(SELF)))
#ifdef UNDO_OWN                                        /* BUG: an undo leaves the text */
#define UNDOES (owner == OF(SELF))
#else
#define UNDOES (owner == OF(SELF) || owner == TEXT)
#endif

active [P] proctype Process()
{
end:	do
	/* What the store and the network do. A request that was executed may be executed again. */
	:: d_step { IS(TAKE) && done < X -> done++; take() }
	:: d_step { SELF == EXPORTER && IS(EXTEND) && done < X ->
		done++;
		if
		:: owner == OF(EXPORTER) ->
			CHECK(!exported, GONE);
			ttl = L; printf("%c is extended\n", NAME);
			valid[SELF] = (valid[SELF] > 0 && phase[SELF] == HOLDS && eleft > valid[SELF] -> eleft : valid[SELF])
		:: else
		fi }
	:: d_step { IS(RELEASE) && done < X ->
		done++;
		if
		:: MINE -> CHECK(SELF != EXPORTER || !exported, GONE); owner = 0; ttl = 0; printf("%c is released\n", NAME)
		:: !MINE && SELF == EXPORTER && IS(TAKE) && !known -> IS(UNDO) = true; printf("%c is not found\n", NAME)
		:: else
		fi }
	:: d_step { IS(UNDO) && done < X ->
		done++; undone[SELF] = true; printf("%c is undone\n", NAME);
		if
		:: (SELF == EXPORTER -> owner == TEXT : UNDOES) -> owner = 0; ttl = 0
		:: else
		fi;
		CHECK(owner != TEXT && owner != OF(SELF), UNDONE) }

	/* Time. */
	:: d_step { SELF == 0 && (ttl > 0 || valid[0] > 0) ->
		ttl = ttl - (ttl > 0); lasts = lasts - (lasts > 0); i1 = 0; eleft = eleft - (eleft > 0);
		owner = (ttl == 0 -> 0 : owner);
		do
		:: i1 < P ->
			valid[i1] = valid[i1] - (valid[i1] > 0); left[i1] = left[i1] - (left[i1] > 0); i1++
		:: else -> break
		od;
		i1 = 0; printf("tick\n") }

	/* The exporter holds the lock from the beginning. It extends, exports or releases. */
	:: d_step { SELF == EXPORTER && phase[SELF] == IDLE && owner == OF(EXPORTER) -> phase[SELF] = HOLDS; valid[SELF] = ttl }
	:: d_step { SELF == EXPORTER && phase[SELF] == HOLDS && valid[SELF] > 0 ->
		IS(EXTEND) = true; eleft = L; printf("%c extends\n", NAME) }
	:: d_step { SELF == EXPORTER && phase[SELF] == HOLDS ->
		phase[SELF] = ASKS; IS(TAKE) = true; printf("%c exports\n", NAME);
#ifndef RELIES_ON                                      /* BUG: the lease goes on */
		valid[SELF] = 0; eleft = 0
#endif
		}
	:: d_step { SELF == EXPORTER && phase[SELF] == ASKS && answer[SELF] == 1 ->
		phase[SELF] = ENDED; known = true; answer[SELF] = 0
#ifndef RELIES_ON
		; valid[SELF] = 0
#endif
		}
	:: d_step { phase[SELF] == HOLDS ->
		phase[SELF] = ENDED; valid[SELF] = 0; IS(RELEASE) = true; printf("%c unlocks\n", NAME) }

	:: d_step { SELF == EXPORTER && phase[SELF] == ASKS ->    /* gives up, whatever the answer is */
		phase[SELF] = ENDED; answer[SELF] = 0; printf("%c gives up\n", NAME);
#ifdef TEXT_FIRST                                      /* BUG: the value of the text is released first, or alone */
		IS(UNDO) = true
#else
		IS(RELEASE) = true
#endif
		}

	/* The others take the lock. A client library may send the request of an attempt again, which here has the same effect
	   as an answer that is heard late. */
	:: d_step { SELF != EXPORTER && phase[SELF] == IDLE && (known || SELF == OTHER) ->
		phase[SELF] = ASKS; IS(TAKE) = true; left[SELF] = L; printf("%c asks\n", NAME) }
#ifdef COUNTS_AGAIN                                    /* BUG: the validity counts from the last request */
	:: d_step { RESUMES && phase[SELF] == ASKS && left[SELF] < L ->
		answer[SELF] = 0; left[SELF] = L; printf("%c asks again\n", NAME) }
#endif
	:: d_step { SELF != EXPORTER && phase[SELF] == ASKS && answer[SELF] > 0 && left[SELF] > 0 -> begin() }
	:: d_step { SELF != EXPORTER && phase[SELF] == ASKS ->    /* gives up, whatever the answer is */
		phase[SELF] = ENDED; IS(UNDO) = RESUMES; IS(RELEASE) = !RESUMES; answer[SELF] = 0; left[SELF] = 0;
		printf("%c gives up\n", NAME) }
	od
}
