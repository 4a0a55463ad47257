// Order of allocations, read in huggingface/nanotron at 9055c664: models/base.py (build_model),
// trainer.py (_init_model_instance: tied weights; train: torch.cuda.empty_cache),
// optim/gradient_accumulator.py (build_grad_buffers, then one buffer of fp32 parameters),
// optim/zero.py (every parameter is cut in as many parts as there are ranks); PyTorch's
// nn/parallel/distributed.py (_ddp_init_helper: one bucket; _pre_forward of the second step: those
// of the size asked for) and c10d/reducer.cpp (compute_bucket_assignment_by_size).
#include "estimator/frameworks/nanotron/start_up.h"

#include <numeric>
#include <utility>
#include <vector>

#include "estimator/frameworks/nanotron/blocks.h"
#include "estimator/ledger/allocation_tape.h"
#include "estimator/ledger/parameter_elements.h"
#include "estimator/plan/units.h"

namespace shardplan::nanotron {
namespace {

// Gradients come from the last parameter to the first; one that fills its bucket closes it.
std::vector<std::int64_t> gradient_buckets(const std::vector<std::int64_t>& parameter_bytes) {
  constexpr std::int64_t kFirstBytes = kMiB;
  constexpr std::int64_t kBytes = 25 * kMiB;  // nanotron's ddp_bucket_cap_mb
  std::vector<std::int64_t> buckets;
  std::int64_t bytes = 0;
  for (std::size_t i = parameter_bytes.size(); i-- > 0;) {
    bytes += parameter_bytes[i];
    if (bytes >= (buckets.empty() ? kFirstBytes : kBytes) || i == 0) {
      buckets.push_back(std::exchange(bytes, 0));
    }
  }
  return buckets;
}

}  // namespace

BuiltStage start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                    const StageTensors& tensors) {
  const std::int64_t type_bytes = bytes_of(activation_dtype(plan.precision));
  const std::int64_t ranks = plan.zero == 1 ? dense_shard_size(job, plan) : 1;
  const std::int64_t master_bytes = div_ceil(tensors.dense, ranks) * bytes_of(plan.master_dtype);
  const BlockKind head_kind = plan.pp == 1 ? BlockKind::kHead : BlockKind::kLogits;
  const bool is_tied = job.model.tied_embeddings && stage.ends.has_embedding && stage.ends.has_head;
  BuiltStage built;
  AllocationTape tape;
  std::vector<std::int64_t> parameter_bytes;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    if (kind == head_kind && is_tied) {
      continue;
    }
    for (const std::int64_t elements : parameter_elements(job, plan, stage, kind)) {
      tape.make(elements * type_bytes);
      parameter_bytes.push_back(elements * type_bytes);
      built.optimizer_elements.push_back(div_ceil(elements, ranks));
    }
  }
  const std::int64_t large =
      std::accumulate(parameter_bytes.begin(), parameter_bytes.end(), std::int64_t{0});
  parameter_bytes.push_back(tensors.dense * type_bytes - large);  // norms
  tape.make(parameter_bytes.back());
  // A tied head is built as well and dropped. Its segment goes back to the driver before the first
  // step, unless the parameters' fp32 buffer has room in it.
  const std::int64_t head_bytes =
      is_tied ? parameter_elements(job, plan, stage, head_kind).front() * type_bytes : 0;
  TapeTensor head = tape.make(head_bytes >= master_bytes ? head_bytes : 0);
  if (plan.zero == 0 && data_parallel_size(job, plan) > 1) {
    built.rebuilt_id = tape.make(tensors.dense * type_bytes).id;
    built.rebuilt_bytes = gradient_buckets(parameter_bytes);
  }
  tape.make(tensors.dense * bytes_of(plan.grad_dtype));
  tape.free(head);
  tape.make(master_bytes);
  built.events = tape.take_events();
  return built;
}

}  // namespace shardplan::nanotron
