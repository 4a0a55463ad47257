// A run of DeepSpeed: its configuration -> Plan and batch; model, sequence length and recomputation
// are not in it, but in the settings of the trainer around it, where those stand behind it.
// Defaults as in DeepSpeed 0.19.6 runtime/config.py, runtime/constants.py and
// runtime/zero/config.py. What says "auto" is filled in by transformers (integrations/deepspeed.py,
// HfTrainerDeepSpeedConfig.trainer_config_process and trainer_config_finalize).
#include "data/arguments/deepspeed.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/arguments/environment.h"
#include "data/arguments/run_settings.h"
#include "data/arguments/trainer.h"
#include "data/arguments/trainer_experts.h"
#include "data/arguments/trainer_kernels.h"
#include "data/arguments/trainer_objective.h"
#include "data/arguments/trainer_parallel.h"
#include "data/arguments/trainer_parts.h"
#include "data/arguments/trainer_quantized.h"
#include "data/arguments/trainer_tuning.h"
#include "data/read/json_message.h"

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

std::optional<std::int64_t> count_of(const RunArguments& arguments, const char* name,
                                     std::int64_t most) {
  return is_auto(arguments, name) ? std::nullopt : arguments.integer(name, 1, most);
}

void note(RunReading& run, const RunArguments& arguments, const char* name,
          const std::string& taken) {
  run.notes.emplace_back(arguments.error(name, taken).what());
}

// runtime/config.py, _set_batch_related_parameters: of the three two say the third.
void read_batch(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  read_parallelism(trainer, run.job.cluster.world_size(), run);
  const std::int64_t dp = run.plan.dp;
  const std::int64_t of_sample = sequences_of_sample(trainer);  // whose samples DeepSpeed counts
  std::optional<std::int64_t> batch = count_of(arguments, kBatch, kMaxCount * kMaxCount);
  std::optional<std::int64_t> steps = count_of(arguments, kSteps, kMaxCount);
  std::optional<std::int64_t> micro_batch = count_of(arguments, kMicroBatch, kMaxCount);
  for (std::optional<std::int64_t>* const counted : {&batch, &micro_batch}) {
    if (*counted) {
      *counted = **counted * of_sample;
    }
  }
  const std::optional<std::int64_t> trainers = micro_batch_of(trainer);
  if (!micro_batch && trainers) {
    micro_batch = trainers;
  } else if (!micro_batch && batch) {
    micro_batch = std::max<std::int64_t>(1, *batch / dp / steps.value_or(1));
  }
  if (!micro_batch) {
    note(run, arguments, kMicroBatch,
         "found no number, took 1; --micro-batch N --num-microbatches " +
             std::to_string(steps.value_or(1)) + " say otherwise");
  }
  if (!batch && !steps && !trainers) {
    note(run, arguments, kSteps, "found no number, took 1; --num-microbatches N says otherwise");
  }
  run.plan.micro_batch = micro_batch.value_or(1);
  if (!steps && trainers) {
    steps = steps_of(trainer, run.plan.micro_batch, dp);
  }
  run.batch_stated = batch.has_value() || steps.value_or(1) > 1 || trainers.has_value();
  run.job.global_batch = batch.value_or(run.plan.micro_batch * dp * steps.value_or(1));
}

