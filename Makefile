# One way to run everything: "make help" lists it, CI runs "make ci".

GO       ?= go
FUZZTIME ?= 30s
PKGS     := ./...
BIN      := bin

.DEFAULT_GOAL := help

# The programs are static. A build with other settings, such as that for the race detector,
# compiles all packages once more, which takes minutes.
export CGO_ENABLED := 0

# Where Go is missing or too old, the targets that need it put one into the user's cache first.
CACHE  := $(or $(DXPU_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dxpu)
GO_BIN := $(shell scripts/install-go.sh --check 2>/dev/null || echo $(CACHE)/go/usr/lib/go-1.26/bin)
ifneq (,$(GO_BIN))
export PATH := $(GO_BIN):$(PATH)
build clients test lint prose generate fuzz bench torture mutations tidy-diff: | go
endif

include hook/Makefile icd/Makefile deploy/kubernetes/Makefile
.PHONY: help go build install release package-test arm64-test clients vm browser tools test demo lint prose generate fuzz bench soak soak-short torture mutations ci tidy-diff generate-diff clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/dxpu, static, and bin/dxpu-opencl, which loads libOpenCL
	$(GO) build -o $(BIN)/dxpu ./cmd/dxpu
	$(GO) build -o $(BIN)/dxpu-opencl ./cmd/dxpu-opencl

install: build ## Put the program, its completions and the systemd units under DESTDIR
	install -D -m 0755 -t $(DESTDIR)/usr/bin $(BIN)/dxpu $(BIN)/dxpu-opencl
	install -D -m 0644 -t $(DESTDIR)/usr/lib/systemd/system deploy/systemd/*.service
	install -D -m 0644 -t $(DESTDIR)/usr/lib/sysctl.d deploy/sysctl.d/*.conf
	$(BIN)/dxpu docs man $(DESTDIR)/usr/share/man/man1
	install -d $(DESTDIR)/usr/share/bash-completion/completions $(DESTDIR)/usr/share/zsh/vendor-completions $(DESTDIR)/usr/share/fish/vendor_completions.d
	$(BIN)/dxpu completion bash >$(DESTDIR)/usr/share/bash-completion/completions/dxpu
	$(BIN)/dxpu completion zsh >$(DESTDIR)/usr/share/zsh/vendor-completions/_dxpu
	$(BIN)/dxpu completion fish >$(DESTDIR)/usr/share/fish/vendor_completions.d/dxpu.fish

release: ## Make the files of a release in dist: binaries, Debian packages, OCI image, checksums
	scripts/release.sh dist

package-test: ## Install the packages in dist on three machines in namespaces, as docs/install.md says (as root)
	scripts/package-test.sh dist

arm64-test: ## Run the arm64 build under qemu-user: a pool of its processes, and a GPU that is used
	scripts/arm64-test.sh

clients: ## Build the client commands for macOS and Windows
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/dxpu
	GOOS=windows $(GO) build -o /dev/null ./cmd/dxpu

go: ## Put Go 1.26 into the user's cache, once, where the machine has no Go 1.21 or newer
	@scripts/install-go.sh >/dev/null

vm: ## Put QEMU, a guest, and back ends of virtio devices into the user's cache, once
	@scripts/install-vm.sh
	@scripts/install-vhost-user.sh >/dev/null || [ $$? -eq 3 ]

browser: ## Install Chromium for the tests of the web page, once: by apt, as root
	@scripts/install-chromium.sh >/dev/null || [ $$? -eq 3 ]

tools: ## Install what tests compare us with (tshark, lspci, systemd-analyze, prometheus, podman), once: by apt, as root
	@scripts/install-tools.sh || [ $$? -eq 3 ]

# A test of many processes and machines that fails runs once more: what fails twice, a data
# race and more than six failures end the run. The end names every test that ran twice: each of
# them is a defect of the test or of the program.
# With the race detector every program, each test binary too, sleeps for a second before it ends.
TEST = mkdir -p $(BIN) && rm -f $(BIN)/rerun && CGO_ENABLED=1 GORACE="$${GORACE-atexit_sleep_ms=0}" $(GO) tool gotestsum --format pkgname-and-test-fails --format-icons text --rerun-fails=1 --rerun-fails-max-failures=6 \
	--rerun-fails-abort-on-data-race --rerun-fails-run-root-test --rerun-fails-report=$(BIN)/rerun

# Pure machines with long tests. They have no goroutine (TestMachinesHaveNoClockOrGoroutine), so
# the race detector would find nothing in them, and make them five times slower.
MACHINES = ./link ./share/scenario ./internal/model/network ./internal/pool/placement ./internal/sharing/gate

# The packages with the longest tests, which begin first: one of them that begins last runs alone.
LONG = ./internal/cli ./test/vm ./internal/pool/web ./internal/hostproxy ./internal/pool/manager ./hook ./test/torture

# The longest tests wait for half of their time, for guests, browsers and time limits. The
# tests of one more package than there are processors run at a time, so that none is idle.
AT_ONCE = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

# "make lint" vets all packages with all of go vet; each way to test would vet them again.
test: vm browser tools ## Run every test in random order, with the race detector where there are goroutines
	@command -v gcc >/dev/null || { echo "make test: no C compiler, which the race detector needs; remedy: apt-get install gcc libc6-dev" >&2; exit 1; }
	$(TEST) --packages="$$($(GO) list $(LONG) | grep -xF "$$($(GO) list $(PKGS))"; $(GO) list $(PKGS) | grep -vxF "$$($(GO) list $(MACHINES) $(LONG))")" -- -p $(AT_ONCE) -race -vet=off -shuffle=on -timeout 45m; \
		rc=$$?; [ ! -s $(BIN)/rerun ] || { echo "these tests ran twice:"; cat $(BIN)/rerun; }; exit $$rc
	$(GO) test -vet=off -shuffle=on -timeout 45m $(MACHINES)
	scripts/norace.sh

demo: ## A virtual machine hot-plugs a GPU that is on another machine
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j2) build vm
	@[ ! -e /usr/include/CL/cl_icd.h ] || $(MAKE) --no-print-directory icd
	$(BIN)/dxpu demo

lint: prose ## Vet, staticcheck, formatting, layers, English, commit subjects
	$(GO) vet $(PKGS)
	$(GO) tool staticcheck $(PKGS)
	@out="$$($(GO) tool gofumpt -l $$(git ls-files '*.go' ':!api'))"; \
		if [ -n "$$out" ]; then echo "not formatted (go tool gofumpt -w):"; echo "$$out"; exit 1; fi
	@out="$$($(GO) tool goimports -local github.com/dxpu-project/dxpu -l $$(git ls-files '*.go' ':!api'))"; \
		if [ -n "$$out" ]; then echo "imports not in order (go tool goimports -local github.com/dxpu-project/dxpu -w):"; echo "$$out"; exit 1; fi
	scripts/check-commits.sh
	$(GO) test -run 'TestImports|TestMachines|TestEveryPackage|TestLinter' .

prose: ## Check the English of comments, texts and Markdown
	$(GO) run ./internal/tools/prose

# Needs protoc and its well-known types: apt install protobuf-compiler libprotobuf-dev
generate: ## Generate the API's code from api/dxpu/v1/*.proto
	$(GO) build -o $(BIN)/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
	protoc -I api \
		--plugin=protoc-gen-go=$(BIN)/protoc-gen-go --go_out=. --go_opt=module=github.com/dxpu-project/dxpu \
		--plugin=protoc-gen-connect-go=$(BIN)/protoc-gen-connect-go --connect-go_out=. --connect-go_opt=module=github.com/dxpu-project/dxpu \
		api/dxpu/v1/*.proto
	$(GO) build -modfile=api/openapi.mod -o $(BIN)/ github.com/sudorandom/protoc-gen-connect-openapi
	protoc -I api \
		--plugin=protoc-gen-connect-openapi=$(BIN)/protoc-gen-connect-openapi --connect-openapi_out=api/dxpu/v1 \
		--connect-openapi_opt=format=json,path=openapi.json,services=dxpu.v1.PoolService,allow-get,trim-unused-types,base=api/openapi-base.yaml \
		api/dxpu/v1/dxpu.proto

fuzz: ## Fuzz every FuzzXxx for FUZZTIME each
	@scripts/fuzz.sh $(FUZZTIME)

# The colocations last six seconds for each policy by default. A binary of the tests of every
# package, most of which have no benchmark, takes minutes to link.
bench: ## Run every benchmark once
	DXPU_COLOCATE_MS=100 $(GO) test -vet=off -run '^$$' -bench . -benchtime 1x \
		$$(git grep -l --untracked '^func Benchmark' -- '*_test.go' ':!$(KUBE)' | xargs -n 1 dirname | sort -u | sed 's|^|./|')

soak: build ## An hour of random faults: every byte accounted for, nothing grows
	$(BIN)/dxpu bench soak --duration 1h

soak-short: build ## The same for five minutes
	$(BIN)/dxpu bench soak --duration 5m

mutations: ## Put each deliberate fault of docs/mutations.md into the manager and run the test that notices it
	scripts/mutations.sh

torture: ## A thousand histories of calls to three managers under faults, checked for linearizability (as root)
	$(GO) test ./test/torture -count=1 -v -timeout 12h -run TestTorture -histories 1000 -pools 4 -parallel 4

# Seventy targets take half their time on two processors, and CI has 30 minutes. Go keeps what
# it has compiled under the path of its directory, unless the path is trimmed: then a new clone
# finds what an earlier one has compiled. The benchmarks run one after the other and the
# demonstration waits for its guest, so that both together need two processors.
ci: FUZZTIME = 3s
ci: export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS 2>/dev/null) -trimpath)
ci: tidy-diff generate-diff lint build clients kube-lint test fuzz ## Everything that must hold before a merge
	@$(MAKE) --no-print-directory -j2 --output-sync=target bench demo

tidy-diff: ## Check that go.mod and go.sum are tidy
	$(GO) mod tidy -diff

generate-diff: ## Check that the generated code is that of the protos (where protoc is)
	@mkdir -p $(BIN); if command -v protoc >/dev/null && echo 'syntax = "proto3"; import "google/protobuf/timestamp.proto";' >$(BIN)/.probe.proto 2>/dev/null \
		&& protoc -I $(BIN) -o /dev/null $(BIN)/.probe.proto 2>/dev/null; then \
		$(MAKE) --no-print-directory generate && git diff --exit-code -- api; \
	else echo "generate-diff: skipped, protoc or its well-known types are not here"; fi; rc=$$?; rm -f $(BIN)/.probe.proto; exit $$rc

clean: ## Remove what was built
	rm -rf $(BIN) out dist
