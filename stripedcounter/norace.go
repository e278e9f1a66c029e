//go:build !race

package stripedcounter

const raceDetector = false
