package sqlite

import "strings"

// parseColumns takes the column names out of a CREATE TABLE statement.
func (t *Table) parseColumns(sql string) {
	toks := tokens(sql)
	open := 0
	for open < len(toks) && toks[open].text != "(" {
		open++
	}
	if open == len(toks) {
		t.reason = "its definition names no columns"
		return
	}
	depth, from := 1, open+1
	i := from
	for ; i < len(toks) && depth > 0; i++ {
		switch toks[i].text {
		case "(":
			depth++
		case ")":
			if depth--; depth == 0 {
				t.addColumn(toks[from:i])
			}
		case ",":
			if depth == 1 {
				t.addColumn(toks[from:i])
				from = i + 1
			}
		}
	}
	for ; i+1 < len(toks); i++ {
		if strings.EqualFold(toks[i].text, "WITHOUT") && strings.EqualFold(toks[i+1].text, "ROWID") {
			t.reason = "it is stored WITHOUT ROWID, as an index"
		}
	}
}

// addColumn takes one definition between commas: a column, or a constraint of
// the table.
func (t *Table) addColumn(def []token) {
	if len(def) == 0 || len(t.Columns) >= maxColumns {
		return
	}
	if !def[0].quoted {
		switch strings.ToUpper(def[0].text) {
		case "CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN":
			return
		case "PRIMARY":
			t.tableKey(def)
			return
		}
	}
	// "INTEGER PRIMARY KEY" makes the column an alias of the rowid, which
	// then is not in the record (https://www.sqlite.org/lang_createtable.html).
	if len(def) > 2 && strings.EqualFold(def[1].text, "INTEGER") {
		for i := 2; i+1 < len(def); i++ {
			if strings.EqualFold(def[i].text, "PRIMARY") && strings.EqualFold(def[i+1].text, "KEY") {
				t.rowid = len(t.Columns)
			}
		}
	}
	t.Columns = append(t.Columns, def[0].text)
}

// tableKey takes PRIMARY KEY (x) as a constraint of the table. Whether x is
// an INTEGER is not known here any more; an alias of the rowid is NULL in
// every record, and only NULLs are replaced, so nothing is lost.
func (t *Table) tableKey(def []token) {
	if len(def) == 5 && def[2].text == "(" {
		t.rowid = t.Column(def[3].text)
	}
}

type token struct {
	text   string
	quoted bool
}

// tokens splits SQL into words and single characters, without comments.
func tokens(sql string) []token {
	var out []token
	for i := 0; i < len(sql); {
		c := sql[i]
		switch {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f':
			i++
		case strings.HasPrefix(sql[i:], "--"):
			i = after(sql, i, "\n")
		case strings.HasPrefix(sql[i:], "/*"):
			i = after(sql, i+2, "*/")
		case c == '"' || c == '`' || c == '\'':
			end := after(sql, i+1, string(c))
			out = append(out, token{strings.TrimSuffix(sql[i+1:end], string(c)), true})
			i = end
		case c == '[':
			end := after(sql, i+1, "]")
			out = append(out, token{strings.TrimSuffix(sql[i+1:end], "]"), true})
			i = end
		case isWord(c):
			from := i
			for i < len(sql) && isWord(sql[i]) {
				i++
			}
			out = append(out, token{text: sql[from:i]})
		default:
			out = append(out, token{text: sql[i : i+1]})
			i++
		}
	}
	return out
}

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// after is the index behind the next end in sql[i:], or the length of sql.
func after(sql string, i int, end string) int {
	if j := strings.Index(sql[i:], end); j >= 0 {
		return i + j + len(end)
	}
	return len(sql)
}
