#include "tools/report/run_trace.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "estimator/plan/rank_grid.h"
#include "estimator/time/timed_pieces.h"
#include "tools/report/text.h"
#include "tools/report/version.h"
#include "validator/program/operation_work.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostEvents = 400'000;  // about 100 MB

Json arguments_of(const Program& program, const Operation& op, double seconds) {
  Json arguments = {{"operation", name_of(op.kind)}};
  const auto add_place = [&arguments](const char* name, std::int64_t index) {
    if (index >= 0) {
      arguments[name] = index;
    }
  };
  add_place("microbatch", op.microbatch);
  add_place("chunk", op.chunk);
  add_place("layer", op.layer);
  const double flops = flops_of(op);
  const double bytes = bytes_of(program, op);
  arguments[flops > 0 ? "flops" : "bytes"] = flops > 0 ? flops : bytes;
  if (seconds > 0) {
    arguments[flops > 0 ? "tflops_per_s" : "gb_per_s"] =
        flops > 0 ? flops / seconds / 1e12 : bytes / seconds / 1e9;
  }
  return arguments;
}

// Seconds from the first operation of all ranks to the end of the last one.
double traced_step_s(const std::vector<OperationTimes>& ranks,
                     const std::vector<double>& origins_s) {
  double end_s = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (const double rank_end_s : ranks[i].ends_s) {
      end_s = std::max(end_s, origins_s[i] + rank_end_s);
    }
  }
  return end_s;
}

double worst_precision_s(const std::vector<OperationTimes>& ranks) {
  return std::ranges::max(ranks, {}, &OperationTimes::precision_s).precision_s;
}

// As the model's account names it.
std::string kind_of(const Program& program, const Operation& op) {
  switch (op.kind) {
    case OpKind::kGemm:
    case OpKind::kGroupedGemm:
    case OpKind::kGroupedWeightGradient: return std::string(name_of(PieceKind::kProduct));
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward: return std::string(name_of(PieceKind::kAttention));
    case OpKind::kSend:
    case OpKind::kReceive: return "sends";
    case OpKind::kSquaredNorm:
    case OpKind::kClipFactor:
    case OpKind::kAdamW: return "optimizer";
    default: break;
  }
  if (!is_communication(op.kind)) {
    return std::string(name_of(PieceKind::kElementwise));
  }
  switch (program.groups.at(static_cast<std::size_t>(op.group)).kind) {
    case GroupKind::kTp: return std::string(name_of(PieceKind::kTensorParallel));
    case GroupKind::kCp: return std::string(name_of(PieceKind::kContextParallel));
    case GroupKind::kEp:
    case GroupKind::kEtp:
    case GroupKind::kExperts: return std::string(name_of(PieceKind::kExpertParallel));
    case GroupKind::kPp:
    case GroupKind::kTpCp:
    case GroupKind::kEmbedding: return "other communication";
    case GroupKind::kDp:
    case GroupKind::kDpCp:
    case GroupKind::kExpertDp:
    case GroupKind::kDenseShard:
    case GroupKind::kDenseReplica:
    case GroupKind::kExpertShard:
    case GroupKind::kExpertReplica: return "dp communication";
  }
  throw std::logic_error("kind_of: unknown kind of group");
}

struct KindTimes {
  std::string kind;
  double visible_s = 0;  // of the model
  double hidden_s = 0;
  double run_s = 0;
  std::int64_t operations = 0;
};

// On one rank; times of operations, beside each other or not.
std::vector<KindTimes> compared(const StepAccount& account, const Program& program,
                                const OperationTimes& times) {
  std::vector<KindTimes> kinds;
  for (const AccountRow& row : by_kind(account)) {
    kinds.push_back({.kind = row.kind, .visible_s = row.visible_s, .hidden_s = row.hidden_s});
  }
  for (std::size_t i = 0; i < times.begins_s.size(); ++i) {
    const std::string kind = kind_of(program, program.operations.at(i));
    auto same = std::ranges::find(kinds, kind, &KindTimes::kind);
    if (same == kinds.end()) {
      same = kinds.insert(kinds.end(), {.kind = kind});
    }
    same->run_s += times.ends_s[i] - times.begins_s[i];
    ++same->operations;
  }
  return kinds;
}

Json json_of(const std::vector<KindTimes>& kinds) {
  Json rows = Json::array();
  for (const KindTimes& row : kinds) {
    rows.push_back({{"kind", row.kind},
                    {"model_visible_s", row.visible_s},
                    {"model_hidden_s", row.hidden_s},
                    {"run_s", row.run_s},
                    {"operations", row.operations}});
  }
  return rows;
}

