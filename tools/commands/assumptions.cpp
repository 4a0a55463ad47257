#include "tools/commands/assumptions.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "data/frameworks/framework.h"
#include "data/read/json_message.h"
#include "estimator/answer/allocator_totals.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/price/price.h"
#include "tools/commands/verdict.h"
#include "tools/options/plan_words.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

constexpr double kShareWorthSaying = 0.05;

// One field that frameworks have defaults for: its value as text, and the plans with its other
// values.
struct DefaultField {
  std::string_view name;
  std::string (*text)(const Plan& plan);
  std::vector<Plan> (*others)(const Plan& plan);
};

std::vector<Plan> other_zero_stages(const Plan& plan) {
  std::vector<Plan> plans;
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    plans.push_back(plan);
    plans.back().zero = zero;
  }
  return plans;
}

std::vector<Plan> other_sequence_parallel(const Plan& plan) {
  Plan other = plan;
  other.sequence_parallel = !plan.sequence_parallel;
  return {other};
}

std::vector<Plan> other_schedules(const Plan& plan) {
  std::vector<Plan> plans;
  for (const auto& row : kSchedules) {
    plans.push_back(plan);
    plans.back().schedule = row.value;
  }
  return plans;
}

std::vector<Plan> other_recomputes(const Plan& plan) {
  std::vector<Plan> plans(2, plan);
  plans[0].recompute = {.granularity = RecomputeGranularity::kFull};
  plans[1].recompute = {.granularity = RecomputeGranularity::kSelective,
                        .modules = {.core_attn = true}};
  return plans;
}

std::vector<Plan> other_grad_dtypes(const Plan& plan) {
  std::vector<Plan> plans(2, plan);
  plans[0].grad_dtype = DType::kFp32;
  plans[1].grad_dtype = DType::kBf16;
  return plans;
}

std::vector<Plan> other_expert_slices(const Plan& plan) {
  std::vector<Plan> plans(2, plan);
  plans[0].etp = 1;
  plans[1].etp = plan.tp;
  return plans;
}

const std::array<DefaultField, 6> kDefaultFields = {{
    {.name = "zero",
     .text = [](const Plan& plan) { return std::to_string(plan.zero); },
     .others = other_zero_stages},
    {.name = "sequence_parallel",
     .text = [](const Plan& plan) { return std::string(plan.sequence_parallel ? "on" : "off"); },
     .others = other_sequence_parallel},
    {.name = "schedule",
     .text = [](const Plan& plan) { return std::string(name_of(plan.schedule)); },
     .others = other_schedules},
    {.name = "recompute",
     .text = [](const Plan& plan) { return recompute_text(plan.recompute); },
     .others = other_recomputes},
    {.name = "grad_dtype",
     .text = [](const Plan& plan) { return std::string(name_of(plan.grad_dtype)); },
     .others = other_grad_dtypes},
    {.name = "etp",
     .text = [](const Plan& plan) { return std::to_string(plan.etp); },
     .others = other_expert_slices},
}};

