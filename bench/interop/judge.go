package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
)

// A judge is a JVM and what the checks have done in it.
type judge struct {
	jvm     *hadoop.JVM
	signals chan os.Signal

	files      map[string]bool // what has been written to the cluster; nil if none runs
	clusterDir string
}

// answerTime bounds the wait for an answer, so that nothing hangs for ever. No
// answer takes a tenth of it, even on a busy machine.
const answerTime = 5 * time.Minute

// startJudge starts the JVM, whose temporary files go to dir. Hadoop's log goes
// to standard error from the given level on. A signal that ends this program
// ends the JVM first, so that the check fails and cleans up.
func startJudge(classPath, dir, logLevel string) (*judge, error) {
	jvm, err := hadoop.Start(classPath, "-ea", "-Xms2g", "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-XX:-UsePerfData", "-Djava.io.tmpdir="+dir, "-Dhadoop.tmp.dir="+dir, "-Djudge.log="+logLevel)
	if err != nil {
		return nil, err
	}
	h := &judge{jvm: jvm, signals: make(chan os.Signal, 1)}
	signal.Notify(h.signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-h.signals; ok {
			jvm.Kill()
		}
	}()
	return h, nil
}

// ask asks one question.
func (h *judge) ask(question string, args ...any) ([]string, error) {
	timer := time.AfterFunc(answerTime, func() {
		fmt.Fprintf(os.Stderr, "interop: no answer to %s after %v\n", question, answerTime)
		h.jvm.Kill()
	})
	defer timer.Stop()
	return h.jvm.Ask(question, args...)
}

// close ends the JVM.
func (h *judge) close() {
	signal.Stop(h.signals)
	close(h.signals)
	timer := time.AfterFunc(patience, func() { h.jvm.Kill() })
	defer timer.Stop()
	h.jvm.Close()
}
