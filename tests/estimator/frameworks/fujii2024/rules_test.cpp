// Plans that the source paper's formula refuses.
#include <doctest/doctest.h>

#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/broken_plans.h"

using namespace shardplan;

TEST_CASE("fujii2024 refuses by name what the paper's formula leaves out") {
  check_refused(
      dense_job(MemoryModel::kFujii2024),
      {{"unsupported: zero", [](Job&, Plan& plan) { plan.zero = 2; }, {"zero 2"}},
       {"unsupported: schedule",
        [](Job&, Plan& plan) { plan.schedule = Schedule::kGpipe; },
        {"gpipe"}},
       {"unsupported: precision",
        [](Job&, Plan& plan) { plan.precision = Precision::kFp32; },
        {"fp32"}},
       {"unsupported: grad_dtype",
        [](Job&, Plan& plan) { plan.grad_dtype = DType::kFp8; },
        {"fp8"}},
       {"unsupported: master_dtype",
        [](Job&, Plan& plan) { plan.master_dtype = DType::kBf16; },
        {"bf16"}},
       {"unsupported: exp_avg_dtype",
        [](Job&, Plan& plan) { plan.exp_avg_dtype = DType::kBf16; },
        {"bf16"}},
       {"unsupported: exp_avg_sq_dtype",
        [](Job&, Plan& plan) { plan.exp_avg_sq_dtype = DType::kBf16; },
        {"bf16"}},
       {"unsupported: recompute",
        [](Job&, Plan& plan) { plan.recompute.granularity = RecomputeGranularity::kFull; },
        {"full", "none"}},
       {"unsupported: dp_replicate",
        [](Job&, Plan& plan) { plan.dp_replicate = 2; },
        {"dp_replicate 2"}},
       {"unsupported: layers_per_chunk",
        [](Job&, Plan& plan) { plan.layers_per_chunk = {32}; },
        {"layers_per_chunk"}},
       {"unsupported: cp_method",
        [](Job&, Plan& plan) { plan.cp_method = CpMethod::kA2a; },
        {"a2a", "ring"}},
       {"unsupported: sequence_parallel", [](Job&, Plan& plan) { plan.tp = 2; }, {"tp 2"}},
       {"unsupported: model.attention",
        [](Job& job, Plan&) { job.model.attention = AttentionKind::kMla; },
        {"mla"}},
       {"unsupported: model.layer_norm",
        [](Job& job, Plan&) { job.model.layer_norm = true; },
        {"model.layer_norm true", "modelled: false"}},
       {"unsupported: offload.optimizer",
        [](Job&, Plan& plan) { plan.offload.optimizer = 1; },
        {"offload.optimizer 1"}},
       {"unsupported: offload.activations",
        [](Job&, Plan& plan) { plan.offload.activations = true; },
        {"true"}},
       {"unsupported: offload.parameters",
        [](Job&, Plan& plan) { plan.offload.parameters = true; },
        {"true"}},
       {"unsupported: moe_buffer_factor",
        [](Job&, Plan& plan) { plan.moe_buffer_factor = 2; },
        {"2"}},
       {"unsupported: trained",
        [](Job& job, Plan&) { job.adapters = kDefaultAdapters; },
        {"adapters"}},
       {"kv_heads_divisible_by_tp",
        [](Job& job, Plan& plan) {
          job.model.num_kv_heads = 4;
          plan.tp = 8;
          plan.sequence_parallel = true;
        },
        {"num_kv_heads 4", "tp 8", "1, 2, 4"}},
       {"sequence_divisible_by_2_cp",
        [](Job& job, Plan& plan) {
          job.sequence_length = 4;
          plan.cp = 4;
        },
        {"sequence_length 4", "cp 4"}},
       {"sequence_divisible_by_cp_tp",
        [](Job& job, Plan& plan) {
          job.sequence_length = 4099;
          plan.tp = 2;
          plan.sequence_parallel = true;
        },
        {"4099", "tp 2"}},
       {"microbatches_fill_interleaved_groups",
        [](Job& job, Plan& plan) {
          job.global_batch = 10;
          plan.pp = 4;
          plan.vpp = 4;
          plan.schedule = Schedule::kInterleaved1F1B;
        },
        {"5 microbatches", "pp 4", "a multiple of 4"}},
       {"layers_divisible_by_pp",
        [](Job& job, Plan& plan) {
          sets_pp2(job, plan);
          plan.pp = 8;
          job.model.layers.resize(31);
        },
        {"num_layers 31", "pp 8", "valid pp: 1, 31"}}});
  check_refused(
      moe_job(MemoryModel::kFujii2024),
      {{"etp_equals_tp", [](Job&, Plan& plan) { plan.etp = 2; }, {"etp 2", "valid etp: 1"}}});
}
