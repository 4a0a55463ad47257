// The rows of the option table. One row here is all that a new option needs to be parsed, checked,
// shown in help and suggested.
#include "tools/options/option_table.h"

#include <utility>

#include "data/models/config.h"
#include "data/read/case_tuning.h"
#include "estimator/plan/plan.h"
#include "estimator/plan/units.h"
#include "tools/options/option_rows.h"
#include "tools/options/options.h"
#include "tools/options/words.h"

namespace shardplan {
namespace {

// Largest sizes that are accepted. Their products stay far inside 64 bits.
constexpr std::int64_t kMaxSequenceLength = std::int64_t{1} << 27;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 27;
constexpr std::int64_t kMaxMicroBatch = std::int64_t{1} << 20;
constexpr std::int64_t kMaxWorld = std::int64_t{1} << 22;
constexpr std::int64_t kMaxDegree = 1024;
constexpr std::int64_t kMostWorth = std::int64_t{1} << 60;  // tokens, days, US dollars

std::vector<OptionRow> machine_rows() {
  OptionRow memory = {.name = "gpu-memory",
                      .argument = "SIZE",
                      .help = "pretend that every GPU has this much: 80GiB, 80GB",
                      .kind = OptionKind::kBytes,
                      .low = kGiB / 4,
                      .high = kGiB * 1024 * 16};
  // As text: search takes lists and ranges. A single number is checked where it is read.
  OptionRow sizes =
      text("num-gpus", "N",
           "use this many GPUs instead of the cluster's own number; search also takes "
           "several, as 8,16 or 8..1024 (doubling) or 8..64:8 (steps)");
  sizes.low = 1;
  sizes.high = kMaxWorld;
  return {
      input_file("model", "NAME|FILE",
                 "a shipped model (list models) or a Hugging Face config.json"),
      input_file("cluster", "NAME|FILE",
                 "NODESxGPUS-GPU, such as 1x8-h200, a cloud's machine (list clusters), or a file"),
      std::move(sizes),
      std::move(memory),
      text("framework", "NAME", "training framework (list frameworks); default megatron"),
      repeated(text("framework-option", "KEY=VALUE",
                    "a switch of the framework (list options FRAMEWORK); repeatable")),
      input_file(
          "from", "FILE",
          "the run you have: a launch script (.sh) of Megatron-LM, torchtitan or a Trainer of "
          "transformers (TRL, LLaMA-Factory, axolotl, ms-swift) or the Trainer's .yaml, a test "
          "configuration (.yaml) or arguments (.json) of Megatron-LM, a configuration of "
          "torchtitan (.toml), nanotron (.yaml), accelerate (.yaml) or DeepSpeed (.json; the last "
          "two beside --model and --sequence-length), or a log that prints arguments of "
          "Megatron-LM "
          "or torchtitan's configuration; FILE.sh:LINE is the training that begins there"),
      repeated(
          text("set", "KEY=VALUE",
               "a switch of the framework (objective=dpo trains by preferences), a field of the "
               "plan, a key of the model's config.json (num_hidden_layers=16), or with --from an "
               "argument of the file (seq-length=4096, training.seq_len=4k) or a variable of the "
               "script; repeatable")),
      flag("strict", "refuse keys of config.json that nobody knows, instead of warning"),
  };
}

// Of one GPU; a search takes several.
OptionRow gpu_row() {
  return text("gpu", "NAME", "a usual node of this GPU, instead of --cluster, or --num-gpus of it");
}

std::vector<OptionRow> sweep_rows() {
  return {
      text("gpu", "A,B", "these kinds of GPU side by side, with --num-gpus, instead of --cluster"),
      number("target-tokens-per-s", "what all GPUs together must reach", 0, kMostWorth),
      number("target-days", "days for --tokens", 0, kMostWorth),
      number("target-cost", "US dollars for --tokens", 0, kMostWorth),
  };
}

// Several prices are those of the clusters of a search.
OptionRow price() {
  OptionRow row = text("price-per-gpu-hour", "X",
                       "US dollars; search also takes one for each of --gpu or --cluster, as 3,2; "
                       "default: the cluster's file, where it has a price");
  row.high = kMostWorth;
  return row;
}

std::vector<OptionRow> cost_rows() {
  return {
      number("tokens", "tokens to train on, as in 15e12, 15T or 300B: days and cost", 0,
             kMostWorth),
      price(),
  };
}

std::vector<OptionRow> training_rows() {
  return {
      count("sequence-length", "tokens per sequence; 8k is 8192", 1, kMaxSequenceLength),
      count("global-batch", "sequences per optimizer step, over all GPUs", 1, kMaxBatch),
      choice("optimizer", "default adamw", words_of(kOptimizerKinds)),
      choice("tune", "lora: adapters of rank 16, or --lora-rank", {"full", "lora", "qlora"}),
      count("lora-rank", "transformers, megatron: of adapters; 0: all parameters", 0, kMaxRank),
      text("lora-targets", "all|all-linear|A,B",
           "linear layers with adapters, as q_proj,v_proj; default all; peft's all-linear: "
           "experts, too"),
      number("lora-dropout", "of the adapters' inputs; default 0", 0, 1),
      choice("lora-dtype", "of the adapters; default fp32", {"fp32", "bf16", "fp16"}),
      text("train-only", "REGEX",
           "transformers, deepspeed: trains the parameters in whose names it is found, as "
           "'lm_head|layers\\.3[01]\\.'; others are frozen"),
      choice("quantize", "transformers: frozen linear layers as bitsandbytes stores them",
             {kQuantizationNames.begin(), kQuantizationNames.end()}),
      flag("double-quantize", "for --quantize nf4 and fp4: scales are quantized too"),
  };
}

std::vector<OptionRow> microbatch_rows() {
  return {count("num-microbatches",
                "microbatches per data-parallel rank, instead of --global-batch", 1, kMaxBatch)};
}

// No axis of a search.
OptionRow layers_row() {
  return text("layers-per-chunk", "A,B,...|even",
              "layers of each of the pp * vpp chunks, or even; default even");
}

// Fields that an estimate has and that fix an axis of a search.
std::vector<OptionRow> fixable_rows() {
  return {
      count("micro-batch", "sequences per microbatch; default 1", 1, kMaxMicroBatch),
      count("tp", "tensor parallel size; default 1", 1, kMaxDegree),
      count("pp", "pipeline parallel size; default 1", 1, kMaxDegree),
      count("vpp", "model chunks per pipeline rank; default 1", 1, kMaxDegree),
      count("cp", "context parallel size; default 1", 1, kMaxDegree),
      count("ep", "expert parallel size; default 1", 1, kMaxDegree),
      count("etp", "expert tensor parallel size; default 1, Megatron-core with ep 1: tp", 1,
            kMaxDegree),
      count("dp", "data parallel size; default: what the other sizes leave", 1, kMaxWorld),
      count("dp-replicate", "hybrid sharding: copies of the sharded state; default 1", 1,
            kMaxWorld),
      count("zero", "ZeRO stage 0..3; default of the framework", 0, 3),
      choice("sequence-parallel", "default of the framework", {"on", "off"}),
      choice("schedule", "pipeline schedule; default of the framework", words_of(kSchedules)),
      choice("cp-method", "default of the framework", words_of(kCpMethods)),
      choice("recompute", "activation recomputation; default of the framework",
             words_of(kRecomputeGranularities)),
      choice("recompute-method", "for --recompute full; default uniform",
             words_of(kRecomputeMethods)),
      count("recompute-num-layers", "for --recompute full: layers per group, or per chunk", 1,
            kMaxLayers),
      text("recompute-modules", "A,B", "for --recompute selective: core_attn, layernorm, mlp, ..."),
      choice("recompute-policy",
             "for --recompute selective of torchtitan; default every_second_layer",
             {kRecomputePolicies.begin(), kRecomputePolicies.end()}),
      text("rank-order", "A-B-C-D", "slowest to fastest; default pp-dp-cp-tp"),
      choice("precision", "compute type; default bf16", words_of(kPrecisions)),
      choice("grad-dtype", "gradients as accumulated and reduced; default of the framework",
             state_dtype_words()),
      choice("master-dtype", "main parameters of the optimizer; default fp32", state_dtype_words()),
      choice("exp-avg-dtype", "first moment; default fp32", state_dtype_words()),
      choice("exp-avg-sq-dtype", "second moment; default fp32", state_dtype_words()),
      number("offload-optimizer", "share of the optimizer state in host memory; default 0", 0, 1),
      choice("offload-parameters", "parameters in host memory between uses; default off",
             {"on", "off"}),
      choice("offload-activations", "saved activations in host memory; default off", {"on", "off"}),
      number("moe-buffer-factor", "native: bound on received tokens over the even share", 1, 4096),
  };
}

std::vector<OptionRow> memory_rows() {
  OptionRow threshold =
      number("memory-threshold",
             "share of a GPU's memory that a plan may use, of the nominal GB by what is allocated, "
             "else of what the driver reports; default 0.80; none: all that the card holds",
             0, 1);
  threshold.argument = "X|none";
  threshold.words = {"none"};
  return {
      std::move(threshold),
      choice("memory-basis", "the total that is held against it; default allocated",
             words_of(kMemoryBases)),
  };
}

std::vector<OptionRow> failure_rows() {
  return {choice("fail-on",
                 "exit 1 also for a plan that runs but is over its share of the memory, or tight",
                 {"over", "tight"})};
}

std::vector<OptionRow> estimate_rows() {
  return {
      choice("find-max", "the largest value of this that keeps the memory rule",
             {"micro_batch", "sequence_length"}),
      flag("explain",
           "also every row of the ledger, its formula and source, and every operation's time"),
      flag("limit",
           "also the least time of the step, where nothing is lost, and the estimate beside it by "
           "kind of work; needs measured rates of the GPU"),
      flag("program", "native: the tensors of the trainer's program beside the estimate's rows"),
      output_file(
          "memory-timeline",
          "native: bytes of every tensor at every operation of the fullest rank's step, as CSV"),
      output_file("trace",
                  "timeline of the step, one rank of every stage, to open in Perfetto or "
                  "chrome://tracing"),
  };
}

OptionRow export_row() {
  OptionRow row = output_file("export", "also files that launch the plan, in this new folder");
  row.argument = "DIR";
  return row;
}

std::vector<OptionRow> top_rows() {
  return {count("top", "plans to show, or changes of each kind; default 10", 1, 100'000)};
}

std::vector<OptionRow> search_rows() {
  return {
      repeated(text("fix", "AXIS=VALUE", "only this value of an axis, as in tp=8; repeatable")),
      flag("headroom",
           "of every plan shown: GiB left, largest micro-batch, with as many of them, and sequence "
           "that fit"),
      flag("families", "every value of every axis: how many plans fit, why not, what would pass"),
      repeated(text("range", "AXIS=A..B|A,B",
                    "only values within a range, or exactly these; repeatable")),
      repeated(text("axes", "AXIS,AXIS|all",
                    "search these axes too, such as rank_order,grad_dtype; repeatable")),
      flag("list-axes", "the axes with their values for this job, and which are on by default"),
      flag("distinct", "one plan per family, the same tp, cp, ep, pp and zero: the default"),
      flag("all-plans", "several plans of a family, too"),
      count("pick", "the plan to speak of and whose command to show, by its rank; default 1", 1,
            100'000),
      flag("pareto", "also the plans that no other beats in memory and speed at once"),
      flag("allow-tight", "plans that must give cached memory back to run are answers, too"),
      flag("no-bounds", "price every valid plan, also where a bound shows that it is no answer"),
  };
}

std::vector<OptionRow> case_rows() {
  return {
      input_file("case", "FILE",
                 "the run as a case line, instead of --model and the other options"),
      text("case-id", "ID", "which line of the file, where it has several"),
  };
}

std::vector<OptionRow> advise_rows() {
  return {
      flag("scaling", "also every component and term of time against every axis"),
  };
}

std::vector<OptionRow> output_rows() {
  return {
      text("data", "DIR", "read models, gpus, clusters and frameworks here, not from the program"),
      choice("format", "table (GiB, for people), csv or json (bytes); default table",
             {"table", "csv", "json"}),
      output_file("out", "write the answer to a file, complete or not at all"),
      choice("color", "default auto: only on a terminal, never with NO_COLOR set",
             {"auto", "always", "never"}),
      flag("help", "this text"),
  };
}

std::vector<OptionRow> screen_rows() {
  return {flag("details", "all of the answer, not one screen of it")};
}

std::vector<OptionRow> build_table() {
  const std::vector<std::string> all = {"estimate", "compare",  "search",    "advise",
                                        "batch",    "accuracy", "why-oom",   "list",
                                        "support",  "validate", "calibrate", "explain"};
  const std::vector<std::string> both = {"estimate", "search", "advise"};
  const std::vector<std::string> jobs = {"estimate", "compare", "search",
                                         "advise",   "why-oom", "explain"};
  const std::vector<std::string> plans = {"estimate", "compare", "advise", "why-oom", "explain"};
  std::vector<OptionRow> table;
  const auto add = [&table](std::string_view title, const std::vector<std::string>& commands,
                            std::vector<OptionRow> rows) {
    for (OptionRow& row : rows) {
      row.group = title;
      row.commands = commands;
      table.push_back(std::move(row));
    }
  };
  add("Run", {"why-oom"}, case_rows());
  add("Question", {"compare"},
      {repeated(text("against", "KEY=VALUE",
                     "what is different on the other side: an option (framework=nanotron@v0.4, "
                     "tp=4, model=...) or a switch of the framework; repeatable; or options behind "
                     "it, as --against --tp 4 --pp 2"))});
  add("Model and machine", jobs, machine_rows());
  add("Model and machine", plans, {gpu_row()});
  add("Clusters", {"search"}, sweep_rows());
  add("Cost", {"estimate", "search"}, cost_rows());
  add("Training", jobs, training_rows());
  add("Training", plans, microbatch_rows());
  add(kPlanGroup, jobs, fixable_rows());
  add(kPlanGroup, plans, {layers_row()});
  add("Memory rule", both, memory_rows());
  add("Memory rule", {"estimate", "compare", "advise"}, failure_rows());
  add("Question", both, {export_row()});
  add("Question", {"estimate"}, estimate_rows());
  add("Search", {"search", "advise"}, top_rows());
  add("Search", {"search"}, search_rows());
  add("Question", {"advise"}, advise_rows());
  add("Question", {"support"},
      {text("framework", "NAME", "this one, its versions and why it refuses what it does")});
  add("Question", {"accuracy"}, accuracy_rows());
  add("Run", {"validate"}, validate_rows());
  add("Run", {"calibrate"}, calibrate_rows());
  add("Output", jobs, screen_rows());
  add("Output", all, output_rows());
  return table;
}

}  // namespace

const std::vector<OptionRow>& option_table() {
  static const std::vector<OptionRow> table = build_table();
  return table;
}

}  // namespace shardplan
