#include "tools/report/why_oom.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/commands/verdict.h"
#include "tools/commands/why_oom.h"
#include "tools/report/csv.h"
#include "tools/report/table.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr MemoryRule kDefaultRule;  // no option asks for another

std::string list_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return text;
}

std::int64_t capacity_of(const WhyOomReport& report) {
  return device_capacity_bytes(report.question.job.cluster);
}

// The optimizer's moments are there from the second step on.
bool has_whole_steps(const OomEvent& event) {
  return event.last_step.value_or(0) >= 2;
}

constexpr std::size_t kShownMatches = 12;

std::string match_table(const OomDiagnosis& diagnosis) {
  if (diagnosis.small_rows > 0) {
    return "  small tensors share segments of this size (" + grouped(diagnosis.small_rows) +
           " rows): the message says that memory was full, not which tensor is to blame\n";
  }
  if (diagnosis.matches.empty() && diagnosis.eager_score_bytes > 0) {
    return "";
  }
  if (diagnosis.matches.empty()) {
    return "  no match: no tensor of this estimate has that size; the run's arguments may differ "
           "from these, or\n  the tensor is not one that the profile counts\n";
  }
  Table table = {.columns = {"stage", "row", "bytes", "made at", "moment", "allocated there",
                             "with all outside", "capacity"}};
  for (std::size_t i = 0; i < std::min(kShownMatches, diagnosis.matches.size()); ++i) {
    const RowMatch& match = diagnosis.matches[i];
    const bool reaches = match.device_bytes > diagnosis.capacity_bytes;
    table.rows.push_back({match.stage, match.row, match.bytes, match.born, match.levels.moment,
                          gib(match.levels.highest), gib(match.device_bytes),
                          std::string(reaches ? "exceeded" : "not reached")});
  }
  std::string text = table_text(table);
  if (diagnosis.matches.size() > kShownMatches) {
    text += "  and " + std::to_string(diagnosis.matches.size() - kShownMatches) + " more\n";
  }
  return text;
}

std::string change_table(const WhyOomReport& report) {
  if (report.changes.empty()) {
    return "\nNone of " + grouped(report.changes_tried) +
           " changes tried (one or two at a time) fits; `shardplan search` looks at all plans\n";
  }
  Table table = {.columns = {"verdict", "device used", "step s", "change"}};
  constexpr std::size_t kShown = 10;
  const std::int64_t world = report.question.job.cluster.world_size();
  for (std::size_t i = 0; i < report.changes.size(); ++i) {
    const PlanChange& change = report.changes[i];
    if (i >= kShown && change.judged.job.cluster.world_size() == world) {
      continue;
    }
    const MemoryEstimate& memory = change.judged.memory;
    const StageMemory& worst = memory.stages.at(static_cast<std::size_t>(memory.worst_stage));
    table.rows.push_back({std::string(name_of(verdict_of(change.judged.job, memory, kDefaultRule))),
                          gib(worst.device_used_bytes), fixed(change.judged.time.total_s, 3),
                          change.text});
  }
  const bool fits_already = !is_negative(report.prediction.status);
  return std::string(fits_already ? "\nChanges that use less" : "\nChanges that avoid it") +
         ", each estimated at " + gib(capacity_of(report)) + " GiB (now " +
         fixed(report.prediction.time.total_s, 3) + " s a step); " +
         grouped(std::ssize(report.changes)) + " of " + grouped(report.changes_tried) + " tried\n" +
         table_text(table) + oom_settings(report);
}

