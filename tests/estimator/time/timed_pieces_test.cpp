// The pieces that are noted add up to the times of their blocks.
#include "estimator/time/timed_pieces.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "estimator/answer/model_times.h"
#include "estimator/time/block_time.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

BlockTime sum_of(const std::vector<TimedPiece>& pieces) {
  BlockTime sum;
  for (const TimedPiece& piece : pieces) {
    switch (piece.kind) {
      case PieceKind::kTensorParallel:
        sum.forward_tp_s += piece.forward_s;
        sum.backward_tp_s += piece.backward_input_s;
        break;
      case PieceKind::kContextParallel:
        sum.forward_cp_s += piece.forward_s;
        sum.backward_cp_s += piece.backward_input_s;
        break;
      case PieceKind::kExpertParallel:
        sum.forward_ep_s += piece.forward_s;
        sum.backward_ep_s += piece.backward_input_s;
        break;
      default:
        sum.forward_s += piece.forward_s;
        sum.backward_input_s += piece.backward_input_s;
        sum.backward_weight_s += piece.backward_weight_s;
    }
    sum.forward_flops += piece.forward_flops;
  }
  return sum;
}

bool is_near(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

bool are_equal(const BlockTime& a, const BlockTime& b) {
  return is_near(a.forward_s, b.forward_s) && is_near(a.backward_input_s, b.backward_input_s) &&
         is_near(a.backward_weight_s, b.backward_weight_s) &&
         is_near(a.forward_tp_s, b.forward_tp_s) && is_near(a.backward_tp_s, b.backward_tp_s) &&
         is_near(a.forward_cp_s, b.forward_cp_s) && is_near(a.backward_cp_s, b.backward_cp_s) &&
         is_near(a.forward_ep_s, b.forward_ep_s) && is_near(a.backward_ep_s, b.backward_ep_s) &&
         is_near(a.forward_flops, b.forward_flops);
}

TEST_CASE("the pieces of every block add up to its time, for every profile") {
  RandomJobs random(Library(), 11);
  std::int64_t failures = 0;
  std::set<PieceKind> kinds;
  for (int i = 0; i < 1000; ++i) {
    const RandomCase drawn = random.next();
    const ModelTimes times = model_times(drawn.job, drawn.plan);
    const ModelPieces pieces = model_pieces(drawn.job, drawn.plan);
    REQUIRE(pieces.layers.size() == times.layers.size());
    failures += are_equal(sum_of(pieces.embedding), times.embedding) ? 0 : 1;
    failures += are_equal(sum_of(pieces.head), times.head) ? 0 : 1;
    failures += are_equal(sum_of(pieces.logits), times.head_parts.logits) ? 0 : 1;
    failures += are_equal(sum_of(pieces.cast), times.head_parts.cast) ? 0 : 1;
    failures += are_equal(sum_of(pieces.loss), times.head_parts.loss) ? 0 : 1;
    failures += are_equal(sum_of(pieces.mtp), times.mtp) ? 0 : 1;
    for (std::size_t kind = 0; kind < times.layers.size(); ++kind) {
      failures += are_equal(sum_of(pieces.layers[kind]), times.layers[kind].time) ? 0 : 1;
      for (const TimedPiece& piece : pieces.layers[kind]) { kinds.insert(piece.kind); }
    }
  }
  CHECK(failures == 0);
  CHECK(kinds.size() == kPieceKinds.size());  // each was met
}

}  // namespace
}  // namespace shardplan
