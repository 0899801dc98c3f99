#!/bin/sh
# Makes sure that PostgreSQL's server and PgBouncer are there: the tests start their own ones.
set -eu
missing=""
server=$(command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null || true)
[ -n "$server" ] || missing="postgresql"
bouncer=$(command -v pgbouncer || ls /usr/sbin/pgbouncer 2>/dev/null || true)
[ -n "$bouncer" ] || missing="$missing pgbouncer"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
  echo "Not found: $missing. Install it (macOS: brew install $missing) and run this again." >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing $missing …"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
# shellcheck disable=SC2086 # words
$sudo apt-get install -y -q --no-install-recommends $missing >/dev/null
