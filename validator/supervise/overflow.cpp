#include "validator/supervise/overflow.h"

#include <string>

namespace shardplan {
namespace {

// Rows are counted for the group: which of its ranks has too many, nobody knows.
std::string group_text(const Program& program) {
  std::string text;
  for (const Group& group : program.groups) {
    if (group.kind == GroupKind::kExperts) {
      for (const std::int64_t rank : group.ranks) {
        text += (text.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
  }
  return text;
}

}  // namespace

void require_rows_fit(const RankTask& run, RunStore& store, std::int64_t step,
                      const std::optional<double>& needed) {
  if (run.simulated || run.model.moe.num_experts == 0) {
    return;  // what a simulated rank would receive, nobody has sent
  }
  const bool all_fit = store.all_agree("rows of step " + std::to_string(step), !needed);
  if (needed) {
    throw RunFailure({.status = RunStatus::kMoeOverflow,
                      .reason = "more rows chose the experts of one of the ranks " +
                                group_text(run.program) +
                                " than plan.moe_buffer_factor has room for",
                      .needed_factor = needed});
  }
  if (!all_fit) {
    throw RunFailure({.reason = "another rank has too many rows", .is_echo = true});
  }
}

}  // namespace shardplan
