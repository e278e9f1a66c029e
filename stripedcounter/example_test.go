package stripedcounter_test

import (
	"fmt"
	"sync"

	"github.com/blockpath/blockpath/stripedcounter"
)

func ExampleSet() {
	const (
		bytes = iota
		packets
	)
	stats := stripedcounter.NewSet("bytes", "packets")
	var streams sync.WaitGroup
	for range 4 {
		streams.Add(1)
		go func() {
			defer streams.Done()
			for range 1000 {
				stats.Add2(bytes, 512, packets, 1)
			}
		}()
	}
	streams.Wait()
	for name, value := range stats.All() {
		fmt.Println(name, value)
	}
	// Output:
	// bytes 2048000
	// packets 4000
}

func ExampleSet_Local() {
	stats := stripedcounter.NewSet("records")
	worker := stats.Local()
	defer worker.Close()
	for range 10 {
		worker.Add(0, 1)
	}
	fmt.Println(stats)
	// Output: {"records": 10}
}

func ExampleCounter() {
	var opened stripedcounter.Counter
	opened.Add(2)
	opened.Add(-1)
	fmt.Println(opened.Load())
	// Output: 1
}
