package kuberneteslock

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/record"
)

// annotation has the text of the record.
const annotation = "golocker.github.io/record"

// foreign is the text of a Lease of somebody else. No Backend takes it for a lock.
const foreign = "a Lease of another program"

// newLease returns a Lease with that text. transitions is how often the lock was acquired before.
func newLease(name string, text []byte, transitions int32) *coordinationv1.Lease {
	d, _ := record.Describe(text) // what it cannot describe is not a lock, and is shown as free
	now := time.Now()
	seconds := int32(min(max((d.Length+time.Second-1)/time.Second, 1), math.MaxInt32))
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: &d.Holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now},
	}
	if d.State == inspect.Held {
		spec.AcquireTime = &metav1.MicroTime{Time: now.Add(-d.Age)}
		if d.Age == 0 && transitions < math.MaxInt32 {
			transitions++
		}
	}
	spec.LeaseTransitions = &transitions
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotation: string(text)}},
		Spec:       spec,
	}
}

// textOf returns the text of a Lease. If it says something else than the spec, somebody else has taken the Lease.
func textOf(lease *coordinationv1.Lease) []byte {
	text := []byte(lease.Annotations[annotation])
	d, err := record.Describe(text)
	if len(text) == 0 || err == nil && holder(lease) != d.Holder {
		return []byte(foreign)
	}
	return text
}

func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// versionOf returns the version of a Lease that was read or written: uid/resourceVersion/leaseTransitions. The last
// part is for Replace, which has to count on. err is the error of the request.
func versionOf(lease *coordinationv1.Lease, err error) (string, error) {
	if err != nil {
		return "", explained(err)
	}
	if lease.UID == "" || lease.ResourceVersion == "" {
		return "", errors.New("the answer is not a Lease: is this the address of an API server?")
	}
	transitions := int32(0)
	if lease.Spec.LeaseTransitions != nil {
		transitions = *lease.Spec.LeaseTransitions
	}
	return fmt.Sprintf("%s/%s/%d", lease.UID, lease.ResourceVersion, transitions), nil
}

// maxName is the length of the longest name of an object.
const maxName = 253

// objectName returns the name of the Lease of a record. No two records have the same one.
//
// Names of objects are made of labels with dots between them, and a label begins and ends with a letter or a digit.
// These stay as they are, and so does a "-" between two of them. A "=" before a hexadecimal digit becomes a dot: the
// name of the record my=2ekey is my.2ekey. Everything else becomes a dot and a letter that is no such digit. If the
// result is too long, it is replaced by a hash.
func objectName(name string) string {
	var out strings.Builder
	for i := range len(name) {
		next := byte(0)
		if i+1 < len(name) {
			next = name[i+1]
		}
		switch c := name[i]; {
		case isAlphanumeric(c), c == '-' && i > 0 && isAlphanumeric(name[i-1]) && isAlphanumeric(next):
			out.WriteByte(c)
		case c == '-':
			out.WriteString(".m")
		case c == '_':
			out.WriteString(".u")
		case '0' <= next && next <= '9' || 'a' <= next && next <= 'f': // c is "="
			out.WriteByte('.')
		default:
			out.WriteString(".q")
		}
	}
	object := out.String()
	if strings.HasPrefix(strings.TrimLeft(object, "x"), ".") { // so that x.2e is another record than .2e
		object = "x" + object
	}
	if len(object) > maxName {
		sum := sha256.Sum256([]byte(name))
		return hashedName + hex.EncodeToString(sum[:])
	}
	return object
}

// hashedName is what the name of a Lease begins with that is a hash. It is in no other name: s follows no dot.
const hashedName = "sha256.s"

func isAlphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
