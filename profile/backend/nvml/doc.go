// Package nvml lists the NVIDIA GPUs of this machine through NVIDIA's
// management library. It needs no GPU and no driver to build; without cgo, or
// away from Linux, it says that it cannot look.
package nvml
