#include "tools/report/advise.h"

#include <nlohmann/json.hpp>

#include "tools/commands/advise.h"
#include "tools/commands/verdict.h"
#include "tools/options/command_words.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"
#include "tools/report/lines.h"
#include "tools/report/report.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {

std::string speed_change(double ratio) {
  std::string text = fixed((ratio - 1) * 100, 1) + " %";
  if (ratio >= 1) {
    text.insert(text.begin(), '+');
  }
  return text;
}

Judgement judged(const AdviseReport& report, const JudgedPlan& plan) {
  return judge_memory(plan.job, plan.memory, report.rule);
}

namespace {

using Json = nlohmann::ordered_json;

MemoryBasis basis_of(const AdviseReport& report) {
  return report.rule.is_asked ? report.rule.basis : MemoryBasis::kDeviceUsed;
}

std::string signed_gib(std::int64_t bytes) {
  std::string text = gib(bytes < 0 ? -bytes : bytes);
  if (bytes != 0) {
    text.insert(text.begin(), bytes > 0 ? '+' : '-');
  }
  return text;
}

// " tight": what is not simply that it fits.
std::string verdict_mark(const AdviseReport& report, const JudgedPlan& plan) {
  const MemoryVerdict verdict = judged(report, plan).verdict;
  return verdict == MemoryVerdict::kFits || verdict == MemoryVerdict::kDoesNotFit
             ? ""
             : " " + std::string(name_of(verdict));
}

std::string changes_of(const AdviseReport& report, const Advice& advice) {
  const JudgedPlan& changed = advice.changed;
  return difference_text(report.question.job, report.question.plan, changed.job, changed.plan);
}

std::string advice_table(const AdviseReport& report, const std::vector<Advice>& list) {
  Table table = {
      .columns = {"tokens/s/GPU", "speed", "frees GiB", "allocated", "device used", "change"}};
  for (const Advice& advice : list) {
    const JudgedPlan& changed = advice.changed;
    const bool compared = report.result.base_valid;
    std::string used = gib(basis_bytes(changed.memory, MemoryBasis::kDeviceUsed));
    used.append(verdict_mark(report, changed));
    table.rows.push_back({whole(changed.time.tokens_per_s_per_gpu),
                          compared ? speed_change(advice.speed_ratio) : "",
                          compared ? signed_gib(advice.freed_bytes) : "",
                          gib(basis_bytes(changed.memory, MemoryBasis::kAllocated)), used,
                          changes_of(report, advice)});
  }
  return table_text(table);
}

std::string base_line(const AdviseReport& report, const Paint& paint) {
  const AdviceResult& result = report.result;
  if (!result.base_valid) {
    return paint(Colour::kRed, verdict_words(report.prediction)) + "  " +
           one_line(report.prediction.reason) + "\n";
  }
  const JudgedPlan& base = result.base;
  const bool is_tight = base.memory.fit == Fit::kTight;
  return paint(verdict_colour(report.prediction), verdict_words(report.prediction)) +
         "  allocated " + gib(basis_bytes(base.memory, MemoryBasis::kAllocated)) +
         ", device used " + gib(basis_bytes(base.memory, MemoryBasis::kDeviceUsed)) + " of " +
         gib(device_capacity_bytes(base.job.cluster)) + " GiB, " +
         whole(base.time.tokens_per_s_per_gpu) + " tokens/s per GPU" +
         (is_tight ? "; runs only if the allocator gives cached memory back, which is slow" : "") +
         "\n";
}

std::string counts_line(const AdviceResult& result) {
  return grouped(result.singles_tried) + " single changes tried, " +
         grouped(result.singles_invalid) + " of them invalid; " + grouped(result.pairs_tried) +
         " pairs, " + grouped(result.pairs_invalid) + " invalid\n";
}

// The options that take the place of those of the question, or join them.
std::string options_of(const AdviseReport& report, const JudgedPlan& changed) {
  const Plan& before = report.question.plan;
  const Plan plan = plan_with_stated_dp(before, changed);
  std::string text = options_of_plan(plan, with_open_etp(changed.job, before));
  if (report.question.microbatches_given) {
    text.append(" --num-microbatches ").append(std::to_string(num_microbatches(changed.job, plan)));
  }
  return text + framework_options_that_differ(report.question.job.profile, changed.job.profile);
}

Json advice_json(const AdviseReport& report, const Advice& advice) {
  const JudgedPlan& changed = advice.changed;
  Json json = {{"change", changes_of(report, advice)},
               {"options", options_of(report, changed)},
               {"command", command_of(report, changed)},
               {"fits", changed.fits},
               {"verdict", name_of(judged(report, changed).verdict)},
               {"status", name_of(status_of(changed.memory.fit))},
               {"rule", rule_json(judged(report, changed))},
               {"tokens_per_s_per_gpu", changed.time.tokens_per_s_per_gpu},
               {"step_time_s", changed.time.total_s},
               {"peak_allocated", basis_bytes(changed.memory, MemoryBasis::kAllocated)},
               {"device_used", basis_bytes(changed.memory, MemoryBasis::kDeviceUsed)}};
  if (report.result.base_valid) {
    json["speed_ratio"] = advice.speed_ratio;
    json["freed_bytes"] = advice.freed_bytes;
  }
  return json;
}

Json list_json(const AdviseReport& report, const std::vector<Advice>& list) {
  Json json = Json::array();
  for (const Advice& advice : list) { json.push_back(advice_json(report, advice)); }
  return json;
}

}  // namespace

