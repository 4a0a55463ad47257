
#include <doctest/doctest.h>

#include <limits>

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/broken_plans.h"

using namespace shardplan;

TEST_CASE("sizes must be positive, whatever the profile") {
  for (const MemoryModel model : {MemoryModel::kFujii2024, MemoryModel::kMegatron,
                                  MemoryModel::kNative, MemoryModel::kMegatronLocal}) {
    for (std::int64_t Plan::*size : {&Plan::tp, &Plan::cp, &Plan::ep, &Plan::etp, &Plan::pp,
                                     &Plan::vpp, &Plan::dp_replicate, &Plan::micro_batch}) {
      for (const std::int64_t value :
           {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
        Plan plan;
        plan.*size = value;
        CHECK(why_invalid(dense_job(model), plan)->rule == "sizes_positive");
      }
    }
  }
}

TEST_CASE("huge sizes are refused without overflow, whatever the profile") {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (const MemoryModel model : {MemoryModel::kFujii2024, MemoryModel::kMegatron,
                                  MemoryModel::kNative, MemoryModel::kMegatronLocal}) {
    for (std::int64_t Plan::*size : {&Plan::tp, &Plan::cp, &Plan::ep, &Plan::etp, &Plan::pp,
                                     &Plan::vpp, &Plan::dp_replicate, &Plan::micro_batch}) {
      for (std::int64_t Plan::*other : {&Plan::tp, &Plan::cp, &Plan::ep, &Plan::etp, &Plan::pp,
                                        &Plan::vpp, &Plan::dp_replicate, &Plan::micro_batch}) {
        Plan plan;
        plan.sequence_parallel = true;
        plan.*size = huge;
        plan.*other = huge - 1;
        CHECK(why_invalid(moe_job(model), plan).has_value());
      }
    }
  }
}

TEST_CASE("a microbatch whose bytes would leave 64 bits is refused, whatever the profile") {
  for (const MemoryModel model : {MemoryModel::kFujii2024, MemoryModel::kMegatron,
                                  MemoryModel::kNative, MemoryModel::kMegatronLocal}) {
    Job job = moe_job(model);
    job.sequence_length = std::int64_t{1} << 27;
    job.global_batch = std::int64_t{1} << 27;
    Plan plan;
    CHECK_FALSE(why_invalid(job, plan).has_value());
    plan.micro_batch = std::int64_t{1} << 20;
    const std::optional<InvalidReason> reason = why_invalid(job, plan);
    REQUIRE(reason.has_value());
    CHECK(reason->rule == "microbatch_too_large");
    CHECK(reason->message.find("134217728 / cp 1 * micro_batch 1048576") != std::string::npos);
  }
}

TEST_CASE("GPipe's microbatches are all in flight and counted together") {
  Job job = dense_job(MemoryModel::kNative);
  job.sequence_length = 1 << 20;
  job.global_batch = 1 << 24;
  Plan plan;
  sets_pp2(job, plan);
  CHECK_FALSE(why_invalid(job, plan).has_value());
  plan.schedule = Schedule::kGpipe;
  REQUIRE(why_invalid(job, plan).has_value());
  CHECK(why_invalid(job, plan)->rule == "microbatch_too_large");
}

TEST_CASE("the grid must fill the GPUs and the batch") {
  check_refused(
      dense_job(MemoryModel::kMegatron),
      {{"world_divisible_by_tp_cp_pp", [](Job&, Plan& plan) { plan.cp = 3; }, {"3", "1, 2, 4, 8"}},
       {"dp_matches_world",
        [](Job&, Plan& plan) {
          plan.tp = 2;
          plan.dp = 8;
        },
        {"dp 8", "8 GPUs", "valid dp: 4"}},
       {"global_batch_divisible_by_micro_batch_dp",
        [](Job&, Plan& plan) { plan.micro_batch = 3; },
        {"global_batch 64", "micro_batch 3 * dp 8", "valid micro_batch: 1, 2, 4, 8"}},
       {"global_batch_divisible_by_micro_batch_dp",
        [](Job& job, Plan&) { job.global_batch = 60; },
        {"global_batch 60", "dp 8", "valid global_batch: 56, 64 (multiples of 8)",
         "sizes that leave dp 1, 2, 4"}},
       {"dp_replicate_needs_zero", [](Job&, Plan& plan) { plan.dp_replicate = 2; }, {"zero >= 1"}},
       {"dp_divisible_by_dp_replicate",
        [](Job&, Plan& plan) {
          plan.zero = 1;
          plan.dp_replicate = 3;
        },
        {"dp 8", "dp_replicate 3", "1, 2, 4, 8"}}});
}

TEST_CASE("heads, widths and sequence must divide") {
  check_refused(dense_job(MemoryModel::kMegatron),
                {{"heads_divisible_by_tp",
                  [](Job& job, Plan& plan) {
                    job.model.num_heads = 36;
                    plan.tp = 8;
                  },
                  {"num_heads 36", "tp 8", "valid tp: 1, 2, 4"}},
                 {"kv_heads_multiple_or_divisor_of_tp",
                  [](Job& job, Plan& plan) {
                    job.model.num_heads = 24;
                    job.model.num_kv_heads = 6;
                    plan.tp = 4;
                  },
                  {"num_kv_heads 6", "tp 4", "1, 2, 3, 6"}},
                 {"heads_divisible_by_kv_heads",
                  [](Job& job, Plan&) { job.model.num_kv_heads = 5; },
                  {"num_heads 32", "num_kv_heads 5", "1, 2, 4, 8, 16, 32"}},
                 {"ffn_divisible_by_tp",
                  [](Job& job, Plan& plan) {
                    job.model.ffn = 11009;
                    plan.tp = 2;
                  },
                  {"ffn 11009", "tp 2", "valid tp: 1, 101, 109"}},
                 {"sequence_parallel_needs_tp",
                  [](Job&, Plan& plan) { plan.sequence_parallel = true; },
                  {"tp 1", "tp >= 2"}},
                 {"sequence_divisible_by_2_cp",
                  [](Job& job, Plan& plan) {
                    job.sequence_length = 8196;
                    plan.cp = 4;
                  },
                  {"sequence_length 8196", "cp 4", "valid cp: 1, 2, 3, 6"}},
                 {"sequence_divisible_by_cp_tp",
                  [](Job& job, Plan& plan) {
                    job.sequence_length = 8196;
                    plan.tp = 8;
                    plan.sequence_parallel = true;
                  },
                  {"8196", "tp 8"}},
                 {"a2a_heads_divisible_by_cp",
                  [](Job& job, Plan& plan) {
                    job.model.num_kv_heads = 2;
                    plan.cp = 4;
                    plan.cp_method = CpMethod::kA2a;
                  },
                  {"kv heads 2", "cp 4", "1, 2"}},
                 {"ring_cp_needs_full_attention",
                  [](Job& job, Plan& plan) {
                    job.model.layers[7].attention_window = 4096;
                    plan.cp = 2;
                  },
                  {"cp 2", "sliding-window", "a2a"}},
                 {"unfused_attention_needs_cp_1",
                  [](Job& job, Plan& plan) {
                    job.profile.attention_backend = AttentionBackend::kUnfused;
                    plan.cp = 2;
                  },
                  {"cp 2", "unfused", "flash"}},
                 {"unfused_attention_needs_cp_1",
                  [](Job& job, Plan& plan) {
                    job.profile.attention_backend = AttentionBackend::kLocal;
                    plan.cp = 2;
                  },
                  {"cp 2", "local", "flash"}},
                 {"unsupported: attention_backend",
                  [](Job& job, Plan& plan) {
                    job.profile.attention_backend = AttentionBackend::kLocal;
                    plan.precision = Precision::kFp8;
                  },
                  {"local", "bf16"}},
                 {"deferred_embedding_wgrads_need_a_pipeline",
                  [](Job& job, Plan&) { job.profile.deferred_embedding_wgrads = 2; },
                  {"deferred_embedding_wgrads 2", "pp 1", "pp above 1"}}});
}

TEST_CASE("kv heads fewer than tp ranks are accepted where they divide them") {
  Job job = dense_job(MemoryModel::kMegatron);
  job.cluster.nodes = 2;
  Plan plan;
  plan.tp = 16;
  CHECK_FALSE(why_invalid(job, plan).has_value());
}

TEST_CASE("layers and schedule must fit the pipeline") {
  check_refused(dense_job(MemoryModel::kNative),
                {{"schedule_fits_pp_and_vpp",
                  [](Job&, Plan& plan) { plan.pp = 2; },
                  {"none", "pp 2", "pp 1"}},
                 {"schedule_fits_pp_and_vpp",
                  [](Job&, Plan& plan) { plan.schedule = Schedule::kGpipe; },
                  {"gpipe", "pp 1", "pp >= 2"}},
                 {"schedule_fits_pp_and_vpp",
                  [](Job& job, Plan& plan) {
                    sets_pp2(job, plan);
                    plan.vpp = 2;
                  },
                  {"1f1b", "vpp 2", "interleaved_1f1b"}},
                 {"schedule_fits_pp_and_vpp",
                  [](Job&, Plan& plan) {
                    plan.pp = 2;
                    plan.schedule = Schedule::kInterleaved1F1B;
                  },
                  {"vpp 1", "vpp >= 2"}},
                 {"schedule_fits_pp_and_vpp",
                  [](Job&, Plan& plan) {
                    plan.pp = 2;
                    plan.vpp = 4;
                    plan.schedule = Schedule::kZbv;
                  },
                  {"vpp 4", "vpp 2"}},
                 {"layers_split_evenly_over_chunks",
                  [](Job& job, Plan& plan) {
                    sets_pp2(job, plan);
                    plan.pp = 8;
                    job.model.layers.resize(126);
                  },
                  {"num_layers 126", "pp 8", "valid pp at vpp 1: 1, 2, 3, 6, 7, 9", "(128 in all)",
                   "for example 16,16,16,16,16,16,15,15"}},
                 {"layers_per_chunk_covers_the_model",
                  [](Job& job, Plan& plan) {
                    sets_pp2(job, plan);
                    plan.layers_per_chunk = {16, 15};
                  },
                  {"16,15 has 2 entries and 31 layers", "pp 2 * vpp 1", "32 layers in all"}},
                 {"layers_per_chunk_covers_the_model",
                  [](Job& job, Plan& plan) {
                    sets_pp2(job, plan);
                    plan.layers_per_chunk = {16, 8, 8};
                  },
                  {"3 entries", "pp 2 * vpp 1"}},
                 {"layers_per_chunk_covers_the_model",
                  [](Job& job, Plan& plan) {
                    sets_pp2(job, plan);
                    plan.layers_per_chunk = {33, -1};
                  },
                  {"33,-1", "none negative"}},
                 {"microbatches_fill_interleaved_groups",
                  [](Job& job, Plan& plan) {
                    job.global_batch = 20;
                    plan.pp = 4;
                    plan.vpp = 2;
                    plan.schedule = Schedule::kInterleaved1F1B;
                  },
                  {"10 microbatches", "pp 4", "a multiple of 4"}}});
}

TEST_CASE("an uneven split and ends counted as layers are accepted") {
  Job job = dense_job(MemoryModel::kMegatron);
  Plan plan;
  sets_pp2(job, plan);
  plan.layers_per_chunk = {17, 15};
  CHECK_FALSE(why_invalid(job, plan).has_value());

  job.model.layers.resize(126);
  job.profile.account_for_embedding_in_split = true;
  job.profile.account_for_loss_in_split = true;
  plan.layers_per_chunk.clear();
  plan.pp = 8;
  CHECK_FALSE(why_invalid(job, plan).has_value());
}

TEST_CASE("expert axes need experts and must divide them") {
  check_refused(moe_job(MemoryModel::kMegatron),
                {{"experts_divisible_by_ep",
                  [](Job& job, Plan& plan) {
                    job.model.moe.num_experts = 12;
                    plan.ep = 8;
                  },
                  {"num_experts 12", "ep 8", "1, 2, 3, 4, 6, 12"}},
                 {"expert_ffn_divisible_by_etp",
                  [](Job& job, Plan& plan) {
                    job.model.moe.expert_ffn = 1407;
                    plan.etp = 2;
                  },
                  {"moe.expert_ffn 1407", "etp 2", "1, 3, 7"}},
                 {"shared_ffn_divisible_by_tp",
                  [](Job& job, Plan& plan) {
                    job.model.moe.shared_ffn = 1407;
                    plan.tp = 2;
                    plan.sequence_parallel = true;
                  },
                  {"moe.shared_ffn 1407", "tp 2"}},
                 {"world_divisible_by_etp_ep_pp",
                  [](Job&, Plan& plan) {
                    plan.ep = 8;
                    plan.etp = 2;
                  },
                  {"etp 2 * ep 8 * pp 1", "GPUs, 8"}},
                 {"experts_without_ep_are_sliced_as_tp",
                  [](Job& job, Plan& plan) {
                    job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 14336};
                    job.model.layers.assign(32, {.is_moe = true});
                    plan.etp = 2;
                  },
                  {"etp 2", "tp 1", "ep above 1"}},
                 {"experts_with_tp_need_sequence_parallel",
                  [](Job&, Plan& plan) { plan.tp = 2; },
                  {"num_experts 8", "tp 2", "sequence_parallel true"}},
                 {"expert_dp_divisible_by_dp_replicate",
                  [](Job&, Plan& plan) {
                    plan.ep = 8;
                    plan.zero = 1;
                    plan.dp_replicate = 2;
                  },
                  {"GPUs / (pp * ep * etp) 1", "dp_replicate 2"}}});
  check_refused(dense_job(MemoryModel::kMegatron),
                {{"ep_etp_need_experts", [](Job&, Plan& plan) { plan.ep = 2; }, {"ep 2", "ep 1"}},
                 {"ep_etp_need_experts", [](Job&, Plan& plan) { plan.etp = 2; }, {"etp 2"}}});
}

