package peer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
)

// A Child is this program once more, as a part of an experiment that is to be a
// process of its own, so that its CPU time and memory can be told from the
// others'. Variables in its environment say what it is. It hears on its standard
// input, and answers on a pipe of its own, since the report goes to standard
// output.
type Child struct {
	In  io.WriteCloser // its standard input
	Out *json.Decoder  // of what it answers

	cmd  *exec.Cmd
	pipe *os.File
}

// StartChild starts a child that runs the experiment. Close must be called; the
// end of ctx ends the child.
func StartChild(ctx context.Context, experiment string, env ...string) (*Child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	c := &Child{cmd: exec.CommandContext(ctx, program, experiment), Out: json.NewDecoder(r), pipe: r}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.ExtraFiles = []*os.File{w}
	c.cmd.Stderr = os.Stderr
	if c.In, err = c.cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return c, nil
}

// Answers is where a child answers.
func Answers() *json.Encoder { return json.NewEncoder(os.NewFile(3, "answers")) }

// Pid returns the child's process id.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Close closes the child's standard input, at the end of which it ends, and
// returns how it did.
func (c *Child) Close() error {
	return errors.Join(c.In.Close(), c.cmd.Wait(), c.pipe.Close())
}
