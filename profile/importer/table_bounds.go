package importer

import (
	"math"
	"strconv"
)

// contradictoryRow is the reason to leave out a row that says one fact in two ways.
const contradictoryRow = "a row that contradicts itself"

// timeBeside names the column of a time and those that say more of the same calls, in the
// same unit; a table need not have them.
type timeBeside struct{ time, least, most, mean string }

// vidurTime is the column of an op's times in Vidur's tables.
func vidurTime(name string) timeBeside {
	at := "time_stats." + name
	return timeBeside{at + ".median", at + ".min", at + ".max", at + ".mean"}
}

// boundSlack is what rounding may put between a time and its bounds: a source prints all
// alike, but one of them may have been shortened to three digits.
const boundSlack = 0.01

// ordered refuses a row whose time or mean lies outside its own least and most: one of them
// is of other calls or in another unit. A cell that is no number says nothing.
func (r *tableRow) ordered() {
	b := r.t.beside
	for _, pair := range [][2]string{{b.least, b.most}, {b.least, b.time}, {b.time, b.most}, {b.least, b.mean}, {b.mean, b.most}} {
		low, okLow := r.number(pair[0])
		high, okHigh := r.number(pair[1])
		if r.fault == "" && okLow && okHigh && low > high*(1+boundSlack) {
			what := pair[0] + " " + quoted(r.text(pair[0])) + " is more than " + pair[1] + " " + quoted(r.text(pair[1]))
			r.t.Flag(r.where, what+": the row is left out; correct it, or leave out the column that is wrong")
			r.fail(contradictoryRow, what)
		}
	}
}

// number is a cell that may hold a number.
func (r *tableRow) number(column string) (v float64, ok bool) {
	v, err := strconv.ParseFloat(r.text(column), 64)
	return v, err == nil && !math.IsNaN(v)
}
