package script

import (
	"strconv"
	"strings"
)

// hasTag reports whether Redis Cluster hashes only a part of key: the text between the first { and the next }, if it is
// not empty.
func hasTag(key string) bool { return tag(key) != key }

func tag(key string) string {
	_, after, found := strings.Cut(key, "{")
	if !found {
		return key
	}
	t, _, found := strings.Cut(after, "}")
	if !found || t == "" {
		return key
	}
	return t
}

// Slots is the number of hash slots of a Redis Cluster.
const Slots = 16384

// Slot returns the hash slot of key: the CRC16 (XMODEM) of its tag, modulo 16384 (Redis Cluster specification).
func Slot(key string) uint16 {
	var crc uint16
	for _, b := range []byte(tag(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % Slots
}

// tagOf returns a short tag that hashes to slot s. It tries 16,384 candidates on average, which takes about a
// millisecond. Names that need it are rare, so no table is kept.
func tagOf(s uint16) string {
	for i := 0; ; i++ {
		if t := strconv.Itoa(i); Slot(t) == s {
			return t
		}
	}
}
