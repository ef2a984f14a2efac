package importer

import (
	"math"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// ncclRow is a row of a table as printed. A row that could not be read holds
// only where it is and why.
type ncclRow struct {
	where string
	bad   string // the reason why it is no row

	size   int64 // the column size, bytes
	count  int64 // the column count, elements
	dtype  string
	redop  string
	blank  bool // the header has a redop, the row does not: alltoall until 2.12
	rooted bool // it names a root, which only rooted collectives have

	outOfPlace, inPlace *ncclHalf // nil where not printed
}

// ncclHalf is one of the two measurements of a row.
type ncclHalf struct {
	time    reading // s; of the launch alone if cpu
	cpu     bool
	alg     reading // algbw, bytes a second
	bus     reading // busbw, bytes a second
	errors  float64 // #wrong, or the classic error
	checked bool    // errors was printed, not N/A
	count   bool    // errors is a number of elements, not a relative error
	starred bool    // marked by rccl-tests as beyond its threshold
}

// halves lists the measurements that the row has.
func (r *ncclRow) halves() []*ncclHalf {
	var all []*ncclHalf
	for _, h := range []*ncclHalf{r.outOfPlace, r.inPlace} {
		if h != nil {
			all = append(all, h)
		}
	}
	return all
}

// parts is size/(count e): 1 where size is a buffer that count describes, the
// number of ranks where count is the part of one. 0 where the row does not say.
func (r *ncclRow) parts() float64 {
	e := int64(ncclElement(r.dtype).Size())
	if e == 0 || r.count <= 0 || r.count > math.MaxInt64/e {
		return 0
	}
	return float64(r.size) / float64(r.count*e)
}

// sums says whether the row adds what it reduces, or does not say how. Other operators (-o)
// are other kernels: avg and mulsum multiply or divide besides, and nothing in a log tells
// which of them a library makes as fast as sum.
func (r *ncclRow) sums() bool { return r.redop == "" || r.redop == "none" || r.redop == "sum" }

// ratio is the interval of busbw/algbw that the printed digits allow.
func (h *ncclHalf) ratio() (lo, hi float64) {
	lo = math.Max(0, h.bus.value-h.bus.half) / (h.alg.value + h.alg.half)
	hi = math.Inf(1)
	if h.alg.value > h.alg.half {
		hi = (h.bus.value + h.bus.half) / (h.alg.value - h.alg.half)
	}
	return lo, hi
}

// isWrong says whether the check of the results failed. Classic tables print
// the largest relative error, which rounding alone makes; above the tool's own
// thresholds the result is wrong.
func (h *ncclHalf) isWrong(d op.DType) bool {
	switch {
	case h.starred:
		return true
	case !h.checked:
		return false
	case h.count:
		return h.errors != 0 // NaN too
	}
	return !(h.errors <= roundingOf(d))
}

// roundingOf is the relative error up to which nccl-tests until 2.12 takes the
// results of a reduction for right.
func roundingOf(d op.DType) float64 {
	switch d {
	case op.F16, op.BF16, op.FP8:
		return 1e-2
	case op.F32:
		return 1e-5
	case op.F64:
		return 1e-12
	}
	return 0
}

// reading is a number as printed: it stands for value +- half.
type reading struct{ value, half float64 }

func (r reading) times(unit float64) reading { return reading{r.value * unit, r.half * unit} }

// decimal reads a number as tools print it. Go's hexadecimal ones, such as 0x1p12, no tool
// prints: such a cell is an address or a hash, or damaged.
func decimal(text string) (float64, bool) {
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && !strings.ContainsAny(text, "xXpP_")
}

// printed reads a decimal number and how far its last digit leaves it open:
// "12.90" is 12.9 +- 0.005, "1.3e+06" is 1.3e6 +- 5e4.
func printed(text string) (reading, bool) {
	v, ok := decimal(text)
	if !ok {
		return reading{}, false
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	_, decimals, _ := strings.Cut(mantissa, ".")
	scale, _ := strconv.Atoi(exponent)
	return reading{v, 0.5 * math.Pow(10, float64(scale-len(decimals)))}, true
}

// ncclElement translates nccl-tests' names of element types; "" for an unknown
// one.
func ncclElement(name string) op.DType {
	switch name {
	case "char":
		return op.I8
	case "int", "uint32":
		return op.I32
	case "uint64":
		return op.I64
	}
	if strings.HasPrefix(name, "f8") { // f8e4m3, f8e5m2
		return op.FP8
	}
	d, _ := dtypeOf(name)
	return d
}

// agrees says whether a time and a bandwidth belong together: size/time within
// slack of the bandwidth, as far as the printed digits tell.
func (h *ncclHalf) agrees(size int64, slack float64) bool {
	least := float64(size) / (h.time.value + h.time.half)
	most := math.Inf(1)
	if h.time.value > h.time.half {
		most = float64(size) / (h.time.value - h.time.half)
	}
	return h.alg.value+h.alg.half >= least*(1-slack) && h.alg.value-h.alg.half <= most*(1+slack)
}

// carries says whether busbw is factor times algbw, as far as the printed
// digits tell.
func (h *ncclHalf) carries(factor, slack float64) bool {
	lo, hi := h.ratio()
	return lo*(1-slack) <= factor && factor <= hi*(1+slack)
}