bool is_among(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Slices of experts are no question without experts or without tp.
bool is_open(const Question& question, const DefaultField& field) {
  const bool has_slices = question.job.model.moe.num_experts > 0 && question.plan.tp > 1;
  return (field.name != "etp" || has_slices) && !is_among(question.given, field.name);
}

// What other choices are held against; most of them change nothing of what is allocated.
struct Verdict {
  bool is_negative = false;
  const MemoryRule& rule;
  std::vector<PlayedTimeline> played = {};
};

// Whether a price leaves room for the other verdict: no plan fits that allocates more than there
// is, and none fails whose upper bound of device memory is below every limit. A price costs a small
// part of a prediction, and most alternatives are far from the limit.
bool may_turn(const Job& job, const Plan& plan, const Verdict& verdict) {
  const MemoryRule& rule = verdict.rule;
  PriceTable table = build_price_table(job);
  const Price bounds = price(table, plan);
  std::int64_t most =
      std::max(device_capacity_bytes(job.cluster), nominal_capacity_bytes(job.cluster));
  std::int64_t least =
      std::min(device_capacity_bytes(job.cluster), nominal_capacity_bytes(job.cluster));
  if (rule.is_asked) {
    most = std::min(most, memory_limit_bytes(job.cluster, rule));
    least = std::min(least, memory_limit_bytes(job.cluster, rule));
  }
  return verdict.is_negative ? bounds.allocated_bytes <= most : bounds.device_used_bytes > least;
}

bool is_negative_plan(const Job& job, const Plan& plan, Verdict& verdict) {
  return verdict.rule.is_asked ? is_negative(predict(job, plan, verdict.rule))
                               : fit_of_plan(job, plan, verdict.played) == Fit::kDoesNotFit;
}

// fit_of_plan begins with the same bounds, from pieces that cost less than a price of their own; a
// formula has none.
bool needs_price(const Job& job, const Verdict& verdict) {
  return verdict.rule.is_asked || job.profile.memory_model == MemoryModel::kFujii2024;
}

bool turns_verdict(const Job& job, const Plan& plan, Verdict& verdict) {
  return first_broken_rule(job, plan) == nullptr &&
         (!needs_price(job, verdict) || may_turn(job, plan, verdict)) &&
         is_negative_plan(job, plan, verdict) != verdict.is_negative;
}

// The text of the first other value that is valid and turns the verdict; "" if none does.
std::string turning_value(const Question& question, const DefaultField& field, Verdict& verdict) {
  for (const Plan& other : field.others(question.plan)) {
    if (other != question.plan && turns_verdict(question.job, other, verdict)) {
      return field.text(other);
    }
  }
  return "";
}

// Other values of a switch: its words, or of a number twice and half as much where that is allowed.
std::vector<std::string> other_words(const FrameworkProfile& profile, const ProfileOption& option) {
  if (option.type == "bool" || option.type == "choice") {
    return other_values(profile, option);
  }
  const double value = std::strtod(option.default_value.c_str(), nullptr);
  std::vector<std::string> words;
  for (const double other : {2 * value, value / 2}) {
    const bool is_whole = option.type != "integer" || other == std::floor(other);
    if (other != value && is_whole && other >= option.low && other <= option.high) {
      words.push_back(option.type == "integer" ? std::to_string(std::llround(other))
                                               : exact_text(other));  // may be 1e+09
    }
  }
  return words;
}

// The same for a switch of the framework.
std::string turning_value(const Question& question, const ProfileOption& option,
                          const Library& library, Verdict& verdict) {
  for (const std::string& word : other_words(question.job.profile, option)) {
    Job other = question.job;
    apply_option(other.profile, option.name, word, library);
    if (turns_verdict(other, question.plan, verdict)) {
      return word;
    }
  }
  return "";
}

// A field of the plan or a switch that nobody has set.
struct Open {
  std::string name;
  std::string value;
  std::string framework_default;  // where it is another one
  bool assumed = false;           // the framework has none
};

StatedAssumption assumption_of(const Open& open, const std::string& framework,
                               const std::string& turning, bool is_negative) {
  const bool is_assumed = open.assumed || !open.framework_default.empty();
  StatedAssumption stated;
  stated.kind = is_assumed ? AssumptionKind::kAssumed : AssumptionKind::kFrameworkDefault;
  stated.in_short = open.name + ": " + open.value;
  stated.text = stated.in_short;
  stated.text += is_assumed ? " (assumed" : " (default of " + framework;
  if (!open.framework_default.empty()) {
    stated.in_short += " (" + open.framework_default + ")";
    stated.text += "; default of " + framework + ": " + open.framework_default;
  }
  if (!turning.empty()) {
    stated.text += is_negative ? "; fits with " : "; does not fit with ";
    stated.text += turning;
    stated.decides = true;
  }
  stated.text += ")";
  return stated;
}

// What is said of a field of the plan in the profile, of "schedule" as default_pipeline_schedule.
Open open_field(const DefaultField& field, const Question& question,
                const std::vector<ProfileOption>& defaults) {
  const std::string_view name = field.name;
  const std::string value = field.text(question.plan);
  Open open = {.name = std::string(name), .value = value, .framework_default = {}};
  const std::string key =
      name == "schedule" ? "default_pipeline_schedule" : "default_" + std::string(name);
  const auto found = std::ranges::find(defaults, key, &ProfileOption::name);
  open.assumed = found != defaults.end() && found->assumed;
  if (found != defaults.end() && !found->framework_default.empty()) {
    const std::string& own = found->framework_default;
    open.framework_default = own == "true" ? "on" : own == "false" ? "off" : own;
    // Without tp or pp both have the same.
    if (open.framework_default == value || value == "none") {
      open.framework_default.clear();
    }
  }
  // Megatron-LM arguments.py, validate_args: as tp, with and without ep.
  if (name == "etp" && is_megatron(question.job.profile.memory_model) &&
      question.plan.etp != question.plan.tp) {
    open.framework_default = std::to_string(question.plan.tp);
  }
  return open;
}

// Model files do not say what Megatron-LM drops: arguments.py, --hidden-dropout and
// --attention-dropout, 0.1 unless told. A run's own file decides for itself.
void add_dropout(const Question& question, Verdict& verdict,
                 std::vector<StatedAssumption>& stated) {
  if (question.job.profile.memory_model != MemoryModel::kMegatron || question.run) {
    return;
  }
  for (const auto& [name, field] : {std::pair{"hidden_dropout", &Job::hidden_dropout},
                                    std::pair{"attention_dropout", &Job::attention_dropout}}) {
    Job other = question.job;
    other.*field = 0.1;
    const bool turns = turns_verdict(other, question.plan, verdict);
    stated.push_back(assumption_of({.name = name, .value = "0", .framework_default = "0.1"},
                                   question.job.profile.name, turns ? "0.1" : "",
                                   verdict.is_negative));
  }
}

void add_sentence(const std::string& text, std::vector<StatedAssumption>& stated) {
  stated.push_back({.kind = AssumptionKind::kEstimator, .text = text, .in_short = text});
}

// What is taken of the hosts and of the launcher.
void add_surroundings(const Question& question, const StepTime& time,
                      std::vector<StatedAssumption>& stated) {
  if (time.host_s >= kShareWorthSaying * time.total_s) {
    add_sentence("host_slowdown: " + exact_text(question.job.cluster.host_slowdown) +
                     ", of this cluster's hosts (a DGX H100's: 1), for which GPUs wait " +
                     percent(time.host_s / time.total_s) +
                     " of the step; tools/measure_host_speed.py measures it for a cluster file",
                 stated);
  }
  if (question.run && question.run->reading.launcher_assumed &&
      question.job.profile.allocator == AllocatorKind::kCachingExpandable) {
    add_sentence(
        "allocator: caching_expandable, as torchtitan's own run_train.sh sets it; another "
        "launcher: --set allocator=caching",
        stated);
  }
}

// Frameworks want micro_batch and precision to be said; torchtitan computes in bf16 by itself
// (config/job_config.py, Training.mixed_precision_param).
void add_plan_fields(const Question& question, const Library& library, Verdict& verdict,
                     std::vector<StatedAssumption>& stated) {
  const FrameworkProfile& profile = question.job.profile;
  const std::vector<ProfileOption> defaults =
      profile_plan_defaults(library, library.key_of(profile));
  for (const DefaultField& field : kDefaultFields) {
    if (is_open(question, field)) {
      stated.push_back(assumption_of(open_field(field, question, defaults), profile.name,
                                     turning_value(question, field, verdict), verdict.is_negative));
    }
  }
  const auto add_own = [&](const std::string& name, const std::string& value, bool assumed) {
    if (!is_among(question.given, name)) {
      stated.push_back(
          assumption_of({.name = name, .value = value, .framework_default = {}, .assumed = assumed},
                        profile.name, "", verdict.is_negative));
    }
  };
  const bool has_precision = profile.memory_model == MemoryModel::kTorchtitan;
  add_own("micro_batch", std::to_string(question.plan.micro_batch), true);
  add_own("precision", std::string(name_of(question.plan.precision)), !has_precision);
}

// Switches of the framework, but for those that mean nothing to this model or optimizer.
void add_options(const Question& question, const Library& library, Verdict& verdict,
                 std::vector<StatedAssumption>& stated) {
  const FrameworkProfile& profile = question.job.profile;
  const bool has_experts = question.job.model.moe.num_experts > 0;
  for (const ProfileOption& option : profile_options(library, library.key_of(profile))) {
    const bool means_something = (has_experts || !option.name.starts_with("moe_")) &&
                                 (uses_muon(question.job) || !option.name.starts_with("muon_"));
    if (means_something && !is_among(question.given_options, option.name)) {
      stated.push_back(assumption_of(
          {.name = option.name,
           .value = option.default_value,
           .framework_default = option.framework_default,
           .assumed = option.assumed},
          profile.name, turning_value(question, option, library, verdict), verdict.is_negative));
    }
  }
}

}  // namespace

std::vector<StatedAssumption> assumptions_of(const Question& question, const Library& library,
                                             const Prediction& prediction, const MemoryRule& rule) {
  std::vector<StatedAssumption> stated;
  for (const Assumption& assumption : prediction.memory.assumptions) {
    stated.push_back({.kind = AssumptionKind::kEstimator,
                      .text = assumption.text,
                      .in_short = assumption.text,
                      .decides = assumption.decides});
  }
  if (!prediction.has_numbers()) {
    return stated;
  }
  Verdict verdict = {.is_negative = is_negative(prediction), .rule = rule};
  add_surroundings(question, prediction.time, stated);
  add_plan_fields(question, library, verdict, stated);
  add_dropout(question, verdict, stated);
  add_options(question, library, verdict, stated);
  return stated;
}

}  // namespace shardplan