Json json_of(const OomEvent& event) {
  Json json = {{"line", event.line}, {"repeats", event.repeats}};
  const auto add = [&json](const char* name, const std::optional<PrintedBytes>& size) {
    json[name] = size ? Json(size->text) : Json(nullptr);
  };
  json["gpu"] = event.gpu ? Json(*event.gpu) : Json(nullptr);
  json["last_step"] = event.last_step ? Json(*event.last_step) : Json(nullptr);
  add("tried", event.tried);
  json["outside"] = event.outside;
  add("capacity", event.capacity);
  add("free", event.free);
  add("process", event.process);
  json["other_processes"] = event.num_others;
  json["other_processes_bytes"] = event.others_bytes;
  add("allocated", event.allocated);
  add("reserved", event.reserved);
  return json;
}

Json json_of(const RowMatch& match, std::int64_t capacity_bytes) {
  return {{"stage", match.stage},
          {"component", name_of(match.component)},
          {"row", match.row},
          {"bytes", match.bytes},
          {"by_segment", match.by_segment},
          {"born", match.born},
          {"moment", match.levels.moment},
          {"allocated", match.levels.highest},
          {"device_used", match.device_bytes},
          {"exceeds_capacity", match.device_bytes > capacity_bytes}};
}

}  // namespace

// The first change in the words of the run's own files; "" where the framework has none.
std::string oom_settings(const WhyOomReport& report) {
  std::string text;
  if (!report.changes.empty()) {
    for (const std::string& setting : report.changes.front().settings) {
      text += (text.empty() ? "in its files: " : ", ") + setting;
    }
  }
  return text.empty() ? text : text + "\n";
}

// "rank 0, 1 (stage 0), GPU 1, in the step after 12, tried to allocate 2.00 GiB"
std::string oom_headline(const OomDiagnosis& diagnosis) {
  const OomEvent& event = diagnosis.event;
  std::string text = "line " + grouped(event.line) + ": ";
  text += diagnosis.ranks.empty() ? "a rank that the log does not name"
                                  : "rank " + list_of(diagnosis.ranks);
  text += " (stage " + list_of(diagnosis.stages) + ") ";
  text += event.tried ? "could not allocate a segment of " + event.tried->text
                      : "ran out of memory in " + event.outside + ", outside PyTorch's allocator";
  text += event.last_step ? ", after step " + grouped(*event.last_step)
                          : ", before the log reports a step";
  return text + "\n";
}

std::string oom_held(const OomDiagnosis& diagnosis, const WhyOomReport& report) {
  const OomEvent& event = diagnosis.event;
  std::string text;
  if (event.capacity && !event.capacity->covers(report.cluster_capacity_bytes)) {
    text += "  the log's GPU has " + event.capacity->text + ", those of the cluster asked for " +
            gib(report.cluster_capacity_bytes) + " GiB\n";
  }
  if (event.allocated) {
    text += "  the log: allocated " + event.allocated->text;
    if (event.reserved) {
      const std::int64_t cached = event.reserved->middle() - event.allocated->middle();
      text += ", cached " + gib(std::max<std::int64_t>(cached, 0)) + " GiB";
    }
    // Some drivers and containers print 0 bytes for the process.
    if (event.process && event.reserved && event.process->middle() >= event.reserved->middle()) {
      text +=
          ", outside PyTorch " + gib(event.process->middle() - event.reserved->middle()) + " GiB";
    }
    text += event.capacity ? ", of " + event.capacity->text + "\n" : "\n";
  }
  if (event.num_others > 0) {
    text += "  " + grouped(event.num_others) + " other processes hold " + gib(event.others_bytes) +
            " GiB of this GPU: of it the run could have " + gib(diagnosis.capacity_bytes) +
            " GiB at most\n";
  }
  for (const std::int64_t stage : diagnosis.stages) {
    const StageMemory& memory = diagnosis.memory.stages.at(static_cast<std::size_t>(stage));
    text += "  estimate: stage " + std::to_string(stage) + " allocates " +
            gib(memory.allocated_bytes) + " GiB at '" + memory.peak_moment() + "', reserves " +
            gib(memory.reserved_bytes) + ", outside PyTorch " + gib(memory.outside_bytes) +
            ": device used " + gib(memory.device_used_bytes) + " of " +
            gib(diagnosis.capacity_bytes) + " GiB\n";
  }
  return text;
}

