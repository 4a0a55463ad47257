// A run of nanotron: its configuration -> Job and Plan. Defaults as in nanotron 2411b022
// config/parallelism_config.py, config/config.py and config/models_config.py.
#include "data/arguments/nanotron.h"

#include <algorithm>

#include "data/arguments/environment.h"
#include "data/arguments/run_settings.h"
#include "data/models/config.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;

bool is_true(const RunArguments& arguments, const char* name, const char* fallback) {
  return in_lower_case(arguments.text_or(name, fallback)) == "true";
}

// trainer.py:988: the vocabulary is padded to a multiple that tp divides.
std::int64_t padded_vocabulary(const RunArguments& arguments, std::int64_t tp) {
  const std::int64_t multiple =
      arguments.integer_or("model.make_vocab_size_divisible_by", 1, 1, kMaxSize);
  return round_up(arguments.required_integer("model.model_config.vocab_size", 1, kMaxSize),
                  multiple * tp);
}

ModelSpec model_of(const RunArguments& arguments, std::int64_t tp) {
  ModelSpec model;
  model.name = "of the configuration";
  model.family = "llama";
  model.hidden = arguments.required_integer("model.model_config.hidden_size", 1, kMaxSize);
  model.ffn = arguments.required_integer("model.model_config.intermediate_size", 1, kMaxSize);
  model.num_heads =
      arguments.required_integer("model.model_config.num_attention_heads", 1, kMaxCount);
  model.num_kv_heads =
      arguments.integer_or("model.model_config.num_key_value_heads", model.num_heads, 1, kMaxCount);
  if (model.hidden % model.num_heads != 0) {
    throw arguments.error("model.model_config.num_attention_heads",
                          "found " + std::to_string(model.num_heads) +
                              ", expected a divisor of hidden_size " +
                              std::to_string(model.hidden));
  }
  model.head_dim = model.hidden / model.num_heads;
  model.vocab = padded_vocabulary(arguments, tp);
  model.tied_embeddings = is_true(arguments, "model.model_config.tie_word_embeddings", "false");
  model.layers.resize(static_cast<std::size_t>(
      arguments.required_integer("model.model_config.num_hidden_layers", 1, kMaxLayers)));
  return model;
}

void read_precision(const RunArguments& arguments, Plan& plan) {
  const std::string dtype =
      arguments.word_or("model.dtype", "float32", {"float32", "bfloat16", "float16"});
  plan.precision = dtype == "bfloat16"  ? Precision::kBf16
                   : dtype == "float16" ? Precision::kFp16
                                        : Precision::kFp32;
  const bool sums_in_fp32 = is_true(arguments, "optimizer.accumulate_grad_in_fp32", "false");
  plan.grad_dtype = sums_in_fp32 ? DType::kFp32 : DType::kBf16;
}

// `own_dp`: as the configuration has it. Where other sizes were asked for, dp is what they leave.
void read_plan(const RunArguments& arguments, bool is_resized, RunReading& run) {
  Plan& plan = run.plan;
  plan.tp = arguments.integer_or("parallelism.tp", 1, 1, kMaxCount);
  plan.pp = arguments.integer_or("parallelism.pp", 1, 1, kMaxCount);
  plan.cp = arguments.integer_or("parallelism.context_parallel_size", 1, 1, kMaxCount);
  plan.ep = arguments.integer_or("parallelism.expert_parallel_size", 1, 1, kMaxCount);
  const std::int64_t left = run.job.cluster.world_size() / plan.tp / plan.pp / plan.cp;
  const std::int64_t own_dp = arguments.required_integer("parallelism.dp", 1, kMaxCount);
  plan.dp = is_resized ? std::max<std::int64_t>(1, left) : own_dp;
  plan.zero = arguments.integer_or("optimizer.zero_stage", 0, 0, 3);
  plan.sequence_parallel =
      plan.tp > 1 &&
      in_lower_case(arguments.text_or("parallelism.tp_mode", "ALL_REDUCE")) == "reduce_scatter";
  if (plan.pp > 1) {
    const std::string engine = arguments.word_or("parallelism.pp_engine", "afab", {"afab", "1f1b"});
    plan.schedule = engine == "1f1b" ? Schedule::k1F1B : Schedule::kGpipe;
  }
  if (is_true(arguments, "parallelism.recompute_layer", "false")) {
    plan.recompute.granularity = RecomputeGranularity::kFull;
  }
  read_precision(arguments, plan);
  plan.micro_batch = arguments.required_integer("tokens.micro_batch_size", 1, kMaxCount);
  run.job.sequence_length = arguments.required_integer("tokens.sequence_length", 1, kMaxSize);
  run.job.global_batch =
      plan.micro_batch * own_dp *
      arguments.integer_or("tokens.batch_accumulation_per_replica", 1, 1, kMaxCount);
  run.batch_stated = true;
}

}  // namespace

RunReading read_nanotron_run(const RunSettings& settings, const ClusterSpec& cluster,
                             const Library& library) {
  const RunArguments arguments(settings.file, resized_arguments(settings),
                               argument_table(library, "nanotron"));
  RunReading run;
  run.framework = "nanotron";
  run.uses = arguments.uses();
  run.unsupported = arguments.first_refused();
  run.job.cluster = cluster;
  read_plan(arguments, !settings.sizes.empty(), run);
  run.job.model = model_of(arguments, run.plan.tp);
  const std::string optimizer = arguments.text_or("optimizer.optimizer_factory.name", "adamW");
  if (optimizer != "adamW") {
    refuse(run, "optimizer.optimizer_factory.name " + optimizer + ": adamW is described");
  }
  if (take_profile(run, library)) {
    const auto word = [](bool value) { return value ? "true" : "false"; };
    want(run, "recompute_allgather",
         word(is_true(arguments, "parallelism.tp_recompute_allgather", "true")), library);
    want(run, "fused_optimizer",
         word(is_true(arguments, "optimizer.optimizer_factory.torch_adam_is_fused", "true")),
         library);
  }
  read_environment(settings, library, run);
  return run;
}

}  // namespace shardplan
