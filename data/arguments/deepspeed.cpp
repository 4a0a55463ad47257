// A run of DeepSpeed: its configuration -> Plan and batch; model, sequence length and recomputation
// are not in it, but in the settings of the trainer around it, where those stand behind it.
// Defaults as in DeepSpeed 0.19.6 runtime/config.py, runtime/constants.py and
// runtime/zero/config.py. What says "auto" is filled in by transformers (integrations/deepspeed.py,
// HfTrainerDeepSpeedConfig.trainer_config_process and trainer_config_finalize).
#include "data/arguments/deepspeed.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "data/arguments/environment.h"
#include "data/arguments/run_settings.h"
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

// Of several trainers each has a name of its own for it; the first that is there.
const char* trainers(const RunArguments& arguments, std::span<const char* const> names) {
  const auto found =
      std::ranges::find_if(names, [&](const char* name) { return arguments.has(name); });
  return found == names.end() ? nullptr : *found;
}
constexpr std::array<const char*, 2> kTrainerBatches = {"per_device_train_batch_size",
                                                        "micro_batch_size"};

std::optional<std::int64_t> count_of(const RunArguments& arguments, const char* name,
                                     std::int64_t most) {
  return is_auto(arguments, name) ? std::nullopt : arguments.integer(name, 1, most);
}

void note(RunReading& run, const RunArguments& arguments, const char* name,
          const std::string& taken) {
  run.notes.emplace_back(arguments.error(name, taken).what());
}

// runtime/config.py, _set_batch_related_parameters: of the three two say the third.
void read_batch(const RunArguments& arguments, RunReading& run) {
  const std::int64_t dp = run.job.cluster.world_size();
  const std::optional<std::int64_t> batch = count_of(arguments, kBatch, kMaxCount * kMaxCount);
  const std::optional<std::int64_t> steps = count_of(arguments, kSteps, kMaxCount);
  std::optional<std::int64_t> micro_batch = count_of(arguments, kMicroBatch, kMaxCount);
  const char* const trainer = trainers(arguments, kTrainerBatches);
  if (!micro_batch && trainer != nullptr) {
    micro_batch = arguments.integer(trainer, 1, kMaxCount);
  } else if (!micro_batch && batch) {
    micro_batch = std::max<std::int64_t>(1, *batch / dp / steps.value_or(1));
  }
  if (!micro_batch) {
    note(run, arguments, kMicroBatch,
         "found no number, took 1; --micro-batch N --num-microbatches " +
             std::to_string(steps.value_or(1)) + " say otherwise");
  }
  if (!batch && !steps && trainer == nullptr) {  // the Trainer's default is 1
    note(run, arguments, kSteps, "found no number, took 1; --num-microbatches N says otherwise");
  }
  run.plan.micro_batch = micro_batch.value_or(1);
  run.plan.dp = dp;
  run.batch_stated = batch.has_value() || steps.value_or(1) > 1 || trainer != nullptr;
  run.job.global_batch = batch.value_or(run.plan.micro_batch * dp * steps.value_or(1));
}

