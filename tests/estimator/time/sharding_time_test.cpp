// Data parallelism's exposed seconds: laws of links, hosts and groups, over case lines.
#include "estimator/time/sharding_time.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "data/read/case_line.h"
#include "estimator/estimate.h"

namespace shardplan {
namespace {

Case case_of(const std::string& members) {
  return read_case(R"({"schema":1,"id":"case",)" + members + "}", "case", Library());
}

// 128 GPUs in nodes of 8, of which every expert's gradients cross the network from each node once.
Case experts_over_nodes() {
  return case_of(R"("framework":"megatron","model":"mixtral-8x7b","cluster":"16x8-h100",
    "training":{"sequence_length":4096,"micro_batch":1,"global_batch":128,"precision":"bf16"},
    "plan":{"zero":1,"ep":8},
    "options":{"overlap_grad_reduce":true,"overlap_param_gather":false})");
}

TEST_CASE("what hides of experts' gradients goes by the links of their own group") {
  Case question = experts_over_nodes();
  const StepTime beside = estimate_step_time(question.job, question.plan);
  question.job.profile.overlap_grad_reduce = false;
  const StepTime alone = estimate_step_time(question.job, question.plan);
  // By hand: one rank of a node takes 42.5 of the 104 GB/s that products leave to a collective, so
  // that nearly all of the 0.39 s of the backward pass hides something.
  const double hidden_s = alone.exposed_dp_s - beside.exposed_dp_s;
  CHECK(hidden_s > 0.3);
  CHECK(hidden_s < 0.4);
}

TEST_CASE("faster rails never make a step slower, experts' groups or not") {
  const std::vector<std::string> plans = {
      R"("framework":"native","model":"moonlight-16b-a3b","cluster":"128x8-h200",
         "training":{"sequence_length":8192,"micro_batch":1,"global_batch":512},
         "plan":{"tp":4,"zero":2,"ep":1,"sequence_parallel":true})",
      R"("framework":"native","model":"qwen3-30b-a3b","cluster":"16x8-h200",
         "training":{"sequence_length":4096,"micro_batch":2,"global_batch":512},
         "plan":{"tp":2,"zero":3,"ep":1,"sequence_parallel":true,
                 "recompute":{"granularity":"full","method":"uniform","num_layers":1}})"};
  for (const std::string& plan : plans) {
    CAPTURE(plan);
    Case question = case_of(plan);
    const double usual = question.job.cluster.inter_node_bytes_per_s;
    double before_s = 1e9;
    for (const double times : {0.5, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0}) {
      question.job.cluster.inter_node_bytes_per_s = times * usual;
      const double step_s = estimate_step_time(question.job, question.plan).total_s;
      CHECK(step_s <= before_s * (1 + 1e-12));
      before_s = step_s;
    }
  }
}

TEST_CASE("a slower host never makes a step faster") {
  Case question = case_of(R"("framework":"torchtitan","model":"llama3-70b","cluster":"4x8-b200",
    "training":{"sequence_length":2048,"micro_batch":1,"global_batch":16},
    "plan":{"cp":4,"zero":3})");
  double before_s = 0;
  for (const double slowdown : {0.3, 0.4, 0.5, 0.8, 1.0, 1.5, 2.0}) {
    question.job.cluster.host_slowdown = slowdown;
    const double step_s = estimate_step_time(question.job, question.plan).total_s;
    CHECK(step_s >= before_s * (1 - 1e-12));
    before_s = step_s;
  }
}

}  // namespace
}  // namespace shardplan
