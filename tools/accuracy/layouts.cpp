#include "tools/accuracy/layouts.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>

#include "estimator/estimate.h"
#include "tools/accuracy/case.h"
#include "tools/accuracy/errors.h"
#include "tools/options/case_file.h"

namespace shardplan {
namespace {

std::string model_text(const ModelSpec& model) {
  std::string text = std::to_string(model.num_layers()) + " layers of " +
                     std::to_string(model.hidden) + ", " + std::to_string(model.num_kv_heads) +
                     " kv heads";
  if (model.moe.num_experts > 0) {
    text += ", " + std::to_string(model.moe.num_experts) + " experts";
  }
  return text;
}

void add_case(LayoutReport& report, const std::string& set, const Case& question) {
  const std::optional<double> step_s =
      question.measured ? measured_step_s(*question.measured, question.job) : std::nullopt;
  if (!step_s) {
    ++report.without_speed;
    return;
  }
  const TimeRefusal refusal = why_no_step_time(question);
  if (!refusal.reason.empty()) {
    ++report.refused;
    report.refusals.push_back(question.id + ": " + refusal.reason);
    return;
  }
  report.beyond_memory_model += refusal.only_of_memory ? 1 : 0;
  const std::string model = model_text(question.job.model);
  const std::int64_t num_gpus = question.job.cluster.world_size();
  auto group = std::ranges::find_if(report.groups, [&](const LayoutGroup& known) {
    return known.set == set && known.model == model && known.num_gpus == num_gpus;
  });
  if (group == report.groups.end()) {
    report.groups.push_back({.set = set, .model = model, .num_gpus = num_gpus, .runs = {}});
    group = std::prev(report.groups.end());
  }
  const double tokens = static_cast<double>(question.job.global_batch) *
                        static_cast<double>(question.job.sequence_length) /
                        static_cast<double>(num_gpus);
  group->runs.push_back(
      {.id = question.id,
       .plan = question.plan,
       .measured = tokens / *step_s,
       .predicted = estimate_step_time(question.job, question.plan).tokens_per_s_per_gpu,
       .framework = question.framework,
       .gpu = question.job.cluster.gpu.id,
       .sequence_length = question.job.sequence_length,
       .global_batch = question.job.global_batch});
}

double smallest_tp_regret(const LayoutGroup& group, double best) {
  const auto order = [](const LayoutRun& run) { return std::pair(run.plan.tp, run.plan.pp); };
  const auto smallest = order(*std::ranges::min_element(group.runs, {}, order));
  double sum = 0;
  double count = 0;
  for (const LayoutRun& run : group.runs) {
    if (order(run) == smallest) {
      sum += run.measured;
      count += 1;
    }
  }
  return 1 - sum / count / best;
}

}  // namespace

Agreement agreement_of(const LayoutGroup& group) {
  std::vector<const LayoutRun*> ranked;
  std::vector<double> measured;
  std::vector<double> predicted;
  std::vector<double> errors;
  for (const LayoutRun& run : group.runs) {
    ranked.push_back(&run);
    measured.push_back(run.measured);
    predicted.push_back(run.predicted);
    errors.push_back(std::fabs(run.measured / run.predicted - 1));
  }
  std::ranges::stable_sort(ranked, std::greater<>(), &LayoutRun::predicted);
  const LayoutRun& best = *std::ranges::max_element(group.runs, {}, &LayoutRun::measured);
  constexpr std::size_t kTried = 5;
  double best_of_5 = 0;
  for (std::size_t i = 0; i < std::min(kTried, ranked.size()); ++i) {
    best_of_5 = std::max(best_of_5, ranked[i]->measured);
  }
  return {.rank_correlation = rank_correlation(measured, predicted),
          .top_1_regret = 1 - ranked.front()->measured / best.measured,
          .best_of_5_regret = 1 - best_of_5 / best.measured,
          .smallest_tp_regret = smallest_tp_regret(group, best.measured),
          .median_error = median_of(errors),
          .chosen = ranked.front()->id,
          .best = best.id};
}

std::vector<LayoutGroup> questions_of(const std::vector<LayoutGroup>& groups) {
  const auto asks = [](const LayoutRun& run) {
    return std::tie(run.framework, run.gpu, run.sequence_length, run.global_batch);
  };
  std::vector<LayoutGroup> questions;
  for (const LayoutGroup& group : groups) {
    std::vector<LayoutGroup> parts;
    for (const LayoutRun& run : group.runs) {
      auto part = std::ranges::find_if(
          parts, [&](const LayoutGroup& known) { return asks(known.runs.front()) == asks(run); });
      if (part == parts.end()) {
        parts.push_back(
            {.set = group.set, .model = group.model, .num_gpus = group.num_gpus, .runs = {}});
        part = std::prev(parts.end());
      }
      part->runs.push_back(run);
    }
    for (LayoutGroup& part : parts) {
      if (part.runs.size() > 1) {
        questions.push_back(std::move(part));
      }
    }
  }
  return questions;
}

LayoutReport layout_report(const std::vector<std::string>& files, const Library& library) {
  LayoutReport report;
  for (const std::string& file : files) {
    const std::string set =
        file == "-" ? "standard input" : std::filesystem::path(file).stem().string();
    CaseFile lines(file);
    for (CaseText line; lines.next(line);) {
      add_case(report, set, read_case(line.text, line.place(), library));
    }
  }
  return report;
}

RegretSummary regret_summary(const LayoutReport& report) {
  RegretSummary summary;
  std::vector<double> correlations;
  std::vector<double> top_1;
  std::vector<double> best_of_5;
  std::vector<double> smallest_tp;
  for (const LayoutGroup& group : report.groups) {
    if (std::ssize(group.runs) < kLeastLayouts) {
      continue;
    }
    const Agreement agreement = agreement_of(group);
    ++summary.groups;
    summary.runs += std::ssize(group.runs);
    correlations.push_back(agreement.rank_correlation);
    top_1.push_back(agreement.top_1_regret);
    best_of_5.push_back(agreement.best_of_5_regret);
    smallest_tp.push_back(agreement.smallest_tp_regret);
  }
  if (summary.groups > 0) {
    summary.median_rank_correlation = median_of(correlations);
    summary.median_top_1 = median_of(top_1);
    summary.p90_top_1 = nearest_rank(top_1, 0.9);
    summary.median_best_of_5 = median_of(best_of_5);
    summary.median_smallest_tp = median_of(smallest_tp);
    summary.p90_smallest_tp = nearest_rank(smallest_tp, 0.9);
  }
  return summary;
}

ChoiceSummary choice_summary(const std::vector<LayoutGroup>& questions) {
  constexpr double kAsGoodAsTheBest = 0.02;
  ChoiceSummary summary;
  for (const LayoutGroup& question : questions) {
    const double loss = agreement_of(question).top_1_regret;
    ++summary.questions;
    summary.runs += std::ssize(question.runs);
    summary.within_2_percent += loss <= kAsGoodAsTheBest ? 1 : 0;
    summary.mean += loss;
    summary.worst = std::max(summary.worst, loss);
  }
  summary.mean /= static_cast<double>(std::max<std::int64_t>(1, summary.questions));
  return summary;
}

}  // namespace shardplan
