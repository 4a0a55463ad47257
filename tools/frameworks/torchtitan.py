"""torchtitan v0.2.2, found on PYTHONPATH: its packages are imported without their __init__."""
import sys

import torch

from frameworks.absent import DEVICE, AnythingModule, open_package


def titan_settings():
    """torchtitan's job_config module, importable from where its own code expects it."""
    for package in ("torchtitan", "torchtitan.config", "torchtitan.models.llama3",
                    "torchtitan.models.llama4", "torchtitan.models.qwen3",
                    "torchtitan.models.deepseek_v3", "torchtitan.models.gpt_oss"):
        open_package(package)
    from torchtitan.config import job_config
    sys.modules.setdefault("torch.utils.tensorboard",
                           AnythingModule("torch.utils.tensorboard"))
    settings = sys.modules["torchtitan.config"]
    settings.TORCH_DTYPE_MAP = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    for name, value in vars(job_config).items():
        setattr(settings, name, value)
    return job_config


def llama3(shape, sequence, _options):
    """The model, its arguments and the function that makes it parallel."""
    from torchtitan.models.llama3.infra.parallelize import parallelize_llama
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer

    hidden = shape["hidden_size"]
    return Transformer, TransformerModelArgs(
        dim=hidden, n_layers=shape["num_hidden_layers"], n_heads=shape["num_attention_heads"],
        n_kv_heads=shape["num_key_value_heads"], vocab_size=shape["vocab_size"], multiple_of=1,
        ffn_dim_multiplier=(shape["intermediate_size"] + 0.5) / int(8 * hidden / 3),
        rope_theta=shape["rope_theta"], max_seq_len=sequence), parallelize_llama


def qwen3(shape, sequence, _options):
    """As llama3, of Qwen3 and its mixtures, with evenly loaded experts."""
    from torchtitan.models.moe import MoEArgs
    from torchtitan.models.qwen3.infra.parallelize import parallelize_qwen3
    from torchtitan.models.qwen3.model.args import Qwen3ModelArgs
    from torchtitan.models.qwen3.model.model import Qwen3Model

    experts = shape.get("num_experts", 0)
    mixture = {} if experts == 0 else dict(
        moe_enabled=True, moe_inter_dim=shape["moe_intermediate_size"],
        moe_args=MoEArgs(num_experts=experts, num_shared_experts=0,
                         top_k=shape["num_experts_per_tok"], score_func="softmax", route_norm=True,
                         score_before_experts=False, _debug_force_load_balance=True))
    if experts and torch.distributed.get_backend() == "fake":
        balance_dispatch()
    return Qwen3Model, Qwen3ModelArgs(
        dim=shape["hidden_size"], n_layers=shape["num_hidden_layers"],
        n_heads=shape["num_attention_heads"], n_kv_heads=shape["num_key_value_heads"],
        vocab_size=shape["vocab_size"], head_dim=shape["head_dim"],
        hidden_dim=shape["intermediate_size"], rope_theta=shape["rope_theta"], max_seq_len=sequence,
        enable_weight_tying=bool(shape.get("tie_word_embeddings")), **mixture), parallelize_qwen3


def llama4(shape, sequence, _options):
    """As qwen3, of Llama 4's flavors without irope: every layer attends to all tokens before."""
    from torchtitan.models.llama4.infra.parallelize import parallelize_llama
    from torchtitan.models.llama4.model.args import TransformerModelArgs
    from torchtitan.models.llama4.model.model import Transformer
    from torchtitan.models.moe import MoEArgs

    hidden, width = shape["hidden_size"], shape["intermediate_size"]
    choices = shape["num_experts_per_tok"]
    step = shape.get("interleave_moe_layer_step", 1)
    whole = (choices + 1) * width  # which the model divides among what a token passes
    if step > 1 and shape["intermediate_size_mlp"] != whole:
        raise ValueError(f"intermediate_size_mlp {shape['intermediate_size_mlp']}: dense layers "
                         f"are {whole} wide")
    if torch.distributed.get_backend() == "fake":
        balance_dispatch()
    return Transformer, TransformerModelArgs(
        dim=hidden, n_layers=shape["num_hidden_layers"], n_heads=shape["num_attention_heads"],
        n_kv_heads=shape["num_key_value_heads"], vocab_size=shape["vocab_size"], multiple_of=1,
        ffn_dim_multiplier=(whole + 0.5) / int(8 * hidden / 3), rope_theta=shape["rope_theta"],
        max_seq_len=sequence, interleave_moe_layer_step=step,
        moe_args=MoEArgs(num_experts=shape["num_local_experts"], top_k=choices,
                         _debug_force_load_balance=True)), parallelize_llama


