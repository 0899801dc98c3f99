#!/bin/sh
# Makes sure that redis-server is there: the tests start their own servers with it.
set -eu
command -v redis-server >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
  echo "redis-server is not in PATH. Install it (macOS: brew install redis) and run this again." >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing redis-server …"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
$sudo apt-get install -y -q --no-install-recommends redis-server >/dev/null
