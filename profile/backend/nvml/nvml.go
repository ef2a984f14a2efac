//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel/evenkeel/profile"
)

// soname is the library as drivers install it, searched like any other.
const soname = "libnvidia-ml.so.1"

// Describe fills in the GPUs of this machine, in the order of NVML's indices,
// the links between them, and what could not be found out and why, which is
// empty if all was: an entry may then lack fields, or the whole list be missing.
// It never fails. Calls must not overlap, for the binding keeps its state in
// globals.
func Describe(m *profile.Machine) { describeWith(soname, m) }

func describeWith(path string, m *profile.Machine) {
	m.NVIDIA, m.NVIDIALinks = nil, nil
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := library.Open(); err != nil {
		m.Missing = unopened(path, err)
		return
	}
	// The binding opens the library once more, so closing this handle frees nothing.
	defer library.Close()
	s := survey{has: func(symbol string) bool { return library.Lookup(symbol) == nil }}
	if lacking := s.lacking(required); len(lacking) > 0 {
		m.Missing = fmt.Sprintf("the NVIDIA driver library (%s) lacks %s: install a newer driver for an inventory",
			path, strings.Join(lacking, ", "))
		return
	}
	s.lib = nvml.New(nvml.WithLibraryPath(path))
	if ret := s.lib.Init(); ret != nvml.SUCCESS {
		m.Missing = fmt.Sprintf("the NVIDIA driver library (%s) did not start: %s", path, reason(ret))
		return
	}
	defer s.lib.Shutdown()
	m.NVIDIA = s.devices()
	m.NVIDIALinks = s.links(m.NVIDIA)
	m.Missing = s.problems.String()
}

// unopened tells a machine without the library, which is ordinary, from one
// where it is there and cannot be loaded. The dynamic loader has only words for it.
func unopened(path string, err error) string {
	if strings.Contains(err.Error(), path+": cannot open shared object file: No such file or directory") {
		return fmt.Sprintf("no NVIDIA driver library (%s) on this machine", path)
	}
	return fmt.Sprintf("the NVIDIA driver library (%s) cannot be loaded: %s", path, text(err.Error()))
}

// required are the functions without which there is no inventory, each by the
// names of its versions. A call of a function that the library lacks ends the
// process without a panic, and Init is one of them, so all are looked for before
// the first call; the binding's own LookupSymbol works only after Init. Of the
// versions of a function the binding takes the newest.
var required = [][]string{
	{"nvmlInit_v2", "nvmlInit"},
	{"nvmlShutdown"},
	{"nvmlErrorString"}, // the binding prints every error with it
	{"nvmlSystemGetDriverVersion"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetName"},
	{"nvmlDeviceGetUUID"},
	{"nvmlDeviceGetMemoryInfo"},
}

// survey is one look at a started library.
type survey struct {
	lib      nvml.Interface
	has      func(symbol string) bool
	handles  []nvml.Device // of the devices that were found, in their order
	problems problems
}

// lacking names the functions that the library has in no version.
func (s *survey) lacking(functions [][]string) []string {
	var lacking []string
	for _, versions := range functions {
		found := false
		for _, symbol := range versions {
			found = found || s.has(symbol)
		}
		if !found {
			lacking = append(lacking, versions[0])
		}
	}
	return lacking
}

func (s *survey) devices() []profile.NVIDIADevice {
	driver, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		s.problems.say("the driver version could not be read: " + reason(ret))
		driver = ""
	}
	count, ret := s.lib.DeviceGetCount()
	switch {
	case ret != nvml.SUCCESS:
		s.problems.say("the number of NVIDIA GPUs could not be read: " + reason(ret))
		return nil
	case count == 0:
		s.problems.say("the NVIDIA driver is there but shows no GPU to this process")
	}
	var devices []profile.NVIDIADevice
	for i := range count {
		handle, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			s.problems.say(fmt.Sprintf("GPU %d could not be read: %s", i, reason(ret)))
			continue
		}
		s.handles = append(s.handles, handle)
		devices = append(devices, s.device(handle, profile.NVIDIADevice{Index: i, Driver: text(driver)}))
	}
	return devices
}

// device leaves out what a call refuses: a GPU in a partitioning mode or of a
// virtual kind refuses some, and is there nevertheless.
func (s *survey) device(handle nvml.Device, d profile.NVIDIADevice) profile.NVIDIADevice {
	for _, f := range fields(s.has) {
		s.try(d.Index, f.what, f.needs, func() nvml.Return { return f.read(handle, &d) })
	}
	return d
}

// try calls read if the library has what it needs, and notes why a field of a
// GPU is missing otherwise.
func (s *survey) try(gpu int, what string, needs [][]string, read func() nvml.Return) {
	if lacking := s.lacking(needs); len(lacking) > 0 {
		s.problems.of(gpu, what, "the driver library lacks "+strings.Join(lacking, ", "))
		return
	}
	if ret := read(); ret != nvml.SUCCESS {
		s.problems.of(gpu, what, reason(ret))
	}
}

// reason adds a way out where there is one that users meet.
func reason(ret nvml.Return) string {
	said := text(ret.Error())
	switch {
	case errors.Is(ret, nvml.ERROR_DRIVER_NOT_LOADED):
		said += " (the kernel module is not loaded, or this container was not given the GPUs)"
	case errors.Is(ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH):
		said += " (the driver was updated since the machine started: reboot it)"
	}
	return said
}

// text makes what C code returned fit for documents, which must be valid UTF-8.
// It is a copy, because the binding's error texts are the library's own memory:
// the next call may change it, and closing the library takes it away.
func text(s string) string {
	return strings.Clone(strings.TrimSpace(strings.ToValidUTF8(s, "")))
}
