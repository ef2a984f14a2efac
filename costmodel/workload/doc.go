// Package workload holds the sequence lengths of training batches: it reads them from
// files, draws them from histograms and named distributions, cuts them into global
// batches, and limits, pads and packs them.
//
// [Read] reads a [Sample] of lengths, or a [Histogram] of them, from text, CSV, JSON,
// JSON lines or Parquet. [ParseDistribution] makes lengths without a file. [Shape] drops,
// truncates and pads lengths, [Batch] cuts global batches out of them, and [Pack] packs
// sequences into buffers.
package workload
