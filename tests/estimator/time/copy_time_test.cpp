// Steps on GPUs whose copy engines were measured: who copies, what, and where.
#include <doctest/doctest.h>

#include <string>

#include "data/read/library.h"
#include "estimator/estimate.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

Job job_of(const std::string& framework, const std::string& cluster) {
  const Library library;
  Job job = {.model = library.model("llama3-8b").model,
             .cluster = library.cluster(cluster),
             .profile = library.framework(framework),
             .sequence_length = 8192,
             .global_batch = 32};
  return job;
}

struct Steps {
  StepTime by_nccl;
  StepTime by_copies;
};
Steps steps_of(const Job& job, const Plan& plan) {
  Job without = job;
  without.cluster.gpu.times->copies = {};
  return {.by_nccl = estimate_step_time(without, plan),
          .by_copies = estimate_step_time(with_measured_copies(job), plan)};
}

TEST_CASE("our own trainer's gathers, ring shifts and messages within a host take what copies do") {
  Job job = job_of("native", "1x8-h200");
  const Steps tp = steps_of(job, {.tp = 8, .sequence_parallel = true});
  CHECK(tp.by_copies.exposed_tp_s < tp.by_nccl.exposed_tp_s);
  CHECK(tp.by_copies.compute_s == tp.by_nccl.compute_s);
  for (const CpMethod method : {CpMethod::kRing, CpMethod::kAllGather}) {
    const Steps cp = steps_of(job, {.cp = 4, .zero = 0, .cp_method = method});
    CHECK(cp.by_copies.exposed_cp_s < cp.by_nccl.exposed_cp_s);
  }
  for (const std::int64_t zero : {1, 2, 3}) {
    const Steps dp = steps_of(job, {.zero = zero});
    CHECK(dp.by_copies.exposed_dp_s < dp.by_nccl.exposed_dp_s);
  }
  job.profile.overlap_p2p_comm = false;
  const Steps pp = steps_of(job, {.pp = 4, .schedule = Schedule::k1F1B});
  CHECK(pp.by_copies.exposed_pp_s < pp.by_nccl.exposed_pp_s);
}

TEST_CASE("gradients and all-reduces go by NCCL whatever copies take") {
  const Job job = job_of("native", "1x8-h200");
  for (const Plan& plan : {Plan{.zero = 0}, Plan{.tp = 4, .zero = 0, .sequence_parallel = false}}) {
    const Steps steps = steps_of(job, plan);
    CHECK(steps.by_copies.total_s == steps.by_nccl.total_s);
  }
}

TEST_CASE("groups across hosts, and all of other frameworks, go by NCCL") {
  const Steps hosts = steps_of(job_of("native", "2x8-h200"), {.zero = 3});
  CHECK(hosts.by_copies.total_s == hosts.by_nccl.total_s);
  for (const char* framework : {"megatron", "torchtitan"}) {
    const Job job = job_of(framework, "1x8-h200");
    for (const Plan& plan : {Plan{.tp = 8, .zero = 1, .sequence_parallel = true}, Plan{.cp = 4},
                             Plan{.zero = 3}, Plan{.pp = 4, .schedule = Schedule::k1F1B}}) {
      const Steps steps = steps_of(job, plan);
      CHECK(steps.by_copies.total_s == steps.by_nccl.total_s);
    }
  }
}

}  // namespace
}  // namespace shardplan
