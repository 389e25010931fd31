package manager

import "slices"

func insertSorted[T any](s []T, v T, compare func(a, b T) int) []T {
	at, _ := slices.BinarySearchFunc(s, v, compare)
	return slices.Insert(s, at, v)
}

// removeSorted removes a value if it is in the slice. Removing the first one,
// which is the usual case, costs nothing.
func removeSorted[T any](s []T, v T, compare func(a, b T) int) []T {
	at, ok := slices.BinarySearchFunc(s, v, compare)
	if !ok {
		return s
	}
	if at > 0 {
		return slices.Delete(s, at, at+1)
	}
	var zero T
	s[0] = zero
	return s[1:]
}

func addTo[K comparable](m map[K]map[string]bool, key K, id string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][id] = true
}

func removeFrom[K comparable](m map[K]map[string]bool, key K, id string) {
	delete(m[key], id)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

func dropFrom[K comparable](m map[K][]string, key K, id string) {
	if len(m[key]) == 1 {
		delete(m, key)
		return
	}
	m[key] = slices.DeleteFunc(slices.Clone(m[key]), func(o string) bool { return o == id })
}
