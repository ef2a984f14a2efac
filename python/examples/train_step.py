"""Whole training steps on one device beside what plans of one rank predict: time by part, and peak memory.

    evenkeel solve --profile P --cluster "1x1 h100_sxm" --model config.json --seq-len 32k --dtype bf16 --zero zero0 -o a.plan.json
    python3 python/examples/train_step.py a.plan.json [b.plan.json ...] --kernel sdpa_cudnn -o training.json
    python3 python/examples/train_step.py a.plan.json [b.plan.json ...] --measured training.json
    evenkeel fit gpu.rec.jsonl --training training.json -o gpu.profile.json

A step is written as a trainer writes it, with torch's own operators: embedding, layers (python/evenkeel/whole.py
around torch's scaled_dot_product_attention), final norm, cross-entropy in chunks of tokens, and AdamW in float32
on master copies of the parameters, whose gradients are kept between steps. Of the plan nothing is taken but its
job: the model, the sequence's length, the precision, the chunk and whether layers are recomputed. The table says
how far what was measured, the median over the steps, is off what was predicted, in percent of that.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from evenkeel import whole
from evenkeel.nodes import rms

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
KERNELS = {"sdpa_cudnn": "CUDNN_ATTENTION", "sdpa_flash": "FLASH_ATTENTION", "sdpa_efficient": "EFFICIENT_ATTENTION"}
PARTS = ("forward", "loss", "backward", "optimizer")


class Layer(whole.Layer):
    """A layer with weights drawn on the device, as what they are does not matter to the time."""

    def __init__(self, model: whole.Model, new: Callable[..., Tensor]) -> None:
        self.model = model
        self.weights = {name: new(*shape) if len(shape) > 1 else torch.ones_like(new(*shape)).requires_grad_()
                        for name, shape in model.shapes().items()}


class Clock:
    """Times between marks: of the stream that computes on a GPU, else of the host."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Ends one part and begins the next."""
        if not self._cuda:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def parts(self) -> list[float]:
        """Seconds between the marks, which are forgotten."""
        if self._cuda:
            torch.cuda.synchronize()
        pairs = list(zip(self._marks, self._marks[1:]))
        self._marks = []
        return [a.elapsed_time(b) / 1e3 if self._cuda else b - a for a, b in pairs]


