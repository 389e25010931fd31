package vfiouser

// element is the place of a T in a list. It is a part of the T, so that a list
// takes no memory and anything leaves it at once.
type element[T any] struct {
	of         *T
	prev, next *element[T]
}

// list keeps what waits in the order in which it came, and so in that of its
// deadlines.
type list[T any] struct{ head, tail *element[T] }

func (l *list[T]) empty() bool { return l.head == nil }

// first returns what came first, nil when there is nothing.
func (l *list[T]) first() *T {
	if l.head == nil {
		return nil
	}
	return l.head.of
}

// push adds v, which is in no list, by its element.
func (l *list[T]) push(v *T, e *element[T]) {
	*e = element[T]{of: v, prev: l.tail}
	if l.tail != nil {
		l.tail.next = e
	} else {
		l.head = e
	}
	l.tail = e
}

// remove takes out the element of something that is in this list.
func (l *list[T]) remove(e *element[T]) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.tail = e.prev
	}
	*e = element[T]{}
}