std::string text_of(const std::vector<KindTimes>& kinds) {
  constexpr double kMsPerS = 1e3;
  Table table = {.columns = {"kind", "model, ms", "hidden, ms", "run, ms", "operations"}};
  for (const KindTimes& row : kinds) {
    table.rows.push_back({row.kind, fixed(row.visible_s * kMsPerS, 2),
                          row.hidden_s > 0 ? Cell{fixed(row.hidden_s * kMsPerS, 2)} : Cell{},
                          row.operations > 0 ? Cell{fixed(row.run_s * kMsPerS, 2)} : Cell{},
                          row.operations > 0 ? Cell{row.operations} : Cell{}});
  }
  return table_text(table);
}

std::int64_t num_hosts(const std::vector<OperationTimes>& ranks) {
  std::set<std::string> hosts;
  for (const OperationTimes& rank : ranks) { hosts.insert(rank.host); }
  return std::ssize(hosts);
}

}  // namespace

void RunTraces::add_rank(std::int64_t process, const Program& program, const OperationTimes& times,
                         double origin_s) {
  std::set<Stream> streams;
  const std::int64_t count = std::ssize(times.begins_s);
  for (std::int64_t i = 0; i < count; ++i) {
    if (num_events_ == kMostEvents) {
      num_left_out_ += count - i;
      break;
    }
    ++num_events_;
    const std::size_t at = static_cast<std::size_t>(i);
    const Operation& op = program.operations.at(at);
    streams.insert(op.stream);
    const double begin_s = origin_s + times.begins_s[at];
    const double end_s = std::max(begin_s, origin_s + times.ends_s[at]);
    writer_.add_complete(process, static_cast<std::int64_t>(op.stream), op.label, begin_s, end_s,
                         arguments_of(program, op, end_s - begin_s));
  }
  num_left_out_ += std::ssize(program.operations) - count;
  for (const Stream stream : streams) {
    writer_.name_thread(process, static_cast<std::int64_t>(stream), std::string(name_of(stream)));
  }
}

void RunTraces::add(const ValidateAnswer& answer,
                    const std::function<Program(std::int64_t)>& program_of) {
  std::vector<OperationTimes> ranks;
  std::vector<double> steps_s;
  for (const RankResult& rank : answer.outcome.ranks) {
    if (!rank.times) {
      return;
    }
    ranks.push_back(*rank.times);
    steps_s.insert(steps_s.end(), rank.step_times_s.begin(), rank.step_times_s.end());
  }
  if (ranks.empty()) {
    return;
  }
  const std::vector<double> origins_s = aligned_origins(ranks);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int64_t rank = answer.request.simulated_rank.value_or(static_cast<std::int64_t>(i));
    writer_.name_process(num_processes_, answer.id + ": rank " + std::to_string(rank));
    add_rank(num_processes_++, program_of(rank), ranks[i], origins_s[i]);
  }
  const Case& question = *answer.question;
  const StepAccount account = step_account(question.job, question.plan);
  const std::int64_t critical = answer.request.simulated_rank.value_or(
      rank_of(question.job, question.plan, {.pp = account.pp_rank}));
  const std::size_t at = answer.request.simulated_rank ? 0 : static_cast<std::size_t>(critical);
  const std::vector<KindTimes> kinds = compared(account, program_of(critical), ranks.at(at));
  const double step_s = traced_step_s(ranks, origins_s);
  account_ +=
      "\n" + answer.id + ": the traced step took " + fixed(1e3 * step_s, 2) +
      " ms, the model says " + fixed(1e3 * account.total_s, 2) + ". Rank " +
      std::to_string(critical) +
      "; the run's operations count as long as they last, also while they wait or run beside "
      "others\n" +
      text_of(kinds);
  runs_.push_back({{"id", answer.id},
                   {"traced_step_s", step_s},
                   {"model_step_s", account.total_s},
                   {"rank", critical},
                   {"kinds", json_of(kinds)},
                   {"measured_step_s", upper_median_of(steps_s)},
                   {"hosts", num_hosts(ranks)},
                   {"precision_s", worst_precision_s(ranks)}});
}

std::string RunTraces::text() const {
  return writer_.text(
      {{"program", kVersionText},
       {"what",
        "one real optimizer step after the measured ones; zero is where the first operation of any "
        "rank began; one that waits for others lasts as long as it waits"},
       {"clock",
        "ranks of one host share its monotonic clock, each to precision_s; hosts are set equal "
        "when all ranks have met, to a round trip of the network"},
       {"runs", runs_}});
}

std::string RunTraces::account_text() const {
  return account_;
}

std::string RunTraces::note() const {
  return num_left_out_ > 0
             ? grouped(num_left_out_) + " operations are left out: a trace has " +
                   grouped(kMostEvents) + " at most, and of a rank " + grouped(kMostOperationTimes)
             : "";
}

}  // namespace shardplan
