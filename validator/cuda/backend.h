// Runs the programs of all ranks on the GPUs of this machine, one thread for each rank: the twin of
// HostBackend, for parity. A machine with fewer GPUs than ranks runs one rank at most on each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "validator/cuda/rank.h"
#include "validator/program/initial_tensors.h"
#include "validator/program/run_data.h"

namespace shardplan {

enum class CudaPrecision {
  kAsPlanned,
  kFloat,  // fp32 wherever the plan has bf16
};

enum class Collectives {
  kFastest,  // by copy engines where members reach each other's memory
  kNccl,
};

class CudaBackend {
 public:
  // Throws std::runtime_error where there are fewer GPUs than programs. Programs may be those of
  // the first ranks alone, for measuring: copies of what an absent rank would have go into the
  // memory of a rank on another GPU, and NCCL's collectives with absent ranks move nothing.
  CudaBackend(const std::vector<Program>& programs, CudaPrecision precision,
              AttentionKernels kernels = AttentionKernels::kFastest,
              const GemmChoices& choices = {}, Collectives collectives = Collectives::kFastest);

  // As HostBackend.
  void load(const Tensors& tensors);
  double step(const Batch& batch, double learning_rate);
  // The same with hooks around the operations of some ranks: by rank, none beyond the last.
  double step(const Batch& batch, double learning_rate, const std::vector<LaunchHooks>& hooks);

  // Random weights of the usual size, without a host copy of the model: for measuring speed.
  void load_random(std::uint64_t seed);
  Tensors gradients() const { return collected(&ParameterPart::gradient); }
  Tensors weights() const { return collected(&ParameterPart::weight); }
  Tensors master_weights() const { return collected(&ParameterPart::master); }

  // As CudaRank says of the first rank.
  std::string attention_used() const { return ranks_.front()->attention_used(); }
  std::string products_used() const { return ranks_.front()->products_used(); }
  // plan.moe_buffer_factor that some rank would have needed; nothing if all rows fitted.
  std::optional<double> needed_buffer_factor() const;
  // What the driver says is taken of the rank's GPU, by whomever.
  std::int64_t device_used_bytes(std::int64_t rank) const;

 private:
  bool is_here(std::int64_t rank) const;
  std::vector<std::int64_t> present(std::vector<std::int64_t> ranks) const;
  bool all_here(const CommunicatorKey& key) const;
  // Whose memory it is for the one that asks: the rank's own where it is here.
  std::int64_t holder_of(std::int64_t rank, const CommunicatorKey& key, std::int64_t asking) const;
  void reach_members(CudaRank& rank) const;
  void reach_peers(CudaRank& rank) const;
  Tensors collected(ParameterRange ParameterPart::*range) const;

  std::vector<std::unique_ptr<CudaRank>> ranks_;
  Tensors shapes_;
  std::int64_t num_steps_ = 0;
};

}  // namespace shardplan
