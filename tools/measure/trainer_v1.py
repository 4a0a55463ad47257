"""The loop of LLaMA-Factory's version 1 around a case of trainer_run.py: "loop": "llamafactory_v1".

What it does with memory is that of LLaMA-Factory ff6d4d1, src/llamafactory/v1/core/base_trainer.py and, under "strategy":
"fsdp2", plugins/trainer_plugins/distributed/fsdp2.py: the model lies whole on the GPU, in fp32 unless it has adapters,
and is sharded there; each matrix of an adapter, each layer, an untied embedding and the rest are groups; gradients are
reduced in fp32 and in every microbatch; the loss is taken twice. Of the case's fsdp it reads reshard_after_forward;
use_liger_kernel is kernel_config.name liger_kernel.
"""
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional


class Progress:
    """What callbacks of the Trainer ask of it."""

    def __init__(self):
        self.global_step = 0


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def groups_of(model, has_adapters):
    """Modules that are sharded by themselves, in this order; the model itself comes last."""
    groups = []
    if has_adapters:
        leaves = [module for module in model.modules() if not list(module.children())]
        groups += [leaf for leaf in leaves if any(each.requires_grad for each in leaf.parameters(recurse=False))]
    layer = type(model.get_decoder().layers[0])
    for module in model.modules():
        is_table = isinstance(module, torch.nn.Embedding) and not model.config.tie_word_embeddings
        if type(module) is layer or is_table:
            groups.append(module)
    return groups


def sharded(model, case, device):
    # Two dimensions: replicas, of which there is one, and shards.
    mesh = init_device_mesh(device.type, (1, case["world"]), mesh_dim_names=("replicas", "shards"))
    chosen = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "reshard_after_forward": (case["fsdp"] or {}).get("reshard_after_forward", True),
    }
    for module in groups_of(model, bool(case["lora"])):
        fully_shard(module, **chosen)
    if case["gradient_checkpointing"]:
        model.enable_input_require_grads()
    fully_shard(model, **chosen)
    for parameter in trained(model):
        parameter.grad = torch.zeros_like(parameter)
    norm_of(model)
    for parameter in trained(model):
        parameter.grad = None
    return model


def norm_of(model):
    norm = torch.nn.utils.get_total_norm([each.grad for each in trained(model) if each.grad is not None])
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def token_losses(model, batch, device):
    """Of each token but the first; what the model returned is gone when they are there."""
    inputs = {name: values.to(device) for name, values in batch.items()}
    labels = batch["labels"].to(device)
    outputs = model(**inputs)
    logits = outputs.logits.float()
    labels = labels[..., 1:].contiguous().view(-1)
    rows = logits[..., :-1, :].contiguous().view(labels.size(0), -1)
    return functional.cross_entropy(rows, labels, reduction="none").view(len(batch["labels"]), -1)


def loss_of(model, batch, device):
    weights = batch["loss_weights"].to(device)[..., 1:]
    return (token_losses(model, batch, device) * weights).sum() / (weights.sum() + 1e-6)


def batch_of(rows):
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return batch | {"loss_weights": torch.ones(batch["labels"].shape)}


def batches_of(case, tokens, rank):
    """Microbatches of one step after the other, of this rank."""
    size, row = case["per_device_train_batch_size"], rank
    while True:
        picked = [tokens[(row + i * case["world"]) % len(tokens)] for i in range(size)]
        row += size * case["world"]
        yield batch_of(picked)


def train_step(case, model, optimizer, batches, device):
    for _ in range(case["gradient_accumulation_steps"]):
        loss = loss_of(model, next(batches), device)
        loss.backward()
        loss.item()
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), case["max_grad_norm"], norm_of(model))
    optimizer.step()
    optimizer.zero_grad()


def use_liger(case, model):
    """Its cross entropy takes the place of PyTorch's, for the model's loss and the loop's own."""
    import liger_kernel.transformers as liger

    base = model.get_base_model() if case["lora"] else model
    apply = getattr(liger, "apply_liger_kernel_to_" + case["model"]["model_type"])
    apply(model=base, fused_linear_cross_entropy=False, cross_entropy=True)


def train(case, model, tokens, callbacks, steps, device, rank):
    model.to(device)
    if case.get("use_liger_kernel"):
        use_liger(case, model)
    if case["world"] > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group()
    model.train()
    if case["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if case["strategy"] == "fsdp2":
        model = sharded(model, case, device)
    elif case["strategy"] == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.AdamW(trained(model))
    batches, progress = batches_of(case, tokens, rank), Progress()
    for callback in callbacks:
        callback.on_train_begin(None, progress, None)
    for _ in range(steps):
        for callback in callbacks:
            callback.on_step_begin(None, progress, None)
        progress.global_step += 1
        train_step(case, model, optimizer, batches, device)
        for callback in callbacks:
            callback.on_step_end(None, progress, None)
