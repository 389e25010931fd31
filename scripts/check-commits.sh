#!/bin/bash
# Usage: check-commits.sh [RANGE]
# Checks the subjects of commits: "package: imperative", lower case, at most 72 characters.
# Without a range: all commits since the rule was made, as far as the clone has them.
set -eu
cd "$(dirname "$0")/.."
first=5e58cb95f73e78bb0c75ac60309df48b79f4d22c
range=${1:-}
if [ -z "$range" ]; then
	if git cat-file -e "$first^{commit}" 2>/dev/null; then range=$first..HEAD; else range=HEAD~1..HEAD; fi
fi
bad=$(git log --no-merges --format='%h %s' "$range" | awk '{ h = $1; sub(/^[^ ]+ /, "") } length > 72 || !/^[a-z][a-z0-9_\/,.* -]*: [a-z]/ { print "  " h " " $0 }')
if [ -n "$bad" ]; then
	echo "check-commits: these subjects are not \"package: imperative\" in at most 72 characters:"
	echo "$bad"
	exit 1
fi
