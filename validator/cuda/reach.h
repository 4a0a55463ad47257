// Memory of other ranks of the same host that this rank's GPU uses as its own: handles of the
// arenas pass through the store of the run, and the arenas stay mapped as long as this lives.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "validator/cuda/memory.h"
#include "validator/cuda/rank.h"
#include "validator/supervise/rank_backend.h"

namespace shardplan {

class ReachedRanks {
 public:
  // Publishes this rank's arenas. Throws CudaError.
  ReachedRanks(CudaRank& rank, RunStore& store);

  // Members of a group of experts write into each other's arenas. Throws CudaError, RunFailure
  // where members are on different machines, or std::logic_error where they have the experts' rows
  // at different places.
  void share_experts_memory();
  // Copies serve all communicators that they can, or on any rank's failure none. All ranks call it.
  void serve_by_copies();

 private:
  std::int64_t own() const { return rank_.program().rank; }
  const ArenaPair& arenas_of(std::int64_t rank);
  bool can_copy_within(std::size_t use);

  CudaRank& rank_;
  RunStore& store_;
  MappedArenas mapped_;
  std::map<std::int64_t, ArenaPair> arenas_;  // by rank, as they are mapped here
};

}  // namespace shardplan
