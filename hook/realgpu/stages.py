"""Runs that get ready while another run measures: a process goes on from each of its
stages when it is told to. The import of PyTorch takes longer than a short run."""

import atexit
import json
import subprocess
import sys

GRACE = 10  # seconds for the end of a process


class Run:
    """A process that writes the name of each stage, and a JSON object at its end."""

    def __init__(self, command):
        self.command, self.read = command, False
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # after an error of another run; no signal once it has ended

    def go(self, *names):
        """Waits until the process is at each of the stages in turn, and lets it go on."""
        for name in names:
            while (line := self.process.stdout.readline()) != f"{name}\n":
                if line == "":
                    self.end()
            try:
                self.process.stdin.write("\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                self.end()

    def end(self):
        self.process.wait()
        raise SystemExit(f"{' '.join(self.command)}: exit status {self.process.returncode}")

    def result(self):
        """Returns the object that the process wrote, without waiting for its end: a
        process takes a while to give up its GPU."""
        while not (line := self.process.stdout.readline()).startswith("{"):
            if line == "":
                self.end()
        self.read = True
        return json.loads(line)

    def close(self):
        """Waits for the end of a run, and ends one whose result nobody has read."""
        try:
            self.process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.read and self.process.returncode != 0:
            self.end()


def stage(name):
    """In the process of a run: says that it is at a stage, and waits."""
    print(name, flush=True)
    if sys.stdin.readline() == "":
        raise SystemExit("the benchmark has ended")


def ahead(starts, number):
    """Yields what each function of a list returns, and calls those of the next ones
    before the caller is done with it."""
    made = []
    for i in range(len(starts)):
        while len(made) < min(i + 1 + number, len(starts)):
            made.append(starts[len(made)]())
        yield made[i]
