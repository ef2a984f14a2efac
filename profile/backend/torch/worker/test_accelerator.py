"""Tests of what only an accelerator's worker does, against stand-ins of published signatures and behaviours.

Run by path: python3 -I -B test_accelerator.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import types
import unittest
from typing import Optional
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# As the worker does, before torch loads its pools of threads: spinning ones slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402

import attention_aten as aten  # noqa: E402
import attention_packages  # noqa: E402
import device as devices  # noqa: E402
import kernels  # noqa: E402
import ops  # noqa: E402
import reference  # noqa: E402
import service  # noqa: E402
from attention import Block  # noqa: E402
from binding import Callee  # noqa: E402
from device import Device  # noqa: E402
from errors import Failure  # noqa: E402
from inputs import Inputs  # noqa: E402
from test_kernels import FUNCTIONS, OPERATORS, SCHEMAS, Case, accelerator, operators, parts  # noqa: E402
from test_kernels import flash, packed_backward  # noqa: E402


def fused(kernel: str, namespace=OPERATORS) -> aten.Aten:
    """An operator pair of the stand-ins by the kernel's name."""
    spec = next(s for s in aten.OPERATORS if s.kernel == kernel)
    return aten.Aten(accelerator(), spec, namespace)


class Layouts(Case):
    """How tensors reach the operators, and what shape their statistics have."""

    def test_inputs_are_strided_as_a_framework_strides_them(self):
        # cuDNN looks at every stride, that of the batch of one included.
        x = torch.randn(5, 3, 8)
        want = torch.randn(1, 5, 3, 8).transpose(1, 2).stride()
        kernel = fused("sdpa_cudnn")
        self.assertEqual(kernel.native(x).stride(), want)
        self.assertTrue(torch.equal(kernel.canonical(kernel.native(x)), x))

    def test_packed_statistics_may_be_padded_to_the_longest_document(self):
        # ROCm, as in _fake_lse_and_rng of torch/nn/attention/varlen.py, pytorch/pytorch@000459dc: the
        # log-sum-exp is [documents, heads, longest].
        def forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, *_, **__):
            out, lse = reference.attention(query, key, value, parts(cum_seq_q, cum_seq_k, is_causal))
            ends = cum_seq_q.tolist()
            pads = lse.new_full((len(ends) - 1, len(lse), max_q), 7.0)
            for i, (a, z) in enumerate(zip(ends, ends[1:])):
                pads[i, :, : z - a] = lse[:, a:z]
            none = torch.empty(0)
            return out.to(query.dtype), pads.float(), torch.tensor(7), torch.tensor(8), none

        def backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, *rest, **named):
            ends = cum_seq_q.tolist()
            rows = [logsumexp[i, :, : z - a] for i, (a, z) in enumerate(zip(ends, ends[1:]))]
            return packed_backward(
                grad_out, query, key, value, out, torch.cat(rows, 1), cum_seq_q, *rest, **named
            )

        padded = operators(
            "evenkeel_padded", _flash_attention_forward=forward, _flash_attention_backward=backward
        )
        self.right(aten.Packed(accelerator(), namespace=padded), varlen=True)

    def test_widths_that_a_kernel_lacks_are_refused_with_the_limit(self):
        for name, dim, most in (("sdpa_flash", 100, 256), ("sdpa_flash", 264, 256), ("sdpa_cudnn", 136, 128)):
            why = fused(name).refusal("attn_fwd", Block(8, 8, 4, 4, dim, "bf16", False))
            self.assertEqual(why, f"wants head_dim to be a multiple of 8 up to {most}, not {dim}")
        wide = Block(8, 8, 4, 4, 512, "bf16", False)
        self.assertEqual(fused("sdpa_efficient").refusal("attn_fwd", wide), "")

    def test_cudnn_has_wide_heads_on_hopper_from_9_10_on(self):
        # check_cudnn_tensor_shapes of sdp_utils.cpp: 128, or 256 on 9.0 with cuDNN >= 91000.
        found = [aten.cudnn_widest(c, v) for c, v in (((9, 0), 91000), ((9, 0), 90800), ((8, 0), 91000))]
        self.assertEqual([*found, aten.cudnn_widest((9, 0), None)], [256, 128, 128, 128])

    def test_an_overload_is_called_and_not_the_packet(self):
        # torch 2.11 gives the flash operators a second overload, `quantized`.
        lib = torch.library.Library("evenkeel_overloads", "DEF")
        lib.define("pick(Tensor x) -> Tensor")
        lib.define("pick.quantized(Tensor x, Tensor? scale=None) -> Tensor")
        lib.impl("pick", lambda x: x + 1, "CPU")
        lib.impl("pick.quantized", lambda x, scale=None: x + 2, "CPU")
        call = Callee(torch.ops.evenkeel_overloads.pick).bind({"x": torch.zeros(1)})
        self.assertIs(call.func, torch.ops.evenkeel_overloads.pick.default)
        self.assertEqual(float(call()), 1.0)


