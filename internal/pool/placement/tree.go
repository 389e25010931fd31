package placement

import "cmp"

// key orders what is in a tree.
type key struct {
	major, minor int
	name, sub    string
}

func (k *key) compare(o *key) int {
	if c := cmp.Compare(k.major, o.major); c != 0 {
		return c
	}
	if c := cmp.Compare(k.minor, o.minor); c != 0 {
		return c
	}
	if c := cmp.Compare(k.name, o.name); c != 0 {
		return c
	}
	return cmp.Compare(k.sub, o.sub)
}

// tree is an ordered map: a treap, that is a search tree by key and a heap by
// random priorities, which keeps it about as deep as its logarithm. The zero
// value is empty. Keys are distinct.
type tree[V any] struct {
	root *node[V]
	seed uint32
}

type node[V any] struct {
	key         key
	value       V
	priority    uint32
	left, right *node[V]
}

// put adds a key that is not there.
func (t *tree[V]) put(k key, v V) {
	// Xorshift: equal sequences of changes give equal trees. (Marsaglia, 2003.)
	if t.seed == 0 {
		t.seed = 2463534242
	}
	t.seed ^= t.seed << 13
	t.seed ^= t.seed >> 17
	t.seed ^= t.seed << 5
	t.root = t.root.insert(&node[V]{key: k, value: v, priority: t.seed})
}

func (n *node[V]) insert(x *node[V]) *node[V] {
	switch {
	case n == nil:
		return x
	case x.priority > n.priority:
		x.left, x.right = n.split(&x.key)
		return x
	case x.key.compare(&n.key) < 0:
		n.left = n.left.insert(x)
	default:
		n.right = n.right.insert(x)
	}
	return n
}

// split divides a tree into what is less than k and the rest.
func (n *node[V]) split(k *key) (less, rest *node[V]) {
	if n == nil {
		return nil, nil
	}
	if n.key.compare(k) < 0 {
		n.right, rest = n.right.split(k)
		return n, rest
	}
	less, n.left = n.left.split(k)
	return less, n
}

// remove takes a key out, if it is there.
func (t *tree[V]) remove(k key) {
	at := &t.root
	for *at != nil {
		switch c := k.compare(&(*at).key); {
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

// merge joins two trees of which all keys of the first are less.
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

// from returns the first entry that is not less than k, or nil.
func (t *tree[V]) from(k key) *node[V] {
	var found *node[V]
	for n := t.root; n != nil; {
		if n.key.compare(&k) >= 0 {
			found, n = n, n.left
		} else {
			n = n.right
		}
	}
	return found
}

// after returns the first entry that is greater than k, or nil.
func (t *tree[V]) after(k key) *node[V] {
	var found *node[V]
	for n := t.root; n != nil; {
		if n.key.compare(&k) > 0 {
			found, n = n, n.left
		} else {
			n = n.right
		}
	}
	return found
}

// before returns the last entry that is less than k, or nil.
func (t *tree[V]) before(k key) *node[V] {
	var found *node[V]
	for n := t.root; n != nil; {
		if n.key.compare(&k) < 0 {
			found, n = n, n.right
		} else {
			n = n.left
		}
	}
	return found
}
