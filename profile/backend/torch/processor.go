package torch

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ISA is the widest vector instruction set that the libraries of a rank on
// processors may use; "" leaves the choice to them.
//
// It is a resource like the number of threads: narrower units do fewer
// operations in a cycle, and nothing is delayed or repeated. So a machine whose
// cores are all alike has ranks of unlike speed.
type ISA string

// The sets that a rank can be limited to.
const (
	AVX2 ISA = "avx2" // 256 bits, with fused multiply-add
	SSE4 ISA = "sse4" // 128 bits
)

// limits says of every set what a processor must have for it, what the
// libraries read when they are loaded, and what they say of themselves
// afterwards: ATen, OpenBLAS, MKL and oneDNN each have a word of their own.
var limits = []struct {
	isa   ISA
	flags []string // of /proc/cpuinfo
	env   []string
	aten  []string // names that ATen has for it
	blas  []string // names of OpenBLAS's kernels for it
}{
	{
		AVX2,
		[]string{"avx2", "fma"},
		[]string{"OPENBLAS_CORETYPE=Haswell", "ATEN_CPU_CAPABILITY=avx2", "MKL_ENABLE_INSTRUCTIONS=AVX2", "ONEDNN_MAX_CPU_ISA=AVX2"},
		[]string{"AVX2"},
		[]string{"Haswell"},
	},
	{
		SSE4,
		[]string{"sse4_1", "sse4_2"},
		[]string{"OPENBLAS_CORETYPE=Nehalem", "ATEN_CPU_CAPABILITY=default", "MKL_ENABLE_INSTRUCTIONS=SSE4_2", "ONEDNN_MAX_CPU_ISA=SSE41"},
		[]string{"NO AVX", "DEFAULT"},
		[]string{"Nehalem"},
	},
}

// Cores is what a rank on processors computes with.
type Cores struct {
	Threads int
	ISA     ISA
}

// typePrefix begins the names of device types on processors.
const typePrefix = "torch_cpu:"

// TypeName is the device type of such ranks: "torch_cpu:2", "torch_cpu:1@avx2".
func (c Cores) TypeName() string { return typePrefix + c.String() }

// String is how the command line names them: "2", "1@avx2".
func (c Cores) String() string {
	if c.ISA == "" {
		return strconv.Itoa(c.Threads)
	}
	return fmt.Sprintf("%d@%s", c.Threads, c.ISA)
}

// ParseCores reads what String writes.
func ParseCores(s string) (Cores, error) {
	number, isa, limited := strings.Cut(s, "@")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || number != strconv.Itoa(n) {
		return Cores{}, fmt.Errorf("%q: want a number of threads, and perhaps @avx2 or @sse4 for narrower vector units", s)
	}
	c := Cores{n, ISA(isa)}
	if limited && limit(c.ISA) < 0 {
		return Cores{}, fmt.Errorf("%q: no vector units are called %q: want avx2 or sse4", s, isa)
	}
	return c, nil
}

// Processor reads the name of a device type on processors. env is what a rank of
// that type has in its environment when its libraries are loaded. ok is false
// for every other device type.
func Processor(name string) (threads int, env []string, ok bool) {
	rest, ok := strings.CutPrefix(name, typePrefix)
	if !ok {
		return 0, nil, false
	}
	c, err := ParseCores(rest)
	if err != nil {
		return 0, nil, false
	}
	return c.Threads, append(c.env(), quiet()...), true
}

// quiet keeps two pools of threads that take turns from spinning while the other
// works; the worker has the same defaults and says why.
func quiet() []string { return []string{"OMP_WAIT_POLICY=PASSIVE", "OPENBLAS_THREAD_TIMEOUT=10"} }

// env restricts a process to the threads and vector units. Libraries read it
// once, when they are loaded.
func (c Cores) env() []string {
	var list []string
	if c.Threads > 0 {
		for _, name := range []string{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"} {
			list = append(list, fmt.Sprintf("%s=%d", name, c.Threads))
		}
	}
	if i := limit(c.ISA); i >= 0 {
		list = append(list, limits[i].env...)
	}
	return list
}

// limit is the place of a set in the table, -1 for none.
func limit(isa ISA) int {
	for i, l := range limits {
		if l.isa == isa {
			return i
		}
	}
	return -1
}

// lacks says what keeps a processor, by its /proc/cpuinfo, from being limited to
// a set: a limit above what it has would limit nothing.
func lacks(isa ISA, cpuinfo string) error {
	i := limit(isa)
	if i < 0 {
		return nil
	}
	for _, want := range limits[i].flags {
		if !slices.Contains(flags(cpuinfo), want) {
			return fmt.Errorf("@%s: this processor has no %s (by /proc/cpuinfo): leave the vector units to the libraries, or name narrower ones", isa, want)
		}
	}
	return nil
}

// flags are the features of the first processor of /proc/cpuinfo, on x86; other
// architectures have none of the names asked for.
func flags(cpuinfo string) []string {
	for line := range strings.Lines(cpuinfo) {
		if k, v, _ := strings.Cut(line, ":"); strings.TrimSpace(k) == "flags" {
			return strings.Fields(v)
		}
	}
	return nil
}

// Vectors is what the libraries of a rank on a processor say of their vector units.
type Vectors struct {
	ATen   string            `json:"aten"`   // "AVX2", "AVX512"; "" where torch does not tell
	BLAS   string            `json:"blas"`   // the kernels OpenBLAS chose; "" for another library
	Limits map[string]string `json:"limits"` // what is set of the variables that limit them
	// Reference is the file of netlib's reference BLAS where torch multiplies with it.
	Reference string `json:"reference_blas"`
}

// Obey says which library of a rank took no notice of the limit that is in the
// name of its device type; see Processor.
func (v Vectors) Obey(name string) error {
	rest, ok := strings.CutPrefix(name, typePrefix)
	if c, err := ParseCores(rest); ok && err == nil {
		return v.obey(c.ISA)
	}
	return nil
}

// obey says which library took no notice of a limit: the rank would be a device
// of another type than its name says.
func (v Vectors) obey(isa ISA) error {
	i := limit(isa)
	switch {
	case i < 0:
		return nil
	case !slices.Contains(limits[i].aten, v.ATen):
		return fmt.Errorf("@%s: torch takes no notice of ATEN_CPU_CAPABILITY, it uses %q: measure this type with another torch, or leave it out", isa, v.ATen)
	case v.BLAS != "" && !slices.Contains(limits[i].blas, v.BLAS):
		return fmt.Errorf("@%s: OpenBLAS takes no notice of OPENBLAS_CORETYPE, it uses its kernels for %s: install one that chooses at run time (DYNAMIC_ARCH), or leave this type out", isa, v.BLAS)
	}
	return nil
}

// String is the vector units as part of a software stack.
func (v Vectors) String() string {
	var parts []string
	if v.ATen != "" {
		parts = append(parts, "ATen "+v.ATen)
	}
	if v.BLAS != "" {
		parts = append(parts, "OpenBLAS "+v.BLAS)
	}
	for _, name := range sortedKeys(v.Limits) {
		parts = append(parts, name+"="+v.Limits[name])
	}
	return strings.Join(parts, ", ")
}

// cpuinfo is what the system says of its processors, "" where it says nothing.
func cpuinfo() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	return string(text)
}
