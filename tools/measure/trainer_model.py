"""The model of a case of transformers' Trainer: random weights, quantised, with adapters, and its loss.

A case's members are those of trainer_run.py. Weights are random numbers of which one block is drawn and repeated,
since drawing eight billion takes longer than training on them.
"""
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import types
from unittest import mock

import torch
import transformers
from trainer_losses import LOSSES
from trainer_parts import tensor_parallel_model, use_parts

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "uint8": torch.uint8}
DRAWN = 1 << 20  # elements
TRL_CHUNK = 256  # trl 1.8.0, trainer/sft_trainer.py: _CHUNKED_LM_HEAD_CHUNK_SIZE


def repeat_drawn(tensor, mean=0.0, std=1.0, generator=None):
    """Fills a tensor in place of torch.nn.init.normal_."""
    with torch.no_grad():
        flat = tensor.view(-1)
        drawn = torch.empty(min(DRAWN, flat.numel()), dtype=torch.float32).normal_(mean, std, generator=generator).to(flat.dtype)
        for start in range(0, flat.numel(), DRAWN):
            part = flat[start : start + DRAWN]
            part.copy_(drawn[: part.numel()])
    return tensor


def model_config(case):
    members = dict(case["model"])
    return transformers.AutoConfig.for_model(members.pop("model_type"), **members)


def text_members(case):
    """Of the text model, which a configuration with a tower for pictures has within."""
    return case["model"].get("text_config", case["model"])


def model_class(case):
    has_tower = "vision_config" in case["model"]
    return transformers.AutoModelForImageTextToText if has_tower else transformers.AutoModelForCausalLM


def freeze(case, model):
    """Parameters whose names "freeze" is found in are frozen, and with "train_only" those in which that is not."""
    for name, parameter in model.named_parameters():
        is_frozen = case.get("freeze") and re.search(case["freeze"], name)
        if is_frozen or (case.get("train_only") and not re.search(case["train_only"], name)):
            parameter.requires_grad_(False)


def leave_empty(tensor, *inputs, **others):
    return tensor


def random_model(case):
    """PyTorch's layers leave their weights empty when they are made; transformers' initialisation then fills them."""
    from transformers import initialization

    initialization.TORCH_INIT_FUNCTIONS["normal_"] = repeat_drawn
    chosen = {"attn_implementation": case["attn_implementation"]}
    if case.get("experts_implementation"):
        chosen["experts_implementation"] = case["experts_implementation"]
    with mock.patch.multiple(torch.nn.init, normal_=leave_empty, uniform_=leave_empty, kaiming_uniform_=leave_empty):
        return model_class(case).from_config(model_config(case), dtype=DTYPES[case["model_dtype"]], **chosen)


def checkpoint_of(case):
    """The folder of a checkpoint of the case's random weights, written by the first process of a machine; others wait."""
    key = json.dumps([case["model"], case["model_dtype"]], sort_keys=True)
    folder = os.path.join(tempfile.gettempdir(), "trainer_weights", hashlib.sha256(key.encode()).hexdigest()[:16])
    if not os.path.exists(folder) and int(os.environ.get("LOCAL_RANK", 0)) == 0:
        written = f"{folder}.{os.getpid()}"
        random_model(case).save_pretrained(written)
        os.rename(written, folder)
    while not os.path.exists(folder):
        time.sleep(1)
    return folder


def quantization_config(quantization):
    """BitsAndBytesConfig of {"type": nf4|fp4|int8, "double_quant", "quant_storage", "compute_dtype"}."""
    if quantization["type"] == "int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization["type"],
        bnb_4bit_use_double_quant=quantization.get("double_quant", False),
        bnb_4bit_quant_storage=DTYPES[quantization.get("quant_storage", "uint8")],
        bnb_4bit_compute_dtype=DTYPES[quantization.get("compute_dtype", "bf16")],
    )


