# Everything a person or CI runs. `make help` lists the targets.
#
# Nothing here needs a GPU or a network beyond the Go module proxy. The tests of
# the torch backend need torch and Slurm: as root on Debian they install them.

GO      ?= go
TOOL     = $(GO) tool -modfile=tools/go.mod
BIN      = bin/evenkeel
DEMO    ?= demo
BUDGET  ?= 75s
FUZZTIME ?= 10s
# Properties are tried on the same drawn cases at every run of the tests, so that
# a change is judged and not its luck; `make fuzz` draws new ones, and more.
export RAPID_SEED ?= 1
# A package's tests may take so long on a busy machine; go's own 10 minutes are
# nearly used up by some on a quiet one with two cores.
TIMEOUT ?= 40m

# Tests that run real torch workers, and Slurm. They wait for processes, timers and each
# other about half of their time, so their packages run beside the Python tests. Not beside both
# halves of these: on two slow cores none gains time by it, and deadlines of some pass.
TORCH    = '^TestTorch'
# What judges the times it measured has the machine to itself.
ALONE    = '^TestTorchCalibrateFitCheck$$'

# Packages that start goroutines, or whose tests do (benchmarks are not run): elsewhere
# the race detector has nothing to find, and takes minutes over it.
RACE     = $$(grep -rlE --include='*.go' --exclude='*bench_test.go' '(^|[[:space:]])go (func|[A-Za-z_.]+)\(|\.Go\(' . | xargs -n1 dirname | sort -u)

# The solver's WebAssembly is compiled within the tests. That compiler's passes are not
# ours, and watched as well they take four times as long as all tests of the engine.
WASM     = github.com/tetratelabs/wazero/internal/engine/wazevo
UNRACED  = $(foreach p,ssa frontend backend/...,-gcflags=$(WASM)/$(p)=-race=false)

# Tests have memory to spare: garbage is collected when there is four times as much as what is in
# use, which takes a tenth to a quarter from the time of those that allocate. What is measured or shown to
# last long (demo, bench, evidence) runs as it does for everybody.
TESTS    = test quick test-torch test-torch-alone test-torch-others race lint fuzz
$(TESTS): export GOGC ?= 400

# A program under the race detector lets what it left running go on before it ends, for a second
# unless told otherwise; the stories of cmd/evenkeel start some hundred.
$(TESTS): export GORACE ?= atexit_sleep_ms=50

.PHONY: help build demo quick test torch test-torch test-torch-alone test-torch-others test-python test-python-ars test-python-others gpu-binaries race lint lint-scripts fuzz bench evidence clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

build: ## build bin/evenkeel
	$(GO) build -o $(BIN) ./cmd/evenkeel

demo: build ## calibrate this machine, fit, plan on its unequal device types, check, plot (under 4 minutes)
	DEMO=$(DEMO) BUDGET=$(BUDGET) BIN=$(BIN) bash docs/demo.sh

quick: lint ## for between two edits: lint, and go test -short without torch and Slurm
	$(GO) test -vet=off -short -timeout $(TIMEOUT) -skip $(TORCH) ./...

# What go test vets by itself, lint has vetted already.
test: lint ## everything that CI runs
	CGO_ENABLED=0 $(GO) build ./...
	$(GO) test -vet=off -race $(UNRACED) -short -timeout $(TIMEOUT) -skip $(TORCH) $(RACE)
	$(GO) test -vet=off -timeout $(TIMEOUT) -skip $(TORCH) ./...
	@if [ "$$CI" = true ] || bash docs/torch.sh; then $(MAKE) test-torch-alone && $(MAKE) -j2 test-torch-others test-python; \
	else echo "SKIPPED: the tests of the torch backend, of Slurm and of the Python package (see above); make test-torch test-python runs them"; fi

torch: # once for both, since only one may install at a time
	bash docs/torch.sh

test-torch: ## the torch backend on real torch workers and a Slurm of four nodes; installs them (Debian, root)
	$(MAKE) test-torch-alone
	$(MAKE) test-torch-others

test-torch-alone: torch
	EVENKEEL_NEED_TORCH=1 $(GO) test -count 1 -timeout $(TIMEOUT) -run $(ALONE) -v ./cmd/evenkeel

