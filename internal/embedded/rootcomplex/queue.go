package rootcomplex

// queue is a FIFO in a slice that is reused.
type queue[T any] struct {
	items []T
	head  int // of the oldest item
}

func (q *queue[T]) empty() bool { return q.head == len(q.items) }

func (q *queue[T]) len() int { return len(q.items) - q.head }

// list returns the items, oldest first.
func (q *queue[T]) list() []T { return q.items[q.head:] }

// front returns the oldest item; it is valid until the next push or pop.
func (q *queue[T]) front() *T { return &q.items[q.head] }

// push adds a zero item and returns it; it is valid until the next push or pop.
func (q *queue[T]) push() *T {
	// Use the room of popped items before the slice grows, if they are at least half:
	// so each pop causes the move of at most one item.
	if len(q.items) == cap(q.items) && q.head >= len(q.items)-q.head {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	var zero T
	q.items = append(q.items, zero)
	return &q.items[len(q.items)-1]
}

// pop removes the oldest item.
func (q *queue[T]) pop() {
	var zero T
	q.items[q.head] = zero
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
}

// drop removes all items and frees the memory.
func (q *queue[T]) drop() { *q = queue[T]{} }
