#include "tools/options/tuning_words.h"

#include "data/read/case_tuning.h"
#include "data/read/json_message.h"
#include "tools/options/option_values.h"

namespace shardplan {
namespace {

Targets targets_of(const std::string& word) {
  if (const std::optional<Targets> shorthand = targets_of_word(word)) {
    return *shorthand;
  }
  Targets targets = targets_named(parse_list(word, "--lora-targets"));
  if (!targets.wrong.empty()) {
    const std::vector<std::string> names(kLinearLayerNames.begin(), kLinearLayerNames.end());
    throw InputError("--lora-targets: found '" + shown(targets.wrong, Encoding::kUnchecked) +
                     "', expected all, all-linear or some of " + joined(names) +
                     suggestion(targets.wrong, names));
  }
  return targets;
}

// What --lora-rank and --quantize say, in one word.
void apply_word(Job& job, const Options& options) {
  constexpr std::int64_t kRank = 16;
  const std::string word = text_or(options, "tune", "");
  if (word == "full") {
    job.name_rules = {};
    job.adapters = {};
    job.quantized = {};
  }
  if ((word == "lora" || word == "qlora") && job.adapters.rank == 0) {
    job.adapters.rank = kRank;
    set_targets(job.adapters, all_targets());
  }
  if (word == "qlora") {
    job.quantized = {.kind = Quantization::kNf4, .is_double = true};
  }
}

void apply_adapters(Adapters& adapters, const Options& options) {
  const bool had_none = adapters.rank == 0;
  adapters.rank = count_or(options, "lora-rank", adapters.rank);
  for (const char* const option : {"lora-targets", "lora-dropout", "lora-dtype"}) {
    if (adapters.rank == 0 && given(options, option)) {
      throw InputError("--" + std::string(option) +
                       ": found no adapters that it is of, expected --lora-rank N beside it");
    }
  }
  if (adapters.rank == 0) {
    adapters = {};
    return;
  }
  if (had_none || given(options, "lora-targets")) {
    set_targets(adapters, targets_of(text_or(options, "lora-targets", "all")));
  }
  adapters.dropout = number_or(options, "lora-dropout", adapters.dropout);
  const std::string dtype = text_or(options, "lora-dtype", std::string(name_of(adapters.dtype)));
  adapters.dtype = dtype_named(dtype).value();
}

void apply_quantization(QuantizedWeights& quantized, const Options& options) {
  if (given(options, "quantize")) {
    quantized = {.kind = quantization_named(text_or(options, "quantize", "")).value()};
  }
  if (!given(options, "double-quantize")) {
    return;
  }
  if (quantized.kind != Quantization::kNf4 && quantized.kind != Quantization::kFp4) {
    throw InputError(
        "--double-quantize: found no weights of 4 bits, whose scales it is of, expected --quantize "
        "nf4 or fp4 beside it");
  }
  quantized.is_double = true;
}

}  // namespace

namespace {

void apply_names(Job& job, const Options& options) {
  const std::string pattern = text_or(options, "train-only", "");
  if (!given(options, "train-only")) {
    return;
  }
  if (const std::string why = why_no_pattern(pattern); pattern.empty() || !why.empty()) {
    throw InputError("--train-only: found '" + shown(pattern, Encoding::kUnchecked) +
                     "', expected a regular expression over names of parameters, such as "
                     "'lm_head|layers\\.31\\.'");
  }
  job.name_rules = train_only(pattern);
}

}  // namespace

void apply_tuning(Job& job, const Options& options) {
  apply_word(job, options);
  apply_names(job, options);
  apply_adapters(job.adapters, options);
  apply_quantization(job.quantized, options);
}

}  // namespace shardplan
