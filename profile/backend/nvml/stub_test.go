//go:build !cgo || !linux

package nvml

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/profile"
)

func TestDescribeSaysWhyItFindsNothing(t *testing.T) {
	m := profile.Machine{NVIDIA: make([]profile.NVIDIADevice, 1), NVIDIALinks: make([]profile.NVIDIALink, 1)}
	Describe(&m)
	if len(m.NVIDIA) != 0 || len(m.NVIDIALinks) != 0 || !strings.Contains(m.Missing, "no NVIDIA inventory") {
		t.Errorf("Describe found %v, %v, missing %q", m.NVIDIA, m.NVIDIALinks, m.Missing)
	}
}
