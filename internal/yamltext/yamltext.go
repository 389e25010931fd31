// Package yamltext says in the words of a file's author what a YAML parser found wrong.
package yamltext

import (
	"cmp"
	"errors"
	"regexp"
	"strings"
)

// Texts of the YAML parser that name types of Go, or its own stages.
var (
	unknownKey = regexp.MustCompile(`field (\S+) not found in type [^\s;]+`)
	wrongValue = regexp.MustCompile("cannot construct !!(\\w+)(?: (`[^`]*`))?(?: into ([^\\s;]+))?")
	badSyntax  = regexp.MustCompile(`go-yaml load error in \w+(?: \([^)]*\))? at L(\d+)\.C(\d+)(?:-\S*\d)?`)
	notText    = regexp.MustCompile(`control characters are not allowed(?: \(value: \d+\))?`)
	badText    = regexp.MustCompile(`go-yaml load error in \w+(?: \([^)]*\))? at `)
	yamlStages = strings.NewReplacer("yaml: construct errors: ", "", "yaml: no documents in stream", "the file is empty", "yaml: expected single document, found multiple", "several documents: want one", "<unknown position>: ", "")
)

// wanted returns ", want" and the kind of a value of a type of Go, "" for other types than numbers and words.
func wanted(kind string) string {
	switch kind = strings.TrimLeft(kind, "*"); {
	case strings.HasPrefix(kind, "uint"):
		return ", want a whole number of 0 or more"
	case strings.HasPrefix(kind, "int"):
		return ", want a whole number"
	case strings.HasPrefix(kind, "float"):
		return ", want a number"
	case kind == "bool":
		return ", want true or false"
	}
	return ""
}

// Error returns an error of the YAML parser without the words of Go, in at most most bytes and
// three dots.
func Error(err error, most int) error {
	text := unknownKey.ReplaceAllString(err.Error(), `unknown key "$1"`)
	text = wrongValue.ReplaceAllStringFunc(text, func(s string) string {
		m := wrongValue.FindStringSubmatch(s)
		is := "a " + cmp.Or(map[string]string{"seq": "list", "map": "mapping", "str": "text"}[m[1]], m[1])
		return "wrong value: " + cmp.Or(m[2], is) + wanted(m[3])
	})
	text = badSyntax.ReplaceAllString(text, "line $1, column $2")
	text = notText.ReplaceAllString(text, "it has control characters, so it is not text")
	text = yamlStages.Replace(badText.ReplaceAllString(text, ""))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + " ..."
	}
	return errors.New(text)
}
