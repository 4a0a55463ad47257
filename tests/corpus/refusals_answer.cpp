// What a framework says of a valid plan that is changed in one place, change by change.
#include <array>
#include <optional>
#include <string_view>

#include "estimator/answer/why_invalid.h"
#include "tests/corpus/answer_text.h"
#include "tests/corpus/answers.h"

namespace shardplan {
namespace {

struct Change {
  std::string_view name;
  void (*apply)(Job& job, Plan& plan);
};

void make_pipeline(Plan& plan, std::int64_t pp, std::int64_t vpp, Schedule schedule) {
  plan.pp = pp;
  plan.vpp = vpp;
  plan.schedule = schedule;
  plan.layers_per_chunk.clear();
}

void replay_modules(Plan& plan, RecomputeModules modules) {
  plan.recompute = {.granularity = RecomputeGranularity::kSelective, .modules = modules};
}

constexpr std::array kPlanChanges = std::to_array<Change>({
    {"tp 0", [](Job&, Plan& plan) { plan.tp = 0; }},
    {"tp 2", [](Job&, Plan& plan) { plan.tp = 2; }},
    {"tp 3", [](Job&, Plan& plan) { plan.tp = 3; }},
    {"tp 64", [](Job&, Plan& plan) { plan.tp = 64; }},
    {"cp 2", [](Job&, Plan& plan) { plan.cp = 2; }},
    {"cp 3", [](Job&, Plan& plan) { plan.cp = 3; }},
    {"ep 2", [](Job&, Plan& plan) { plan.ep = 2; }},
    {"ep 3", [](Job&, Plan& plan) { plan.ep = 3; }},
    {"etp 2", [](Job&, Plan& plan) { plan.etp = 2; }},
    {"etp 3", [](Job&, Plan& plan) { plan.etp = 3; }},
    {"dp 7", [](Job&, Plan& plan) { plan.dp = 7; }},
    {"dp -1", [](Job&, Plan& plan) { plan.dp = -1; }},
    {"dp_replicate 2", [](Job&, Plan& plan) { plan.dp_replicate = 2; }},
    {"dp_replicate 3", [](Job&, Plan& plan) { plan.dp_replicate = 3; }},
    {"zero 0", [](Job&, Plan& plan) { plan.zero = 0; }},
    {"zero 1", [](Job&, Plan& plan) { plan.zero = 1; }},
    {"zero 2", [](Job&, Plan& plan) { plan.zero = 2; }},
    {"zero 3", [](Job&, Plan& plan) { plan.zero = 3; }},
    {"zero 4", [](Job&, Plan& plan) { plan.zero = 4; }},
    {"micro_batch 2", [](Job&, Plan& plan) { plan.micro_batch = 2; }},
    {"micro_batch 7", [](Job&, Plan& plan) { plan.micro_batch = 7; }},
    {"sequence_parallel", [](Job&, Plan& plan) { plan.sequence_parallel = true; }},
    {"no sequence_parallel", [](Job&, Plan& plan) { plan.sequence_parallel = false; }},
    {"pp 2, no schedule", [](Job&, Plan& plan) { make_pipeline(plan, 2, 1, Schedule::kNone); }},
    {"pp 1, 1f1b", [](Job&, Plan& plan) { make_pipeline(plan, 1, 1, Schedule::k1F1B); }},
    {"pp 2, gpipe", [](Job&, Plan& plan) { make_pipeline(plan, 2, 1, Schedule::kGpipe); }},
    {"pp 2, 1f1b", [](Job&, Plan& plan) { make_pipeline(plan, 2, 1, Schedule::k1F1B); }},
    {"pp 2, vpp 2, 1f1b", [](Job&, Plan& plan) { make_pipeline(plan, 2, 2, Schedule::k1F1B); }},
    {"pp 2, vpp 2, interleaved_1f1b",
     [](Job&, Plan& plan) { make_pipeline(plan, 2, 2, Schedule::kInterleaved1F1B); }},
    {"pp 2, zb_h1", [](Job&, Plan& plan) { make_pipeline(plan, 2, 1, Schedule::kZbH1); }},
    {"pp 2, vpp 2, interleaved_zero_bubble",
     [](Job&, Plan& plan) { make_pipeline(plan, 2, 2, Schedule::kInterleavedZeroBubble); }},
    {"pp 2, vpp 2, zbv", [](Job&, Plan& plan) { make_pipeline(plan, 2, 2, Schedule::kZbv); }},
    {"pp 2, vpp 3, zbv", [](Job&, Plan& plan) { make_pipeline(plan, 2, 3, Schedule::kZbv); }},
    {"no layers in the chunks", [](Job&, Plan& plan) { plan.layers_per_chunk = {0}; }},
    {"layers of three chunks", [](Job&, Plan& plan) { plan.layers_per_chunk = {1, 2, 3}; }},
    {"ring", [](Job&, Plan& plan) { plan.cp_method = CpMethod::kRing; }},
    {"all_gather", [](Job&, Plan& plan) { plan.cp_method = CpMethod::kAllGather; }},
    {"a2a", [](Job&, Plan& plan) { plan.cp_method = CpMethod::kA2a; }},
    {"rank order", [](Job&, Plan& plan) { plan.rank_order[0] = plan.rank_order[1]; }},
    {"other rank order",
     [](Job&, Plan& plan) { std::swap(plan.rank_order[0], plan.rank_order[3]); }},
    {"fp32", [](Job&, Plan& plan) { plan.precision = Precision::kFp32; }},
    {"bf16", [](Job&, Plan& plan) { plan.precision = Precision::kBf16; }},
    {"fp16", [](Job&, Plan& plan) { plan.precision = Precision::kFp16; }},
    {"fp8", [](Job&, Plan& plan) { plan.precision = Precision::kFp8; }},
    {"grad_dtype bf16", [](Job&, Plan& plan) { plan.grad_dtype = DType::kBf16; }},
    {"grad_dtype fp32", [](Job&, Plan& plan) { plan.grad_dtype = DType::kFp32; }},
    {"master_dtype bf16", [](Job&, Plan& plan) { plan.master_dtype = DType::kBf16; }},
    {"exp_avg_dtype bf16", [](Job&, Plan& plan) { plan.exp_avg_dtype = DType::kBf16; }},
    {"exp_avg_sq_dtype bf16", [](Job&, Plan& plan) { plan.exp_avg_sq_dtype = DType::kBf16; }},
    {"offload.optimizer 0.5", [](Job&, Plan& plan) { plan.offload.optimizer = 0.5; }},
    {"offload.optimizer 2", [](Job&, Plan& plan) { plan.offload.optimizer = 2; }},
    {"offload.activations", [](Job&, Plan& plan) { plan.offload.activations = true; }},
    {"offload.parameters", [](Job&, Plan& plan) { plan.offload.parameters = true; }},
    {"moe_buffer_factor 0", [](Job&, Plan& plan) { plan.moe_buffer_factor = 0; }},
    {"moe_buffer_factor 1.5", [](Job&, Plan& plan) { plan.moe_buffer_factor = 1.5; }},
    {"recompute selective", [](Job&, Plan& plan) { replay_modules(plan, {}); }},
    {"recompute core_attn", [](Job&, Plan& plan) { replay_modules(plan, {.core_attn = true}); }},
    {"recompute layernorm", [](Job&, Plan& plan) { replay_modules(plan, {.layernorm = true}); }},
    {"recompute mlp", [](Job&, Plan& plan) { replay_modules(plan, {.mlp = true}); }},
    {"recompute moe_act", [](Job&, Plan& plan) { replay_modules(plan, {.moe_act = true}); }},
    {"recompute mla_up_proj",
     [](Job&, Plan& plan) { replay_modules(plan, {.mla_up_proj = true}); }},
    {"recompute moe", [](Job&, Plan& plan) { replay_modules(plan, {.moe = true}); }},
    {"recompute shared_experts",
     [](Job&, Plan& plan) { replay_modules(plan, {.shared_experts = true}); }},
    {"recompute policy",
     [](Job&, Plan& plan) {
       plan.recompute = {.granularity = RecomputeGranularity::kSelective,
                         .policy = "every_second_layer"};
     }},
    {"recompute full", [](Job&, Plan& plan) {
       plan.recompute = {.granularity = RecomputeGranularity::kFull};
     }},
    {"recompute full, 0 layers",
     [](Job&, Plan& plan) {
       plan.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 0};
     }},
    {"recompute full, 1000 layers",
     [](Job&, Plan& plan) {
       plan.recompute = {.granularity = RecomputeGranularity::kFull,
                         .method = RecomputeMethod::kBlock,
                         .num_layers = 1000};
     }},
});

constexpr std::array kJobChanges = std::to_array<Change>({
    {"no tokens", [](Job& job, Plan&) { job.sequence_length = 0; }},
    {"one token more", [](Job& job, Plan&) { ++job.sequence_length; }},
    {"a million times the tokens", [](Job& job, Plan&) { job.sequence_length *= 1'000'000; }},
    {"no batch", [](Job& job, Plan&) { job.global_batch = 0; }},
    {"one sequence more", [](Job& job, Plan&) { ++job.global_batch; }},
    {"sgd_momentum", [](Job& job, Plan&) { job.optimizer = OptimizerKind::kSgdMomentum; }},
    {"muon", [](Job& job, Plan&) { job.optimizer = OptimizerKind::kMuon; }},
    {"dist_muon", [](Job& job, Plan&) { job.optimizer = OptimizerKind::kDistMuon; }},
    {"adapters", [](Job& job, Plan&) { job.adapters = kDefaultAdapters; }},
    {"hidden_dropout", [](Job& job, Plan&) { job.hidden_dropout = 0.1; }},
    {"attention_dropout", [](Job& job, Plan&) { job.attention_dropout = 0.1; }},
    {"three nodes", [](Job& job, Plan&) { job.cluster.nodes = 3; }},
    {"one GPU a node", [](Job& job, Plan&) {
       job.cluster.nodes *= job.cluster.gpus_per_node;
       job.cluster.gpus_per_node = 1;
     }},
    {"compute capability 7.0", [](Job& job, Plan&) { job.cluster.gpu.compute_capability = 70; }},
    {"compute capability 8.0", [](Job& job, Plan&) { job.cluster.gpu.compute_capability = 80; }},
    {"compute capability 10.0", [](Job& job, Plan&) { job.cluster.gpu.compute_capability = 100; }},
    {"no gate", [](Job& job, Plan&) { job.model.gated_ffn = false; }},
    {"tied embeddings", [](Job& job, Plan&) { job.model.tied_embeddings = true; }},
    {"bias of q, k, v", [](Job& job, Plan&) { job.model.qkv_bias = true; }},
    {"bias of attention", [](Job& job, Plan&) { job.model.attention_output_bias = true; }},
    {"bias of the FFN", [](Job& job, Plan&) { job.model.ffn_bias = true; }},
    {"norms of heads", [](Job& job, Plan&) { job.model.qk_norm = true; }},
    {"LayerNorm", [](Job& job, Plan&) { job.model.layer_norm = true; }},
    {"learned positions", [](Job& job, Plan&) { job.model.learned_positions = 1024; }},
    {"four norms", [](Job& job, Plan&) { job.model.norms_per_layer = 4; }},
    {"more predicted tokens", [](Job& job, Plan&) { job.model.num_mtp_layers = 1; }},
    {"hidden 37", [](Job& job, Plan&) { job.model.hidden = 37; }},
    {"ffn 37", [](Job& job, Plan&) { job.model.ffn = 37; }},
    {"vocab 37", [](Job& job, Plan&) { job.model.vocab = 37; }},
    {"37 heads", [](Job& job, Plan&) { job.model.num_heads = 37; }},
    {"5 kv heads", [](Job& job, Plan&) { job.model.num_kv_heads = 5; }},
    {"heads of 37", [](Job& job, Plan&) { job.model.head_dim = 37; }},
    {"heads of 512", [](Job& job, Plan&) { job.model.head_dim = 512; }},
    {"one layer", [](Job& job, Plan&) { job.model.layers.resize(1); }},
    {"windows", [](Job& job, Plan&) { job.model.layers.front().attention_window = 256; }},
    {"chunks of attention", [](Job& job, Plan&) {
       job.model.layers.front() = {.attention_window = 256, .attends_in_chunks = true};
     }},
    {"37 experts", [](Job& job, Plan&) { job.model.moe.num_experts = 37; }},
    {"more chosen than there are",
     [](Job& job, Plan&) { job.model.moe.topk = job.model.moe.num_experts + 1; }},
    {"experts of 37", [](Job& job, Plan&) { job.model.moe.expert_ffn = 37; }},
    {"shared experts of 37", [](Job& job, Plan&) { job.model.moe.shared_ffn = 37; }},
    {"gate of shared experts", [](Job& job, Plan&) { job.model.moe.shared_gate = true; }},
    {"bias of the router", [](Job& job, Plan&) { job.model.moe.router_bias = true; }},
    {"groups of experts", [](Job& job, Plan&) { job.model.moe.num_groups = 4; }},
    {"latent attention", [](Job& job, Plan&) {
       job.model.attention = AttentionKind::kMla;
       job.model.mla = {.q_lora_rank = 1536,
                        .kv_lora_rank = 512,
                        .qk_nope_head_dim = 128,
                        .qk_rope_head_dim = 64,
                        .v_head_dim = 128};
     }},
});

void add_refusal(AnswerText& text, const Change& change, Job job, Plan plan) {
  change.apply(job, plan);
  const std::optional<InvalidReason> reason = why_invalid(job, plan);
  text.add(change.name).add(":").add(reason ? reason->rule + ": " + reason->message : "valid");
  text.end_line();
}

}  // namespace

std::string refusals_answer(const Job& job, const Plan& plan) {
  AnswerText text;
  for (const Change& change : kPlanChanges) { add_refusal(text, change, job, plan); }
  for (const Change& change : kJobChanges) { add_refusal(text, change, job, plan); }
  return text.text();
}

}  // namespace shardplan
