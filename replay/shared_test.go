package replay

import (
	"bytes"
	"os"
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
