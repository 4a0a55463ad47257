// Answers as JSON, one line each: keys in a fixed order, bytes as integers, doubles as the shortest
// text that reads back equal. The words are those of case lines.
#include "tools/report/json.h"

#include <nlohmann/json.hpp>

#include "estimator/frameworks/framework.h"
#include "estimator/plan/parameters.h"
#include "tools/commands/verdict.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"
#include "tools/report/lines.h"
#include "tools/report/report.h"
#include "tools/report/run.h"
#include "tools/report/step.h"
#include "tools/report/step_numbers.h"
#include "tools/report/sweep.h"
#include "tools/report/values.h"
#include "tools/report/version.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kSchema = 1;

Json json_of_rows(const std::vector<Row>& rows) {
  Json json = Json::array();
  for (const Row& row : rows) {
    json.push_back({{"component", name_of(row.component)},
                    {"name", row.name},
                    {"elements", row.elements},
                    {"dtype", name_of(row.dtype)},
                    {"bytes", row.bytes},
                    {"copies", row.copies},
                    {"total_bytes", row.total_bytes()},
                    {"born", row.born.name},
                    {"dies", row.dies.name},
                    {"in_allocator", row.in_allocator},
                    {"origin", name_of(row.origin)},
                    {"formula", row.formula}});
  }
  return json;
}

Json json_of(const StageMemory& stage, Detail detail) {
  Json components;
  for (std::size_t i = 0; i < stage.components.size(); ++i) {
    components[std::string(kComponentNames[i])] = stage.components[i];
  }
  Json moments = Json::array();
  for (const Moment& moment : stage.moments) {
    moments.push_back({{"name", moment.name}, {"allocated", moment.allocated_bytes}});
  }
  Json json = {{"stage", stage.pp_rank},
               {"num_layers", stage.num_layers},
               {"parameters", stage.parameters},
               {"peak_allocated", stage.allocated_bytes},
               {"peak_reserved", stage.reserved_bytes},
               {"required", stage.required_bytes},
               {"device_used", stage.device_used_bytes},
               {"outside", stage.outside_bytes},
               {"after_init", stage.built_bytes},
               {"state", stage.state_bytes},
               {"first_step_allocated", stage.first_step_bytes},
               {"steady_allocated", stage.steady_bytes},
               {"components", components},
               {"peak_moment", stage.peak_moment()},
               {"moments", moments}};
  if (detail == Detail::kRows) {
    json["rows"] = json_of_rows(stage.rows);
  }
  return json;
}

Json json_of(const StepTime& time) {
  Json json;
  for (const StepTimePart& part : kStepTimeParts) {
    json[std::string(part.name)] = time.*part.seconds;
  }
  return json;
}

// The `predicted` object of a case line.
Json json_of(const Prediction& prediction, Detail detail) {
  Json json = {{"status", name_of(prediction.status)}, {"reason", prediction.reason}};
  if (!prediction.has_numbers()) {
    json["verdict"] = verdict_name(prediction);
    return json;
  }
  if (prediction.judged) {
    json["verdict"] = verdict_name(prediction);
    json["rule"] = rule_json(*prediction.judged);
    json["left"] = prediction.judged->left_bytes;
  }
  json["stages"] = Json::array();
  for (const StageMemory& stage : prediction.memory.stages) {
    json["stages"].push_back(json_of(stage, detail));
  }
  json["worst_stage"] = prediction.memory.worst_stage;
  json["step_time_s"] = prediction.time.total_s;
  json["tokens_per_s_per_gpu"] = prediction.time.tokens_per_s_per_gpu;
  json["mfu"] = prediction.time.mfu;
  json["mfu_peak"] = prediction.time.mfu_peak;
  json["calibrated"] = prediction.time.calibrated;
  json["step_time_parts_s"] = json_of(prediction.time);
  return json;
}

Json json_of(const std::vector<StatedAssumption>& assumptions) {
  Json json = Json::array();
  for (const StatedAssumption& assumption : assumptions) {
    json.push_back({{"text", assumption.text},
                    {"kind", name_of(assumption.kind)},
                    {"decides", assumption.decides}});
  }
  return json;
}

Json head_of(const char* command, const Job& job) {
  Json head = {
      {"schema", kSchema},
      {"program", kVersionText},
      {"command", command},
      {"model",
       {{"name", job.model.name},
        {"family", job.model.family},
        {"parameters", job.model.vocab > 0 ? Json(count_parameters(job.model)) : Json(nullptr)},
        {"mtp_parameters", count_mtp_parameters(job.model)}}},
      {"cluster",
       {{"name", job.cluster.name},
        {"gpu", job.cluster.gpu.id},
        {"gpus", job.cluster.world_size()},
        {"nominal_memory", nominal_capacity_bytes(job.cluster)},
        {"device_memory", device_capacity_bytes(job.cluster)}}},
      {"framework", job.profile.name},
      {"framework_version", job.profile.version},
      {"sequence_length", job.sequence_length},
      {"global_batch", job.global_batch}};
  add_tuning(head, job);
  return head;
}

