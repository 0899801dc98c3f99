#!/bin/sh
# Checks fence.pml and heal.pml with spin. Exits non-zero if a property fails, a planted bug is not found, or a search is not complete.
#
#   run.sh                 the small searches and all planted bugs, one to two minutes
#   run.sh full            the large searches too, about 20 minutes and 3 GB
#   run.sh trace -D...     one search, with parameters of the model or its bugs; prints the shortest way to fail
#   run.sh trace-heal -D...  the same of heal.pml
set -eu

here=$(cd "$(dirname "$0")" && pwd)
model=fence
minutes=15  # limit of one search
megabytes=8000
depth=10000 # of a path; the longest has about 120 steps

need() { # command, packages
  command -v "$1" >/dev/null && return
  if ! command -v apt-get >/dev/null; then
    echo "$1 is not in PATH. Install it (macOS: brew install $1) and run this again." >&2
    exit 2
  fi
  sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  echo "installing $1 …"
  shift
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -q >/dev/null
  $sudo apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

# search FLAGS -D...: builds in the temporary directory and searches. With -DBFS breadth first, which finds a shortest
# counterexample. Every step reads or writes what the others see, so partial order reduction has nothing to do.
search() {
  flags=$1
  shift
  rm -rf "$dir/row"
  mkdir "$dir/row"
  cd "$dir/row"
  cp "$here/$model.pml" .
  if ! spin -a "$@" "$model.pml" >spin.out 2>&1 ||
    ! gcc $flags -w -DSAFETY -DNOREDUCE -DNOFAIR -DMEMLIM=$megabytes -o pan pan.c >cc.out 2>&1; then
    cat spin.out cc.out >&2 2>/dev/null || true
    echo "the model does not build: $*" >&2
    exit 2
  fi
  nice -n 10 ./pan -m$depth -Q$minutes >pan.out 2>&1 || true
  states=$(awk '/states, stored/ { print $1; exit }' pan.out)
  transitions=$(awk '/ transitions / { printf "%.0f", $1; exit }' pan.out)
  seconds=$(awk '/elapsed time/ { print $4; exit }' pan.out)
}

# complete: the search says that it has seen everything. An empty output does not.
complete() {
  grep -q 'errors: 0' pan.out &&
    ! grep -Eiq 'not completed|too small|time limit|memlim|out of memory|truncated|cannot|uncaught' pan.out
}

# schedule prints the counterexample, one event per line.
schedule() {
  spin -T -t "$@" "$model.pml" | sed '/^spin:/,$d' | grep -v '^ *$' || true
}

# violated prints the name of the property: the comment behind the assertion that failed.
violated() {
  line=$(spin -T -t "$@" "$model.pml" | sed -n "s/^spin: $model.pml:\([0-9]*\), Error: assertion violated.*/\1/p" | head -n 1)
  [ -z "$line" ] || sed -n "${line}s/.*\/\* \([A-Z]*\) \*\/.*/\1/p" "$model.pml"
}

row() { # name, result
  printf '%-58s %10s %12s %8s  %s\n' "$1" "${states:-?}" "${transitions:-?}" "${seconds:-?}" "$2"
}

heading() {
  echo
  printf '%-58s %10s %12s %8s  %s\n' "$1" states transitions seconds result
}

unexpected() { # name, what, -D...
  row "$1" "UNEXPECTED: $2"
  shift 2
  grep -Ev '^Depth=|^$' pan.out | head -n 10 | sed 's/^/    /'
  echo "    look at it: $0 trace $*"
  failed=1
}

# holds NAME -D...: no assertion fails, in all that can happen.
holds() {
  name=$1
  shift
  search -O2 "$@"
  if complete; then
    row "$name" holds
  elif ls ./*.trail >/dev/null 2>&1; then
    unexpected "$name" "$(violated "$@") violated" "$@"
  else
    unexpected "$name" "search not complete" "$@"
  fi
}

# breaks NAME PROPERTY -D...: that property fails.
breaks() {
  name=$1 property=$2
  shift 2
  search "-O1 -DBFS" "$@"
  if ! ls ./*.trail >/dev/null 2>&1; then
    unexpected "$name" "$property not violated" "$@"
  elif [ "$(violated "$@")" != "$property" ]; then
    unexpected "$name" "$(violated "$@") violated, not $property" "$@"
  else
    row "$name" "$property violated after $(schedule "$@" | wc -l) events"
  fi
}

small() {
  heading "the protocol"
  holds "2 clients x 1 attempt, counters to 3"               -DJUMP=1
  holds "  with verify, extend and unlock"                   -DJUMP=1 -DVERIFY=1 -DUNLOCK=1
  holds "  late grants ahead of the token"                   -DJUMP=1 -DAHEAD=1
  holds "  node 1 loses everything; clock"                   -DJUMP=1 -DLOSS=1 -DCLOCK=1
  holds "  to 2, node 1 goes back; clock"                    -DJUMP=1 -DLOSS=2 -DCLOCK=1 -DFMAX=2
  holds "2 x 2, to 3, sound expiry (also HO, ME)"            -DJUMP=1 -DEXPIRE=0 -DA=2
  holds "3 x 1, to 3, sound expiry (also HO, ME)"            -DJUMP=1 -DEXPIRE=0 -DC=3
  holds "2 x 1, to 2, the same, verify, unlock, late grants" -DJUMP=1 -DEXPIRE=0 -DFMAX=2 -DVERIFY=1 -DUNLOCK=1 -DAHEAD=1
  holds "5 nodes, 2 x 1, to 2, sound expiry (also HO, ME)"   -DJUMP=1 -DEXPIRE=0 -DN=5 -DFMAX=2
  holds "2 x 1, to 2, healing"                               -DJUMP=1 -DAHEAD=1 -DHEAL=1 -DVERIFY=1 -DSKIP_VER -DFMAX=2
  holds "2 x 1, to 3, healing, expiry of what is not extended" -DJUMP=1 -DEXPIRE=2 -DAHEAD=1 -DHEAL=1 -DVERIFY=1
  model=heal
  holds "what a lease that heals leaves on a node"
  model=fence
}

bugs() {
  heading "planted bugs"
  breaks "MAJ=1: a minority is enough"                       UNIQ -DMAJ=1
  breaks "NORAISE: no second round"                          UNIQ -DNORAISE
  breaks "NORAISE, tokens in real time"                      RT   -DNORAISE -DSKIP_UNIQ
  breaks "RAISE_LE_ANY: raise does not ask who has the lock" UNIQ -DRAISE_LE_ANY
  breaks "RAISE_NOL: the same, but knows who set the counter" UNIQ -DRAISE_NOL
  breaks "RAISE_NOL, OWNRET: acquire knows it as well"       HO   -DRAISE_NOL -DOWNRET -DEXPIRE=0 -DJUMP=1
  breaks "RAISE_PAST: raise accepts a counter past the token" UNIQ -DRAISE_PAST
  breaks "RAISE_PAST, verify and extend"                     VER  -DRAISE_PAST -DVERIFY=1
  breaks "SAMEOWNER: one owner value for all attempts"       UNIQ -DSAMEOWNER -DA=2
  breaks "REL_NOCMP: release deletes without comparing"      ME   -DREL_NOCMP -DEXPIRE=0 -DA=2
  breaks "NOPERSIST: the counter goes with the lock"         UNIQ -DNOPERSIST
  breaks "GRANT_SAME: a grant leaves the counter"            UNIQ -DGRANT_SAME
  breaks "STALE_ACK: verify counts earlier answers"          VER  -DSTALE_ACK -DVERIFY=1
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

large() {
  heading "the protocol, large"
  holds "2 x 1, counters to 4"                               -DJUMP=1 -DFMAX=4
  holds "2 x 2, to 3"                                        -DJUMP=1 -DA=2
  holds "3 x 1, to 3"                                        -DJUMP=1 -DC=3
  holds "5 nodes, 2 x 1, to 2"                               -DJUMP=1 -DN=5 -DFMAX=2
  holds "2 x 2, to 3, verify and extend"                     -DJUMP=1 -DA=2 -DVERIFY=1
  holds "2 x 2, to 2, verify, extend and unlock"             -DJUMP=1 -DA=2 -DFMAX=2 -DVERIFY=1 -DUNLOCK=1
  holds "3 x 1, to 2, verify, extend and unlock"             -DJUMP=1 -DC=3 -DFMAX=2 -DVERIFY=1 -DUNLOCK=1
  holds "2 x 1, to 4, node 1 loses everything; clock"        -DJUMP=1 -DFMAX=4 -DLOSS=1 -DCLOCK=1
  holds "2 x 1, to 3, node 1 goes back; clock"               -DJUMP=1 -DLOSS=2 -DCLOCK=1
  holds "2 x 1, to 3, the same with verify and extend"       -DJUMP=1 -DLOSS=2 -DCLOCK=1 -DVERIFY=1
  holds "2 x 2, to 4, sound expiry (also HO, ME)"            -DJUMP=1 -DEXPIRE=0 -DA=2 -DFMAX=4
  holds "3 x 1, to 4, sound expiry (also HO, ME)"            -DJUMP=1 -DEXPIRE=0 -DC=3 -DFMAX=4
  holds "3 x 2, to 3, sound expiry (also HO, ME)"            -DJUMP=1 -DEXPIRE=0 -DC=3 -DA=2
  holds "5 nodes, 2 x 1, to 3, sound expiry (also HO, ME)"   -DJUMP=1 -DEXPIRE=0 -DN=5 -DFMAX=3
  holds "2 x 2, to 3, sound expiry, verify, extend, unlock"  -DJUMP=1 -DEXPIRE=0 -DA=2 -DVERIFY=1 -DUNLOCK=1
  holds "2 x 1, to 3, the same, late grants ahead"           -DJUMP=1 -DEXPIRE=0 -DVERIFY=1 -DUNLOCK=1 -DAHEAD=1
  heading "planted bugs and broken assumptions, large"
  breaks "RAISE_NOL, OWNRET: counters rise by 1 only"        HO   -DRAISE_NOL -DOWNRET -DEXPIRE=0 -DA=2
  breaks "AHEAD: a certificate, with keys that expire early" VER  -DAHEAD=1 -DVERIFY=1
}

need spin spin
need gcc gcc libc6-dev # also spin's preprocessor
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
failed=0

mode=${1-}
case $mode in
"")
  small
  bugs
  ;;
full)
  small
  bugs
  large
  ;;
trace | trace-heal)
  [ "$mode" = trace ] || model=heal
  shift
  search "-O1 -DBFS" "$@"
  if ls ./*.trail >/dev/null 2>&1; then
    schedule "$@" | cat -n
    echo "violated: $(violated "$@")"
    failed=1
  elif complete; then
    echo holds
  else
    cat pan.out
    failed=1
  fi
  ;;
*)
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
[ $failed = 0 ] || {
  [ "$mode" = trace ] || [ "$mode" = trace-heal ] || echo "FAILED: see UNEXPECTED above"
  exit 1
}
