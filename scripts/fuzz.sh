#!/bin/bash
# Fuzzes every FuzzXxx of the modules for a time each: fuzz.sh TIME
#
# A test binary fuzzes one target at a time, so they are found by name. The
# script builds the binary of a package once and runs one target per processor
# at a time, with one worker each, so all of them together take
# targets/processors x TIME and the builds.
set -eu
export time=${1:-30s}
work=$(mktemp -d)
cache=$(go env GOCACHE)/fuzz/$(go list -m) # where go test keeps inputs with new coverage, too
export work cache
trap 'rm -rf "$work"' EXIT

# module DIR: the module that holds the package
module() {
	case $1 in
	deploy/kubernetes/*) echo deploy/kubernetes ;; # a module of its own
	*) echo . ;;
	esac
}

# build DIR: the package's test binary, with the fuzzer's counters of coverage
build() {
	local in
	in=$(module "$1")
	go test -C "$in" -c -fuzz . -ldflags '-s -w' -o "$work/${1//\//_}.test" "./${1#"$in"/}"
}

# run DIR NAME TIME LOG
run() {
	# Go minimises each input with new coverage for up to a minute by default, and
	# executes nothing else meanwhile.
	# The end of the time can make the run fail with "context deadline exceeded"
	# although nothing was found: a race in Go's fuzzing coordinator
	# (golang/go#75804). A finding names a failing input or panics.
	(cd "$1" && "$work/${1//\//_}.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$3" -test.fuzzminimizetime 100x \
		-test.parallel 1 -test.fuzzcachedir "$cache/$1") >"$4" 2>&1 ||
		{ grep -q '^    context deadline exceeded$' "$4" && ! grep -qE 'Failing input|^panic|hung or terminated' "$4"; }
}

# fuzz FILE:func NAME: a target whose saved inputs take all of its time has
# another minute, because nothing was fuzzed
fuzz() {
	local dir name log why='it failed'
	dir=$(dirname "${1%%:*}") name=${1##*:func }
	log=$work/${dir//\//_}.$name
	if run "$dir" "$name" "$time" "$log" && { grep -q 'now fuzzing' "$log" || run "$dir" "$name" 60s "$log"; }; then
		grep -q 'now fuzzing' "$log" && echo "ok    ./$dir $name: $(grep -o 'execs: [0-9]*' "$log" | tail -n 1)" && return
		why='its saved inputs took all of the time; remedy: cheaper inputs, or more time'
	fi
	cat "$log"
	echo "FAIL  ./$dir $name: $why"
	return 1
}
export -f module build run fuzz

targets=$(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go')
cut -d: -f1 <<<"$targets" | xargs -n 1 dirname | sort -u | xargs -P "$(nproc)" -I{} bash -euc 'build "{}"'
xargs -d '\n' -P "$(nproc)" -I{} bash -c 'fuzz "{}"' <<<"$targets"
