package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"
	"unicode"

	"github.com/evenkeel/evenkeel/profile"
)

// Discover describes the machine this process runs on, as far as it may use
// it, and says in notes what could not be found out or is limited. It leaves
// the NVIDIA fields to package nvml.
func Discover() (profile.Machine, []string) {
	m, notes := Read(os.DirFS("/"), runtime.NumCPU())
	if m.Host == "" {
		if name, err := os.Hostname(); err == nil {
			m.Host = tidy(name)
		}
	}
	return m, notes
}

// Read is [Discover] for the file tree of any machine. The argument cores is
// how many the scheduler offers (affinity included, as runtime.NumCPU counts
// them); cgroup quotas are taken off it.
func Read(root fs.FS, cores int) (profile.Machine, []string) {
	r := &reader{root: root}
	m := profile.Machine{
		Host: tidy(r.optional("proc/sys/kernel/hostname")),
		OS:   r.system(),
		CPU:  r.cpu(),
	}
	groups := r.groups()
	m.Cores = r.cores(groups, cores)
	m.L1Data, m.L2, m.L3 = r.caches()
	m.Memory = r.memory(groups)
	return m, r.notes
}

// system is the distribution and the kernel: both move measured times.
func (r *reader) system() string {
	release := r.optional("etc/os-release")
	if release == "" {
		release = r.optional("usr/lib/os-release")
	}
	name := tidy(strings.Trim(setting(release, "PRETTY_NAME"), `"'`))
	kernel := tidy(r.optional("proc/sys/kernel/osrelease"))
	switch {
	case name == "" && kernel == "":
		r.note("the operating system could not be identified")
		return runtime.GOOS
	case name == "":
		return "Linux " + kernel
	case kernel == "":
		return name
	}
	return name + ", Linux " + kernel
}

func setting(text, key string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, key+"="); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// reader reads small files of one tree and collects notes on what went wrong.
type reader struct {
	root  fs.FS
	notes []string
}

func (r *reader) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// text reads a file that ought to be there; without it, `unknown` is the note.
func (r *reader) text(name, unknown string) (string, bool) {
	b, err := fs.ReadFile(r.root, name)
	if err != nil {
		r.note("/%s: %v; %s", name, cause(err), unknown)
		return "", false
	}
	return string(b), true
}

// optional reads a file that many machines do not have.
func (r *reader) optional(name string) string {
	b, err := fs.ReadFile(r.root, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.note("/%s: %v", name, cause(err))
	}
	return string(b)
}

// cause strips the operation and path off an error that names them anyway.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// inTree turns an absolute path into a name in the tree: never above its top.
func inTree(absolute string) string {
	if name := strings.TrimPrefix(path.Clean("/"+absolute), "/"); name != "" {
		return name
	}
	return "."
}

// longest bounds names: some firmware pads them, and garbled files have no end.
const longest = 200

// tidy makes a name fit for documents, which must be valid UTF-8: one line,
// single spaces, nothing unprintable, at most `longest` runes.
func tidy(s string) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case unicode.IsSpace(c):
			return ' '
		case c == unicode.ReplacementChar || !unicode.IsPrint(c):
			return -1
		}
		return c
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > longest {
		s = strings.TrimSpace(string(runes[:longest]))
	}
	return s
}