void read_precision(const RunArguments& arguments, RunReading& run) {
  // What is "auto", or not there, the Trainer fills in from its own word.
  const auto is_type = [&](const std::string& type) {
    const std::string name = type + ".enabled";
    const bool is_open = !arguments.has(name) || is_auto(arguments, name.c_str());
    const bool is_trainers = is_on(arguments, type.c_str()) || is_auto(arguments, type.c_str()) ||
                             arguments.text_or("accelerate.mixed_precision", "no") == type;
    return is_on(arguments, name.c_str()) || (is_open && is_trainers);
  };
  const bool is_fp16 = is_type("fp16") && !is_type("bf16");
  const bool is_open = is_auto(arguments, "bf16.enabled") && !arguments.has("bf16") && !is_fp16;
  if (is_open) {
    note(run, arguments, "bf16.enabled", "found \"auto\", took true");
  }
  const bool is_bf16 = is_type("bf16") || is_open;
  run.plan.precision = is_bf16 ? Precision::kBf16 : is_fp16 ? Precision::kFp16 : Precision::kFp32;
  run.plan.grad_dtype = is_bf16 ? DType::kBf16 : is_fp16 ? DType::kFp16 : DType::kFp32;
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
constexpr std::array<SizeOption, 5> kSizeOptions = {{
    {"zero_optimization.reduce_bucket_size", "reduce_bucket_elements", 10},
    {"zero_optimization.stage3_prefetch_bucket_size", "prefetch_bucket_elements", 9},
    {"zero_optimization.stage3_max_live_parameters", "max_live_parameters", 0},
    {"zero_optimization.prefetch_bucket_size", "prefetch_bucket_elements", 0},
    {"zero_optimization.max_live_parameters", "max_live_parameters", 0},
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

// Whether it lies in host memory; an NVMe drive's buffers and reads are not described.
bool is_on_host(const RunArguments& arguments, const std::string& part, const char* older,
                RunReading& run) {
  const std::string name = "zero_optimization." + part + ".device";
  const std::string device = arguments.word_or(
      name, arguments.text_or(older, "false") == "true" ? "cpu" : "none", {"none", "cpu", "nvme"});
  if (device == "nvme") {
    refuse(run, name +
                    " nvme: none and cpu are described; what an NVMe drive's reads and their "
                    "buffers take is not; --set " +
                    name + "=cpu estimates it in host memory");
  }
  return device != "none";
}

// A ratio is ZeRO-3's (offload_ratio_check), and so are offloaded parameters, which its lower
// stages do not look at.
void read_offload(const RunArguments& arguments, RunReading& run, const Library& library) {
  const std::string older = "zero_optimization.cpu_offload";
  const bool optimizer = is_on_host(arguments, "offload_optimizer", older.c_str(), run);
  const bool parameters = is_on_host(arguments, "offload_param", (older + "_param").c_str(), run);
  const char* const ratio = "zero_optimization.offload_optimizer.ratio";
  run.plan.offload.optimizer = optimizer ? arguments.number_or(ratio, 1, 0, 1) : 0;
  run.plan.offload.parameters = parameters && run.plan.zero == 3;
  if (parameters && run.plan.zero < 3) {
    run.notes.push_back("offload_param: found cpu with ZeRO-" + std::to_string(run.plan.zero) +
                        ", which takes it from ZeRO-3 alone, took none");
  }
  const std::string pins = std::string("zero_optimization.") +
                           (optimizer ? "offload_optimizer" : "offload_param") + ".pin_memory";
  const std::string pin = arguments.has(pins) ? pins : older + "_use_pin_memory";
  if ((optimizer || parameters) && arguments.has(pin)) {
    want(run, "offload_pin_memory", arguments.word_or(pin, "", {"true", "false"}), library);
  }
}

// The loss around DeepSpeed. A profile with losses of its own declares them; another has those of
// transformers and Liger.
void read_loss(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const LossWords loss = loss_of(trainer);
  if (takes_word(run, "head_loss", loss.kind, library)) {
    want(run, "head_loss", loss.kind, library);
    if (!loss.because.empty()) {
      run.notes.push_back(loss.because);
    }
  } else if (loss.kind == "chunked") {
    refuse(run,
           "loss_type chunked_nll, TRL's default since June 2026: 256 tokens at a time are not "
           "described under DeepSpeed; --set loss_type=nll estimates the run with all logits at "
           "once");
  } else if (loss.kind != "stock" && loss.kind != "fused_linear") {
    refuse(run,
           "another loss than transformers' and Liger's: neither is described under DeepSpeed");
  }
}

// What the trainer around DeepSpeed says, if its settings are there.
void read_around(const TrainerFile& trainer, RunReading& run) {
  if (!micro_batch_of(trainer) && !trainer.arguments.has("gradient_checkpointing")) {
    run.notes.push_back(trainer.file +
                        ": whether layers are computed again in backward is the trainer's to say, "
                        "took no; --recompute full says otherwise");
  }
  read_trainer(trainer, run);
}

}  // namespace

RunReading read_deepspeed_run(const RunSettings& settings, const ClusterSpec& cluster,
                              const Library& library) {
  const RunArguments arguments(settings.file, settings.arguments,
                               argument_table(library, "deepspeed"));
  const TrainerFile trainer = {
      .arguments = arguments, .file = settings.file, .defaults = defaults_of(settings.trainer)};
  RunReading run;
  run.framework = "deepspeed";
  run.uses = arguments.uses();
  run.unsupported = arguments.first_refused();
  run.job.cluster = cluster;
  if (!settings.undescribed.empty()) {
    refuse(run, settings.undescribed);
  }
  if (!settings.model.empty()) {
    run.job.model = library.model(settings.model).model;
  }
  run.plan.zero = arguments.integer_or("zero_optimization.stage", 0, 0, 3);
  read_batch(trainer, run);
  read_precision(arguments, run);
  read_around(trainer, run);
  const std::string optimizer = in_lower_case(arguments.text_or("optimizer.type", "adamw"));
  if (optimizer != "adamw" && optimizer != "adam" && optimizer != "auto") {
    refuse(run, "optimizer.type " + arguments.text_or("optimizer.type", "") +
                    ": Adam and AdamW are described");
  }
  if (arguments.has("optimizer.type")) {  // goes before the trainer's
    run.job.optimizer = OptimizerKind::kAdamW;
  }
  if (take_profile(run, library)) {
    read_rows(trainer, run, library);
    read_parts(trainer, run, library);
    read_loss_chunk(settings, trainer, run, library);
    read_loss(trainer, run, library);
    read_objective(trainer, run, library);
    read_products(trainer, run, library);
    if (has_reference(run.job.profile.objective) && run.job.adapters.rank == 0 &&
        arguments.has("optimizer.type")) {  // TRL models/utils.py prepare_deepspeed
      refuse(run,
             "optimizer.type beside a reference model, whose engine gets such an optimizer, too: "
             "the trainer's own optimizer is described");
    }
  }
  if (run.has_profile && !settings.model.empty()) {
    read_options(arguments, run, library);
    read_expert_kernels(trainer, run, library);
    read_liger(trainer, run, library);
    read_adapter_kernels(trainer, run, library);
    read_mixers(trainer, run, library);
    read_packed_experts(trainer, run, library);
    read_fake_quantization(trainer, run, library);
    read_offload(arguments, run, library);
  }
  read_environment(settings, library, run);
  return run;
}

}  // namespace shardplan
