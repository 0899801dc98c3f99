package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// Redis keeps the fences of resources in a Redis, beside the values that the locks protect:
//
//	fences := fence.Redis{Driver: goredisdriver.New(rdb)}
//	holds := fence.Of(lease) // of the lock "account:42"
//	err := fences.Enter(ctx, holds...)
//	… // read "{account:42}:balance" from the same server, and not from a replica
//	err = fences.Write(ctx, holds, map[string]string{"{account:42}:balance": "10"})
//
// The fence of a resource is the key {resource}:fence, which never expires. In a Redis Cluster, the keys of the values
// need the same hash tag, so that one script may use all of them. The locks may be in this Redis, or in any store.
type Redis struct {
	Driver drivers.Driver // of the server that has the values, such as goredisdriver.New returns
}

// The fragments and scripts of Redis. Lua has no integers of 64 bits, so tokens stay texts.
const (
	// enterScript raises the fence KEYS[1] to the token ARGV[1], and returns what it is then. It is written even if it
	// stays: so it has no TTL, which somebody may have given it.
	enterScript = `
local seen, token = redis.call('GET', KEYS[1]) or '0', ARGV[1]
local digits = string.match(seen, '^0*(%d+)$')
if not digits or #digits > #token or #digits == #token and digits > token then return seen end
redis.call('SET', KEYS[1], token)
return token`

	// front goes before a script whose last keys are fences, and whose last arguments are their tokens and how many
	// there are. It takes these away. It has no line of its own, so that errors name the lines of the script.
	front = `for i = 1, tonumber(table.remove(ARGV)) do local seen = redis.call('GET', table.remove(KEYS)) ` +
		`if seen ~= table.remove(ARGV) then return {err = 'FENCED ' .. i .. ' ' .. (seen or '0')} end end `

	// writeScript sets the first keys to the arguments, and deletes the others. A command sets or deletes all of its
	// keys, or none.
	writeScript = `
local set = {}
for i, value in ipairs(ARGV) do set[2 * i - 1], set[2 * i] = KEYS[i], value end
if #set > 0 then redis.call('MSET', unpack(set)) end
if #KEYS > #ARGV then redis.call('DEL', unpack(KEYS, #ARGV + 1)) end
return 1`

	maxKeys = 1000 // Lua passes no more than some thousand values to a function
)

// Enter raises the tokens of the resources, so that nobody with a smaller token passes Write or Eval any more. It
// returns [ErrStale] if a resource has seen a greater one. An equal one is that of the same holder. Call it before you
// read what you will write.
func (r Redis) Enter(ctx context.Context, holds ...Hold) error {
	holds, err := r.valid(holds)
	if err != nil {
		return err
	}
	cmds := make([]drivers.Command, len(holds))
	for i, h := range holds {
		cmds[i] = drivers.Command{"EVAL", enterScript, "1", fenceKey(h.Resource), strconv.FormatUint(h.Token, 10)}
	}
	replies, err := r.Driver.Do(ctx, cmds...)
	if err != nil {
		return fmt.Errorf("fence: entering %q: %w", holds[0].Resource, err)
	}
	for i, h := range holds {
		if err := h.told(ctx, replies[i]); err != nil {
			return err
		}
	}
	return nil
}

// Write sets and deletes keys in one step, if the resources have been entered with these tokens, and by nobody since.
// It returns [ErrStale] or [ErrNotEntered] otherwise, and nothing was written. At most 1,000 keys are written. What is
// set has no TTL: use Eval for that, and for other types.
//
// If the answer does not come, the error is [ErrUnknown]. Then call Write again, with the same values: if it succeeds,
// the keys are as they ought to be, and nobody else has written in between. But write nothing else with this token. The
// first request may still be on its way, and would undo that: lock again, and enter, and it is refused.
func (r Redis) Write(ctx context.Context, holds []Hold, set map[string]string, del ...string) error {
	keys := slices.Sorted(maps.Keys(set))
	values := make([]string, len(keys))
	for i, k := range keys {
		values[i] = set[k]
	}
	if keys = append(keys, del...); len(keys) > maxKeys {
		return fmt.Errorf("fence: %d keys are more than %d: %w", len(keys), maxKeys, locker.ErrInvalid)
	}
	_, err := r.Eval(ctx, holds, writeScript, keys, values...)
	return err
}

