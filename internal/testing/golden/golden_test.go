package golden

import "testing"

func TestNormal(t *testing.T) {
	const one, two, dashed = "abcdefghijklmnopqrstuvwxyz_", "ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "-bcdefghijklmnopqrstuvwxyz-"
	for text, want := range map[string]string{
		"lock:a expires":                              "lock:a expires",
		"0000001795397069|" + one + "|1|web-7+":       "<16 digits>|<token 1>|1|web-7+",
		one + " " + two + " " + one:                   "<token 1> <token 2> <token 1>",
		"lock:inbox:" + dashed:                        "lock:inbox:<token 1>",
		"locker_" + two + "\n":                        "locker_<token 1>\n",
		"0123456789abcdef0123456789abcdef01234567:0:": "<40 hex digits>:0:",
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ":                  "<nonce>",
		"{12345}}lock:fence = 1795397069897728":       "{12345}}lock:fence = <16 digits>",
	} {
		if got := Normal(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
