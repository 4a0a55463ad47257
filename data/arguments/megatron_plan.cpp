#include "data/arguments/megatron_plan.h"

#include <algorithm>

#include "data/arguments/megatron.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

void read_sizes(const RunArguments& arguments, Plan& plan) {
  plan.tp = arguments.integer_or("--tensor-model-parallel-size", 1, 1, kMaxCount);
  plan.pp = arguments.integer_or("--pipeline-model-parallel-size", 1, 1, kMaxCount);
  plan.cp = arguments.integer_or("--context-parallel-size", 1, 1, kMaxCount);
  plan.ep = arguments.integer_or("--expert-model-parallel-size", 1, 1, kMaxCount);
  const bool has_experts = arguments.integer_or("--num-experts", 0, 0, kMaxCount) > 0;
  plan.etp = arguments.integer_or("--expert-tensor-parallel-size", has_experts ? plan.tp : 1, 1,
                                  kMaxCount);
  plan.etp = has_experts ? plan.etp : 1;
  plan.sequence_parallel = arguments.has("--sequence-parallel") && plan.tp > 1;
  plan.micro_batch = arguments.integer_or("--micro-batch-size", 1, 1, kMaxCount);
  if (arguments.has("--use-tp-pp-dp-mapping")) {
    plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp};
  }
}

// "(tt|)*6" and "t*3" unrolled; core/transformer/pipeline_parallel_layer_layout.py.
std::string unrolled(const RunArguments& arguments, const std::string& layout) {
  constexpr std::size_t kLongest = 1 << 16;
  const char* const name = "--pipeline-model-parallel-layout";
  std::string flat;
  std::size_t group = std::string::npos;  // where an open parenthesis began
  std::string last;                       // what a '*' repeats
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const char letter = layout[i];
    if (letter == '(') {
      group = flat.size();
    } else if (letter == ')' && group != std::string::npos) {
      last = flat.substr(group);
      group = std::string::npos;
    } else if (letter == '*') {
      const std::size_t digits =
          std::min(layout.find_first_not_of("0123456789", i + 1), layout.size());
      const std::string count = layout.substr(i + 1, digits - i - 1);
      if (count.empty() || count.size() > 4 || last.empty() || flat.size() > kLongest) {
        throw arguments.error(name, "found \"" + shown(layout, Encoding::kUnchecked) +
                                        "\", expected a count after each '*'");
      }
      const int times = std::stoi(count);
      flat.resize(flat.size() - last.size());
      for (int copy = 0; copy < times; ++copy) { flat += last; }
      i = digits - 1;
    } else if (std::string_view("EtmL|").find(letter) != std::string_view::npos) {
      last = letter;
      flat += letter;
    } else if (letter != ',' && letter != ' ') {
      throw arguments.error(name, "found \"" + shown(layout, Encoding::kUnchecked) +
                                      "\", expected letters E, t, m, L and '|' between chunks");
    }
  }
  return flat;
}

void read_layout(const RunArguments& arguments, RunReading& run) {
  const std::string text = arguments.text_or("--pipeline-model-parallel-layout", "");
  const std::string flat = unrolled(arguments, text);
  Plan& plan = run.plan;
  std::size_t start = 0;
  while (start <= flat.size()) {
    const std::size_t end = std::min(flat.find('|', start), flat.size());
    const std::string chunk = flat.substr(start, end - start);
    plan.layers_per_chunk.push_back(std::ranges::count(chunk, 't'));
    const bool holds_end = chunk.find('L') != std::string::npos;
    if (chunk.find('m') != std::string::npos && !holds_end) {
      refuse(run, "--pipeline-model-parallel-layout " + text +
                      ": multi-token prediction on another stage than the loss");
    }
    start = end + 1;
  }
  const std::int64_t num_chunks = static_cast<std::int64_t>(plan.layers_per_chunk.size());
  if (num_chunks % plan.pp != 0) {
    throw arguments.error("--pipeline-model-parallel-layout",
                          "found " + std::to_string(num_chunks) +
                              " chunks, expected a multiple of --pipeline-model-parallel-size " +
                              std::to_string(plan.pp));
  }
  plan.vpp = num_chunks / plan.pp;
}

