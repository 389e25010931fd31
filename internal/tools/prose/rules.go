package main

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// rule is a construction that the style refuses.
type rule struct {
	pattern *regexp.Regexp
	advice  string
	clause  bool // only counts from five words on
}

// person is what a relative "who" may refer to: only people are who.
const person = `(?:users?|people|persons?|operators?|administrators?|engineers?|readers?|authors?|tenants?|attackers?|newcomers?|contributors?|reviewers?|maintainers?|developers?|planners?|teams?|callers?|anyone|someone|everyone|one|those|customers?|colleagues?|members?|guests?)`

// begin matches where a sentence or clause begins.
const begin = `(?:^|[.:;!?] |\n|\()`

var rules = []rule{
	{
		pattern: regexp.MustCompile(begin + `(?:And |But |So )?(Who|Whoever|Whom|Whose|who|whoever) [^?.]*(?:[.]|$)`),
		advice:  "a free relative as subject: name the actor",
	},
	{
		clause:  true,
		pattern: regexp.MustCompile(begin + `(?:And |But |So )?((?:What|Whatever|what|whatever) (?:is|are|was|were|has|had|have|it|they|he|comes?|came|goes|went|waits?|follows|remains?|stays|lies|stands|belongs|needs|wants|must|may|can|cannot|nobody|the|a|an|somebody|does|do|did|happens|happened|one|its|their|this|that|depends|will|would|should|passes|arrives?|leaves?|ends?|holds|takes|reads|sends|keeps|makes|gives|says|counts|costs)\b[^?.]*)(?:[.]|$)`),
		advice:  "a free relative as subject: name the thing",
	},
	{pattern: regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|whomever|whosoever)\b`), advice: `name the actor: "no caller", "a goroutine", "the holder"`},
	{pattern: regexp.MustCompile(`(?i)\b(so many|so much (?:as|more|longer|later)|for so long|so long as|as many as|as much as (?:it|they|he)|in so long)\b`), advice: "say the number or the condition"},
	{pattern: regexp.MustCompile(`(?i)\b(anew|thereof|hereby|thereby|wherein|whereof|lest|befalls?|in its stead|in his stead|'s stead|ere|whence|thither|hither|alas|henceforth|heretofore|betimes)\b`), advice: "an archaic word: use a plain one"},
	{pattern: regexp.MustCompile(`(?i)\b(he|him|his|himself)\b`), advice: `code is not a person: "it", or name the actor; a person is "they"`},
	{pattern: regexp.MustCompile(`(?i)\b(guards? what follows)\b`), advice: `"guards the fields below"`},
	{pattern: regexp.MustCompile(`(?i)\b(with the group entered)\b`), advice: "a type says so: see engine"},
	{pattern: regexp.MustCompile(`(?i)\b(is|are|was|were) to be (?:had|found|told|seen to)\b`), advice: "use a plain verb"},
	{pattern: regexp.MustCompile(`(?i)\b(the ones? of whom|of which there (?:is|are)|by which it is|to which it is told)\b`), advice: "one idea a sentence"},
	{pattern: regexp.MustCompile(`(?i)\b(gets to know|is told of|are told of|is told that|goes on to|do not bring about|brings? about|came up to|sees? to it|saw to it|is rid of|let(?:s)? go out|had better)\b`), advice: "use a plain verb"},
}

// whoRule finds "who" after a word that is not a person's.
var (
	who       = regexp.MustCompile(`(?i)(\S+),? who\b`)
	ofAPerson = regexp.MustCompile(`(?i)^[("']*` + person + `[,)"']*$`)
)

// finding is a place in a text that a rule refuses.
type finding struct {
	offset int
	words  string
	advice string
}

// check returns the findings in a text, in order.
func check(words string) []finding {
	var out []finding
	for _, r := range rules {
		for _, m := range r.pattern.FindAllStringSubmatchIndex(words, -1) {
			at := m[2]
			if r.clause && len(strings.Fields(words[at:m[3]])) < 5 {
				continue // a name for a column or a field: "what it does"
			}
			out = append(out, finding{at, excerpt(words[at:m[3]]), r.advice})
		}
	}
	for _, m := range who.FindAllStringSubmatchIndex(words, -1) {
		if before := words[m[2]:m[3]]; !ofAPerson.MatchString(before) {
			out = append(out, finding{m[2], excerpt(words[m[0]:m[1]]), "only people are who: name the actor"})
		}
	}
	slices.SortStableFunc(out, func(a, b finding) int { return cmp.Compare(a.offset, b.offset) })
	return slices.CompactFunc(out, func(a, b finding) bool { return a.offset == b.offset })
}

// excerpt is the start of the words that were found.
func excerpt(s string) string {
	const most = 48
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}
