#!/usr/bin/env python3
"""Measures the sharing of a real GPU by the driver library and the agent.

    make build hook
    python3 hook/realgpu/share.py accuracy --gpu-memory 8GiB
    python3 hook/realgpu/share.py overhead
    python3 hook/realgpu/share.py compute
    python3 hook/realgpu/share.py colocate --policy timeslice --policy orion

accuracy  allocates in a share until it is refused: the sum beside the limit, and
          what the driver takes beside it for contexts and code (by nvidia-smi).
overhead  trains without the library and in a share of the whole GPU, whose gate is
          open. Goal: under 1 %.
compute   runs steady kernels in shares of the compute, one alone and two at once, and
          compares their rates with that of the whole GPU. Goal: within 3 %.
colocate  serves requests online alone, then beside offline training, without the
          agent and with each policy: p99 of a request and the throughput of the
          training. With --graph a request is one launch of a graph of kernels.

Each run is a process; those of a batch get ready together, and then measure one after the
other. Runs alternate in rounds. It starts "dxpu share serve" in a folder of its own, needs root for that, and
writes WHAT.json and WHAT.md to --out.
Leave the GPU to it and lock the clocks (README.md).
"""

import argparse
import atexit
import functools
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from stages import Run, batches, stage

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
OVERHEAD_LIMIT = 1.0  # per cent
COMPUTE_LIMIT = 3.0  # per cent of the GPU
ROOM_MIB = 1024  # left for contexts and code in a share of the whole GPU


# ---- pure parts, which share_test.py runs without a GPU ----

def parse_bytes(text):
    """Returns the bytes of "8GiB"; a number without a unit is bytes."""
    for unit in sorted(UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * UNITS[unit])
    return int(text)


def percentile(values, p):
    """Returns the nearest-rank percentile of a list that is not empty."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(p / 100 * len(values)) - 1)]


def accuracy_row(limit, allocated, step):
    """Judges an allocation up to the limit in steps of some bytes."""
    return {"limit": limit, "allocated": allocated, "over": max(0, allocated - limit),
            "missing": max(0, limit - allocated), "ok": limit - step < allocated <= limit}


def overhead(bare, shared):
    """Returns the slow-down in per cent: medians of the rounds' step times in ms."""
    return (statistics.median(shared) / statistics.median(bare) - 1) * 100


def colocation_row(policy, alone, beside, train_alone, train_beside):
    """Compares request times in ms and training steps per second with those alone."""
    a, b = percentile(alone, 99), percentile(beside, 99)
    return {"policy": policy, "p99_alone_ms": a, "p99_ms": b, "slowdown": b / a,
            "train": train_beside / train_alone if train_alone else 0.0}


def compute_row(shares, rates, whole):
    """Judges the rates of steady kernels in shares in per cent, beside the whole GPU's."""
    got = [100 * r / whole for r in rates]
    return {"shares": " + ".join(f"{s} %" for s in shares), "got": " + ".join(f"{g:.2f} %" for g in got),
            "ok": all(abs(g - s) <= COMPUTE_LIMIT for g, s in zip(got, shares))}


def order(names, rounds):
    """Returns the runs: each round in the other direction, so that warm-up favours none."""
    return [n for r in range(rounds) for n in (names if r % 2 == 0 else names[::-1])]


def table(rows):
    """Returns rows, dictionaries with the same keys, as a table in Markdown."""
    if not rows:
        return ""
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    for row in rows:
        lines.append("| " + " | ".join(f"{row[k]:.3f}" if isinstance(row[k], float) else str(row[k]) for k in keys) + " |")
    return "\n".join(lines) + "\n"


# ---- in a process of its own, with PyTorch ----

def child_allocate(args):
    import torch

    stage("ready")
    torch.cuda.init()
    stage("warm")
    held, step = [], parse_bytes(args.step)
    free, total = torch.cuda.mem_get_info()
    allocated = 0
    while True:
        try:
            # Beyond the caching allocator's rounding: blocks of at least 1 MiB are exact.
            held.append(torch.cuda.caching_allocator_alloc(step))
            allocated += step
        except RuntimeError:
            break
    print(json.dumps({"allocated": allocated, "free": free, "total": total, "whole": used_by_process(os.getpid())}))


