package costmodel

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ClusterRemarks are the comments of a cluster.yaml: lines above all, and words
// behind the keys that they explain. Empty ones are left out.
type ClusterRemarks struct {
	Head                         []string
	Network, Link, NICs, Devices string
	Links                        map[string]string // by the class that is stated
	Foot                         []string
}

// YAML writes a valid cluster as ReadClusterYAML reads it, with comments.
func (c Cluster) YAML(r ClusterRemarks) []byte {
	var b strings.Builder
	comments(&b, r.Head)
	line := func(remark, format string, args ...any) {
		fmt.Fprintf(&b, format, args...)
		if remark != "" {
			b.WriteString("  # " + oneLine(remark))
		}
		b.WriteByte('\n')
	}
	line("", "schema: %s", ClusterSchema)
	if c.Network != "" {
		line(r.Network, "network: %s", yamlWord(c.Network))
	}
	if len(c.Links) > 0 {
		line("", "links:")
	}
	for _, l := range c.Links {
		latency := ""
		if l.Latency > 0 {
			latency = ", latency_s: " + yamlFloat(float64(l.Latency))
		}
		line(r.Links[l.Name], "  - {name: %s, bytes_per_s: %s%s}", yamlWord(l.Name), yamlFloat(float64(l.Rate)), latency)
	}
	line("", "nodes:")
	for _, n := range c.Nodes {
		line("", "  - name: %s", yamlWord(n.Name))
		if n.Link != "" {
			line(r.Link, "    link: %s", yamlWord(n.Link))
		}
		if n.NICs > 0 {
			line(r.NICs, "    nics: %d", n.NICs)
		}
		line(r.Devices, "    devices:")
		for _, m := range n.Devices {
			line("", "      - {device: %s, count: %d}", yamlWord(m.Device), m.Count)
		}
	}
	comments(&b, r.Foot)
	return []byte(b.String())
}

func comments(b *strings.Builder, lines []string) {
	for _, l := range lines {
		b.WriteString(strings.TrimRight("# "+oneLine(l), " ") + "\n")
	}
}

// oneLine keeps a comment from ending early.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 }), " ")
}

// yamlFloat is a number that a YAML reader takes for one: with a point, or whole.
func yamlFloat(v float64) string { return strconv.FormatFloat(v, 'e', -1, 64) }

// yamlWord writes a name plainly where no reader can take it for something else.
func yamlWord(s string) string {
	special := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	if plain := regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*$`); plain.MatchString(s) && !slices.Contains(special, strings.ToLower(s)) {
		return s
	}
	return strconv.QuoteToASCII(s)
}
