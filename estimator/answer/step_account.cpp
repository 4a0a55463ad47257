#include "estimator/answer/step_account.h"

#include <algorithm>

#include "estimator/answer/step_parts.h"
#include "estimator/time/collective_time.h"
#include "estimator/time/kernel_time.h"

namespace shardplan {
namespace {

TimeBasis basis_of(bool is_measured) {
  return is_measured ? TimeBasis::kMeasured : TimeBasis::kDatasheet;
}

// Rows in the order of their first use; rows of one name are one.
class AccountWriter {
 public:
  explicit AccountWriter(std::vector<AccountRow>& rows) : rows_(rows) {}

  void add(const AccountRow& row) {
    if (row.visible_s == 0 && row.hidden_s == 0) {
      return;
    }
    const auto same = std::ranges::find_if(rows_, [&](const AccountRow& other) {
      return other.block == row.block && other.direction == row.direction &&
             other.operation == row.operation && other.basis == row.basis;
    });
    if (same == rows_.end()) {
      rows_.push_back(row);
      return;
    }
    same->count += row.count;
    same->visible_s += row.visible_s;
    same->hidden_s += row.hidden_s;
  }

  // `count` times a block.
  void add_pieces(const TimedBlocks& run, std::int64_t count) {
    const double n = static_cast<double>(count);
    for (const TimedPiece& piece : *run.pieces) {
      const AccountRow row = {.kind = std::string(name_of(piece.kind)),
                              .block = run.name,
                              .operation = name_of(piece),
                              .count = count,
                              .basis = basis_of(piece.is_measured)};
      const auto add_direction = [&](const char* direction, double visible_s, double hidden_s) {
        AccountRow of_direction = row;
        of_direction.direction = direction;
        of_direction.visible_s = n * visible_s;
        of_direction.hidden_s = n * hidden_s;
        add(of_direction);
      };
      add_direction("forward", piece.forward_s, piece.forward_hidden_s);
      add_direction("backward", piece.backward_input_s, piece.backward_hidden_s);
      add_direction("weight gradient", piece.backward_weight_s, 0);
    }
  }

  void add_replay_and_host(const TimedBlocks& run, std::int64_t count, std::int64_t replayed) {
    const BlockTime& time = *run.time;
    const bool is_measured = std::ranges::all_of(*run.pieces, &TimedPiece::is_measured);
    add({.kind = "replay",
         .block = run.name,
         .direction = "replay",
         .operation = "forward once more",
         .count = replayed,
         .visible_s = static_cast<double>(replayed) * time.recompute_s,
         .basis = basis_of(is_measured)});
    add({.kind = "host",
         .block = run.name,
         .direction = "both",
         .operation = "host launches that the GPU waits for",
         .count = count,
         .visible_s = static_cast<double>(count) * time.host_s() +
                      static_cast<double>(replayed) * time.recompute_host_s,
         .basis = TimeBasis::kHost});
  }

  // Once in a step, or once in a microbatch of a chunk.
  void add_step(const char* kind, const char* direction, const char* operation, std::int64_t count,
                double visible_s, double hidden_s, TimeBasis basis) {
    add({.kind = kind,
         .block = "step",
         .direction = direction,
         .operation = operation,
         .count = count,
         .visible_s = visible_s,
         .hidden_s = hidden_s,
         .basis = basis});
  }

 private:
  std::vector<AccountRow>& rows_;
};

// The rank whose update ends last, as StepTime counts it.
StageUpdate slowest_update(const StepParts& parts) {
  StageUpdate slowest;
  for (const std::int64_t rank :
       {std::int64_t{0}, parts.pipeline.critical_rank, parts.shape.pp - 1}) {
    const StageUpdate update = parts.after_pipeline(rank);
    slowest = update.total_s() > slowest.total_s() ? update : slowest;
  }
  return slowest;
}

}  // namespace

StepAccount step_account(const Job& job, const Plan& plan) {
  const StepParts parts(job, plan);
  const std::int64_t rank = parts.pipeline.critical_rank;
  const std::int64_t m = parts.shape.num_microbatches;
  const std::vector<std::int64_t>& chunks =
      parts.layout.pipeline.rank_chunks[parts.layout.pipeline.rank_kind(rank)];
  StepAccount account = {.pp_rank = rank, .total_s = parts.step.total_s};
  AccountWriter writer(account.rows);
  std::int64_t forward_sends = 0;
  std::int64_t backward_sends = 0;
  for (std::size_t kind = 0; kind < chunks.size(); ++kind) {
    const std::int64_t times = m * chunks[kind];
    for (const TimedBlocks& run : parts.blocks_of(parts.layout.chunks[kind])) {
      if (times > 0) {
        writer.add_pieces(run, times * run.count);
        writer.add_replay_and_host(run, times * run.count, times * run.replayed);
      }
    }
    forward_sends += parts.works[kind].forward_send_s > 0 ? times : 0;
    backward_sends += parts.works[kind].backward_send_s > 0 ? times : 0;
  }
  const StepTime& step = parts.step;
  const GroupShape pp = group_shape(job, plan, GroupKind::kPp);
  const std::int64_t sends = forward_sends + backward_sends;
  writer.add_step("sends", "both", "sends between stages", sends, step.exposed_pp_s, 0,
                  basis_of(is_measured(job.cluster, pp)));
  writer.add_step(
      "dp communication", "both", "gradients and parameters over dp", 1, step.exposed_dp_s,
      slowest_update(parts).data_parallel_hidden_s,
      basis_of(is_measured(job.cluster, group_shape(job, plan, GroupKind::kDenseShard))));
  writer.add_step("optimizer", "", "optimizer", 1, step.optimizer_s, 0,
                  basis_of(is_calibrated(job.cluster.gpu)));
  writer.add_step("bubble", "", "bubble of the pipeline", 1, step.bubble_s, 0,
                  TimeBasis::kSchedule);
  return account;
}

std::vector<AccountRow> by_kind(const StepAccount& account) {
  std::vector<AccountRow> kinds;
  for (const AccountRow& row : account.rows) {
    auto same = std::ranges::find(kinds, row.kind, &AccountRow::kind);
    if (same == kinds.end()) {
      same = kinds.insert(kinds.end(), {.kind = row.kind});
    }
    same->count += row.count;
    same->visible_s += row.visible_s;
    same->hidden_s += row.hidden_s;
  }
  return kinds;
}

}  // namespace shardplan