def child_train(args):
    import torch

    import models

    net, batch, loss = models.build(args.model)
    stage("ready")
    net = net.cuda().train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    x, target = (t.cuda() for t in batch())

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(net(x), target).backward()
        optimizer.step()
        torch.cuda.synchronize()

    times = timed(step, args.seconds)
    print(json.dumps({"ms": times, "per_second": len(times) / args.seconds}))


def child_serve(args):
    import torch

    import models

    net, batch, _ = models.build(args.model)
    stage("ready")
    net = net.cuda().eval()
    x = batch()[0][:1].cuda()
    with torch.no_grad():
        work = captured(torch, net, x) if args.graph else functools.partial(net, x)

        def request():
            work()
            torch.cuda.synchronize()

        print(json.dumps({"ms": timed(request, args.seconds, args.pause)}))


def captured(torch, net, x):
    """Returns a function that runs the network by one launch of a graph, as servers of models do."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(x)
    return graph.replay


def child_kernels(args):
    import torch

    stage("ready")
    a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    out = torch.empty_like(a)

    def launches():
        for _ in range(8):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()

    print(json.dumps({"per_second": 8 * len(timed(launches, args.seconds)) / args.seconds}))


def timed(work, seconds, pause=0.0):
    """Returns the times of the work's repetitions in ms, after those that warm up."""
    for _ in range(10):
        work()
    stage("warm")
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        start = time.monotonic()
        work()
        times.append((time.monotonic() - start) * 1000)
        if pause:
            time.sleep(pause)
    return times


def used_by_process(pid):
    """Returns the bytes that nvidia-smi tells for a process, or 0."""
    out = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, check=False).stdout
    for line in out.splitlines():
        fields = [f.strip() for f in line.split(",")]
        if len(fields) == 2 and fields[0] == str(pid) and fields[1].isdigit():
            return int(fields[1]) << 20
    return 0


def gpu_bytes():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True)
    return int(out.stdout.splitlines()[0]) << 20


# ---- the benchmark ----

class Agent:
    """The agent, in a folder of its own."""

    def __init__(self, args, policy):
        self.folder = tempfile.TemporaryDirectory(prefix="share", ignore_cleanup_errors=True)
        self.dir = self.folder.name
        self.dxpu = args.dxpu
        # Its own state: the machine's agent keeps its shares.
        command = [self.dxpu, "share", "serve", "--dir", self.dir, "--state", os.path.join(self.dir, "state", "share.json"), "--log-level", "warn"]
        for gpu in args.gpu:
            command += ["--gpu", gpu]
        if policy:
            command += ["--policy", policy]
        self.process = subprocess.Popen(command)
        atexit.register(self.process.terminate)  # after an error of a run
        for _ in range(100):
            if self.process.poll() is not None:
                raise SystemExit("dxpu share serve ended")
            if list(pathlib.Path(self.dir).glob("*.sock")):
                return
            time.sleep(0.1)
        raise SystemExit("dxpu share serve makes no socket")

    def command(self, memory, compute, kind):
        return [self.dxpu, "share", "run", "--dir", self.dir, "--gpu-memory", f"{memory}B", "--compute", compute, "--class", kind, "--"]

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


class Group:
    """Runs that measure at the same time, in shares of an agent of their own."""

    def __init__(self, args, policy, runs):
        """Each run is a child, and its memory, compute and class in a share, or None."""
        self.agent = None if policy == "none" else Agent(args, policy)
        self.runs = [Run(self.command(args, *run)) for run in runs]

    def command(self, args, child, share):
        prefix = self.agent.command(*share) if self.agent and share else ()
        return [*prefix, sys.executable, os.path.abspath(__file__), "child", child, "--model", args.model,
                "--seconds", str(args.seconds), "--pause", str(args.pause), "--step", args.step,
                *(["--graph"] if args.graph else ())]

    def reach(self):
        for run in self.runs:
            run.reach("ready")

    def measure(self):
        """Returns the results."""
        for name in ("ready", "warm"):
            for run in self.runs:
                run.go(name)
        results = [run.result() for run in self.runs]
        for run in self.runs:
            run.close()
        if self.agent:
            self.agent.close()
        return results