// What the log itself says of the cause.
std::string oom_causes(const OomDiagnosis& diagnosis, const WhyOomReport& report) {
  const OomEvent& event = diagnosis.event;
  const Job& job = report.question.job;
  std::string text;
  if (event.allocated) {
    std::int64_t most = 0;
    for (const std::int64_t stage : diagnosis.stages) {
      const StageMemory& memory = diagnosis.memory.stages.at(static_cast<std::size_t>(stage));
      most = std::max(most, memory.allocated_bytes);
    }
    if (event.allocated->low > most + most / 50) {
      text +=
          "  the log allocates more than the estimate ever does there: the run has other "
          "arguments than these, or\n  tensors that the profile does not count\n";
    }
  }
  if (event.tried && event.allocated && event.reserved &&
      event.reserved->low - event.allocated->high >= event.tried->high &&
      job.profile.allocator != AllocatorKind::kCachingExpandable) {
    text +=
        "  cached is more than was asked for, but in pieces: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins them\n";
  }
  if (has_whole_steps(event)) {
    text +=
        "  steps before went through and allocate alike: look for what is new or grows, such as "
        "evaluation, a checkpoint,\n  cached pieces, other processes" +
        std::string(job.model.moe.num_experts > 0 ? " or tokens that crowd at few experts" : "") +
        "\n";
  }
  return text;
}

std::string oom_eager(const OomDiagnosis& diagnosis, const WhyOomReport& report) {
  if (diagnosis.eager_score_bytes == 0) {
    return "";
  }
  const Job& job = report.question.job;
  const std::string sequence = grouped(job.sequence_length);
  return "  attention scores have that size: " + grouped(job.model.num_heads) + " heads x " +
         sequence + " x " + sequence + " x " + grouped(diagnosis.eager_score_bytes) +
         " bytes x micro_batch " + grouped(report.question.plan.micro_batch) +
         ". transformers' eager\n  attention keeps them, in every layer; the estimate is of SDPA, "
         "which keeps none: attn_implementation=\"sdpa\"\n";
}

std::string oom_verdict(const WhyOomReport& report) {
  switch (report.prediction.status) {
    case PredictedStatus::kDoesNotFit:
      if (std::ranges::any_of(report.diagnoses, [](const OomDiagnosis& diagnosis) {
            return has_whole_steps(diagnosis.event);
          })) {
        return "By the estimate no step fits, though some went through: it counts too much, or the "
               "run asks for less than\nthese arguments. " +
               report.prediction.reason + "\n";
      }
      return "The estimate agrees: the plan does not fit. " + report.prediction.reason + "\n";
    case PredictedStatus::kTight:
      return "The estimate calls the plan tight: it fits only if the allocator gives memory back "
             "in time.\n";
    default:
      return "By the estimate the plan fits. What it does not count, or arguments that differ from "
             "these, must\nexplain the failure: compare what lies outside PyTorch, and what is "
             "cached, with the log.\n";
  }
}

std::string oom_absence(const WhyOomReport& report) {
  const std::string host =
      report.host_oom_line == 0
          ? ""
          : "; line " + grouped(report.host_oom_line) +
                " tells of a process that the host ended, as it does when its own memory is "
                "full: this\nestimate counts GPU memory only; look at checkpoints, data loading "
                "and offloaded state";
  const std::string size =
      report.wrong_size_line == 0
          ? ""
          : "; line " + grouped(report.wrong_size_line) +
                " asks for more than 1 EB: that size is wrong, as after an integer overflow or "
                "where ranks meet\nin different collectives, and memory is not short: no plan "
                "helps";
  return "no match: " + one_line(report.log) + " has no out-of-memory message of a GPU" + host +
         size + "\n";
}

