"""What a case of trainer_run.py divides over ranks besides data, or keeps elsewhere than on the GPU.

A case's members: tensor_parallel (ranks, with strategy single), ring {"cp_size", "cp_comm_strategy"} (with strategy
fsdp2), activation_offload trl|trl_one_stream|unsloth, ffn_tiles (tiles of tokens of a Llama's FFN).
"""
import types

import torch
import transformers


def tensor_parallel_model(case, folder, dtype):
    """The model's part of this rank, read of a checkpoint as transformers' plan divides it."""
    from transformers.distributed import DistributedConfig

    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        distributed_config=DistributedConfig(tp_size=case["tensor_parallel"]),
        dtype=dtype,
        attn_implementation=case["attn_implementation"],
    )


def parallelism_arguments(case):
    """TrainingArguments of accelerate's mesh."""
    if not case.get("ring"):
        return {}
    from accelerate import ParallelismConfig
    from accelerate.utils import TorchContextParallelConfig

    ring = case["ring"]
    handler = TorchContextParallelConfig(cp_comm_strategy=ring.get("cp_comm_strategy", "allgather"))
    mesh = ParallelismConfig(cp_size=ring["cp_size"], dp_shard_size=case["world"] // ring["cp_size"], cp_handler=handler)
    return {"parallelism_config": mesh}


class HostCheckpoint(torch.autograd.Function):
    """A checkpoint whose input lies on the host, as Unsloth's: it comes back where the layer runs again."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, function, hidden, *others):
        on_host = hidden.to("cpu", non_blocking=True)
        with torch.no_grad():
            output = function(hidden, *others)
        ctx.save_for_backward(on_host)
        ctx.function, ctx.others = function, others
        return output

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        (on_host,) = ctx.saved_tensors
        hidden = on_host.to("cuda", non_blocking=True).detach()
        hidden.requires_grad = True
        with torch.enable_grad():
            output = ctx.function(hidden, *ctx.others)
        torch.autograd.backward(output, gradient)
        return (None, hidden.grad) + (None,) * len(ctx.others)


class TiledFunction(torch.autograd.Function):
    """A module's forward on tiles of tokens, each of which runs again in backward; gradients of the module's
    parameters are added up beside those of the pass, in their type."""

    @staticmethod
    def forward(ctx, function, module, rows, tiles):
        ctx.function, ctx.module, ctx.tiles = function, module, tiles
        ctx.save_for_backward(rows)
        with torch.no_grad():
            return torch.cat([function(module, tile) for tile in torch.chunk(rows, tiles, dim=1)], dim=1)

    @staticmethod
    def backward(ctx, gradient):
        (rows,) = ctx.saved_tensors
        rows = rows.detach().requires_grad_(True)
        parameters = [each for each in ctx.module.parameters() if each.requires_grad]
        of_rows = torch.zeros_like(rows)
        before = {each: each.grad for each in parameters}
        sums = {each: torch.zeros_like(each) for each in parameters}
        for each in parameters:
            each.grad = None
        parts = zip(*(torch.chunk(each, ctx.tiles, dim=1) for each in (rows, of_rows, gradient)))
        for tile, of_tile, given in parts:
            tile = tile.detach().requires_grad_(True)
            tile.grad = of_tile
            with torch.enable_grad():
                output = ctx.function(ctx.module, tile)
            torch.autograd.backward(output, given)
            for each in parameters:
                sums[each].add_(each.grad)
                each.grad = None
        for each in parameters:
            each.grad = sums[each] if before[each] is None else before[each] + sums[each]
        return None, None, of_rows, None


def tile_ffns(model, tiles):
    for layer in model.get_decoder().layers:
        function = type(layer.mlp).forward
        layer.mlp.forward = types.MethodType(
            lambda module, rows, function=function: TiledFunction.apply(function, module, rows, tiles), layer.mlp
        )


def use_parts(case, model):
    if case.get("ffn_tiles"):
        tile_ffns(model, case["ffn_tiles"])
    if case.get("activation_offload") == "unsloth":
        model.enable_input_require_grads()
        model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=HostCheckpoint.apply)


def trainer_class(case, base):
    """The Trainer whose step has TRL's OffloadActivations around it, where the case asks for it."""
    kind = case.get("activation_offload")
    if kind not in ("trl", "trl_one_stream"):
        return base
    from trl.models.activation_offloading import get_act_offloading_ctx_manager

    class OffloadingTrainer(base):
        def __init__(self, *inputs, **others):
            super().__init__(*inputs, **others)
            self.offloading = None

        def training_step(self, model, *inputs, **others):
            if self.offloading is None:
                whole = self.accelerator.unwrap_model(model)
                self.offloading = get_act_offloading_ctx_manager(whole, use_streams=kind == "trl")
            with self.offloading:
                return super().training_step(model, *inputs, **others)

    return OffloadingTrainer
