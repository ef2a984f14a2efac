package units

import (
	"math"
	"testing"
)

func TestStringsScaleWhenPrinted(t *testing.T) {
	for _, c := range []struct {
		got  interface{ String() string }
		want string
	}{
		{Seconds(0), "0 s"},
		{Seconds(2e-12), "2 ps"},
		{Seconds(1.234e-6), "1.23 us"},
		{Seconds(0.0123), "12.3 ms"},
		{Seconds(3.42), "3.42 s"},
		{Seconds(599), "599 s"},
		{Seconds(900), "15 min"},
		{Seconds(36000), "10 h"},
		{Seconds(math.Inf(1)), "+Inf s"},
		{Bytes(64 * KiB), "64 KiB"},
		{Bytes(1), "1 B"},
		{Bytes(1536 * MiB), "1.50 GiB"},
		{Bytes(math.MaxInt64), "8192 PiB or more"},
		{Tokens(262144), "256k"},
		{Tokens(1 << 20), "1M"},
		{Tokens(1000), "1000"},
		{FLOPs(1.2e9), "1.20 GFLOP"},
		{FLOPsPerS(989e12), "989 TFLOP/s"},
		{BytesPerS(450e9), "450 GB/s"},
	} {
		if got := c.got.String(); got != c.want {
			t.Errorf("%T: got %q, want %q", c.got, got, c.want)
		}
	}
}

// A size that wrapped around would look like any other; the largest looks like none.
func TestSizesEndAtTheLargest(t *testing.T) {
	for n, want := range map[float64]Bytes{0: 0, 0.9: 0, 1 << 53: 1 << 53, 1 << 62: 1 << 62, 1 << 63: math.MaxInt64, 1e300: math.MaxInt64, math.Inf(1): math.MaxInt64} {
		if got := BytesOf(n); got != want {
			t.Errorf("%g: %d, want %d", n, int64(got), int64(want))
		}
	}
	const most = Bytes(math.MaxInt64)
	for _, c := range []struct{ a, b, sum Bytes }{{1, 2, 3}, {-3, 2, -1}, {most, 0, most}, {most - 1, 1, most}, {most, 1, most}, {1, most, most}, {most, most, most}, {most, -1, most - 1}} {
		if got := c.a.Plus(c.b); got != c.sum {
			t.Errorf("%d + %d: %d, want %d", int64(c.a), int64(c.b), int64(got), int64(c.sum))
		}
	}
	for _, c := range []struct {
		n       Bytes
		k       int64
		product Bytes
	}{{3, 4, 12}, {0, 5, 0}, {5, 0, 0}, {-3, 4, -12}, {1 << 31, 1 << 31, 1 << 62}, {1 << 32, 1 << 31, most}, {1 << 40, 1 << 40, most}, {most, 1, most}, {1, math.MaxInt64, most}, {7, math.MaxInt64 / 7, 7 * (most / 7)}, {7, math.MaxInt64/7 + 1, most}} {
		if got := c.n.Times(c.k); got != c.product {
			t.Errorf("%d * %d: %d, want %d", int64(c.n), c.k, int64(got), int64(c.product))
		}
	}
}

func TestParseTokens(t *testing.T) {
	for s, want := range map[string]Tokens{"8192": 8192, "256k": 262144, "1.5k": 1536, "1M": 1 << 20, "128K": 131072} {
		if got, err := ParseTokens(s); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", s, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"":       `"": want a number of tokens such as 8192, 256k or 1M: "" is no number`,
		"-1":     `"-1": want a number of tokens such as 8192, 256k or 1M: must be positive`,
		"0":      `"0": want a number of tokens such as 8192, 256k or 1M: must be positive`,
		"NaN":    `"NaN": want a number of tokens such as 8192, 256k or 1M: "NaN" is not finite`,
		"1.0001": `"1.0001": want a number of tokens such as 8192, 256k or 1M: must come out as a whole number up to 2^53`,
		"1e300":  `"1e300": want a number of tokens such as 8192, 256k or 1M: must come out as a whole number up to 2^53`,
		"5GiB":   `"5GiB": want a number of tokens such as 8192, 256k or 1M: unknown unit "GiB"`,
	} {
		if _, err := ParseTokens(s); err == nil || err.Error() != want {
			t.Errorf("%q: got %v\nwant %s", s, err, want)
		}
	}
}

func TestParseRateTellsBitsFromBytes(t *testing.T) {
	for s, want := range map[string]BytesPerS{"25GB/s": 25e9, "200Gb/s": 25e9, "1.5 TB/s": 1.5e12, "1GiB/s": 1 << 30, "100Mb/s": 12.5e6, "0.7 B/s": 0.7} {
		if got, err := ParseRate(s); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"25GB":      `"25GB": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): unknown unit "GB"`,
		"200Gbps":   `"200Gbps": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): unknown unit "Gbps"`,
		"25GB/s=3":  `"25GB/s=3": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): unknown unit "GB/s=3"`,
		"25 Gbit/s": `"25 Gbit/s": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): unknown unit "Gbit/s"`,
		"25e9":      `"25e9": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): unknown unit ""`,
		"1e308TB/s": `"1e308TB/s": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): "1e308" is not finite`,
		"-1GB/s":    `"-1GB/s": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): must be positive`,
		"":          `"": want a rate such as 25GB/s (bytes) or 200Gb/s (bits): unknown unit ""`,
	} {
		if _, err := ParseRate(s); err == nil || err.Error() != want {
			t.Errorf("ParseRate(%q): %v, want %s", s, err, want)
		}
	}
}

func TestParseBytesKeepsDecimalAndBinaryApart(t *testing.T) {
	for s, want := range map[string]Bytes{"512": 512, "64KiB": 65536, "64 KiB": 65536, "1GB": 1e9, "1.5GiB": 3 << 29} {
		if got, err := ParseBytes(s); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", s, got, err, want)
		}
	}
	if _, err := ParseBytes("64k"); err == nil {
		t.Error("64k is ambiguous and must be refused")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"256k", "1e9", "-3", "64KiB", "0x1p3k", "é", "200Gb/s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseTokens(s); err == nil && v <= 0 {
			t.Errorf("ParseTokens(%q) = %d", s, v)
		}
		if v, err := ParseRate(s); err == nil && !(v > 0 && !math.IsInf(float64(v), 0)) {
			t.Errorf("ParseRate(%q) = %v", s, v)
		}
		if v, err := ParseBytes(s); err == nil && v <= 0 {
			t.Errorf("ParseBytes(%q) = %d", s, v)
		}
	})
}

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 laws": Count(0, "law"), "1 law": Count(1, "law"), "3 laws": Count(3, "law"), "2 batches": Count(2, "batch"), "1 token": Count(Tokens(1), "token"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
