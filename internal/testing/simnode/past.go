package simnode

import "maps"

// Past is what a node had at an earlier moment, on disk or on a replica.
type Past map[string]entry

// Save returns what the node has.
func (n *Node) Save() Past {
	n.mu.Lock()
	defer n.mu.Unlock()
	return copied(n.keys)
}

// GoBack gives the node what it had at an earlier moment, as a restart with an old file does. What has expired
// meanwhile stays expired.
func (n *Node) GoBack(to Past) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys = copied(to)
}

func copied(keys map[string]entry) map[string]entry {
	all := maps.Clone(keys)
	for key, e := range all {
		e.scores, e.fields = maps.Clone(e.scores), maps.Clone(e.fields)
		all[key] = e
	}
	return all
}
