#include "estimator/frameworks/native/update.h"

#include "estimator/frameworks/pieces/adamw_kernels.h"
#include "estimator/plan/number.h"

namespace shardplan::native {
namespace {

// ZeRO 2 and 3: fp32 += fp32, of the rank's part.
constexpr KernelBytes kAddedGradient = {.fused = 12};

void add_copies(RankUpdate& total, const Job& job, const Plan& /*plan*/,
                const GroupParameters& part, const GroupShape& shard) {
  const double add_s =
      elementwise_s(job.cluster.gpu, number(part.elements) / number(shard.size) * kAddedGradient);
  total.add = total.add + beside_cost(rates_within_domain(job.cluster.gpu), {.bytes_s = add_s});
}

// The trainer works unit by unit: embedding, layers, head. Under ZeRO 0 and 1 units are reduced
// beside the last backward pass, and updated ones gathered beside the next step's first forward
// pass; ZeRO 2 and 3 reduce and add for every microbatch and between replicas once, and 3 gathers
// beside the unit before, whatever is declared.
double exposed_s(const Job& job, const Plan& plan, const RankUpdate& update, double microbatches,
                 const MicrobatchWork& work) {
  const std::int64_t units = std::ssize(job.model.layers) / plan.pp + 2;
  const auto reduced_s = [&](const BesideCost& cost) {
    return update.reduces_beside_backward ? in_pieces_s(cost, work.backward_s, units)
                                          : cost.alone_s;
  };
  const double gathered_beside_s = in_pieces_s(update.gather, work.forward_s, units);
  const BesideCost again = plan.zero == 3 ? update.regather : BesideCost{};
  const BesideCost sum = microbatches > 1 ? update.reduce + update.add : update.reduce;
  const auto beside_backward_s = [&](const BesideCost& reduce) {
    return in_pieces_s(again + reduce, work.backward_s, units);
  };
  const double reduced_often_s =
      (microbatches - 1) * beside_backward_s(sum) + beside_backward_s(sum + update.replica);
  const double gathered_s =
      update.gathers_beside_forward ? gathered_beside_s : update.gather.alone_s;
  switch (plan.zero) {
    case 0: return reduced_s(update.all_reduce);
    case 1: return reduced_s(update.reduce + update.replica) + gathered_s;
    case 2: return reduced_often_s + gathered_s;
    default: return reduced_often_s + microbatches * gathered_beside_s;
  }
}

}  // namespace

// A backward pass of ZeRO 3 gathers layers alone: the head's gradient is taken in the forward pass
// and the embedding's needs no weights.
constinit const UpdateTimes kUpdate = {.moves_by_copies = true,
                                       .add_copies = add_copies,
                                       .regathers_layers = true,
                                       .exposed_s = exposed_s,
                                       .step_kernels = adamw_kernels};

}  // namespace shardplan::native
