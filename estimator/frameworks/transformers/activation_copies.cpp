// Letters: h hidden, f FFN width, q and k widths of queries and of keys, T tokens.
#include "estimator/frameworks/transformers/activation_copies.h"

#include <algorithm>

#include "estimator/ledger/block_rows.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"

namespace shardplan::transformers {
namespace {

// Saved by a layer of Llama's that is not computed again, in bytes a token: of each of two norms
// its input in fp32, the normed value and the output, 8h; queries, keys, values and attention's
// output in bf16, 4q + 4k; gate, its activation, up and their product, 8f.
double saved_bytes_of_token(const Job& job, const Plan& plan) {
  const ModelSpec& model = job.model;
  const double e = activation_element_bytes(plan);
  if (plan.recompute.granularity == RecomputeGranularity::kFull) {
    return e * number(model.hidden);
  }
  const double query = number(model.num_heads * model.head_dim);
  const double key = number(model.num_kv_heads * model.head_dim);
  const std::int64_t per_width = model.gated_ffn ? 4 : 2;
  const MoeSpec& moe = model.moe;
  const double ffn = model.has_moe_layers()
                         ? number(moe.topk * (per_width * moe.expert_ffn + 2 * model.hidden))
                         : number(per_width * model.ffn);
  return 2 * (4 + 2 * e) * number(model.hidden) + 2 * e * (query + key) + e * ffn;
}

}  // namespace

// On a stream of their own copies run beside the work of either pass; else the work waits.
double activation_copies_s(const Job& job, const Plan& plan, const MicrobatchWork& work) {
  if (!plan.offload.activations) {
    return 0;
  }
  const GpuSpec& gpu = job.cluster.gpu;
  const double tokens = number(block_shape(job, plan).tokens);
  const double bytes = saved_bytes_of_token(job, plan) * tokens * number(job.model.num_layers());
  const double one_way_s = bytes / (gpu.pcie_bytes_per_s * gpu.constants->pcie_share);
  if (job.profile.activation_offload != ActivationOffload::kStreams) {
    return 2 * one_way_s;
  }
  return std::max(0.0, one_way_s - work.forward_s) + std::max(0.0, one_way_s - work.backward_s);
}

}  // namespace shardplan::transformers
