package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/golocker/locker"
)

// groupFormat is the number of the format of the text of a group. A process that knows one lock in a record must not
// read it as one, and the other way round.
const groupFormat = 2

// groupText is the text of the record of a group.
type groupText struct {
	Format int    `json:"locker"`
	Nonce  string `json:"nonce"`
	Last   uint64 `json:"last"`           // see group
	Left   string `json:"left,omitempty"` // see group
	Parts  []part `json:"parts,omitempty"`
}

// part has locks of which the same is true, as of those that were written together. So a record is short that has all
// places of a writer: some stores bill by the kilobyte.
type part struct {
	content
	Format int      `json:"locker,omitempty"`
	Last   uint64   `json:"last,omitempty"`
	Locks  []member `json:"locks"`
}

// member is a lock of a group. Last is missing if the owner has one token.
type member struct {
	At    string `json:"at"`
	Owner string `json:"owner"`
	Token uint64 `json:"token"`
	Last  uint64 `json:"last,omitempty"`
}

// sealGroup returns the text of a group.
func sealGroup(g *group, locks map[string]content, nonce string) []byte {
	text := groupText{Format: groupFormat, Nonce: nonce, Last: g.last, Left: g.left}
	numbers := make(map[content]int)
	for _, at := range slices.Sorted(maps.Keys(locks)) {
		c := locks[at]
		m := member{At: at, Owner: c.Owner, Token: c.Token, Last: c.Last}
		if m.Last == m.Token {
			m.Last = 0
		}
		c.Format, c.Owner, c.Token, c.Last, c.Over = 0, "", 0, 0, ""
		n, found := numbers[c]
		if !found {
			n = len(text.Parts)
			numbers[c] = n
			text.Parts = append(text.Parts, part{content: c})
		}
		text.Parts[n].Locks = append(text.Parts[n].Locks, m)
	}
	return encode(text)
}

// parseGroup is the reverse of sealGroup. The error matches locker.ErrForeignKey.
func parseGroup(text []byte) (*group, map[string]content, error) {
	foreign := func(why string, args ...any) (*group, map[string]content, error) {
		return nil, nil, fmt.Errorf("%w: "+why, append([]any{locker.ErrForeignKey}, args...)...)
	}
	if err := knows(text, groupFormat); err != nil {
		return nil, nil, err
	}
	var g groupText
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&g); err != nil {
		return foreign("the record of a group: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return foreign("the record has something after its text")
	}
	if g.Nonce == "" || g.Last == 0 || g.Last > maxToken {
		return foreign("the record of a group has no nonce, or the last token is %d", g.Last)
	}
	locks := make(map[string]content)
	for _, p := range g.Parts {
		for _, m := range p.Locks {
			c := p.content
			c.Owner, c.Token, c.Last = m.Owner, m.Token, max(m.Token, m.Last)
			err := c.check()
			if _, twice := locks[m.At]; err == nil && (twice || m.At == "" || !c.taken() || c.Last > g.Last || p.Format != 0 ||
				p.Last != 0) {
				err = fmt.Errorf("%w: the record of a group says something wrong of %q", locker.ErrForeignKey, m.At)
			}
			if err != nil {
				return nil, nil, err
			}
			locks[m.At] = c
		}
	}
	return &group{g.Last, g.Left}, locks, nil
}
