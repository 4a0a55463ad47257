#include "tools/report/estimate_table.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/units.h"
#include "estimator/time/kernel_time.h"
#include "tools/commands/verdict.h"
#include "tools/options/plan_words.h"
#include "tools/report/lines.h"
#include "tools/report/report.h"
#include "tools/report/run.h"
#include "tools/report/step.h"
#include "tools/report/step_numbers.h"
#include "tools/report/sweep.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

bool is_always_shown(std::string_view size) {
  return size == "tp" || size == "pp" || size == "zero" || size == "micro_batch";
}

std::vector<Cell> stage_row(const StageMemory& stage) {
  std::vector<Cell> row = {std::to_string(stage.pp_rank), std::to_string(stage.num_layers)};
  for (const std::int64_t bytes : stage.components) { row.push_back(gib(bytes)); }
  for (const std::int64_t bytes : {stage.allocated_bytes, stage.reserved_bytes,
                                   stage.required_bytes, stage.device_used_bytes}) {
    row.push_back(gib(bytes));
  }
  row.push_back(stage.peak_moment());
  return row;
}

std::string stage_table(const MemoryEstimate& memory) {
  Table table = {.columns = {"stage", "layers"}};
  for (const char* name :
       {"params", "grads", "optim", "activ", "temps", "comm", "workspace", "context", "allocated",
        "reserved", "required", "device used", "peak at"}) {
    table.columns.push_back(name);
  }
  for (const StageMemory& stage : memory.stages) { table.rows.push_back(stage_row(stage)); }
  return "Memory of one GPU of each pipeline stage at its peak, GiB\n" + table_text(table);
}

// Separated by commas, on as many lines of a list's item as it takes.
std::string wrapped(const std::vector<std::string>& words) {
  constexpr std::size_t kWidth = 104;
  std::string text;
  std::size_t start = 0;  // of the last line
  for (const std::string& word : words) {
    text += text.empty() ? "" : ",";
    if (text.size() - start + word.size() > kWidth) {
      start = text.size() + 1;
      text += "\n    " + word;
    } else {
      text += (text.empty() ? "" : " ") + word;
    }
  }
  return text;
}

std::string row_lines(const StageMemory& stage) {
  Table table = {.columns = {"component", "row", "dtype", "elements", "bytes", "copies", "total",
                             "born", "dies", "origin", "formula"}};
  std::vector<Row> rows = stage.rows;
  std::stable_partition(rows.begin(), rows.end(), [](const Row& row) { return row.copies > 0; });
  for (const Row& row : rows) {
    table.rows.push_back(
        {std::string(name_of(row.component)) + (row.in_allocator ? "" : " (outside)"), row.name,
         std::string(name_of(row.dtype)), row.elements, row.bytes, row.copies, row.total_bytes(),
         row.born.name, row.dies.name, std::string(name_of(row.origin)), row.formula});
  }
  Table moments = {.columns = {"moment", "allocated GiB"}};
  for (const Moment& moment : stage.moments) {
    moments.rows.push_back({moment.name, gib(moment.allocated_bytes)});
  }
  return "\nRows of stage " + std::to_string(stage.pp_rank) +
         ", bytes; copies are what is alive at the peak, what is not comes last\n" +
         table_text(table) + "\n" + table_text(moments);
}

double share_of(std::int64_t device_used_bytes, const Job& job) {
  return static_cast<double>(device_used_bytes) /
         static_cast<double>(device_capacity_bytes(job.cluster));
}

std::string nearest_lines(const NearestRun& nearest) {
  const MemoryEstimate& memory = nearest.prediction.memory;
  return label_line("without", joined(nearest.left_out) + ": " + verdict_words(nearest.prediction) +
                                   ", device used " +
                                   gib(basis_bytes(memory, MemoryBasis::kDeviceUsed)) + " of " +
                                   gib(device_capacity_bytes(nearest.job.cluster)) + " GiB, " +
                                   fixed(nearest.prediction.time.total_s, 3) + " s a step") +
         label_line("", nearest.command);
}

