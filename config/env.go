package config

import (
	"regexp"
	"slices"
	"strings"
)

const envURL = "LOCKER_URL"

// Overlay applies the variables in environ, such as os.Environ(), to c and checks the result as [Config.Validate] does. If
// anything is wrong it reports all of it and leaves c as it was.
func (c *Config) Overlay(environ []string) error {
	b := newBuilder(c.clone())
	b.environ(environ)
	done, err := b.finish()
	if err == nil {
		*c = *done
	}
	return err
}

// environ reads the variables into b. An empty one counts as not set: that is what deployment tools make of a
// reference to nothing.
func (b *builder) environ(environ []string) {
	vars := make(map[string]string)
	for _, kv := range environ {
		name, v, _ := strings.Cut(kv, "=")
		if v = trimmed(name, v); v != "" {
			vars[name] = v
		}
	}
	if raw := vars[envURL]; raw != "" {
		fresh := newBuilder(Config{})
		fresh.problems = b.problems
		*b = *fresh
		b.url(raw, envURL+": ")
	}
	for section, at := range map[string]conn{"redis": b.c.Redis.conn(), "redlock": b.c.Redlock.conn()} {
		switch { // the password of the environment replaces the one of the file, in whichever way they are given
		case vars[fieldAt(section+".password").env()] != "":
			*at.passwordFile = ""
		case vars[fieldAt(section+".password_file").env()] != "":
			*at.password = ""
		}
	}
	for _, f := range fields {
		switch name := f.env(); {
		case name == "" || vars[name] == "":
		case quoted(name, vars[name]):
			b.fail(f.path, name, errQuoted)
		default:
			b.set(f.path, vars[name], name)
		}
	}
	b.misspelt(vars)
}

// literal says whether each character of the variable's value counts.
func literal(name string) bool {
	return name == fieldAt("prefix").env() || strings.HasSuffix(name, "_PASSWORD")
}

// trimmed returns the value of a variable without the white space around it, which files and shells add; of a password,
// without newlines at its end, as that of a password_file.
func trimmed(name, v string) string {
	switch {
	case strings.HasSuffix(name, "_PASSWORD"):
		return strings.TrimRight(v, "\r\n")
	case literal(name):
		return v
	default:
		return strings.TrimSpace(v)
	}
}

const quotes = `"'`

// quoted says whether the variable's value is in quotes that somebody expected a shell to remove.
func quoted(name, v string) bool {
	return !literal(name) && len(v) > 1 && strings.ContainsAny(v[:1], quotes) && v[len(v)-1] == v[0]
}

// misspelt reports the variables that were meant for this package, but have no name it knows.
func (b *builder) misspelt(vars map[string]string) {
	for _, name := range []string{"LOCKER_FIFO", "LOCKER_REDLOCK_FIFO"} {
		if vars[name] != "" {
			b.report(name, errFIFO)
			delete(vars, name)
		}
	}
	known := []string{envURL}
	for _, f := range fields {
		if name := f.env(); name != "" {
			known = append(known, name)
		}
	}
	var wrong []string
	for name, v := range vars {
		ours := envSection(name) != "" || nearest(name, known) != ""
		if strings.HasPrefix(name, "LOCKER_") && ours && !slices.Contains(known, name) && !kubernetes(name, v) {
			wrong = append(wrong, name)
		}
	}
	slices.Sort(wrong)
	for _, name := range wrong {
		// of the two dozens, those of the same section
		b.report("environment", unknown("variable", name, slices.DeleteFunc(slices.Clone(known), func(k string) bool {
			return envSection(k) != envSection(name)
		})))
	}
}

// envSection returns the beginning that the variables of a section have in common, if name has it.
func envSection(name string) string {
	for _, section := range []string{"LOCKER_REDIS_", "LOCKER_REDLOCK_", "LOCKER_RETRY_"} {
		if strings.HasPrefix(name, section) {
			return section
		}
	}
	return ""
}

var kubernetesRE = regexp.MustCompile(`_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)

// kubernetes recognises what Kubernetes puts into the environment of every pod for a service called locker or locker-redis.
func kubernetes(name, v string) bool {
	return kubernetesRE.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(v, "://")
}
