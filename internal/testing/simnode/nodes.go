package simnode

// Nodes are the nodes of one deployment.
type Nodes []*Node

// NewNodes returns n empty nodes.
func NewNodes(n int) Nodes {
	all := make(Nodes, n)
	for i := range all {
		all[i] = New()
	}
	return all
}

// Delete deletes keys, of whatever kind, from all nodes.
func (all Nodes) Delete(keys ...string) {
	for _, n := range all {
		n.Delete(keys...)
	}
}

// Flush deletes everything, like a restart of all nodes without persistence.
func (all Nodes) Flush() {
	for _, n := range all {
		n.Flush()
	}
}

// Left returns the keys that [Node.Left] returns for each node.
func (all Nodes) Left() (keys []string) {
	for _, n := range all {
		keys = append(keys, n.Left()...)
	}
	return keys
}
