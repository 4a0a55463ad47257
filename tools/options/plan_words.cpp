#include "tools/options/plan_words.h"

#include <algorithm>
#include <set>

#include "data/models/config.h"
#include "data/read/json_message.h"
#include "tools/options/option_values.h"

namespace shardplan {
namespace {

// The word was checked against the table's names when the options were parsed.
template <class Value>
void take_choice(const Options& options, const char* name, Value& value) {
  if (given(options, name)) {
    value = value_of<Value>(text_or(options, name, "")).value();
  }
}

void take_dtype(const Options& options, const char* name, DType& value) {
  if (given(options, name)) {
    value = dtype_named(text_or(options, name, "")).value();
  }
}

RecomputeModules parse_modules(const std::string& word) {
  const std::string place = "--recompute-modules";
  RecomputeModules modules;
  for (const std::string& piece : parse_list(word, place)) {
    const std::string name = parse_choice(piece, words_of(kRecomputeModules), place);
    for (const auto& row : kRecomputeModules) {
      if (row.name == name) {
        modules.*row.value = true;
      }
    }
  }
  return modules;
}

// Options that mean nothing beside the granularity are mistakes, not to be dropped silently.
void refuse_unused(const Options& options, const char* name, RecomputeGranularity actual,
                   RecomputeGranularity needed) {
  if (given(options, name) && actual != needed) {
    throw InputError("--" + std::string(name) + ": means something only with --recompute " +
                     std::string(name_of(needed)));
  }
}

// A granularity that is given starts anew; the other options change what the base has.
Recompute recompute_of(const Options& options, const Recompute& base) {
  Recompute recompute = given(options, "recompute") ? Recompute{} : base;
  take_choice(options, "recompute", recompute.granularity);
  for (const char* name : {"recompute-method", "recompute-num-layers"}) {
    refuse_unused(options, name, recompute.granularity, RecomputeGranularity::kFull);
  }
  for (const char* name : {"recompute-modules", "recompute-policy"}) {
    refuse_unused(options, name, recompute.granularity, RecomputeGranularity::kSelective);
  }
  if (given(options, "recompute-modules") && given(options, "recompute-policy")) {
    throw InputError("--recompute-policy: found beside --recompute-modules, expected one of them");
  }
  take_choice(options, "recompute-method", recompute.method);
  recompute.num_layers = count_or(options, "recompute-num-layers", recompute.num_layers);
  if (given(options, "recompute-modules")) {
    recompute.modules = parse_modules(text_or(options, "recompute-modules", ""));
    recompute.policy = "";
  }
  if (given(options, "recompute-policy")) {
    recompute.policy = text_or(options, "recompute-policy", "");
    recompute.modules = {};
  }
  return recompute;
}

constexpr std::string_view kEvenLayers = "even";  // as the framework splits them

std::vector<std::int64_t> parse_layers(const std::string& word) {
  std::vector<std::int64_t> layers;
  if (word == kEvenLayers) {
    return layers;
  }
  for (const std::string& piece : parse_list(word, "--layers-per-chunk")) {
    layers.push_back(parse_count(piece, 0, kMaxLayers, "--layers-per-chunk"));
  }
  return layers;
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : std::string(separator)) + word;
  }
  return text;
}

std::vector<std::string> module_names(const RecomputeModules& modules) {
  std::vector<std::string> names;
  for (const auto& row : kRecomputeModules) {
    if (modules.*row.value) {
      names.push_back(std::string(row.name));
    }
  }
  return names;
}

std::string layers_text(const std::vector<std::int64_t>& layers_per_chunk) {
  std::vector<std::string> layers;
  layers.reserve(layers_per_chunk.size());
  for (const std::int64_t count : layers_per_chunk) { layers.push_back(std::to_string(count)); }
  return layers.empty() ? std::string(kEvenLayers) : joined(layers, ",");
}

std::string recompute_options(const Recompute& recompute) {
  std::string text = " --recompute " + std::string(name_of(recompute.granularity));
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone: break;
    case RecomputeGranularity::kFull:
      text += " --recompute-method " + std::string(name_of(recompute.method)) +
              " --recompute-num-layers " + std::to_string(recompute.num_layers);
      break;
    case RecomputeGranularity::kSelective:
      text += recompute.policy.empty()
                  ? " --recompute-modules " + joined(module_names(recompute.modules), ",")
                  : " --recompute-policy " + recompute.policy;
      break;
  }
  return text;
}

}  // namespace

