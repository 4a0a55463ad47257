#include "estimator/answer/blocks.h"

#include "estimator/frameworks/framework.h"
#include "estimator/ledger/layer_blocks.h"

namespace shardplan {

bool has_block(const Job& job, BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
    case BlockKind::kHead:
    case BlockKind::kSentOutput: return true;
    case BlockKind::kDenseLayer: return job.model.has_dense_layers();
    case BlockKind::kMoeLayer: return job.model.has_moe_layers();
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer: return has_layers(job, kind);
    case BlockKind::kMtp: return job.model.num_mtp_layers > 0;
    case BlockKind::kFirstLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kLastLayer:
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss: break;
  }
  const Framework& framework = framework_of(job.profile);
  return framework.has_own_block != nullptr && framework.has_own_block(job, kind);
}

BlockMemory block_memory(const Job& job, const Plan& plan, BlockKind kind) {
  const Framework& framework = framework_of(job.profile);
  BlockMemory block;
  block.kind = kind;
  block.name = kBlockNames[static_cast<std::size_t>(kind)];
  if (!has_block(job, kind)) {
    return block;
  }
  if (framework.block_rows != nullptr) {
    block.rows = framework.block_rows(job, plan, kind);
  }
  block.has_frame = job.profile.allocator == AllocatorKind::kStaticArenas;
  block.writes_next_input = framework.writes_next_input;
  block.last_replayed = framework.last_replayed;
  block.summary = summarise(block);
  return block;
}

BlockSet block_set(const Job& job, const Plan& plan) {
  BlockSet set;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    set[static_cast<std::size_t>(i)] = block_memory(job, plan, static_cast<BlockKind>(i));
  }
  return set;
}

bool gathers_by_unit(const Job& job, const Plan& plan) {
  const Framework& framework = framework_of(job.profile);
  return framework.gathers_by_unit != nullptr && framework.gathers_by_unit(job, plan);
}

Plan without_buckets(const Job& job, Plan plan) {
  plan.zero = gathers_by_unit(job, plan) ? 1 : plan.zero;
  return plan;
}

FsdpBuffers chunk_buffers(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  return gathers_by_unit(job, plan) ? framework_of(job.profile).chunk_buffers(job, plan, chunk)
                                    : FsdpBuffers{};
}

bool rows_see_whole_plan(const Job& job) {
  return framework_of(job.profile).seen_by_block == nullptr;
}

SeenByBlock seen_by_block(const Job& job, const Plan& plan, BlockKind kind) {
  const Framework& framework = framework_of(job.profile);
  return framework.seen_by_block != nullptr
             ? framework.seen_by_block(job, plan, kind)
             : SeenByBlock{
                   .recompute = plan.recompute, .experts = true, .ep = plan.ep, .cp_method = true};
}

}  // namespace shardplan
