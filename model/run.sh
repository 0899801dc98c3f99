#!/bin/sh
# Checks the models with spin: fence.pml, heal.pml, guard.pml, handoff.pml, progress.pml, local.pml, places.pml,
# group.pml, seats.pml, record.pml, told.pml, ticks.pml and pass.pml. Exits non-zero if a property fails, a planted
# bug is not found, or a search is not complete.
#
#   run.sh                      the small searches and all planted bugs, two at a time: about five minutes
#   run.sh full                 the large searches too, about half an hour and 6 GB
#   run.sh trace [MODEL] -D...  one search, with parameters of the model or its bugs; prints the shortest way to fail.
#                               MODEL is heal, guard, handoff, progress, local, places, group, seats, record, told,
#                               ticks or pass; without it, fence
set -eu

here=$(cd "$(dirname "$0")" && pwd)
. "$here/search.sh"

# ---- fence.pml and heal.pml: tokens -------------------------------------------------------------------------------

tokens() {
  model=fence
  heading "tokens"
  holds "2 clients x 1 attempt, counters to 3"               -DBUMP=1
  holds "  with extend and unlock"                           -DBUMP=1 -DVERIFY=1 -DUNLOCK=1
  holds "  with verify"                                      -DBUMP=1 -DCERT=1
  holds "  late grants ahead of the token"                   -DBUMP=1 -DAHEAD=1
  holds "  node 1 loses everything; clock"                   -DBUMP=1 -DLOSS=1 -DCLOCK=1
  holds "  to 2, node 1 goes back; clock"                    -DBUMP=1 -DLOSS=2 -DCLOCK=1 -DFMAX=2
  holds "2 x 2, to 3, sound expiry (also HO, ME)"            -DBUMP=1 -DEXPIRE=0 -DA=2
  holds "3 x 1, to 3, sound expiry (also HO, ME)"            -DBUMP=1 -DEXPIRE=0 -DC=3
  holds "2 x 1, to 2, the same, extend, unlock, late" -DBUMP=1 -DEXPIRE=0 -DFMAX=2 -DVERIFY=1 -DUNLOCK=1 -DAHEAD=1
  holds "5 nodes, 2 x 1, to 2, sound expiry (also HO, ME)"   -DBUMP=1 -DEXPIRE=0 -DN=5 -DFMAX=2
  holds "2 x 1, to 2, healing"                               -DBUMP=1 -DAHEAD=1 -DHEAL=1 -DVERIFY=1 -DSKIP_VER -DFMAX=2
  holds "2 x 1, to 2, healing, verify"                       -DBUMP=1 -DAHEAD=1 -DHEAL=1 -DCERT=1 -DFMAX=2
  holds "2 x 1, to 3, healing, expiry of what is not extended" -DBUMP=1 -DEXPIRE=2 -DAHEAD=1 -DHEAL=1 -DVERIFY=1
  holds "2 x 1, to 3, numbers that were drawn (OWN, KEEP)"    -DBUMP=1 -DDRAWN=1
  holds "2 x 1, to 2, the same, extend, late grants"         -DBUMP=1 -DDRAWN=1 -DFMAX=2 -DVERIFY=1 -DAHEAD=1
  holds "2 x 1, to 4, blocks of 2"                           -DBUMP=1 -DBLOCK=2 -DFMAX=4
  holds "2 x 1, to 4, the same, sound expiry (also HO, ME)"  -DBUMP=1 -DBLOCK=2 -DFMAX=4 -DEXPIRE=0
  model=heal
  holds "what a lease that heals leaves on a node"
}