std::string command_of(const AdviseReport& report, const JudgedPlan& changed) {
  return command_text(with_option_words(report.options, options_of(report, changed)), "estimate");
}

std::string advise_text(const AdviseReport& report, const Paint& paint) {
  const AdviceResult& result = report.result;
  const bool fits = result.base_valid && result.base.fits;
  const std::string goal = fits ? "faster" : "fit";
  std::string text = base_line(report, paint) + counts_line(result) + "\"frees\" is of " +
                     std::string(name_of(basis_of(report))) +
                     ", every change was estimated in full\n\n";
  if (result.singles.empty()) {
    text += fits ? "No single change makes it faster.\n" : "No single change makes it fit.\n";
  } else {
    text += "Single changes that make it " + goal + ", the fastest first\n" +
            advice_table(report, result.singles);
  }
  if (!result.pairs.empty()) {
    text += (result.singles.empty() ? "\nPairs of changes that make it " + goal
                                    : std::string("\nPairs of changes that are faster still")) +
            "\n" + advice_table(report, result.pairs);
  } else if (result.singles.empty()) {
    text += fits ? "No pair does either.\n" : "No pair of changes does either.\n";
  }
  if (!result.nearest.empty()) {
    text += "\nWhat comes nearest\n" + advice_table(report, result.nearest);
  }
  return text;
}

Table advise_table(const AdviseReport& report) {
  Table table = {.columns = {"kind", "change", "fits", "verdict", "tokens_per_s_per_gpu",
                             "speed_ratio", "freed_bytes", "peak_allocated", "device_used",
                             "options"}};
  const auto add = [&](const char* kind, const std::vector<Advice>& list) {
    for (const Advice& advice : list) {
      const JudgedPlan& changed = advice.changed;
      std::vector<Cell> row = {
          std::string(kind), changes_of(report, advice), std::string(changed.fits ? "yes" : "no"),
          std::string(name_of(judged(report, changed).verdict)), changed.time.tokens_per_s_per_gpu};
      if (report.result.base_valid) {
        row.emplace_back(advice.speed_ratio);
        row.emplace_back(advice.freed_bytes);
      } else {
        row.resize(row.size() + 2);
      }
      row.emplace_back(basis_bytes(changed.memory, MemoryBasis::kAllocated));
      row.emplace_back(basis_bytes(changed.memory, MemoryBasis::kDeviceUsed));
      row.emplace_back(options_of(report, changed));
      table.rows.push_back(std::move(row));
    }
  };
  add("single", report.result.singles);
  add("pair", report.result.pairs);
  add("nearest", report.result.nearest);
  return table;
}

std::string advise_json(const AdviseReport& report) {
  const AdviceResult& result = report.result;
  Json root = {{"schema", 1},
               {"valid", result.base_valid},
               {"status", name_of(report.prediction.status)},
               {"verdict", verdict_name(report.prediction)}};
  if (result.base_valid) {
    root["rule"] = rule_json(report.prediction.judged.value());
    root["left"] = report.prediction.judged->left_bytes;
    root["fits"] = result.base.fits;
    root["tokens_per_s_per_gpu"] = result.base.time.tokens_per_s_per_gpu;
    root["peak_allocated"] = basis_bytes(result.base.memory, MemoryBasis::kAllocated);
    root["device_used"] = basis_bytes(result.base.memory, MemoryBasis::kDeviceUsed);
  } else {
    root["reason"] = report.prediction.reason;
  }
  root["freed_bytes_of"] = name_of(basis_of(report));
  root["singles"] = list_json(report, result.singles);
  root["pairs"] = list_json(report, result.pairs);
  root["nearest"] = list_json(report, result.nearest);
  root["tried"] = {{"singles", result.singles_tried},
                   {"singles_invalid", result.singles_invalid},
                   {"pairs", result.pairs_tried},
                   {"pairs_invalid", result.pairs_invalid}};
  if (!report.scaling.empty()) {
    root["scaling"] = rows_of(scaling_csv_table(report));
  }
  return one_line_of(root);
}

// --- scaling ------------------------------------------------------------------------------------

