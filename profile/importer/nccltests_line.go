package importer

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
	"strings"
)

const (
	logBuffer = 64 << 10
	// longestLogLine is far beyond any line that is read; what exceeds it is
	// cut, so that a file without line ends does not fill memory.
	longestLogLine = 1 << 20
)

// logLines reads a log line by line, without what terminals and launchers add.
type logLines struct {
	in    *bufio.Reader
	line  int      // number of the line that the text came from, from 1
	parts []string // of a line with carriage returns, still to be handed out
	kept  bool     // back was called: the next call repeats
	open  bool     // the line being handed out, the file's last, has no end
	text  string
}

// next returns the next line, cleaned; io.EOF at the end. A carriage return
// ends a line for the reader, but not for its number.
func (l *logLines) next() (string, error) {
	if l.kept {
		l.kept = false
		return l.text, nil
	}
	if len(l.parts) == 0 {
		raw, err := l.read()
		if err != nil {
			return "", err
		}
		l.line++
		l.parts = strings.Split(strings.TrimRight(raw, "\r"), "\r")
	}
	l.text = stripLauncher(stripTerminal(l.parts[0]))
	l.parts = l.parts[1:]
	return l.text, nil
}

// back makes the next call return the same line again.
func (l *logLines) back() { l.kept = true }

// read returns the next line without its end, cut at longestLogLine.
func (l *logLines) read() (string, error) {
	var line []byte
	for {
		part, err := l.in.ReadSlice('\n')
		if room := longestLogLine - len(line); room > 0 {
			line = append(line, part[:min(len(part), room)]...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(line) > 0:
			l.open = true
			return string(line), nil
		case err != nil:
			return "", err
		}
		return string(bytes.TrimSuffix(line, []byte{'\n'})), nil
	}
}

var (
	// terminalCodes are the escape sequences of ECMA-48 (colours, cursor) and of
	// window titles.
	terminalCodes = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-Z\\\\-_])")
	// launcherTags are what stands before a line beyond doubt: Open MPI's
	// --tag-output and --timestamp-output, Ray's and SkyPilot's name of a process in
	// parentheses, the files of Kubernetes' containers (CRI), mark of a quotation.
	launcherTags = regexp.MustCompile(`^\s*(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})?(?:\[[^\]\s]*\d,\s*\d+\])?(?:\[[^\]]*\])?<std(?:out|err|diag)>:?\s?|^\([^()]{0,200}\bpid=\d+[^()]{0,200}\)\s|^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP](?:\s|$)|^>\s`)
	// launcherLabels could be something else (srun -l's task number, pdsh's
	// host, PALS's host and rank, mpiexec's [rank], a container's name, a time
	// stamp) and are taken off only before a comment, a number or a line of nvbandwidth.
	launcherLabels = regexp.MustCompile(`^\s*(?:\d+:|\[[^\]]*\]:?|[A-Za-z][\w.-]*(?:\[\d+\]| \d+)?:|[A-Za-z][\w.-]*\s*\||\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?:?)(#|\s+(?:#|\d|Rank\s|\[[^\]]*\]<std|nvbandwidth Version|CUDA \w+ Version:|[Dd]evice \d+:|Running (?:benchmark )?\w+\.|memcpy |SUM \w+ |(?i:waived|error|not found)\b))`)
)

// pieceLabel is what Hydra (mpiexec -prepend-rank) puts before every piece of a
// line that the program flushed: a row is printed in three.
var pieceLabel = regexp.MustCompile(`^\[\d+\]$`)

func stripTerminal(s string) string {
	for _, mark := range []string{"\ufeff", "\xff\xfe", "\xfe\xff"} { // UTF-8, UTF-16
		s = strings.TrimPrefix(s, mark)
	}
	if strings.IndexByte(s, 0x1b) >= 0 {
		s = terminalCodes.ReplaceAllString(s, "")
	}
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	if strings.IndexByte(s, "\u00a0"[0]) >= 0 || strings.IndexByte(s, "\u2007"[0]) >= 0 {
		s = pageBlanks.Replace(s)
	}
	return stripPage(s)
}

var (
	// pageBlanks are what pages and word processors write for blanks, and a mark that
	// shows nothing.
	pageBlanks = strings.NewReplacer("\u00a0", " ", "\u2007", " ", "\u202f", " ", "\u200b", "")
	// pageTags are those of HTML that stand around the lines of a log.
	pageTags = regexp.MustCompile(`^(?:\s*</?(?:pre|code|samp|tt|p|div|span|br|td|tr|li|body|html)\b[^<>]*>)+|(?:</?(?:pre|code|samp|tt|p|div|span|br|td|tr|li|body|html)\b[^<>]*>\s*)+$`)
)

// stripPage takes off what a page puts before and behind a line: fences of Markdown, tags of
// HTML. The line itself may stand beside them.
func stripPage(s string) string {
	bare := strings.TrimSpace(s)
	switch {
	case bare == "":
	case bare[0] == '<' || bare[len(bare)-1] == '>':
		return pageTags.ReplaceAllString(s, "")
	case strings.HasPrefix(bare, "```"), strings.HasPrefix(bare, "~~~"):
		return strings.TrimLeft(bare, "`~")
	case strings.HasSuffix(bare, "```"):
		return strings.TrimRight(bare, "`")
	}
	return s
}

// deepestTags is how many launchers' tags may stand before a line.
const deepestTags = 4

// stripLauncher takes off what launchers put before a line.
func stripLauncher(s string) string {
	if !strings.ContainsAny(s, ":|]>)") {
		return s // most rows
	}
	for range deepestTags {
		if mayBeTagged(s) {
			if at := launcherTags.FindStringIndex(s); at != nil {
				s = s[at[1]:]
				continue
			}
		}
		if !mayBeLabelled(s) {
			break
		}
		at := launcherLabels.FindStringSubmatchIndex(s)
		if at == nil {
			break
		}
		label := strings.TrimSpace(s[:at[2]])
		s = strings.TrimSpace(s[at[2]:])
		if pieceLabel.MatchString(label) {
			s = strings.ReplaceAll(s, label, " ")
		}
	}
	return s
}
