// Random valid jobs and plans for property tests: dense and mixture-of-experts models, GQA and MLA,
// all profiles, all axes of a plan. Deterministic for a seed.
#pragma once

#include <cstdint>
#include <random>

#include "data/read/library.h"
#include "estimator/plan/job.h"

namespace shardplan {

struct RandomCase {
  Job job;
  Plan plan;
};

// The job on GPUs whose copy engines were measured: faster than NCCL on two H200.
Job with_measured_copies(Job job);

// Draws until a plan is valid for its profile. The library gives profiles, GPUs and clusters.
class RandomJobs {
 public:
  RandomJobs(const Library& library, std::uint64_t seed);

  RandomCase next();  // any profile
  RandomCase next(const FrameworkProfile& profile);
  // A valid plan of the job that has some of the axes of `near`.
  Plan next_plan(const Job& job, const Plan& near);

 private:
  std::int64_t pick(std::initializer_list<std::int64_t> values);
  bool chance(double share);
  ModelSpec model();
  void add_experts(ModelSpec& model);
  Job job(const FrameworkProfile& profile);
  Plan plan(const Job& job);
  Recompute recompute();
  std::vector<std::int64_t> uneven_layers(const Job& job, std::int64_t chunks);
  void tune(Job& job);
  void make_llama3(Job& job);
  void make_titan_plan(const Job& job, Plan& plan);

  std::vector<FrameworkProfile> profiles_;
  ClusterSpec cluster_;
  std::mt19937_64 random_;
  std::int64_t num_drawn_ = 0;  // every third case has Muon if it can
};

}  // namespace shardplan
