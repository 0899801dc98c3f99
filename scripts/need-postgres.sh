#!/bin/sh
# Makes sure that PostgreSQL's server is there: the tests start their own servers with it.
set -eu
command -v initdb >/dev/null && exit 0
for initdb in /usr/lib/postgresql/*/bin/initdb; do
  [ -x "$initdb" ] && exit 0
done
if ! command -v apt-get >/dev/null; then
  echo "initdb is not in PATH. Install PostgreSQL (macOS: brew install postgresql) and run this again." >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing PostgreSQL …"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
$sudo apt-get install -y -q --no-install-recommends postgresql >/dev/null
