package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// listing is a command that prints the objects of one kind: all of them, those that
// filters select, or those that its arguments name.
type listing[Req, Res any, PReq pagedRequest[Req], PRes pagedResponse[Res]] struct {
	conn *connection
	all  method[Req, Res]
	req  PReq // with the filters
	text func(io.Writer, PRes)
	// one returns an object by its name. nil: the objects have no method of their own, and
	// are looked up in the list.
	one func(ctx context.Context, api poolAPI, name string) (proto.Message, error)

	out    output
	watch  bool
	sortBy string
}

// listCommand completes a command that prints the entries of a list method. The second
// word of its usage line, such as [GPU...], stands for the names of objects.
func listCommand[Req, Res any, PReq pagedRequest[Req], PRes pagedResponse[Res]](
	conn *connection, cmd *cobra.Command, m method[Req, Res], req PReq, text func(io.Writer, PRes),
	one func(ctx context.Context, api poolAPI, name string) (proto.Message, error),
) *cobra.Command {
	l := &listing[Req, Res, PReq, PRes]{conn: conn, all: m, req: req, text: text, one: one}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = l.run
	l.out.register(cmd, true)
	f := cmd.Flags()
	f.BoolVarP(&l.watch, "watch", "w", false, "continue with the objects that change, until interrupted")
	f.Var(flagValue{typ: "column", set: func(s string) error {
		l.sortBy = s
		return l.checkSort()
	}, text: func() string { return l.sortBy }, words: l.columns()}, "sort-by", "sort by this `column`; with - before it, in descending order")
	return cmd
}

// oneOf returns a function for listCommand that calls a method.
func oneOf[Req, Res any, M proto.Message](m method[Req, Res], request func(name string) *Req, object func(*Res) M) func(context.Context, poolAPI, string) (proto.Message, error) {
	return func(ctx context.Context, api poolAPI, name string) (proto.Message, error) {
		res, err := callOn(ctx, api, m, request(name))
		if err != nil {
			return nil, err
		}
		return object(res), nil
	}
}

func (l *listing[Req, Res, PReq, PRes]) run(cmd *cobra.Command, args []string) error {
	if f := l.filter(cmd); f != "" && len(args) > 0 {
		return usage(withHint(fmt.Errorf("--%s and names exclude each other", f), "name the objects, or filter them"))
	}
	api, err := l.conn.pool()
	if err != nil {
		return err
	}
	if l.watch {
		return l.follow(cmd, api, args)
	}
	all, err := l.fetch(cmd.Context(), api, args)
	if err != nil {
		return err
	}
	if len(itemsOf(all)) == 0 {
		if err := l.checkFilters(cmd, api); err != nil {
			return err
		}
	}
	l.sort(all)
	return printValue(cmd, &l.out, all, l.text)
}

// filter returns the name of a filter that the user has set, "" for none.
func (l *listing[Req, Res, PReq, PRes]) filter(cmd *cobra.Command) string {
	for _, name := range []string{"box", "host", "lease", "model", "state", "health", "label", "tenant"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return name
		}
	}
	return ""
}

