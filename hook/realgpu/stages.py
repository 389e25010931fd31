"""Runs that get ready together, and then measure one after the other: a process goes on
from each of its stages when it is told to. The import of PyTorch takes longer than a short
run, and disturbs the runs beside it."""

import atexit
import json
import subprocess
import sys

GRACE = 10  # seconds for the end of a process


class Run:
    """A process that writes the name of each stage, and a JSON object at its end."""

    def __init__(self, command):
        self.command, self.read, self.reached = command, False, None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # after an error of another run; no signal once it has ended

    def reach(self, name):
        """Waits until the process is at a stage."""
        while self.reached != name:
            if (line := self.process.stdout.readline()) == "":
                self.end()
            self.reached = line.rstrip("\n")

    def go(self, *names):
        """Waits until the process is at each of the stages in turn, and lets it go on."""
        for name in names:
            self.reach(name)
            self.reached = None
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


def batches(starts, size, ready):
    """Yields what each function of a list returns: calls those of a batch, and ready with
    each of their results, before it yields the first."""
    for i in range(0, len(starts), size):
        made = [start() for start in starts[i:i + size]]
        for one in made:
            ready(one)
        yield from made
