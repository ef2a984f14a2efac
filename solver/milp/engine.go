package milp

import (
	"context"
	_ "embed"
	"fmt"
	goruntime "runtime"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// highsWasm is HiGHS 1.15 as compiled for npm's package highs; see README.md.
//
//go:embed highs.wasm
var highsWasm []byte

// engine is the compiled module. It is the same for all and lives as long as the
// process.
type engine struct {
	runtime wazero.Runtime
	module  wazero.CompiledModule
}

// compiled compiles the module once; nothing changes it afterwards.
var compiled = sync.OnceValues(func() (*engine, error) { return compile(context.Background()) })

func compile(ctx context.Context) (*engine, error) {
	// Compiled in, the checks of WithCloseOnContextDone make a search take four times
	// as long; the module's clock ends it instead (see clock).
	runtime := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithMemoryLimitPages(mostPages))
	ctx = experimental.WithCompilationWorkers(ctx, goruntime.GOMAXPROCS(0))
	module, err := runtime.CompileModule(ctx, highsWasm)
	if err != nil {
		return nil, fmt.Errorf("highs.wasm: %w", err)
	}
	host := runtime.NewHostModuleBuilder(importModule)
	functions := hostFunctions()
	for letter, name := range importNames {
		f, known := functions[name]
		if !known {
			return nil, fmt.Errorf("highs.wasm: imports %s, which is not known here", name)
		}
		host.NewFunctionBuilder().WithGoModuleFunction(f.run, f.params, f.results).Export(letter)
	}
	if _, err := host.Instantiate(ctx); err != nil {
		return nil, fmt.Errorf("highs.wasm: imports: %w", err)
	}
	return &engine{runtime, module}, nil
}

// instance is one copy of the module, with its own memory, for one model.
type instance struct {
	ctx    context.Context
	module api.Module
	model  uint64 // address of the engine's object
	err    error  // of the first call that failed; the later ones do nothing
}

// start makes an instance whose calls run under ctx.
func (e *engine) start(ctx context.Context) (*instance, error) {
	module, err := e.runtime.InstantiateModule(ctx, e.module, wazero.NewModuleConfig().WithName("").WithStartFunctions(exportNames["constructors"]))
	if err != nil {
		return nil, fmt.Errorf("highs.wasm: %w", err)
	}
	return &instance{ctx: ctx, module: module}, nil
}

// call runs an export.
func (in *instance) call(name string, args ...uint64) uint64 {
	if in.err != nil {
		return 0
	}
	results, err := in.module.ExportedFunction(exportNames[name]).Call(in.ctx, args...)
	if err != nil {
		in.err = fmt.Errorf("%s: %w", name, err)
		return 0
	}
	if len(results) == 0 {
		return 0
	}
	return results[0]
}

// do runs an export that returns HiGHS' status: -1 error, 0 done, 1 warning.
func (in *instance) do(name string, args ...uint64) {
	if status := api.DecodeI32(in.call(name, args...)); status < 0 && in.err == nil {
		in.err = fmt.Errorf("%s: the engine refuses", name)
	}
}

// alloc reserves memory inside the instance.
func (in *instance) alloc(bytes int) uint64 {
	p := in.call("malloc", uint64(max(bytes, 1)))
	if p == 0 && in.err == nil {
		in.err = fmt.Errorf("the engine has no memory left for %d bytes", bytes)
	}
	return p
}

// put copies bytes into the instance.
func (in *instance) put(data []byte) uint64 {
	p := in.alloc(len(data))
	if in.err == nil && !in.module.Memory().Write(uint32(p), data) {
		in.err = fmt.Errorf("%d bytes at %d: outside of the engine's memory", len(data), p)
	}
	return p
}

// text copies a string, ended by zero as in C.
func (in *instance) text(s string) uint64 { return in.put(append([]byte(s), 0)) }

// read copies bytes out of the instance.
func (in *instance) read(p uint64, n int) []byte {
	if in.err != nil {
		return make([]byte, n)
	}
	data, ok := in.module.Memory().Read(uint32(p), uint32(n))
	if !ok {
		in.err = fmt.Errorf("%d bytes at %d: outside of the engine's memory", n, p)
		return make([]byte, n)
	}
	return data
}
