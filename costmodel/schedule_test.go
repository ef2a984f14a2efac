package costmodel

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

// fieldsOf are schedules of which each has one field set, to every value that it can have.
func fieldsOf() (all []Schedule) {
	for i := range reflect.TypeFor[Schedule]().NumField() {
		var s Schedule
		switch f := reflect.ValueOf(&s).Elem().Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
			all = append(all, s)
		default:
			for k := 2; k <= MaxHeadChunks; k++ {
				f.SetInt(int64(k))
				all = append(all, s)
			}
		}
	}
	return all
}

// everySchedule is every one of bools and chunks, possible or not.
func everySchedule() []Schedule {
	all := []Schedule{{}}
	for _, x := range fieldsOf() {
		for _, s := range slices.Clone(all) {
			if x.HeadChunks > 0 && s.HeadChunks > 0 {
				continue
			}
			sum, add := reflect.ValueOf(&s).Elem(), reflect.ValueOf(x)
			for i := range sum.NumField() {
				if !add.Field(i).IsZero() {
					sum.Field(i).Set(add.Field(i))
				}
			}
			all = append(all, s)
		}
	}
	return all
}

// TestBitsTellSchedulesApart: of every two schedules the bits differ, a field that Bits
// forgot included.
func TestBitsTellSchedulesApart(t *testing.T) {
	of := map[uint64]Schedule{}
	for _, s := range everySchedule() {
		if other, known := of[s.Bits()]; known {
			t.Errorf("%+v and %+v are both %d", s, other, s.Bits())
		}
		of[s.Bits()] = s
	}
	if want := (1 << 5) * MaxHeadChunks; len(of) != want { // five bools, and chunks or none
		t.Errorf("%d schedules, want %d", len(of), want)
	}
	if (Schedule{}).Bits() != 0 {
		t.Error("the zero schedule has bits")
	}
}

// TestAmongLeavesWhatIsPossible: what Among leaves of a schedule is valid for so many groups
// but for chunks of heads beside two micro-batches, and of a schedule that is valid it
// leaves everything but an own block that has no others before it.
func TestAmongLeavesWhatIsPossible(t *testing.T) {
	for _, s := range everySchedule() {
		for groups := 1; groups <= 3; groups++ {
			x := s.Among(groups)
			if err := x.validate(groups); (err == nil) == (x.HeadChunks > 0 && x.TwoBatch) {
				t.Errorf("%+v among %d groups is %+v: %v", s, groups, x, err)
			}
			want := s
			want.OwnLast = s.OwnLast && groups > 1
			if s.validate(groups) == nil && x != want {
				t.Errorf("%+v is valid for %d groups, %+v is left", s, groups, x)
			}
		}
	}
}

// TestOneByOneLeavesTheRest: without pairs of micro-batches all else is as it was.
func TestOneByOneLeavesTheRest(t *testing.T) {
	for _, s := range everySchedule() {
		x := s.OneByOne()
		if x.TwoBatch || x.InTurns() != "" {
			t.Errorf("%+v one by one is %+v", s, x)
		}
		if x.TwoBatch, x.WeaveForward, x.WeaveBackward = s.TwoBatch, s.WeaveForward, s.WeaveBackward; x != s {
			t.Errorf("%+v became %+v", s, x)
		}
	}
}

// TestAScheduleIsWrittenAmongTheKeysOfItsLayout: plans and recordings have these keys, and
// the zero schedule none.
func TestAScheduleIsWrittenAmongTheKeysOfItsLayout(t *testing.T) {
	for want, s := range map[string]Schedule{
		`{"shards":[],"groups":[]}`: {},
		`{"shards":[],"groups":[],"own_last":true,"keep_tail":true,"head_chunks":3,"two_batch_overlap":true,"weave_forward":true,"weave_backward":true}`: {
			OwnLast: true, KeepTail: true, HeadChunks: 3, TwoBatch: true, WeaveForward: true, WeaveBackward: true,
		},
	} {
		got, err := json.Marshal(Layout{Shards: []Shard{}, Groups: []Group{}, Schedule: s})
		if err != nil || string(got) != want {
			t.Errorf("%s: %v, want %s", got, err, want)
		}
	}
}
