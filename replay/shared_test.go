package replay

import (
	"bytes"
	"os"
	"regexp"
	"testing"
)

// The worker that measures and the package that replays limit themselves in the
// same way; each is unpacked without the other, so both have the files.
func TestTheWorkerAndThePackageShareModules(t *testing.T) {
	for _, name := range []string{"confine.py", "nodes.py", "vectors.py"} {
		worker, err := os.ReadFile("../profile/backend/torch/worker/" + name)
		if err != nil {
			t.Fatal(err)
		}
		replayed, err := os.ReadFile("../python/evenkeel/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(worker, replayed) {
			t.Errorf("%s: the worker's and the package's differ: copy the one that was changed over the other", name)
		}
	}
}

// Both tell torch's release alike, by which each refuses the same kernels: else a replay runs
// another kernel than was measured. It is a function of each, for a module of its own would
// change the worker's hash, and with it the name of all that was measured.
func TestTheWorkerAndThePackageTellReleasesAlike(t *testing.T) {
	body := func(file, pattern string) []byte {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern + `\(version: str\)[^:]*:\n(?:    [^\n]*\n)*?(    major[^\n]*\n    return[^\n]*\n)`).FindSubmatch(data)
		if found == nil {
			t.Fatalf("%s: no function %s whose last two lines tell a release", file, pattern)
		}
		return found[1]
	}
	worker, replayed := body("../profile/backend/torch/worker/kernels.py", "def release"), body("../python/evenkeel/kernels.py", "def _release")
	if !bytes.Equal(worker, replayed) {
		t.Errorf("the worker tells a release by\n%sand the package by\n%s", worker, replayed)
	}
}
