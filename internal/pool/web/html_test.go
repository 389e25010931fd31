package web

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

func each(n *html.Node, visit func(*html.Node)) {
	if n.Type == html.ElementNode {
		visit(n)
	}
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		each(c, visit)
	}
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name })
}

// text returns the visible text.
func text(n *html.Node) string {
	var b strings.Builder
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.TextNode {
			b.WriteString(n.Data)
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(n)
	return b.String()
}

func within(n *html.Node, name string) bool {
	for p := n.Parent; p != nil; p = p.Parent {
		if p.Data == name {
			return true
		}
	}
	return false
}

// own matches the URLs that a page may refer to.
var own = regexp.MustCompile(`^(/|/\?.*|/#.*|/ui/.*|\?.*|#[\w-]+)$`)

// checkPage parses a page and checks the rules for all pages.
func checkPage(t *testing.T, body string) *html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	count, ids, refs := map[string]int{}, map[string]int{}, []string{}
	labelled := map[string]bool{}
	each(doc, func(n *html.Node) {
		if n.Data != "title" || n.Parent.Data == "head" { // an SVG image has a title too
			count[n.Data]++
		}
		if n.Data == "label" {
			labelled[attr(n, "for")] = true
		}
		for _, a := range n.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "style":
				t.Errorf("<%s> has %s=%q", n.Data, a.Key, a.Val)
			case slices.Contains([]string{"href", "src", "action"}, a.Key) && !own.MatchString(a.Val):
				t.Errorf("<%s %s=%q> refers to another site", n.Data, a.Key, a.Val)
			case a.Key == "id":
				ids[a.Val]++
			case a.Key == "aria-labelledby", a.Key == "aria-describedby":
				refs = append(refs, strings.Fields(a.Val)...)
			}
		}
	})
	for id, n := range ids {
		if n > 1 {
			t.Errorf("%d elements have the id %q", n, id)
		}
	}
	for _, id := range refs {
		if ids[id] == 0 {
			t.Errorf("no element has the id %q", id)
		}
	}
	for name, want := range map[string]int{"h1": 1, "main": 1, "script": 1, "style": 0, "iframe": 0, "object": 0, "img": 1, "title": 1} {
		if count[name] != want {
			t.Errorf("%d <%s>, want %d", count[name], name, want)
		}
	}
	each(doc, func(n *html.Node) { checkElement(t, n, labelled) })
	return doc
}

// checkElement checks the names and labels that screen readers need.
func checkElement(t *testing.T, n *html.Node, labelled map[string]bool) {
	t.Helper()
	named := strings.TrimSpace(text(n)) != "" || has(n, "aria-label")
	switch n.Data {
	case "html":
		if attr(n, "lang") == "" {
			t.Error("<html> has no lang")
		}
	case "script":
		if attr(n, "src") == "" || strings.TrimSpace(text(n)) != "" {
			t.Error("inline script")
		}
	case "a", "button", "summary", "label", "h1", "h2", "h3", "caption":
		if !named && n.FirstChild != nil || !named && n.Data == "a" {
			t.Errorf("<%s %v> has no name", n.Data, n.Attr)
		}
	case "nav":
		if !has(n, "aria-label") {
			t.Error("a <nav> has no name")
		}
	case "section":
		if !has(n, "aria-labelledby") {
			t.Error("a <section> has no name")
		}
	case "img":
		if !has(n, "alt") {
			t.Error("an <img> has no alt")
		}
	case "th":
		if !has(n, "scope") {
			t.Errorf("<th>%s has no scope", text(n))
		}
	case "input", "select":
		if attr(n, "type") != "hidden" && !within(n, "label") && !labelled[attr(n, "id")] {
			t.Errorf("<%s name=%q> has no label", n.Data, attr(n, "name"))
		}
	case "form":
		if strings.EqualFold(attr(n, "method"), "post") && attr(n, "action") != "/ui/theme" {
			found := false
			each(n, func(c *html.Node) {
				found = found || c.Data == "input" && attr(c, "name") == "form" && len(attr(c, "value")) == 26
			})
			if !found {
				t.Errorf("the form to %s has no form token", attr(n, "action"))
			}
		}
	case "svg":
		if attr(n, "aria-hidden") != "true" && !has(n, "aria-label") {
			t.Error("an <svg> has no name and is not hidden from screen readers")
		}
	}
}

// drawn returns the number of slots and of rack totals in a page.
func drawn(doc *html.Node) (slots, racks int) {
	each(doc, func(n *html.Node) {
		switch {
		case n.Data == "a" && strings.HasPrefix(attr(n, "class"), "slot "):
			slots++
		case n.Data == "tr" && n.Parent.Data == "tbody" && strings.HasPrefix(attr(n.Parent.Parent, "class"), "rackrows"):
			racks++
		}
	})
	return slots, racks
}
