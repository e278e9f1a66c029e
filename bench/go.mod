module github.com/blockpath/blockpath/bench

go 1.26.0

require (
	github.com/blockpath/blockpath v0.0.0
	github.com/google/pprof v0.0.0-20261105003125-4bf881d7fb0b
	github.com/hanwen/go-fuse/v2 v2.12.1
	github.com/klauspost/cpuid/v2 v2.3.0
	github.com/klauspost/crc32 v1.3.0
	github.com/puzpuzpuz/xsync/v4 v4.5.0
	golang.org/x/perf v0.0.0-20260908200009-22c9c6c9d4da
	golang.org/x/sys v0.48.0
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/aclements/go-moremath v0.0.0-20210112150236-f10218a38794 // indirect
	github.com/minio/sha256-simd v1.0.1 // indirect
	golang.org/x/time v0.11.0 // indirect
)

replace github.com/blockpath/blockpath => ../
