// Package units gives quantities their types. Only base units exist inside the
// program (seconds, bytes, tokens, floating-point operations and their rates);
// scaling to ms, MiB or TFLOP/s happens when a value is printed.
//
// A fitted cost can be 2e-12 seconds a byte, which time.Duration rounds to
// zero: Duration is therefore for budgets and flags, Seconds for costs.
package units

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

type (
	// Seconds is a time or a cost.
	Seconds float64
	// Bytes is a size.
	Bytes int64
	// Tokens is a number of tokens, or a length or position in a sequence.
	Tokens int64
	// FLOPs counts floating-point operations; one multiply-add is two.
	FLOPs float64
	// FLOPsPerS is a compute rate.
	FLOPsPerS float64
	// BytesPerS is a bandwidth, one direction.
	BytesPerS float64
)

// Binary byte multiples; decimal ones (GB = 1e9) are used for rates only.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// Count prints a number with what it counts: "1 law", "3 laws", "2 batches".
func Count[N ~int | ~int64](n N, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "ch"):
		return fmt.Sprintf("%d %ses", int64(n), one)
	}
	return fmt.Sprintf("%d %ss", int64(n), one)
}

// mostBytes is where sizes end. A sum beyond stays there, for one that wrapped
// around would look like any other.
const mostBytes Bytes = math.MaxInt64

// BytesOf is a size that was counted in floating point, where whole numbers are
// exact up to 2^53 (9 PB): without its fraction, and the largest there is where it
// is larger.
func BytesOf(n float64) Bytes {
	if n >= float64(mostBytes) {
		return mostBytes
	}
	return Bytes(n)
}

// Plus is n + m, or the largest size there is.
func (n Bytes) Plus(m Bytes) Bytes {
	if n > 0 && m > mostBytes-n {
		return mostBytes
	}
	return n + m
}

// Times is k times n, or the largest size there is.
func (n Bytes) Times(k int64) Bytes {
	if n > 0 && k > int64(mostBytes/n) {
		return mostBytes
	}
	return n * Bytes(k)
}

// Over is the time that n bytes take at rate r.
func (n Bytes) Over(r BytesPerS) Seconds { return Seconds(float64(n) / float64(r)) }

// String prints three significant digits with the fitting SI prefix: "12.3 ms".
func (s Seconds) String() string {
	a := math.Abs(float64(s))
	switch {
	case a == 0 || math.IsNaN(a) || math.IsInf(a, 0):
		return number(float64(s)) + " s"
	case a < 1e-9:
		return number(float64(s)*1e12) + " ps"
	case a < 1e-6:
		return number(float64(s)*1e9) + " ns"
	case a < 1e-3:
		return number(float64(s)*1e6) + " us"
	case a < 1:
		return number(float64(s)*1e3) + " ms"
	case a < 600:
		return number(float64(s)) + " s"
	case a < 7200:
		return number(float64(s)/60) + " min"
	default:
		return number(float64(s)/3600) + " h"
	}
}

// String prints binary multiples, exact when the value is a round one: "64 KiB". The
// largest size stands for larger ones too, and says so.
func (n Bytes) String() string {
	if n == mostBytes {
		return "8192 PiB or more"
	}
	return scaled(float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"})
}

// String prints the plain number, or with k or M (1024, 1024²) when it is a
// whole multiple, as sequence lengths are spoken of: 262144 is "256k".
func (t Tokens) String() string {
	switch {
	case t != 0 && t%(1<<20) == 0:
		return strconv.FormatInt(int64(t)>>20, 10) + "M"
	case t != 0 && t%(1<<10) == 0:
		return strconv.FormatInt(int64(t)>>10, 10) + "k"
	}
	return strconv.FormatInt(int64(t), 10)
}

// String prints decimal multiples: "1.2 GFLOP".
func (f FLOPs) String() string {
	return scaled(float64(f), 1000, []string{"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"})
}

// String prints decimal multiples: "7.4 GFLOP/s".
func (r FLOPsPerS) String() string { return FLOPs(r).String() + "/s" }

// String prints decimal multiples, as link rates are quoted: "450 GB/s".
func (r BytesPerS) String() string {
	return scaled(float64(r), 1000, []string{"B/s", "kB/s", "MB/s", "GB/s", "TB/s"})
}

// Percent prints a fraction with a sensible number of digits: 0.0123 is "1.2 %".
// Beyond tenfold nobody wants to count digits: ">10x".
func Percent(f float64) string {
	switch a := math.Abs(100 * f); {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return "-"
	case a > 1000 && f > 0:
		return ">10x"
	case a > 1000:
		return "<-10x"
	case a < 10:
		return strconv.FormatFloat(100*f, 'f', 1, 64) + " %"
	default:
		return strconv.FormatFloat(100*f, 'f', 0, 64) + " %"
	}
}

func scaled(v, base float64, names []string) string {
	i := 0
	for math.Abs(v) >= base && i < len(names)-1 {
		v /= base
		i++
	}
	return number(v) + " " + names[i]
}

// number keeps three significant digits and never falls into exponents for the
// magnitudes that scaling leaves.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e4 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return strconv.FormatFloat(v, 'f', max(0, min(digits, 12)), 64)
}

