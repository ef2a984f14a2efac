// Package serve plans batches of unequal sequences for a training loop that runs
// beside it: lengths of coming batches are submitted ahead, plans are fetched by
// step. It speaks HTTP with JSON; openapi.yaml describes it.
//
// A submission that was acknowledged is planned, whatever other clients do. With a
// journal that holds across a crash: see journal.go.
package serve