std::string option_name(std::string_view field) {
  std::string name(field);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

Plan plan_of(const Options& options, std::vector<std::string>& given_fields, const Plan& base) {
  Plan plan = base;
  for (const PlanSize& size : kPlanSizes) {
    plan.*size.field = count_or(options, option_name(size.name), plan.*size.field);
  }
  plan.sequence_parallel =
      text_or(options, "sequence-parallel", plan.sequence_parallel ? "on" : "off") == "on";
  take_choice(options, "schedule", plan.schedule);
  take_choice(options, "cp-method", plan.cp_method);
  take_choice(options, "precision", plan.precision);
  take_dtype(options, "grad-dtype", plan.grad_dtype);
  take_dtype(options, "master-dtype", plan.master_dtype);
  take_dtype(options, "exp-avg-dtype", plan.exp_avg_dtype);
  take_dtype(options, "exp-avg-sq-dtype", plan.exp_avg_sq_dtype);
  plan.recompute = recompute_of(options, base.recompute);
  plan.offload.optimizer = number_or(options, "offload-optimizer", plan.offload.optimizer);
  plan.offload.parameters =
      text_or(options, "offload-parameters", plan.offload.parameters ? "on" : "off") == "on";
  plan.offload.activations =
      text_or(options, "offload-activations", plan.offload.activations ? "on" : "off") == "on";
  plan.moe_buffer_factor = number_or(options, "moe-buffer-factor", plan.moe_buffer_factor);
  if (given(options, "layers-per-chunk")) {
    plan.layers_per_chunk = parse_layers(text_or(options, "layers-per-chunk", ""));
  }
  if (given(options, "rank-order")) {
    plan.rank_order = parse_rank_order(text_or(options, "rank-order", ""), "--rank-order");
  }
  for (const OptionRow* row : options_of("estimate")) {
    if (row->group == kPlanGroup && given(options, row->name)) {
      std::string field = row->name;
      std::replace(field.begin(), field.end(), '-', '_');
      given_fields.push_back(field);
    }
  }
  return plan;
}

std::vector<std::string> plan_field_names() {
  std::vector<std::string> names;
  for (const OptionRow* row : options_of("estimate")) {
    if (row->group == kPlanGroup) {
      names.push_back(row->name);
      std::replace(names.back().begin(), names.back().end(), '-', '_');
    }
  }
  return names;
}

std::string options_of_plan(const Plan& plan, const Plan& base) {
  std::string text;
  const auto add = [&text](std::string_view name, std::string_view value) {
    text += " --" + option_name(name) + " " + std::string(value);
  };
  for (const PlanSize& size : kPlanSizes) {
    const bool is_always =
        size.name == "tp" || size.name == "pp" || size.name == "zero" || size.name == "micro_batch";
    if (is_always || plan.*size.field != base.*size.field) {
      add(size.name, std::to_string(plan.*size.field));
    }
  }
  add("sequence_parallel", plan.sequence_parallel ? "on" : "off");
  add("schedule", name_of(plan.schedule));
  add("cp_method", name_of(plan.cp_method));
  add("grad_dtype", name_of(plan.grad_dtype));
  if (plan.precision != base.precision) {
    add("precision", name_of(plan.precision));
  }
  text += recompute_options(plan.recompute);
  if (plan.layers_per_chunk != base.layers_per_chunk) {
    add("layers_per_chunk", layers_text(plan.layers_per_chunk));
  }
  if (plan.rank_order != base.rank_order) {
    add("rank_order", dimensions_text(plan.rank_order));
  }
  for (const auto& [name, field] : {std::pair{"master_dtype", &Plan::master_dtype},
                                    std::pair{"exp_avg_dtype", &Plan::exp_avg_dtype},
                                    std::pair{"exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype}}) {
    if (plan.*field != base.*field) {
      add(name, name_of(plan.*field));
    }
  }
  if (plan.offload.optimizer != base.offload.optimizer) {
    add("offload_optimizer", exact_text(plan.offload.optimizer));
  }
  if (plan.offload.parameters != base.offload.parameters) {
    add("offload_parameters", plan.offload.parameters ? "on" : "off");
  }
  if (plan.offload.activations != base.offload.activations) {
    add("offload_activations", plan.offload.activations ? "on" : "off");
  }
  if (plan.moe_buffer_factor != base.moe_buffer_factor) {
    add("moe_buffer_factor", exact_text(plan.moe_buffer_factor));
  }
  return text.substr(1);
}

Plan with_open_etp(const Job& job, Plan base) {
  base.etp = job.model.moe.num_experts > 0 ? -1 : base.etp;
  return base;
}

std::string options_that_differ(const Plan& base, const Plan& plan) {
  const auto words_of_options = [](const std::string& options) {
    std::vector<std::string> words;  // "--tp 2"
    for (std::size_t start = 0; start < options.size();) {
      const std::size_t end = std::min(options.find(" --", start), options.size());
      words.push_back(options.substr(start, end - start));
      start = end + 1;
    }
    return words;
  };
  const std::vector<std::string> own = words_of_options(options_of_plan(base, base));
  std::string text;
  for (const std::string& word : words_of_options(options_of_plan(plan, base))) {
    if (std::ranges::find(own, word) == own.end()) {
      text += (text.empty() ? "" : " ") + word;
    }
  }
  return text;
}

std::string recompute_text(const Recompute& recompute) {
  std::string text(name_of(recompute.granularity));
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone: break;
    case RecomputeGranularity::kFull:
      text += "/";
      text += name_of(recompute.method);
      text += "/";
      text += std::to_string(recompute.num_layers);
      break;
    case RecomputeGranularity::kSelective:
      text += "/";
      text += recompute.policy.empty() ? joined(module_names(recompute.modules), "+")
                                       : recompute.policy;
      break;
  }
  return text;
}

std::string dimensions_text(const RankOrder& order) {
  std::vector<std::string> names;
  names.reserve(order.size());
  for (const Dimension dimension : order) { names.push_back(std::string(name_of(dimension))); }
  return joined(names, "-");
}

RankOrder parse_rank_order(const std::string& word, const std::string& place) {
  std::string commas = word;
  std::replace(commas.begin(), commas.end(), '-', ',');
  const std::vector<std::string> pieces = parse_list(commas, place);
  RankOrder order{};
  std::set<std::string> seen;
  for (std::size_t i = 0; i < pieces.size() && i < order.size(); ++i) {
    order[i] = value_of<Dimension>(parse_choice(pieces[i], words_of(kDimensions), place)).value();
    seen.insert(pieces[i]);
  }
  if (pieces.size() != order.size() || seen.size() != order.size()) {
    throw InputError(place + ": found '" + word + "', expected pp, dp, cp, tp once each");
  }
  return order;
}

}  // namespace shardplan
