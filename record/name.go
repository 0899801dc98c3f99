package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/golocker/locker/internal/core/placename"
)

// maxName is the length of the longest name of a record. Files have names of 255 bytes at most, and objects of
// Kubernetes 253. A Store adds something of its own.
const maxName = 200

// plain says which bytes of a key are part of a name as they are. Upper-case letters are not, because some stores do
// not tell them from others: the file systems of macOS and Windows, and columns of MySQL by default.
func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// NameOf returns the name of the record that has the lock of a key, which begins with the prefix, if there is one, and
// has any bytes. It is for tests of a [Store], which look for the record of a lock. A byte that is not plain becomes =
// and two hexadecimal digits, so the name can be read. If it is too long, it becomes =s and the hash of the key. No two
// keys have the same name, unless they are of one group, which has the name of its first place.
func NameOf(key string) string {
	if first, _, ok := placename.Group(key); ok {
		key = first
	}
	return nameOf(key)
}

func nameOf(key string) string {
	if len(key) <= maxName {
		if name := escaped(key); len(name) <= maxName {
			return name
		}
	}
	return hashed(key)
}

// escaped returns the name of the record of a key, however long it is.
func escaped(key string) string {
	var out strings.Builder
	for i := range len(key) {
		if c := key[i]; plain(c) {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "=%02x", c)
		}
	}
	return out.String()
}

// unescaped is the reverse of escaped. ok is false for other names.
func unescaped(name string) (key string, ok bool) {
	var out []byte
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '=' && i+2 < len(name) {
			b, err := hex.DecodeString(name[i+1 : i+3])
			if err != nil {
				return "", false
			}
			c = b[0]
			i += 2
		}
		out = append(out, c)
	}
	key = string(out)
	return key, escaped(key) == name
}

// hashedPrefix is what names begin with that do not tell their keys. It is in no other name, because s is no
// hexadecimal digit.
const hashedPrefix = "=s"

// hashed returns the name of the record of a key whose name would be too long.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hashedPrefix + hex.EncodeToString(sum[:])
}
