package main

import "github.com/blockpath/blockpath/bench/internal/hadoop"

// A judge is a JVM and what the checks have done in it.
type judge struct {
	*hadoop.JVM

	files      map[string]bool // what has been written to the cluster; nil if none runs
	clusterDir string
}

// startJudge starts the JVM. Hadoop's log goes to standard error from the
// given level on.
func startJudge(classPath, logLevel string) (*judge, error) {
	jvm, err := hadoop.Start(classPath, "-ea", "-Xms2g", "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djudge.log="+logLevel)
	return &judge{JVM: jvm}, err
}