test-torch-others: torch
	EVENKEEL_NEED_TORCH=1 $(GO) test -count 1 -timeout $(TIMEOUT) -run $(TORCH) -skip $(ALONE) -v ./profile/backend/torch ./cmd/evenkeel

# Halves of the modules, by their names, take about as long. Each waits for its ranks half of its time.
test-python: test-python-ars test-python-others ## the Python package on real gloo ranks; installs torch (Debian, root)

test-python-ars:    MODULES = test_[ars]*.py
test-python-others: MODULES = test_[!ars]*.py
test-python-ars test-python-others: torch
	@for p in "$$EVENKEEL_PYTHON" python3 /usr/bin/python3; do \
	  if [ -n "$$p" ] && "$$p" -I -c 'import torch' 2>/dev/null; then exec "$$p" -B -m unittest discover -s python/tests -p '$(MODULES)'; fi; \
	done; echo "no Python with torch was found; name one with EVENKEEL_PYTHON"; exit 1

gpu-binaries: ## what docs/gpu.sh runs on a machine with a GPU and perhaps without Go
	$(GO) build -ldflags '-extldflags=-Wl,-z,lazy' -o $(BIN) ./cmd/evenkeel
	$(GO) test -c -ldflags '-extldflags=-Wl,-z,lazy' -o bin/torch.test ./profile/backend/torch

race: ## all tests under the race detector
	$(GO) test -race $(UNRACED) -timeout $(TIMEOUT) ./...

lint: lint-scripts ## formatting, vet, staticcheck; of scripts what lint-scripts does
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
	if [ -n "$$out" ]; then echo "gofumpt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

# Debian 12 has all three: mypy 1.0 (with torch 1.13), python3-pyflakes, shellcheck. What a Python with
# torch or a machine lacks is said, and no reason to fail.
lint-scripts: ## mypy, pyflakes and shellcheck, where they are there
	@for tool in mypy pyflakes; do ran=; \
	  for p in "$$EVENKEEL_PYTHON" python3 /usr/bin/python3; do \
	    if [ -z "$$ran" ] && [ -n "$$p" ] && "$$p" -c "import torch, $$tool" 2>/dev/null; then \
	      ran=yes; echo "$$p -m $$tool"; \
	      case $$tool in mypy) (cd python && "$$p" -m mypy);; *) "$$p" -m pyflakes python;; esac || exit 1; \
	    fi; \
	  done; \
	  [ -n "$$ran" ] || echo "SKIPPED: no Python with torch and $$tool was found"; \
	done
	@if command -v shellcheck >/dev/null; then echo shellcheck; shellcheck -x -P SCRIPTDIR -S warning .ci/run docs/*.sh docs/slurm/*.sh; \
	else echo "SKIPPED: shellcheck was not found"; fi

fuzz: ## try every property on new cases, then fuzz every reader for FUZZTIME each (default 10s)
	@set -e; for d in $$(grep -rl --include='*_test.go' 'rapid\.Check' . | xargs -n1 dirname | sort -u); do \
	  names=$$(awk '/^func Test/ {n = $$2; sub(/\(.*/, "", n)} /rapid\.Check/ {print n}' $$d/*_test.go | sort -u | paste -sd'|'); \
	  echo "== $$d $$names"; \
	  RAPID_SEED=0 RAPID_CHECKS=2000 $(GO) test -count 1 -timeout $(TIMEOUT) -run "^($$names)\$$" $$d; \
	done
	@set -e; for f in $$(grep -rl --include='*_test.go' '^func Fuzz' . | sort); do \
	  for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$f); do \
	    echo "== $$(dirname $$f) $$name"; \
	    $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) $$(dirname $$f); \
	  done; done

bench: ## run the benchmarks behind results/evidence/bench
	$(GO) test -run '^$$' -bench . -benchmem -count 6 ./... | tee bench.txt
	$(TOOL) benchstat bench.txt

evidence: build ## measure again what results/evidence states about this machine
	bash docs/evidence.sh

clean: ## remove what was built
	rm -rf bin demo bench.txt