def measured(args, groups):
    """Yields the results of groups, each with its policy and runs."""
    for group in batches([functools.partial(Group, args, *g) for g in groups], args.batch, Group.reach):
        yield group.measure()


def accuracy(args):
    limit, step = parse_bytes(args.gpu_memory), parse_bytes(args.step)
    [got] = next(measured(args, [(None, [("allocate", (limit, "100%", "offline"))])]))
    row = accuracy_row(limit, got["allocated"], step)
    row["total told"] = got["total"]
    row["driver's own"] = max(0, got["whole"] - got["allocated"])
    return [row]


def overheads(args):
    whole = gpu_bytes() - (ROOM_MIB << 20)
    names = order(["bare", "shared"], args.rounds)
    groups = [(None if n == "shared" else "none", [("train", (whole, "100%", "online"))]) for n in names]
    found = {"bare": [], "shared": []}
    for name, [got] in zip(names, measured(args, groups)):
        found[name].append(statistics.median(got["ms"]))
    percent = overhead(found["bare"], found["shared"])
    return [{"bare_ms": statistics.median(found["bare"]), "shared_ms": statistics.median(found["shared"]), "overhead_percent": percent, "ok": percent < OVERHEAD_LIMIT}]


def compute(args):
    memory, policy = gpu_bytes() // 8, (args.policy or [None])[0]
    wanted = [[int(part) for part in text.split("+")] for text in args.shares]
    groups = [("none", [("kernels", None)])] + [(policy, [("kernels", (memory, f"{s}%", "offline")) for s in shares]) for shares in wanted]
    [whole], *parts = [[r["per_second"] for r in got] for got in measured(args, groups)]
    return [compute_row(shares, rates, whole) for shares, rates in zip(wanted, parts)]


def colocate(args):
    half = (gpu_bytes() - (ROOM_MIB << 20)) // 2
    both = [("serve", (half, "50%", "online")), ("train", (half, "50%", "offline"))]
    policies = ["none", *args.policy]
    results = measured(args, [("none", [("serve", None)]), ("none", [("train", None)])] + [(p, both) for p in policies])
    [alone], [train_alone] = next(results), next(results)
    rows = []
    for policy, (beside, trained) in zip(policies, results):
        rows.append(colocation_row(policy, alone["ms"], beside["ms"], train_alone["per_second"], trained["per_second"]))
        print(table(rows[-1:]), file=sys.stderr)
    return rows


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["accuracy", "overhead", "compute", "colocate", "child"])
    p.add_argument("child", nargs="?", choices=["allocate", "train", "serve", "kernels"])
    p.add_argument("--dxpu", default="bin/dxpu")
    p.add_argument("--gpu-memory", default="8GiB")
    p.add_argument("--gpu", action="append", default=[], help="GPU for dxpu share serve (default: all)")
    p.add_argument("--step", default="16MiB", help="bytes of one allocation")
    p.add_argument("--model", default="resnet50")
    p.add_argument("--seconds", type=float, default=30)
    p.add_argument("--pause", type=float, default=0.005, help="seconds between two requests")
    p.add_argument("--graph", action="store_true", help="a request is one launch of a graph, as in servers of models, not one for each kernel")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--batch", type=int, default=8, help="groups of runs that get ready together")
    p.add_argument("--policy", action="append", default=[], help="policy, of colocate more than one")
    p.add_argument("--shares", nargs="+", default=["30", "60", "30+60", "20+70"], help="shares of the compute in per cent")
    p.add_argument("--out", default="out/realshare")
    return p


def main():
    args = parser().parse_args()
    if args.what == "child":
        return {"allocate": child_allocate, "train": child_train, "serve": child_serve, "kernels": child_kernels}[args.child](args)
    rows = {"accuracy": accuracy, "overhead": overheads, "compute": compute, "colocate": colocate}[args.what](args)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{args.what}.json").write_text(json.dumps(rows, indent=2))
    (out / f"{args.what}.md").write_text(table(rows))
    print(table(rows), end="")


if __name__ == "__main__":
    main()