def quantized_model(case, device):
    """from_pretrained reads the weights, quantises them and leaves them on the device; ZeRO-3 takes no map of devices."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    placed = {} if is_deepspeed_zero3_enabled() else {"device_map": {"": device}}
    return model_class(case).from_pretrained(
        checkpoint_of(case),
        quantization_config=quantization_config(case["quantization"]),
        dtype=DTYPES[case["model_dtype"]],
        attn_implementation=case["attn_implementation"],
        **placed,
    )


def prepare_for_kbit_training(case, model):
    import peft

    chosen = {"use_gradient_checkpointing": case["gradient_checkpointing"]}
    if case.get("use_reentrant") is not None:
        chosen["gradient_checkpointing_kwargs"] = {"use_reentrant": case["use_reentrant"]}
    return peft.prepare_model_for_kbit_training(model, **chosen)


def with_adapters(lora, model):
    """peft's LoRA, or its OFT by "oft_block_size"; "autocast_adapter_dtype" as of get_peft_model, "dtype" to which adapters
    are cast afterwards."""
    import peft

    if lora.get("oft_block_size"):
        config = peft.OFTConfig(r=0, oft_block_size=lora["oft_block_size"], target_modules=lora["target"], task_type="CAUSAL_LM")
        return peft.get_peft_model(model, config)
    config = peft.LoraConfig(
        r=lora["r"],
        lora_alpha=lora.get("alpha", 2 * lora["r"]),
        target_modules=lora["target"],
        lora_dropout=lora.get("dropout", 0.0),
        use_dora=lora.get("use_dora", False),
        use_rslora=lora.get("use_rslora", False),
        modules_to_save=lora.get("modules_to_save"),
        task_type=lora.get("task_type", "CAUSAL_LM"),
    )
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=lora.get("autocast_adapter_dtype", True))
    if lora.get("dtype"):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(DTYPES[lora["dtype"]])
    return model


def trl_trainer_module():
    """trl.trainer.sft_trainer, where datasets, pandas and pyarrow, which its loss needs none of, are not installed."""
    names = ("datasets", "pandas", "pyarrow", "pyarrow.compute", "pyarrow.types")
    for name in [name for name in names if not importlib.util.find_spec(name.split(".")[0])]:
        absent = mock.MagicMock(name=name)
        absent.__spec__ = importlib.machinery.ModuleSpec(name, None)
        absent.__path__ = []
        absent.__version__ = "0"
        for kind in ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"):
            setattr(absent, kind, type(kind, (), {}))
        sys.modules[name] = absent
    from trl.trainer import sft_trainer

    return sft_trainer


def use_cut_cross_entropy(model, on_cuda):
    """The head's product and the loss are Cut Cross Entropy's, with the sums and the division of ForCausalLMLoss."""
    from cut_cross_entropy import linear_cross_entropy
    from transformers.modeling_outputs import CausalLMOutputWithPast

    implementation = "cce" if on_cuda else "torch_compile"

    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **others):
        hidden = self.base_model(input_ids=input_ids, attention_mask=attention_mask, **others).last_hidden_state
        reduction = "mean" if num_items_in_batch is None else "sum"
        weight = self.get_output_embeddings().weight
        loss = linear_cross_entropy(hidden, weight, labels, shift=True, reduction=reduction, impl=implementation)
        return CausalLMOutputWithPast(loss=loss if num_items_in_batch is None else loss / num_items_in_batch)

    model.forward = types.MethodType(forward, model)


def use_loss(case, model, on_cuda):
    base = model.get_base_model() if case.get("lora") else model
    loss = case.get("loss", "stock")
    if loss == "trl_chunked":
        trl_trainer_module()._patch_chunked_ce_lm_head(base, TRL_CHUNK)
    elif loss == "cut_cross_entropy":
        use_cut_cross_entropy(base, on_cuda)
    elif loss not in ("stock", *LOSSES):
        raise ValueError(f"loss: found {loss}, expected stock, trl_chunked, cut_cross_entropy, {', '.join(LOSSES)}")


def with_rounded_layers(qat, model):
    """torchao's linear layers that round inputs of a token to 8 bits and weights of "group_size" to 4, the head's too."""
    from torchao.quantization import quantize_
    from torchao.quantization.qat import QATConfig, fake_quantize_config

    quantize_(
        model,
        QATConfig(
            activation_config=fake_quantize_config.IntxFakeQuantizeConfig(
                dtype=torch.int8, granularity="per_token", is_symmetric=False
            ),
            weight_config=fake_quantize_config.Int4WeightFakeQuantizeConfig(
                group_size=qat["group_size"], activation_dtype=torch.bfloat16
            ),
        ),
    )
    return model


def build_model(case, device):
    """The case's model: on the CPU, where the Trainer finds it, or on the device where it is quantised."""
    if case.get("tensor_parallel"):
        model = tensor_parallel_model(case, checkpoint_of(case), DTYPES[case["model_dtype"]])
    else:
        model = quantized_model(case, device) if case.get("quantization") else random_model(case)
    if case.get("kbit_prepare"):
        model = prepare_for_kbit_training(case, model)
    if case.get("lora"):
        model = with_adapters(case["lora"], model)
    else:
        freeze(case, model)
    if case.get("qat"):
        model = with_rounded_layers(case["qat"], model)
    use_loss(case, model, device != "cpu")
    use_parts(case, model)
    return model


def parameter_counts(case, model):
    """Parameters and those trained; packed ones count as what they stand for."""
    if case.get("lora"):
        trainable, total = model.get_nb_trainable_parameters()
        return total, trainable
    if any(hasattr(parameter, "ds_numel") for parameter in model.parameters()):  # ZeRO-3's are empty between uses
        counted = [(parameter.ds_numel, parameter.requires_grad) for parameter in model.parameters()]
        return sum(count for count, _ in counted), sum(count for count, trained in counted if trained)
    return model.num_parameters(), model.num_parameters(only_trainable=True)
