#!/bin/sh
# Makes sure that node 20 or later and npm are there: tests install dynalite by npm, and start servers of their own.
set -eu
enough() {
  command -v npm >/dev/null && [ "$(node --version 2>/dev/null | sed 's/^v//; s/\..*//')" -ge 20 ] 2>/dev/null
}
enough && exit 0
if ! command -v apt-get >/dev/null; then
  echo "node 20 or later and npm are not in PATH. Install them (macOS: brew install node) and run this again." >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing nodejs and npm …"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
$sudo apt-get install -y -q --no-install-recommends nodejs npm >/dev/null
enough || {
  echo "apt has node $(node --version), which is too old: install 20 or later, and npm, and run this again." >&2
  exit 1
}
