// What goes to a rank's GPU before a run and comes back after it: weights, inputs, scalars.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "validator/cuda/rank.h"
#include "validator/program/initial_tensors.h"
#include "validator/program/run_data.h"

namespace shardplan {

// A whole tensor on the host, element by element as double.
class HostCopy {
 public:
  explicit HostCopy(const DeviceView& view);
  void fetch();
  void store() const;
  double at(std::int64_t element) const;
  void set(std::int64_t element, double value);

 private:
  template <class T>
  T read(std::int64_t element) const;
  template <class T>
  void write(std::int64_t element, T value);

  DeviceView view_;
  std::vector<unsigned char> bytes_;
};

// Copies of one rank's tensors by index, fetched when first asked for.
class HostCopies {
 public:
  explicit HostCopies(const CudaRank& rank) : rank_(rank) {}
  HostCopy& of(std::int64_t tensor);
  void store() const;

 private:
  const CudaRank& rank_;
  std::map<std::int64_t, HostCopy> copies_;
};

// All of these work on the calling thread's current device, the rank's.

// Weights and master weights; everything else persistent becomes zero.
void load_tensors(CudaRank& rank, const Tensors& tensors);
// The same with random weights of the usual size, norms one, without a host copy of the model.
void load_random(CudaRank& rank, std::uint64_t seed);
void fill_inputs(const CudaRank& rank, const Batch& batch);

// After a step.
// This rank's share of the mean loss, the routers' included; 0 where another speaks for it.
double loss_share(const CudaRank& rank);
// Of all gradients, before they were clipped; the same on every rank.
double gradient_norm(const CudaRank& rank);
// plan.moe_buffer_factor that the rank would have needed; nothing if all rows fitted.
std::optional<double> needed_buffer_factor(const CudaRank& rank);

}  // namespace shardplan