// --decoder-first-pipeline-num-layers and -last-: the other stages share the rest evenly.
void read_uneven_stages(const RunArguments& arguments, std::int64_t num_layers, Plan& plan) {
  const std::optional<std::int64_t> first =
      arguments.integer("--decoder-first-pipeline-num-layers", 1, num_layers);
  const std::optional<std::int64_t> last =
      arguments.integer("--decoder-last-pipeline-num-layers", 1, num_layers);
  if ((!first && !last) || plan.pp == 1) {
    return;
  }
  const std::int64_t given_stages = (first ? 1 : 0) + (last ? 1 : 0);
  const std::int64_t middle = num_layers - first.value_or(0) - last.value_or(0);
  const std::int64_t middle_stages = plan.pp - given_stages;
  if (middle < 0 || (middle_stages > 0 ? middle % middle_stages != 0 : middle != 0)) {
    throw arguments.error(
        first ? "--decoder-first-pipeline-num-layers" : "--decoder-last-pipeline-num-layers",
        "found " + std::to_string(middle) + " layers left for " + std::to_string(middle_stages) +
            " stages, expected a multiple");
  }
  if (plan.vpp > num_layers / plan.pp) {  // each chunk is written down
    throw arguments.error("--pipeline-model-parallel-size",
                          "found " + std::to_string(plan.pp) + " stages of " +
                              std::to_string(plan.vpp) +
                              " chunks, expected at most one for each "
                              "of the " +
                              std::to_string(num_layers) + " layers");
  }
  std::vector<std::int64_t> stages(static_cast<std::size_t>(plan.pp),
                                   middle_stages > 0 ? middle / middle_stages : 0);
  if (first) {
    stages.front() = *first;
  }
  if (last) {
    stages.back() = *last;
  }
  for (std::int64_t chunk = 0; chunk < plan.vpp; ++chunk) {
    for (const std::int64_t layers : stages) {
      if (layers % plan.vpp != 0) {
        throw arguments.error("--num-virtual-stages-per-pipeline-rank",
                              "found " + std::to_string(plan.vpp) + ", expected a divisor of the " +
                                  std::to_string(layers) + " layers of a stage");
      }
      plan.layers_per_chunk.push_back(layers / plan.vpp);
    }
  }
}

void read_pipeline(const RunArguments& arguments, RunReading& run) {
  Plan& plan = run.plan;
  const std::int64_t slots = run.job.model.num_layers() +
                             (arguments.has("--account-for-embedding-in-pipeline-split") ? 1 : 0) +
                             (arguments.has("--account-for-loss-in-pipeline-split") ? 1 : 0);
  if (arguments.has("--pipeline-model-parallel-layout")) {
    read_layout(arguments, run);
  } else if (const auto layers =
                 arguments.integer("--num-layers-per-virtual-pipeline-stage", 1, kMaxCount)) {
    if (slots % plan.pp != 0 || slots / plan.pp % *layers != 0) {
      throw arguments.error("--num-layers-per-virtual-pipeline-stage",
                            "found " + std::to_string(*layers) + ", expected a divisor of the " +
                                std::to_string(slots) + " / " + std::to_string(plan.pp) +
                                " layers of a stage");
    }
    plan.vpp = slots / plan.pp / *layers;
  } else {
    plan.vpp = arguments.integer_or("--num-virtual-stages-per-pipeline-rank", 1, 1, kMaxCount);
  }
  if (plan.layers_per_chunk.empty()) {
    read_uneven_stages(arguments, run.job.model.num_layers(), plan);
  }
  plan.schedule = plan.vpp > 1  ? Schedule::kInterleaved1F1B
                  : plan.pp > 1 ? Schedule::k1F1B
                                : Schedule::kNone;
}

