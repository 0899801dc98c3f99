package settings

import (
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

// parameters are what is asked of CONFIG GET.
var parameters = []string{
	"appendfsync", "no-appendfsync-on-rewrite", "save", "replica-read-only", "min-replicas-to-write",
	"min-replicas-max-lag", "lua-time-limit",
}

// Questions returns the commands whose replies [Read] takes. They are for one exchange. Servers before Redis 7 answer
// CONFIG GET and INFO for one name at a time only.
func Questions() []drivers.Command {
	cmds := []drivers.Command{{"TIME"}, {"INFO"}}
	for _, name := range parameters {
		cmds = append(cmds, drivers.Command{"CONFIG", "GET", name})
	}
	return cmds
}

// Snapshot is what a server told of itself.
type Snapshot struct {
	Clock  time.Time         // the reply to TIME; zero if there is none
	Info   map[string]string // the fields of INFO; empty if it was refused, or has not the fields of a server
	Config map[string]string // the parameters that CONFIG GET told
	// The refusals of INFO and CONFIG GET; empty if the server answered.
	NoInfo, NoConfig drivers.ServerError
}

// Read reads the replies to [Questions].
func Read(replies []drivers.Reply) Snapshot {
	s := Snapshot{Info: map[string]string{}, Config: map[string]string{}}
	if len(replies) != len(parameters)+2 {
		return s
	}
	s.Clock, _ = ReadTime(replies[0])
	s.NoInfo, _ = replies[1].(drivers.ServerError)
	text, _ := replies[1].(string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			s.Info[name] = value
		}
	}
	if s.Info["redis_version"] == "" { // a stand-in, or a proxy
		s.Info = map[string]string{}
	}
	for i, name := range parameters {
		reply := replies[i+2]
		if e, refused := reply.(drivers.ServerError); refused {
			s.NoConfig = e
		} else if value, ok := parameter(reply, name); ok {
			s.Config[name] = value
		}
	}
	return s
}

// ReadTime reads a reply to TIME.
func ReadTime(reply drivers.Reply) (time.Time, bool) {
	r, _ := reply.([]drivers.Reply)
	if len(r) != 2 {
		return time.Time{}, false
	}
	seconds, ok1 := r[0].(string)
	micros, ok2 := r[1].(string)
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	return time.Unix(s, us*1000), ok1 && ok2 && err1 == nil && err2 == nil
}

// parameter reads a reply to CONFIG GET: a list in RESP2 and a map in RESP3.
func parameter(reply drivers.Reply, name string) (text string, ok bool) {
	var value any
	switch r := reply.(type) {
	case []drivers.Reply:
		if len(r) == 2 {
			value = r[1]
		}
	case map[string]any:
		value = r[name]
	case map[any]any:
		value = r[name]
	}
	text, ok = value.(string)
	return text, ok
}

// Unknown returns the parameters that the server did not tell.
func (s *Snapshot) Unknown() (names []string) {
	for _, name := range parameters {
		if _, ok := s.Config[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// number returns a field of INFO; 0 if there is none.
func (s *Snapshot) number(field string) int64 {
	n, _ := strconv.ParseInt(s.Info[field], 10, 64)
	return n
}