TEST_CASE("recompute fields must fit one another and the model") {
  check_refused(
      dense_job(MemoryModel::kMegatron),
      {{"recompute_fields_fit_granularity",
        [](Job&, Plan& plan) { plan.recompute.modules.mlp = true; },
        {"none with modules", "no modules"}},
       {"recompute_fields_fit_granularity",
        [](Job&, Plan& plan) { plan.recompute.granularity = RecomputeGranularity::kSelective; },
        {"selective with no modules", "modules or a policy"}},
       {"recompute_fields_fit_granularity",
        [](Job&, Plan& plan) { plan.recompute.num_layers = 4; },
        {"none", "num_layers 4"}},
       {"recompute_num_layers_within_chunk",
        [](Job&, Plan& plan) {
          plan.recompute.granularity = RecomputeGranularity::kFull;
          plan.recompute.num_layers = 33;
        },
        {"33", "1 to 32"}},
       {"recompute_num_layers_within_chunk",
        [](Job&, Plan& plan) {
          plan.recompute.granularity = RecomputeGranularity::kFull;
          plan.recompute.num_layers = 0;
        },
        {"num_layers 0", "1 to 32"}}});
  const auto needs = [](bool RecomputeModules::*module) {
    return [module](Job&, Plan& plan) {
      plan.recompute.granularity = RecomputeGranularity::kSelective;
      plan.recompute.modules.*module = true;
    };
  };
  check_refused(
      dense_job(MemoryModel::kMegatron),
      {{"recompute_modules_exist_in_model", needs(&RecomputeModules::mla_up_proj), {"latent"}},
       {"recompute_modules_exist_in_model", needs(&RecomputeModules::moe), {"no experts"}},
       {"recompute_modules_exist_in_model", needs(&RecomputeModules::moe_act), {"no experts"}},
       {"recompute_modules_exist_in_model", needs(&RecomputeModules::shared_experts), {"shared"}}});
  Plan plan;
  Job job = mla_job(MemoryModel::kMegatron);
  needs (&RecomputeModules::mla_up_proj)(job, plan);
  CHECK_FALSE(why_invalid(job, plan).has_value());
}

