"""Megatron-core v0.16.1, found on PYTHONPATH: with local layers and PyTorch's RMSNorm and attention
(megatron-core-local), or with Transformer Engine's and what Megatron-LM's arguments default to
(megatron; also Megatron-FSDP, as ZeRO-2 and 3)."""
import torch
from megatron.core import optimizer as optimizers, parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads)
from megatron.core.enums import ModelType
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import transformer_block
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from frameworks.absent import DEVICE


class Sdpa(torch.nn.Module):
    """scaled_dot_product_attention on [b, heads, s, d] views of Megatron's [s, b, heads, d]."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, *args, **kwargs):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=query.size(2) != key.size(2))
        s, b = query.shape[:2]
        return out.permute(2, 0, 1, 3).reshape(s, b, -1)


def megatron_modules(sequence_parallel, experts, qk_norm):
    """The layers' specification: Megatron-core's local one with PyTorch's RMSNorm and attention."""
    class Norm(torch.nn.RMSNorm):
        def __init__(self, config=None, hidden_size=None, eps=1e-5, **_):
            super().__init__(hidden_size, eps=eps, device=DEVICE, dtype=torch.bfloat16)
            self.weight.sequence_parallel = sequence_parallel

    spec = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=experts or None,
                                                    moe_grouped_gemm=False, normalization="RMSNorm")
    parts = spec.submodules
    parts.input_layernorm, parts.pre_mlp_layernorm = Norm, Norm
    attention = parts.self_attention.submodules
    attention.core_attention = Sdpa
    if qk_norm:
        attention.q_layernorm, attention.k_layernorm = Norm, Norm
    transformer_block.LayerNormImpl = Norm
    moe_utils.te_general_gemm = None  # a name that only Transformer Engine defines
    return spec


def engine_modules(config):
    """The layers of Transformer Engine that pretrain_gpt.py builds (gpt_builders.py)."""
    if config.num_moe_experts:
        return gpt_layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=True, normalization="RMSNorm")
    return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
        qk_layernorm=config.qk_layernorm, multi_latent_attention=config.multi_latent_attention)


def is_deepseek(shape):
    return shape["model_type"].startswith("deepseek")


def number_of_experts(shape):
    if shape.get("first_k_dense_replace", 0) >= shape["num_hidden_layers"]:
        return 0
    return next((shape[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if key in shape), 0)


def latent_attention(shape):
    """With the norms of compressed queries and keys that DeepSeek has."""
    return dict(
        multi_latent_attention=True, qk_layernorm=True, q_lora_rank=shape["q_lora_rank"],
        kv_lora_rank=shape["kv_lora_rank"], qk_head_dim=shape["qk_nope_head_dim"],
        qk_pos_emb_head_dim=shape["qk_rope_head_dim"], v_head_dim=shape["v_head_dim"],
        rotary_base=shape["rope_theta"])


def deepseek_experts(shape):
    """As recipes of Megatron-Bridge and NeMo set them; DeepSeek-V3 routes by sigmoid and a bias."""
    moe = dict(
        moe_layer_freq=[int(layer >= shape["first_k_dense_replace"])
                        for layer in range(shape["num_hidden_layers"])],
        moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=1e-4, moe_router_pre_softmax=True)
    if shape.get("n_shared_experts"):
        moe.update(moe_shared_expert_intermediate_size=shape["n_shared_experts"] * shape["moe_intermediate_size"])
    if shape.get("n_group", 1) > 1:
        moe.update(moe_router_num_groups=shape["n_group"], moe_router_group_topk=shape["topk_group"])
    if shape["model_type"] == "deepseek_v3":
        moe.update(moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
                   moe_router_topk_scaling_factor=2.5)
    return moe


def megatron_config(shape, **settings):
    """Of a Llama-like model in bf16, with evenly loaded experts."""
    experts = number_of_experts(shape)
    moe = {} if experts == 0 else dict(
        num_moe_experts=experts, moe_router_topk=shape["num_experts_per_tok"],
        moe_ffn_hidden_size=shape.get("moe_intermediate_size", shape["intermediate_size"]),
        moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=1e-2, moe_router_force_load_balancing=True)
    if experts and is_deepseek(shape):
        moe.update(deepseek_experts(shape))
    config = MLATransformerConfig if is_deepseek(shape) else TransformerConfig
    return config(
        ffn_hidden_size=shape["intermediate_size"], add_bias_linear=False, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, hidden_dropout=0.0,
        attention_dropout=0.0, bias_activation_fusion=True, bias_dropout_fusion=True,
        use_cpu_initialization=False, **{**moe, **settings})


LOCAL = dict(apply_rope_fusion=False, gradient_accumulation_fusion=False, moe_grouped_gemm=False,
             masked_softmax_fusion=False, cross_entropy_loss_fusion=False)


def engine_settings(case):
    """What the case says of the fused operations, else what its profile does."""
    options = case.get("options", {})
    loss = options.get("cross_entropy", "te_fused")
    settings = dict(
        apply_rope_fusion=True, masked_softmax_fusion=True, persist_layer_norm=True,
        gradient_accumulation_fusion=options.get("gradient_accumulation_fusion", True),
        moe_grouped_gemm=options.get("moe_grouped_gemm", True),
        moe_permute_fusion=options.get("moe_permute_fusion", True),
        attention_backend=AttnBackend[options.get("attention_backend", "auto")],
        cross_entropy_loss_fusion=loss != "unfused",
        cross_entropy_fusion_impl="te" if loss == "te_fused" else "native",
        overlap_moe_expert_parallel_comm=bool(options.get("overlap_moe_expert_parallel_comm")),
        delay_wgrad_compute=bool(options.get("delay_wgrad_compute")))
    if case["training"].get("precision", "bf16") == "fp8":
        settings.update(fp8="hybrid", fp8_recipe=case.get("fp8_recipe", "delayed"),
                        fp8_param=bool(options.get("fp8_param_gather")))
    return settings


def data_parallel(case, config, part, zero, buckets, is_first):
    """The wrapper that training.py's get_model chooses."""
    options, wrapper, settings = case.get("options", {}), DistributedDataParallel, {}
    if zero >= 2:
        from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
        if torch.distributed.get_backend() == "fake":  # whose other ranks say nothing of their shards
            from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer
            param_and_grad_buffer.validate_uneven_dtensor = lambda tensor: None
        wrapper = FullyShardedDataParallel
        settings = dict(
            use_megatron_fsdp=True,
            data_parallel_sharding_strategy="optim_grads_params" if zero == 3 else "optim_grads",
            suggested_communication_unit_size=options.get("suggested_communication_unit_size"))
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=case["plan"].get("grad_dtype", "fp32") == "fp32",
        overlap_grad_reduce=bool(options.get("overlap_grad_reduce")),
        overlap_param_gather=bool(options.get("overlap_param_gather")),
        use_distributed_optimizer=zero >= 1, bucket_size=buckets,
        fp8_param_gather=bool(options.get("fp8_param_gather")), **settings)
    if case["framework"] != "megatron" or DEVICE == "cpu":
        return wrapper(config, ddp, part, disable_bucketing=not is_first)
    side = torch.cuda.Stream()  # as get_model
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wrapped = wrapper(config, ddp, part, disable_bucketing=not is_first)
    torch.cuda.current_stream().wait_stream(side)
    return wrapped


