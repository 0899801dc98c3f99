package script

import (
	"strconv"
	"strings"
	"sync"
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
		crc = crc<<8 ^ crcTable[byte(crc>>8)^b]
	}
	return crc % Slots
}

// crcTable has the CRC16 of each byte.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// inSlot returns a name, in two parts, with a short tag that hashes to slot s.
func inSlot(s uint16, name, end string) string {
	var digits [10]byte
	return "{" + string(strconv.AppendUint(digits[:0], uint64(tags()[s]), 10)) + "}}" + name + end
}

// tags has a number for each slot whose decimal text hashes to that slot. To find all of them takes some milliseconds,
// so it is done when the first one is needed.
var tags = sync.OnceValue(func() *[Slots]uint32 {
	var numbers [Slots]uint32
	var known [Slots]bool
	for i, missing := uint32(0), Slots; missing > 0; i++ {
		if s := Slot(strconv.FormatUint(uint64(i), 10)); !known[s] {
			numbers[s], known[s] = i, true
			missing--
		}
	}
	return &numbers
})
