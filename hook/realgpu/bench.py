#!/usr/bin/env python3
"""Measures injected latency on a real GPU and compares the predictor with it.

    make build hook
    python3 hook/realgpu/bench.py --out out/realgpu

For each model it measures the time of a training step without the library, with it
in transparent mode, and at each added round trip. It records a profiler trace of the
same run without the library and predicts from it with "dxpu model predict". Each run
is a process; those of a batch get ready together, and then measure one after the other.
Runs alternate in rounds, so that the warm-up of the GPU favours none. It writes results.json and table.md; --predict
makes them again from the measurements in --out, without a GPU. README.md has the
settings of the GPU.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from stages import Run, batches, stage

NATIVE_US = 1.2  # native round trip in the library and the predictor
TRANSPARENT_LIMIT, PREDICTION_LIMIT = 1.0, 2.0  # per cent, points
WARM_SECONDS = 1.0  # least time before a measurement, in which an idle GPU raises its clocks


def train(name, warmup, steps, trace):
    """Trains in this process and prints the step times as JSON."""
    import torch

    import models

    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = False  # the same kernels in every process
    torch.backends.cudnn.deterministic = True
    net, batch, loss = models.build(name)
    stage("ready")
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    net = net.cuda().train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    data = [tuple(t.pin_memory() for t in batch()) for _ in range(4)]

    def step(i):
        x, target = (t.cuda(non_blocking=True) for t in data[i % len(data)])
        optimizer.zero_grad(set_to_none=True)
        loss(net(x), target).backward()
        optimizer.step()

    i, until = 0, time.monotonic() + WARM_SECONDS
    while i < warmup or time.monotonic() < until:
        step(i)
        torch.cuda.synchronize()
        i += 1
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for i in range(steps):
        step(i)
        marks[i + 1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    if trace:
        profile(torch, step, trace)
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
                      "mean_ms": statistics.fmean(times), "median_ms": statistics.median(times)}))


def profile(torch, step, trace):
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=5)
    with torch.profiler.profile(activities=kinds, schedule=schedule, on_trace_ready=lambda p: p.export_chrome_trace(trace)) as p:
        for i in range(8):
            step(i)
            torch.cuda.synchronize()
            p.step()


class Bench:
    def __init__(self, args):
        self.args, self.out = args, pathlib.Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def command(self, name, settings=None, trace=None):
        """Returns the command of a run; with settings None it is one without the library."""
        command = [sys.executable, os.path.abspath(__file__), "--worker", name, "--warmup", str(self.args.warmup), "--steps", str(self.args.steps)]
        if trace:
            command += ["--trace", str(trace)]
        if settings is not None:
            command = [self.args.dxpu, "model", "run", "--native-rtt", f"{NATIVE_US}us", *settings, "--", *command]
        return command

    def stats(self, name, delta):
        return self.out / f"{name}-{delta:g}us-stats.json"

    def plan(self, name):
        """Returns the runs of a model, as pairs of what it measures and its command."""
        commands = {"native": self.command(name), "transparent": self.command(name, [])}
        for delta in self.args.deltas:
            commands[delta] = self.command(name, ["--rtt", f"{NATIVE_US + delta:.3f}us", "--stats", str(self.stats(name, delta))])
        rounds = [list(commands.items())[:: 1 if r % 2 == 0 else -1] for r in range(self.args.rounds)]
        return [run for r in rounds for run in r]

    def measure(self, name):
        plan = self.plan(name)
        times = {what: [] for what, _ in plan}
        plan.append(("trace", self.command(name, None, self.trace(name))))
        runs = []
        starts = [functools.partial(Run, command) for _, command in plan]
        for (what, _), run in zip(plan, batches(starts, self.args.batch, lambda run: run.reach("ready"))):
            run.go("ready")
            info = run.result()
            if what != "trace":
                times[what].append(info["mean_ms"])
                print(f"{name} {what}: {times[what][-1]:.3f} ms", file=sys.stderr)
            runs.append(run)
        for run in runs:
            run.close()
        return {"model": name, "device": info["device"], "torch": info["torch"], "cuda": info["cuda"], "deltas": self.args.deltas,
                "rounds": {str(what): found for what, found in times.items()},
                "stats": {str(d): json.loads(self.stats(name, d).read_text()) for d in self.args.deltas}}

    def trace(self, name):
        return self.out / f"{name}.pt.trace.json.gz"

    def predict(self, trace, delta, native_ms):
        command = [self.args.dxpu, "model", "predict", str(trace), "--costs", "paper", "--json", "--quiet", "--native-rtt", f"{NATIVE_US}us",
                   "--rtt", f"{NATIVE_US + delta:.3f}us", "--native-step", f"{native_ms * 1e6:.0f}ns"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
        prediction = json.loads(done.stdout)["prediction"]
        return 100 * prediction["relative"], 100 * prediction["additive"]

    def compare(self, measured):
        """Returns the measurements of a model beside the predictions from its trace."""
        ms = {what: statistics.median(found) for what, found in measured["rounds"].items()}
        rows = []
        for delta in measured["deltas"]:
            replay, additive = self.predict(self.trace(measured["model"]), delta, ms["native"]) if delta > 0 else (100.0, 100.0)
            relative = 100 * ms["native"] / ms[str(delta)]
            rows.append({"delta_us": delta, "step_ms": ms[str(delta)], "measured": relative, "predicted": replay, "additive": additive,
                         "difference": replay - relative})
        change = 100 * (ms["transparent"] / ms["native"] - 1)
        return measured | {"native_ms": ms["native"], "transparent_ms": ms["transparent"], "transparent_change": change, "rows": rows}

    def main(self):
        file = self.out / "measured.json"
        if not self.args.predict:
            measured = []
            for name in self.args.models:
                measured.append(self.measure(name))
                file.write_text(json.dumps(measured, indent=2) + "\n")
        if self.args.measure:
            return
        results = [self.compare(m) for m in json.loads(file.read_text())]
        (self.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        text = table(results)
        (self.out / "table.md").write_text(text)
        print(text)


def table(results):
    lines = []
    for r in results:
        mark = "within" if abs(r["transparent_change"]) < TRANSPARENT_LIMIT else "NOT within"
        lines += [f"### {r['model']}, {r['device']}, PyTorch {r['torch']}, CUDA {r['cuda']}", "",
                  f"Step {r['native_ms']:.3f} ms; with the library and no settings {r['transparent_ms']:.3f} ms "
                  f"({r['transparent_change']:+.2f} %, {mark} {TRANSPARENT_LIMIT:g} %).", "",
                  "| added round trip, µs | step, ms | measured, % | predicted, % | difference, points | additive, % |", "|---|---|---|---|---|---|"]
        for row in r["rows"]:
            note = "" if abs(row["difference"]) < PREDICTION_LIMIT else " (!)"
            lines.append(f"| {row['delta_us']:g} | {row['step_ms']:.3f} | {row['measured']:.2f} | {row['predicted']:.2f} | {row['difference']:+.2f}{note} | {row['additive']:.2f} |")
        lines.append("")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dxpu", default="bin/dxpu")
    p.add_argument("--out", default="out/realgpu")
    p.add_argument("--models", nargs="+", default=["resnet50", "bert", "ssd", "ncf"])
    p.add_argument("--deltas", nargs="+", type=float, default=[0, 2, 4, 6, 8, 12, 18], help="added round trips in µs")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--warmup", type=int, default=20, help="least number of steps before a measurement")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch", type=int, default=8, help="processes that get ready together")
    p.add_argument("--measure", action="store_true", help="measure only")
    p.add_argument("--predict", action="store_true", help="predict again, from the measurements and traces in --out")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--trace", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        train(args.worker, args.warmup, args.steps, args.trace)
    else:
        Bench(args).main()


if __name__ == "__main__":
    main()
