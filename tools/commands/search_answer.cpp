#include "tools/commands/search_answer.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/frameworks/framework.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "search/questions/without_rule.h"
#include "tools/commands/other_sizes.h"
#include "tools/commands/overlaps.h"
#include "tools/commands/recommend.h"
#include "tools/commands/simplest_plan.h"
#include "tools/options/plan_words.h"

namespace shardplan {
namespace {

// What no plan changes, such as the model.
bool refuses_every_plan(const Job& job) {
  return std::ranges::any_of(validity_rules(job.profile), [&](const ValidityRule& rule) {
    return rule.reads.empty() && rule.broken(job, Plan{});
  });
}

InvalidReason nearest_refusal(const SearchReport& report) {
  return why_invalid(report.job, report.result.nearest).value();
}

// Frameworks that refuse nothing of the job itself; a formula trains nothing.
std::vector<std::string> other_frameworks(Job job, const Library& library) {
  std::vector<std::string> names;
  for (const std::string& name : library.framework_names()) {
    job.profile = library.framework(name);
    const bool is_older = name.find('@') != std::string::npos;
    if (!is_older && job.profile.memory_model != MemoryModel::kFujii2024 &&
        !refuses_every_plan(job)) {
      names.push_back(name);
    }
  }
  return names;
}

// Why no plan is valid.
std::string reason_of(const SearchReport& report, const Library& library) {
  std::string reason = nearest_refusal(report).message;
  if (!report.run && refuses_every_plan(report.job)) {
    const std::vector<std::string> others = other_frameworks(report.job, library);
    reason += others.empty() ? "" : "; modelled with --framework " + joined(others);
  }
  return reason;
}

// Where no plan fits those that only break the rule take their place.
void settle_verdict(SearchReport& report, const SearchSpace& space, PriceTables& prices) {
  SearchResult& result = report.result;
  if (result.plans_distinct == 0) {
    const bool is_unsupported =
        result.plans_in_space > 0 && nearest_refusal(report).rule.starts_with("unsupported");
    report.verdict = is_unsupported ? "unsupported" : "invalid";
    return;
  }
  MemoryVerdict best = MemoryVerdict::kDoesNotFit;
  for (const RankedPlan& ranked : result.top) {
    best = std::min(best, verdict_of(report.job, ranked.memory, report.rule));
  }
  if (result.top.empty()) {
    BeyondRule beyond = beyond_rule(report.job, space, report.options, prices);
    best = beyond.verdict;
    result.top = std::move(beyond.over);
    if (!result.top.empty()) {
      report.options = without_rule(report.options);
    }
  }
  report.verdict = name_of(best);
}

// How the same plan is run, beside overlaps. What changes results stays as it is: types, recipes,
// determinism.
constexpr auto kOffered = std::to_array<std::string_view>(
    {"attention_backend", "compile", "cross_entropy", "fused_optimizer",
     "gradient_accumulation_fusion", "launch_blocking", "masked_softmax_fusion", "moe_dispatcher",
     "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion", "recompute_allgather",
     "reshard_after_forward", "scatter_gather_sends", "swiglu"});

bool is_offered(const ProfileOption& option) {
  return (option.name.find("overlap") != std::string::npos ||
          std::ranges::find(kOffered, option.name) != kOffered.end()) &&
         !takes_uncounted_memory(option);
}

// Those with which the plan is faster by more than this share, one on top of the other.
constexpr double kWorthNaming = 0.005;

std::optional<FasterSwitches> faster_switches(Job job, const RankedPlan& best,
                                              const SearchOptions& options,
                                              const Library& library) {
  FasterSwitches faster = {.options = {}, .step_time_s = best.time.total_s};
  for (const ProfileOption& option : profile_options(library, library.key_of(job.profile))) {
    if (!is_offered(option)) {
      continue;
    }
    std::string fastest;  // value of the option
    for (const std::string& value : other_values(job.profile, option)) {
      Job changed = job;
      apply_option(changed.profile, option.name, value, library);
      if (why_invalid(changed, best.plan)) {
        continue;
      }
      const double step_time_s = estimate_step_time(changed, best.plan).total_s;
      if (step_time_s < (1 - kWorthNaming) * faster.step_time_s &&
          fits(changed, estimate_memory(changed, best.plan), options)) {
        job = changed;
        fastest = value;
        faster.step_time_s = step_time_s;
      }
    }
    if (!fastest.empty()) {
      faster.options.push_back(option.name + "=" + fastest);
    }
  }
  return faster.options.empty() ? std::nullopt : std::optional(faster);
}

// Of the plan as its command states it.
std::vector<StatedAssumption> assumptions_of(const SearchReport& report, const Options& options,
                                             const Library& library) {
  const RankedPlan& chosen = report.chosen();
  Question question = {.job = report.job,
                       .plan = chosen.plan,
                       .given = plan_field_names(),
                       .given_options = {},
                       .warnings = {},
                       .run = report.run};
  for (const char* name : {"framework-option", "set"}) {
    for (const std::string& word : all_of(options, name)) {
      question.given_options.push_back(word.substr(0, word.find('=')));
    }
  }
  const Prediction prediction = {.status = status_of(chosen.memory.fit),
                                 .reason = "",
                                 .memory = chosen.memory,
                                 .time = chosen.time,
                                 .judged = judge_memory(report.job, chosen.memory, report.rule)};
  std::vector<StatedAssumption> stated = assumptions_of(question, library, prediction, report.rule);
  for (const std::string& word : useful_overlaps(report.switched_on, chosen.plan)) {
    const std::size_t equals = word.find('=');
    const std::string text = word.substr(0, equals) + ": " + word.substr(equals + 1);
    stated.push_back({.kind = AssumptionKind::kAssumed,
                      .text = text + " (assumed in a search: it only makes a run faster)",
                      .in_short = text});
  }
  return stated;
}

std::size_t picked(const Options& options, const SearchResult& result) {
  const std::int64_t rank = count_or(options, "pick", 1);
  if (rank > std::ssize(result.top)) {
    throw InputError("--pick: found " + std::to_string(rank) + ", expected one of the " +
                     std::to_string(result.top.size()) + " plans shown (--top shows more)");
  }
  return static_cast<std::size_t>(rank - 1);
}

}  // namespace

void complete(SearchReport& report, const SearchQuestion& question, const Options& options,
              const Library& library, PriceTables& prices) {
  if (report.result.plans_distinct == 0 && report.result.plans_in_space > 0) {
    report.reason = reason_of(report, library);
  }
  report.other_sizes = other_sizes(options, question, report.options, report.result, library);
  settle_verdict(report, question.space, prices);
  if (!report.result.top.empty()) {
    const RankedPlan& best = report.result.top.front();
    if (!given(options, "axes")) {  // whose searches are long
      report.simplest = simplest_tied(report.job, question.space, report.options, best, prices);
      report.faster_over =
          faster_without_rule(report.job, question.space, report.options, best, prices);
    }
    const MeasuredRuns runs(report.job.profile, library);
    recommend(report, without_overlaps(report.job, report.switched_on, library), runs);
    report.picked = picked(options, report.result);
    const RankedPlan& chosen = report.chosen();
    std::vector<std::string> useless = report.switched_on;
    for (const std::string& word : useful_overlaps(report.switched_on, chosen.plan)) {
      std::erase(useless, word);
    }
    report.evidence = runs.evidence_of(without_overlaps(report.job, useless, library), chosen.plan,
                                       chosen.memory);
    report.switches = faster_switches(report.job, chosen, report.options, library);
    report.assumptions = assumptions_of(report, options, library);
  }
}

}  // namespace shardplan
