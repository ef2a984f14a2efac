// Package python holds the Python package evenkeel, which runs the attention of
// plans on torch, for those parts of the tool that start it.
package python

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"slices"
)

//go:embed evenkeel/*.py
var sources embed.FS

// Modules is the package as files: evenkeel/__init__.py and its other modules,
// without tests. A folder that it is copied into can be put on Python's path.
func Modules() fs.FS { return sources }

// Hash identifies the package: the SHA-256 over its modules' names, sizes and
// contents. The ranks of a replay compute the same of what they run and compare
// it, for another version may compute or time something else.
func Hash() string {
	names, err := fs.Glob(sources, "evenkeel/*.py")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		data, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // the file is embedded
		}
		fmt.Fprintf(h, "%s %d\n%s", name[len("evenkeel/"):], len(data), data)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
