package lab

func kernel() string { return "Linux " + readLine("/proc/sys/kernel/osrelease") }
