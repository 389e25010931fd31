package sqlite

import (
	"fmt"
	"strings"
)

// column is one column of a table.
type column struct {
	name string
	// stored is the column's index in a record, -1 for a VIRTUAL generated
	// column, which is computed on reading.
	stored int
	// hasDefault is set if the column has a default other than NULL, which is not
	// stored in rows that are older than the column.
	hasDefault bool
	// typeName is the declared type, in capitals.
	typeName string
}

// maxTypeName bounds the words of a type that are kept, in bytes. Only INTEGER
// matters.
const maxTypeName = 64

// parseColumns reads the columns from a CREATE TABLE statement. Its time is linear in
// the length of the statement.
func (t *Table) parseColumns(sql string) {
	if len(sql) > maxDefinition {
		t.reason = fmt.Sprintf("its definition is longer than %d MiB", maxDefinition>>20)
		return
	}
	toks := tokens(sql)
	open := 0
	for open < len(toks) && !toks[open].is("(") {
		open++
	}
	if open == len(toks) {
		t.reason = "its definition names no columns"
		return
	}
	end := closing(toks, open)
	for from := open + 1; from < end; {
		to := from
		for to < end && !toks[to].is(",") {
			to = next(toks, to)
		}
		t.addDefinition(toks[from:min(to, end)])
		from = to + 1
	}
	for i := end; i+1 < len(toks); i++ {
		if toks[i].is("WITHOUT") && toks[i+1].is("ROWID") {
			t.reason = "it is stored WITHOUT ROWID, as an index"
		}
	}
}

// addDefinition adds one definition between commas: a column, or constraints of the
// table, between which SQLite does not require commas.
func (t *Table) addDefinition(def []token) {
	if len(def) == 0 || len(t.columns) >= maxColumns {
		return
	}
	first := def[0]
	if !first.is("CONSTRAINT") && !first.is("PRIMARY") && !first.is("UNIQUE") && !first.is("CHECK") && !first.is("FOREIGN") {
		t.addColumn(def)
		return
	}
	for i := 0; i < len(def); i = next(def, i) {
		if def[i].is("PRIMARY") {
			t.primaryKey(def[i:])
		}
	}
}

// addColumn adds the column that def defines: a name, a type, and constraints.
// PRIMARY KEY on a column of type INTEGER makes it an alias of the rowid, unless
// DESC follows (https://www.sqlite.org/lang_createtable.html#rowid).
func (t *Table) addColumn(def []token) {
	c := column{name: def[0].text, stored: t.stored}
	i := 1
	for i < len(def) && !def[i].startsConstraint() {
		if len(c.typeName) < maxTypeName {
			c.typeName = strings.TrimSpace(c.typeName + " " + strings.ToUpper(def[i].text))
		}
		i++
	}
	for ; i < len(def); i = next(def, i) {
		following := def[i+1:]
		switch {
		case def[i].is("PRIMARY") && c.typeName == "INTEGER" && !at(following, 1).is("DESC"):
			t.rowid = len(t.columns)
		case def[i].is("DEFAULT") && !def[i-1].is("SET"): // not "ON DELETE SET DEFAULT"
			c.hasDefault = !at(following, 0).is("NULL")
		case def[i].is("AS") && !at(following, closing(following, 0)+1).is("STORED"):
			c.stored = -1
		}
	}
	if c.stored >= 0 {
		t.stored++
	}
	t.columns = append(t.columns, c)
}

// primaryKey handles PRIMARY KEY (x) as a constraint of the table. It makes x an
// alias of the rowid if the type of x is INTEGER, even where DESC follows. A table has
// one such constraint; others are ignored.
func (t *Table) primaryKey(def []token) {
	if t.keyed || len(def) < 5 || !def[2].is("(") {
		return
	}
	end := closing(def, 2)
	if end >= len(def) {
		return
	}
	t.keyed = true
	for _, tok := range def[3:end] {
		if tok.is(",") {
			return
		}
	}
	if i := t.index(def[3].text); i >= 0 && t.columns[i].typeName == "INTEGER" {
		t.rowid = i
	}
}

type token struct {
	text   string
	quoted bool
	span   int // of an opening parenthesis: tokens to the closing one, or to the end
}

// is reports whether the token is the keyword or character, in any case.
func (t token) is(text string) bool { return !t.quoted && strings.EqualFold(t.text, text) }

// startsConstraint reports whether the token ends the type of a column.
func (t token) startsConstraint() bool {
	for _, word := range [...]string{"CONSTRAINT", "PRIMARY", "NOT", "NULL", "UNIQUE", "CHECK", "DEFAULT", "COLLATE", "REFERENCES", "GENERATED", "AS"} {
		if t.is(word) {
			return true
		}
	}
	return false
}

// at returns token i, or the zero token beyond the end.
func at(toks []token, i int) token {
	if i < len(toks) {
		return toks[i]
	}
	return token{}
}

// next returns the index after token i, or after its closing parenthesis.
func next(toks []token, i int) int {
	if toks[i].is("(") {
		return closing(toks, i) + 1
	}
	return i + 1
}

// closing returns the index of the parenthesis closing that at open, or len(toks). If
// no parenthesis opens there, it returns open.
func closing(toks []token, open int) int {
	if !at(toks, open).is("(") {
		return open
	}
	return min(open+toks[open].span, len(toks))
}

// match sets the spans of the parentheses.
func match(toks []token) {
	var open []int
	for i := range toks {
		switch {
		case toks[i].is("("):
			toks[i].span = len(toks) - i
			open = append(open, i)
		case toks[i].is(")") && len(open) > 0:
			last := open[len(open)-1]
			toks[last].span = i - last
			open = open[:len(open)-1]
		}
	}
}

// tokens splits SQL without comments into words, quoted strings and characters.
func tokens(sql string) []token {
	var out []token
	for i := 0; i < len(sql); {
		c := sql[i]
		from := i
		switch {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f':
			i++
		case strings.HasPrefix(sql[i:], "--"):
			i = after(sql, i, "\n")
		case strings.HasPrefix(sql[i:], "/*"):
			i = after(sql, i+2, "*/")
		case c == '"' || c == '`' || c == '\'':
			var text string
			text, i = quoted(sql, i)
			out = append(out, token{text: text, quoted: true})
		case c == '[':
			i = after(sql, i+1, "]")
			out = append(out, token{text: strings.TrimSuffix(sql[from+1:i], "]"), quoted: true})
		case isWord(c):
			for i < len(sql) && isWord(sql[i]) {
				i++
			}
			out = append(out, token{text: sql[from:i]})
		default:
			i++
			out = append(out, token{text: sql[from:i]})
		}
	}
	match(out)
	return out
}

// quoted reads the string that opens at sql[i], in which the quote character is
// written twice, and returns it with the index after it.
func quoted(sql string, i int) (text string, end int) {
	quote := sql[i : i+1]
	var b strings.Builder
	for {
		end = after(sql, i+1, quote)
		b.WriteString(strings.TrimSuffix(sql[i+1:end], quote))
		if end >= len(sql) || sql[end] != quote[0] {
			return b.String(), end
		}
		b.WriteString(quote)
		i = end
	}
}

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// after returns the index after the next end in sql[i:], or len(sql).
func after(sql string, i int, end string) int {
	if j := strings.Index(sql[i:], end); j >= 0 {
		return i + j + len(end)
	}
	return len(sql)
}
