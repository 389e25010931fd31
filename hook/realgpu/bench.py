#!/usr/bin/env python3
"""Measures injected latency on a real GPU and compares the predictor with it.

    make build hook
    python3 hook/realgpu/bench.py --out out/realgpu

For each model it measures the time of a training step without the library, with it
in transparent mode, and at each added round trip. It records a profiler trace of the
same run without the library and predicts from it with "dxpu model predict". Each run
is a process. Runs alternate in rounds, so that the warm-up of the GPU favours none.
It writes results.json and table.md. README.md has the settings of the GPU.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

NATIVE_US = 1.2  # native round trip in the library and the predictor
TRANSPARENT_LIMIT, PREDICTION_LIMIT = 1.0, 2.0  # per cent, points


def train(name, warmup, steps, trace):
    """Trains in this process and prints the step times as JSON."""
    import torch

    import models

    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = False  # the same kernels in every process
    torch.backends.cudnn.deterministic = True
    net, batch, loss = models.build(name)
    net = net.cuda().train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    data = [tuple(t.pin_memory() for t in batch()) for _ in range(4)]

    def step(i):
        x, target = (t.cuda(non_blocking=True) for t in data[i % len(data)])
        optimizer.zero_grad(set_to_none=True)
        loss(net(x), target).backward()
        optimizer.step()

    for i in range(warmup):
        step(i)
    torch.cuda.synchronize()
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

    def run(self, name, settings=None, trace=None):
        """Returns the result of a run; with settings None without the library."""
        command = [sys.executable, os.path.abspath(__file__), "--worker", name, "--warmup", str(self.args.warmup), "--steps", str(self.args.steps)]
        if trace:
            command += ["--trace", str(trace)]
        if settings is not None:
            command = [self.args.dxpu, "model", "run", "--native-rtt", f"{NATIVE_US}us", *settings, "--", *command]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def predict(self, trace, delta, native_ms):
        command = [self.args.dxpu, "model", "predict", str(trace), "--costs", "paper", "--json", "--quiet", "--native-rtt", f"{NATIVE_US}us",
                   "--rtt", f"{NATIVE_US + delta:.3f}us", "--native-step", f"{native_ms * 1e6:.0f}ns"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
        prediction = json.loads(done.stdout)["prediction"]
        return 100 * prediction["relative"], 100 * prediction["additive"]

    def model(self, name):
        times = {"native": [], "transparent": []} | {d: [] for d in self.args.deltas}
        stats = {}
        for _ in range(self.args.rounds):
            for what, found in times.items():
                settings = None
                if what == "transparent":
                    settings = []
                elif what != "native":
                    file = self.out / f"{name}-{what:g}us-stats.json"
                    settings = ["--rtt", f"{NATIVE_US + what:.3f}us", "--stats", str(file)]
                result = self.run(name, settings)
                found.append(result["mean_ms"])
                if what not in ("native", "transparent"):
                    stats[what] = json.loads(file.read_text())
                print(f"{name} {what}: {found[-1]:.3f} ms", file=sys.stderr)
        ms = {what: statistics.median(found) for what, found in times.items()}
        trace = self.out / f"{name}.pt.trace.json"
        info = self.run(name, None, trace)
        rows = []
        for delta in self.args.deltas:
            replay, additive = self.predict(trace, delta, ms["native"]) if delta > 0 else (100.0, 100.0)
            measured = 100 * ms["native"] / ms[delta]
            rows.append({"delta_us": delta, "step_ms": ms[delta], "measured": measured, "predicted": replay, "additive": additive,
                         "difference": replay - measured, "stats": stats[delta]})
        change = 100 * (ms["transparent"] / ms["native"] - 1)
        return {"model": name, "device": info["device"], "torch": info["torch"], "cuda": info["cuda"], "native_ms": ms["native"],
                "transparent_ms": ms["transparent"], "transparent_change": change, "rounds": times, "rows": rows}

    def main(self):
        results = [self.model(name) for name in self.args.models]
        (self.out / "results.json").write_text(json.dumps(results, indent=2, default=str) + "\n")
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
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--trace", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        train(args.worker, args.warmup, args.steps, args.trace)
    else:
        Bench(args).main()


if __name__ == "__main__":
    main()
