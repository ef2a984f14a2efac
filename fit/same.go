package fit

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// sameDevices refuses recordings of device types that the profile has by the same name and that
// are others.
func sameDevices(p *costmodel.Profile, d *Data) error {
	for _, dev := range d.Devices {
		for _, known := range p.Devices {
			if known.Name == dev.Name && known.Fingerprint != dev.Fingerprint {
				return fmt.Errorf("the profile's %s is another machine or software stack than the recording's: %s; fit the recording by itself: evenkeel fit; or see whether times moved since the one that the profile was fitted to: evenkeel check --drift-from", dev.Name, differing(known, dev))
			}
		}
	}
	return nil
}

// differing says what tells two device types of one name apart: what the fingerprint covers and
// documents hold, or else the fingerprints.
func differing(known, dev op.DeviceType) string {
	var all []string
	for _, f := range []struct{ what, was, is string }{
		{"", known.Model, dev.Model},
		{"", known.Stack, dev.Stack},
		{"parallel tasks ", fmt.Sprint(known.Parallel), fmt.Sprint(dev.Parallel)},
		{"memory ", known.Memory.String(), dev.Memory.String()},
	} {
		if f.was != f.is {
			all = append(all, fmt.Sprintf("%s%s, the recording's %s", f.what, f.was, f.is))
		}
	}
	if len(all) > 0 {
		return strings.Join(all, "; ")
	}
	was, is := apart(known.Fingerprint, dev.Fingerprint)
	return fmt.Sprintf("model and stack are the same (%s, %s), but not the fingerprint, of all else that moves times (%s, the recording's %s)", known.Model, known.Stack, was, is)
}

// apart is what of two fingerprints tells them apart: the beginnings of hashes, and of texts the
// words from before the first that differs.
func apart(a, b string) (was, is string) {
	x, y := strings.Fields(a), strings.Fields(b)
	n := 0
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	if n == 0 {
		return fmt.Sprintf("%.12s", a), fmt.Sprintf("%.12s", b)
	}
	return fmt.Sprintf("%.60s", strings.Join(x[n-1:], " ")), fmt.Sprintf("%.60s", strings.Join(y[n-1:], " "))
}