class Probes(Case):
    """Kernels that are there and do not work."""

    def found(self, name: str, forward) -> str:
        """The verdict on sdpa_flash whose forward is another."""
        namespace = operators(name, _scaled_dot_product_flash_attention=forward)
        return kernels.probe(fused("sdpa_flash", namespace))

    def test_one_that_works_passes(self):
        for name in ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient"):
            self.assertEqual(kernels.probe(fused(name)), "")

    def test_one_without_code_for_the_device_says_so(self):
        # The words are cuDNN's on an H200 with torch 2.13.
        def refuses(*_, **__):
            raise RuntimeError("cuDNN Frontend error: No valid execution plans built.\nmore")

        said = "fails on this device: cuDNN Frontend error: No valid execution plans built."
        self.assertEqual(self.found("evenkeel_refuses", refuses), said)

    def test_one_that_is_wrong_is_not_used(self):
        def rotated(*args, **kwargs):
            out, *rest = flash(*args, **kwargs)
            return (out.flip(1), *rest)

        self.assertIn("is wrong on this device", self.found("evenkeel_rotated", rotated))

    def test_one_that_poisons_the_process_names_the_way_round_it(self):
        def dies(*_, **__):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        with self.assertRaises(Failure) as caught:
            self.found("evenkeel_dies", dies)
        self.assertTrue(caught.exception.fatal)
        self.assertIn("EVENKEEL_SKIP_KERNELS=sdpa_flash", caught.exception.msg)

    def chosen(self, capability: tuple, **environment) -> tuple:
        """The default kernel of a device whose kernels are the stand-ins, and why sdpa_flash is not used."""
        device = accelerator()
        device.capability, device.dtypes = capability, lambda: ["bf16"]
        with mock.patch.object(aten.torch.ops, "aten", OPERATORS, create=True), \
                mock.patch.dict(os.environ, environment):
            every = kernels.Kernels(device)
        return every.default(), every.by_name["sdpa_flash"].why

    def test_the_order_depends_on_the_generation(self):
        for capability, first in (
            ((8, 0), "sdpa_flash"), ((9, 0), "sdpa_cudnn"), ((10, 0), "sdpa_cudnn"), ((12, 0), "sdpa_flash")
        ):
            self.assertEqual(self.chosen(capability), (first, ""))

    def test_a_kernel_can_be_left_out(self):
        name, why = self.chosen((8, 0), EVENKEEL_SKIP_KERNELS="sdpa_flash,fa3")
        self.assertEqual((name, why), ("sdpa_cudnn", "left out by EVENKEEL_SKIP_KERNELS"))


def fa3_module() -> types.ModuleType:
    """flash_attn_interface as of Dao-AILab/flash-attention@01afd16, hopper/flash_attn_interface.py: windows
    are two numbers, everything optional has a default, and the forward has four results."""
    m = types.ModuleType("flash_attn_interface")
    Tensor = torch.Tensor

    def spans(q: Tensor, k: Tensor, cu_q: Optional[Tensor], cu_k: Optional[Tensor], causal: bool) -> list:
        return parts(cu_q, cu_k, causal) if cu_q is not None else [(0, q.shape[1], 0, k.shape[1], causal)]

    def flat(*tensors: Tensor) -> list:
        return [t.reshape(-1, *t.shape[-2:]) for t in tensors]

    def _flash_attn_forward(
        q: Tensor, k: Tensor, v: Tensor, k_new: Optional[Tensor] = None, v_new: Optional[Tensor] = None,
        qv: Optional[Tensor] = None, out_: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_k: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
        seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None,
        max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
        page_table: Optional[Tensor] = None, kv_batch_idx: Optional[Tensor] = None,
        leftpad_k: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
        rotary_sin: Optional[Tensor] = None, seqlens_rotary: Optional[Tensor] = None,
        q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
        v_descale: Optional[Tensor] = None, softmax_scale: Optional[float] = None, causal: bool = False,
        window_size_left: int = -1, window_size_right: int = -1, attention_chunk: int = 0,
        softcap: float = 0.0, rotary_interleaved: bool = True, scheduler_metadata: Optional[Tensor] = None,
        num_splits: int = 1, pack_gqa: Optional[bool] = None, sm_margin: int = 0,
    ):
        assert (window_size_left, window_size_right, num_splits) == (-1, -1, 1)
        got, lse = reference.attention(*flat(q, k, v), spans(q, k, cu_seqlens_q, cu_seqlens_k, causal))
        lse = lse.float() if q.dim() == 3 else lse.float()[None]
        return got.view_as(q).to(q.dtype), lse, torch.tensor([]), torch.tensor([])

    def _flash_attn_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
        cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None,
        sequed_q: Optional[Tensor] = None, sequed_k: Optional[Tensor] = None,
        max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None, dq: Optional[Tensor] = None,
        dk: Optional[Tensor] = None, dv: Optional[Tensor] = None, softmax_scale: Optional[float] = None,
        is_causal: bool = False, window_size_left: int = -1, window_size_right: int = -1,
        softcap: float = 0.0, deterministic: bool = False, sm_margin: int = 0,
    ):
        span = spans(q, k, cu_seqlens_q, cu_seqlens_k, is_causal)
        lse = softmax_lse.reshape(q.shape[-2], -1)
        grads = reference.attention_backward(*flat(q, k, v, out), lse, *flat(dout), span)
        for room, grad in zip((dq, dk, dv), grads):
            room.copy_(grad.view_as(room))
        return torch.tensor([])

    m._flash_attn_forward, m._flash_attn_backward = _flash_attn_forward, _flash_attn_backward
    return m


