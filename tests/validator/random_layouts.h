// Random layouts of tiny models that reach every feature of lowering, and their judge.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/validator/host/reference_model.h"
#include "tests/validator/layouts.h"
#include "validator/check/checks.h"

namespace shardplan {

// Choices in turn from a counter-based generator: the same list on every machine.
class Chooser {
 public:
  explicit Chooser(std::uint64_t seed) : seed_(seed) {}
  template <class Value>
  Value one_of(const std::vector<Value>& values) {
    const double uniform = initial_value("choice", next_++, seed_) / 0.4 + 0.5;
    const auto index = static_cast<std::size_t>(uniform * static_cast<double>(values.size()));
    return values[std::min(index, values.size() - 1)];
  }

 private:
  std::uint64_t seed_;
  std::int64_t next_ = 0;
};

struct Layout {
  Job job = {};
  Plan plan = {};

  std::string text() const;
};

// Choices of what is recomputed, for models with and without experts.
const std::vector<Recompute>& recompute_choices(bool has_experts);

// Different layouts of up to 16 ranks, dense and with experts, all valid and lowered.
std::vector<Layout> random_layouts(std::uint64_t seed, std::int64_t count);

// How many of the layouts use each feature, by name; a feature that none uses is there with 0.
std::map<std::string, std::int64_t> feature_counts(const std::vector<Layout>& layouts);

// Loss and gradients of the plain model for random_batch(job, 3), which depend on the model alone.
const ReferenceStep& reference_of(const Job& job);

// The first problem of the programs, or how loss or gradients of one step differ from the
// reference by more than the tolerances; empty: neither.
struct Tolerance {
  double loss = 1e-10;  // relative, of float64 sums in another order
  double gradients = 1e-10;
};
template <class T>
std::string difference_from_reference(const Layout& layout, const Tolerance& tolerance);

}  // namespace shardplan