tokenBugs() {
  model=fence
  heading "planted bugs"
  breaks "MAJ=1: a minority is enough"                       UNIQ -DMAJ=1
  breaks "NORAISE: no second round"                          UNIQ -DNORAISE
  breaks "NORAISE, tokens in real time"                      RT   -DNORAISE -DSKIP_UNIQ
  breaks "RAISE_LE_ANY: raise does not ask who has the lock" UNIQ -DRAISE_LE_ANY
  breaks "RAISE_NOL: the same, but knows who set the counter" UNIQ -DRAISE_NOL
  breaks "RAISE_NOL, OWNRET: acquire knows it as well"       HO   -DRAISE_NOL -DOWNRET -DEXPIRE=0 -DBUMP=1
  breaks "RAISE_PAST: raise accepts a counter past the token" UNIQ -DRAISE_PAST
  breaks "RAISE_PAST, extend"                                VER  -DRAISE_PAST -DVERIFY=1
  breaks "SAMEOWNER: one owner value for all attempts"       UNIQ -DSAMEOWNER -DA=2
  breaks "REL_NOCMP: release deletes without comparing"      ME   -DREL_NOCMP -DEXPIRE=0 -DA=2
  breaks "NOPERSIST: the counter goes with the lock"         UNIQ -DNOPERSIST
  breaks "GRANT_SAME: a grant leaves the counter"            UNIQ -DGRANT_SAME
  breaks "AGAIN_SLOT: granted again, with the slot's counter" OWN  -DAGAIN_SLOT -DDRAWN=1 -DBUMP=1
  breaks "COMPARE_SLOT: raise, extend compare the slot's counter" KEEP -DCOMPARE_SLOT -DDRAWN=1 -DBUMP=1
  breaks "LOCK_FIRST: out of memory between lock and counter" UNIQ -DLOCK_FIRST
  breaks "RAISE_VALUE: raises the lock's counter only"       UNIQ -DRAISE_VALUE
  breaks "RAISE_NOTHING: says yes, and is out of memory"     UNIQ -DRAISE_NOTHING
  breaks "GRANT_FIRST: a grant does not cover its block"     UNIQ -DGRANT_FIRST -DBUMP=1 -DBLOCK=2 -DFMAX=4
  breaks "RAISE_FIRST: a raise does not cover the block"     UNIQ -DRAISE_FIRST -DBUMP=1 -DBLOCK=2 -DFMAX=4
  breaks "STALE_ACK: extend counts earlier answers"          VER  -DSTALE_ACK -DVERIFY=1
  breaks "STALE_ACK, verify"                                 VER  -DSTALE_ACK -DCERT=1
  breaks "CERT_ANY: verify does not look at the counter"     VER  -DCERT_ANY -DCERT=1
  breaks "CERT_AHEAD: verify counts late and healed grants"  VER  -DCERT_AHEAD -DCERT=1 -DAHEAD=1
  breaks "UNLOCK_ANY: unlock does not look at the counter"   VER  -DUNLOCK_ANY -DUNLOCK=1
  breaks "HEAL_COUNTS: a healed node extends by its grant"   ME   -DHEAL_COUNTS -DEXPIRE=2 -DAHEAD=1 -DHEAL=1 -DVERIFY=1
  model=heal
  breaks "HEAL_AFTER_UNLOCK: a lease heals after Unlock"     CLEAN -DHEAL_AFTER_UNLOCK
  breaks "HEAL_TWICE: before the last time was answered"     CLEAN -DHEAL_TWICE
  breaks "NO_TOMBSTONE: unanswered healings are forgotten"   CLEAN -DNO_TOMBSTONE
  model=fence
  heading "broken assumptions"
  breaks "LOSS=1: node 1 loses everything; no clock"         UNIQ -DLOSS=1
  breaks "LOSS=2: node 1 goes back; no clock"                UNIQ -DLOSS=2
  breaks "LOSS=2, REVIVE: clock, but expired keys come back" UNIQ -DLOSS=2 -DCLOCK=1 -DREVIVE -DFMAX=2
}

tokensLarge() {
  model=fence
  heading "tokens, large"
  holds "2 x 1, counters to 4"                               -DBUMP=1 -DFMAX=4
  holds "2 x 1, to 3, verify, late grants"                   -DBUMP=1 -DCERT=1 -DAHEAD=1
  holds "2 x 2, to 3, no other locks"                        -DA=2
  holds "3 x 1, to 3, no other locks"                        -DC=3
  holds "5 nodes, 2 x 1, to 2, no other locks"               -DN=5 -DFMAX=2
  holds "2 x 2, to 2, extend and unlock"                     -DBUMP=1 -DA=2 -DFMAX=2 -DVERIFY=1 -DUNLOCK=1
  holds "3 x 1, to 2, extend and unlock"                     -DBUMP=1 -DC=3 -DFMAX=2 -DVERIFY=1 -DUNLOCK=1
  holds "2 x 2, to 2, numbers that were drawn (OWN, KEEP)"   -DBUMP=1 -DA=2 -DFMAX=2 -DDRAWN=1 -DVERIFY=1 -DAHEAD=1
  holds "2 x 1, to 4, node 1 loses everything; clock, no other locks" -DFMAX=4 -DLOSS=1 -DCLOCK=1
  holds "2 x 1, to 3, node 1 goes back; clock"               -DBUMP=1 -DLOSS=2 -DCLOCK=1
  holds "2 x 1, to 3, the same with extend, no other locks" -DLOSS=2 -DCLOCK=1 -DVERIFY=1
  holds "2 x 2, to 4, sound expiry (also HO, ME)"            -DBUMP=1 -DEXPIRE=0 -DA=2 -DFMAX=4
  holds "3 x 1, to 4, sound expiry (also HO, ME)"            -DBUMP=1 -DEXPIRE=0 -DC=3 -DFMAX=4
  holds "3 x 2, to 3, the same, no other locks"              -DEXPIRE=0 -DC=3 -DA=2
  holds "5 nodes, 2 x 1, to 3, the same, no other locks"     -DEXPIRE=0 -DN=5 -DFMAX=3
  holds "2 x 2, to 3, sound expiry, extend, unlock"          -DBUMP=1 -DEXPIRE=0 -DA=2 -DVERIFY=1 -DUNLOCK=1
  holds "2 x 1, to 3, the same, late grants ahead"           -DBUMP=1 -DEXPIRE=0 -DVERIFY=1 -DUNLOCK=1 -DAHEAD=1
  heading "planted bugs and broken assumptions, large"
  breaks "RAISE_NOL, OWNRET: no other locks in the slot"     HO   -DRAISE_NOL -DOWNRET -DEXPIRE=0 -DA=2
  breaks "AHEAD: extend, with keys that expire early"        VER  -DAHEAD=1 -DVERIFY=1
}

