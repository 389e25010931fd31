#!/bin/bash
# Fuzzes every FuzzXxx of the module, one after the other: fuzz.sh TIME
#
# go test -fuzz takes one target of one package at a time, so they are found by
# name. One that fails does not keep the others from running.
set -eu
time=${1:-30s}
failed=()
while IFS=: read -r file name; do
	pkg=./$(dirname "$file")
	echo "== $pkg $name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$pkg" || failed+=("$pkg $name")
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/func //')
if ((${#failed[@]})); then
	printf 'failed: %s\n' "${failed[@]}"
	exit 1
fi
