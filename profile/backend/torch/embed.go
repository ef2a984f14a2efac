package torch

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/evenkeel/evenkeel/profile/backend/child"
)

//go:embed worker/*.py
var sources embed.FS

// modules lists the files of the worker; its tests stay behind.
func modules() []string {
	names, err := fs.Glob(sources, "worker/*.py")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	kept := names[:0]
	for _, n := range names {
		if !strings.HasPrefix(filepath.Base(n), "test_") {
			kept = append(kept, n)
		}
	}
	return kept
}

// workerHash identifies the worker's sources. It is part of the device type:
// a worker that was changed may measure differently.
func workerHash() string {
	h := sha256.New()
	for _, name := range modules() {
		data, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // the file is embedded
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// unpack writes the worker into a private folder named after its hash and
// returns the folder, and the one it is in, to be removed in the end.
func unpack() (folder string, parent *child.Folder, err error) {
	if parent, err = child.NewFolder(); err != nil {
		return "", nil, err
	}
	folder = filepath.Join(parent.Path, "worker-"+workerHash()[:12])
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", parent, err
	}
	for _, name := range modules() {
		data, err := sources.ReadFile(name)
		if err != nil {
			return "", parent, err
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(name)), data, 0o600); err != nil {
			return "", parent, err
		}
	}
	return folder, parent, nil
}
