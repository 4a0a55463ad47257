// Which kind of block each layer of a model is, and what layers of a kind are like.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/block_memory.h"
#include "estimator/plan/job.h"

namespace shardplan {

// Layers are kDenseLayer or kMoeLayer by whether they have experts. Where a framework has blocks of
// several mixers (FrameworkLayout::has_mixed_layers), so are the first of each alone, and those
// that parameters tell from them (parameter_kinds) are kOtherLayer and kFurtherLayer, in order.
class LayerBlocks {
 public:
  explicit LayerBlocks(const Job& job);
  BlockKind kind_of(std::int64_t layer) const;
  // Parameters tell layers apart that are equal in having experts or not. A framework without
  // pieces for such layers is never asked about them.
  bool vary() const { return vary_; }
  const Job& job() const { return job_; }

 private:
  const Job& job_;
  bool vary_;
  std::vector<BlockKind> kinds_;  // by layer; none: experts tell all of them apart
};

// A layer of the kind; of a prediction module and of ends of a chunk, those of the model.
LayerSpec layer_of(const Job& job, BlockKind kind);

// Whether the model has layers of the kind, of kDenseLayer to kFurtherLayer.
bool has_layers(const Job& job, BlockKind kind);

// How many kinds of layers the model has that blocks would tell apart, and for how many there are
// kinds of blocks.
std::int64_t num_layer_kinds(const ModelSpec& model);
inline constexpr std::int64_t kMostLayerKinds = 4;

}  // namespace shardplan
