// Pieces that blocks are made of: a linear layer, attention, memory-bound work, the collectives of
// tensor, context and expert parallelism. Each returns the times it adds to a block.
#pragma once

#include "estimator/plan/rank_grid.h"
#include "estimator/time/block_kernels.h"
#include "estimator/time/block_time.h"
#include "estimator/time/elementwise.h"
#include "estimator/time/kernel_time.h"
#include "estimator/time/overlap_time.h"
#include "estimator/time/product_memo.h"
#include "estimator/time/timed_pieces.h"

namespace shardplan {

// The collectives of a tensor-parallel region, and the linear layers that they run beside.
struct RegionTimes {
  BesideCost gather = {};   // forward: of the input
  BesideCost scatter = {};  // of the output's partial sums
  BesideCost gather_gradient = {};
  BesideCost gather_again = {};
  BesideCost scatter_gradient = {};
  BlockTime column = {};
  BlockTime row = {};
};

// Of a layer whose tokens go by pieces: what one region sums, the next one gathers.
struct LayerRegions {
  RegionTimes attention = {};
  RegionTimes ffn = {};
};

// What the pieces of one (job, plan) share.
struct BlockContext {
  BlockContext(const BlockKernels& of_framework, const Job& of_job, const Plan& of_plan);

  const BlockKernels& framework;
  const Job& job;
  const Plan& plan;
  std::int64_t tokens = 0;          // of one microbatch on this rank
  std::int64_t sharded_tokens = 0;  // where sequence parallelism divides them by tp
  double element_bytes = 2;         // of activations
  LayerKernels kernels;
  Overlaps overlaps;
  bool trains_weights = true;          // products make gradients of weights
  bool adds_weight_gradients = false;  // products add them to the main gradients
  KernelBytes weight_gradient = {};    // what it costs per element where they do not
  GroupShape tp;
  GroupShape cp;
  GroupShape ep;
  GroupShape etp;
  PieceLog* log = nullptr;        // nullptr: pieces are not noted
  KernelMix* mix = nullptr;       // nullptr: kernels are not summed up by kind
  RegionTimes* region = nullptr;  // where the next region's collectives go; nullptr: into its time
  ClockFactors clock = {};        // of measured times
  ProductMemo* products = nullptr;  // of products reckoned before; nullptr: none is kept

  const ModelSpec& model() const { return job.model; }
  const GpuSpec& gpu() const { return job.cluster.gpu; }
};

// Adds the times, FLOPs and parameters of `count` pieces to a block.
void add(BlockTime& block, const BlockTime& piece, std::int64_t count = 1);

// Pieces noted from now on belong to this part of the block.
void begin_part(const BlockContext& context, const char* part);

struct ForwardBackward {
  double forward_s = 0;
  double backward_s = 0;
};

// Notes a piece where pieces are noted. Of communication `visible` is not hidden. The bases: see
// kernel_time.cpp and collective_time.cpp.
void note(const BlockContext& context, PieceKind kind, const BlockTime& time);
double passes_without_gradients(const BlockKernels& framework, const Job& job);
// As many forward passes more as the framework asks for, without gradients, each as long as the one
// with them.
void add_passes_without_gradients(const BlockContext& context, BlockTime& time);
void note_communication(const BlockContext& context, PieceKind kind, const GroupShape& group,
                        const ForwardBackward& all, const ForwardBackward& visible);

// Products one after the other, and how many gradients of weights they make: fewer where several
// add to one, which is handed on once.
struct Repeats {
  std::int64_t products = 1;
  std::int64_t gradients = 1;
};

// `count` linear layers of [rows, in] -> [rows, out]: forward, input gradient, weight gradient and
// its accumulation, fp8 casts.
BlockTime linear(const BlockContext& context, const ProductShape& forward, Precision precision,
                 Repeats repeats = {});

// Memory-bound kernels over so many elements.
BlockTime memory_bound(const BlockContext& context, double elements, const Passes& passes);

// Attention proper, with what context parallelism sends around it.
BlockTime core_attention(const BlockContext& context, const LayerSpec& layer);

// What stays visible of collectives over tp, and all of them.
BlockTime tensor_parallel(const BlockContext& context, const ForwardBackward& visible,
                          const ForwardBackward& all);

// Bytes of an element that a linear layer multiplies, as sequence parallelism gathers it: under fp8
// libraries have rounded it (Transformer Engine, pytorch/module/layernorm_linear.py and base.py,
// grad_output_preprocess; torchao float8/float8_tensor_parallel.py).
double gathered_element_bytes(const BlockContext& context);

// A tensor-parallel region: `in` wide at its entry, gathered as so many bytes an element, and `out`
// wide at its exit. `column` is the linear layer behind the entry, `row` the one before the exit:
// what collectives may hide behind.
struct TensorParallelRegion {
  std::int64_t in = 0;
  std::int64_t out = 0;
  double in_element_bytes = 2;
  std::int64_t columns = 1;  // products that read the tokens
  const BlockTime& column;
  const BlockTime& row;
};
BlockTime tensor_parallel_region(const BlockContext& context, const TensorParallelRegion& region);

// Whether the tokens of a layer go by pieces.
bool goes_by_pieces(const BlockContext& context);

// What stays visible of a layer's collectives over tp where tokens go by pieces: those of
// attention's region and those of the FFN's. Products of one piece run beside the communication of
// another through the norm between two regions (validator/program/order_launches.cpp): sums over
// the ranks of one region and gathers of the next hide behind the products of both. Inputs gathered
// again for weight gradients are there before those of the FFN, or come beside attention, which
// takes so long.
struct VisibleRegions {
  ForwardBackward attention = {};
  ForwardBackward ffn = {};
};
VisibleRegions visible_regions(const LayerRegions& regions, double attention_backward_s);
ForwardBackward all_of(const RegionTimes& region);

// (query, key) pairs of one sequence and head: the causal triangle counted once, of a window its
// band, of chunks theirs.
double attention_pairs(const Job& job, const LayerSpec& layer);

}  // namespace shardplan