def deepseek_v3(shape, sequence, options):
    """As qwen3, of DeepSeek-V2 and V3."""
    from torchtitan.models.deepseek_v3.infra.parallelize import parallelize_deepseekv3
    from torchtitan.models.deepseek_v3.model.args import DeepSeekV3ModelArgs
    from torchtitan.models.deepseek_v3.model.model import DeepSeekV3Model
    from torchtitan.models.moe import MoEArgs

    if torch.distributed.get_backend() == "fake":
        balance_dispatch()
    groups = shape.get("n_group") or 1
    arguments = DeepSeekV3ModelArgs(
        max_seq_len=sequence, vocab_size=shape["vocab_size"], dim=shape["hidden_size"],
        inter_dim=shape["intermediate_size"], moe_inter_dim=shape["moe_intermediate_size"],
        n_layers=shape["num_hidden_layers"], n_dense_layers=shape["first_k_dense_replace"],
        n_heads=shape["num_attention_heads"], q_lora_rank=shape.get("q_lora_rank") or 0,
        kv_lora_rank=shape["kv_lora_rank"], qk_nope_head_dim=shape["qk_nope_head_dim"],
        qk_rope_head_dim=shape["qk_rope_head_dim"], v_head_dim=shape["v_head_dim"],
        attn_type="flex" if options.get("attention_backend") == "flex" else "sdpa",
        moe_args=MoEArgs(num_experts=shape["n_routed_experts"],
                         num_shared_experts=shape["n_shared_experts"],
                         top_k=shape["num_experts_per_tok"],
                         num_expert_groups=groups if groups > 1 else None,
                         num_limited_groups=shape["topk_group"] if groups > 1 else None,
                         score_func=shape.get("scoring_func", "softmax"),
                         route_norm=bool(shape.get("norm_topk_prob")), route_scale=1.0,
                         score_before_experts=False, _debug_force_load_balance=True))
    arguments.moe_impl = "standard"
    return DeepSeekV3Model, arguments, parallelize_deepseekv3


def gpt_oss(shape, sequence, _options):
    """As qwen3, of GPT-OSS."""
    from torchtitan.models.gpt_oss.infra.parallelize import parallelize_gptoss
    from torchtitan.models.gpt_oss.model.args import GptOssModelArgs
    from torchtitan.models.gpt_oss.model.model import GptOssModel
    from torchtitan.models.moe import MoEArgs

    if torch.distributed.get_backend() == "fake":
        balance_dispatch()
    return GptOssModel, GptOssModelArgs(
        max_seq_len=sequence, vocab_size=shape["vocab_size"], dim=shape["hidden_size"],
        moe_inter_dim=shape["intermediate_size"], n_layers=shape["num_hidden_layers"],
        head_dim=shape["head_dim"], n_heads=shape["num_attention_heads"],
        n_kv_heads=shape["num_key_value_heads"], sliding_window_size=shape["sliding_window"],
        moe_args=MoEArgs(num_experts=shape["num_local_experts"], num_shared_experts=0,
                         top_k=shape["num_experts_per_tok"], score_func="softmax", route_norm=True,
                         gate_bias=True, score_before_experts=False,
                         _debug_force_load_balance=True)), parallelize_gptoss


def balance_dispatch():
    """A rank alone is told that every other sends it as many tokens as it would send itself."""
    from torchtitan.distributed import expert_parallel

    def counts_of_all(counts, _output_splits, _input_splits, group):
        ranks = torch.distributed.get_world_size(group)
        own = counts.view(ranks, -1)[torch.distributed.get_rank(group)]
        return own.repeat(ranks)

    expert_parallel.all_to_all_single = counts_of_all


