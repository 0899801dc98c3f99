#!/bin/sh
# Plays episodes of the simulation (internal/testing/trials/sim). Its arguments are flags of the tests, such as
# -seeds 1000 -seed 1. The simulation is built with a runtime whose own draws follow from the seed, if the installed Go
# allows that.
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
seeded=""
if go -C internal/testing/trials run ./sim/overlay "$dir"; then
  # A place that does not change: the build cache goes by it.
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/locker-sim
  mkdir -p "$cache"
  for f in "$dir"/*.go; do
    cmp -s "$f" "$cache/$(basename "$f")" || cp "$f" "$cache/"
  done
  sed "s#$dir#$cache#g" "$dir/overlay.json" >"$cache/overlay.json"
  seeded="-tags seeded -overlay $cache/overlay.json"
else
  echo "sim: this runtime cannot be seeded; a seed fixes less" >&2
fi
# shellcheck disable=SC2086 # words
go -C internal/testing/trials test -c $seeded -o "$dir/sim.test" ./sim
[ "${1-}" != -build ] || { cp "$dir/sim.test" "$2"; exit; }
GODEBUG=asyncpreemptoff=1,adaptivestackstart=1 "$dir/sim.test" -test.v -test.timeout 0 "$@"