// checkFilters refuses a filter by an object that does not exist: its list would be as empty
// as that of an object without any.
func (l *listing[Req, Res, PReq, PRes]) checkFilters(cmd *cobra.Command, api poolAPI) error {
	for _, kind := range []string{"lease", "box", "host"} {
		if f := cmd.Flags().Lookup(kind); f != nil {
			if err := objectExists(cmd.Context(), api, kind, f.Value.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// objectExists returns an error if there is no object of a kind with an ID that is not
// empty. Other errors are not its subject.
func objectExists(ctx context.Context, api poolAPI, kind, id string) (err error) {
	switch {
	case id == "":
		return nil
	case kind == "lease":
		_, err = callOn(ctx, api, poolAPI.GetLease, &dxpuv1.GetLeaseRequest{LeaseId: id})
	default:
		var target *dxpuv1.Target
		if target, err = parseTarget(kind, id); err == nil {
			_, err = getTarget(ctx, api, target)
		}
	}
	if connect.CodeOf(err) == connect.CodeNotFound {
		return err
	}
	return nil
}

// fetch returns the objects, in the order of their names in args, if there are any.
func (l *listing[Req, Res, PReq, PRes]) fetch(ctx context.Context, api poolAPI, args []string) (PRes, error) {
	if len(args) == 0 {
		return callAll[Req, Res, PReq, PRes](ctx, api, l.all, proto.CloneOf(l.req))
	}
	var items []protoreflect.Message
	if l.one == nil {
		all, err := callAll[Req, Res, PReq, PRes](ctx, api, l.all, proto.CloneOf(l.req))
		if err != nil {
			return nil, err
		}
		for _, name := range args {
			i := slices.IndexFunc(itemsOf(all), func(m protoreflect.Message) bool { return nameOf(m) == name })
			if i < 0 {
				kind := strings.ToLower(string(listField(all.ProtoReflect().Descriptor()).Message().Name()))
				return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("%s %q does not exist", kind, name))
			}
			items = append(items, itemsOf(all)[i])
		}
	}
	for _, name := range args[len(items):] {
		m, err := l.one(ctx, api, name)
		if err != nil {
			return nil, err
		}
		items = append(items, m.ProtoReflect())
	}
	res := PRes(new(Res))
	setItems(res, items)
	return res, nil
}

// record returns the table of the objects, with all columns.
func (l *listing[Req, Res, PReq, PRes]) record(all PRes) *table {
	var t table
	l.text(&page{record: &t}, all)
	return &t
}

// columns returns the words of --sort-by.
func (l *listing[Req, Res, PReq, PRes]) columns() []string {
	var out []string
	for _, h := range l.record(PRes(new(Res))).rows[0] {
		out = append(out, columnWord(h))
	}
	return out
}

func columnWord(heading any) string {
	return strings.ReplaceAll(strings.ToLower(fmt.Sprint(heading)), " ", "-")
}

func (l *listing[Req, Res, PReq, PRes]) checkSort() error {
	if columns := l.columns(); !slices.Contains(columns, strings.TrimPrefix(l.sortBy, "-")) {
		return unknownWord(strings.TrimPrefix(l.sortBy, "-"), columns)
	}
	return nil
}

// sort orders the objects as --sort-by says, by the cells of their rows.
func (l *listing[Req, Res, PReq, PRes]) sort(all PRes) {
	if l.sortBy == "" {
		return
	}
	column := slices.Index(l.columns(), strings.TrimPrefix(l.sortBy, "-"))
	rows, items := l.record(all).rows[1:], itemsOf(all)
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		c := compareCells(rows[i][column], rows[j][column])
		if strings.HasPrefix(l.sortBy, "-") {
			return -c
		}
		return c
	})
	sorted := make([]protoreflect.Message, len(items))
	for i, from := range order {
		sorted[i] = items[from]
	}
	setItems(all, sorted)
}

// watchPause is the least time between two looks of --watch.
const watchPause = 200 * time.Millisecond

// follow prints the objects, and then each whose row changes, until the context ends.
func (l *listing[Req, Res, PReq, PRes]) follow(cmd *cobra.Command, api poolAPI, args []string) error {
	out := newPage(cmd.OutOrStdout(), l.out.form == formWide)
	out.continues = true
	rows := map[string]string{} // by name
	err := onChange(cmd.Context(), api, l.conn.says, func(ctx context.Context) error {
		all, err := l.fetch(ctx, api, args)
		if connect.CodeOf(err) == connect.CodeNotFound && len(rows) > 0 {
			return errWatched // an object of the arguments is gone
		}
		if err != nil {
			return err
		}
		l.sort(all)
		table, items := l.record(all).rows[1:], itemsOf(all)
		var changed []protoreflect.Message
		present := map[string]bool{}
		for i, item := range items {
			name, row := nameOf(item), fmt.Sprint(table[i]...)
			present[name] = true
			if rows[name] != row {
				rows[name] = row
				changed = append(changed, item)
			}
		}
		for name := range rows {
			if !present[name] {
				delete(rows, name)
				l.gone(out, name)
			}
		}
		return l.show(out, changed)
	})
	if cmd.Context().Err() != nil {
		return nil // an interrupt is the normal end
	}
	return err
}

// show prints objects that have changed.
func (l *listing[Req, Res, PReq, PRes]) show(out *page, items []protoreflect.Message) error {
	switch {
	case l.out.structured():
		for _, item := range items {
			if err := writeLine(out, item.Interface()); err != nil {
				return err
			}
		}
	case l.out.form == formName:
		for _, item := range items {
			fmt.Fprintln(out, nameOf(item))
		}
	case len(items) > 0 || !out.headed:
		res := PRes(new(Res))
		setItems(res, items)
		l.text(out, res)
	}
	return out.Flush()
}

// gone prints that an object is not in the list any more.
func (l *listing[Req, Res, PReq, PRes]) gone(out *page, name string) {
	switch {
	case l.out.structured():
		_, _ = fmt.Fprintf(out, "{\"id\":%q,\"gone\":true}\n", name)
	case l.out.form != formName:
		_, _ = fmt.Fprintf(out, "%s is gone\n", name)
	}
}

// onChange calls look, and again after each change of the pool, at most once in
// watchPause, until the context ends or look returns an error. look returns errWatched
// to end without an error. After an UNAVAILABLE it is called again, so that no change is
// left out.
func onChange(ctx context.Context, api poolAPI, says *notices, look func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	events, err := openWatch(ctx, api, says, &dxpuv1.WatchEventsRequest{}) // an error of look ends it
	if err != nil {
		return err
	}
	news := make(chan struct{}, 1)
	g.Go(func() error {
		return events.follow(ctx, func(*dxpuv1.Event) error {
			select {
			case news <- struct{}{}:
			default:
			}
			return nil
		})
	})
	g.Go(func() error {
		for {
			select {
			case <-news:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := untilAnswered(ctx, says, look); err != nil {
				return err
			}
			select {
			case <-time.After(watchPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err := g.Wait(); !errors.Is(err, errWatched) {
		return err
	}
	return nil
}