def gather_nothing(gathered, _own, group):
    """Moves nothing, and allocates what ProcessGroupNCCL does: tensors of one size are gathered flat
    (torch's group "fake" copies the rank's own into all, which fails where sizes differ)."""
    if len({tensor.numel() for tensor in gathered}) == 1:
        torch.empty(len(gathered) * gathered[0].numel(), dtype=gathered[0].dtype, device=gathered[0].device)


class Megatron:
    """A step of Megatron-core (megatron/training/training.py, train_step) on random tokens."""

    def __init__(self, case, _world):
        self.device = torch.device(DEVICE)
        shape, plan, options = case["model"], case["plan"], case.get("options", {})
        training = case["training"]
        tp, pp, vpp, ep = (plan.get(key, 1) for key in ("tp", "pp", "vpp", "ep"))
        virtual = vpp if vpp > 1 else None
        optimizer = training.get("optimizer", "adamw")
        zero = plan.get("zero", int(optimizer == "adamw"))  # not given: the distributed optimizer
        engine = case["framework"] == "megatron"
        cp = plan.get("cp", 1)
        self.sequence, self.batch = training["sequence_length"], training["micro_batch"]
        self.microbatches, self.vocab = training["num_microbatches"], shape["vocab_size"]
        if engine:  # --make-vocab-size-divisible-by
            self.vocab += -self.vocab % (options.get("vocab_multiple", 128) * tp)
        self.own_sequence = self.sequence // cp
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=virtual,
            context_parallel_size=cp, expert_model_parallel_size=ep,
            expert_tensor_parallel_size=plan.get("etp", 1), create_gloo_process_groups=False)
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        shared = {} if "shared_expert_intermediate_size" not in shape else dict(
            moe_shared_expert_intermediate_size=shape["shared_expert_intermediate_size"],
            moe_shared_expert_gate=True,
            moe_shared_expert_overlap=bool(options.get("moe_shared_expert_overlap")))
        recompute = plan.get("recompute", {"granularity": "none"})
        kind = recompute["granularity"]
        replay = {} if kind == "none" else dict(recompute_granularity=kind)
        if kind == "full":
            replay.update(recompute_method=recompute["method"],
                          recompute_num_layers=recompute["num_layers"])
        if kind == "selective":
            replay.update(recompute_modules=recompute["modules"])
        sequence_parallel = bool(plan.get("sequence_parallel", tp > 1))
        experts = number_of_experts(shape)
        qk_norm = shape["model_type"].startswith("qwen3")
        attention = latent_attention(shape) if is_deepseek(shape) else dict(
            qk_layernorm=qk_norm, add_qkv_bias=shape["model_type"].startswith("qwen2"))
        predicted = shape.get("num_nextn_predict_layers") or None
        self.config = megatron_config(
            shape, num_layers=shape["num_hidden_layers"], hidden_size=shape["hidden_size"],
            num_attention_heads=shape["num_attention_heads"],
            num_query_groups=shape["num_key_value_heads"], kv_channels=shape.get("head_dim"),
            mtp_num_layers=predicted,
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=virtual,
            context_parallel_size=cp, expert_model_parallel_size=ep,
            expert_tensor_parallel_size=plan.get("etp", 1), sequence_parallel=sequence_parallel,
            deallocate_pipeline_outputs=True, **replay, **shared, **attention,
            **{**(engine_settings(case) if engine else LOCAL), **case.get("settings", {})})
        spec = (engine_modules(self.config) if engine
                else megatron_modules(sequence_parallel, experts, qk_norm))
        stage = parallel_state.get_pipeline_model_parallel_rank()
        self.tensor_group = parallel_state.get_tensor_model_parallel_group()
        self.batch_source = parallel_state.get_tensor_model_parallel_src_rank()
        self.broadcasts_batch = engine and stage in (0, pp - 1)
        self.moe_tracker = moe_utils.get_moe_layer_wise_logging_tracker() if experts else {}
        overlap = bool(options.get("overlap_grad_reduce"))
        gathers = bool(options.get("overlap_param_gather")) and zero <= 1
        data_ranks = plan.get("dp", 1) * cp
        buckets = max(40000000, 1000000 * data_ranks) if overlap else None
        self.chunks = []
        prediction = predicted and gpt_layer_specs.get_gpt_mtp_block_spec(
            self.config, spec, use_transformer_engine=True)
        for chunk in range(vpp):
            part = GPTModel(
                self.config, spec, self.vocab, self.sequence,
                pre_process=stage == 0 and chunk == 0,
                post_process=stage == pp - 1 and chunk == vpp - 1,
                position_embedding_type="rope", rotary_base=shape["rope_theta"],
                share_embeddings_and_output_weights=shape.get("tie_word_embeddings", False),
                mtp_block_spec=prediction,
                **({"vp_stage": chunk} if vpp > 1 else {})).to(self.device)
            part.model_type = ModelType.encoder_or_decoder
            self.chunks.append(data_parallel(case, self.config, part, zero, buckets, chunk == 0))
        if not engine and not options.get("fused_optimizer"):  # Transformer Engine's, if it is found
            optimizers.USING_PYTORCH_OPTIMIZER = True
        make, settings = get_megatron_optimizer, {}
        if optimizer != "adamw":  # training.py, setup_model_and_optimizer
            from megatron.core.optimizer.muon import get_megatron_muon_optimizer as make
            if torch.distributed.get_backend() == "fake":
                torch.distributed.all_gather = gather_nothing
            settings = dict(layer_wise_distributed_optimizer=optimizer == "dist_muon")
        self.optimizer = make(
            OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16,
                            clip_grad=1.0, use_distributed_optimizer=zero >= 1,
                            muon_use_nesterov=bool(options.get("muon_nesterov")),
                            overlap_param_gather=gathers), self.chunks,
            use_gloo_process_groups=False, **settings)
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        one = (lambda calls: calls[0]) if vpp == 1 else list
        if overlap:
            self.config.no_sync_func = one([chunk.no_sync for chunk in self.chunks])
            self.config.grad_sync_func = one([chunk.start_grad_sync for chunk in self.chunks])
        if gathers:
            self.config.param_sync_func = one([chunk.start_param_sync for chunk in self.chunks])
        self.run = get_forward_backward_func()
        self.positions = torch.arange(self.own_sequence, device=self.device).unsqueeze(0)

    def parameters(self):
        return sum(p.numel() for chunk in self.chunks for p in chunk.parameters())

    def forward(self, _, model, return_schedule_plan=False):
        tokens = torch.randint(0, self.vocab, (self.batch, self.own_sequence + 1),
                               device=self.device)
        if self.broadcasts_batch:  # as pretrain_gpt.py, over a group of one as well
            torch.distributed.broadcast(tokens, self.batch_source, group=self.tensor_group)
        call = model.build_schedule_plan if return_schedule_plan else model
        output = call(tokens[:, :-1].contiguous(), self.positions.expand(self.batch, -1), None,
                      labels=tokens[:, 1:].contiguous())

        def loss(out):
            mean = out.float().mean()
            return mean, {"loss": mean.detach()}

        return output, loss

    def step(self):
        self.moe_tracker.clear()
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        iterators = [None] * len(self.chunks)
        losses = self.run(
            forward_step_func=self.forward, data_iterator=iterators if len(iterators) > 1 else None,
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=self.microbatches, seq_length=self.sequence,
            micro_batch_size=self.batch, decoder_seq_length=self.sequence, forward_only=False)
        self.optimizer.step()
        return losses