# ---- guard.pml: nodes that forget ----------------------------------------------------------------------------------

guard() {
  model=guard
  heading "nodes that forget, and the restart guard: ME"
  holds "1 node, 2 clients x 1 attempt, forgets twice"           -DFORGETS=2 -DFAILBACK=1
  holds "  its clock is put back once"                           -DFORGETS=2 -DFAILBACK=1 -DSTEPS=1
  holds "  2 x 2, TTL of 3 ticks"                                -DFORGETS=2 -DFAILBACK=1 -DSTEPS=1 -DA=2 -DM=3
  holds "  the same, and a queue"                                -DFORGETS=2 -DFAILBACK=1 -DSTEPS=1 -DQUEUE=1
  holds "3 nodes, 2 x 1, TTL of 1 tick, one forgets"             -DN=3 -DM=1
  holds "  leases heal on nodes that rest"                       -DN=3 -DM=1 -DHEAL_RESTING
  holds "1 node, CLAIM_RESTING: claims while it rests"           -DQUEUE=1 -DFORGETS=2 -DFAILBACK=1 -DCLAIM_RESTING
}

guardBugs() {
  model=guard
  heading "planted bugs in the restart guard"
  breaks "NO_GUARD: nodes do not rest"                           ME -DNO_GUARD
  breaks "NO_GUARD, two of three nodes"                          ME -DNO_GUARD -DN=3 -DM=1 -DFORGETS=2
  breaks "NOT_COMPARED: any marker will do"                      ME -DNOT_COMPARED
  breaks "RUN_ID: the marker names the process alone"            ME -DRUN_ID -DFAILBACK=1
  breaks "GUARD_SHORT: TTLs are longer than the guard"           ME -DGUARD_SHORT
  breaks "TOUCH_RESTED: opening a client ends the rest"          ME -DTOUCH_RESTED
  breaks "FUTURE_RESTED: a marker of the future is an old one"   ME -DFUTURE_RESTED -DSTEPS=1
  breaks "MARK_APART: a script compares, the next one grants"    ME -DMARK_APART
  breaks "HANDOVER_RESTING: a hand-over and its claim do not ask" ME -DHANDOVER_RESTING -DCLAIM_RESTING -DQUEUE=1
  breaks "CLAIM_RESTING: old data, and the clock put back"       ME -DCLAIM_RESTING -DQUEUE=1 -DSTEPS=1
}

guardLarge() {
  model=guard
  heading "nodes that forget, large"
  holds "3 nodes, 2 x 1, TTL of 1 tick, and a clock is put back" -DN=3 -DM=1 -DSTEPS=1
  holds "1 node, 3 x 1, and a queue"                             -DC=3 -DQUEUE=1
}

# ---- handoff.pml and progress.pml: the queue ----------------------------------------------------------------------

any="-DTOKENS=0" # any number of grants
three="$any -DC=3"

queue() {
  model=handoff
  heading "the queue: ME, NOBODY, FIFO, ONCE, STRAND; sound expiry"
  holds "2 clients x 1 attempt"                                  $any
  holds "3 x 1"                                                  $three
  holds "3 x 1, answers may be heard late"                       $three -DLATE=1
  holds "3 x 1, answered requests are executed again"            $three -DDUP=1
  holds "3 x 1, and another library (also FOREIGN)"              $three -DOTHER=1
  holds "3 x 1, locks that are kept for a while"                 $three -DMINHOLD=1
  holds "2 x 1, asking without waiting"                          $any -DTRYLOCK=1
  holds "2 and 1 attempt"                                        $any -DA=2 -DSHORT=1
  holds "2 and 1 attempt, answers may be heard late"             $any -DA=2 -DSHORT=1 -DLATE=1
  heading "tokens, too: UNIQ, RT, OWN, HO; sound expiry"
  holds "2 x 1, counters to 5, other locks draw, extend"         -DFMAX=5 -DBUMP=1 -DOWN=1 -DEXTEND=1
  holds "3 x 1, to 3"                                            -DC=3
  holds "2 and 1 attempt, to 3"                                  -DA=2 -DSHORT=1
  holds "2 x 1, to 6, blocks of 2, other locks draw, extend"     -DBLOCK=2 -DFMAX=6 -DBUMP=1 -DOWN=1 -DEXTEND=1
  heading "no assumption about time: UNIQ, RT, OWN, VER, NOBODY, FIFO, ONCE"
  holds "2 x 1, counters to 4, other locks draw, extend"         -DEXPIRE=1 -DFMAX=4 -DBUMP=1 -DOWN=1 -DEXTEND=1
  holds "2 x 1, to 4, the same, and an operator's force"  -DEXPIRE=1 -DFMAX=4 -DBUMP=1 -DOWN=1 -DEXTEND=1 -DFORCE=1
  holds "2 x 1, to 5, blocks of 2, other locks draw, extend"  -DEXPIRE=1 -DBLOCK=2 -DFMAX=5 -DBUMP=1 -DOWN=1 -DEXTEND=1
  holds "2 and 1 attempt, to 3, extend"                          -DEXPIRE=1 -DA=2 -DSHORT=1 -DEXTEND=1
  model=progress
  heading "progress: SERVED, though all messages are lost"
  holds "2 clients"
  holds "3 clients"                                              -DC=3
  holds "4 clients"                                              -DC=4
  holds "3 clients, without any mark: heartbeats are enough"     -DC=3 -DNOMARK -DGRANT_NOMARK
  holds "3 clients, subscriptions elsewhere for ever, QUIET"     -DC=3 -DDEAF -DQUIET=1
}

