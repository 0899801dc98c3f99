# Sourced by scripts/prove-install and scripts/costs, in the root of the repository. It makes a module proxy of files
# from what git knows of this tree, with each module that is released as version v0.0.0-test, and lets the go command
# use it. If the script has an argument, which is the version of a release, there is nothing of this tree in the proxy.
# The functions make programs outside of the repository, in new directories below $dir.
version=${1:-v0.0.0-test}
module=github.com/golocker/locker
root=$PWD
dir=$(mktemp -d)
# The module cache is new, because the usual one may have another tree under this version. Its files are read-only.
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT

# publish PATH puts the module in a directory of the tree into the proxy, as its tagged commit will have it.
publish() {
  local name=$module below="" nested to tree
  [ "$1" = . ] || { name+=/$1 below=$1/; }
  to=$dir/proxy/$name/@v tree=$dir/tree/$name@$version
  mkdir -p "$to" "$tree"
  nested=$(git ls-files --cached --others --exclude-standard -- "$1" | grep '/go\.mod$' | sed 's#/go\.mod$##' |
    grep -vxF "$1" || true)
  git ls-files --cached --others --exclude-standard -- "$1" | while read -r file; do
    for n in $nested; do
      case $file in "$n"/*) continue 2 ;; esac
    done
    [ -e "$file" ] || continue # deleted, and not committed yet
    mkdir -p "$tree/$(dirname "${file#"$below"}")"
    cp "$file" "$tree/${file#"$below"}"
  done
  for tagged in $(awk '$1 == "replace" { print $2 }' "$tree/go.mod"); do # a tagged commit requires it instead
    go mod edit -dropreplace="$tagged" -require="$tagged@$version" "$tree/go.mod"
  done
  cp "$tree/go.mod" "$to/$version.mod"
  echo "{\"Version\":\"$version\",\"Time\":\"2000-01-01T00:00:00Z\"}" >"$to/$version.info"
  echo "$version" >>"$to/list"
  (cd "$tree" && git init -q && git add -Af &&
    git archive --format=zip --prefix="$name@$version/" -o "$to/$version.zip" "$(git write-tree)")
}

[ $# = 1 ] || for path in $(scripts/released); do publish "$path"; done

# units prints the directories that are proved or measured one by one: of the modules besides the library, and of the
# adapters that are packages of the library.
units() {
  (cd "$root" && scripts/released | grep -vxF . && for d in adapters/* compat/*; do
    [ -e "$d/go.mod" ] || ! ls "$d"/*.go >/dev/null 2>&1 || echo "$d"
  done)
}

# module_of UNIT prints the path of its module.
module_of() { if [ -e "$root/$1/go.mod" ] && [ "$1" != . ]; then echo "$module/$1"; else echo "$module"; fi; }

# packages_of UNIT prints the packages of it that programs may import.
packages_of() {
  local public='{{if and .GoFiles (ne .Name "main")}}{{.ImportPath}}{{end}}'
  GOFLAGS='' GOMODCACHE=$cache go -C "$root/$1" list -find -f "$public" ./... | grep . | grep -vE '/internal(/|$)'
}

upstream=$(go env GOPROXY)
cache=$(go env GOMODCACHE)
# What others publish comes from this machine's cache, if it is there.
export GOPROXY="file://$dir/proxy,file://$cache/cache/download,$upstream" GOMODCACHE=$dir/cache
export GOFLAGS="-mod=mod -trimpath" GOWORK=off GONOSUMDB=$module,$module/* GOBIN=$dir/bin LC_ALL=C

# program NAME IMPORT... makes a program that imports these packages, in a module of its own, and goes there. Its go.mod
# begins with what is read from standard input.
program() {
  mkdir "$dir/$1" && cd "$dir/$1"
  { printf 'module example.com/%s\n\ngo 1.25.0\n' "$1"; cat; } >go.mod
  imports "${@:2}"
}

# imports writes the program of the current directory.
imports() {
  { echo 'package main'; printf 'import _ "%s"\n' "$@"; echo 'func main() {}'; } >main.go
}

# quietly runs a command and shows its output only if it fails.
quietly() { "$@" >"$dir/out" 2>&1 || { cat "$dir/out" >&2; exit 1; }; }