void read_precision(const RunArguments& arguments, RunReading& run) {
  const auto is_on = [&](const char* name) { return arguments.text_or(name, "false") == "true"; };
  // What is "auto", or not there, the Trainer fills in from its own word.
  const auto is_type = [&](const std::string& type) {
    const std::string name = type + ".enabled";
    const bool is_open = !arguments.has(name) || is_auto(arguments, name.c_str());
    const bool is_trainers = is_on(type.c_str()) || is_auto(arguments, type.c_str());
    return is_on(name.c_str()) || (is_open && is_trainers);
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

// None says which release is installed; of those that transformers 4.57 takes most are earlier
// ones, which need more memory. axolotl installs 0.8.0 (pyproject.toml).
void read_liger(const RunArguments& arguments, RunReading& run, const Library& library) {
  const auto is_on = [&](const char* name) { return arguments.text_or(name, "false") == "true"; };
  // axolotl's plugin patches what its configuration says; of the third either name counts.
  const std::array parts = {is_on("liger_rope"), is_on("liger_rms_norm"),
                            is_on("liger_glu_activation") || is_on("liger_swiglu"),
                            is_on("liger_fused_linear_cross_entropy")};
  if (std::ranges::count(parts, true) % std::ssize(parts) != 0) {
    refuse(run,
           "a part of Liger's kernels: liger_rope, liger_rms_norm, liger_glu_activation and "
           "liger_fused_linear_cross_entropy are described together");
  }
  for (const char* const name :
       {"use_liger_kernel", "enable_liger_kernel", "liger_fused_linear_cross_entropy"}) {
    if (is_on(name)) {
      want(run, "liger_kernel", "through_0.8.2", library);
      note(run, arguments, name,
           "found true, took Liger up to 0.8.2; --set liger_kernel=on is a later one, which takes "
           "less memory");
    }
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

constexpr std::array<const char*, 5> kTrainerLengths = {
    "cutoff_len", "sequence_len", "max_seq_length", "max_length", "model_max_length"};

bool is_of_factory(const RunArguments& arguments) {
  return arguments.has("finetuning_type") || arguments.has("cutoff_len");
}

// Its own name for the length; axolotl's and LLaMA-Factory's runs may have it for something else.
bool is_of_trl(const RunArguments& arguments) {
  return arguments.has("max_length") && !arguments.has("sequence_len") && !is_of_factory(arguments);
}

// LLaMA-Factory computes layers again unless told not to (0.9.4 model/model_utils/
// checkpointing.py), and so does TRL (at 016013e8, trl/trainer/sft_config.py; older releases
// not), the Trainer only if told to.
void read_recompute(const RunArguments& arguments, const std::string& file, RunReading& run) {
  const bool is_trl = is_of_trl(arguments);
  const std::string word = arguments.text_or("gradient_checkpointing", is_trl ? "true" : "false");
  const bool is_on = is_of_factory(arguments)
                         ? arguments.text_or("disable_gradient_checkpointing", "false") != "true"
                         : word == "true";
  if (is_trl && !arguments.has("gradient_checkpointing")) {
    run.notes.push_back(file +
                        ": gradient_checkpointing: found nothing, took true, TRL's default; "
                        "--recompute none says otherwise");
  }
  if (is_on) {
    run.plan.recompute = {.granularity = RecomputeGranularity::kFull};
  } else if (word != "true" && word != "false") {
    refuse(run, "gradient_checkpointing " + word + ": true and false are described");
  }
}

// What the trainer around DeepSpeed says, if its settings are there.
void read_trainer(const RunArguments& arguments, const std::string& file, RunReading& run) {
  if (trainers(arguments, kTrainerBatches) == nullptr && !arguments.has("gradient_checkpointing")) {
    run.notes.push_back(file +
                        ": whether layers are computed again in backward is the trainer's to say, "
                        "took no; --recompute full says otherwise");
  } else {
    read_recompute(arguments, file, run);
  }
  if (const char* const length = trainers(arguments, kTrainerLengths)) {
    run.job.sequence_length = arguments.integer(length, 1, kMaxCount).value();
    note(run, arguments, length,
         "found " + arguments.text_or(length, "") +
             ", took all sequences to be as long; --sequence-length says otherwise");
  }
  const std::string tuned = arguments.text_or("finetuning_type", "");
  if (tuned.empty() && is_of_factory(arguments)) {  // 0.9.4 hparams/finetuning_args.py
    refuse(run,
           "finetuning_type lora, LLaMA-Factory's default: full is described, which trains "
           "all parameters");
  } else if (!tuned.empty() && tuned != "full") {
    refuse(run, "finetuning_type " + tuned + ": full is described, which trains all parameters");
  }
}

}  // namespace

bool says_sequence_length(const RunSettings& settings) {
  return std::ranges::any_of(settings.arguments, [](const Setting& each) {
    return std::ranges::find(kTrainerLengths, each.name) != kTrainerLengths.end();
  });
}

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
  read_trainer(arguments, settings.file, run);
  const std::string optimizer = in_lower_case(arguments.text_or("optimizer.type", "adamw"));
  if (optimizer != "adamw" && optimizer != "adam" && optimizer != "auto") {
    refuse(run, "optimizer.type " + arguments.text_or("optimizer.type", "") +
                    ": Adam and AdamW are described");
  }
  if (take_profile(run, library)) {
    read_options(arguments, run, library);
    read_liger(arguments, run, library);
    read_offload(arguments, run, library);
  }
  read_environment(settings, library, run);
  return run;
}

}  // namespace shardplan
