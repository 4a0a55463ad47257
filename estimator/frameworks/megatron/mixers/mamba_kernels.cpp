// Every number counts how often one element is read or written, as in kernels.cpp. Sources: those
// of mamba.cpp.
#include "estimator/frameworks/megatron/mixers/mamba_kernels.h"

#include "estimator/frameworks/megatron/mixers/mamba.h"
#include "estimator/frameworks/pieces/combined_scan_work.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/block_work.h"
#include "estimator/time/overlap_time.h"

namespace shardplan::megatron {
namespace {

// The product in front is exchanged in five parts, each laid out for it, put together and put into
// the order of the sequence; the output is put into the other order, exchanged and laid out.
// Nothing runs beside that (core/ssm/mamba_context_parallel.py).
void exchange_heads(const BlockContext& context, double product, double output, BlockTime& time) {
  constexpr double kParts = 5;
  const double e = context.element_bytes;
  const auto seconds = [&](double elements) {
    return collective_cost(context.job.cluster, context.cp, Collective::kAllToAll, elements * e)
        .alone_s;
  };
  const double all = kParts * seconds(product / kParts) + seconds(output);
  add(time, memory_bound(context, product,
                         {.forward = {.rearranged = 6 * e}, .backward = {.rearranged = 6 * e}}));
  add(time, memory_bound(context, output,
                         {.forward = {.rearranged = 4 * e}, .backward = {.rearranged = 4 * e}}));
  const double visible = all * context.job.profile.exposed_cp_share;
  time.forward_cp_s += visible;
  time.backward_cp_s += visible;
  note_communication(context, PieceKind::kContextParallel, context.cp,
                     {.forward_s = all, .backward_s = all},
                     {.forward_s = visible, .backward_s = visible});
}

}  // namespace

// Backward makes states and pairs again and has two products for each of forward's.
BlockTime mamba_scan(const BlockContext& context) {
  const MambaSpec& mamba = context.model().mamba;
  const double e = context.element_bytes;
  const double tokens = number(context.tokens) / number(context.plan.tp);
  const double values = tokens * number(mamba.inner);
  // Of a group that several ranks share each scans a copy.
  const double groups =
      number(scanned_groups(context.job, context.plan) * context.plan.cp * context.plan.tp);
  const double matrices = 2 * tokens * groups * number(mamba.state);
  const double chunk = number(kMambaChunk);
  BlockTime time = memory_bound(context, values + matrices, combined_scan_channels(e));
  add(time, memory_bound(context, values, combined_scan_values(e)));
  add(time, memory_bound(context, matrices, combined_scan_matrices(e)));
  add(time, memory_bound(context, values * number(mamba.state) / chunk, combined_scan_states(e)));
  add(time, memory_bound(context, tokens * groups * chunk, kCombinedScanPairs));
  BlockTime products;
  products.forward_flops = tokens * combined_scan_flops(mamba, kMambaChunk);
  const GpuSpec& gpu = context.gpu();
  products.forward_s = products.forward_flops / (gpu.bf16_flops_per_s * gpu.constants->gemm_share);
  products.backward_input_s = 3 * products.forward_s;
  note(context, PieceKind::kProduct, products);
  add(time, products);
  if (context.plan.cp > 1) {
    exchange_heads(context, tokens * (2 * number(mamba.inner) + number(mamba.num_heads)) + matrices,
                   values, time);
  }
  return time;
}

}  // namespace shardplan::megatron
