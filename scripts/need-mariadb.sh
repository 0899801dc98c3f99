#!/bin/sh
# Makes sure that MariaDB's server is there, with what it needs for a Galera cluster: the tests start their own ones.
set -eu
server=$(command -v mariadbd || ls /usr/sbin/mariadbd 2>/dev/null || true)
[ -z "$server" ] || exit 0
if ! command -v apt-get >/dev/null; then
  echo "mariadbd not found. Install MariaDB and Galera 4 (macOS: brew install mariadb galera) and run this again." >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing mariadb-server …"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
$sudo apt-get install -y -q --no-install-recommends mariadb-server galera-4 >/dev/null
