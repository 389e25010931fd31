package cli

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// poolAPI is the manager's API for people and programs.
type poolAPI = dxpuv1connect.PoolServiceClient

// method is a method of the API, such as poolAPI.GetPool.
type method[Req, Res any] = func(poolAPI, context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// call connects to the manager and calls a method.
func call[Req, Res any](ctx context.Context, conn *connection, m method[Req, Res], req *Req) (*Res, error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	return callOn(ctx, api, m, req)
}

// callOn calls a method of an open connection.
func callOn[Req, Res any](ctx context.Context, api poolAPI, m method[Req, Res], req *Req) (*Res, error) {
	res, err := m(api, ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// pagedRequest and pagedResponse are the messages of a list method: page_token in a
// request continues after next_page_token of the last response.
type (
	pagedRequest[Req any] interface {
		*Req
		proto.Message
		GetPageToken() string
	}
	pagedResponse[Res any] interface {
		*Res
		proto.Message
		GetNextPageToken() string
	}
)

// callPages calls a list method for each page of the result, until show returns
// an error.
func callPages[Req, Res any, PReq pagedRequest[Req], PRes pagedResponse[Res]](
	ctx context.Context, api poolAPI, m method[Req, Res], req PReq, show func(*Res) error,
) error {
	for {
		res, err := callOn(ctx, api, m, (*Req)(req))
		if err != nil {
			return err
		}
		if err := show(res); err != nil {
			return err
		}
		next := PRes(res).GetNextPageToken()
		if next == "" {
			return nil
		}
		setField(req, "page_token", next)
	}
}

// callAll calls a list method for all pages and returns them as one response.
func callAll[Req, Res any, PReq pagedRequest[Req], PRes pagedResponse[Res]](
	ctx context.Context, api poolAPI, m method[Req, Res], req PReq,
) (PRes, error) {
	all := PRes(new(Res))
	err := callPages[Req, Res, PReq, PRes](ctx, api, m, req, func(page *Res) error {
		proto.Merge(all, PRes(page)) // appends the entries
		return nil
	})
	setField(all, "next_page_token", "")
	return all, err
}

// setField sets a field of type string.
func setField(m proto.Message, name protoreflect.Name, value string) {
	r := m.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByName(name), protoreflect.ValueOfString(value))
}

// listCommand completes a command that prints all entries of a list method.
func listCommand[Req, Res any, PReq pagedRequest[Req], PRes pagedResponse[Res]](
	conn *connection, cmd *cobra.Command, m method[Req, Res], req PReq, text func(io.Writer, PRes),
) *cobra.Command {
	cmd.Args = cobra.NoArgs
	return valueCommand(cmd, func(cmd *cobra.Command, _ []string) (PRes, error) {
		api, err := conn.pool()
		if err != nil {
			return nil, err
		}
		return callAll[Req, Res, PReq, PRes](cmd.Context(), api, m, req)
	}, text)
}

// getCommand completes a command that prints the result of a method.
func getCommand[Req, Res any, M proto.Message](
	conn *connection, cmd *cobra.Command, m method[Req, Res], req *Req, object func(*Res) M, text func(io.Writer, M),
) *cobra.Command {
	cmd.Args = cobra.NoArgs
	return valueCommand(cmd, func(cmd *cobra.Command, _ []string) (result M, err error) {
		res, err := call(cmd.Context(), conn, m, req)
		if err != nil {
			return result, err
		}
		return object(res), nil
	}, text)
}

// itself is the object function of a method whose response has no other message.
func itself[M any](m M) M { return m }

// objectCommand completes a command that calls a method for one object, by its ID,
// and prints the object that the method returns.
func objectCommand[Req, Res any, M proto.Message](conn *connection, cmd *cobra.Command,
	m method[Req, Res], request func(id string) *Req, object func(*Res) M, text func(io.Writer, M),
) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	return valueCommand(cmd, func(cmd *cobra.Command, args []string) (result M, err error) {
		res, err := call(cmd.Context(), conn, m, request(args[0]))
		if err != nil {
			return result, err
		}
		return object(res), nil
	}, text)
}

// deleteCommand completes a command that deletes an object by its ID.
func deleteCommand[Req, Res any](conn *connection, cmd *cobra.Command, m method[Req, Res], request func(id string) *Req) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := call(cmd.Context(), conn, m, request(args[0])); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", args[0])
		return err
	}
	return cmd
}