std::string verdict_lines(const EstimateReport& report, const Paint& paint) {
  const Prediction& prediction = report.prediction;
  std::string text = paint(verdict_colour(prediction), verdict_words(prediction));
  if (!prediction.has_numbers()) {
    const std::string_view repeated = "unsupported: ";  // the first word said so
    const bool repeats = prediction.reason.starts_with(repeated);
    text += "  " + prediction.reason.substr(repeats ? repeated.size() : 0) + "\n";
    return text + (report.nearest ? nearest_lines(*report.nearest) : "");
  }
  const Job& job = report.question.job;
  const MemoryEstimate& memory = prediction.memory;
  const StageMemory& worst = memory.stages.at(static_cast<std::size_t>(memory.worst_stage));
  text += "  stage " + std::to_string(worst.pp_rank) + " peaks at '" + worst.peak_moment() +
          "': allocated " + gib(worst.allocated_bytes) + ", device used " +
          gib(worst.device_used_bytes) + " of " + gib(device_capacity_bytes(job.cluster)) +
          " GiB (" + percent(share_of(worst.device_used_bytes, job)) + "), " +
          left_words(prediction.judged->left_bytes) + "\n";
  if (report.evidence && report.evidence->near_card.runs() > 0) {
    text += label_line("", near_card_words(*report.evidence, job.profile.name));
  }
  if (memory.fit != Fit::kFits) {
    text += label_line("why", fit_reason(job, memory));
  }
  text += label_line(
      prediction.judged->check.kept() ? "rule kept" : "rule broken",
      share_text(job, memory, report.rule) + (report.rule.is_asked ? "" : " (arXiv 2411.06465)"));
  const std::int64_t on_host = host_bytes(job, report.question.plan);
  if (on_host > 0) {
    text += label_line("host memory", gib(on_host) + " GiB a rank for what is offloaded, " +
                                          gib(on_host * job.cluster.gpus_per_node) +
                                          " a node; counted, not measured");
  }
  return text;
}

// "MFU 46.8 %: ...": what it is made of.
std::string mfu_text(const Question& question, const StepTime& time) {
  return "\nMFU " + percent(time.mfu) + ": " + fixed(time.model_flops_per_token / 1e9, 1) +
         " GFLOP of the model per token, forward and backward, nothing recomputed, at " +
         whole(time.tokens_per_s_per_gpu) + " tokens/s per GPU, of the " +
         shortest(time.peak_flops_per_s / kTera) + " TFLOP/s of the dense " +
         std::string(time.mfu_peak) + " peak of " + question.job.cluster.gpu.id + "\n";
}

std::string maximum_lines(const Maximum& maximum) {
  std::string text;
  for (const std::string& line : maximum_words(maximum)) {
    text += label_line(text.empty() ? "find-max" : "", line);
  }
  return text;
}

std::string plan_line(const EstimateReport& report) {
  const std::string text = label_line("plan", plan_words(report));
  return text.find('*') == std::string::npos
             ? text
             : text +
                   label_line("", "(* not given: what the other sizes leave, or see Assumptions)");
}

}  // namespace

std::string assumption_lines(const std::vector<StatedAssumption>& assumptions, const Job& job) {
  std::vector<std::string> lines;
  for (const StatedAssumption& assumption : assumptions) {
    if (assumption.decides) {
      lines.push_back(assumption.text + "  <- decides the verdict");
    }
  }
  const auto add = [&](AssumptionKind kind, const std::string& opening) {
    std::vector<std::string> words;
    for (const StatedAssumption& assumption : assumptions) {
      if (assumption.kind == kind && !assumption.decides) {
        words.push_back(assumption.in_short);
      }
    }
    if (!words.empty()) {
      words.front().insert(0, opening);
      lines.push_back(wrapped(words));
    }
  };
  for (const StatedAssumption& assumption : assumptions) {
    if (assumption.kind == AssumptionKind::kEstimator && !assumption.decides) {
      lines.push_back(assumption.text);
    }
  }
  const std::string& framework = job.profile.name;
  add(AssumptionKind::kAssumed, "assumed here, in brackets what " + framework + " itself has: ");
  add(AssumptionKind::kFrameworkDefault,
      "defaults of " + framework + " " + job.profile.version + ": ");
  return list_lines("Assumptions", lines);
}

