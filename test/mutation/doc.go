// Package mutation puts deliberate faults into the manager, one at a time, and checks
// that a test notices each. The faults are in testdata/mutations.txt:
//
//	== what is wrong then
//	file internal/pool/manager/queue_line.go
//	test ./internal/pool/manager TestQueueIsFair
//	-the text to replace, which occurs once in the file
//	+the text in its place; none: it is removed
//
// A fault is compiled in by "go test -overlay", so that no file of the tree changes:
//
//	scripts/mutations.sh                                # all of them
//	scripts/mutations.sh -run "TestMutations/.*quota"   # those with the word
//
// Without it, the test only checks that the list and docs/mutations.md are up to date.
package mutation