void read_sharding(const RunArguments& arguments, RunReading& run) {
  Plan& plan = run.plan;
  plan.zero = arguments.has("--use-distributed-optimizer") ? 1 : 0;
  if (arguments.has("--use-megatron-fsdp")) {
    const std::vector<std::string> strategies = {"no_shard", "optim", "optim_grads",
                                                 "optim_grads_params"};
    const std::string word =
        arguments.word_or("--data-parallel-sharding-strategy", "no_shard", strategies);
    plan.zero = std::ranges::find(strategies, word) - strategies.begin();
  }
  plan.dp_replicate =
      arguments.integer_or("--num-distributed-optimizer-instances", 1, 1, kMaxCount);
  plan.dp_replicate = plan.zero > 0 ? plan.dp_replicate : 1;
}

DType dtype_of(const RunArguments& arguments, const char* name) {
  return dtype_named(arguments.word_or(name, "fp32", {"fp32", "bf16", "fp16", "fp8"})).value();
}

// core/optimizer/optimizer_config.py:187-206 and 354-361, core/optimizer/__init__.py:305-390:
// FusedAdam, where it holds the main parameters of bf16 weights, keeps the half of them that the
// weights lack (store_param_remainders, for which there is no argument). With fp8 recipes but the
// delayed one Megatron-LM holds fp32 ones itself. A CPU offload's optimizers know fp32 alone.
void read_optimizer_types(const RunArguments& arguments, Plan& plan) {
  const DType main = dtype_of(arguments, "--main-params-dtype");
  const bool delayed = fp8_recipe(arguments) == "delayed";
  plan.exp_avg_dtype = dtype_of(arguments, "--exp-avg-dtype");
  plan.exp_avg_sq_dtype = dtype_of(arguments, "--exp-avg-sq-dtype");
  plan.master_dtype =
      main == DType::kFp32 && delayed && arguments.has("--bf16") ? DType::kBf16 : main;
  if (arguments.has("--optimizer-cpu-offload")) {
    plan.master_dtype = plan.exp_avg_dtype = plan.exp_avg_sq_dtype = DType::kFp32;
  }
}

// core/optimizer/optimizer_config.py, __post_init__.
void check_optimizer_types(const RunArguments& arguments) {
  const bool aware = arguments.has("--use-precision-aware-optimizer");
  if (aware && !arguments.has("--use-distributed-optimizer") &&
      !arguments.has("--use-megatron-fsdp")) {
    throw arguments.error("--use-precision-aware-optimizer",
                          "found no --use-distributed-optimizer, expected it beside this");
  }
  for (const char* const name :
       {"--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"}) {
    if (!aware && dtype_of(arguments, name) != DType::kFp32) {
      throw arguments.error(name,
                            "found another type than fp32, expected "
                            "--use-precision-aware-optimizer beside it");
    }
  }
}

void read_types(const RunArguments& arguments, RunReading& run) {
  Plan& plan = run.plan;
  const bool bf16 = arguments.has("--bf16");
  const bool fp16 = arguments.has("--fp16");
  if (bf16 && fp16) {
    throw arguments.error("--fp16", "found --bf16 and --fp16, expected one of them");
  }
  plan.precision = bf16 ? Precision::kBf16 : fp16 ? Precision::kFp16 : Precision::kFp32;
  if (arguments.has("--fp8-format")) {
    arguments.word_or("--fp8-format", "", {"e4m3", "hybrid"});
    plan.precision = Precision::kFp8;
    if (fp8_recipe(arguments) == "custom") {
      refuse(run, "--fp8-recipe custom: its copies of the weights are not described");
    }
  }
  if (plan.precision == Precision::kFp32) {  // params_dtype of training/arguments.py
    run.notes.push_back(arguments.place("--bf16") +
                        "neither --bf16 nor --fp16 is given, Megatron-LM then trains in fp32; "
                        "--set bf16 says otherwise");
  }
  check_optimizer_types(arguments);
  const bool asks_fp32 = arguments.has("--accumulate-allreduce-grads-in-fp32");
  const DType main_grads = dtype_of(arguments, "--main-grads-dtype");
  if (asks_fp32 && bf16 && main_grads != DType::kFp32) {
    throw arguments.error(
        "--main-grads-dtype",
        "found another type than fp32 beside --accumulate-allreduce-grads-in-fp32, "
        "expected one of the two");
  }
  // Under --bf16 gradients are fp32 unless either says otherwise (validate_args).
  const bool fp32_gradients =
      bf16 ? !arguments.has("--grad-reduce-in-bf16") && main_grads == DType::kFp32 : asks_fp32;
  plan.grad_dtype = bf16   ? (fp32_gradients ? DType::kFp32 : DType::kBf16)
                    : fp16 ? (fp32_gradients ? DType::kFp32 : DType::kFp16)
                           : DType::kFp32;
  if (arguments.has("--use-precision-aware-optimizer")) {
    read_optimizer_types(arguments, plan);
  }
  if (arguments.has("--optimizer-cpu-offload")) {
    plan.offload.optimizer = arguments.number_or("--optimizer-offload-fraction", 1, 0, 1);
  }
}

