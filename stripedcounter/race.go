//go:build race

package stripedcounter

const raceDetector = true