queueBugs() {
  model=handoff
  heading "planted bugs in the queue"
  breaks "HAND_HELD: hands on a lock that somebody has"          ME      $three -DHAND_HELD
  breaks "CLAIM_ANY: claim does not compare the owner"           ME      $three -DCLAIM_ANY
  breaks "HANDOVER_ANY: handover deletes without comparing"      ME      $three -DHANDOVER_ANY
  breaks "BELIEVE: takes a window for the whole TTL"             ME      $three -DBELIEVE
  breaks "NOPOP: grants without taking it out of the queue"      ONCE    $three -DNOPOP
  breaks "ENQUEUE_REJOIN: the heartbeat puts back who was granted" ONCE  $three -DENQUEUE_REJOIN
  breaks "ENQUEUE_NOTOMB: enqueue ignores the tombstone"         NOBODY  $three -DENQUEUE_NOTOMB
  breaks "LEAVE_STAYS: tombstone, but still in the queue"        NOBODY  $three -DLEAVE_STAYS
  breaks "LEAVE_TOMB: without a tombstone, stays in the queue"   NOBODY  $three -DLEAVE_TOMB
  breaks "LEAVE_NOTOMB: no tombstone, a request unanswered"      NOBODY  $three -DLEAVE_NOTOMB
  breaks "FORGET_DOUBT: a later answer clears earlier requests"  NOBODY  $three -DFORGET_DOUBT
  breaks "RELEASE_DOUBT: usual release, a request unanswered"    NOBODY  $three -DRELEASE_DOUBT
  breaks "JOIN_DEL: the first to join clears tombstones"         NOBODY  $three -DJOIN_DEL
  breaks "TOMB_SHORT: the hash expires with its waiters"         NOBODY  $three -DTOMB_SHORT
  breaks "ACQUIRE_ALONE: acquire ignores the hash; tombstones"   NOBODY  $three -DACQUIRE_ALONE -DSKIP_ONCE -DSKIP_FIFO
  breaks "ACQUIRE_ALONE, waiters"                              FIFO    $three -DACQUIRE_ALONE -DSKIP_ONCE -DSKIP_NOBODY
  breaks "ACQUIRE_ALONE, and is in the queue as well"          ONCE    $three -DACQUIRE_ALONE -DSKIP_NOBODY -DSKIP_FIFO
  breaks "NOMARK: joins without marking"                         STRAND  $three -DNOMARK
  breaks "MARK_APART: marks and joins in two steps"              STRAND  $three -DMARK_APART
  breaks "GRANT_NOMARK: a grant forgets those who still wait"    STRAND  $three -DGRANT_NOMARK
  breaks "CLAIM_NOMARK: claim writes the value without the mark" STRAND  $three -DCLAIM_NOMARK
  breaks "RELEASE_MARKED: usual release compares the owner only" STRAND  $three -DRELEASE_MARKED
  breaks "MARK_FOREIGN: marks what another library has set"      FOREIGN $three -DOTHER=1 -DMARK_FOREIGN
  breaks "CLAIM_SLOT: claim answers with the slot's counter"     OWN     -DCLAIM_SLOT -DBUMP=1 -DOWN=1
  breaks "GRANT_SAME: a grant leaves the counter"                UNIQ    -DGRANT_SAME -DEXPIRE=1
  breaks "GRANT_SAME, tokens in real time"                       RT      -DGRANT_SAME -DEXPIRE=1 -DSKIP_UNIQ -DA=2
  breaks "BLOCK_SHORT: the slot's counter is below a block's end" UNIQ   -DBLOCK=2 -DFMAX=6 -DBLOCK_SHORT
  breaks "CLAIM_SHORT: the same, of a block that is claimed"     UNIQ    -DBLOCK=2 -DFMAX=6 -DCLAIM_SHORT
  breaks "BLOCK_BELIEVED: granted before, and no claim"          UNIQ    -DBLOCK=2 -DFMAX=6 -DBLOCK_BELIEVED
  breaks "EXTEND_ANY: extend does not look at the counter"       VER     -DEXTEND_ANY -DEXPIRE=1 -DEXTEND=1
  model=progress
  breaks "NOPOP, a dead client is granted again and again"       SERVED  -DC=3 -DNOPOP
  breaks "HEARTBEAT_BLIND: the heartbeat does not see its grant" SERVED  -DHEARTBEAT_BLIND
  breaks "ACQUIRE_ALONE and NOMARK, starvation"                  SERVED  -DACQUIRE_ALONE -DNOMARK -DSKIP_FIFO
  model=handoff
  heading "broken assumptions"
  breaks "DUP, ALWAYS: repeated after a handover without tombstone" NOBODY $any -DDUP=1 -DALWAYS
  model=progress
  breaks "DEAF: a subscription elsewhere is believed for ever"   SERVED  -DDEAF
  breaks "SLOW: a client comes too late for all its windows"     SERVED  -DSLOW
  breaks "OTHER: another library that does not queue"            SERVED  -DOTHER=1
}

