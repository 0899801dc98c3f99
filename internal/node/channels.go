package node

import "time"

// difference brings has, the channels of a subscription, up to date. It returns the channels to subscribe to and those
// to unsubscribe from.
func (in *inbox) difference(has map[string]bool) (add, remove []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	want := map[string]bool{in.name: true}
	for _, l := range in.listeners {
		want[l.channel] = true
	}
	for c := range want {
		if !has[c] {
			has[c] = true
			add = append(add, c)
		}
	}
	for c := range has {
		if !want[c] {
			delete(has, c)
			delete(in.confirmed, c)
			remove = append(remove, c)
		}
	}
	return add, remove
}

func (in *inbox) subscribed(channel string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
	if channel == in.name {
		in.confirmed[channel] = true
		in.change()
	}
	for _, l := range in.listeners {
		if l.channel == channel {
			in.confirmed[channel] = true
			if in.counted {
				l.news(false)
			}
		}
	}
}

func (in *inbox) message(channel, payload string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
	id := channel
	if channel == in.name {
		id = payload // nobody listens for the payload of a probe, or of a waiter that has left
	}
	if l, ok := in.listeners[id]; ok && l.channel == channel {
		l.news(true)
	}
}
