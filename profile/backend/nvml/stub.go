//go:build !cgo || !linux

package nvml

import (
	"runtime"

	"github.com/evenkeel/evenkeel/profile"
)

// Describe finds nothing in this build, and says why: the library can only be
// called through cgo, and on Linux.
func Describe(m *profile.Machine) {
	m.NVIDIA, m.NVIDIALinks = nil, nil
	m.Missing = "built without cgo: no NVIDIA inventory"
	if runtime.GOOS != "linux" {
		m.Missing = "no NVIDIA inventory on " + runtime.GOOS
	}
}