// ParseTokens reads a length such as "8192", "256k" or "1M". k and M are 1024
// and 1024², because that is what the field means by a 128k context; fractions
// are refused unless they come out whole ("1.5k" is 1536).
//
// Errors: not a number, zero or negative, not whole, or beyond 2^53.
func ParseTokens(s string) (Tokens, error) {
	v, err := parse(s, map[string]float64{"": 1, "k": 1 << 10, "K": 1 << 10, "m": 1 << 20, "M": 1 << 20})
	if err != nil {
		return 0, fmt.Errorf("%q: want a number of tokens such as 8192, 256k or 1M: %w", s, err)
	}
	return Tokens(v), nil
}

// ParseBytes reads a size such as "512", "64KiB" or "1.5GiB"; decimal kB, MB
// and GB are 10^3, 10^6 and 10^9. A bare "k" is refused as ambiguous.
func ParseBytes(s string) (Bytes, error) {
	v, err := parse(s, map[string]float64{
		"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
		"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	})
	if err != nil {
		return 0, fmt.Errorf("%q: want a size such as 64KiB, 512MiB or 80GiB: %w", s, err)
	}
	return Bytes(v), nil
}

// ParseRate reads a bandwidth such as "25GB/s", or "200Gb/s" as network cards are named:
// B is a byte and b a bit. Prefixes are decimal, those with an i binary.
//
// Errors: no unit a second, not a number, zero or negative.
func ParseRate(s string) (BytesPerS, error) {
	v, err := parsePositive(s, map[string]float64{
		"B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
		"KiB/s": 1 << 10, "MiB/s": 1 << 20, "GiB/s": 1 << 30, "TiB/s": 1 << 40,
		"Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8, "Tb/s": 1e12 / 8,
	})
	if err != nil {
		return 0, fmt.Errorf("%q: want a rate such as 25GB/s (bytes) or 200Gb/s (bits): %w", s, err)
	}
	return BytesPerS(v), nil
}

// parse reads a positive whole number with a suffix.
func parse(s string, suffixes map[string]float64) (float64, error) {
	v, err := parsePositive(s, suffixes)
	if err == nil && (v != math.Trunc(v) || v > 1<<53) {
		return 0, fmt.Errorf("must come out as a whole number up to 2^53")
	}
	return v, err
}

// leadingNumber is what a quantity begins with, before its unit.
var leadingNumber = regexp.MustCompile(`^[-+]?(?:[0-9._]*(?:[eE][-+]?[0-9]+)?|(?i:nan|inf(?:inity)?))`)

func parsePositive(s string, suffixes map[string]float64) (float64, error) {
	digits := strings.TrimRight(s, "BKMGTkmgtibs/ ")
	factor, ok := suffixes[strings.TrimSpace(s[len(digits):])]
	if !ok { // the unit as it was written: letters that no unit has are cut off above
		return 0, fmt.Errorf("unknown unit %q", strings.TrimSpace(s[len(leadingNumber.FindString(s)):]))
	}
	v, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no number", digits)
	case math.IsNaN(v) || math.IsInf(v, 0) || math.IsInf(v*factor, 0):
		return 0, fmt.Errorf("%q is not finite", digits)
	case v <= 0:
		return 0, fmt.Errorf("must be positive")
	}
	return v * factor, nil
}
