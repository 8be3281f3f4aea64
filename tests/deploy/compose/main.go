// Reads a compose file as compose does, with all its profiles, and prints the project as JSON. Exits with 1 and the reason if the file
// does not conform to the schema, or refers to something that it does not define.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	project, err := read(os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(project)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(file string) (any, error) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}