class Watch:
    """The clock and the power of a GPU while it trains, by nvidia-smi; nothing without a GPU or without that.

    Between enter and exit. A call that is measured alone leaves a GPU at its full clock; what it has in a step says
    how much of the step's longer time that is.
    """

    def __init__(self, gpu: str) -> None:
        self._gpu, self._since = gpu, math.inf
        self._samples: list[tuple[float, float, float]] = []  # when, Hz, W
        self._tool: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Watch":
        if self._gpu:
            with contextlib.suppress(OSError):
                self._tool = subprocess.Popen(
                    ["nvidia-smi", "--id=" + self._gpu, "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "50"],
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                self._reader = threading.Thread(target=self._read, daemon=True)
                self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._tool:
            self._tool.kill()
            self._reader.join()
            self._tool.communicate()

    def begin(self) -> None:
        """Only what is sampled from now on counts."""
        self._since = time.monotonic()

    def facts(self) -> dict[str, float]:
        """Medians since begin: sm_clock_hz, power_w."""
        seen = [s[1:] for s in list(self._samples) if s[0] >= self._since]
        return dict(zip(("sm_clock_hz", "power_w"), map(statistics.median, zip(*seen))))

    def _read(self) -> None:
        assert self._tool and self._tool.stdout
        for line in self._tool.stdout:
            with contextlib.suppress(ValueError):  # [N/A] of a GPU that does not tell
                megahertz, watts = (float(x) for x in line.split(","))
                self._samples.append((time.monotonic(), megahertz * 1e6, watts))


def gpu_id(device: torch.device) -> str:
    """By which nvidia-smi knows a device: by its number where torch does not tell more; "" of a processor."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return "GPU-" + str(properties.uuid) if hasattr(properties, "uuid") else str(device.index or 0)


class Training:
    """A model of a plan's job with its optimizer, on one device."""

    def __init__(self, document: dict[str, Any], device: torch.device, kernel: str) -> None:
        job = document["job"]
        self._model, of = whole.model_of(document), job["model"]
        self._device, self._dtype, self._kernel = device, DTYPES[job["dtype"]], kernel
        self._tokens, self._chunk = job["seq_len_tokens"], job["loss_chunk_tokens"]
        self._vocab = of["vocab"]
        if of.get("position_rows"):
            raise SystemExit("train_step.py: learned positions are not trained here")
        layers = [Layer(self._model, self._new) for _ in range(of["layers"])]
        self._embedding = self._new(self._vocab, self._model.hidden)
        self._head = self._embedding if of.get("tied_embeddings") else self._new(self._vocab, self._model.hidden)
        self._norm = torch.ones(self._model.hidden, device=device, dtype=self._dtype, requires_grad=True)
        at = torch.arange(self._tokens)
        tables = whole.angles(at, self._model.rotary, self._dtype, device)
        self._layers, self._tables, self._recompute = layers, tables, job["recompute"] == "full"
        weights = [w for layer in layers for w in layer.weights.values()]
        self._weights = list({id(w): w for w in [*weights, self._embedding, self._head, self._norm]}.values())
        for w in self._weights:
            w.grad = torch.zeros_like(w)
        master = [w.detach().float() if self._dtype != torch.float32 else w.detach() for w in self._weights]
        fused: dict[str, Any] = {"fused": True} if device.type == "cuda" else {}
        self._optimizer = torch.optim.AdamW(master, lr=1e-5, **fused)
        self._text = torch.randint(self._vocab, (self._tokens + 1,), device=device)

    def step(self, clock: Clock) -> float:
        """One step; the clock is marked at its parts. Returns the loss."""
        words, targets = self._text[:-1], self._text[1:]
        clock.mark()
        x = F.embedding(words, self._embedding)
        for layer in self._layers:
            x = checkpoint(self._layer, layer, x, use_reentrant=True) if self._recompute else self._layer(layer, x)
        clock.mark()
        loss, dx = self._loss(x, targets)
        clock.mark()
        x.backward(dx)
        del x, dx
        clock.mark()
        self._update()
        clock.mark()
        return float(loss)

    def _new(self, *shape: int) -> Tensor:
        w = torch.randn(*shape, device=self._device, dtype=self._dtype)
        return w.mul_((shape[0] if len(shape) > 1 else 1) ** -0.5).requires_grad_()

    def _layer(self, layer: Layer, x: Tensor) -> Tensor:
        return layer.after(x, self._attend(*layer.before(x, *self._tables)))

    def _attend(self, *heads: Tensor) -> Tensor:
        """[tokens, heads, head_dim] each, as of one sequence a batch."""
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in heads)
        if self._kernel == "plain":
            return plain(q[0], k[0], v[0]).transpose(0, 1)
        more = {} if q.shape[1] == k.shape[1] else {"enable_gqa": True}
        with chosen(self._kernel):
            out: Tensor = getattr(F, "scaled_dot_product_attention")(q, k, v, is_causal=True, **more)
        return out[0].transpose(0, 1)

    def _loss(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss over the tokens and its gradient by x, a chunk's logits at a time."""
        x = x.detach().requires_grad_()
        y = rms(x, self._norm)
        inside, total = y.detach(), torch.zeros((), device=x.device)
        gradients = torch.empty_like(inside)
        for a in range(0, self._tokens, self._chunk):
            rows = inside[a : a + self._chunk].requires_grad_()
            logits = (rows @ self._head.t()).float()
            loss = F.cross_entropy(logits, targets[a : a + self._chunk], reduction="sum") / self._tokens
            del logits
            loss.backward()
            assert rows.grad is not None
            gradients[a : a + self._chunk] = rows.grad
            total += loss.detach()
        y.backward(gradients)
        assert x.grad is not None
        return total, x.grad

    def _update(self) -> None:
        """AdamW of one parameter after the other, so that one float32 gradient exists at a time."""
        master = self._optimizer.param_groups[0]["params"]
        for w, m in zip(self._weights, master):
            m.grad = w.grad.float() if w.dtype != torch.float32 else w.grad  # type: ignore[union-attr]
            self._optimizer.param_groups[0]["params"] = [m]
            self._optimizer.step()
            m.grad = None
        self._optimizer.param_groups[0]["params"] = master
        with torch.no_grad():
            for w, m in zip(self._weights, master):
                w.copy_(m)
                w.grad.zero_()  # type: ignore[union-attr]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [heads, tokens, head_dim] by products and a softmax, for a torch without its own."""
    k, v = (t.repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    later = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v


@contextlib.contextmanager
def chosen(kernel: str) -> Iterator[None]:
    """torch's attention kernel of this name, or whichever it takes."""
    if kernel == "auto":
        yield
        return
    attention: Any = importlib.import_module("torch.nn.attention")  # of torch 2.3 and later
    with attention.sdpa_kernel(getattr(attention.SDPBackend, KERNELS[kernel])):
        yield


def predicted(document: dict[str, Any]) -> dict[str, Any]:
    """The plan's times by part of a training step, its interval, and its peak memory."""
    parts = dict.fromkeys(PARTS, 0.0)
    for part in document["step"]["parts"]:
        name = part["name"]
        if name not in ("loss", "optimizer"):
            name = "forward" if name.endswith("forward") else "backward"  # recomputed layers run in the backward
        parts[name] += part["time"]["mid_s"]
    memory, step = document["step"]["ranks"][0]["memory"], document["step"]["time"]
    peak = sum(memory[n + "_bytes"] for n in ("states", "activations", "transient", "logits"))
    return {"step_s": step["mid_s"], "lo_s": step["lo_s"], "hi_s": step["hi_s"], "parts_s": parts, "peak_bytes": peak}


def measured(document: dict[str, Any], device: torch.device, kernel: str, steps: int, warm: int) -> dict[str, Any]:
    """What a plan's job takes on the device: an entry of the document of steps."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    else:
        torch.set_num_threads(threads(document["ranks"][0]["device"]) or torch.get_num_threads())
    training, clock, times = Training(document, device, kernel), Clock(device), []
    with Watch(gpu_id(device)) as watch:
        for i in range(warm + steps):
            if i == warm:
                watch.begin()
                if cuda:
                    torch.cuda.reset_peak_memory_stats()
            training.step(clock)
            parts = clock.parts()
            if i >= warm:
                times.append({name + "_s": t for name, t in zip(PARTS, parts)})
    out: dict[str, Any] = {"kernel": kernel, "job": document["job"], "times": times, **watch.facts()}
    if cuda:
        out["peak_bytes"], out["reserved_bytes"] = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return out


def threads(device: str) -> int:
    """Of a processor's device type, such as torch_cpu:2; 0 of another."""
    cores = device.split("@")[0].rpartition(":")[2]
    return int(cores) if ":" in device and cores.isdigit() else 0


def compared(document: dict[str, Any], took: dict[str, Any]) -> str:
    """A row of the table: what was measured over what was predicted, less one, in percent."""
    want = predicted(document)
    step = statistics.median(sum(t.values()) for t in took["times"])
    inside = "yes" if want["lo_s"] <= step <= want["hi_s"] else "no"
    row = f"{step * 1e3:9.1f} {want['step_s'] * 1e3:9.1f} {_off(step, want['step_s'])} {inside:>6}"
    for name in PARTS:
        row += f" {_off(statistics.median(t[name + '_s'] for t in took['times']), want['parts_s'][name]):>9}"
    if "peak_bytes" in took:
        row += f" {took['peak_bytes'] / 2**30:8.2f} {want['peak_bytes'] / 2**30:8.2f}"
        row += f" {_off(took['peak_bytes'], want['peak_bytes'])}"
    return row


def _off(took: float, want: float) -> str:
    return f"{100 * (took / want - 1):+7.1f}" if want else f"{'':7}"


HEAD = " ".join([
    f"{'plan':24}", f"{'took, ms':>9}", f"{'plan, ms':>9}", f"{'off, %':>7}", "inside", *(f"{p:>9}" for p in PARTS),
    f"{'peak GiB':>8}", f"{'plan GiB':>8}", f"{'off, %':>7}",
])


def loaded(path: str) -> dict[str, Any]:
    """A JSON file's object."""
    try:
        with open(path, encoding="utf-8") as file:
            document: dict[str, Any] = json.load(file)
            return document if isinstance(document, dict) else {}
    except (OSError, ValueError) as error:
        raise SystemExit(f"train_step.py: {path}: {error}") from error


def opened(path: str, trains: bool) -> dict[str, Any]:
    """A plan of one rank, which can be trained here if it is to be."""
    document = loaded(path)
    if not str(document.get("schema")).startswith("evenkeel.plan/"):
        raise SystemExit(f"train_step.py: {path}: want a plan that evenkeel solve wrote with -o")
    if len(document["ranks"]) != 1:
        raise SystemExit(f"train_step.py: {path}: {len(document['ranks'])} ranks: want a plan of one, --cluster \"1x1 TYPE\"")
    job, device = document["job"], document["ranks"][0]["device"]
    if job["dtype"] not in DTYPES:
        raise SystemExit(f"train_step.py: {path}: {job['dtype']}: want a plan in {', '.join(DTYPES)}")
    if job.get("grad_accumulation", 1) > 1:
        raise SystemExit(f"train_step.py: {path}: grad_accumulation {job['grad_accumulation']}: want a plan of one micro-batch")
    if trains and threads(device) == 0 and not torch.cuda.is_available():
        raise SystemExit(f"train_step.py: {path}: a plan for {device}, and torch finds no GPU here: train it where one is")
    return document


def name_of(path: str) -> str:
    """A plan's file without its ending."""
    name = os.path.basename(path)
    for end in (".json", ".plan"):
        name = name[: -len(end)] if name.endswith(end) else name
    return name


def write(path: str, document: dict[str, Any]) -> None:
    """Replaces the file, so that a torn run leaves what was measured before."""
    with open(path + ".part", "w", encoding="utf-8") as out:
        json.dump(document, out, indent=1)
        out.write("\n")
    os.replace(path + ".part", path)


def main() -> None:
    """Measures, or reads what was measured, and prints the table."""
    parser = argparse.ArgumentParser(description="Whole training steps on one device beside plans of one rank.")
    parser.add_argument("plans", nargs="+", help="plans of one rank")
    parser.add_argument("--kernel", default="auto", choices=["auto", "plain", *KERNELS],
                        help="torch's attention kernel; plain: products and a softmax")
    parser.add_argument("--steps", type=int, default=3, help="steps to measure of each plan")
    parser.add_argument("--warm-up", type=int, default=1, help="steps before them")
    parser.add_argument("-o", "--output", metavar="FILE", help="what was measured, for evenkeel fit --training")
    parser.add_argument("--measured", metavar="FILE", help="compare with what such a file has; measure nothing")
    args = parser.parse_args()
    if args.measured and args.output:
        raise SystemExit("train_step.py: --measured measures nothing, so there is nothing to write: leave out -o")
    if args.steps < 1 or args.warm_up < 0:
        raise SystemExit("train_step.py: --steps: want at least one, and --warm-up none or more")
    if not args.measured and args.kernel != "plain" and importlib.util.find_spec("torch.nn.attention") is None:
        raise SystemExit(f"train_step.py: torch {torch.__version__} has no attention of its own that can be chosen: want "
                         "2.5 or later, or --kernel plain")
    known: dict[str, dict[str, Any]] = {}
    if args.measured:
        document = loaded(args.measured)
        if not str(document.get("schema")).startswith("evenkeel.training/"):
            raise SystemExit(f"train_step.py: {args.measured}: want a file that this script wrote with -o")
        known = {entry["name"]: entry for entry in document["steps"]}
    names = [name_of(path) for path in args.plans]
    if len(set(names)) < len(names):
        raise SystemExit("train_step.py: two plans have one name, by which their steps are told apart: rename one")
    if args.output:
        try:  # before steps are spent for it
            with open(args.output + ".part", "w", encoding="utf-8"):
                pass
            os.remove(args.output + ".part")
        except OSError as error:
            raise SystemExit(f"train_step.py: -o {args.output}: {error.strerror}") from error
    plans = {name: opened(path, not args.measured) for name, path in zip(names, args.plans)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out: dict[str, Any] = {
        "schema": "evenkeel.training/v1", "tool": "python/examples/train_step.py",
        "created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "stack": stack(), "steps": [],
    }
    if device.type == "cuda":
        out["gpu"] = torch.cuda.get_device_name()
    failed = 0
    print(HEAD, flush=True)
    for name, document in plans.items():
        if known and (name not in known or known[name]["job"] != document["job"]):
            print(f"{name:24} was not measured" + (", but another job of this name" if name in known else ""), flush=True)
            continue
        try:
            took = known.get(name) or measured(document, device, args.kernel, args.steps, args.warm_up)
        except RuntimeError as error:  # out of memory above all
            failed += 1
            print(f"{name:24} {str(error).splitlines()[0]}", flush=True)
            continue
        out["steps"].append({"name": name, **took})
        if args.output:
            write(args.output, out)
        print(f"{name:24} {compared(document, took)}", flush=True)
    sys.exit(1 if failed else 0)


def stack() -> str:
    """The versions that times hold for."""
    cuda, cudnn = getattr(torch, "version").cuda, getattr(torch, "backends").cudnn
    return f"torch {torch.__version__}" + (f", CUDA {cuda}, cuDNN {cudnn.version()}" if cuda else "")


if __name__ == "__main__":
    main()
