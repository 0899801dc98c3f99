package wire_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/golocker/locker/internal/testing/wire"
)

func TestSteps(t *testing.T) {
	for call, want := range map[string][]wire.Step{
		"EVAL return":                           nil,
		"EVAL return 0":                         nil,
		"EVAL return 1 k":                       nil,
		"PING":                                  nil,
		"EVALSHA x 3 k w f |a|1|l 1000 1 0":     {{"acquire", "k", "a", false}},
		"EVAL x 2 k f |a|1| 0000000000000007":   {{"raise", "k", "a", false}},
		"EVALSHA x 3 k w f |a|1|l 1000 1 0:128": {{"acquire", "k", "a", false}},
		"EVALSHA x 2 k f |a|1| 0000000000000007 0000000000000134": {{"raise", "k", "a", false}},
		"EVALSHA x 2 k f |a|1| 1000 0000000000000007":             {{"extend", "k", "a", false}},
		"EVALSHA x 2 k w |a|1| 0:0:7":                             {{"release", "k", "a", false}},
		"EVALSHA x 4 k w f q |a|1| 10:0:0:1:a:b":                  {{"enqueue", "k", "a", false}},
		"EVALSHA x 4 k w f q |a|1| 0:0:7":                         {{"handover", "k", "a", false}},
		"EVALSHA x 1 k |a|1| 10":                                  {{"claim", "k", "a", false}},
		"EVALSHA x 2 k m |a|1| 10:32600":                          {{"claim", "k", "a", false}},
		"EVALSHA x 2 k f |a|1| 10:128":                            {{"claim", "k", "a", false}},
		"EVALSHA x 3 k m f |a|1| 10:32600:128":                    {{"claim", "k", "a", false}},
		"EVALSHA x 4 k w q {k}:lockturn w 10:0:":                  {{"turn", "k", "w", false}},
		"EVALSHA x 4 k w q {k}:lockturn |a|1| 0:0:7:w":            {{"turnrelease", "k", "a", false}},
		"EVALSHA x 4 k w f q":                                     {{"inspect", "k", "", false}},
		"EVALSHA x 5 k w f q {k}:lockturn w":                      {{"inspect", "k", "w", false}},
		"EVALSHA x 4 k w f q 10:abc":                              {{"force", "k", "10:abc", false}},
		"EVALSHA x 5 k w f q {k}:lockturn 10:abc":                 {{"force", "k", "10:abc", false}},
		"EVALSHA x 3 k w f 1 1 1000 |a|1|":                        {{"acquire", "k", "a", true}},
		"EVALSHA x 1 k 0 1 0000000000000007|a|1|":                 {{"release", "k", "a", true}},
		"EVALSHA x 4 k w f l 1 1 9 |a|1| 0000000000000007|b|": {
			{"acquire", "k", "a", true}, {"release", "l", "b", true}},
		"EVALSHA x 4 k w f g |a|1|l 1000 1:0:12200":      {{"acquire", "k", "a", false}},
		"EVALSHA x 4 k w f g |a|1|l 1000 1:0:12200:128":  {{"acquire", "k", "a", false}},
		"EVALSHA x 5 k w f q g |a|1| 10:0:0:1:12200:a:b": {{"enqueue", "k", "a", false}},
		"EVALSHA x 5 k w f q g |a|1| 0:0:7:12200":        {{"handover", "k", "a", false}},
		"EVALSHA x 5 k w f q g 10:abc 12200":             {{"force", "k", "10:abc", false}},
		"EVALSHA x 5 k w f g l 1 1 9 |a|1| 12200 0000000000000007|b|": {
			{"acquire", "k", "a", true}, {"release", "l", "b", true}},
		"EVALSHA x 6 k l v w f f 1000 2 |a|1| |b|1|": {
			{"step", "k", "a", false}, {"step", "l", "b", false}},
		"EVALSHA x 9 k l g v w x f f m 1000:12200 1 |a|1| |b|1|": {
			{"step", "k", "a", false}, {"step", "l", "b", false}},
		"EVALSHA x 4 k w f m 1000:12200 1 |a|1|": {{"step", "k", "a", false}},
		"EVALSHA x 1 g 12200":                    nil,
		"EVALSHA x 1 g 12200 new":                nil,
		"EVAL x 1 k":                             nil,
		"DELEX k IFEQ 0000000000000007|a|1|":     {{"release", "k", "a", false}},
		"DELIFEQ k 0000000000000007|a|1|":        {{"release", "k", "a", false}},
	} {
		if got := wire.Steps(strings.Fields(call)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", call, got, want)
		}
	}
	if probe := wire.Steps([]string{"DELEX", "k", "IFEQ", "0000000000000007|a|1|++"}); probe != nil {
		t.Errorf("a probe does %v", probe)
	}
}

func TestParseValue(t *testing.T) {
	for value, want := range map[string]wire.Value{
		"0000000000000007|a|1|l":  {7, "a", "l", false},
		"0000000000000007|a|1|l+": {7, "a", "l", true},
		"0000000000000007|a|2|":   {7, "a", "", false},
		// These are no locks of this library.
		"0000000000000007|a|1|l++": {}, "000000000000007|a|1|l": {}, "hold:a": {}, "a": {}, "a+": {}, "": {},
	} {
		if got, ok := wire.ParseValue(value); got != want || ok != (want.Owner != "") {
			t.Errorf("%s: %v, want %v", value, got, want)
		}
	}
}
