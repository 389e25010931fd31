package sqlite

import (
	"math"
	"strconv"
	"strings"
)

// affinity is how a column converts the values stored in it
// (https://www.sqlite.org/datatype3.html#determination_of_column_affinity).
type affinity uint8

const (
	affinityNone affinity = iota
	affinityText
	affinityNumber // INTEGER, REAL and NUMERIC
)

func affinityOf(typeName string) affinity {
	contains := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(typeName, w) {
				return true
			}
		}
		return false
	}
	switch {
	case contains("INT"):
		return affinityNumber
	case contains("CHAR", "CLOB", "TEXT"):
		return affinityText
	case typeName == "" || contains("BLOB"):
		return affinityNone
	}
	return affinityNumber
}

// defaultValue evaluates the tokens after DEFAULT. It knows literals, which are
// all that ALTER TABLE ADD COLUMN allows apart from CAST.
func defaultValue(def []token, a affinity) value {
	inner := 0 // tokens between parentheses; 0 without
	for len(def) > 0 && def[0].is("(") {
		def = def[1:min(closing(def, 0), len(def))]
		inner = len(def)
	}
	first, sign, length := at(def, 0), "", 1
	if first.is("-") || first.is("+") {
		sign, first, length = strings.TrimPrefix(first.text, "+"), at(def, 1), 2
	}
	word := strings.ToUpper(first.text)
	blob := word == "X" && !first.quoted && at(def, 1).quoted
	if blob {
		length = 2
	}
	switch {
	case first.text == "" && !first.quoted, inner > 0 && inner != length:
	case !first.quoted && (isDigit(first.text[0]) || first.text[0] == '.'):
		return convert(sign+first.text, true, a)
	case length == 2 && !blob:
	case first.quoted:
		return convert(first.text, false, a)
	case word == "NULL", blob: // neither a number nor text
		return value{}
	case word == "TRUE":
		return convert("1", true, a)
	case word == "FALSE":
		return convert("0", true, a)
	case isWord(word[0]) && inner == 0 && !strings.HasPrefix(word, "CURRENT_"):
		return convert(first.text, false, a)
	}
	return value{unknown: true}
}

// convert applies the affinity to a literal: a number or a string.
func convert(text string, number bool, a affinity) value {
	i, isInt, isNumber := parseNumber(text, number)
	switch {
	case number && !isNumber, number && a == affinityText && (!isInt || strings.ContainsAny(text, ".eE")):
		return value{unknown: true}
	case number && a == affinityText:
		return textValue(strconv.FormatInt(i, 10))
	case !number && (!isNumber || a != affinityNumber):
		return textValue(text)
	case isInt:
		return value{serial: serialInt64, body: be64(i)}
	}
	return value{} // a number with a fraction: Int and Text do not return it
}

// parseNumber reads a decimal number, or a hexadecimal one where hex is set.
// isInt reports whether it is whole and fits.
func parseNumber(text string, hex bool) (i int64, isInt, isNumber bool) {
	if digits, found := strings.CutPrefix(strings.ToLower(strings.TrimPrefix(text, "-")), "0x"); found {
		u, err := strconv.ParseUint(digits, 16, 64)
		if i = int64(u); strings.HasPrefix(text, "-") {
			i = -i
		}
		return i, err == nil && hex, err == nil && hex
	}
	text = strings.TrimSpace(text)
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i, true, true
	}
	if strings.ContainsAny(text, "xXpP_iInN") { // forms of Go that SQL lacks
		return 0, false, false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, false, false
	}
	if f != math.Trunc(f) || math.Abs(f) >= math.MaxInt64 {
		return 0, false, true
	}
	return int64(f), true, true
}
