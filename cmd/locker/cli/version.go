package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/golocker/locker/drivers"
)

// buildInfo is the output of "locker version". The version comes from the build: go install records the module's
// version, and go build the commit.
type buildInfo struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit,omitempty"`
	Date     string   `json:"date,omitempty"`
	Modified bool     `json:"modified,omitempty"`
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Drivers  []string `json:"drivers"`
}

func readBuildInfo() buildInfo {
	v := buildInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Drivers: drivers.Names()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(info.Main.Version, v.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Date = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v buildInfo) String() string {
	commit := ""
	if v.Commit != "" {
		commit = fmt.Sprintf("commit %s of %s", v.Commit, v.Date)
		if v.Modified {
			commit += ", and changes that were not committed"
		}
		commit += "\n"
	}
	return fmt.Sprintf("locker %s\n%s%s %s, drivers: %s\n", v.Version, commit, v.Go, v.Platform,
		strings.Join(v.Drivers, ", "))
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: groupOther,
		Short:   "Print which version of locker this is",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := readBuildInfo()
			if a.json {
				return a.printJSON(v)
			}
			_, err := fmt.Fprint(a.stdout, v)
			return err
		},
	}
}
