// Layers divided over ranks by a model's plan of tensor parallelism, counted by hand. Shapes of
// parameters and tensors that autograd saves were read of two processes of transformers 5.17 on the
// CPU (gloo), as the sizes of this small model have them.
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/transformers/trainer.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kNorms = 2 * 512;

Job divided_job(std::int64_t tp) {
  Job job = small_trainer_job(tp);
  job.global_batch = 1;
  return job;
}

Plan divided_plan(std::int64_t tp, std::int64_t zero = 0) {
  Plan plan = trainer_plan(zero);
  plan.tp = tp;
  return plan;
}

// Norms and the embedding are whole, everything else is a part.
std::int64_t elements_of_rank(std::int64_t tp) {
  return 2 * ((kSmallLayer - kNorms) / tp + kNorms) + kSmallTable + kSmallTable / tp + 512;
}

TEST_CASE("a rank of tensor parallelism has its part of products, and norms and table whole") {
  for (const std::int64_t tp : {2, 4}) {
    CAPTURE(tp);
    const Job job = divided_job(tp);
    const Plan plan = divided_plan(tp);
    CHECK(why_invalid(job, plan) == std::nullopt);
    CHECK(idle_bytes(job, plan, "parameters") == 2 * elements_of_rank(tp));
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 2 * elements_of_rank(tp));
    CHECK(idle_bytes(job, plan, "ddp.buckets") == 0);
  }
}

// The place of weights that are read as parts is allocated in one piece and returned before they
// come, so that none has a segment of its own with a rest that nothing takes. The buffers of
// rotary embeddings are the few bytes above.
TEST_CASE("weights that are read as parts lie in one piece") {
  const PlayedRun divided = trainer_run(divided_job(2), divided_plan(2), 1);
  const AllocationEvent& room = divided.events.at(0);
  CHECK(room.bytes >= 2 * elements_of_rank(2));
  CHECK(room.bytes < 2 * elements_of_rank(2) + 4096);
  CHECK(divided.events.at(1) == AllocationEvent{.id = room.id});
  const PlayedRun whole = trainer_run(divided_job(1), trainer_plan(0), 1);
  CHECK(whole.events.at(0).bytes <= 2 * kSmallTable);
  CHECK(whole.events.at(1).bytes > 0);
}

// AdamW has no kernel for DTensors beside plain tensors: its counts of steps are the host's, and
// the root of a second moment and its quotient are made for each parameter, beside the quotient of
// the one before. The head is the last, behind a norm.
TEST_CASE("DTensors beside plain tensors are updated one by one") {
  const Job job = divided_job(2);
  const Plan plan = divided_plan(2);
  CHECK(idle_bytes(job, plan, "optimizer.step") == 0);
  CHECK(most_bytes(job, plan, MomentKind::kOptimizer, "optimizer.temporaries") ==
        2 * (2 * kSmallTable));
  Job plain = job;
  plain.profile.tensor_parallel_dtensors = false;
  CHECK(idle_bytes(plain, plan, "optimizer.step") > 0);
  CHECK(most_bytes(plain, plan, MomentKind::kOptimizer, "optimizer.temporaries") == 0);
}

// Of each layer the FFN saves gate, its activation, up and their product, 1024 / tp wide.
TEST_CASE("a rank saves its part of what lies between two products, and the stream whole") {
  const Plan one = trainer_plan(0);
  for (const std::int64_t tp : {2, 4}) {
    CAPTURE(tp);
    const Job job = divided_job(tp);
    CHECK(most_bytes(job, divided_plan(tp), MomentKind::kLossForward, "layer.ffn") ==
          2 * 4 * (1024 / tp) * 512 * 2);
    CHECK(most_bytes(job, divided_plan(tp), MomentKind::kLossForward, "layer.norm") ==
          most_bytes(divided_job(1), one, MomentKind::kLossForward, "layer.norm"));
  }
}

// Logits of all ranks arrive one behind the other, 1024 * 512 in bf16, and are put beside each
// other; plain tensors come into a list, by way of one tensor of all.
TEST_CASE("every rank gathers all logits") {
  Job job = divided_job(2);
  const auto gathered = [&] {
    return most_bytes(job, divided_plan(2), MomentKind::kLossForward, "tensor_parallel.gathered");
  };
  CHECK(gathered() == 2 * 1024 * 512);
  job.profile.tensor_parallel_dtensors = false;
  CHECK(gathered() == 2 * 1024 * 512 + 2 * 512 * 512);
}

// Halves of each product's weights on either rank of a pair, divided by FSDP2 over two pairs.
TEST_CASE("plain parts of weights are sharded once more") {
  Job job = small_trainer_job(4);
  job.global_batch = 2;
  job.profile.tensor_parallel_dtensors = false;
  const Plan plan = divided_plan(2, 3);
  CHECK(why_invalid(job, plan) == std::nullopt);
  CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * elements_of_rank(2) / 2);
}

TEST_CASE("a step of tensor parallelism sums a gradient for each product, and gathers logits") {
  const Job job = divided_job(2);
  CHECK(estimate_step_time(job, divided_plan(2)).exposed_tp_s > 0);
  CHECK(estimate_step_time(divided_job(1), divided_plan(1)).exposed_tp_s == 0);
  const BlockTime layer = layer_time(job, divided_plan(2), job.model.layers.front());
  CHECK(layer.backward_tp_s == doctest::Approx(5. / 2 * layer.forward_tp_s));
}

// Operators on DTensors pass through Python, forward, backward and in the update, one step after
// the other: what hosts take is a layer's, whatever the size of its weights.
TEST_CASE("hosts decide how long layers of DTensors take") {
  Job job = divided_job(2);
  const auto time_of = [&](bool are_dtensors, std::int64_t layers) {
    job.profile.tensor_parallel_dtensors = are_dtensors;
    job.model.layers.resize(static_cast<std::size_t>(layers), job.model.layers.front());
    return estimate_step_time(job, divided_plan(2));
  };
  const StepTime two = time_of(true, 2);
  const StepTime four = time_of(true, 4);
  CHECK(four.host_s - two.host_s > time_of(false, 4).host_s);
  CHECK(four.optimizer_s == doctest::Approx(2 * two.optimizer_s));
  CHECK(four.optimizer_s > 10 * time_of(false, 4).optimizer_s);
}

}  // namespace
}  // namespace shardplan::transformers
