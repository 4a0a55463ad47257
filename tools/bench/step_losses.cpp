#include "tools/bench/step_losses.h"

#include <algorithm>

#include "estimator/time/timed_pieces.h"

namespace shardplan {
namespace {

std::string kind_of(OpKind kind) {
  switch (kind) {
    case OpKind::kGemm:
    case OpKind::kGroupedGemm:
    case OpKind::kGroupedWeightGradient: return std::string(name_of(PieceKind::kProduct));
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward: return std::string(name_of(PieceKind::kAttention));
    case OpKind::kSquaredNorm:
    case OpKind::kClipFactor:
    case OpKind::kAdamW: return "optimizer";
    default:
      return is_communication(kind) ? "communication between products"
                                    : std::string(name_of(PieceKind::kElementwise));
  }
}

}  // namespace

std::vector<StepLoss> step_losses(const Program& program, const std::vector<OperationTime>& times,
                                  const StepAccount& limit) {
  std::vector<StepLoss> losses;
  const auto of = [&](const std::string& kind) -> StepLoss& {
    const auto same = std::ranges::find(losses, kind, &StepLoss::kind);
    return same != losses.end() ? *same : losses.emplace_back(StepLoss{.kind = kind});
  };
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.stream == Stream::kCompute) {
      of(kind_of(operation.kind)).measured_s += times[i].end_s - times[i].begin_s;
    }
  }
  const StepGaps gaps = step_gaps(program, times);
  double named_s = 0;
  for (const WaitedFor& wait : gaps.waits) {
    of("waiting for " + wait.label).measured_s += wait.seconds;
    named_s += wait.seconds;
  }
  of("short gaps").measured_s += gaps.all_s - named_s;
  for (const AccountRow& row : by_kind(limit)) { of(row.kind).limit_s += row.visible_s; }
  std::ranges::stable_sort(losses, std::greater{}, &StepLoss::lost_s);
  return losses;
}

}  // namespace shardplan
