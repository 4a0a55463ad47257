"""nanotron of January 2025 (read and run at 9055c664), found on PYTHONPATH with the Python files of
flash-attn 2.7.4; in place of flash-attn's compiled kernels stand PyTorch's, built from the same source."""
import gc
import os
import sys
import tempfile
import types
from pathlib import Path

import torch
import torch.distributed as dist

from frameworks.absent import DEVICE  # with it, packages that a step does not need are stood in for


def varlen_fwd(q, k, v, _out, cu_q, cu_k, _used, _pad, _table, _alibi, max_q, max_k, dropout, scale,
               _zero, causal, *_):
    out, lse, rng_state, _, mask = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, False, scale=scale)
    return out, lse, mask, rng_state


def varlen_bwd(grad, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, _alibi, max_q, max_k, dropout, scale,
               _zero, causal, *rest):
    for gradient in (dq, dk, dv):  # PyTorch's function makes its own: these must not stand beside them
        gradient.untyped_storage().resize_(0)
    made = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout, causal, rest[-1],
        torch.empty(0, device=q.device, dtype=torch.uint64), scale=scale)
    for gradient, result in zip((dq, dk, dv), made):
        gradient.set_(result)
    return dq, dk, dv, torch.empty(0, device=q.device)


def stand_in_for_peers(sequence_shape, mask_shape):
    """In the process group "fake" nothing arrives. Here a neighbouring stage sends what it would:
    hidden states and the mask from before, gradients of hidden states from behind. And a gather into
    a list takes the flat copy that ProcessGroupNCCL makes of it (ProcessGroupNCCL.cpp, allgather)."""
    from nanotron.parallel.pipeline_parallel.p2p import P2P

    def hidden(needs_gradient):
        return torch.zeros(sequence_shape, dtype=torch.bfloat16, device=DEVICE,
                           requires_grad=needs_gradient)

    def irecv_tensors(self, num_tensors, from_rank, tag=0):
        arrived = []
        for _ in range(num_tensors):
            if from_rank > dist.get_rank(self.pg):
                arrived.append(hidden(False))
            elif self.sends_mask:
                arrived.append(torch.ones(mask_shape, dtype=torch.bool, device=DEVICE))
            else:
                arrived.append(hidden(True))
            self.sends_mask = from_rank < dist.get_rank(self.pg) and not self.sends_mask
        return arrived, []

    P2P.sends_mask = False
    P2P.irecv_tensors = irecv_tensors
    gather = dist.all_gather

    def all_gather(tensors, tensor, group=None, async_op=False):
        flat = torch.empty(sum(t.numel() for t in tensors), dtype=tensor.dtype, device=tensor.device)
        work = gather(tensors, tensor, group=group, async_op=async_op)
        del flat
        return work

    dist.all_gather = all_gather


