#include "validator/supervise/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "validator/supervise/message.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kStartTime{20000};  // of a process, at least

constexpr const char* kReady = "ready";

// Of a rank that has given its result: beyond every other.
constexpr Position kDone = {.phase = RunPhase::kReport,
                            .step = std::numeric_limits<std::int64_t>::max(),
                            .is_waiting = true};

// Which of several ranks' failures is the cause, the one with the most weight: a process that is
// gone fails the communicators of the others, never the other way round; of groups of experts that
// overflow, the one that needs most speaks for all.
std::pair<int, double> weight_of(const Failure& failure, bool has_ended) {
  if (failure.is_echo) {
    return {0, 0};
  }
  if (has_ended) {
    return {4, 0};
  }
  switch (failure.status) {
    case RunStatus::kNcclError: return {1, 0};
    case RunStatus::kTimeout: return {2, 0};
    default: return {3, failure.needed_factor.value_or(0)};
  }
}

}  // namespace

// One rank during one run.
struct Supervisor::Rank {
  WorkerLink* worker = nullptr;
  bool is_ready = false;
  std::optional<RankResult> result = std::nullopt;
  std::optional<Failure> failure = std::nullopt;
  std::optional<WorkerEnd> end = std::nullopt;
  Position last = {};       // where it was when it failed
  bool was_killed = false;  // by us

  bool is_over() const { return result || failure; }
};

Supervisor::Supervisor(std::vector<std::unique_ptr<WorkerLink>> workers,
                       RendezvousServer& rendezvous, SupervisorOptions options)
    : workers_(std::move(workers)), rendezvous_(rendezvous), options_(options) {}

void Supervisor::wait_a_little(const std::vector<Rank>& ranks) {
  constexpr int kLookMs = 20;
  rendezvous_.require_serving();
  std::vector<pollfd> entries;
  for (const Rank& rank : ranks) {
    if (const int descriptor = rank.worker->descriptor(); descriptor >= 0) {
      entries.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
    }
  }
  poll(entries.data(), entries.size(), kLookMs);
}

// The process of a rank is gone, whatever it had been doing.
void Supervisor::note_end(Rank& rank) {
  if (rank.failure || rank.end) {
    return;
  }
  rank.end = rank.worker->end();
  if (rank.end) {
    rank.last = rank.worker->position();
    rank.result.reset();
    rank.failure = Failure{.status = RunStatus::kCrash,
                           .reason = "the process of this rank was " + rank.end->text(),
                           .process = ProcessState::kLost};
    if (!rank.end->signal) {
      rank.failure->reason = "the process of this rank " + rank.end->text();
    }
  }
}

void Supervisor::read_lines(Rank& rank, std::int64_t run) {
  while (const auto line = rank.worker->receive()) {
    if (*line == kReady) {
      rank.is_ready = true;
      continue;
    }
    try {
      const Message message(*line);
      if (message.integer("run") != run || rank.is_over()) {
        continue;  // of a run that is over
      }
      rank.last = {.phase = value_of<RunPhase>(message.word("phase")).value(),
                   .step = message.integer("step"),
                   .operation = message.integer("operation")};
      if (message.has("result")) {
        rank.result = result_of(message.word("result"));
      } else {
        rank.failure = failure_of(message.word("failure"));
      }
    } catch (const std::bad_alloc&) { throw; } catch (const std::exception& error) {
      rank.failure =
          Failure{.status = RunStatus::kCrash,
                  .reason = std::string("the process of this rank talks nonsense: ") + error.what(),
                  .process = ProcessState::kLost};
      rank.last = rank.worker->position();
    }
  }
}

bool Supervisor::wait_until_ready(std::vector<Rank>& ranks, StopFlags& stop) {
  for (Rank& rank : ranks) {
    rank.worker->end();  // one that has died since the last run is started anew
    rank.is_ready = rank.worker->is_started();
    rank.worker->start();
  }
  const Clock::time_point deadline = Clock::now() + std::max(options_.timeout, kStartTime);
  while (!std::ranges::all_of(ranks, &Rank::is_ready)) {
    wait_a_little(ranks);
    for (Rank& rank : ranks) {
      read_lines(rank, 0);
      note_end(rank);
      if (!rank.is_ready && !rank.failure && Clock::now() > deadline) {
        rank.failure = Failure{.status = RunStatus::kTimeout,
                               .reason = "the process of this rank does not start",
                               .process = ProcessState::kLost};
      }
    }
    hear_stop(rendezvous_, stop);
    if (stop.now ||
        std::ranges::any_of(ranks, [](const Rank& rank) { return bool(rank.failure); })) {
      for (Rank& rank : ranks) {
        if (!rank.failure) {
          rank.failure =
              Failure{.reason = "another rank does not start",
                      .process = rank.is_ready ? ProcessState::kKept : ProcessState::kLost,
                      .is_echo = true};
        }
      }
      return false;
    }
  }
  return true;
}