class Packages(Case):
    def install(self, name: str, module: types.ModuleType) -> None:
        sys.modules[name] = module
        self.addCleanup(sys.modules.pop, name)

    def test_flash_attn_3_with_windows_of_two_numbers(self):
        self.install("flash_attn_interface", fa3_module())
        self.right(attention_packages.packages(accelerator())[1], varlen=True)

    def test_a_package_that_is_left_out_is_not_imported(self):
        with mock.patch.dict(os.environ, EVENKEEL_SKIP_KERNELS="te,fa4,fa2,fa3"), \
                mock.patch.object(attention_packages.importlib, "import_module") as load, \
                mock.patch.object(attention_packages, "_installed", lambda _: True):
            found = {k.why for k in attention_packages.packages(accelerator())}
        self.assertEqual(found, {"left out by EVENKEEL_SKIP_KERNELS"})
        load.assert_not_called()

    def test_flash_attn_3_is_for_hopper_only(self):
        blackwell = accelerator()
        blackwell.capability = (10, 0)
        self.install("flash_attn_interface", fa3_module())
        why = attention_packages.packages(blackwell)[1].why
        self.assertEqual(why, "needs compute capability below 10.0, this is 10.0")

    def test_a_package_whose_parent_does_not_load_says_why(self):
        # flash-attn 2 built for another torch: its __init__ imports the library, which lacks a symbol.
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "flash_attn"))
            with open(os.path.join(folder, "flash_attn", "__init__.py"), "w", encoding="ascii") as f:
                f.write('raise ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c10")\n')
            with mock.patch.object(sys, "path", [folder, *sys.path]):
                why = attention_packages.packages(accelerator())[0].why
        self.assertIn("does not load: ImportError: flash_attn_2_cuda.so: undefined symbol", why)

    def test_transformer_engine_is_made_once_a_block(self):
        made = []

        class DotProductAttention:
            def __init__(self, heads, dim, **named):
                made.append((heads, named["attn_mask_type"]))

            def __call__(self, q, k, v):
                return q.flatten(2)

        engine = types.ModuleType("transformer_engine.pytorch")
        engine.DotProductAttention = DotProductAttention
        self.install("transformer_engine.pytorch", engine)
        kernel = attention_packages.packages(accelerator())[3]
        for causal in (False, False, True):
            call = kernel.bind_forward(Block(4, 4, 2, 2, 8, "bf16", causal), *(torch.randn(4, 2, 8),) * 3)
            self.assertEqual(call().out.shape, (1, 4, 2, 8))
        self.assertEqual(made, [(2, "no_mask"), (2, "causal")])


