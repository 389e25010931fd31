package web

import (
	"connectrpc.com/connect"
)

// Sizes of what a page shows at a time.
const (
	rowsPerPage  = 100
	maxFetch     = 1000 // the API's largest page
	maxScan      = 200  // fetches that one page may cost
	shownEvents  = 100
	shownTrouble = 12
)

// fetched is one page of a list of the API.
type fetched[T any] struct {
	items []T
	next  string
}

// collect reads a list from a token on until it has enough items that keep
// wants, or the list ends. next is where to go on.
func collect[T any](token string, enough int, fetch func(token string) (fetched[T], error), keep func(T) bool) (out []T, next string, err error) {
	for range maxScan {
		page, err := fetch(token)
		if err != nil {
			return nil, "", err
		}
		for _, item := range page.items {
			if keep == nil || keep(item) {
				out = append(out, item)
			}
		}
		token = page.next
		if token == "" || len(out) >= enough {
			break
		}
	}
	return out, token, nil
}

// answer unwraps an answer of the API.
func answer[T any](res *connect.Response[T], err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}
