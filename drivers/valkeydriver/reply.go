// Code generated from drivers/rueidisdriver by go generate; DO NOT EDIT.

package valkeydriver

import (
	"github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/drivers"
)

// reply returns the server's answer to the command or in the handshake. It returns an error if there was no answer.
func reply(result valkey.ValkeyResult) (drivers.Reply, error) {
	err := result.NonValkeyError()
	if err == nil {
		message, _ := result.ToMessage() // the message contains the error, too
		return normal(message), nil
	}
	if refusal, ok := valkey.IsValkeyErr(err); ok {
		return handshakeError(refusal.Error()), nil
	}
	return nil, err
}

func normal(m valkey.ValkeyMessage) drivers.Reply {
	if refusal, ok := valkey.IsValkeyErr(m.Error()); ok {
		// The client removes "ERR ". Only the size of the original message shows whether there was one.
		if (*valkey.ValkeyMessage)(refusal).CacheSize() < m.CacheSize() {
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

// handshakeError restores an "ERR " that the client has removed. In a handshake only these other codes occur.
func handshakeError(text string) drivers.ServerError {
	switch e := drivers.ServerError(text); e.Code() {
	case "NOAUTH", "WRONGPASS", "NOPERM", "NOPROTO", "DENIED", "LOADING", "BUSY", "MISCONF", "MASTERDOWN":
		return e
	}
	return drivers.ServerError("ERR " + text)
}