class Nanotron:
    """A step of its DistributedTrainer on its dummy data; gradients accumulate in fp32, AdamW is fused."""

    keeps_collector = True

    def __init__(self, case, world):
        sys.modules["flash_attn_2_cuda"] = types.ModuleType("flash_attn_2_cuda")
        sys.modules["flash_attn_2_cuda"].varlen_fwd = varlen_fwd
        sys.modules["flash_attn_2_cuda"].varlen_bwd = varlen_bwd
        from nanotron import config as settings
        from nanotron import trainer as training
        from nanotron.config.config import AdamWOptimizerArgs, LRSchedulerArgs, TokenizerArgs
        from nanotron.config.models_config import LlamaConfig, RandomInit
        from nanotron.dataloader import dummy_infinite_data_generator

        shape, plan, options = case["model"], case["plan"], case.get("options", {})
        run, tp, pp = case["training"], plan.get("tp", 1), plan.get("pp", 1)
        sequence_parallel = bool(plan.get("sequence_parallel", tp > 1))
        os.environ["LOCAL_RANK"] = "0"
        folder = Path(tempfile.gettempdir())
        config = settings.Config(
            general=settings.GeneralArgs(project="shardplan", run=case["id"], seed=1),
            parallelism=settings.ParallelismArgs(
                dp=plan.get("dp", 1), pp=pp, tp=tp,
                pp_engine={"gpipe": "afab"}.get(plan.get("schedule"), "1f1b"),
                tp_mode="REDUCE_SCATTER" if sequence_parallel else "ALL_REDUCE",
                tp_linear_async_communication=sequence_parallel,
                recompute_layer=plan.get("recompute", {}).get("granularity") == "full",
                tp_recompute_allgather=bool(options.get("recompute_allgather", True))),
            model=settings.ModelArgs(
                model_config=LlamaConfig(
                    max_position_embeddings=run["sequence_length"], rope_theta=shape["rope_theta"],
                    tie_word_embeddings=bool(shape.get("tie_word_embeddings")),
                    **{key: shape[key] for key in (
                        "hidden_size", "intermediate_size", "num_hidden_layers",
                        "num_attention_heads", "num_key_value_heads", "vocab_size")}),
                init_method=RandomInit(std=0.02), dtype=torch.bfloat16),
            tokenizer=TokenizerArgs(),
            checkpoints=settings.CheckpointsArgs(checkpoints_path=folder, checkpoint_interval=10**9),
            logging=settings.LoggingArgs(log_level="error", log_level_replica="error"),
            tokens=settings.TokensArgs(
                sequence_length=run["sequence_length"], train_steps=10**6,
                micro_batch_size=run["micro_batch"],
                batch_accumulation_per_replica=run["num_microbatches"]),
            optimizer=settings.OptimizerArgs(
                optimizer_factory=AdamWOptimizerArgs(
                    adam_eps=1e-8, adam_beta1=0.9, adam_beta2=0.95,
                    torch_adam_is_fused=bool(options.get("fused_optimizer", True))),
                zero_stage=plan.get("zero", 1), weight_decay=0.01, clip_grad=1.0,
                accumulate_grad_in_fp32=True,
                learning_rate_scheduler=LRSchedulerArgs(
                    learning_rate=1e-4, lr_warmup_steps=2, lr_warmup_style="linear",
                    lr_decay_style="cosine", min_decay_lr=1e-5)),
            data_stages=[settings.DatasetStageArgs(
                name="all", start_training_step=1, data=settings.DataArgs(dataset=None, seed=1))])
        training.get_config_from_file = lambda given, **_: given
        training.parse_ckpt_path = lambda **_: None
        self.trainer = training.DistributedTrainer(config)
        if dist.get_backend() == "fake":
            tokens = run["sequence_length"] // (tp if sequence_parallel else 1)
            stand_in_for_peers((tokens, run["micro_batch"], shape["hidden_size"]),
                               (run["micro_batch"], run["sequence_length"]))
        self.prepare(config)
        model = self.trainer.unwrapped_model
        self.data = dummy_infinite_data_generator(
            micro_batch_size=run["micro_batch"], sequence_length=run["sequence_length"],
            input_pp_rank=model.input_pp_rank, output_pp_rank=model.output_pp_rank,
            vocab_size=shape["vocab_size"], seed=1,
            parallel_context=self.trainer.parallel_context)()

    def prepare(self, config):
        """What DistributedTrainer.train does before its loop. The step counts as one after the first
        five, in which log_memory would reset PyTorch's peaks."""
        trainer = self.trainer
        trainer.pipeline_engine = config.parallelism.pp_engine
        trainer.pipeline_engine.nb_microbatches = trainer.n_micro_batches_per_batch
        model = trainer.unwrapped_model
        model.module_id_to_prefix = {id(part): f"{name}." for name, part in model.named_modules()}
        model.module_id_to_prefix[id(model)] = ""
        trainer.initial_iter_step, trainer.iteration_step, trainer.last_iter_step = 1, 10, 10**6
        gc.collect()
        torch.cuda.empty_cache()

    def parameters(self):
        return sum(p.numel() for p in self.trainer.unwrapped_model.parameters())

    def step(self):
        return self.trainer.training_step(dataloader=self.data)[1]