// Of a job, whatever its plan.
Json json_of(const MemoryRule& rule, const Job& job) {
  return {{"threshold", rule.threshold},
          {"basis", name_of(rule.basis)},
          {"limit", memory_limit_bytes(job.cluster, rule)}};
}

Json json_of_ranked(const SearchReport& report, const RankedPlan& ranked, std::int64_t rank) {
  Plan plan = ranked.plan;
  plan.dp = data_parallel_size(report.job, plan);
  const Prediction prediction = {.status = status_of(ranked.memory.fit),
                                 .reason = fit_reason(report.job, ranked.memory),
                                 .memory = ranked.memory,
                                 .time = ranked.time,
                                 .judged = judge_memory(report.job, ranked.memory, report.rule)};
  Json json = {{"rank", rank},
               {"micro_batch", plan.micro_batch},
               {"precision", name_of(plan.precision)},
               {"plan", plan_json(plan)},
               {"peak_allocated", basis_bytes(ranked.memory, MemoryBasis::kAllocated)},
               {"device_used", basis_bytes(ranked.memory, MemoryBasis::kDeviceUsed)},
               {"exceeds_device", ranked.exceeds_device},
               {"tied_group", ranked.tied_group}};
  json.update(json_of(prediction, Detail::kTotals));
  json["command"] = report.command_of(ranked.plan);
  return json;
}

Json json_of(const SupportedInterval& interval) {
  return {{"quantity", name_of(interval.quantity)},
          {"runs", interval.num_runs},
          {"least_error", interval.least_error},
          {"most_error", interval.most_error},
          {"low", interval.low_bytes},
          {"high", interval.high_bytes}};
}

Json json_of(const Evidence& evidence) {
  Json json = {
      {"measured_runs", evidence.num_runs},
      {"nearest", Json::array()},
      {"intervals", Json::array()},
      {"not_covered", evidence.uncovered},
      {"beyond_measured", evidence.beyond},
      {"constants", Json::array()},
      {"rates_measured", evidence.rates_measured},
      {"near_card", {{"lived", evidence.near_card.lived}, {"died", evidence.near_card.died}}}};
  for (const NearRun& run : evidence.nearest) {
    json["nearest"].push_back({{"set", run.set}, {"id", run.id}, {"distance", run.distance}});
  }
  for (const SupportedInterval& interval : evidence.intervals) {
    json["intervals"].push_back(json_of(interval));
  }
  for (const ConstantRows& rows : evidence.constants) {
    json["constants"].push_back(
        {{"origin", name_of(rows.origin)}, {"bytes", rows.bytes}, {"rows", rows.rows}});
  }
  return json;
}

Json json_of_smallest(const SearchReport& report) {
  const SearchResult& result = report.result;
  return {{"plan", plan_json(result.smallest)},
          {"micro_batch", result.smallest.micro_batch},
          {"peak_allocated", result.smallest_price.allocated_bytes},
          {"device_used_at_most", result.smallest_price.device_used_bytes},
          {"command", report.command_of(result.smallest)}};
}

Json json_of(const GivenRun& run) {
  Json json = {{"file", run.file}, {"settings", Json::array()}};
  for (const auto& row : kSettingEffects) {
    json[std::string(row.name)] = num_settings(run, row.value);
  }
  for (const SettingUse& use : run.reading.uses) {
    json["settings"].push_back({{"name", use.name},
                                {"value", use.value},
                                {"effect", name_of(use.effect)},
                                {"meaning", use.meaning}});
  }
  return json;
}

}  // namespace

