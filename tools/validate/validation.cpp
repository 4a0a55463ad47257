#include "tools/validate/validation.h"

#include <algorithm>

#include "tools/report/validate_rows.h"
#include "validator/check/checks.h"
#include "validator/lower/lower.h"
#include "validator/program/kernel_sizes.h"

namespace shardplan {
namespace {

// Before anything runs: 0.1 s and 10 MB for each rank of a large plan, so not for more than a few
// hosts.
void check_programs(const Case& question) {
  constexpr std::int64_t kMostRanks = 64;
  if (question.job.cluster.world_size() <= kMostRanks) {
    require_sound(lower_all(question.job, question.plan));
  }
}

// What a signal that reaches other processes looks like from here.
bool may_be_interrupted(RunStatus status) {
  return status == RunStatus::kCrash || status == RunStatus::kTimeout ||
         status == RunStatus::kNcclError;
}

}  // namespace

Validation::Validation(const ValidateSettings& settings, Supervisor& supervisor,
                       const Library& library, ValidateJournal* journal, StopFlags& stop)
    : settings_(settings),
      supervisor_(supervisor),
      library_(library),
      journal_(journal),
      stop_(stop) {}

// The result line; nothing if a signal ended the run.
std::optional<std::string> Validation::result_of(const CaseText& line) {
  ValidateAnswer answer = {.case_text = line.text, .line = line.line};
  try {
    CaseSource source{
        .text = line.text, .place = line.place(), .data_folder = settings_.data_folder};
    const Case question = read_case(line.text, line.place(), library_.noting(source.files));
    return settings_.find_max ? find_maximum(question, source) : run_once(question, source);
  } catch (const InputError& problem) {
    answer.prediction.reason = problem.what();
    answer.id = case_id_of(line.text);
    return validate_json(answer);
  }
}

// As the journal has it, or run now.
std::optional<std::string> Validation::run_once(const Case& question, const CaseSource& source) {
  ValidateAnswer answer = {.case_text = source.text,
                           .id = question.id,
                           .command = settings_.command,
                           .backend = settings_.backend,
                           .question = question,
                           .axis = source.axis,
                           .request = settings_.request};
  answer.request.plan = text_of(source);
  answer.request.world_size = question.job.cluster.world_size();
  if (!answer.request.memory_limit_bytes) {  // of the case's own cluster
    answer.request.memory_limit_bytes = question.job.cluster.memory_limit_bytes;
  }
  const std::string identity = identity_of(answer, source);
  if (journal_) {
    if (const auto recorded = journal_->finished(identity)) {
      return recorded;
    }
  }
  if (stop_.no_more_runs) {
    return std::nullopt;
  }
  run(answer);
  if (stop_.no_more_runs && may_be_interrupted(answer.outcome.status)) {
    return std::nullopt;
  }
  std::string result = validate_json(answer);
  if (journal_ && answer.outcome.has_begun) {
    journal_->append(identity, result);
  }
  return result;
}

// Everything that a run's result depends on, save the machine.
std::string Validation::identity_of(const ValidateAnswer& answer, const CaseSource& source) const {
  std::string text = source.text + "\n" + source.files + settings_.backend + " " +
                     std::string(settings_.runs_anyway ? "force " : "") +
                     std::string(settings_.checks_against_host ? "check " : "") + "\n";
  RunRequest request = answer.request;
  request.is_traced = false;
  request.plan = answer.axis ? std::string(name_of(*answer.axis)) + " " +
                                   std::to_string(size_of(*answer.question, *answer.axis))
                             : "";
  return text + text_of(request);
}

void Validation::run(ValidateAnswer& answer) {
  const Case& question = *answer.question;
  RunOutcome& outcome = answer.outcome;
  answer.prediction = predicted(question);
  if (const auto reason = why_not(answer)) {
    outcome = {.status = RunStatus::kInvalid, .reason = *reason};
    return;
  }
  const bool runs_anyway = settings_.runs_anyway || settings_.find_max;
  if (answer.prediction.status == PredictedStatus::kDoesNotFit && !runs_anyway) {
    outcome = {.status = RunStatus::kOom, .reason = answer.prediction.reason};
    answer.was_predicted = true;
    return;
  }
  const auto program_of_rank = [&question](std::int64_t rank) {
    return lower(question.job, question.plan, rank, {});
  };
  check_programs(question);
  outcome = supervisor_.run(answer.request, program_of_rank, stop_);
  if (outcome.operation >= 0) {
    const Program program = program_of_rank(outcome.rank);
    const Operation& op = program.operations.at(static_cast<std::size_t>(outcome.operation));
    answer.operation_name = std::string(name_of(op.kind)) + " " + op.label;
  }
  if (outcome.status == RunStatus::kOk && answer.request.is_traced) {
    traces_.add(answer, program_of_rank);
  }
  if (outcome.status == RunStatus::kOk && settings_.checks_against_host) {
    check_against_host(answer);
  }
}

Prediction Validation::predicted(const Case& question) const {
  const std::optional<std::int64_t>& limit = settings_.request.memory_limit_bytes;
  Case limited = question;
  if (limit && settings_.backend != "host") {
    limited.job.cluster.memory_limit_bytes = limit;
  }
  Prediction prediction = predict_case(limited);
  if (limit && settings_.backend == "host" && prediction.has_numbers()) {
    // Arenas alone: neither context nor communicators take anything of the limit.
    const MemoryEstimate& memory = prediction.memory;
    const std::int64_t most =
        std::ranges::max(memory.stages, {}, &StageMemory::allocated_bytes).allocated_bytes;
    prediction.status = most <= *limit ? PredictedStatus::kFits : PredictedStatus::kDoesNotFit;
    prediction.reason = most <= *limit ? ""
                                       : "allocated " + std::to_string(most) + " bytes of " +
                                             std::to_string(*limit);
  }
  return prediction;
}

std::optional<std::string> Validation::why_not(const ValidateAnswer& answer) const {
  if (auto reason = why_not_run(*answer.question)) {
    return reason;
  }
  if (settings_.backend == "cuda") {
    if (const auto reason = why_no_kernels(answer.question->job, answer.question->plan)) {
      return *reason + ": what the kernels take; --backend host takes any";
    }
  }
  const std::int64_t world = answer.request.world_size;
  if (settings_.simulated_world && *settings_.simulated_world != world) {
    return "--simulate-rank: found a world of " + std::to_string(*settings_.simulated_world) +
           ", expected " + std::to_string(world) + ", the plan's";
  }
  if (answer.request.num_processes() > supervisor_.num_workers()) {
    return "found " + std::to_string(supervisor_.num_workers()) + " processes, expected one for " +
           "each of the plan's " + std::to_string(world) + " ranks";
  }
  return std::nullopt;
}

void Validation::check_against_host(ValidateAnswer& answer) const {
  const HostTolerance tolerance = host_tolerance(
      settings_.backend == "host", answer.question->plan.precision, answer.request.precision);
  answer.host_check = compared(host_steps(answer.request), answer.outcome.ranks, tolerance);
}

std::int64_t Validation::predicted_maximum(const Case& question, SizeAxis axis,
                                           std::int64_t step) const {
  const auto fits = [&](std::int64_t steps) {
    return !is_negative(predicted(sized_case(question, axis, steps * step)).status);
  };
  constexpr std::int64_t kMostSteps = 1 << 20;
  std::int64_t good = 0;
  std::int64_t bad = 1;
  while (bad <= kMostSteps && fits(bad)) {
    good = bad;
    bad *= 2;
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good * step;
}

// From the predicted boundary outwards until both sides have run, then by bisection.
std::optional<std::string> Validation::find_maximum(const Case& question, CaseSource source) {
  const SizeAxis axis = *settings_.find_max;
  if (why_not_run(question)) {
    return run_once(question, source);  // its answer says why
  }
  const std::int64_t step = size_step(question, axis);
  RealMaximum maximum = {.axis = axis, .predicted = predicted_maximum(question, axis, step)};
  std::string best;
  std::string last;
  std::int64_t good = 0;
  std::int64_t bad = 0;  // in steps; 0: none known
  std::int64_t next = std::max<std::int64_t>(1, maximum.predicted / step);
  std::int64_t stride = 1;
  while (next > good && (bad == 0 || next < bad)) {
    source.axis = axis;
    source.value = next * step;
    const auto result = run_once(sized_case(question, axis, next * step), source);
    if (!result) {
      return std::nullopt;
    }
    last = *result;
    const RunStatus status = summary_of(last).status.value_or(RunStatus::kInvalid);
    if (status == RunStatus::kOk) {
      good = next;
      best = last;
    } else {
      bad = next;
      maximum.next_status = status;
      if (status != RunStatus::kOom) {
        break;  // no boundary of memory: the record says what it was
      }
    }
    if (good > 0 && bad > 0) {
      next = good + (bad - good) / 2;
    } else {
      next = good > 0 ? good + stride : std::max<std::int64_t>(bad - stride, bad > 1 ? 1 : bad);
      stride *= 2;
    }
  }
  maximum.value = good * step;
  maximum.next = bad * step;
  return with_maximum(best.empty() ? last : best, maximum);
}

}  // namespace shardplan
