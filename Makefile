# blockpath: `make run` and `make test` need only Go, make and git.
SHELL := /bin/bash -eu -o pipefail

GO          ?= go
FILE        ?= $(shell $(GO) env GOROOT)/bin/go
FUZZTIME    ?= 5s
N           ?= 50
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0
# what builds on windows
WINDOWS     := ./stripedcounter ./crc ./crc/asm ./crc/crc32 ./crc/packet ./crc/packet/client
ARM64CPUS   := cortex-a57 neoverse-n1 max

export CGO_ENABLED ?= 0

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

build: ## build the command into bin/
	$(GO) build -trimpath -o bin/blockpath ./cmd/blockpath

run: build ## send a real file through the whole path and back: make run [FILE=path]
	bin/blockpath roundtrip --block-size 4MiB "$(FILE)"

test: ## every test that needs only Go
	$(GO) test ./...
	$(GO) -C gen test ./...

test-purego: ## the same without assembly
	$(GO) test -tags purego,noasm ./...

race: ## the tests under the race detector
	CGO_ENABLED=1 $(GO) test -race ./...

stress: ## random programs against the packetizer and its pool, and appends beside reads for a minute, under the race detector
	CGO_ENABLED=1 $(GO) test -race -timeout 10m -run ReadWhileWriting ./iouring/datanode -concurrent 1m
	PACKET_PROGRAMS=20000 CGO_ENABLED=1 $(GO) test -race -timeout 90m -run 'Programs|PoolModel|Leaks' ./crc/packet

test-arm64: ## the tests for arm64 under qemu-aarch64, one CPU model after another
	@command -v qemu-aarch64 >/dev/null || { echo "test-arm64: qemu-aarch64 is missing; on Debian: apt-get install qemu-user"; exit 1; }
	for cpu in $(ARM64CPUS); do echo "== $$cpu"; \
		GOARCH=arm64 $(GO) test -exec "$(CURDIR)/.ci/arm64 $$cpu" ./crc ./crc/asm ./crc/crc32; done
	GOARCH=arm64 $(GO) test -exec "$(CURDIR)/.ci/arm64 max" ./...

test-bench: ## the tests of bench; as root with FUSE also disks that fail and disks whose power is cut
	$(GO) -C bench test -v ./... | grep -vE '^ *(===|--- PASS|PASS|\?)'

vet: ## gofmt, go vet over the build matrix, staticcheck
	@fmt=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$fmt" ] || { echo "gofmt would change:" $$fmt; exit 1; }
	for os in linux darwin; do for arch in amd64 arm64; do for tags in "" purego,noasm; do \
		echo "vet $$os/$$arch $$tags"; GOOS=$$os GOARCH=$$arch $(GO) vet -tags "$$tags" ./...; done; done; done
	for tags in "" purego,noasm; do \
		echo "vet windows/amd64 $$tags"; GOOS=windows GOARCH=amd64 $(GO) vet -tags "$$tags" $(WINDOWS); done
	for arch in 386 arm; do echo "vet linux/$$arch"; GOOS=linux GOARCH=$$arch $(GO) vet ./stripedcounter ./crc/...; done
	$(GO) -C gen vet ./... && $(GO) -C bench vet ./...
	$(GO) install $(STATICCHECK)
	for arch in amd64 arm64; do for tags in "" purego,noasm; do \
		echo "staticcheck $$arch $$tags"; \
		GOARCH=$$arch "$$($(GO) env GOPATH)/bin/staticcheck" -tags "$$tags" ./...; done; done

generate: ## regenerate the assembly and its stubs
	$(GO) generate ./...

check-generate: ## regenerate and fail on a difference
	@files=$$(git ls-files | xargs grep -lE '^// Code generated ' --); \
		before=$$(sha256sum $$files); others=$$(git ls-files --others --exclude-standard); \
		$(MAKE) --no-print-directory generate; \
		sha256sum --quiet -c <<<"$$before"; \
		[ "$$others" = "$$(git ls-files --others --exclude-standard)" ] || { echo "generate made files that git does not have"; exit 1; }; \
		echo "$$(wc -w <<<"$$files") generated files are up to date"

fuzz: ## every fuzz target for FUZZTIME
	@# Up to Go 1.26 a run may end with the deadline as its error (go.dev/issue/75804);
	@# it is then repeated.
	for target in $$($(GO) test ./fuzz -list '^Fuzz' | grep ^Fuzz); do \
		until log=$$($(GO) test ./fuzz -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) 2>&1); do \
			echo "$$log"; grep -qx '    context deadline exceeded' <<<"$$log" || exit 1; done; \
		echo "$$log"; done

interop: ## real Hadoop as the judge: formats, clients, datanodes, faults (needs java and mvn)
	$(GO) -C bench run ./interop

interop-full: ## the same with ten times as many values, more shapes, every byte damaged
	$(GO) -C bench run ./interop -full

interop-bench: ## Hadoop's and our client to Hadoop's and our datanode, into bench/results (needs java and mvn)
	$(GO) -C bench run . interop-bench --keep

test-avx512: ## the kernels on an emulated CPU with AVX-512
	@command -v bochs nasm >/dev/null || { echo "test-avx512: on Debian: apt-get install bochs bochs-term bochsbios nasm"; exit 1; }
	$(GO) -C bench run ./bochs

mca: ## llvm-mca's bytes per cycle of the inner loops, into bench/results/modelled
	$(GO) -C bench run ./mca amd64

mca-arm64: ## the same for arm64
	$(GO) -C bench run ./mca arm64

crash: ## N power cuts (as root) and N kills of a datanode with many writers
	$(GO) test ./iouring/datanode -run Crash -v -timeout 60m -crash $(N)

bench-uarch: ## the experiments of this CPU, into bench/results/<vendor-microarchitecture>
	tags=hadoop; \
	if [ -e /usr/include/isa-l/crc.h ]; then tags=$$tags,isal; fi; \
	if command -v cargo >/dev/null; then cargo build --quiet --release --manifest-path bench/checksums/native/crcfast/Cargo.toml; tags=$$tags,crcfast; fi; \
	CGO_ENABLED=1 $(GO) -C bench run -tags "$$tags" . crc --keep
	$(GO) -C bench run . counters --keep

report: ## the targets of all results, met and missed: bench/results/README.md
	$(GO) -C bench run ./report

clean: ## remove what make built
	rm -rf bin .cache

.PHONY: help build run test test-purego race stress test-arm64 test-bench vet generate check-generate fuzz interop interop-full interop-bench test-avx512 mca mca-arm64 crash bench-uarch report clean