class Machine(unittest.TestCase):
    """What is set up and given back on a device."""

    def test_pinned_memory_goes_back_too(self):
        # torch >= 2.5 caches pinned memory, in powers of two, until torch._C._host_emptyCache.
        cpu = Device("cpu", 2)
        cpu.kind = "cuda"
        with mock.patch.object(torch.cuda, "empty_cache") as tensors, \
                mock.patch.object(torch._C, "_host_emptyCache", mock.Mock(), create=True) as pinned:
            cpu.release()
        self.assertEqual((tensors.call_count, pinned.call_count), (1, 1))

    def test_a_torch_without_code_for_the_device_is_refused(self):
        with mock.patch.object(Device, "_multiplies", lambda *_: False), self.assertRaises(Failure) as caught:
            Device("cpu", 2)
        self.assertEqual(caught.exception.cls, "unsupported")
        self.assertIn("multiplies no matrices on it", caught.exception.msg)

    def test_an_accelerator_computes_as_training_does_whatever_the_environment_says(self):
        properties = types.SimpleNamespace(
            name="NVIDIA H100", multi_processor_count=132, total_memory=80 << 30, major=9, minor=0,
            L2_cache_size=50 << 20, uuid="a-b",
        )
        self.addCleanup(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")
        environment = {name: "1" for name in devices._DISTORTING}
        with mock.patch.dict(os.environ, {**environment, "CUDA_VISIBLE_DEVICES": "0"}), \
                mock.patch.multiple(
                    torch.cuda, is_available=lambda: True, set_device=lambda _: None,
                    get_device_properties=lambda _: properties, mem_get_info=lambda _: (79 << 30, 80 << 30),
                ), mock.patch.object(Device, "_multiplies", lambda *_: True):
            device = devices.Device("cuda:0")
            self.assertEqual(environment.keys() & os.environ.keys(), set())
        self.assertEqual(torch.get_float32_matmul_precision(), "highest")
        self.assertEqual((device.uuid, device.l2_bytes, device.capability), ("GPU-a-b", 50 << 20, (9, 0)))
        self.assertEqual(device.free_at_start_bytes, 79 << 30)

    def test_tf32_is_off_where_a_container_switches_it_on(self):
        script = "import sys; sys.path.insert(0, sys.argv[1]); import device, torch; device.undistort(); " \
                 "print(torch.backends.cuda.matmul.allow_tf32)"
        said = subprocess.run(
            [sys.executable, "-I", "-B", "-c", script, os.path.dirname(os.path.abspath(__file__))],
            env={**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, stdout=subprocess.PIPE, text=True,
            check=True,
        )
        self.assertEqual(said.stdout, "False\n")

    def test_the_whole_uuid_is_taken_from_whoever_knows_it(self):
        # CUDA takes the first digits of a UUID, NVML does not; before torch 2.4 properties had none.
        for shown, told, want in (
            ("0", "a-b", "GPU-a-b"), ("", "a-b", "GPU-a-b"), ("GPU-a", "a-b", "GPU-a-b"),
            ("GPU-a-b", "", "GPU-a-b"), ("MIG-c", "a-b", "MIG-c"), ("0", "", ""),
        ):
            self.assertEqual(devices._uuid(shown, told), want)

    def test_why_no_accelerator_is_seen(self):
        def old():
            raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nUpdate")

        for built, visible, init, want in (
            (None, "0", None, "it is built for processors"), ("12.8", "", None, "is set and empty"),
            ("12.8", "0", old, "The NVIDIA driver on your system is too old (found version 12020)."),
            ("12.8", "9", lambda: None, "it counts 0 of them, CUDA_VISIBLE_DEVICES is '9'"),
        ):
            with self.subTest(want), mock.patch.object(torch.version, "cuda", built), \
                    mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=visible), mock.patch.multiple(
                        torch.cuda, init=init, device_count=lambda: 0, is_available=lambda: False
                    ), self.assertRaises(Failure) as caught:
                Device("cuda:0")
            self.assertEqual(caught.exception.cls, "unsupported")
            self.assertIn(want, caught.exception.msg)

    def test_both_sides_of_a_copy_differ_in_every_byte(self):
        cpu = Device("cpu", 2)
        cpu.kind, cpu.free_bytes, cpu.sync = "cuda", lambda: 1 << 40, lambda: None
        for kind in ("h2d", "d2h"):
            copy = ops.Copy(cpu, kind)
            bound = copy.bind({"bytes": 5000, "pinned": False}, Inputs(cpu, 1))
            source = bound.expected()["copy"].clone()
            held = dict(zip(bound.call.__code__.co_freevars, bound.call.__closure__))
            target = held["target"].cell_contents
            self.assertFalse(bool((target == source).any()))
            self.assertTrue(torch.equal(bound.outputs(bound.call())["copy"], source))

    def test_cycles_of_a_failed_request_are_collected(self):
        alive = service.Service(None)
        with mock.patch.object(service.gc, "collect") as collect:
            alive.recover(Failure("internal", ""))
            alive.recover(Failure("oom", ""))
        self.assertEqual(collect.call_count, 1)


class Signatures(unittest.TestCase):
    """That the stand-ins are complete."""

    def test_every_operator_has_a_published_schema(self):
        wanted = [n for s in (*aten.OPERATORS, aten.CPU_FLASH, aten.PACKED) for n in (s.forward, s.backward)]
        self.assertEqual(sorted(wanted), sorted(SCHEMAS))
        self.assertEqual(sorted(FUNCTIONS), sorted(SCHEMAS))


if __name__ == "__main__":
    unittest.main()
