package manager

import "slices"

func insertSorted[T any](s []T, v T, compare func(a, b T) int) []T {
	at, _ := slices.BinarySearchFunc(s, v, compare)
	return slices.Insert(s, at, v)
}

// removeSorted removes a value if it is in the slice. It moves the values on the side with fewer of
// them: usually one of the first ones goes, in a slice that may have tens of thousands.
func removeSorted[T any](s []T, v T, compare func(a, b T) int) []T {
	at, ok := slices.BinarySearchFunc(s, v, compare)
	if !ok {
		return s
	}
	if at >= len(s)/2 {
		return slices.Delete(s, at, at+1)
	}
	copy(s[1:], s[:at])
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
