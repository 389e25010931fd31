package placement

// tree is an ordered set: a treap, which is a search tree by value and a heap by
// random priorities, so that its depth is about the logarithm of its size. The
// values must differ by compare.
type tree[V any] struct {
	compare func(a, b V) int
	root    *node[V]
	seed    uint32
}

type node[V any] struct {
	value       V
	priority    uint32
	left, right *node[V]
}

func newTree[V any](compare func(a, b V) int) *tree[V] {
	return &tree[V]{compare: compare, seed: 2463534242}
}

// add inserts a value that the tree does not have.
func (t *tree[V]) add(v V) {
	// Xorshift (Marsaglia, 2003): equal sequences of changes give equal trees.
	t.seed ^= t.seed << 13
	t.seed ^= t.seed >> 17
	t.seed ^= t.seed << 5
	t.root = t.insert(t.root, &node[V]{value: v, priority: t.seed})
}

func (t *tree[V]) insert(n, x *node[V]) *node[V] {
	switch {
	case n == nil:
		return x
	case x.priority > n.priority:
		x.left, x.right = t.split(n, x.value)
		return x
	case t.compare(x.value, n.value) < 0:
		n.left = t.insert(n.left, x)
	default:
		n.right = t.insert(n.right, x)
	}
	return n
}

// split divides a subtree into the values below v and the others.
func (t *tree[V]) split(n *node[V], v V) (less, rest *node[V]) {
	if n == nil {
		return nil, nil
	}
	if t.compare(n.value, v) < 0 {
		n.right, rest = t.split(n.right, v)
		return n, rest
	}
	less, n.left = t.split(n.left, v)
	return less, n
}

// remove deletes a value, if the tree has it.
func (t *tree[V]) remove(v V) {
	at := &t.root
	for *at != nil {
		switch c := t.compare(v, (*at).value); {
		case c < 0:
			at = &(*at).left
		case c > 0:
			at = &(*at).right
		default:
			*at = merge((*at).left, (*at).right)
			return
		}
	}
}

// merge joins two subtrees; all values of a are below those of b.
func merge[V any](a, b *node[V]) *node[V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a.right = merge(a.right, b)
		return a
	default:
		b.left = merge(a, b.left)
		return b
	}
}

// all yields the values in order.
func (t *tree[V]) all(yield func(V) bool) { t.root.all(yield) }

func (n *node[V]) all(yield func(V) bool) bool {
	return n == nil || n.left.all(yield) && yield(n.value) && n.right.all(yield)
}
