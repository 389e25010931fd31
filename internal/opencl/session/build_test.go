package session

import "testing"

// Tasks read a program together. One that changes a program has it alone.
func TestTasksOfOneProgram(t *testing.T) {
	header, a, b := &program{}, &program{}, &program{}
	compile := func(p *program) task { return task{programs: []*program{p, header}} }
	build := func(p *program) task { return task{programs: []*program{p}} }
	expect := func(what string, of task, want bool) {
		t.Helper()
		if got := of.free(); got != want {
			t.Errorf("%s: free %v, want %v", what, got, want)
		}
	}
	compile(a).hold()
	expect("another program with the same header", compile(b), true)
	expect("the same program", compile(a), false)
	expect("a change of the header", build(header), false)
	compile(b).hold()
	compile(a).leave()
	expect("a change of a header with one user left", build(header), false)
	compile(b).leave()
	expect("a change of a header without users", build(header), true)
	build(header).hold()
	expect("a use of a header that changes", compile(a), false)
	build(header).leave()
	expect("a use of the header", compile(a), true)
}
