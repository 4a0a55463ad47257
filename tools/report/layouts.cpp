#include "tools/report/layouts.h"

#include <nlohmann/json.hpp>

#include "tools/accuracy/layouts.h"
#include "tools/report/csv.h"
#include "tools/report/table.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

std::string percents(double share) {
  return fixed(share * 100, 1) + " %";
}

std::string refused_text(const LayoutReport& report) {
  std::string text;
  if (report.beyond_memory_model > 0) {
    text += grouped(report.beyond_memory_model) +
            " of these have a speed only: the framework's memory rows do not cover them\n";
  }
  if (report.refused > 0) {
    text += grouped(report.refused) + " more are refused and stand in no group; the first: " +
            one_line(report.refusals.front()) + "\n";
  }
  if (report.without_speed > 0) {
    text += grouped(report.without_speed) + " more have no measured speed\n";
  }
  return text;
}

// What the best-predicted plan loses for one question.
std::string choices_text(const LayoutReport& report) {
  const std::vector<LayoutGroup> questions = questions_of(report.groups);
  if (questions.empty()) {
    return "";
  }
  Table table = {.columns = {"set", "framework", "model", "GPUs", "GPU", "sequence", "batch",
                             "plans", "loss", "chosen", "best"}};
  for (const LayoutGroup& question : questions) {
    const Agreement agreement = agreement_of(question);
    const LayoutRun& run = question.runs.front();
    table.rows.push_back({question.set, run.framework, question.model, question.num_gpus, run.gpu,
                          run.sequence_length, run.global_batch,
                          static_cast<std::int64_t>(std::ssize(question.runs)),
                          percents(agreement.top_1_regret), agreement.chosen, agreement.best});
  }
  const ChoiceSummary summary = choice_summary(questions);
  return "\nPlans of one model, sequence and batch on as many GPUs: measured speed that the "
         "best-predicted plan loses\n" +
         table_text(table) + "\nwithin 2 % of the fastest in " + grouped(summary.within_2_percent) +
         " of " + grouped(summary.questions) + " choices; lost in the mean " +
         percents(summary.mean) + ", at worst " + percents(summary.worst) + "\n";
}

Json choices_json(const LayoutReport& report) {
  const ChoiceSummary summary = choice_summary(questions_of(report.groups));
  return {{"questions", summary.questions},
          {"layouts", summary.runs},
          {"within_2_percent", summary.within_2_percent},
          {"mean_loss", summary.mean},
          {"worst_loss", summary.worst}};
}

}  // namespace

std::string layouts_text(const LayoutReport& report) {
  Table table = {.columns = {"set", "model", "GPUs", "layouts", "Spearman", "top-1 regret",
                             "best of 5", "smallest tp", "time error", "chosen", "best"}};
  std::int64_t runs = 0;
  for (const LayoutGroup& group : report.groups) {
    const Agreement agreement = agreement_of(group);
    runs += std::ssize(group.runs);
    table.rows.push_back(
        {group.set, group.model, group.num_gpus, static_cast<std::int64_t>(std::ssize(group.runs)),
         fixed(agreement.rank_correlation, 3), percents(agreement.top_1_regret),
         percents(agreement.best_of_5_regret), percents(agreement.smallest_tp_regret),
         percents(agreement.median_error), agreement.chosen, agreement.best});
  }
  const RegretSummary summary = regret_summary(report);
  std::string text = grouped(runs) + " measured layouts\n" + refused_text(report) + "\n" +
                     table_text(table) + "\n";
  if (summary.groups == 0) {
    return text + "no group has " + std::to_string(kLeastLayouts) + " layouts\n" +
           choices_text(report);
  }
  return text + grouped(summary.groups) + " groups of at least " + std::to_string(kLeastLayouts) +
         " layouts (" + grouped(summary.runs) + "): Spearman median " +
         fixed(summary.median_rank_correlation, 3) + "; top-1 regret median " +
         percents(summary.median_top_1) + ", p90 " + percents(summary.p90_top_1) +
         "; best of 5 median " + percents(summary.median_best_of_5) +
         "\nsmallest tp that fits, then smallest pp: regret median " +
         percents(summary.median_smallest_tp) + ", p90 " + percents(summary.p90_smallest_tp) +
         "\n" + choices_text(report);
}

std::string layouts_csv(const LayoutReport& report) {
  Table table = {.columns = {"set", "model", "num_gpus", "layouts", "rank_correlation",
                             "top_1_regret", "best_of_5_regret", "smallest_tp_regret",
                             "median_time_error", "chosen", "best"}};
  for (const LayoutGroup& group : report.groups) {
    const Agreement agreement = agreement_of(group);
    table.rows.push_back(
        {group.set, group.model, group.num_gpus, static_cast<std::int64_t>(std::ssize(group.runs)),
         agreement.rank_correlation, agreement.top_1_regret, agreement.best_of_5_regret,
         agreement.smallest_tp_regret, agreement.median_error, agreement.chosen, agreement.best});
  }
  return csv_text(table);
}

std::string layouts_json(const LayoutReport& report) {
  Json groups = Json::array();
  for (const LayoutGroup& group : report.groups) {
    const Agreement agreement = agreement_of(group);
    Json runs = Json::array();
    for (const LayoutRun& run : group.runs) {
      runs.push_back({{"id", run.id},
                      {"measured_tokens_per_s_per_gpu", run.measured},
                      {"predicted_tokens_per_s_per_gpu", run.predicted}});
    }
    groups.push_back({{"set", group.set},
                      {"model", group.model},
                      {"num_gpus", group.num_gpus},
                      {"layouts", group.runs.size()},
                      {"rank_correlation", agreement.rank_correlation},
                      {"top_1_regret", agreement.top_1_regret},
                      {"best_of_5_regret", agreement.best_of_5_regret},
                      {"smallest_tp_regret", agreement.smallest_tp_regret},
                      {"median_time_error", agreement.median_error},
                      {"chosen", agreement.chosen},
                      {"best", agreement.best},
                      {"runs", std::move(runs)}});
  }
  const RegretSummary summary = regret_summary(report);
  Json root = {{"schema", 1},
               {"groups", std::move(groups)},
               {"refused", report.refusals},
               {"without_speed", report.without_speed},
               {"choices", choices_json(report)},
               {"summary",
                {{"least_layouts", kLeastLayouts},
                 {"groups", summary.groups},
                 {"layouts", summary.runs},
                 {"median_rank_correlation", summary.median_rank_correlation},
                 {"median_top_1_regret", summary.median_top_1},
                 {"p90_top_1_regret", summary.p90_top_1},
                 {"median_best_of_5_regret", summary.median_best_of_5},
                 {"median_smallest_tp_regret", summary.median_smallest_tp},
                 {"p90_smallest_tp_regret", summary.p90_smallest_tp}}}};
  return one_line_of(root);
}

}  // namespace shardplan