std::string plan_words(const EstimateReport& report) {
  const Job& job = report.question.job;
  const Plan& plan = report.question.plan;
  const std::vector<std::string>& given_fields = report.question.given;
  std::string text;
  const auto add = [&text, &given_fields](std::string_view name, std::string_view value) {
    const bool is_given =
        std::find(given_fields.begin(), given_fields.end(), name) != given_fields.end();
    text += (text.empty() ? "" : "  ") + std::string(name) + " " + std::string(value) +
            (is_given ? "" : "*");
  };
  for (const PlanSize& size : kPlanSizes) {
    const bool is_moe_size =
        job.model.moe.num_experts > 0 && (size.name == "ep" || size.name == "etp");
    const bool is_default = plan.*size.field == Plan{}.*size.field;
    if (size.name == "dp") {
      add("dp", std::to_string(data_parallel_size(job, plan)));
    } else if (is_always_shown(size.name) || is_moe_size || !is_default) {
      add(size.name, std::to_string(plan.*size.field));
    }
  }
  add("sequence_parallel", plan.sequence_parallel ? "on" : "off");
  add("schedule", name_of(plan.schedule));
  add("recompute", recompute_text(plan.recompute));
  add("precision", name_of(plan.precision));
  add("grad_dtype", name_of(plan.grad_dtype));
  return text;
}

std::vector<std::string> maximum_words(const Maximum& maximum) {
  const std::string value = maximum.name + " " + grouped(maximum.value);
  if (!maximum.fits) {
    return {"nothing keeps the rule and fits the card; shown is the smallest, " + value + ": " +
            maximum.why_not};
  }
  if (maximum.next == 0) {
    return {value + " keeps the rule and fits the card"};
  }
  return {
      value + (maximum.is_surely_largest ? " is the largest that keeps the rule and fits the card"
                                         : " keeps the rule and fits the card"),
      grouped(maximum.next) + " does not: " + maximum.why_not +
          (maximum.is_surely_largest
               ? ""
               : "; what the allocator reserves can fall where a size grows, so that larger "
                 "ones may fit again")};
}

std::string estimate_text(const EstimateReport& report, const Paint& paint) {
  const Question& question = report.question;
  std::string text = verdict_lines(report, paint);
  if (question.run) {
    text += run_text(*question.run, report.detail);
  }
  if (!report.prediction.has_numbers()) {
    return text;
  }
  if (report.maximum) {
    text += maximum_lines(*report.maximum);
  }
  text += job_lines(question.job) + plan_line(report) + batch_line(question.job, question.plan) +
          "\n" + stage_table(report.prediction.memory) + "\n" + time_lines(report.prediction.time) +
          (report.cost ? cost_lines(*report.cost) : "") +
          assumption_lines(report.assumptions, question.job) +
          list_lines("Evidence", report.evidence ? evidence_lines(*report.evidence)
                                                 : std::vector<std::string>{}) +
          list_lines("Not counted", report.prediction.memory.not_counted);
  if (report.detail == Detail::kRows) {
    for (const StageMemory& stage : report.prediction.memory.stages) { text += row_lines(stage); }
  }
  if (report.account) {
    text += account_text(*report.account) + numbers_text(report.numbers) +
            mfu_text(question, report.prediction.time);
  }
  if (report.limit) {
    text += limit_text(*report.limit);
  }
  return text;
}

}  // namespace shardplan
