package rueidis

import (
	"github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

// reply returns what the server answered, to the command or in the handshake. An error says that it has not answered.
func reply(result rueidis.RedisResult) (drivers.Reply, error) {
	err := result.NonRedisError()
	if err == nil {
		message, _ := result.ToMessage() // its error is in the message as well
		return normal(message), nil
	}
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		return handshakeError(refusal.Error()), nil
	}
	return nil, err
}

func normal(m rueidis.RedisMessage) drivers.Reply {
	if refusal, ok := rueidis.IsRedisErr(m.Error()); ok {
		// The client takes "ERR " off. Only the size of the message as it came tells whether there was any.
		if (*rueidis.RedisMessage)(refusal).CacheSize() < m.CacheSize() {
			return drivers.ServerError("ERR " + refusal.Error())
		}
		return drivers.ServerError(refusal.Error())
	}
	if !m.IsArray() {
		value, _ := m.ToAny() // the error is that of a nil message, whose value is nil
		return value
	}
	elements, _ := m.ToArray()
	replies := make([]drivers.Reply, len(elements))
	for i, element := range elements {
		replies[i] = normal(element)
	}
	return replies
}

// handshakeError restores an "ERR " of which there is no trace: only these codes occur in a handshake besides.
func handshakeError(text string) drivers.ServerError {
	switch e := drivers.ServerError(text); e.Code() {
	case "NOAUTH", "WRONGPASS", "NOPERM", "NOPROTO", "DENIED", "LOADING", "BUSY", "MISCONF", "MASTERDOWN":
		return e
	}
	return drivers.ServerError("ERR " + text)
}
