//go:build !cgo || !linux

package nvml

import (
	"runtime"

	"github.com/evenkeel/evenkeel/profile"
)

// Inventory finds nothing in this build, and says why: the library can only be
// called through cgo, and on Linux.
func Inventory() (devices []profile.NVIDIADevice, why string) {
	if runtime.GOOS != "linux" {
		return nil, "no NVIDIA inventory on " + runtime.GOOS
	}
	return nil, "built without cgo: no NVIDIA inventory"
}
