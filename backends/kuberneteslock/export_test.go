package kuberneteslock

// Annotation has the text of the record.
const Annotation = annotation

// MaxCalls bounds the calls in progress.
const MaxCalls = maxCalls

// ObjectName returns the name of the Lease of a record.
var ObjectName = objectName

// Open returns the store of a configuration.
func Open(s *Config) (*Store, error) { return s.store() }

// OpenInPod returns the store of a pod that finds its service account in dir.
func OpenInPod(dir, namespace string) (*Store, error) {
	cluster, namespace, err := inCluster(dir, namespace)
	if err != nil {
		return nil, err
	}
	return newStore(cluster, namespace)
}