queueLarge() {
  model=handoff
  heading "the queue, large"
  holds "2 x 2; sound expiry"                                    $any -DA=2
  holds "3 x 1, asking without waiting; sound expiry"            $three -DTRYLOCK=1
  holds "3 x 1, to 3, no assumption about time"                  -DC=3 -DEXPIRE=1
  holds "2 and 1 attempt, to 4, no assumption about time"        -DEXPIRE=1 -DA=2 -DSHORT=1 -DFMAX=4
  holds "2 and 1 attempt, to 4; sound expiry"                    -DA=2 -DSHORT=1 -DFMAX=4 -DOWN=1
  holds "2 and 1 attempt, asking without waiting; sound expiry"  $any -DA=2 -DSHORT=1 -DTRYLOCK=1
  holds "2 and 1 attempt, another library; sound expiry"         $any -DA=2 -DSHORT=1 -DOTHER=1
}

# ---- local.pml: hand-over within a process --------------------------------------------------------------------------

within() {
  model=local
  heading "hand-over within a process: UNIQ, BLOCK, LOST, BOUND"
  holds "3 grants of 3 tokens at most (also ME, HO)"
  holds "3 of 2, the store forgets"                              -DN=2 -DFORGET=1
  holds "2 of 4, the store forgets"                              -DG=2 -DN=4 -DFORGET=1
}

withinBugs() {
  model=local
  heading "planted bugs in the hand-over within a process"
  breaks "LATE: hands on after the validity"                     ME      -DLATE
  breaks "RELEASED: hands on after a release was sent"           ME      -DRELEASED
  breaks "AGAIN: the second Unlock of a lease hands on"          ME      -DAGAIN
  breaks "RELEASES_NEXT: it releases the lock of the next lease" ME      -DRELEASES_NEXT
  breaks "PAST: hands on with a token past the block"            BLOCK   -DPAST
  breaks "OVERLAP: the counter is not raised to a block's end"   BLOCK   -DOVERLAP
  breaks "OVERLAP, leases"                                       UNIQ    -DOVERLAP -DSKIP_BLOCK
  breaks "LOST_ALONE: a loss is that of the lease that asked"    LOST    -DLOST_ALONE -DFORGET=1
  breaks "BIND_PASSES: hands on what a transaction is bound to"  BOUND   -DBIND_PASSES
  heading "broken assumptions"
  breaks "FORGET: leases of a grant that was forgotten go on"    HO      -DFORGET=1 -DORDER=1
}

# ---- places.pml: permits, and shared and exclusive locks ------------------------------------------------------------

limits="-DP=2 -DKINDS=3 -DSMALL=1 -DLEAVES=0"

places() {
  model=places
  heading "places of a key: EXC, LIMIT, OVER, STUCK"
  holds "3 readers, writers, upgrades; 2 places"                 -DLEAVES=0 -DLOSSES=0
  holds "3, the first free places in one step"                   -DLEAVES=0 -DLOSSES=0 -DSTEP=1
  holds "2, locks are lost, callers leave"                       -DP=2
  holds "2, the same, in one step"                               -DP=2 -DSTEP=1
  holds "3 callers with and without a weight; 3 places"          -DKINDS=3 -DS=3 -DLEAVES=0 -DLOSSES=0
  holds "3, 2 places, a lock is lost"                            -DKINDS=3 -DLEAVES=0
  holds "3 callers of one place; a caller crashes"               -DS=1 -DKINDS=1 -DLEAVES=0 -DLOSSES=0 -DCRASHES=1
  holds "2, 2 places, n is 1 or 2; a lock is lost, too"          $limits -DCRASHES=1
  holds "2, the same, in one step, callers leave"                -DP=2 -DKINDS=3 -DSMALL=1 -DCRASHES=1 -DSTEP=1
  holds "2 readers, writers, upgrades; a caller crashes"         -DP=2 -DLEAVES=0 -DLOSSES=0 -DCRASHES=1
}

