"""What does the hook add to a step on a GPU, for a gradient with a billion coordinates?

    python -m benchmarks.ddp_cuda --json benchmark-ddp-cuda.json

One process and one GPU, so the all-reduce moves nothing: the time is that of copying, encoding,
checking and querying. The model only adds its parameters up, so that its backward pass is short;
steps with and without the hook take turns, and the difference of their medians is the overhead.
Needs CUDA with NCCL; the goal is below 15 ms on an H200.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.report import print_table, readable
from benchmarks.timing import environment
from diffsketch.ddp.hook import sketch_hook, sketch_state

GOAL = 0.015
PARTS = 40  # tensors that the parameters are in
WARM_UP = 5
CASES: dict[str, dict[str, Any] | None] = {
    "no hook": None,
    "sketch 50x": {"compression": 50},
    "sketch 500x": {"compression": 500},
    "sketch 50x, feedback": {"compression": 50, "error_feedback": True},
}


class Sums(nn.Module):
    """As many parameters as asked for, and next to nothing to compute."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        sizes = [dim // PARTS] * (PARTS - 1) + [dim - (PARTS - 1) * (dim // PARTS)]
        self.parts = nn.ParameterList(torch.zeros(size, device="cuda") for size in sizes)

    def forward(self, inputs: Tensor) -> Tensor:
        """A number that depends on all parameters."""
        total = inputs.sum()
        for part in self.parts:
            total = total + part.sum()
        return total


def step_seconds(dim: int, options: dict[str, Any] | None, steps: int) -> float:
    """The median time of a step."""
    model = DistributedDataParallel(Sums(dim), gradient_as_bucket_view=True, bucket_cap_mb=400)
    if options is not None:
        state = sketch_state(model, "sketch", seed=7, **options)
        model.register_comm_hook(state, sketch_hook)
    event: Any = torch.cuda.Event
    seconds = []
    for step in range(WARM_UP + steps):
        model.zero_grad(set_to_none=False)
        begin, end = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        loss: Any = model(torch.ones(1, device="cuda"))
        loss.backward()
        end.record()
        end.synchronize()
        if step >= WARM_UP:
            seconds.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--quick", action="store_true", help="fewer parameters and steps")
    parser.add_argument("--dim", type=int, default=10**9, help="parameters")
    options = parser.parse_args(arguments)
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        print("Skipped: CUDA with NCCL is needed.")
        return
    dim, steps = (10**7, 5) if options.quick else (options.dim, 20)
    found: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/i", rank=0, world_size=1)
        for _ in range(1 if options.quick else 3):
            for name, case in CASES.items():
                found[name].append(step_seconds(dim, case, steps))
                torch.cuda.empty_cache()
        dist.destroy_process_group()
    medians = {name: statistics.median(turns) for name, turns in found.items()}
    overhead = {name: median - medians["no hook"] for name, median in medians.items()}
    lines = [[name, readable(medians[name]), f"{1e3 * overhead[name]:.2f} ms"] for name in CASES]
    print_table(f"{dim:,} parameters, goal {1e3 * GOAL:g} ms", ["", "step", "overhead"], lines)
    if options.json is not None:
        result = environment(torch.device("cuda")) | {
            "dim": dim, "goal_s": GOAL, "median_s": medians, "overhead_s": overhead, "turns": found,
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
