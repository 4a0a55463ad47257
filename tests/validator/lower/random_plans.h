// Random jobs and plans that lower() knows, from hidden 16 on one GPU to the widths of Llama 3 405B
// on thousands. Layers and microbatches are few, so that a rank's program is short.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

struct RandomPlan {
  Job job;
  Plan plan;
  std::string text() const;
};

class RandomPlans {
 public:
  explicit RandomPlans(std::uint64_t seed) : random_(seed) {}

  RandomPlan next();
  // Of the first, the last and one other pipeline stage, each at a corner of its grid.
  std::vector<std::int64_t> ranks_of(const RandomPlan& drawn);

 private:
  std::int64_t pick(std::initializer_list<std::int64_t> values);
  bool chance(double share);
  ModelSpec model();
  Recompute recompute();
  Plan plan(const ModelSpec& model);
  Job job_of(const ModelSpec& model, Plan& plan);

  std::mt19937_64 random_;
};

}  // namespace shardplan
