package web

import (
	"context"

	"connectrpc.com/connect"
)

// Sizes of the parts of a page.
const (
	rowsPerPage   = 100
	maxFetch      = 1000 // the API's largest page
	maxScan       = 200  // calls of the API for one page
	shownEvents   = 100
	shownProblems = 12
)

// fetched is one page of a list of the API.
type fetched[T any] struct {
	items []T
	next  string
}

// collect reads a list from a page token until enough items pass keep or the list
// ends. next is the token of the page that follows.
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

// ask calls the API and returns the message of the answer.
func ask[Req, Res any](ctx context.Context, call func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), m *Req) (*Res, error) {
	res, err := call(ctx, connect.NewRequest(m))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}
