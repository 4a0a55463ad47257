// Writes the allocations and frees of blocks one after the other, and of what outlives them: what
// a block hands on to the next, what the first products make, what a pipeline's loop holds.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "estimator/ledger/allocation.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/ledger/block_script.h"

namespace shardplan {

// Tensors of one block of one microbatch, by row; 0: not allocated.
using BlockTensors = std::vector<std::int64_t>;

enum class Thread { kMain, kAutograd };

class TimelineWriter {
 public:
  explicit TimelineWriter(const BlockSet& blocks);

  const BlockScript& script(BlockKind kind) const {
    return scripts_[static_cast<std::size_t>(kind)];
  }

  // Whether some block has rows that stay for the microbatches after.
  bool has_gradients() const { return has_gradients_; }

  // The tensor's id. No bytes, no tensor: PyTorch's allocator is not called then (allocate of
  // c10/cuda/CUDACachingAllocator.cpp).
  std::int64_t allocate(std::int64_t bytes, AllocationStream stream = AllocationStream::kCompute);
  void free(std::int64_t& id);
  // Streams beside the main one have come to their end.
  void end_uses();
  // Events of tensors whose ids count from 1, before any other.
  void add(const std::vector<AllocationEvent>& built);

  // What the first gather and the first product of a thread will make, and stays.
  void await_gather(std::int64_t bytes) { gather_bytes_ = bytes; }
  void await_products(std::int64_t bytes) { workspace_bytes_.fill(bytes); }
  // Tensors that the first rows of made_once of their size make, or else the first backward.
  void await_once(std::vector<std::int64_t> bytes) { awaited_once_ = std::move(bytes); }
  void start(Thread thread) { thread_ = thread; }
  // Rows that routers send to the blocks to come, over their mean.
  void set_load(double load) { load_ = load; }

  // A stage that receives its inputs: the loop holds the last one until the next forward has run
  // or a backward follows it, and its gradient until the next backward has (schedules.py,
  // forward_backward_pipelining_without_interleaving), both until the next step starts.
  void receive_inputs() { receives_ = true; }
  bool receives() const { return receives_; }
  void hold_input(std::int64_t& id);
  void drop_input() { free(last_input_); }
  void drop_received();

  // What the last block has handed on; the block behind takes it over if it has room for just that.
  std::int64_t take_handed();
  std::int64_t take_over(std::int64_t bytes, AllocationStream stream);
  void end_forward();
  void end_backward();

  // Rows that are already there stay. `heads_group`: what stays with a recomputed group is not
  // freed.
  void run(BlockKind kind, const std::vector<RowEvent>& part, BlockTensors& tensors,
           bool heads_group = false);
  // As run. `held_gradient`: the output gradient, if others hold it: what is added to it makes a
  // new one.
  void run_backward(BlockKind kind, BlockTensors& tensors, std::int64_t held_gradient = 0);

  std::vector<AllocationEvent> events;

 private:
  struct Handed {
    std::int64_t id = 0;
    std::int64_t bytes = 0;
  };

  std::int64_t loaded_bytes(const ScriptRow& row) const;
  std::int64_t make(const ScriptRow& row);
  std::int64_t make_special(const ScriptRow& row);
  void make_once(std::int64_t& bytes);
  void make_awaited(std::int64_t bytes);
  void end(const ScriptRow& row, std::int64_t& id);
  void end_special(const ScriptRow& row, std::int64_t& id);

  std::array<BlockScript, kNumBlockKinds> scripts_;
  bool has_gradients_ = false;
  std::int64_t last_id_ = 0;
  Handed handed_;
  std::int64_t gather_bytes_ = 0;
  std::array<std::int64_t, 2> workspace_bytes_{};  // by Thread
  Thread thread_ = Thread::kMain;
  double load_ = 1;
  std::vector<std::int64_t> awaited_once_;
  bool has_uses_ = false;  // events of kFreeInUse since the last kEndUses
  bool receives_ = false;
  std::int64_t last_input_ = 0;  // tensors
  std::int64_t last_input_gradient_ = 0;
};

}  // namespace shardplan