placesBugs() {
  model=places
  heading "planted bugs in the search for places"
  breaks "MISSES: a writer does without the last place"          EXC     -DMISSES -DLEAVES=0 -DLOSSES=0
  breaks "PAST_TTL: a caller relies on a place after its TTL"    LIMIT   $limits -DPAST_TTL
  breaks "BEYOND: a program uses one place beyond its own n"     LIMIT   $limits -DBEYOND -DLOSSES=0
  breaks "GATE_COUNTS: the gate has the name of a place"         LIMIT   $limits -DGATE_COUNTS -DLOSSES=0
  breaks "LOST_COUNTS: what was granted counts, lost or not"     LIMIT   $limits -DLOST_COUNTS
  breaks "LEAKS: what a crashed caller has does not expire"      STUCK   $limits -DLEAKS -DLOSSES=0 -DCRASHES=1
  breaks "IGNORES_GATE: the step does not look at the gate"      OVER    -DIGNORES_GATE -DSTEP=1 -DLEAVES=0 -DLOSSES=0
  breaks "NO_GATE: weights wait for places without the gate"     STUCK   -DNO_GATE -DKINDS=2 -DS=3 -DLEAVES=0 -DLOSSES=0
  breaks "GATE_FIRST: the gate before the intent lock"           STUCK   -DGATE_FIRST -DLEAVES=0 -DLOSSES=0
  breaks "LOST_GATE: who has lost the gate does not begin anew"  STUCK   -DLOST_GATE -DLEAVES=0
  breaks "LOST_INTENT: who has lost the intent lock does not"    STUCK   -DLOST_INTENT -DLEAVES=0
  breaks "LOST_PLACE: who has lost a place does not"             STUCK   -DLOST_PLACE -DLEAVES=0
  heading "broken assumptions"
  breaks "weights beside readers that upgrade"                   STUCK   -DKINDS=10 -DLEAVES=0 -DLOSSES=0
}

placesLarge() {
  model=places
  heading "places, large"
  holds "3 readers, writers, upgrades; a lock is lost"           -DLEAVES=0
  holds "3, callers leave"                                       -DLOSSES=0
}

# ---- group.pml: one queue for a group of places ----------------------------------------------------------------------

all="-DRW=1 -DP=2 -DCRASHES=1 -DLOSSES=1 -DLEAVES=1 -DLOST=1"

group() {
  model=group
  heading "one queue for a group of places: LIMIT, TOKEN, FIFO, NOBODY, TOLD, STUCK"
  holds "3 callers of permits, n is 1 or 2, told once, leave"    -DHEART=0 -DLEAVES=1 -DSMALL=1
  holds "3, the same, of 3 permits"                              -DS=3 -DHEART=0 -DLEAVES=1 -DSMALL=1
  holds "3, messages are late, repeated, lost; callers leave"    -DDUP=1 -DLOST=1 -DLEAVES=1
  holds "3, a caller crashes, n is 1 or 2"                       -DSMALL=1 -DCRASHES=1
  holds "3 readers, writers, upgrades, told once, leave"         -DRW=1 -DHEART=0 -DLEAVES=1
  holds "3, a message is lost"                                   -DRW=1 -DLOST=1
  holds "3, a caller crashes"                                    -DRW=1 -DCRASHES=1
  holds "2, all of this, and an entry ends early"                $all
}

groupBugs() {
  model=group
  heading "planted bugs in the queue of a group"
  breaks "OVERTAKES: newcomers overtake a weight for ever"       FIFO   -DHEART=0 -DOVERTAKES
  breaks "SILENT: what is released is handed to nobody"          TOLD   -DHEART=0 -DSILENT
  breaks "ONLY_FIRST: those behind the first are not looked at"  TOLD   -DHEART=0 -DONLY_FIRST
  breaks "LOWER_SILENT: a writer becomes a reader, tells nobody" TOLD   -DHEART=0 -DRW=1 -DLOWER_SILENT
  breaks "COUNTS: counts, and gives a permit to two"             LIMIT  -DHEART=0 -DCOUNTS
  breaks "BEYOND: gives a number beyond the caller's own n"      LIMIT  -DHEART=0 -DBEYOND -DSMALL=1
  breaks "PARTS: gives what is free of what is wanted"           LIMIT  -DHEART=0 -DPARTS
  breaks "PAST_TTL: a caller relies on an entry after its end"   LIMIT  -DPAST_TTL -DLOSSES=1
  breaks "DEAD_FIRST: a dead waiter stays the first"             STUCK  -DDEAD_FIRST -DCRASHES=1
  breaks "LEAKS: what a crashed caller has does not end"         STUCK  -DLEAKS -DCRASHES=1
  breaks "LATE: what comes after the release is executed"        NOBODY -DLATE -DLEAVES=1 -DDUP=1
  breaks "BEHIND: an upgrade waits behind a writer"              STUCK  -DHEART=0 -DRW=1 -DBEHIND
  breaks "SAME: a writer that was a reader keeps its token"      TOKEN  -DHEART=0 -DRW=1 -DSAME
  breaks "STRICT: readers wait behind upgradeable ones"          TOLD   -DHEART=0 -DRW=1 -DSTRICT
  breaks "REPLACES: a failed upgrade takes what it is of"        LIMIT  -DRW=1 -DLEAVES=1 -DREPLACES
  heading "broken assumptions"
  breaks "nobody asks again, and a message is lost"              STUCK  -DHEART=0 -DLOST=1
}

groupLarge() {
  model=group
  heading "one queue for a group of places, large"
  holds "3 readers, writers, upgrades; an entry ends early"      -DRW=1 -DLOSSES=1
  holds "2, all of this, and repeated messages"                  $all -DDUP=1
}