class Titan:
    """A torchtitan training step of v0.2.2's trainer (torchtitan/train.py) on random tokens."""

    def __init__(self, case, world):
        job_config = titan_settings()
        from torchtitan.components import loss as losses
        from torchtitan.distributed import ParallelDims, utils
        from torchtitan.distributed.pipeline_parallel import pipeline_llm

        self.utils, self.device = utils, torch.device(DEVICE)
        shape, plan, options = case["model"], case["plan"], case.get("options", {})
        training, pp = case["training"], plan.get("pp", 1)
        self.sequence, self.microbatches = training["sequence_length"], training["num_microbatches"]
        self.batch = training["micro_batch"] * (self.microbatches if pp > 1 else 1)
        self.vocab = shape["vocab_size"]
        replicas = plan.get("dp_replicate", 1)
        self.dims = ParallelDims(dp_replicate=replicas, dp_shard=plan.get("dp", 1) // replicas,
                                 cp=plan.get("cp", 1), tp=plan.get("tp", 1), pp=pp,
                                 ep=plan.get("ep", 1), etp=plan.get("etp", 1), world_size=world)
        config = job_config.JobConfig()
        config.training.seq_len = self.sequence
        config.training.local_batch_size = self.batch
        recompute = plan.get("recompute", {"granularity": "none"})
        config.activation_checkpoint.mode = recompute["granularity"]
        config.activation_checkpoint.selective_ac_option = (
            "2" if recompute.get("policy") == "every_second_layer" else "op")
        config.compile.enable = bool(options.get("compile"))
        if not options.get("compile_layers", True):
            config.compile.components = ["loss"]
        config.parallelism.fsdp_reshard_after_forward = options.get("reshard_after_forward", "default")
        config.parallelism.pipeline_parallel_degree = pp
        config.parallelism.pipeline_parallel_microbatch_size = training["micro_batch"]
        config.parallelism.pipeline_parallel_schedule = {
            "none": "1F1B", "1f1b": "1F1B", "gpipe": "GPipe",
            "interleaved_1f1b": "Interleaved1F1B"}[plan.get("schedule", "none")]
        build = next((of for start, of in (("qwen3", qwen3), ("llama4", llama4),
                                           ("deepseek", deepseek_v3), ("gpt_oss", gpt_oss))
                      if shape["model_type"].startswith(start)), llama3)
        transformer, arguments, parallelize = build(shape, self.sequence, options)
        self.dims.build_mesh()
        utils.set_determinism(self.dims, self.device, config.debug, distinct_seed_mesh_dims=["pp"])
        with torch.device("meta"):
            model = transformer(arguments)
        self.loss = losses.build_cross_entropy_loss(config)
        self.schedule = None
        if pp > 1:
            self.schedule, self.parts, self.first, self.last = pipeline_llm(
                model, self.dims, config, self.device, arguments, parallelize, self.loss)
            del model
        else:
            self.parts = [parallelize(model, self.dims, config)]
        for part in self.parts:
            part.to_empty(device=self.device)
            with torch.no_grad():
                part.init_weights()
            part.train()
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                             weight_decay=0.1, fused=True) for part in self.parts]
        self.context = utils.get_train_context(self.dims.tp_enabled)
        self.amp = utils.maybe_enable_amp(self.dims, "bfloat16", DEVICE)
        self.has_logged = False

    def parameters(self):
        local = [p.to_local() if hasattr(p, "to_local") else p for p in self.all_parameters()]
        return sum(p.numel() for p in local)

    def all_parameters(self):
        return [p for part in self.parts for p in part.parameters()]

    def microbatch(self):
        tokens = torch.randint(0, self.vocab, (self.batch, self.sequence + 1))
        return tokens[:, :-1].to(self.device), tokens[:, 1:].to(self.device)

    def forward_backward(self, valid_tokens):
        from torchtitan.distributed.context_parallel import prepare_context_parallel_input
        inputs, labels = self.microbatch()
        extra = {}
        if getattr(self.parts[0].model_args, "attn_type", "sdpa") == "flex":
            extra["attention_masks"] = self.parts[0].get_attention_masks(inputs, None)
        if self.dims.cp_enabled:
            inputs, labels, extra = prepare_context_parallel_input(
                inputs, labels, extra, self.dims.get_mesh("cp"), self.device, "headtail")
        if self.schedule:
            with self.context():
                targets, losses = (labels, []) if self.last else (None, None)
                first = (inputs,) if self.first else ()
                self.schedule.step(*first, **extra, target=targets, losses=losses,
                                   return_outputs=False)
            if not self.last:
                return torch.tensor([-1.0], device=self.device)
            return (torch.sum(torch.stack(losses)) / valid_tokens).to(self.device)
        with self.context():
            with self.amp:
                prediction = self.parts[0](inputs, **extra)
                loss = self.loss(prediction, labels) / valid_tokens
            del prediction
            loss.backward()
        return loss

    def step(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        runs = 1 if self.schedule else self.microbatches
        valid_tokens = torch.tensor(runs * self.batch * self.sequence, device=self.device)
        if self.dims.dp_enabled:
            valid_tokens = self.utils.dist_sum(valid_tokens, self.dims.get_mesh("batch"))
        losses = [self.forward_backward(valid_tokens).detach() for _ in range(runs)]
        self.utils.clip_grad_norm_(self.all_parameters(), 1.0, foreach=True,
                                   pp_mesh=self.dims.get_optional_mesh("pp"),
                                   ep_enabled=self.dims.ep_enabled)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.dims.dp_cp_enabled and not self.has_logged:  # on a communicator of its own
            self.utils.dist_sum(torch.stack(losses).sum(), self.dims.get_optional_mesh("loss"))
            self.has_logged = True
        return losses