void read_modules(const RunArguments& arguments, Recompute& recompute) {
  std::vector<std::string> words = arguments.texts("--recompute-modules");
  if (words.empty()) {
    words = {"core_attn"};
  }
  for (const std::string& word : words) {
    const auto* const row =
        std::ranges::find(kRecomputeModules, word, [](const auto& named) { return named.name; });
    if (row == kRecomputeModules.end()) {
      std::vector<std::string> names;
      names.reserve(kRecomputeModules.size());
      for (const auto& named : kRecomputeModules) { names.emplace_back(named.name); }
      throw arguments.error("--recompute-modules", "found \"" + shown(word, Encoding::kUnchecked) +
                                                       "\", expected some of " + joined(names));
    }
    recompute.modules.*(row->value) = true;
  }
  recompute.modules.moe = recompute.modules.moe || arguments.has("--moe-layer-recompute");
}

void read_recompute(const RunArguments& arguments, Plan& plan) {
  Recompute& recompute = plan.recompute;
  const std::string granularity =
      arguments.has("--recompute-activations")
          ? "selective"
          : arguments.word_or("--recompute-granularity", "none", {"none", "selective", "full"});
  recompute.granularity = value_of<RecomputeGranularity>(granularity).value();
  if (recompute.granularity == RecomputeGranularity::kSelective) {
    // training/arguments.py:900 and core/transformer/transformer_config.py:1180.
    for (const char* const name : {"--recompute-method", "--recompute-num-layers"}) {
      if (arguments.has(name)) {
        throw arguments.error(name,
                              "found selective recomputation beside it, expected "
                              "--recompute-granularity full");
      }
    }
    read_modules(arguments, recompute);
  }
  if (recompute.granularity == RecomputeGranularity::kFull) {
    recompute.method =
        value_of<RecomputeMethod>(arguments.word_or("--recompute-method", "", {"uniform", "block"}))
            .value();
    recompute.num_layers = arguments.integer_or("--recompute-num-layers", 1, 1, kMaxCount);
  }
}

}  // namespace

std::string fp8_recipe(const RunArguments& arguments) {
  return arguments.word_or("--fp8-recipe", "delayed",
                           {"tensorwise", "delayed", "mxfp8", "blockwise", "custom"});
}

void read_megatron_plan(const RunArguments& arguments, RunReading& run) {
  read_sizes(arguments, run.plan);
  read_pipeline(arguments, run);
  read_sharding(arguments, run);
  read_types(arguments, run);
  read_recompute(arguments, run.plan);
  // One word for all layers, or one for each (--cp-comm-type p2p a2a ...).
  const std::vector<std::string> methods = arguments.texts("--cp-comm-type");
  if (methods.empty() || run.plan.cp == 1) {
    return;
  }
  const bool one =
      std::ranges::all_of(methods, [&](const auto& m) { return m == methods.front(); });
  const std::optional<CpMethod> method = methods.front() == "p2p"          ? CpMethod::kRing
                                         : methods.front() == "all_gather" ? CpMethod::kAllGather
                                         : methods.front() == "a2a" ? std::optional(CpMethod::kA2a)
                                                                    : std::nullopt;
  if (!one || !method) {
    refuse(run, "--cp-comm-type " + joined(methods) +
                    ": p2p, all_gather or a2a for all layers are described");
    return;
  }
  run.plan.cp_method = *method;
}

}  // namespace shardplan