std::string estimate_json(const EstimateReport& report) {
  const Job& job = report.question.job;
  Plan plan = report.question.plan;
  Json json = head_of("estimate", job);
  if (report.prediction.has_numbers()) {
    plan.dp = data_parallel_size(job, plan);
    json["num_microbatches"] = num_microbatches(job, plan);
  }
  if (!report.network.empty()) {
    json["network"] = report.network;
  }
  json["micro_batch"] = plan.micro_batch;
  json["precision"] = name_of(plan.precision);
  json["plan"] = plan_json(plan);
  json["given"] = report.question.given;
  if (report.question.run) {
    json["from"] = json_of(*report.question.run);
  }
  if (report.maximum) {
    json["find_max"] = {{"name", report.maximum->name},
                        {"value", report.maximum->value},
                        {"fits", report.maximum->fits}};
    if (report.maximum->next > 0) {
      json["find_max"]["next"] = report.maximum->next;
      json["find_max"]["why_not"] = report.maximum->why_not;
    }
  }
  json["predicted"] = json_of(report.prediction, report.detail);
  if (report.nearest) {
    json["without"] = {{"settings", report.nearest->left_out},
                       {"command", report.nearest->command},
                       {"predicted", json_of(report.nearest->prediction, Detail::kTotals)}};
  }
  if (report.prediction.has_numbers()) {
    json["memory_rule"] = json_of(report.rule, job);
    json["memory_rule"]["kept"] = check_rule(job, report.prediction.memory, report.rule).kept();
    if (const std::int64_t bytes = host_bytes(job, plan); bytes > 0) {
      json["host_bytes_per_rank"] = bytes;
    }
    json["assumptions"] = json_of(report.assumptions);
    json["not_counted"] = report.prediction.memory.not_counted;
    if (report.evidence) {
      json["evidence"] = json_of(*report.evidence);
    }
  }
  if (report.account) {
    json["step_account"] = {{"stage", report.account->pp_rank},
                            {"total_s", report.account->total_s},
                            {"rows", rows_of(account_table(*report.account))},
                            {"numbers", numbers_json(report.numbers)}};
  }
  if (report.limit) {
    json["step_limit"] = {{"total_s", report.limit->limit.total_s},
                          {"rows", rows_of(limit_table(*report.limit))}};
  }
  if (report.cost) {
    json["training"] = rows_of(cost_table(*report.cost)).front();
  }
  json["warnings"] = report.question.warnings;
  return one_line_of(json);
}

std::string search_json(const SearchReport& report) {
  const SearchResult& result = report.result;
  Json json = head_of("search", report.job);
  json["verdict"] = report.verdict;
  json["network"] = report.network;
  json["memory_rule"] = json_of(report.rule, report.job);
  json["plans_in_space"] = result.plans_in_space;
  json["plans_priced"] = result.plans_priced;
  json["plans_fitting"] = result.plans_fitting;
  json["plans_distinct"] = result.plans_distinct;
  json["pruned"] = Json::array();
  for (const RuleCount& count : result.pruned) {
    json["pruned"].push_back({{"rule", count.rule}, {"plans", count.plans}});
  }
  json["top"] = Json::array();
  std::int64_t rank = 0;
  for (const RankedPlan& ranked : result.top) {
    json["top"].push_back(json_of_ranked(report, ranked, ++rank));
  }
  if (report.options.pareto) {
    json["pareto"] = Json::array();
    for (const ParetoPoint& point : result.pareto) {
      json["pareto"].push_back({{"plan", plan_json(point.plan)},
                                {"micro_batch", point.plan.micro_batch},
                                {"peak_allocated", point.price.allocated_bytes},
                                {"step_time_s", point.price.step_time_s},
                                {"tokens_per_s_per_gpu", point.price.tokens_per_s_per_gpu},
                                {"command", report.command_of(point.plan)}});
    }
  }
  if (!report.result.top.empty()) {
    json["picked"] = report.picked + 1;
    json["assumptions"] = json_of(report.assumptions);
  }
  if (report.simplest) {
    json["simplest_tied"] = {
        {"fix", report.simplest->fixes},
        {"plan", plan_json(report.simplest->ranked.plan)},
        {"tokens_per_s_per_gpu", report.simplest->ranked.time.tokens_per_s_per_gpu},
        {"command", report.command_of(report.simplest->ranked.plan)}};
  }
  if (report.switches) {
    json["faster_with"] = {{"options", report.switches->options},
                           {"step_time_s", report.switches->step_time_s}};
  }
  if (report.evidence) {
    json["evidence"] = json_of(*report.evidence);
  }
  if (!report.reason.empty()) {
    json["reason"] = report.reason;
  }
  for (const OtherSize& size : report.other_sizes) {
    json["other_sizes"].push_back({{"option", size.option},
                                   {"num_gpus", size.num_gpus},
                                   {"global_batch", size.global_batch},
                                   {"tokens_per_s_per_gpu", size.tokens_per_s_per_gpu},
                                   {"tokens_per_s", size.tokens_per_s}});
  }
  if (report.faster_over) {
    json["fastest_over"] = {
        {"plan", plan_json(report.faster_over->plan)},
        {"tokens_per_s_per_gpu", report.faster_over->time.tokens_per_s_per_gpu},
        {"device_used", basis_bytes(report.faster_over->memory, MemoryBasis::kDeviceUsed)},
        {"command", report.command_of(report.faster_over->plan)}};
  }
  if (result.plans_fitting == 0 && result.plans_distinct > 0) {
    json["smallest"] = json_of_smallest(report);
  }
  return one_line_of(json);
}

std::string batch_json(const BatchAnswer& answer) {
  return one_line_of({{"schema", kSchema},
                      {"id", answer.id},
                      {"line", answer.line},
                      {"framework", answer.framework},
                      {"predicted", json_of(answer.prediction, Detail::kTotals)}});
}

std::string table_json(const Table& table) {
  return one_line_of(rows_of(table));
}

}  // namespace shardplan
