#!/bin/sh
# Puts each deliberate fault of test/mutation into the manager and runs the test that
# must notice it. Takes the flags of "go test", such as -run 'TestMutations/.*quota'.
set -eu
cd "$(dirname "$0")/.."
case " $* " in *" -run "*) ;; *) set -- -run TestMutations "$@" ;; esac
exec go test ./test/mutation -count=1 -v -timeout 2h "$@" -mutate
