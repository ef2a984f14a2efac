//go:build !linux

package milp

import "time"

// threadSpent is the time on the wall: no clock here is of a thread alone and can be
// read by others.
func threadSpent() (spent func() time.Duration, release func()) { return wallSpent(), func() {} }
