// A run of Megatron-LM: its arguments and environment -> Job and Plan.
#include "data/arguments/megatron.h"

#include <algorithm>

#include "data/arguments/environment.h"
#include "data/arguments/megatron_hybrid.h"
#include "data/arguments/megatron_model.h"
#include "data/arguments/megatron_plan.h"
#include "data/arguments/megatron_tower.h"
#include "data/arguments/megatron_tuning.h"
#include "data/frameworks/framework.h"
#include "data/models/config.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/megatron/options.h"

namespace shardplan {
namespace {

struct WantedOption {
  std::string name;
  std::string word;
};

std::string cross_entropy(const RunArguments& arguments) {
  if (!arguments.has("--cross-entropy-loss-fusion")) {
    return "unfused";
  }
  return arguments.word_or("--cross-entropy-fusion-impl", "native", {"native", "te"}) == "te"
             ? "te_fused"
             : "native_fused";
}

const char* word_of(bool value) {
  return value ? "true" : "false";
}

// Whether experts have as many rows as their capacity: padded to it, or, of even loads, cut to it.
// Above the mean it cuts nothing off even loads (core/transformer/moe/moe_utils.py,
// apply_router_token_dropping).
bool fills_capacity(const RunArguments& arguments) {
  const double factor = arguments.number_or("--moe-expert-capacity-factor", 0, 0, 1024);
  return factor > 0 && (arguments.has("--moe-pad-expert-input-to-capacity") || factor <= 1);
}

// What the arguments say about the switches of the profile.
std::vector<WantedOption> wanted_options(const RunArguments& arguments) {
  std::vector<WantedOption> wanted = {
      {"overlap_grad_reduce", word_of(arguments.has("--overlap-grad-reduce"))},
      {"overlap_param_gather", word_of(arguments.has("--overlap-param-gather"))},
      {"overlap_moe_expert_parallel_comm",
       word_of(arguments.has("--overlap-moe-expert-parallel-comm"))},
      {"gradient_accumulation_fusion",
       word_of(!arguments.has("--no-gradient-accumulation-fusion"))},
      {"cross_entropy", cross_entropy(arguments)},
      {"account_for_embedding_in_split",
       word_of(arguments.has("--account-for-embedding-in-pipeline-split"))},
      {"account_for_loss_in_split", word_of(arguments.has("--account-for-loss-in-pipeline-split"))},
      {"microbatch_group_size",
       std::to_string(arguments.integer_or("--microbatch-group-size-per-virtual-pipeline-stage", 0,
                                           1, kMaxCount))},
  };
  if (arguments.has("--quick-geglu")) {  // training/arguments.py: without biases it is not fused
    const bool is_fused =
        !arguments.has("--no-bias-gelu-fusion") && !arguments.has("--disable-bias-linear");
    wanted.push_back({"swiglu", is_fused ? "fused" : "unfused"});
  }
  if (arguments.has("--swiglu")) {
    wanted.push_back({"swiglu", arguments.has("--no-bias-swiglu-fusion") ? "unfused" : "fused"});
  }
  const bool is_fsdp = arguments.has("--use-megatron-fsdp");
  for (const auto& [argument, option] :
       {std::pair{"--init-model-with-meta-device", "init_model_with_meta_device"},
        std::pair{"--log-params-norm", "log_params_norm"},
        std::pair{"--fsdp-double-buffer", "fsdp_double_buffer"}}) {
    if (is_fsdp && arguments.has(argument)) {
      wanted.push_back({option, "true"});
    }
  }
  if (arguments.has("--use-nccl-ub")) {
    wanted.push_back({"nccl_ub", "true"});
  }
  if (is_fsdp && arguments.has("--suggested-communication-unit-size")) {
    wanted.push_back({"suggested_communication_unit_size",
                      std::to_string(arguments.integer_or("--suggested-communication-unit-size", 0,
                                                          1, kMaxElements))});
  }
  if (arguments.has("--tp-comm-overlap")) {
    wanted.push_back({"tp_overlap", "pieces"});
  }
  if (arguments.has("--deterministic-mode")) {
    wanted.push_back({"deterministic_attention", "true"});
  }
  const std::int64_t multiple =
      arguments.has("--padded-vocab-size")
          ? 1
          : arguments.integer_or("--make-vocab-size-divisible-by", 128, 1, kMaxSize);
  wanted.push_back({"vocab_multiple", std::to_string(multiple)});
  if (fills_capacity(arguments)) {
    wanted.push_back({"moe_capacity_factor",
                      exact_text(arguments.number_or("--moe-expert-capacity-factor", 0, 0, 1024))});
  }
  return wanted;
}

using Options = std::vector<ProfileOption>;  // of the profile

void want(RunReading& run, const WantedOption& option, const Options& options) {
  const std::string reason = try_option(run.job.profile, option.name, option.word, options);
  if (!reason.empty()) {
    refuse(run, reason);
  }
}

// Megatron-LM core_v0.16.1 training/arguments.py:573-585. Its refusal of two stages without it is
// not ours: its core runs them (data/measured/megatron_ranks_h200.jsonl).
void read_exchange(const RunArguments& arguments, RunReading& run, const Options& options) {
  const bool off = arguments.has("--no-overlap-p2p-communication");
  const bool declared =
      std::ranges::find(options, "overlap_p2p_comm", &ProfileOption::name) != options.end();
  if (declared) {
    want(run, {"overlap_p2p_comm", word_of(!off)}, options);
  }
}

// Routing probabilities are small but where the all-gather dispatcher adds up in their type.
void want_router_dtype(const RunArguments& arguments, const std::string& dispatcher,
                       const Options& options, RunReading& run) {
  const std::string word = arguments.has("--moe-router-dtype")
                               ? arguments.word_or("--moe-router-dtype", "fp32", {"fp32", "fp64"})
                               : "bf16";
  if (word == "fp64" && dispatcher == "allgather") {
    refuse(run, "--moe-router-dtype fp64 with the allgather dispatcher: fp32 is described");
  }
  want(run, {"moe_router_dtype", word == "bf16" ? word : "fp32"}, options);
}

// The local spec has one attention, whatever backend is asked for (core/models/backends.py).
void read_attention(const RunArguments& arguments, RunReading& run, const Options& options) {
  const bool local =
      arguments.word_or("--transformer-impl", "transformer_engine",
                        {"transformer_engine", "local", "inference_optimized"}) == "local";
  // core_v0.16.1 reads the older name in its legacy models alone, which know no sinks.
  const bool names_flash = arguments.has("--use-flash-attn") &&
                           arguments.text_or("--softmax-type", "vanilla") == "vanilla";
  const std::string backend =
      names_flash ? "flash"
                  : arguments.word_or("--attention-backend", "auto",
                                      {"flash", "fused", "unfused", "local", "auto"});
  if (backend == "local" && !local) {
    refuse(run, "--attention-backend local: it needs --transformer-impl local");
  }
  const bool in_fp32 = arguments.has("--attention-softmax-in-fp32") ||
                       arguments.has("--apply-query-key-layer-scaling");
  want(run, {"attention_backend", local ? "local" : backend}, options);
  want(run, {"rope_fusion", word_of(!arguments.has("--no-rope-fusion"))}, options);
  want(run, {"masked_softmax_fusion", word_of(!arguments.has("--no-masked-softmax-fusion"))},
       options);
  want(run, {"attention_softmax_in_fp32", word_of(in_fp32)}, options);
}

void read_dispatcher(const RunArguments& arguments, RunReading& run, const Options& options) {
  if (run.job.model.moe.num_experts == 0) {
    return;
  }
  const std::string dispatcher = arguments.word_or("--moe-token-dispatcher-type", "allgather",
                                                   {"allgather", "alltoall", "flex"});
  const std::string flexible =
      arguments.word_or("--moe-flex-dispatcher-backend", "deepep", {"deepep", "hybridep"});
  want(run, {"moe_dispatcher", dispatcher == "flex" ? flexible : dispatcher}, options);
  want(run, {"moe_grouped_gemm", word_of(arguments.has("--moe-grouped-gemm"))}, options);
  want(run, {"moe_permute_fusion", word_of(arguments.has("--moe-permute-fusion"))}, options);
  want(run, {"moe_router_fusion", word_of(arguments.has("--moe-router-fusion"))}, options);
  want_router_dtype(arguments, dispatcher, options, run);
  // core/transformer/moe/moe_layer.py, MoELayer: without shared experts nothing asks for it.
  const bool has_shared = run.job.model.moe.shared_ffn > 0;
  want(run,
       {"moe_shared_expert_overlap",
        word_of(has_shared && arguments.has("--moe-shared-expert-overlap"))},
       options);
  const char* const capacity = "--moe-expert-capacity-factor";
  if (arguments.has(capacity) && !fills_capacity(arguments)) {
    run.notes.push_back(arguments.place(capacity) +
                        "without --moe-pad-expert-input-to-capacity: loads are taken as even, of "
                        "which nothing is dropped; a rank receives at most that many times the "
                        "mean; --set moe_imbalance_factor=N says otherwise");
  }
}

// Megatron-LM's limit of 0 is none.
void read_deferral(const RunArguments& arguments, RunReading& run, const Options& options) {
  const std::int64_t limit = arguments.integer_or("--wgrad-deferral-limit", 0, 0, kMaxCount);
  if (arguments.has("--defer-embedding-wgrad-compute")) {
    want(run, {"deferred_embedding_wgrads", std::to_string(limit > 0 ? limit : kMaxCount)},
         options);
  }
}

// Which parts of a step are CUDA graphs; attention alone is taken with a mixture's router.
std::string graphs_of(const RunArguments& arguments) {
  const std::string impl =
      arguments.has("--external-cuda-graph") ? "transformer_engine"
      : arguments.has("--enable-cuda-graph")
          ? "local"
          : arguments.word_or("--cuda-graph-impl", "none", {"none", "local", "transformer_engine"});
  const std::vector<std::string> scopes = arguments.texts("--cuda-graph-scope");
  const auto captures = [&](const char* scope) {
    return std::ranges::find(scopes, scope) != scopes.end();
  };
  if (impl == "none") {
    return "none";
  }
  if (impl == "local") {
    return captures("full_iteration") ? "iteration" : "layers";
  }
  if (scopes.empty() || captures("full")) {
    return "layers";
  }
  if (!captures("attn")) {
    return captures("moe_router") ? "router" : "none";
  }
  return captures("mlp") || captures("moe") ? "layers" : "attention";
}

// What a run of the whole framework makes beside the model: its data loader's mask, and cuBLAS'
// workspaces of a fixed size, without which torch refuses deterministic products
// (aten/src/ATen/Context.cpp, checkCuBLASConfigDeterministic).
void read_surroundings(const RunArguments& arguments, RunReading& run, const Options& options) {
  want(run, {"cuda_graphs", graphs_of(arguments)}, options);
  want(run, {"attention_mask", word_of(!arguments.has("--no-create-attention-mask-in-dataloader"))},
       options);
  constexpr std::int64_t kLargeConfigBytes = std::int64_t{8} * 4096 * 1024;  // ":4096:8"
  if (arguments.has("--deterministic-mode")) {
    want(run, {"torch_workspace_bytes", std::to_string(kLargeConfigBytes)}, options);
  }
}

// core/distributed/distributed_data_parallel_config.py wants the second with the first, whose mxfp8
// weights do not move into a buffer (Transformer Engine v2.9 pytorch/tensor/utils.py,
// replace_raw_data), and core/optimizer/optimizer_config.py says what the second is for.
void check_param_gather(const RunArguments& arguments) {
  const char* const gather = "--fp8-param-gather";
  const char* const reuse = "--reuse-grad-buf-for-mxfp8-param-ag";
  const std::string recipe = fp8_recipe(arguments);
  if (arguments.has(reuse) && !arguments.has(gather)) {
    throw arguments.error(reuse, "found no --fp8-param-gather, expected it beside this");
  }
  if (arguments.has(reuse) && recipe != "mxfp8") {
    throw arguments.error(reuse, "found --fp8-recipe " + recipe + ", expected mxfp8");
  }
  if (arguments.has(gather) && recipe == "mxfp8" && !arguments.has(reuse)) {
    throw arguments.error(gather, "found --fp8-recipe mxfp8 without " + std::string(reuse) +
                                      ", expected it beside them");
  }
}

void read_fp8(const RunArguments& arguments, RunReading& run, const Options& options) {
  check_param_gather(arguments);
  const std::string recipe = fp8_recipe(arguments);
  if (arguments.has("--fp8-format") && recipe != "custom") {
    want(run, {"fp8_recipe", recipe}, options);
  }
  if (arguments.has("--fp8-param-gather")) {
    want(run, {"fp8_param_gather", "true"}, options);
  }
}

void read_muon(const RunArguments& arguments, RunReading& run, const Options& options) {
  const std::string parts =
      arguments.word_or("--muon-tp-mode", "blockwise", {"blockwise", "duplicated", "distributed"});
  if (run.plan.tp > 1 && parts != "blockwise") {
    refuse(run, "--muon-tp-mode " + parts + ": blockwise is described");
  }
  const std::string products =
      arguments.word_or("--muon-fp32-matmul-prec", "medium", {"low", "medium", "high"});
  if (products != "medium") {
    refuse(run, "--muon-fp32-matmul-prec " + products + ": medium is described");
  }
  constexpr std::int64_t kSteps = 5;
  const std::int64_t steps = arguments.integer_or("--muon-num-ns-steps", kSteps, 1, kMaxCount);
  if (steps != kSteps) {
    refuse(run, "--muon-num-ns-steps " + std::to_string(steps) + ": 5 are described");
  }
  if (arguments.has("--muon-use-nesterov")) {
    want(run, {"muon_nesterov", "true"}, options);
  }
}

void read_optimizer(const RunArguments& arguments, RunReading& run, const Options& options) {
  const std::string optimizer = arguments.text_or("--optimizer", "adam");
  if (optimizer == "sgd") {
    run.job.optimizer = OptimizerKind::kSgdMomentum;
  } else if (optimizer == "muon" || optimizer == "dist_muon") {
    run.job.optimizer = optimizer == "muon" ? OptimizerKind::kMuon : OptimizerKind::kDistMuon;
    read_muon(arguments, run, options);
  } else if (optimizer != "adam") {
    refuse(run, "--optimizer " + optimizer + ": adam, sgd, muon and dist_muon are described");
  }
}

// training/arguments.py:830, whatever kind the positions are of.
void check_positions(const RunArguments& arguments, std::int64_t sequence_length) {
  const char* const name = "--max-position-embeddings";
  const std::int64_t positions = arguments.integer_or(name, sequence_length, 1, kMaxSize);
  if (positions < sequence_length) {
    throw arguments.error(name, "found " + std::to_string(positions) +
                                    ", expected at least --seq-length " +
                                    std::to_string(sequence_length));
  }
}

void read_training(const RunArguments& arguments, bool names_model, RunReading& run) {
  Job& job = run.job;
  job.sequence_length = read_megatron_length(arguments, names_model, run);
  check_positions(arguments, job.sequence_length);
  if (!arguments.has("--micro-batch-size")) {
    throw arguments.error("--micro-batch-size", "found nothing, expected an integer");
  }
  const std::int64_t model_parallel = run.plan.tp * run.plan.cp * run.plan.pp;
  const std::int64_t dp = std::max(std::int64_t{1}, job.cluster.world_size() / model_parallel);
  run.batch_stated = arguments.has("--global-batch-size");
  job.global_batch = arguments.integer_or("--global-batch-size", run.plan.micro_batch * dp, 1,
                                          kMaxCount * kMaxCount);
  job.hidden_dropout = arguments.number_or("--hidden-dropout", 0.1, 0, 1);
  job.attention_dropout = arguments.number_or("--attention-dropout", 0.1, 0, 1);
}

// Of the arguments, or one known by name, of which the arguments say what is trained.
ModelSpec model_of_run(const RunArguments& arguments, const RunSettings& settings,
                       const Library& library, std::vector<std::string>& notes) {
  if (settings.model.empty()) {
    return megatron_model(arguments, notes);
  }
  ModelSpec model = library.model(settings.model).model;
  model.num_mtp_layers = arguments.integer_or("--mtp-num-layers", 0, 0, kMaxMtpLayers);
  return model;
}

}  // namespace

RunReading read_megatron_run(const RunSettings& settings, const ClusterSpec& cluster,
                             const Library& library) {
  const RunArguments arguments(settings.file, resized_arguments(settings),
                               argument_table(library, "megatron"));
  RunReading run;
  run.job.cluster = cluster;
  run.uses = arguments.uses();
  run.framework = "megatron";
  if (!settings.undescribed.empty()) {
    refuse(run, settings.undescribed);
    return run;
  }
  run.unsupported = why_refused(arguments);
  run.job.model = model_of_run(arguments, settings, library, run.notes);
  read_megatron_adapters(arguments, run);
  read_megatron_plan(arguments, run);
  read_training(arguments, !settings.model.empty(), run);
  if (take_profile(run, library)) {
    const Options options = profile_options(library, run.framework);
    read_megatron_mixers(arguments, run, library);
    read_megatron_tower(arguments, run);
    for (const WantedOption& option : wanted_options(arguments)) { want(run, option, options); }
    read_exchange(arguments, run, options);
    read_attention(arguments, run, options);
    read_dispatcher(arguments, run, options);
    read_deferral(arguments, run, options);
    read_surroundings(arguments, run, options);
    read_fp8(arguments, run, options);
    read_optimizer(arguments, run, options);
    if (run.job.profile.gradient_accumulation_fusion &&
        !megatron::fuses_weight_gradients(run.job, run.plan)) {
      refuse(run,
             "--use-megatron-fsdp without --no-gradient-accumulation-fusion: the output layer's "
             "backward stops with an error (core/tensor_parallel/layers.py:566); with "
             "--grad-reduce-in-bf16 it runs");
    }
  }
  read_environment(settings, library, run);
  return run;
}

}  // namespace shardplan
