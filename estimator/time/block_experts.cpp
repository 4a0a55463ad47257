#include "estimator/time/block_experts.h"

#include "estimator/plan/expert_routing.h"
#include "estimator/plan/number.h"
#include "estimator/time/collective_time.h"

namespace shardplan {

BlockTime expert_choice(const BlockContext& context) {
  const auto choice = context.framework.expert_choice;
  return choice != nullptr ? choice(context) : BlockTime{};
}

BlockTime expert_exchange(const BlockContext& context, double rows) {
  return context.framework.expert_exchange(context, rows);
}

BesideCost exchange_cost(const BlockContext& context, double rows) {
  const auto cost = context.framework.exchange_cost;
  return cost != nullptr ? cost(context, rows) : exchange_of_rows(context, rows);
}

BesideCost exchange_of_rows(const BlockContext& context, double rows) {
  const ClusterSpec& cluster = context.job.cluster;
  const double bytes = rows * number(routed_width(context.model())) * context.element_bytes;
  return 2 * (collective_cost(cluster, context.ep, Collective::kAllToAll, bytes) +
              collective_cost(cluster, context.etp, Collective::kAllGather,
                              bytes * number(context.plan.etp)));
}

BlockTime exposed_exchange(const BlockContext& context, const BlockTime& kernels,
                           const GroupShape& group, const BesideCost& cost) {
  BlockTime time = kernels;
  time.forward_ep_s = cost.alone_s * context.job.profile.exposed_ep_share;
  time.backward_ep_s = time.forward_ep_s;
  note_communication(context, PieceKind::kExpertParallel, group,
                     {.forward_s = cost.alone_s, .backward_s = cost.alone_s},
                     {.forward_s = time.forward_ep_s, .backward_s = time.backward_ep_s});
  return time;
}

void note_visible_exchange(const BlockContext& context, const BlockTime& routed) {
  if (context.log == nullptr) {
    return;
  }
  for (TimedPiece& piece : context.log->pieces) {
    if (piece.kind == PieceKind::kExpertParallel) {
      piece.forward_hidden_s += piece.forward_s - routed.forward_ep_s;
      piece.backward_hidden_s += piece.backward_input_s - routed.backward_ep_s;
      piece.forward_s = routed.forward_ep_s;
      piece.backward_input_s = routed.backward_ep_s;
    }
  }
}

}  // namespace shardplan