// Until every rank is over, or one has failed, or none moves.
void Supervisor::watch(std::vector<Rank>& ranks, const ProgramOf& program_of, StopFlags& stop) {
  Clock::time_point moved = Clock::now();
  std::vector<std::int64_t> beats(ranks.size(), -1);
  while (!stop.now) {
    wait_a_little(ranks);
    bool is_over = true;
    bool has_failed = false;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      read_lines(ranks[i], num_runs_);
      if (!ranks[i].result) {
        note_end(ranks[i]);
      }
      is_over = is_over && ranks[i].is_over();
      has_failed = has_failed || ranks[i].failure;
      if (const std::int64_t now = ranks[i].worker->position().beats; now != beats[i]) {
        beats[i] = now;
        moved = Clock::now();
      }
    }
    hear_stop(rendezvous_, stop);  // behind the look at ranks: an agent tells before it goes
    if (is_over || has_failed) {
      return;
    }
    if (Clock::now() - moved > options_.timeout) {
      std::vector<Position> positions;
      positions.reserve(ranks.size());
      for (const Rank& rank : ranks) {
        positions.push_back(rank.result ? kDone : rank.worker->position());
      }
      Rank& stuck = ranks[static_cast<std::size_t>(stuck_rank(positions, program_of))];
      stuck.last = stuck.worker->position();
      stuck.failure = Failure{
          .status = RunStatus::kTimeout,
          .reason =
              std::string(stuck.last.is_stopped ? "the process of this rank is stopped; " : "") +
              "no rank has moved for " + std::to_string(options_.timeout.count()) + " ms",
          .process = ProcessState::kLost};
      return;
    }
  }
}

// The others stop, or are ended; whoever cannot serve the next run is ended, too.
void Supervisor::settle(std::vector<Rank>& ranks, Milliseconds grace) {
  const bool is_fine =
      std::ranges::all_of(ranks, [](const Rank& rank) { return bool(rank.result); });
  for (Rank& rank : ranks) {
    if (!rank.is_over()) {
      rank.last = rank.worker->position();
    }
    rank.worker->set_abort(!is_fine);
  }
  const Clock::time_point deadline = Clock::now() + grace;
  while (!std::ranges::all_of(ranks, &Rank::is_over) && Clock::now() < deadline) {
    wait_a_little(ranks);
    for (Rank& rank : ranks) {
      const Position last = rank.last;
      const bool was_over = rank.is_over();
      read_lines(rank, num_runs_);
      note_end(rank);
      if (!was_over && rank.failure && rank.failure->is_echo) {
        rank.last = last;  // where it stood when the run failed
      }
    }
  }
  for (Rank& rank : ranks) {
    const bool is_lost =
        !rank.is_over() || (rank.failure && rank.failure->process == ProcessState::kLost);
    if (is_lost) {
      rank.was_killed = true;
      rank.worker->kill();
    }
    rank.worker->set_abort(false);
  }
}

RunOutcome Supervisor::outcome_of(const std::vector<Rank>& ranks) const {
  RunOutcome outcome;
  const Rank* cause = nullptr;
  for (const Rank& rank : ranks) {
    outcome.restarted += rank.was_killed || rank.end ? 1 : 0;
    outcome.positions.push_back(rank.last);
    if (rank.failure &&
        (cause == nullptr || weight_of(*rank.failure, rank.end.has_value()) >
                                 weight_of(*cause->failure, cause->end.has_value()))) {
      cause = &rank;
    }
  }
  if (cause == nullptr) {
    for (const Rank& rank : ranks) { outcome.ranks.push_back(rank.result.value()); }
    outcome.positions.clear();
    return outcome;
  }
  const Failure& failure = *cause->failure;
  outcome.status = failure.status;
  outcome.reason = failure.reason;
  outcome.phase = cause->last.phase;
  outcome.step = cause->last.phase == RunPhase::kSteps ? cause->last.step : -1;
  // An overflow is a group's, and is seen when its step is over.
  if (failure.status != RunStatus::kMoeOverflow) {
    outcome.rank = cause - ranks.data();
    outcome.operation = cause->last.phase == RunPhase::kSteps ? cause->last.operation : -1;
  }
  outcome.signal = cause->end ? cause->end->signal : std::nullopt;
  outcome.requested_bytes = failure.requested_bytes;
  outcome.free_bytes = failure.free_bytes;
  outcome.needed_factor = failure.needed_factor;
  return outcome;
}

RunOutcome Supervisor::run(const RunRequest& request, const ProgramOf& program_of,
                           StopFlags& stop) {
  if (request.num_processes() > num_workers()) {
    throw std::logic_error("supervisor: a run of " + std::to_string(request.num_processes()) +
                           " ranks with " + std::to_string(num_workers()) + " workers");
  }
  ++num_runs_;
  std::vector<Rank> ranks(static_cast<std::size_t>(request.num_processes()));
  for (std::size_t i = 0; i < ranks.size(); ++i) { ranks[i].worker = workers_[i].get(); }
  const bool has_begun = wait_until_ready(ranks, stop);
  if (has_begun) {
    Message message;
    message.add("run", num_runs_);
    message.add("request", text_of(request));
    const std::string line = message.text();
    for (const Rank& rank : ranks) {
      rank.worker->set_abort(false);
      rank.worker->send(line);
    }
    watch(ranks, program_of, stop);
  }
  settle(ranks, stop.now ? Milliseconds(0) : options_.grace);
  if (stop.now && !std::ranges::all_of(ranks, [](const Rank& rank) { return bool(rank.result); })) {
    return {.status = RunStatus::kCrash, .reason = "interrupted", .has_begun = has_begun};
  }
  rendezvous_.forget("run " + std::to_string(num_runs_) + "/");
  RunOutcome outcome = outcome_of(ranks);
  outcome.has_begun = has_begun;
  outcome.reason = (has_begun ? "" : "not begun: ") + outcome.reason;
  if (request.simulated_rank && outcome.rank >= 0) {
    outcome.rank = *request.simulated_rank;
  }
  return outcome;
}

}  // namespace shardplan
