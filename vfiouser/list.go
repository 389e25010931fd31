package vfiouser

// freeList keeps values for reuse.
type freeList[T any] []*T

// take returns a kept value, or a new one.
func (f *freeList[T]) take() *T {
	k := len(*f) - 1
	if k < 0 {
		return new(T)
	}
	v := (*f)[k]
	*f = (*f)[:k]
	return v
}

// element is the place of a T in a list. It is a part of the T, so a list
// allocates nothing and removes a T in constant time.
type element[T any] struct {
	of         *T
	prev, next *element[T]
}

// list is a queue of values in the order of their arrival.
type list[T any] struct{ head, tail *element[T] }

func (l *list[T]) empty() bool { return l.head == nil }

// first returns the oldest value, or nil.
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

// remove removes an element of this list.
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
