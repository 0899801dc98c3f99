/*
 * Does every client that waits in the queue get the lock in the end? handoff.pml says how the queue works.
 *
 * The world: no message about a grant ever arrives, but every request is executed and answered. The first client waits
 * for as long as it takes. The others come and go, wait, hold, leave, and die anywhere, as often as they like. A live
 * client may come too late for its claim window, or be skipped because the server counts no subscriber of its channel,
 * but not for ever: twice each, in all. Each process that can always take a step takes one in the end (weak fairness).
 *
 * An attempt has the same owner value as the one before it. That does no harm here, where nothing is in doubt.
 *
 *   SERVED   a client that goes on waiting holds the lock in the end
 *
 * FIFO and STRAND are checked, too. The parameters are C, the number of clients, and
 *
 *   QUIET    1: a client that was skipped once asks without a channel from then on, and is not skipped again.
 *   OTHER    1: another library takes the lock, too. It does not know the queue.
 *
 * The bugs to plant are marked BUG, broken assumptions BROKEN.
 */
#define TOKENS 0
#define SKIP_ONCE                                      /* NOPOP shall show what becomes of the others */
#ifndef QUIET
#define QUIET 0
#endif
#ifndef OTHER
#define OTHER 0
#endif

#define ALIVE(o)    (!dead[CLIENT(o)] && phase[CLIENT(o)] != idle)
#define SKIPS(h)    (dead[CLIENT(h)] || deaf < 2 && !(QUIET && skipped[CLIENT(h)]))
#ifdef DEAF                                            /* BROKEN: the subscription hangs on another server for ever */
#define SKIPPED(h)  skipped[CLIENT(h)] = QUIET
#else
#define SKIPPED(h)  skipped[CLIENT(h)] = QUIET; deaf = deaf + !dead[CLIENT(h)]
#endif

#include "queue.pml"

#if A != 1
#error a client has one owner value
#endif

mtype = { idle, waiting, holding };
mtype phase[C] = idle;
bool dead[C];
bool skipped[C];                                       /* in this attempt, with QUIET */
byte slow;                                             /* how many windows live clients have missed */
byte deaf;                                             /* how often live clients have been skipped */

#ifdef SLOW                                            /* BROKEN: live clients miss their windows for ever */
#define MISSED  0
#else
#define MISSED  1
#endif

active proctype Expiry()
{
end:	do
	:: d_step { lock > 0 && lock <= OWNERS && dead[CLIENT(lock)] ->
		printf("the lock of %c expires\n", 65+CLIENT(lock)); vanish() }
	:: d_step { lock > 0 && lock <= OWNERS && !dead[CLIENT(lock)] && phase[CLIENT(lock)] == waiting && slow < 2 ->
		slow = slow + MISSED;
		printf("the lock of %c expires before it comes\n", 65+CLIENT(lock)); vanish() }
	od
}

#if OTHER
active proctype Stranger()
{
end:	do
	:: d_step { lock == 0 -> lock = STRANGER; printf("another library takes the lock\n") }
	:: d_step { lock == STRANGER -> vanish(); printf("another library releases\n") }
	od
}
#endif

#define SELF (_pid-1-OTHER)
#define ME   (SELF+1)
#ifdef HEARTBEAT_BLIND                                 /* BUG: the heartbeat does not see its own grant */
#define SEES false
#else
#define SEES true
#endif

inline hold() {
	phase[SELF] = holding; ticket[ME] = 0; skipped[SELF] = false; renumber(); printf(": %c has the lock\n", 65+SELF)
}
inline stay() {
	ticket[ME] = (place[ME] > 0 && ticket[ME] == 0 -> place[ME] : ticket[ME]); renumber(); DONE
}
inline enqueue() {
	printf("%c enqueues: ", 65+SELF);
	if
	:: lock == ME && SEES -> d_step { hold() }     /* and claims */
	:: lock == ME && !SEES -> DONE
	:: lock != 0 && lock != ME -> d_step {
		join(ME, ticket[ME]);
#ifndef NOMARK                                         /* BUG: joins without marking */
		mark = true;
#endif
		printf("waits"); stay() }
	:: lock == 0 ->
		if
		:: !WAITERS -> grant(ME, 0, false, 1)
		:: else -> d_step { join(ME, ticket[ME]) }; hand_on(ME)
		fi;
		if
		:: lock == ME -> d_step { hold() }
		:: else -> d_step { stay() }
		fi
	fi
}
inline handover() {
	d_step {
		printf("%c hands over: ", 65+SELF);
		if
		:: lock == ME -> vanish()
		:: else
		fi;
		phase[SELF] = idle; place[ME] = 0; ticket[ME] = 0; skipped[SELF] = false; renumber() };
	hand_on(0);
	DONE
}

active [C] proctype Client()
{
end:	do
	:: atomic { phase[SELF] == idle && USUAL ->
		printf("%c acquires: ", 65+SELF); grant(ME, 0, false, 1); d_step { hold() } }
	:: atomic { phase[SELF] == idle && !USUAL -> phase[SELF] = waiting; enqueue() }
	:: atomic { phase[SELF] == waiting -> enqueue() }
	:: d_step { phase[SELF] == holding && !mark -> phase[SELF] = idle; vanish(); printf("%c releases\n", 65+SELF) }
	:: atomic { phase[SELF] == holding && mark -> handover() }
	:: atomic { SELF > 0 && phase[SELF] == waiting -> handover() }
	:: atomic { SELF > 0 -> dead[SELF] = true; printf("%c dies\n", 65+SELF); break }
	od
}

ltl served { [] ((phase[0] == waiting) -> <> (phase[0] == holding)) }
