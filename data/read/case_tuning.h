// What of a model is trained, as case lines, options and reports write it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/json_reader.h"
#include "estimator/plan/tuning.h"

namespace shardplan {

inline constexpr std::int64_t kMaxRank = std::int64_t{1} << 16;  // of adapters

std::optional<LinearLayer> linear_layer_named(std::string_view name);
std::optional<Quantization> quantization_named(std::string_view name);

// Which modules have adapters; `wrong` is the first name that is none.
struct Targets {
  decltype(Adapters::targets) on{};
  ExpertTargets experts = ExpertTargets::kNone;
  std::string wrong;
};
// Every linear layer of a transformer layer, as "all" is, and what peft's "all-linear" is.
Targets all_targets();
Targets all_linear_targets();
std::optional<Targets> targets_of_word(std::string_view word);
Targets targets_named(const std::vector<std::string>& names);
void set_targets(Adapters& adapters, const Targets& targets);
// "all", "all-linear" or "q_proj,v_proj".
std::string text_of_targets(const Adapters& adapters);
// "rank 16 on all linear layers, dropout 0.05, of fp32", "" for none.
std::string text_of(const Adapters& adapters);
// "nf4, scales quantized", "" for none.
std::string text_of(const QuantizedWeights& quantized);

// {"rank": 16, "targets": "all", "all-linear" or ["q_proj", "v_proj"], "dropout": 0.05,
// "dora": false, "dtype": "fp32", "trains_table": false, "trains_head": false}
Adapters read_adapters(const JsonValue& value, const std::string& file);
// Linear layers that are not quantized beside others that are.
std::vector<std::string> spared_names(const QuantizedWeights& quantized);
// {"kind": "nf4", "double": true, "spared": ["out_proj"], "head": true}
QuantizedWeights read_quantization(const JsonValue& value, const std::string& file);

// [{"pattern": "^lm_head", "trains": true}]; InputError for what is no regular expression.
std::vector<NameRule> read_name_rules(const JsonValue& value, const std::string& file);
// Trains the parameters whose names the expression is found in, and no others.
std::vector<NameRule> train_only(const std::string& pattern);
// "" or why that is no regular expression, as ECMAScript has them.
std::string why_no_pattern(const std::string& pattern);
// "frozen: all, then trained: ^lm_head", "" for none.
std::string text_of(const std::vector<NameRule>& rules);

}  // namespace shardplan
