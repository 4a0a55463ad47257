#include "tools/export/trainer_program.h"

namespace shardplan {

std::string_view trainer_program() {
  return R"py(#!/usr/bin/env python3
"""Trains a causal language model with transformers' Trainer; launch.sh has the settings."""
import dataclasses
import json
import os
from typing import Optional

import torch
import transformers
from transformers.integrations import is_deepspeed_zero3_enabled


@dataclasses.dataclass
class ModelArguments:
    model_name_or_path: str = "model"  # a name on the Hub or a folder; without weights there, random ones
    dtype: str = "bfloat16"
    attn_implementation: str = "sdpa"
    experts_implementation: Optional[str] = None
    load_in_8bit: bool = False
    load_in_4bit: bool = False
    bnb_4bit_quant_type: str = "nf4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_quant_storage: str = "uint8"
    use_peft: bool = False
    lora_r: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.0
    lora_target_modules: str = "q_proj,v_proj"
    lora_dtype: str = "float32"
    use_dora: bool = False
    modules_to_save: Optional[str] = None


@dataclasses.dataclass
class DataArguments:
    block_size: int = 2048  # tokens of a sequence
    train_file: Optional[str] = None  # lines of text, or JSON lines with "text"


class RandomTokens(torch.utils.data.Dataset):
    """As many sequences as a training takes, to try it without data."""

    def __init__(self, rows, length, vocabulary):
        self.rows, self.length, self.vocabulary = rows, length, vocabulary

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        draw = torch.Generator().manual_seed(row)
        return example_of(torch.randint(0, self.vocabulary, (self.length,), generator=draw))


class PackedTexts(torch.utils.data.Dataset):
    """Texts behind one another, cut into sequences of one length."""

    def __init__(self, path, length, tokenizer):
        tokens = []
        with open(path, encoding="utf-8") as file:
            for line in file:
                text = json.loads(line)["text"] if path.endswith((".json", ".jsonl")) else line
                tokens += tokenizer(text).input_ids + [tokenizer.eos_token_id]
        rows = len(tokens) // length
        self.tokens = torch.tensor(tokens[: rows * length]).view(rows, length)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, row):
        return example_of(self.tokens[row])


def example_of(tokens):
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def quantization_of(chosen):
    if chosen.load_in_8bit:
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    if not chosen.load_in_4bit:
        return None
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=chosen.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=chosen.bnb_4bit_use_double_quant,
        bnb_4bit_quant_storage=getattr(torch, chosen.bnb_4bit_quant_storage),
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def has_weights(path):
    is_folder = os.path.isdir(path)
    return not is_folder or any(name.endswith((".safetensors", ".bin")) for name in os.listdir(path))


def model_of(chosen, device):
    members = {"dtype": getattr(torch, chosen.dtype), "attn_implementation": chosen.attn_implementation}
    if chosen.experts_implementation:
        members["experts_implementation"] = chosen.experts_implementation
    if not has_weights(chosen.model_name_or_path):
        if quantization_of(chosen):
            raise SystemExit(f"{chosen.model_name_or_path} has no weights, which quantization starts from")
        config = transformers.AutoConfig.from_pretrained(chosen.model_name_or_path)
        return transformers.AutoModelForCausalLM.from_config(config, **members)
    if quantization_of(chosen):
        members["quantization_config"] = quantization_of(chosen)
        if not is_deepspeed_zero3_enabled():
            members["device_map"] = {"": device}
    return transformers.AutoModelForCausalLM.from_pretrained(chosen.model_name_or_path, **members)


def with_adapters(chosen, model):
    import peft

    config = peft.LoraConfig(
        r=chosen.lora_r,
        lora_alpha=chosen.lora_alpha,
        lora_dropout=chosen.lora_dropout,
        target_modules="all-linear"
        if chosen.lora_target_modules == "all-linear"
        else chosen.lora_target_modules.split(","),
        use_dora=chosen.use_dora,
        modules_to_save=chosen.modules_to_save.split(",") if chosen.modules_to_save else None,
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=chosen.lora_dtype == "float32")
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(getattr(torch, chosen.lora_dtype))
    return model


def dataset_of(data, arguments, chosen, model):
    if data.train_file:
        tokenizer = transformers.AutoTokenizer.from_pretrained(chosen.model_name_or_path)
        return PackedTexts(data.train_file, data.block_size, tokenizer)
    rows = arguments.max_steps * arguments.train_batch_size * arguments.gradient_accumulation_steps
    return RandomTokens(rows * arguments.world_size, data.block_size, model.config.vocab_size)


def main():
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, transformers.TrainingArguments))
    chosen, data, arguments = parser.parse_args_into_dataclasses()
    model = model_of(chosen, arguments.device)  # by which the processes have found each other
    if chosen.use_peft:
        model = with_adapters(chosen, model)
    dataset = dataset_of(data, arguments, chosen, model)
    transformers.Trainer(model=model, args=arguments, train_dataset=dataset).train()


if __name__ == "__main__":
    main()
)py";
}

}  // namespace shardplan
