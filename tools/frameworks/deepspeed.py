"""DeepSpeed and the transformers that is installed, both found on PYTHONPATH."""
import contextlib

import torch

from frameworks.absent import DEVICE


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "vocab_size", "rope_theta", "moe_intermediate_size",
         "num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob")


class DeepSpeed:
    """A step of deepspeed.initialize's engine as transformers' Trainer makes it: no key-value cache,
    the model's output is dropped before the backward pass, gradients are clipped."""

    def __init__(self, case, _world):
        import deepspeed
        import transformers

        self.device = torch.device(DEVICE)
        shape, plan, options = case["model"], case["plan"], case.get("options", {})
        training = case["training"]
        self.sequence, self.batch = training["sequence_length"], training["micro_batch"]
        self.microbatches, self.vocab = training["num_microbatches"], shape["vocab_size"]
        zero = {"stage": plan.get("zero", 2)}
        overlap = options.get("overlap_comm", "default")
        if overlap != "default":
            zero["overlap_comm"] = {"off": False, "on": True}[overlap]
        for ours, theirs in (("reduce_bucket_elements", "reduce_bucket_size"),
                             ("prefetch_bucket_elements", "stage3_prefetch_bucket_size"),
                             ("max_live_parameters", "stage3_max_live_parameters")):
            if ours in options:
                zero[theirs] = options[ours]
        offload = plan.get("offload", {})
        on_host = {"device": "cpu", "pin_memory": options.get("offload_pin_memory", True)}
        if offload.get("optimizer"):
            zero["offload_optimizer"] = dict(on_host, ratio=offload["optimizer"])
        if offload.get("parameters"):
            zero["offload_param"] = on_host
        extra = dict(case.get("ds_config", {}))
        zero.update(extra.pop("zero_optimization", {}))
        config = {"train_micro_batch_size_per_gpu": self.batch, "gradient_clipping": 1.0,
                  "gradient_accumulation_steps": self.microbatches, "bf16": {"enabled": True},
                  "zero_optimization": zero, **extra}
        family = {"llama": "Llama", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe",
                  "mixtral": "Mixtral"}[shape["model_type"]]
        model_config = getattr(transformers, family + "Config")(
            **{key: shape[key] for key in SIZES if key in shape},
            tie_word_embeddings=bool(shape.get("tie_word_embeddings")), use_cache=False,
            max_position_embeddings=self.sequence, attn_implementation="sdpa")
        sharded = (deepspeed.zero.Init(config_dict_or_path=config) if zero["stage"] == 3
                   else contextlib.nullcontext())
        torch.set_default_dtype(torch.bfloat16)
        with sharded, torch.device(self.device):
            model = getattr(transformers, family + "ForCausalLM")(model_config)
        torch.set_default_dtype(torch.float32)
        self.patch(model, options.get("liger_kernel", "off"))
        if plan.get("recompute", {}).get("granularity", "none") == "full":
            model.gradient_checkpointing_enable()
        model.train()
        if offload.get("optimizer"):  # the engine makes the one that runs on the host
            config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}
            mine = {"model_parameters": model.parameters()}
        else:
            mine = {"optimizer": torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1,
                                                   fused=True)}
        self.engine = deepspeed.initialize(model=model, config=config, **mine)[0]

    @staticmethod
    def patch(model, liger):
        """As transformers' Trainer does it; the release that is installed must be the one meant."""
        if liger == "off":
            return
        import importlib.metadata

        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        release = tuple(int(part) for part in importlib.metadata.version("liger-kernel").split("."))
        assert (release >= (0, 8, 3)) == (liger == "on"), (release, liger)
        _apply_liger_kernel_to_instance(model=model)

    def parameters(self):
        return sum(p.ds_tensor.ds_numel if hasattr(p, "ds_tensor") else p.numel()
                   for p in self.engine.module.parameters())

    def loss(self):
        tokens = torch.randint(0, self.vocab, (self.batch, self.sequence), device=self.device)
        mask = torch.ones_like(tokens)  # of the data collator; without it transformers masks
        return self.engine(input_ids=tokens, attention_mask=mask, labels=tokens).loss

    def step(self):
        for _ in range(self.microbatches):
            loss = self.loss()
            self.engine.backward(loss)
            self.engine.step()
        return loss
