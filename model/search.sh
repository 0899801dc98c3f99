# How run.sh searches a model with spin, and what it prints. The caller sets here, dir and model, and reads $dir/failed.

minutes=15 # limit of one search
megabytes=8000
depth=200000 # of a path
pan=

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

# search FLAGS -D...: builds in a directory of its own and searches. With -DBFS breadth first, which finds a shortest
# counterexample. Every step reads or writes what the others see, so partial order reduction has nothing to do.
#
# progress.pml has a formula of temporal logic: the search looks for an endless run in which it fails, among those in
# which each process goes on if it can.
search() {
  kind="$1 -DSAFETY -DNOFAIR" how=""
  [ "$model" != progress ] || kind="-O2 -DNFAIR=4" how="-a -f"
  shift
  rm -rf "$dir/$model"
  mkdir "$dir/$model"
  cd "$dir/$model"
  cp "$here"/*.pml .
  if ! spin -a "$@" "$model.pml" >spin.out 2>&1 ||
    ! gcc $kind -w -DNOREDUCE -DMEMLIM=$megabytes -o pan pan.c >cc.out 2>&1; then
    cat spin.out cc.out >&2 2>/dev/null || true
    echo "the model does not build: $*" >&2
    exit 2
  fi
  nice -n 10 ./pan $how -m$depth -Q$minutes >pan.out 2>&1 &
  pan=$!
  wait $pan || true
  pan=
  states=$(awk '/states, stored/ { print $1; exit }' pan.out)
  transitions=$(awk '/ transitions / { printf "%.0f", $1; exit }' pan.out)
  seconds=$(awk '/elapsed time/ { print $4; exit }' pan.out)
}

# complete: the search says that it has seen everything. An empty output does not.
complete() {
  grep -q 'errors: 0' pan.out &&
    ! grep -Eiq 'not completed|too small|time limit|memlim|out of memory|truncated|cannot|uncaught' pan.out
}

# failed replays the counterexample, if there is one. violated becomes the name of the property. The last step may break
# several: the first of them counts.
failed() {
  ls ./*.trail >/dev/null 2>&1 || return 1
  spin -T -t "$@" "$model.pml" >replay.out 2>&1 || true
  violated=$(sed -n '/^violated: /{s///p;q;}' replay.out)
  ! grep -q 'acceptance cycle (' pan.out || violated=SERVED
}

# schedule prints the counterexample, one event per line.
schedule() {
  sed '/^violated:/,$d;/^spin:/,$d' replay.out | grep -v '^ *$' || true
}

row() { # name, result
  printf '%-62s %10s %12s %8s  %s\n' "$1" "${states:-?}" "${transitions:-?}" "${seconds:-?}" "$2"
}

heading() {
  echo
  printf '%-62s %10s %12s %8s  %s\n' "$1" states transitions seconds result
}

unexpected() { # name, what, -D...
  row "$1" "UNEXPECTED: $2"
  shift 2
  grep -Ev '^Depth=|^$' pan.out | head -n 10 | sed 's/^/    /'
  echo "    look at it: $0 trace $model $*"
  : >"$dir/failed"
}

# holds NAME -D...: no property fails, in all that can happen.
holds() {
  name=$1
  shift
  search -O2 "$@"
  if complete; then
    row "$name" holds
  elif failed "$@"; then
    unexpected "$name" "$violated violated" "$@"
  else
    unexpected "$name" "search not complete" "$@"
  fi
}

# breaks NAME PROPERTY -D...: that property fails.
breaks() {
  name=$1 property=$2
  shift 2
  search "-O1 -DBFS" "$@"
  if ! failed "$@"; then
    unexpected "$name" "$property not violated" "$@"
  elif [ "$violated" != "$property" ]; then
    unexpected "$name" "$violated violated, not $property" "$@"
  elif [ "$property" = SERVED ]; then
    row "$name" "$property violated"
  else
    row "$name" "$property violated after $(schedule | wc -l) events"
  fi
}

# trace -D...: one search, and the shortest way to fail.
trace() {
  search "-O1 -DBFS" "$@"
  if failed "$@"; then
    schedule | cat -n
    echo "violated: $violated"
    : >"$dir/failed"
  elif complete; then
    echo holds
  else
    cat pan.out
    : >"$dir/failed"
  fi
}
