package fit

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
)

// StudyBand is the coverage of our law's 90 % interval on the held-out points of one band
// of sizes.
type StudyBand struct {
	Band     string  `json:"band"`
	Held     int     `json:"held"`
	Coverage float64 `json:"coverage"`
}

// bandsStudied divides held-out points by their bands of sizes, from small to large.
func bandsStudied(law *costmodel.Law, test []Point) []StudyBand {
	byBand := map[string][]Point{}
	for _, p := range test {
		b := BandOf(p.Shape)
		byBand[b] = append(byBand[b], p)
	}
	var bands []StudyBand
	for _, b := range BandsOf(law.Op) {
		if points := byBand[b.Name]; len(points) > 0 {
			bands = append(bands, StudyBand{Band: b.Name, Held: len(points), Coverage: coverage(law, points)})
		}
	}
	return slices.Clip(bands)
}