std::string why_oom_text(const WhyOomReport& report) {
  if (report.diagnoses.empty()) {
    return oom_absence(report);
  }
  std::string text = oom_verdict(report);
  for (const OomDiagnosis& diagnosis : report.diagnoses) {
    text += "\n";
    text += oom_headline(diagnosis) + oom_held(diagnosis, report) + oom_causes(diagnosis, report) +
            oom_eager(diagnosis, report) + match_table(diagnosis);
  }
  return text + change_table(report);
}

std::string why_oom_csv(const WhyOomReport& report) {
  Table table = {.columns = {"line", "ranks", "last_step", "tried", "stage", "component", "row",
                             "bytes", "by_segment", "born", "moment", "allocated", "device_used",
                             "exceeds_capacity"}};
  for (const OomDiagnosis& diagnosis : report.diagnoses) {
    const OomEvent& event = diagnosis.event;
    std::vector<Cell> start = {event.line, list_of(diagnosis.ranks)};
    event.last_step ? start.emplace_back(*event.last_step) : start.emplace_back();
    start.emplace_back(event.tried ? event.tried->text : event.outside);
    for (const RowMatch& match : diagnosis.matches) {
      std::vector<Cell> row = start;
      row.emplace_back(match.stage);
      row.emplace_back(std::string(name_of(match.component)));
      row.emplace_back(match.row);
      row.emplace_back(match.bytes);
      row.emplace_back(std::int64_t{match.by_segment ? 1 : 0});
      row.emplace_back(match.born);
      row.emplace_back(match.levels.moment);
      row.emplace_back(match.levels.highest);
      row.emplace_back(match.device_bytes);
      row.emplace_back(std::int64_t{match.device_bytes > diagnosis.capacity_bytes ? 1 : 0});
      table.rows.push_back(std::move(row));
    }
    if (diagnosis.matches.empty()) {
      start.resize(table.columns.size());
      table.rows.push_back(std::move(start));
    }
  }
  return csv_text(table);
}

std::string why_oom_json(const WhyOomReport& report) {
  Json json = {{"command", "why-oom"},
               {"capacity", capacity_of(report)},
               {"cluster_capacity", report.cluster_capacity_bytes},
               {"status", name_of(report.prediction.status)},
               {"verdict", verdict_name(report.prediction)},
               {"rule", rule_json(report.prediction.judged.value())},
               {"host_oom_line", report.host_oom_line},
               {"wrong_size_line", report.wrong_size_line},
               {"failures", Json::array()},
               {"changes_tried", report.changes_tried},
               {"changes", Json::array()}};
  for (const OomDiagnosis& diagnosis : report.diagnoses) {
    Json failure = json_of(diagnosis.event);
    failure["ranks"] = diagnosis.ranks;
    failure["stages"] = diagnosis.stages;
    failure["capacity_bytes"] = diagnosis.capacity_bytes;
    failure["eager_score_bytes"] = diagnosis.eager_score_bytes;
    failure["small_rows"] = diagnosis.small_rows;
    failure["matches"] = Json::array();
    for (const RowMatch& match : diagnosis.matches) {
      failure["matches"].push_back(json_of(match, diagnosis.capacity_bytes));
    }
    json["failures"].push_back(std::move(failure));
  }
  for (const PlanChange& change : report.changes) {
    const MemoryEstimate& memory = change.judged.memory;
    const StageMemory& worst = memory.stages.at(static_cast<std::size_t>(memory.worst_stage));
    const Judgement judged = judge_memory(change.judged.job, memory, kDefaultRule);
    json["changes"].push_back({{"change", change.text},
                               {"status", name_of(status_of(memory.fit))},
                               {"verdict", name_of(judged.verdict)},
                               {"rule", rule_json(judged)},
                               {"device_used", worst.device_used_bytes},
                               {"step_time_s", change.judged.time.total_s},
                               {"settings", change.settings}});
  }
  return one_line_of(json);
}

}  // namespace shardplan
