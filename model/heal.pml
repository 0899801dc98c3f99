/*
 * What a lease leaves on one node of a Redlock: nothing. fence.pml is about what a lease is worth; this is about what
 * becomes of its acquisitions. There may be several of one owner, because a lease heals: it asks a node that lacks the
 * lock for it again. After Unlock, the node must not have the lock, nor get it when an acquisition arrives late.
 *
 * The world: a command may be executed when its client has given it up, and answers may be lost. Each is executed once
 * at most, which is what drivers promise; a release is repeated until it is answered. The key may be deleted behind the
 * client's back, and expires if nothing else ends it, which does not count here. A release with a tombstone keeps
 * acquisitions that arrive after it from being executed; tombstones live longer than commands are on their way.
 *
 * CLEAN: once Unlock and all acquisitions that the client waited for are answered, the node never has the lock.
 *
 * Bugs to plant, each with -D and its name, are marked BUG.
 */
#include "check.pml"

#ifndef HEALS
#define HEALS 2                                        /* how often a lease heals */
#endif
#ifndef DELETES
#define DELETES 2                                      /* how often somebody deletes the key */
#endif

/* The node. */
bool lock;
bool tombstone;

/* On their way. */
bool acquiring;                                        /* an acquisition that the client waits for */
bool executed;                                         /* it has been executed, and */
bool granted;                                          /* this is its answer */
byte strays;                                           /* acquisitions that the client has given up */
bool extending;                                        /* an extension */
bool denied;                                           /* was refused, and the answer is under way */
bool releasing;                                        /* a release, with or without a tombstone */
bool buries;

/* The client: redlock/holding.go. */
bool held, doubtful, unlocked, over;
byte heals, deletes;

inline answered(yes) {                                 /* holding.late */
	acquiring = false; executed = false;
	if
	:: yes -> held = true
	:: else
	fi;
	if
	:: unlocked && (held || doubtful) -> release()
	:: else
	fi
}
inline release() {
	releasing = true;
#ifndef NO_TOMBSTONE                                   /* BUG: acquisitions without an answer are forgotten */
	buries = doubtful
#endif
}

active proctype Node()
{
end:	do
	:: d_step { acquiring && !executed ->
		executed = true; granted = !tombstone; lock = lock || granted; printf("acquires: granted %d\n", granted) }
	:: d_step { strays > 0 ->
		strays--; lock = lock || !tombstone; printf("an acquisition lands late: the node has the lock %d\n", lock) }
	:: d_step { strays > 0 -> strays--; printf("an acquisition is lost\n") }
	:: d_step { extending && !lock && !denied -> extending = false; denied = true; printf("refuses to extend\n") }
	:: d_step { extending -> extending = false; printf("extends, or does not\n") }
	:: d_step { releasing -> lock = false; tombstone = tombstone || buries; printf("releases (answer lost)\n") }
	:: d_step { releasing ->
		lock = false; tombstone = tombstone || buries; releasing = false; held = false; printf("releases\n") }
	:: d_step { lock && deletes < DELETES -> deletes++; lock = false; printf("somebody deletes the key\n") }
	od
}

active proctype Client()
{
	acquiring = true;
end:	do
	:: d_step { acquiring && executed -> printf("is answered\n"); answered(granted) }
	:: d_step { acquiring && !executed -> printf("is refused, without effect\n"); answered(false) }
	/* no answer: it may have been executed, or may be yet */
	:: d_step { acquiring ->
		strays = (executed -> strays : strays + 1); doubtful = true; printf("gives an acquisition up\n"); answered(false) }
	:: d_step { held && !unlocked && !extending -> extending = true; printf("extends\n") }
	:: d_step { denied ->
		denied = false;
		if
		:: held && !unlocked -> held = false; doubtful = true; printf("hears that it lacks the lock\n")
		:: else
		fi }
#ifdef HEAL_AFTER_UNLOCK                               /* BUG */
	:: d_step { heals < HEALS && !held && !acquiring && !releasing ->
#elif defined(HEAL_TWICE)                              /* BUG: does not wait for the answer to the last one */
	:: d_step { heals < HEALS && !held && !unlocked ->
		strays = (acquiring && !executed -> strays + 1 : strays); executed = false;
#else
	:: d_step { heals < HEALS && !held && !acquiring && !unlocked ->
#endif
		heals++; acquiring = true; printf("heals\n") }
	:: d_step { !unlocked ->
		unlocked = true; printf("unlocks\n");
		if
		:: held || (doubtful && !acquiring) -> release()
		:: else
		fi }
	:: d_step { unlocked && !acquiring && !releasing && !over ->
		over = true; printf("all is answered\n") }
	:: d_step { over && lock ->
		CHECK(false, CLEAN) }
	od
}
