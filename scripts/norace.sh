#!/bin/bash
# Runs without the race detector the tests that do less, or nothing, with it: those whose
# functions, or the helpers that they call, use raceEnabled of their package.
set -eu
cd "$(dirname "$0")/.."

# functions PATTERN FILE...: the names of the functions whose bodies match
functions() {
	awk -v pattern="[^A-Za-z0-9_]($1)[^A-Za-z0-9_]" '
		FNR == 1 || /^}/ { name = "" }
		/^func / { name = $0; sub(/^func (\([^)]*\) )?/, "", name); sub(/[[(].*/, "", name); next }
		name != "" && $0 " " ~ pattern { print name }' "${@:2}" | sort -u | paste -sd '|'
}

packages=() tests=""
for file in $(git ls-files '*/norace_test.go'); do
	dir=$(dirname "$file")
	names=raceEnabled
	for _ in 1 2 3; do # a helper of a helper
		names="$names|$(functions "$names" "$dir"/*_test.go)"
	done
	packages+=("./$dir")
	tests="$tests|$(tr '|' '\n' <<<"$names" | grep '^Test' | sort -u | paste -sd '|')"
done
echo "without the race detector: ${tests#|}"
go test -vet=off -shuffle=on -timeout 45m -run "^(${tests#|})\$" "${packages[@]}"
