#!/bin/sh
# Makes sure that Prometheus is there: a test of the dashboard and of the alert rules starts its own one.
set -eu
command -v prometheus >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
  echo "prometheus is not in PATH. Install it (macOS: brew install prometheus) and run this again." >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing prometheus …"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
$sudo apt-get install -y -q --no-install-recommends prometheus >/dev/null
