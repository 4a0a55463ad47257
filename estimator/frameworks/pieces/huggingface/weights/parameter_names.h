// Names of parameters as Hugging Face's classes have them, and which of them are trained.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan::huggingface {

// Job::name_rules, ready to be asked; without rules all parameters are trained.
class NameFilter {
 public:
  explicit NameFilter(const std::vector<NameRule>& rules);

  bool is_empty() const { return rules_.empty(); }
  bool trains(const std::string& name) const;

 private:
  std::vector<std::pair<std::regex, bool>> rules_;
};

// A parameter of the model that a job loads.
struct NamedParameter {
  std::string name;
  std::int64_t elements = 0;
  bool is_trained = false;
};

// In the order in which they are loaded; without adapters.
std::vector<NamedParameter> named_parameters(const Job& job);

// What name_rules train of all elements of the model.
double share_by_names(const Job& job);

// Whether names of that family's parameters were read.
bool has_known_names(const ModelSpec& model);

// Norms of a layer where they are not input_layernorm and post_attention_layernorm alone.
struct NormNames {
  std::string_view attention = "input_layernorm";
  std::string_view ffn = "post_attention_layernorm";
  std::string_view after_attention = "post_attention_layernorm";
  std::string_view after_ffn = "post_feedforward_layernorm";
};
NormNames norm_names(const ModelSpec& model);

}  // namespace shardplan::huggingface
