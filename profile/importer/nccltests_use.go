package importer

import (
	"errors"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Why a row, or one of its halves, is not used.
var (
	errWrong     = errors.New("the tool found the result wrong")
	errLaunch    = errors.New("the time is that of the launch (-C 1), and the bandwidth is printed too coarsely to tell the other")
	errDisagree  = errors.New("size/time is not the printed bandwidth")
	errFactor    = errors.New("busbw/algbw is not that of the number of ranks")
	errPeak      = errors.New("faster than the links' peak")
	errNoTime    = errors.New("the time is no positive number below a day")
	errInPlace   = errors.New("only in-place times, which leave out the copy of a rank's own part")
	errSizeZero  = errors.New("size 0: nothing is exchanged")
	errElement   = errors.New("unknown element type")
	errParts     = errors.New("size is not count x ranks elements")
	errOperator  = errors.New("reduced by another operator than sum, which plans reduce by; measure with -o sum")
	errNotChosen = errors.New("no time")
)

// inPlaceNote says what became of the in-place halves.
const inPlaceNote = "times are out-of-place, as planners need them; in-place ones are used of all_reduce alone, where they do the same work"

// ncclRow hands a row to the sink, or says why not.
//
// In-place operations of all_gather, reduce_scatter, alltoall and sendrecv do
// less or other work than those that planners ask for: they do not copy the own
// part (15 to 20 % on B200), or mean nothing. Only an all_reduce does the same
// both ways, and its halves are two samples of the point.
func (s *Sink) ncclRow(p *ncclPlan, r *ncclRow) {
	d := ncclElement(r.dtype)
	switch {
	case r.bad != "":
		s.Drop(r.where, r.bad)
	case r.size == 0 || r.count == 0:
		s.Drop(r.where, errSizeZero.Error())
	case p.drop != "":
		s.Drop(r.where, p.drop)
	case d == "":
		s.Drop(r.where, errElement.Error())
	case r.parts() != p.wantParts():
		s.Flag(r.where, fmt.Sprintf("size %d is %g x %d elements of %s: want %g", r.size, r.parts(), r.count, r.dtype, p.wantParts()))
		s.Drop(r.where, errParts.Error())
	case p.kind.reduces() && !r.sums():
		s.Drop(r.where+": "+r.redop, errOperator.Error())
	default:
		s.ncclPoint(p, r, d)
	}
}

// wantParts is what size/(count e) must be.
func (p *ncclPlan) wantParts() float64 {
	if p.kind.parts {
		return float64(p.n)
	}
	return 1
}

func (s *Sink) ncclPoint(p *ncclPlan, r *ncclRow, d op.DType) {
	halves := []*ncclHalf{r.outOfPlace}
	if p.kind.kind == op.KindAllReduce {
		halves = r.halves()
	}
	var seconds []float64
	why := errNotChosen
	for _, h := range halves {
		if h == nil {
			why = errInPlace
			continue
		}
		t, err := p.seconds(h, r.size, d)
		if err != nil {
			why = err
			if err != errLaunch {
				s.Flag(r.where, p.complaint(err, h, r.size))
			}
			continue
		}
		seconds = append(seconds, t)
	}
	if len(seconds) == 0 {
		s.Drop(r.where, why.Error())
		return
	}
	if !p.used {
		p.used = true
		if p.kind.kind != op.KindAllReduce && r.inPlace != nil {
			s.Note(inPlaceNote)
		}
		for _, d := range p.place.devices {
			s.Device(d)
		}
		s.Group(p.place.group)
	}
	s.Point(r.where, p.place.group.Name, op.OfMessage(p.kind.kind, op.Message{Group: p.n, Bytes: units.Bytes(r.size), DType: d}), seconds...)
}

const (
	// rateSlack is how far size/time and algbw lie apart beyond their rounding
	// (formats 1.3: 0.4 % on all recordings).
	rateSlack = 0.004
	// launchSlack is how coarse a bandwidth may be to give a time.
	launchSlack = 0.005
)

// seconds is the time of a half, or why it is not used.
func (p *ncclPlan) seconds(h *ncclHalf, size int64, d op.DType) (float64, error) {
	if h.isWrong(d) {
		return 0, errWrong
	}
	t := h.time.value
	size, factor := p.bandwidths(size)
	if h.cpu {
		if !(h.alg.half <= launchSlack*h.alg.value) {
			return 0, errLaunch
		}
		t = float64(size) / h.alg.value
	}
	switch {
	case !(t > 0 && t < longestCall):
		return 0, errNoTime
	case !h.cpu && !h.agrees(size, rateSlack):
		return 0, errDisagree
	case !h.carries(factor, rateSlack):
		return 0, errFactor
	case p.place.peak > 0 && h.bus.value-h.bus.half > op.PeakSlack*p.place.peak:
		return 0, errPeak
	}
	return t, nil
}

// bandwidths are the bytes that algbw is of, and what busbw is times algbw.
func (p *ncclPlan) bandwidths(size int64) (bytes int64, factor float64) {
	if p.moved {
		return size - size/int64(p.n), 1
	}
	return size, p.kind.wire(float64(p.n))
}

// moved says whether the table is of nccl-tests from before June 2020 (its #45), whose
// all_gather and reduce_scatter took both bandwidths of what a rank sends.
func (e *ncclEvidence) moved(k ncclKind, n int) bool {
	ratio, ok := e.ratio.best()
	switch k.kind {
	case op.KindAllGather, op.KindReduceScatter:
		return ok && ratio.holds(1) && !ratio.holds(k.wire(float64(n)))
	}
	return false
}

// complaint says what contradicts what.
func (p *ncclPlan) complaint(err error, h *ncclHalf, size int64) string {
	size, factor := p.bandwidths(size)
	switch err {
	case errWrong:
		return fmt.Sprintf("a wrong result (error %g); the time is left out", h.errors)
	case errDisagree:
		return fmt.Sprintf("%d bytes in %.6g us are %.6g GB/s, but algbw says %.6g; is the time in another unit?", size, h.time.value*1e6, float64(size)/h.time.value/1e9, h.alg.value/1e9)
	case errNoTime:
		return fmt.Sprintf("%d bytes in %.6g us, which is no time; it is left out", size, h.time.value*1e6)
	case errFactor:
		return fmt.Sprintf("busbw %.6g GB/s is not %.6g times algbw %.6g, as %s over %d ranks has it", h.bus.value/1e9, factor, h.alg.value/1e9, p.kind.name, p.n)
	}
	return fmt.Sprintf("busbw %.6g GB/s is above the peak of %.6g of %s; if the ranks talk over something else, name it with --link", h.bus.value/1e9, p.place.peak/1e9, p.place.group.Name)
}
