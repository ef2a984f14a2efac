package importer

import (
	"regexp"
	"slices"
	"strings"
)

// sought is an expression with texts of which every match holds one. A library that is
// asked to tell all (NCCL_DEBUG=INFO) writes lines by the million, to all of which the
// expressions would be put, at a microsecond each; looking for a text takes nanoseconds.
type sought struct {
	*regexp.Regexp
	texts []string
}

func seek(expression string, texts ...string) sought {
	return sought{regexp.MustCompile(expression), texts}
}

// in says whether a line may match.
func (s sought) in(line string) bool {
	return slices.ContainsFunc(s.texts, func(text string) bool { return strings.Contains(line, text) })
}

// MatchString is the expression's.
func (s sought) MatchString(line string) bool { return s.in(line) && s.Regexp.MatchString(line) }

// FindStringSubmatch is the expression's.
func (s sought) FindStringSubmatch(line string) []string {
	if !s.in(line) {
		return nil
	}
	return s.Regexp.FindStringSubmatch(line)
}

// FindAllString is the expression's.
func (s sought) FindAllString(line string, most int) []string {
	if !s.in(line) {
		return nil
	}
	return s.Regexp.FindAllString(line, most)
}

// mayBeTagged says whether a line may begin with what launcherTags match.
func mayBeTagged(line string) bool {
	return strings.Contains(line, "<std") || strings.Contains(line, " std") || line != "" && (line[0] == '>' || line[0] == '(')
}

// mayBeLabelled says whether a line may begin with what launcherLabels match: most of what a
// library says begins with host:pid:thread, which looks like a host's label up to the colon.
func mayBeLabelled(line string) bool {
	const blanks = " \t\n\f\r" // \s
	line = strings.TrimLeft(line, blanks)
	if line == "" {
		return false
	}
	letter := func(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	if !letter(line[0]) {
		return line[0] == '[' || digit(line[0])
	}
	end := 1
	for end < len(line) && (letter(line[end]) || digit(line[end]) || strings.IndexByte("_.-", line[end]) >= 0) {
		end++
	}
	rest := line[end:]
	if name, ok := strings.CutPrefix(rest, ":"); ok {
		return name != "" && strings.IndexByte(blanks+"#", name[0]) >= 0
	}
	return rest != "" && strings.IndexByte("[|"+blanks, rest[0]) >= 0
}
