#include "estimator/frameworks/native/units.h"

#include "estimator/plan/parameters.h"

namespace shardplan::native {
namespace {

constexpr std::int64_t kStartMultiple = 64;   // elements; where a parameter starts
constexpr std::int64_t kShardMultiple = 128;  // elements; where a shard starts

// Elements of parameters before the padding at the end.
struct UnitElements {
  std::int64_t dense = 0;
  std::int64_t expert = 0;
};

UnitElements sum(const Job& job, const Plan& plan, const std::vector<ParameterTensor>& tensors) {
  UnitElements unit;
  for (const ParameterTensor& tensor : tensors) {
    const std::int64_t elements = round_up(local_elements(job, plan, tensor), kStartMultiple);
    (tensor.sharding == Sharding::kExpert ? unit.expert : unit.dense) += elements;
  }
  return unit;
}

NativeUnit padded(const Job& job, const Plan& plan, const UnitElements& unit) {
  return {.dense = round_up(unit.dense, kShardMultiple * dense_shard_size(job, plan)),
          .expert = round_up(unit.expert, kShardMultiple * expert_shard_size(job, plan))};
}

// One end of the model. Tied tables have equal units at both ends: table and final norm.
NativeUnit end_unit(const Job& job, const Plan& plan, const ChunkLayout& chunk, bool is_head) {
  const bool is_tied = job.model.tied_embeddings;
  UnitElements unit;
  if (is_head || is_tied) {
    unit = sum(job, plan, head_parameters(job.model));
  }
  if (!is_head || is_tied || chunk.has_embedding_copy) {
    unit.dense += sum(job, plan, embedding_parameters(job.model)).dense;
  }
  return padded(job, plan, unit);
}

std::vector<ParameterTensor> tensors_of(const ModelSpec& model, BlockKind layer) {
  return layer == BlockKind::kMtp
             ? mtp_parameters(model)
             : layer_parameters(model, {.is_moe = layer == BlockKind::kMoeLayer});
}

std::vector<BlockKind> blocks_of(const ChunkLayout& chunk) {
  std::vector<BlockKind> kinds;
  for (const Unit& unit : chunk.units) {
    for (std::int64_t i = 0; i < unit.count; ++i) {
      for (const BlockRun& run : unit.blocks) {
        kinds.insert(kinds.end(), static_cast<std::size_t>(run.count), run.kind);
      }
    }
  }
  return kinds;
}

}  // namespace

bool divides_units(std::int64_t shard) {
  return shard > 1;
}

std::vector<NativeUnit> native_units(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  const std::vector<BlockKind> kinds = blocks_of(chunk);
  const bool has_embedding = kinds.front() == BlockKind::kEmbedding;
  std::vector<NativeUnit> units;
  bool in_second_cell = true;  // the last layer; those before it take turns
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {
    if (*kind == BlockKind::kEmbedding || *kind == BlockKind::kHead) {
      const bool is_head = *kind == BlockKind::kHead;
      if (!(is_head && has_embedding && job.model.tied_embeddings)) {
        units.push_back(end_unit(job, plan, chunk, is_head));
      }
    } else if (*kind != BlockKind::kSentOutput) {
      units.push_back(padded(job, plan, sum(job, plan, tensors_of(job.model, *kind))));
      units.back().in_second_cell = in_second_cell;
      in_second_cell = !in_second_cell;
    }
  }
  return units;
}

}  // namespace shardplan::native
