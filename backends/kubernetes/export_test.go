package kubernetes

import "github.com/golocker/locker/record"

// Annotation has the text of the record.
const Annotation = annotation

// ObjectName returns the name of the Lease of a record.
var ObjectName = objectName

// ObjectOf returns the name of the Lease of a short key under [DefaultPrefix].
func ObjectOf(key string) string { return objectName(DefaultPrefix, escaped(key)) }

// Open returns the store of a configuration.
func Open(s *Config, prefix string) (record.Store, error) { return s.store(prefix) }

// OpenInPod returns the store of a pod that finds its service account in dir.
func OpenInPod(dir, namespace string) (record.Store, error) {
	cluster, namespace, err := inCluster(dir, namespace)
	if err != nil {
		return nil, err
	}
	return newStore(cluster, namespace, DefaultPrefix)
}