namespace {

std::string heading(ScalingAxis axis) {
  switch (axis) {
    case ScalingAxis::kTp:
    case ScalingAxis::kCp:
    case ScalingAxis::kPp: return "; the number of GPUs grows with it";
    case ScalingAxis::kDp: return "; the number of GPUs grows with it, the global batch stays";
    case ScalingAxis::kEp: return "; the number of GPUs stays";
    case ScalingAxis::kZero: return "";
    case ScalingAxis::kMicroBatch: return "; the global batch stays";
    case ScalingAxis::kSequenceLength: return "; as many sequences per step as before";
  }
  return "";
}

std::string scaling_words(Fit fit) {
  return fit == Fit::kFits ? "fits" : fit == Fit::kTight ? "tight" : "no";
}

std::vector<Cell> scaling_row(const ScalingPoint& point) {
  std::vector<Cell> row = {grouped(point.value) + (point.is_own ? "*" : ""), point.num_gpus};
  if (!point.invalid.empty()) {
    row.resize(12);
    row.emplace_back(std::string("invalid"));
    row.emplace_back(one_line(point.invalid));
    return row;
  }
  for (const std::int64_t bytes : point.stage.components) { row.emplace_back(gib(bytes)); }
  row.emplace_back(gib(point.stage.device_used_bytes));
  row.emplace_back(whole(point.time.tokens_per_s_per_gpu));
  row.emplace_back(scaling_words(point.fit));
  row.emplace_back(point.largest_row + " " + gib(point.largest_row_bytes) + " at '" +
                   point.stage.peak_moment() + "'");
  return row;
}

// The first value in growing order that no longer fits after one that does, and what is largest
// there.
std::string breaking_line(const ScalingTable& table) {
  const ScalingPoint* last = nullptr;
  for (const ScalingPoint& point : table.points) {
    if (!point.invalid.empty()) {
      continue;
    }
    if (point.fit != Fit::kDoesNotFit) {
      last = &point;
    } else if (last != nullptr) {
      return "fits up to " + grouped(last->value) + "; at " + grouped(point.value) + " " +
             point.largest_row + " has " + gib(point.largest_row_bytes) + " GiB of the peak, " +
             gib(last->largest_row == point.largest_row ? last->largest_row_bytes : 0) +
             " before\n";
    }
  }
  return "";
}

std::vector<Cell> time_row(const ScalingPoint& point) {
  std::vector<Cell> row = {grouped(point.value) + (point.is_own ? "*" : "")};
  row.emplace_back(fixed(point.time.total_s, 3));
  for (const StepTimePart& part : kStepTimeParts) {
    row.emplace_back(fixed(point.time.*part.seconds, 3));
  }
  return row;
}

}  // namespace

std::string scaling_text(const AdviseReport& report) {
  if (report.scaling.empty()) {
    return "";
  }
  std::string text =
      "\nHow memory and time move along one axis, all else as in the plan (* its own value)\n";
  for (const ScalingTable& table : report.scaling) {
    Table memory = {.columns = {"value", "GPUs"}};
    for (const char* name : {"params", "grads", "optim", "activ", "temps", "comm", "workspace",
                             "context", "device used", "tokens/s/GPU", "verdict", "largest"}) {
      memory.columns.push_back(name);
    }
    Table time = {.columns = {"value", "step s", "compute", "recompute", "tp", "cp", "ep", "pp",
                              "dp", "bubble", "optimizer", "host"}};
    for (const ScalingPoint& point : table.points) {
      memory.rows.push_back(scaling_row(point));
      if (point.invalid.empty()) {
        time.rows.push_back(time_row(point));
      }
    }
    text.append("\n").append(name_of(table.axis)).append(heading(table.axis));
    text.append(": GiB of the fullest GPU at its peak\n").append(table_text(memory));
    text.append(breaking_line(table)).append("seconds of a step\n").append(table_text(time));
  }
  return text;
}

Table scaling_csv_table(const AdviseReport& report) {
  Table table = {.columns = {"axis", "value", "num_gpus", "is_own", "verdict", "reason"}};
  for (const std::string_view name : kComponentNames) { table.columns.emplace_back(name); }
  for (const char* name : {"peak_allocated", "device_used", "peak_moment", "largest_row",
                           "largest_row_bytes", "step_time_s"}) {
    table.columns.emplace_back(name);
  }
  for (const StepTimePart& part : kStepTimeParts) {
    table.columns.push_back(std::string(part.name) + "_s");
  }
  table.columns.emplace_back("tokens_per_s_per_gpu");
  for (const ScalingTable& axis : report.scaling) {
    for (const ScalingPoint& point : axis.points) {
      std::vector<Cell> row = {std::string(name_of(axis.axis)), point.value, point.num_gpus,
                               std::string(point.is_own ? "yes" : "no")};
      if (!point.invalid.empty()) {
        row.emplace_back(std::string("invalid"));
        row.emplace_back(point.invalid);
        row.resize(table.columns.size());
        table.rows.push_back(std::move(row));
        continue;
      }
      row.emplace_back(std::string(name_of(status_of(point.fit))));
      row.emplace_back();
      for (const std::int64_t bytes : point.stage.components) { row.emplace_back(bytes); }
      row.emplace_back(point.stage.allocated_bytes);
      row.emplace_back(point.stage.device_used_bytes);
      row.emplace_back(point.stage.peak_moment());
      row.emplace_back(point.largest_row);
      row.emplace_back(point.largest_row_bytes);
      row.emplace_back(point.time.total_s);
      for (const StepTimePart& part : kStepTimeParts) {
        row.emplace_back(point.time.*part.seconds);
      }
      row.emplace_back(point.time.tokens_per_s_per_gpu);
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace shardplan
