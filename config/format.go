package config

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// String returns c as a URL in which passwords are masked. Without a password, Parse of the result returns c. Settings
// of single nodes of a Redlock cannot be part of a URL: they follow a #, and Parse refuses them.
func (c Config) String() string {
	k := backend(c.Backend)
	if k == nil {
		return c.Backend + ":"
	}
	own := c.clone()
	if _, ok := levels[c.Log]; !ok {
		own.Log = "" // not shown: it may be part of a secret
	}
	var at Location
	if k.Format != nil {
		at = k.Format(own)
	}
	text := func(setting string) (text string) {
		if f := k.field(setting); f != nil {
			text, _ = f.text(own)
		}
		return text
	}
	s := cmp.Or(at.Scheme, k.name)
	if secure := k.secure(s); secure != "" && text("tls") != "" {
		s = secure
	}
	if driver := text("driver"); driver != "" {
		s += "+" + driver
	}
	s += ":"
	if k.Parse != nil {
		s += "//" + userinfo(text("username"), text("password")) + at.Host +
			strings.ReplaceAll((&url.URL{Path: at.Path}).EscapedPath(), "@", "%40")
	}
	q := make(url.Values)
	for _, f := range slices.Concat(common, k.fields) {
		switch v, given := f.text(own); {
		case f.param == "" || f.path == k.name+".driver" || !given:
		case f.isSwitch() && !f.in(own).Elem().IsZero(): // its fields switch it on already
		default:
			q.Set(f.param, v)
		}
	}
	if len(q) > 0 {
		s += "?" + q.Encode()
	}
	return s + elements(own, k)
}

func userinfo(user, password string) string {
	if user == "" && password == "" {
		return ""
	}
	s := strings.ReplaceAll(url.User(user).String(), ",", "%2C")
	if password != "" {
		s += ":" + password
	}
	return s + "@"
}

// elements returns the settings of the elements of k's list, except their addresses.
func elements(c *Config, k *kind) string {
	var own []string
	for _, list := range k.fields {
		if !list.isList() {
			continue
		}
		v := list.in(c)
		for i, all := 0, v.Slice(0, v.Len()); i < all.Len(); i++ {
			v.Set(all.Slice(0, i+1)) // in which i is the last element
			for _, f := range k.fields {
				name, below := strings.CutPrefix(f.path, list.path+"[].")
				if !below || name == "addr" {
					continue
				}
				if text, given := f.text(c); given {
					in := strings.TrimPrefix(list.path, k.name+".")
					own = append(own, fmt.Sprintf("%s[%d].%s=%s", in, i, name, url.QueryEscape(text)))
				}
			}
		}
	}
	if own == nil {
		return ""
	}
	return "#" + strings.Join(own, "&")
}
