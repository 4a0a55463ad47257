// FSDP2's buffers around a block, the ends of the model, and the table that puts blocks together.
// Functions of PyTorch 2.11 are named in data/frameworks/torchtitan.md.
#include "estimator/frameworks/torchtitan/blocks.h"

#include <utility>

#include "estimator/frameworks/torchtitan/blocks/attention.h"
#include "estimator/frameworks/torchtitan/blocks/embedding.h"
#include "estimator/frameworks/torchtitan/blocks/ffn.h"
#include "estimator/frameworks/torchtitan/blocks/fsdp_rows.h"
#include "estimator/frameworks/torchtitan/blocks/head.h"
#include "estimator/frameworks/torchtitan/blocks/latent_rows.h"
#include "estimator/frameworks/torchtitan/blocks/moe_rows.h"
#include "estimator/frameworks/torchtitan/blocks/sink_rows.h"
#include "estimator/frameworks/torchtitan/parameters.h"

namespace shardplan::torchtitan {

TitanBlock titan_block(const Job& job, const Plan& plan, bool is_moe) {
  return {.job = job,
          .plan = plan,
          .is_moe = is_moe,
          .shape = block_shape(job, plan),
          .fsdp = fsdp_plan(job, plan),
          .parameters = titan_parameters(job, plan, is_moe)};
}

bool is_moe_layer(const Job& job, BlockKind kind) {
  switch (kind) {
    case BlockKind::kDenseLayer: return false;
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kMoeLayer: return true;
    case BlockKind::kEmbedding:
    case BlockKind::kFirstLayer: return job.model.layers.front().is_moe;
    default: return job.model.layers.back().is_moe;
  }
}

std::vector<TitanLayers> titan_layers(const Job& job, const Plan& plan, const StageLayout& stage) {
  std::vector<TitanLayers> layers;
  for (const bool is_moe : {false, true}) {
    std::int64_t count = 0;
    for (const BlockKind kind :
         {BlockKind::kFirstLayer, BlockKind::kDenseLayer, BlockKind::kFirstMoeLayer,
          BlockKind::kMoeLayer, BlockKind::kLastLayer}) {
      count += is_moe_layer(job, kind) == is_moe ? count_blocks(stage, kind) : 0;
    }
    if (count > 0) {
      layers.push_back({.block = titan_block(job, plan, is_moe), .count = count});
    }
  }
  return layers;
}

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind) {
  TitanBlock block = titan_block(job, plan, is_moe_layer(job, kind));
  switch (kind) {
    case BlockKind::kEmbedding: add_titan_embedding(block); break;
    case BlockKind::kHead: add_titan_head(block); break;
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss:  // nanotron's
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer: break;
    case BlockKind::kFirstLayer:
    case BlockKind::kDenseLayer:
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kMoeLayer:
    case BlockKind::kLastLayer:
      if (job.model.is_mla()) {
        add_titan_latent_attention(block);
      } else if (block.is_gpt_oss()) {
        add_titan_sink_attention(block);
      } else {
        add_titan_attention(block, kind);
      }
      if (block.has_experts()) {
        add_titan_moe(block);
      } else {
        add_titan_ffn(block);
      }
      add_layer_fsdp(block, kind);
      break;
    case BlockKind::kSentOutput:
      block.rows.keep("output", block.sequence(), block.shape.dtype,
                      {.born = Step::kForwardOutput,
                       .last_forward_use = Step::kForwardOutput,
                       .dies = Step::kWeight},
                      "h*u: fwd_cache of pipelining/stage.py, to the end of the chunk's backward");
      break;
    case BlockKind::kMtp: break;
  }
  return std::move(block.rows.rows);
}

bool has_own_block(const Job& job, BlockKind kind) {
  const bool has_both = job.model.has_dense_layers() && job.model.has_moe_layers();
  return kind == BlockKind::kFirstLayer || kind == BlockKind::kLastLayer ||
         (kind == BlockKind::kFirstMoeLayer && has_both);
}

}  // namespace shardplan::torchtitan
