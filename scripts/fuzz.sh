#!/bin/bash
# Fuzzes every FuzzXxx of the modules for a time each: fuzz.sh TIME
#
# go test -fuzz takes one target at a time, so they are found by name. The
# script runs one target per processor at a time, with one worker each, so all of
# them together take targets/processors x TIME.
set -eu
export time=${1:-30s}
logs=$(mktemp -d)
export logs
trap 'rm -rf "$logs"' EXIT

fuzz() {
	local pkg name log module=.
	pkg=./$(dirname "${1%%:*}") name=${1##*:func }
	case $pkg in
	./deploy/kubernetes/*) module=./deploy/kubernetes ;; # a module of its own
	esac
	log=$logs/$(tr -c 'A-Za-z0-9\n' _ <<<"$pkg.$name")
	# Go minimises each input with new coverage for up to a minute by default, and
	# executes nothing else meanwhile.
	# The end of the time can make go test fail with "context deadline exceeded"
	# although nothing was found: a race in Go's fuzzing coordinator
	# (golang/go#75804). A finding names a failing input or panics.
	if go test -C "$module" -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 100x -parallel 1 "./${pkg#"$module"/}" >"$log" 2>&1 ||
		{ grep -q '^    context deadline exceeded$' "$log" && ! grep -qE 'Failing input|^panic|hung or terminated' "$log"; }; then
		echo "ok    $pkg $name: $(grep -o 'execs: [0-9]*' "$log" | tail -n 1)"
	else
		cat "$log"
		echo "FAIL  $pkg $name"
		return 1
	fi
}
export -f fuzz

git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | xargs -d '\n' -P "$(nproc)" -I{} bash -c 'fuzz "{}"'
