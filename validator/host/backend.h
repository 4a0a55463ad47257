// Runs the programs of all ranks on the host: threads stand for ranks, arenas are plain memory with
// the programs' offsets, so that a wrong address or lifetime shows as a wrong number.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "validator/host/communicator.h"
#include "validator/program/initial_tensors.h"
#include "validator/program/program.h"
#include "validator/program/run_data.h"

namespace shardplan {

// Every byte of the table is this many bytes of host memory, so that an element of two bytes has
// room for a double.
inline constexpr std::int64_t kHostBytesPerByte = 4;

enum class DeadMemory {
  kKept,      // as on a GPU
  kPoisoned,  // NaN before a tensor is born and after it has died
};

template <class T>
class HostBackend {
 public:
  HostBackend(const std::vector<Program>& programs, DeadMemory dead_memory);
  // One rank of a run whose other ranks are elsewhere; calls before(i) before operation i. step()
  // returns this rank's share of the loss; gradients and weights cannot be put together.
  HostBackend(const Program& program, HostExchange<T>& others,
              std::function<void(std::int64_t)> before);

  // Weights and master weights from the logical tensors; everything else persistent is zero.
  void load(const Tensors& tensors);

  // One optimizer step over the global batch; returns the mean loss.
  double step(const Batch& batch, double learning_rate);
  // Of all gradients of the last step, before they were clipped.
  double gradient_norm() { return static_cast<double>(clip_of(ranks_.front())(0, 1)); }

  // After a step: nothing, or plan.moe_buffer_factor that some rank would have needed. The step's
  // results mean nothing then.
  std::optional<double> needed_buffer_factor();

  // Logical tensors put together from all ranks. Throws std::logic_error where two ranks hold
  // different values of one element, or no rank holds one.
  Tensors gradients() const { return collected(&ParameterPart::gradient); }
  Tensors weights() const { return collected(&ParameterPart::weight); }
  Tensors master_weights() const { return collected(&ParameterPart::master); }

 private:
  struct Rank {
    Program program;
    std::vector<T> arenas[2];
    std::vector<std::vector<std::int64_t>> born;  // tensors by operation
    std::vector<std::vector<std::int64_t>> dying;
  };

  HostView<T> resolve(Rank& rank, const View& view) const;
  HostView<T> whole(Rank& rank, std::int64_t tensor) const;
  HostView<T> clip_of(Rank& rank) const { return whole(rank, rank.program.clip); }
  void poison(Rank& rank, const std::vector<std::int64_t>& tensors) const;
  void fill_inputs(Rank& rank, const Batch& batch, double learning_rate) const;
  void run(Rank& rank, HostExchange<T>& exchange) const;
  void run_all();
  Tensors collected(ParameterRange ParameterPart::*range) const;

  std::vector<Rank> ranks_;
  DeadMemory dead_memory_;
  HostExchange<T>* others_ = nullptr;
  std::function<void(std::int64_t)> before_ = {};
  Tensors shapes_;  // of the logical tensors, filled with NaN
  std::int64_t num_steps_ = 0;
};

}  // namespace shardplan