// Eval executes a script of Redis if the resources have been entered with these tokens, and by nobody since. It returns
// [ErrStale] or [ErrNotEntered] otherwise, and nothing was executed. The script sees its own keys and arguments.
//
// If the answer does not come, the error is [ErrUnknown], and the request may still be on its way, as with Write.
// Whether the script can be repeated is for the program to know: one that adds to a number may have done so. An error
// of the script itself is a [drivers.ServerError], and what the script has written before it stays.
func (r Redis) Eval(
	ctx context.Context, holds []Hold, lua string, keys []string, args ...string,
) (drivers.Reply, error) {
	holds, err := r.valid(holds)
	if err != nil {
		return nil, err
	}
	keys = slices.Clone(keys)
	for _, h := range holds {
		if slices.Contains(keys, fenceKey(h.Resource)) {
			return nil, fmt.Errorf("fence: %q is the fence itself: %w", fenceKey(h.Resource), locker.ErrInvalid)
		}
		keys = append(keys, fenceKey(h.Resource))
	}
	if err := r.together(keys); err != nil {
		return nil, err
	}
	// EVAL, and not EVALSHA: a server that knows the script does not compile it again, and none answers NOSCRIPT.
	cmd := append(drivers.Command{"EVAL", inFront(lua), strconv.Itoa(len(keys))}, keys...)
	cmd = append(cmd, args...)
	for _, h := range holds {
		cmd = append(cmd, strconv.FormatUint(h.Token, 10))
	}
	replies, err := r.Driver.Do(ctx, append(cmd, strconv.Itoa(len(holds))))
	if errors.Is(err, drivers.ErrNotSent) {
		return nil, fmt.Errorf("fence: writing %q: %w", holds[0].Resource, err)
	} else if err != nil {
		return nil, fmt.Errorf("fence: writing %q: %w: %w", holds[0].Resource, ErrUnknown, err)
	}
	refusal, refused := replies[0].(drivers.ServerError)
	if !refused {
		return replies[0], nil
	}
	if words := strings.Fields(string(refusal)); len(words) == 3 && words[0] == "FENCED" {
		if i, err := strconv.Atoi(words[1]); err == nil && 1 <= i && i <= len(holds) { // from the last one
			return nil, holds[len(holds)-i].refused(ctx, words[2])
		}
	}
	return nil, fmt.Errorf("fence: writing %q: %w", holds[0].Resource, refusal)
}

// inFront returns the script with the fragment in front, but behind a line that tells the server its flags.
func inFront(lua string) string {
	if flags, rest, ok := strings.Cut(lua, "\n"); ok && strings.HasPrefix(flags, "#!") {
		return flags + "\n" + front + rest
	}
	return front + lua
}

func fenceKey(resource string) string { return "{" + resource + "}:fence" }

func (r Redis) valid(holds []Hold) ([]Hold, error) {
	if r.Driver == nil {
		return nil, fmt.Errorf("fence: no driver: %w", locker.ErrInvalid)
	}
	return sorted(holds)
}

// together returns an error if no script can use all keys, the last of which is a fence.
func (r Redis) together(keys []string) error {
	own := keys[len(keys)-1]
	for _, k := range keys {
		if _, cluster := r.Driver.(drivers.Cluster); cluster && script.Slot(k) != script.Slot(own) {
			return fmt.Errorf("fence: %q and %q are not in one slot of the cluster: name the resource like the "+
				"{hash tag} of all keys: %w", k, own, locker.ErrInvalid)
		}
	}
	return nil
}

// told compares the hold with what the server says that its resource has seen.
func (h Hold) told(ctx context.Context, reply drivers.Reply) error {
	switch reply := reply.(type) {
	case drivers.ServerError:
		return fmt.Errorf("fence: entering %q: %w", h.Resource, reply)
	case string:
		if seen, err := strconv.ParseUint(reply, 10, 64); err == nil {
			return h.compare(ctx, seen)
		}
	}
	return fmt.Errorf("fence: %q has %q, which is no token", fenceKey(h.Resource), reply)
}

// refused returns why a script was not executed.
func (h Hold) refused(ctx context.Context, seen string) error {
	if err := h.told(ctx, seen); err != nil {
		return err
	}
	return fmt.Errorf("fence: %q: %w: %d is written as %q there", h.Resource, ErrNotEntered, h.Token, seen)
}
