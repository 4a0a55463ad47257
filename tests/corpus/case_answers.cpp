// Answers of the estimator about one case line.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "estimator/answer/allocator_totals.h"
#include "estimator/answer/stage_timeline.h"
#include "estimator/answer/step_account.h"
#include "estimator/answer/step_limit.h"
#include "estimator/answer/step_trace.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/parameters.h"
#include "estimator/price/price.h"
#include "tests/corpus/answer_text.h"
#include "tests/corpus/answers.h"
#include "tools/commands/assumptions.h"
#include "tools/options/case_file.h"
#include "tools/report/json.h"
#include "tools/report/report.h"
#include "tools/report/trace.h"

namespace shardplan {
namespace {

Question question_of(const Case& asked) {
  return {.job = asked.job,
          .plan = asked.plan,
          .given = {},
          .given_options = {},
          .warnings = asked.warnings};
}

std::string explain_answer(const Question& question, const Library& library) {
  EstimateReport report = {.question = question, .rule = {}, .detail = Detail::kRows};
  report.prediction = predict_question(question, report.rule);
  report.assumptions = assumptions_of(question, library, report.prediction, report.rule);
  report.prediction.judged.reset();  // the answers of commands have the verdict
  report.account = step_account(question.job, question.plan);
  return estimate_json(report);
}

void add_account(AnswerText& text, const StepAccount& account) {
  text.add("account of rank").add(account.pp_rank).add(account.total_s);
  text.end_line();
  for (const AccountRow& row : account.rows) {
    text.add(row.kind).add(row.block).add(row.direction).add(row.operation).add(row.count);
    text.add(row.visible_s).add(row.hidden_s).add(name_of(row.basis));
    text.end_line();
  }
}

void add_kinds(AnswerText& text, const StepAccount& account) {
  for (const AccountRow& kind : by_kind(account)) {
    text.add(kind.kind).add(kind.count).add(kind.visible_s).add(kind.hidden_s);
    text.end_line();
  }
}

std::string time_answer(const Job& job, const Plan& plan) {
  const StepTime time = estimate_step_time(job, plan);
  AnswerText text;
  text.add("compute", time.compute_s).add("recompute", time.recompute_s);
  text.add("tp", time.exposed_tp_s).add("cp", time.exposed_cp_s).add("ep", time.exposed_ep_s);
  text.add("pp", time.exposed_pp_s).add("dp", time.exposed_dp_s).add("bubble", time.bubble_s);
  text.add("optimizer", time.optimizer_s).add("host", time.host_s).add("total", time.total_s);
  text.add("tokens", time.tokens_per_s_per_gpu).add("flops", time.model_flops_per_token);
  text.add("mfu", time.mfu).add("calibrated", time.calibrated);
  text.end_line();
  const StepAccount account = step_account(job, plan);
  add_account(text, account);
  add_kinds(text, account);
  if (const std::optional<Job> best = without_losses(job)) {
    text.add("limit:");
    add_account(text, step_account(*best, plan));
  }
  return text.text();
}

std::string trace_answer(const Question& question) {
  constexpr std::int64_t kMostActions = 200'000;
  constexpr std::int64_t kSpans = 2'000;  // about as many, so that long steps are cut
  if (num_actions(question.job, question.plan) > kMostActions) {
    return "too many actions\n";
  }
  const StepTrace trace = step_trace(question.job, question.plan, kSpans);
  AnswerText text;
  text.add(trace.total_s).add(trace.predicted_s).add(trace.beyond_s).add(trace_note(trace));
  text.end_line();
  return text.text() + step_trace_json(question, trace);
}

std::string parameters_answer(const Job& job, const Plan& plan) {
  AnswerText text;
  for (std::int64_t rank = 0; rank < plan.pp; ++rank) {
    const LocalParameters local = local_parameters(job, plan, rank);
    text.add(rank).add(local.dense).add(local.expert).add(local.linear);
    text.end_line();
  }
  return text.text();
}

std::string price_answer(const Job& job, const Plan& plan) {
  PriceTable table = build_price_table(job);
  const Price priced = price(table, plan);
  std::vector<PlayedTimeline> played;
  AnswerText text;
  text.add(priced.allocated_bytes).add(priced.allocated_stage).add(priced.device_used_bytes);
  text.add(priced.device_least_bytes).add(priced.step_time_s).add(priced.tokens_per_s_per_gpu);
  if (job.profile.memory_model != MemoryModel::kFujii2024) {
    text.add("fit").add(static_cast<int>(fit_of_plan(job, plan, played)));
  }
  text.end_line();
  return text.text();
}

void add_events(AnswerText& text, const std::vector<AllocationEvent>& events) {
  for (const AllocationEvent& event : events) {
    text.add(event.id).add(event.bytes).add(static_cast<int>(event.stream));
    text.add(static_cast<int>(event.kind));
    text.end_line();
  }
}

// Of every stage, or of the first and last ones where all have too many events.
std::string events_answer(const Job& job, const Plan& plan) {
  constexpr std::int64_t kMostEvents = 150'000;
  const PlanPieces pieces = plan_pieces(job, plan);
  AnswerText text;
  std::int64_t shown = 0;
  for (const std::int64_t rank : {0, 1}) {
    for (const StagePieces& stage : pieces.stages) {
      if (shown > kMostEvents || (rank > 0 && data_parallel_size(job, plan) == 1)) {
        break;
      }
      const std::vector<AllocationEvent> events =
          stage_timeline(job, plan, pieces.blocks, stage, rank);
      const AllocatorPeaks peaks = replay_allocator(events, job.profile.allocator);
      shown += std::ssize(events);
      text.add("stage", stage.layout.pp_rank).add("rank", rank).add(peaks.allocated_bytes);
      text.add(peaks.reserved_bytes).add(peaks.required_bytes).add("in an arena");
      text.add(replay_allocator(events, AllocatorKind::kStaticArenas).reserved_bytes);
      text.end_line();
      add_events(text, events);
    }
  }
  return text.text();
}

std::string ranks_answer(const Job& job, const Plan& plan) {
  const MemoryEstimate last = estimate_memory_of_rank(job, plan, data_parallel_size(job, plan) - 1);
  AnswerText text;
  for (const StageMemory& stage : last.stages) {
    text.add(stage.pp_rank).add(stage.built_bytes).add(stage.state_bytes);
    text.add(stage.first_step_bytes).add(stage.steady_bytes).add(stage.allocated_bytes);
    text.add(stage.reserved_bytes).add(stage.required_bytes).add(stage.device_used_bytes);
    text.end_line();
  }
  return text.text();
}

void answer_valid(const Case& asked, const Library& library, const TakeAnswer& take) {
  const Question question = question_of(asked);
  const Job& job = question.job;
  const Plan& plan = question.plan;
  take("explain", explain_answer(question, library));
  take("time", time_answer(job, plan));
  take("trace", trace_answer(question));
  take("price", price_answer(job, plan));
  take("parameters", parameters_answer(job, plan));
  take("refusals", refusals_answer(job, plan));
  const bool is_played = job.profile.memory_model != MemoryModel::kFujii2024 &&
                         job.profile.allocator != AllocatorKind::kStaticArenas;
  if (is_played) {
    take("events", events_answer(job, plan));
  }
  if (knows_data_ranks(job, plan)) {
    take("ranks", ranks_answer(job, plan));
  }
  if (job.profile.memory_model == MemoryModel::kNative) {
    take("program", program_answer(job, plan));
  }
}

std::string refusal_answer(const Case& asked) {
  const Prediction prediction = predict_case(asked);
  AnswerText text;
  text.add(name_of(prediction.status)).add(prediction.reason);
  text.end_line();
  if (asked.supported) {
    if (const std::optional<InvalidReason> reason = why_invalid(asked.job, asked.plan)) {
      text.add("rule:").add(reason->rule);
      text.end_line();
    }
    const TimeRefusal refusal = why_no_step_time(asked);
    text.add("time:").add(refusal.reason).add(refusal.only_of_memory);
    text.end_line();
  }
  return text.text();
}

}  // namespace

void answer_case(const std::string& line, const Library& library, const TakeAnswer& take) {
  const Case asked = read_case(line, "case", library);
  const bool is_valid = asked.supported && asked.unsupported.empty() &&
                        first_broken_rule(asked.job, asked.plan) == nullptr;
  if (is_valid) {
    answer_valid(asked, library, take);
  } else {
    take("refusal", refusal_answer(asked));
  }
}

}  // namespace shardplan