# ---- seats.pml: a group in etcd --------------------------------------------------------------------------------------

seats() {
  model=seats
  heading "a group in etcd: LIMIT, TOKEN, FIFO, HELD, STUCK"
  holds "3 callers of permits, n is 1 or 2, who may try, and stay" -DSTAY=1 -DTRY=1 -DSMALL=1
  holds "3, an answer is lost, and the request comes late"       -DTRY=1 -DLOST=1
  holds "3, a caller crashes"                                    -DTRY=1 -DCRASHES=1
  holds "3 readers, writers, upgrades, who stay"                 -DRW=1 -DSTAY=1
  holds "3, one leaves"                                          -DRW=1 -DLEAVES=1
  holds "2, all of this"                                 -DP=2 -DRW=1 -DTRY=1 -DCRASHES=1 -DLOST=1 -DLEAVES=1
}

seatsBugs() {
  model=seats
  heading "planted bugs in a group in etcd"
  breaks "NO_HOLDERS, NO_WAITERS: a place is given to two"       LIMIT  -DNO_HOLDERS -DNO_WAITERS
  breaks "NO_HOLDERS: a grant rests on an old reading"           LIMIT  -DNO_HOLDERS -DRW=1 -DLEAVES=1
  breaks "NO_WAITERS: a newcomer overtakes a waiter that comes"  FIFO   -DNO_WAITERS
  breaks "OVERTAKEN: a weight is overtaken for ever"             FIFO   -DOVERTAKEN
  breaks "KEPT_OUT: a waiter keeps out one for whom there is room"  HELD -DKEPT_OUT -DTRY=1
  breaks "DEAF: nobody is told that a holder has left"           STUCK  -DDEAF
  breaks "LOWER_SILENT: a writer becomes a reader, tells nobody" STUCK  -DLOWER_SILENT -DRW=1 -DSTAY=1
}

# ---- record.pml: stores that compare and swap a record -------------------------------------------------------------

one="-DW=1 -DV=4"

records() {
  model=record
  heading "a store of records: ME, TOK, CLEAN"
  holds "2 clients x 1 attempt, 4 writes"                        $one
  holds "  3 writes, extensions by less"                         -DW=1 -DV=3 -DSHORT=1
  holds "  the clients have one clock"                           $one -DCLOCK
  holds "  3 writes, and others write about other locks (also DEAD)" -DW=1 -DV=3 -DFOREIGN=1
}

recordBugs() {
  model=record
  heading "planted bugs in the store of records"
  breaks "FROM_SENT: a watcher counts from before its read"      ME    $one -DFROM_SENT
  breaks "NO_NONCE: what says the same has the same version"     ME    $one -DNO_NONCE
  breaks "SHORTENS: the length is that of the last extension"    ME    $one -DSHORTENS -DSHORT=1
  breaks "FIRST_END: an extension leaves the end on the clock"   ME    $one -DCLOCK -DFIRST_END
  breaks "NO_UNDO: what is in doubt is not undone"               CLEAN $one -DNO_UNDO
  breaks "UNDO_READS: what is in doubt is undone if it is there" CLEAN $one -DUNDO_READS
  breaks "OWN_CONFLICT: its own success is another's lock"       CLEAN $one -DOWN_CONFLICT
  breaks "DELETES: a release deletes the record"                 TOK   $one -DDELETES
  breaks "FORGETS: a free record has no tokens"                  TOK   $one -DFORGETS
  breaks "VERSION_SEEN: renewals of others count, too"           DEAD  $one -DFOREIGN=1 -DVERSION_SEEN
  breaks "PLACE_SEEN: whatever is written, the same time counts" ME    $one -DFOREIGN=1 -DPLACE_SEEN
  breaks "FORGETS_OTHERS: who writes leaves others out"          ME    $one -DFOREIGN=1 -DFORGETS_OTHERS
}

# ---- told.pml: the time of a store in a record ----------------------------------------------------------------------

tells() {
  model=told
  heading "the time of a store in a record: ME"
  holds "times in units of 2 ticks, clocks that differ by 1"
  holds "times in units of 1 tick"                               -DR=1
}

tellsBugs() {
  model=told
  heading "planted bugs in the time of a store"
  breaks "NO_CHECK: what the owner believes of the time is right" ME   -DNO_CHECK
  breaks "ENDS_ONLY: an end is enough that has not come"         ME    -DENDS_ONLY
  breaks "NO_RESOLUTION: a time is not rounded down"             ME    -DNO_RESOLUTION
  breaks "NO_SKEW: all machines have one clock"                  ME    -DNO_SKEW
  breaks "FALLS: the end of an extension may be an earlier one"  ME    -DFALLS
  breaks "REGAINS: what others watch gets an end again"          ME    -DREGAINS -DV=4
  breaks "SHORTENS: an extension covers only what it asks for"   ME    -DSHORTENS
  breaks "FROM_REPLY: the owner counts from the answer"          ME    -DFROM_REPLY
  heading "broken assumptions"
  breaks "OFF: clocks that differ by more"                       ME    -DR=1 -DOFF=2
}

tellsLarge() {
  model=told
  heading "the time of a store in a record, large"
  holds "8 ticks"                                                -DN=8
}

