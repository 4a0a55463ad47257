// A run of DeepSpeed: its configuration -> Plan and batch; model and sequence length are not in it.
// Defaults as in DeepSpeed 0.19.6 runtime/config.py, runtime/constants.py and
// runtime/zero/config.py. What says "auto" is filled in by transformers (integrations/deepspeed.py,
// HfTrainerDeepSpeedConfig.trainer_config_process and trainer_config_finalize).
#include <algorithm>
#include <array>

#include "data/json_message.h"
#include "data/run_settings.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
constexpr const char* kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";
constexpr const char* kBatch = "train_batch_size";

bool is_auto(const RunArguments& arguments, const char* name) {
  return arguments.text_or(name, "") == "auto";
}

std::optional<std::int64_t> count_of(const RunArguments& arguments, const char* name) {
  return is_auto(arguments, name) ? std::nullopt
                                  : arguments.integer(name, 1, kMaxCount * kMaxCount);
}

void note(RunReading& run, const RunArguments& arguments, const char* name,
          const std::string& taken) {
  run.notes.emplace_back(arguments.error(name, taken).what());
}

// runtime/config.py, _set_batch_related_parameters: of the three two say the third.
void read_batch(const RunArguments& arguments, RunReading& run) {
  const std::int64_t dp = run.job.cluster.world_size();
  const std::optional<std::int64_t> batch = count_of(arguments, kBatch);
  const std::optional<std::int64_t> steps = count_of(arguments, kSteps);
  std::optional<std::int64_t> micro_batch = count_of(arguments, kMicroBatch);
  if (!micro_batch && batch) {
    micro_batch = std::max<std::int64_t>(1, *batch / dp / steps.value_or(1));
  }
  if (!micro_batch) {
    note(run, arguments, kMicroBatch,
         "found no number, took 1; --micro-batch N --num-microbatches " +
             std::to_string(steps.value_or(1)) + " say otherwise");
  }
  if (!batch && !steps) {
    note(run, arguments, kSteps, "found no number, took 1; --num-microbatches N says otherwise");
  }
  run.plan.micro_batch = micro_batch.value_or(1);
  run.plan.dp = dp;
  run.batch_stated = batch.has_value() || steps.value_or(1) > 1;
  run.job.global_batch = batch.value_or(run.plan.micro_batch * dp * steps.value_or(1));
}

void read_precision(const RunArguments& arguments, RunReading& run) {
  const auto is_on = [&](const char* name) { return arguments.text_or(name, "false") == "true"; };
  const bool is_open = is_auto(arguments, "bf16.enabled") && !is_on("fp16.enabled");
  if (is_open) {
    note(run, arguments, "bf16.enabled", "found \"auto\", took true");
  }
  const bool is_bf16 = is_on("bf16.enabled") || is_open;
  run.plan.precision = is_bf16                 ? Precision::kBf16
                       : is_on("fp16.enabled") ? Precision::kFp16
                                               : Precision::kFp32;
  run.plan.grad_dtype = is_bf16                 ? DType::kBf16
                        : is_on("fp16.enabled") ? DType::kFp16
                                                : DType::kFp32;
  const std::string sums =
      arguments.word_or("data_types.grad_accum_dtype", "auto", {"auto", "fp32", "bf16", "fp16"});
  if (sums != "auto") {
    run.plan.grad_dtype = sums == "fp32"   ? DType::kFp32
                          : sums == "bf16" ? DType::kBf16
                                           : DType::kFp16;
  }
}

struct SizeOption {
  const char* name;
  const char* option;
  std::int64_t tenths_of_hidden_squared;  // where "auto"; 0: DeepSpeed's own default
};
constexpr std::array<SizeOption, 3> kSizeOptions = {{
    {"zero_optimization.reduce_bucket_size", "reduce_bucket_elements", 10},
    {"zero_optimization.stage3_prefetch_bucket_size", "prefetch_bucket_elements", 9},
    {"zero_optimization.stage3_max_live_parameters", "max_live_parameters", 0},
}};

void read_options(const RunArguments& arguments, RunReading& run, const Library& library) {
  for (const SizeOption& size : kSizeOptions) {
    const std::int64_t hidden = run.job.model.hidden;
    const std::int64_t filled = hidden * hidden * size.tenths_of_hidden_squared / 10;
    if (!arguments.has(size.name) || (is_auto(arguments, size.name) && filled == 0)) {
      continue;
    }
    const std::int64_t elements = is_auto(arguments, size.name)
                                      ? filled
                                      : arguments.integer_or(size.name, 0, 0, kMaxElements);
    want(run, size.option, std::to_string(elements), library);
  }
  const char* const overlap = "zero_optimization.overlap_comm";
  if (arguments.has(overlap) && !is_auto(arguments, overlap)) {
    const bool is_on = arguments.word_or(overlap, "", {"true", "false"}) == "true";
    want(run, "overlap_comm", is_on ? "on" : "off", library);
  }
}

}  // namespace

RunReading read_deepspeed_run(const RunSettings& settings, const ClusterSpec& cluster,
                              const Library& library) {
  const RunArguments arguments(settings.file, settings.arguments,
                               argument_table(library, "deepspeed"));
  RunReading run;
  run.framework = "deepspeed";
  run.uses = arguments.uses();
  run.unsupported = arguments.first_refused();
  run.job.cluster = cluster;
  run.job.model = library.model(settings.model).model;
  run.plan.zero = arguments.integer_or("zero_optimization.stage", 0, 0, 3);
  read_batch(arguments, run);
  read_precision(arguments, run);
  run.notes.push_back(settings.file +
                      ": whether layers are computed again in backward is the trainer's to say, "
                      "took no; --recompute full says otherwise");
  const std::string optimizer = in_lower_case(arguments.text_or("optimizer.type", "adamw"));
  if (optimizer != "adamw" && optimizer != "adam" && optimizer != "auto") {
    refuse(run, "optimizer.type " + arguments.text_or("optimizer.type", "") +
                    ": Adam and AdamW are described");
  }
  if (take_profile(run, library)) {
    read_options(arguments, run, library);
  }
  read_environment(settings, library, run);
  return run;
}

}  // namespace shardplan
