// Package workload is the sequence lengths that a training run feeds to its
// planner: read from files, drawn from histograms and named distributions, cut
// into global batches, limited, padded and packed.
package workload