recordsLarge() {
  model=record
  heading "a store of records, large"
  holds "2 clients x 1 attempt, 5 writes"                        -DW=1
}

# ---- ticks.pml: the ticks of a job in one record --------------------------------------------------------------------

ticks() {
  model=ticks
  heading "the ticks of a job in one record: ONCE, CLEAN"
  holds "2 attempts"                                             -DA=2
  holds "3 attempts, 2 writes"                                   -DV=2
  holds "2 attempts, a window of 2, a skew of 2"                 -DA=2 -DW=2 -DS=2 -DN=6
}

tickBugs() {
  model=ticks
  heading "planted bugs in the ticks of a job"
  breaks "NO_LOOK: the clock is not looked at again"             ONCE  -DNO_LOOK
  breaks "NO_SKEW: a tick is dropped when the window is over"    ONCE  -DNO_SKEW
  breaks "EARLY: a tick is dropped because there is no room"     ONCE  -DEARLY
  breaks "SAME_MARK: the attempts of one call have one mark"     ONCE  -DSAME_MARK
  breaks "NO_SWAP: a write does not compare"                     CLEAN -DNO_SWAP
  breaks "NO_UNDO: what was given up is not undone"              CLEAN -DNO_UNDO
  breaks "READS: undoing only reads"                             CLEAN -DREADS
  breaks "REFUSED: a conflict proves that nothing was written"   CLEAN -DREFUSED
  heading "broken assumptions"
  breaks "OFF=2: clocks differ by more than the skew"            ONCE  -DOFF=2
}

ticksLarge() {
  model=ticks
  heading "the ticks of a job in one record, large"
  holds "3 attempts, 4 writes"                                   -DV=4
}

# ---- pass.pml: a lease that is passed on, in a text -----------------------------------------------------------------

passes() {
  model=pass
  heading "a lease that is passed on: ME, ONE, TOK, CLEAN, GONE, TIME, UNDONE"
  holds "1 resumes, 7 requests"                                  -DR=1 -DX=7
  holds "2 resume, 8 requests, TTL of 3 ticks"                   -DX=8 -DL=3
  holds "3 resume, 7 requests"                                   -DR=3 -DX=7
}

passBugs() {
  model=pass
  heading "planted bugs in a lease that is passed on"
  breaks "KEEPS_OWNER: the text has the exporter's own value"    GONE  -DKEEPS_OWNER
  breaks "SAME_OWNER: who resumes goes on with that of the text" ONE   -DSAME_OWNER
  breaks "SAME_TOKEN: who resumes has the exporter's token"      TOK   -DSAME_TOKEN
  breaks "RESUMES_FREE: a lock whose TTL is over is resumed"     CLEAN -DRESUMES_FREE
  breaks "COUNTS_AGAIN: the validity counts from the last request" ME  -DCOUNTS_AGAIN
  breaks "UNDO_OWN: an undo leaves the text"                     UNDONE -DUNDO_OWN
  breaks "RELIES_ON: the exporter's lease goes on"               ME    -DRELIES_ON
  breaks "BEGINS_AGAIN: an export begins the TTL anew"           TIME  -DBEGINS_AGAIN
  breaks "TEXT_FIRST: the value of the text is released first"   UNDONE -DTEXT_FIRST
}

# ---------------------------------------------------------------------------------------------------------------------

# both runs the first list of rows, and beside it the second one, which is printed when the first is done.
both() {
  mkdir "$dir/second"
  (
    trap - EXIT
    dir=$dir/second
    for rows in $2; do $rows; done
  ) >"$dir/second.out" 2>&1 &
  second=$!
  for rows in $1; do $rows; done
  wait $second || : >"$dir/failed"
  second=
  cat "$dir/second.out"
  [ ! -e "$dir/second/failed" ] || : >"$dir/failed"
}

need spin spin
need gcc gcc libc6-dev # also spin's preprocessor
dir=$(mktemp -d)
second=
trap 'rm -rf "$dir"' EXIT
trap 'kill $pan $second 2>/dev/null; exit 130' INT TERM

mode=${1-}
case $mode in
"")
  both "tokens tokenBugs queueBugs" "guard guardBugs queue within withinBugs places placesBugs group groupBugs seats seatsBugs records recordBugs tells tellsBugs ticks tickBugs passes passBugs"
  ;;
full)
  both "tokens tokenBugs tokensLarge" "guard guardBugs guardLarge queue queueBugs queueLarge within withinBugs places placesBugs placesLarge group groupBugs groupLarge seats seatsBugs records recordBugs recordsLarge tells tellsBugs tellsLarge ticks tickBugs ticksLarge passes passBugs"
  ;;
trace)
  shift
  case ${1-} in
  heal | guard | handoff | progress | local | places | group | record | told | ticks | pass | seats | fence) model=$1 && shift ;;
  *) model=fence ;;
  esac
  trace "$@"
  ;;
*)
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
[ ! -e "$dir/failed" ] || {
  [ "$mode" = trace ] || echo "FAILED: see UNEXPECTED above"
  exit 1
}
