package torch

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// proto is the version of the protocol with the worker.
const proto = 1

// maxFrame is the longest line either side accepts.
const maxFrame = 1 << 20

// request is a line to a worker; which fields it has depends on T.
type request struct {
	T       string         `json:"t"`
	ID      int            `json:"id"`
	Proto   int            `json:"proto,omitzero"`  // hello
	On      string         `json:"device,omitzero"` // hello: "cpu" or "cuda:0"
	Cores   int            `json:"threads,omitzero"`
	Own     []int          `json:"own_cores,omitempty"` // hello: see slot.own
	SMs     int            `json:"sms,omitzero"`        // hello: see slot.sms
	Sharing int            `json:"sharing,omitzero"`
	Op      op.Kind        `json:"op,omitzero"` // prepare, verify
	Shape   jsontext.Value `json:"shape,omitzero"`
	Seed    uint64         `json:"seed,omitzero"`
	Group   string         `json:"group,omitzero"`
	Cuts    []int          `json:"cuts,omitzero"`  // verify
	Inner   int            `json:"inner,omitzero"` // run
	N       int            `json:"n,omitzero"`
	Host    string         `json:"host,omitzero"` // serve, join, relay
	Port    int            `json:"port"`          // 0: any free one
	Rank    int            `json:"rank"`          // join
	Size    int            `json:"size,omitzero"`
	Comm    string         `json:"comm,omitzero"`
	Limit   int            `json:"timeout_s,omitzero"`

	Groups map[string][]int `json:"groups,omitzero"`
	Task   int              `json:"task"` // relay: who this is; to: for whom
	Tasks  int              `json:"tasks,omitzero"`
	Serve  bool             `json:"serve,omitzero"`
	Job    string           `json:"job,omitzero"`  // relay: tells apart the starts of one job
	Body   string           `json:"body,omitzero"` // to
}

// frame is a line from a worker; which fields it has depends on T. Unknown
// fields are ignored, so that a newer worker can say more.
type frame struct {
	T     string `json:"t"`
	ID    int    `json:"id"`
	Class string `json:"class"` // error
	Msg   string `json:"msg"`
	Fatal bool   `json:"fatal"`

	SamplesNS []int64             `json:"samples_ns"` // run
	WaitShare float64             `json:"wait_share"`
	PeakBytes units.Bytes         `json:"peak_bytes"`
	GPU       *gpuState           `json:"gpu"`
	SizeBytes units.Bytes         `json:"size_bytes"` // gauge
	Ratio     float64             `json:"ratio"`
	Errors    map[string]*float64 `json:"errors"`   // verify
	Port      int                 `json:"port"`     // serve, relay
	Warnings  []string            `json:"warnings"` // join
	Task      int                 `json:"task"`     // from
	Body      string              `json:"body"`

	greeting
}

// greeting is what a worker says of itself in answer to hello.
type greeting struct {
	Proto   int                `json:"proto"`
	Python  string             `json:"python"`
	Torch   string             `json:"torch"`
	CUDA    string             `json:"cuda"`
	HIP     string             `json:"hip"`
	CuDNN   string             `json:"cudnn"`
	NCCL    string             `json:"nccl"`
	Host    string             `json:"host"`
	Device  deviceFacts        `json:"device"`
	Kernels map[string]offer   `json:"kernels"`
	Ops     []op.Kind          `json:"ops"`
	Refused map[op.Kind]string `json:"refused"`
	Comm    map[string]offer   `json:"comm"`
	DTypes  []op.DType         `json:"dtypes"`
	NVML    bool               `json:"nvml"`
	NVMLWhy string             `json:"nvml_why"`
	Busy    []int              `json:"busy"`
}

// deviceFacts is the device a worker runs on.
type deviceFacts struct {
	Kind     string      `json:"kind"` // "cpu" or "cuda"
	Name     string      `json:"name"`
	UUID     string      `json:"uuid"`
	SM       [2]int      `json:"sm"`       // compute capability
	SMs      int         `json:"sms"`      // that this worker computes with
	CardSMs  int         `json:"card_sms"` // of the whole GPU
	L2Bytes  units.Bytes `json:"l2_bytes"`
	MemBytes units.Bytes `json:"mem_bytes"`
	MIG      string      `json:"mig"`
	Vectors  Vectors     `json:"vectors"` // of a processor
	Cores    []int       `json:"cores"`   // that a rank on a processor may run on
}

// offer is a kernel or a communication library of a worker, and why it is none.
type offer struct {
	OK      bool      `json:"ok"`
	Why     string    `json:"why"`
	Schema  string    `json:"schema"`
	Version string    `json:"version"`
	Ops     []op.Kind `json:"ops"`
	Grouped bool      `json:"grouped"` // whether an attention kernel takes fewer KV heads than query heads
}

func decodeFrame(line []byte) (frame, error) {
	var f frame
	if err := json.Unmarshal(line, &f); err != nil {
		return f, fmt.Errorf("its answer is no frame of the protocol: %.80q", line)
	}
	return f, nil
}

// err is the failure that a frame reports, if it does.
func (f frame) err() error {
	if f.T != "error" {
		return nil
	}
	e := &profile.OpError{Class: profile.Failed, Lost: f.Fatal, Err: fmt.Errorf("%s", f.Msg)}
	switch f.Class {
	case "oom":
		e.Class = profile.OutOfMemory
	case "unsupported":
		e.Class = profile.Unsupported
	case "wrong":
		e.Class = profile.Wrong
	case "throttled":
		e.Class = profile.Throttled
	case "cuda_fatal":
		e.Class, e.Lost = profile.Crashed, true
	default:
		if f.Fatal {
			e.Class = profile.Crashed
		}
	}
	return e
}
