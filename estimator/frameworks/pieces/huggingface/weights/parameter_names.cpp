// Source: transformers 5.17 models/<family>/modeling_<family>.py.
#include "estimator/frameworks/pieces/huggingface/weights/parameter_names.h"

#include <algorithm>
#include <array>

#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/plan/number.h"

namespace shardplan::huggingface {
namespace {

constexpr std::array kFamiliesWithNames = std::to_array<std::string_view>({"",
                                                                           "llama",
                                                                           "mistral",
                                                                           "ministral",
                                                                           "ministral3",
                                                                           "mixtral",
                                                                           "qwen2",
                                                                           "qwen2_moe",
                                                                           "qwen3",
                                                                           "qwen3_moe",
                                                                           "qwen3_next",
                                                                           "qwen3_5_text",
                                                                           "qwen3_5_moe_text",
                                                                           "smollm3",
                                                                           "phi3",
                                                                           "granite",
                                                                           "seed_oss",
                                                                           "gemma",
                                                                           "gemma2",
                                                                           "gemma3_text",
                                                                           "olmo2",
                                                                           "olmo3",
                                                                           "deepseek_v2",
                                                                           "deepseek_v3"});

// Knows the parameters of a model that nobody builds.
class NoHolder final : public Holder {
 public:
  using Holder::Holder;
  void load(eager::Parameter& parameter, const eager::Label&, const Shape& shape, DType,
            bool is_trained) override {
    parameter.data.elements = shape.elements();
    parameter.is_trained = is_trained;
  }
};

}  // namespace

NameFilter::NameFilter(const std::vector<NameRule>& rules) {
  for (const NameRule& rule : rules) {
    rules_.emplace_back(std::regex(rule.pattern, std::regex::optimize), rule.trains);
  }
}

bool NameFilter::trains(const std::string& name) const {
  const auto found = std::find_if(rules_.rbegin(), rules_.rend(), [&](const auto& rule) {
    return std::regex_search(name, rule.first);
  });
  return found == rules_.rend() || found->second;
}

std::vector<NamedParameter> named_parameters(const Job& job) {
  Job plain = job;
  plain.adapters = {};
  plain.quantized = {};
  eager::Graph graph(job.profile.fixed_workspace_bytes, job.cluster.gpu.num_sms);
  NoHolder holder(graph);
  const Plan plan;
  CausalLm model(graph, holder, plain, plan);
  std::vector<NamedParameter> named;
  model.build(&named);
  return named;
}

double share_by_names(const Job& job) {
  std::int64_t all = 0;
  std::int64_t trained = 0;
  for (const NamedParameter& each : named_parameters(job)) {
    all += each.elements;
    trained += each.is_trained ? each.elements : 0;
  }
  return number(trained) / number(all);
}

bool has_known_names(const ModelSpec& model) {
  return std::ranges::find(kFamiliesWithNames, model.family) != kFamiliesWithNames.end();
}

NormNames norm_names(const ModelSpec& model) {
  NormNames names;
  if (model.norms_per_layer > 2) {
    names.ffn = "pre_feedforward_layernorm";
  }
  return names;
}

}  // namespace shardplan::huggingface
