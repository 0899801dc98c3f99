package kuberneteslock

import "net/http"

// Annotation has the text of the record.
const Annotation = annotation

// MaxCalls bounds the calls in progress.
const MaxCalls = maxCalls

// ObjectName returns the name of the Lease of a record.
var ObjectName = objectName

// Open returns the store of a configuration.
func Open(s *Config) (*Store, error) { return s.store() }

// OpenVia returns the store of a configuration, whose requests go through what wrap returns.
func OpenVia(s *Config, wrap func(http.RoundTripper) http.RoundTripper) (*Store, error) {
	cluster, namespace, err := s.cluster()
	if err != nil {
		return nil, err
	}
	cluster.Wrap(wrap)
	return newStore(cluster, namespace)
}

// OpenInPod returns the store of a pod that finds its service account in dir.
func OpenInPod(dir, namespace string) (*Store, error) {
	cluster, namespace, err := inCluster(dir, namespace)
	if err != nil {
		return nil, err
	}
	return newStore(cluster, namespace)
}

// MaxWatches bounds the watches of a Store.
const MaxWatches = maxWatches
