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
	wrongValue = regexp.MustCompile("cannot construct !!(\\w+)(?: (`[^`]*`))?(?: into [^\\s;]+)?")
	badSyntax  = regexp.MustCompile(`go-yaml load error in \w+(?: \([^)]*\))? at L(\d+)\.C(\d+)(?:-\S*\d)?`)
	badText    = regexp.MustCompile(`go-yaml load error in \w+(?: \([^)]*\))? at `)
	yamlStages = strings.NewReplacer("yaml: construct errors: ", "", "yaml: no documents in stream", "the file is empty", "yaml: expected single document, found multiple", "several documents: want one", "<unknown position>: ", "")
)

// Error returns an error of the YAML parser without the words of Go, in at most most bytes and
// three dots.
func Error(err error, most int) error {
	text := unknownKey.ReplaceAllString(err.Error(), `unknown key "$1"`)
	text = wrongValue.ReplaceAllStringFunc(text, func(s string) string {
		m := wrongValue.FindStringSubmatch(s)
		if m[2] != "" {
			return "wrong value: " + m[2]
		}
		return "wrong value: a " + cmp.Or(map[string]string{"seq": "list", "map": "mapping", "str": "text"}[m[1]], m[1])
	})
	text = badSyntax.ReplaceAllString(text, "line $1, column $2")
	text = yamlStages.Replace(badText.ReplaceAllString(text, ""))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + " ..."
	}
	return errors.New(text)
}
