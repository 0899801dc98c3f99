package simnode

import "strings"

// matcher matches patterns as Lua does. It knows what the scripts use of them, and panics at the rest.
type matcher struct {
	text, pattern string
	captures      [][2]int // where each begins and ends; the end is -1 before the pattern has come to it
}

// find returns the captures of the first match that begins at from or later, or the whole match if the pattern has no
// captures. It returns nil if there is no match. The result is valid until the next call.
func (m *matcher) find(text, pattern string, from int) [][2]int {
	m.text, m.captures = text, m.captures[:0]
	anchored := strings.HasPrefix(pattern, "^")
	m.pattern = strings.TrimPrefix(pattern, "^")
	for ; from <= len(text); from++ {
		if end := m.match(from, 0); end >= 0 {
			if len(m.captures) == 0 {
				m.captures = append(m.captures, [2]int{from, end})
			}
			return m.captures
		}
		if anchored {
			return nil
		}
	}
	return nil
}

// match returns where the match of the rest of the pattern ends that begins at the given place in the text. It returns
// -1 if there is none.
func (m *matcher) match(at, rest int) int {
	for rest < len(m.pattern) {
		switch {
		case m.pattern[rest] == '(':
			m.captures = append(m.captures, [2]int{at, -1})
			end := m.match(at, rest+1)
			if end < 0 {
				m.captures = m.captures[:len(m.captures)-1]
			}
			return end
		case m.pattern[rest] == ')':
			open := len(m.captures) - 1
			for m.captures[open][1] >= 0 {
				open--
			}
			m.captures[open][1] = at
			end := m.match(at, rest+1)
			if end < 0 {
				m.captures[open][1] = -1
			}
			return end
		case m.pattern[rest:] == "$":
			if at < len(m.text) {
				return -1
			}
			return at
		}
		class := classOf(m.pattern[rest:])
		rest += len(class)
		if rest == len(m.pattern) || strings.IndexByte("*+?-", m.pattern[rest]) < 0 {
			if at == len(m.text) || !has(class, m.text[at]) {
				return -1
			}
			at++
			continue
		}
		least, most := 0, len(m.text)
		switch m.pattern[rest] {
		case '+':
			least = 1
		case '?':
			most = 1
		case '-':
			panic("a pattern that is not simulated: " + m.pattern)
		}
		rest++
		count := 0
		for count < most && at+count < len(m.text) && has(class, m.text[at+count]) {
			count++
		}
		for ; count >= least; count-- {
			if end := m.match(at+count, rest); end >= 0 {
				return end
			}
		}
		return -1
	}
	return at
}

// classOf returns the class of characters that a pattern begins with.
func classOf(pattern string) string {
	switch pattern[0] {
	case '%':
		return pattern[:2]
	case '[':
		return pattern[:3+strings.IndexByte(pattern[2:], ']')]
	default:
		return pattern[:1]
	}
}

// has reports whether a class has a character.
func has(class string, c byte) bool {
	switch class[0] {
	case '.':
		return true
	case '%':
		return named(class[1], c)
	case '[':
		class, negated := strings.CutPrefix(class[1:len(class)-1], "^")
		return (strings.IndexByte(class, c) >= 0) != negated
	default:
		return class[0] == c
	}
}

// named reports whether the class that has a name has a character. A sign is a class of itself.
func named(name, c byte) bool {
	switch name {
	case 'd':
		return '0' <= c && c <= '9'
	case 'w':
		return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
	case 'S':
		return strings.IndexByte(" \t\n\v\f\r", c) < 0
	}
	if 'a' <= name|0x20 && name|0x20 <= 'z' || '0' <= name && name <= '9' {
		panic("a class of characters that is not simulated: %" + string(name))
	}
	return c == name
}
