package manager

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Transactions are encoded together, after the decision. So a transaction whose record no store can
// hold must fail before the others build on it. Encoding each record twice would take long, and of the
// types of records only a time can have a value that JSON cannot hold: a year beyond 9999.

// checkRecords fails if a record that the transaction has changed cannot be encoded.
func (t *tx) checkRecords() error {
	for _, of := range t.tables() {
		if err := of.check(); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if a changed record cannot be encoded.
func (t *table[R]) check() error {
	for id := range t.before {
		r := t.rows[id]
		if r == nil {
			continue
		}
		if at, found := t.times.outOfRange(reflect.ValueOf(r).Elem()); found {
			return invalid("the record %s%s cannot have the time %v: it must be in the years 0 to 9999", t.prefix, id, at)
		}
	}
	return nil
}

// timesOf tells where a type has times.
type timesOf struct {
	is     bool         // it is a time itself
	fields []fieldTimes // of a struct: the fields that have times
	elem   *timesOf     // of a pointer, slice, array or map
}

type fieldTimes struct {
	index int
	times *timesOf
}

var timeType = reflect.TypeFor[time.Time]()

// findTimes returns where a type has times, nil if it has none. It panics for a type of which it
// cannot tell whether its values can be encoded: a type of records may not have that.
func findTimes(t reflect.Type) *timesOf {
	switch t.Kind() {
	case reflect.Struct:
		if t == timeType {
			return &timesOf{is: true}
		}
		var fields []fieldTimes
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !strings.HasPrefix(f.Tag.Get("json"), "-") {
				if in := findTimes(f.Type); in != nil {
					fields = append(fields, fieldTimes{i, in})
				}
			}
		}
		if len(fields) > 0 {
			return &timesOf{fields: fields}
		}
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		if in := findTimes(t.Elem()); in != nil {
			return &timesOf{elem: in}
		}
	case reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128, reflect.Interface, reflect.Chan, reflect.Func:
		panic(fmt.Sprintf("manager: a record has a %v, which JSON may not hold", t))
	}
	return nil
}

// outOfRange returns a time in a value that JSON cannot hold.
func (o *timesOf) outOfRange(v reflect.Value) (at time.Time, found bool) {
	switch {
	case o == nil:
	case o.is:
		at, _ = v.Interface().(time.Time)
		return at, at.Year() < 0 || at.Year() > 9999
	case v.Kind() == reflect.Struct:
		for _, f := range o.fields {
			if at, found = f.times.outOfRange(v.Field(f.index)); found {
				return at, found
			}
		}
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			return o.elem.outOfRange(v.Elem())
		}
	case v.Kind() == reflect.Map:
		for entry := v.MapRange(); entry.Next() && !found; {
			at, found = o.elem.outOfRange(entry.Value())
		}
	default:
		for i := 0; i < v.Len() && !found; i++ {
			at, found = o.elem.outOfRange(v.Index(i))
		}
	}
	return at, found
}