TEST_CASE("fp8, overlap and small optimizer states have their own needs") {
  check_refused(dense_job(MemoryModel::kMegatron),
                {{"fp8_needs_compute_capability_89",
                  [](Job& job, Plan& plan) {
                    plan.precision = Precision::kFp8;
                    job.cluster.gpu.id = "A100-80GB";
                    job.cluster.gpu.compute_capability = 80;
                  },
                  {"A100-80GB has 80", "89"}},
                 {"fp8_tokens_divisible",
                  [](Job& job, Plan& plan) {
                    plan.precision = Precision::kFp8;
                    job.sequence_length = 8196;
                  },
                  {"8196"}},
                 {"fp8_widths_divisible",
                  [](Job& job, Plan& plan) {
                    plan.precision = Precision::kFp8;
                    job.model.ffn = 11000;
                    plan.tp = 2;
                  },
                  {"ffn / tp 5500"}},
                 {"overlap_param_gather_needs_zero_and_overlap_grad_reduce",
                  [](Job& job, Plan&) { job.profile.overlap_param_gather = true; },
                  {"zero 0", "zero 1"}},
                 {"tp_overlap_needs_sequence_parallel",
                  [](Job& job, Plan& plan) {
                    job.profile.tp_overlap = TpOverlap::kPieces;
                    plan.tp = 2;
                  },
                  {"tp_overlap pieces with tp 2", "sequence_parallel true"}},
                 {"launch_blocking_overlaps_nothing",
                  [](Job& job, Plan&) {
                    job.profile.launch_blocking = true;
                    job.profile.overlap_grad_reduce = true;
                  },
                  {"launch_blocking with overlap_grad_reduce true:"}},
                 {"launch_blocking_overlaps_nothing",
                  [](Job& job, Plan& plan) {
                    job.profile.launch_blocking = true;
                    job.profile.cp_overlap = CpOverlap::kAttention;
                    plan.cp = 2;
                  },
                  {"launch_blocking with cp_overlap attention:"}},
                 {"overlap_moe_expert_parallel_comm_needs_exchanges",
                  [](Job& job, Plan&) { job.profile.overlap_moe_expert_parallel_comm = true; },
                  {"with ep 1,", "valid: ep above 1"}},
                 {"moe_shared_expert_overlap_needs_all_to_all",
                  [](Job& job, Plan&) {
                    job.profile.moe_shared_expert_overlap = true;
                    job.profile.moe_dispatcher = MoeDispatcher::kHybridEp;
                    job.model.moe = {
                        .num_experts = 8, .topk = 2, .expert_ffn = 1024, .shared_ffn = 1024};
                  },
                  {"needs moe_dispatcher alltoall"}},
                 {"low_precision_or_offloaded_optimizer_needs_zero_1",
                  [](Job&, Plan& plan) { plan.exp_avg_dtype = DType::kBf16; },
                  {"exp_avg_dtype bf16", "zero 1"}},
                 {"low_precision_or_offloaded_optimizer_needs_zero_1",
                  [](Job&, Plan& plan) { plan.offload.optimizer = 0.5; },
                  {"offload.optimizer 0.5", "zero 1"}},
                 {"offload_optimizer_is_a_share",
                  [](Job&, Plan& plan) { plan.offload.optimizer = 1.5; },
                  {"1.5", "0 to 1"}}});
}

// One test per field of a job and a plan: a value that the profile does not model is refused by the
// name of the field.
