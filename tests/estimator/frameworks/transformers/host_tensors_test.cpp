// Saved tensors on the host, and FFNs by tiles.
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/eager/offload.h"
#include "estimator/frameworks/transformers/host_memory.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kStream = 512 * 512 * 2;  // bytes of a layer's input

Plan offloading(bool recomputes) {
  Plan plan = trainer_plan(0);
  plan.offload.activations = true;
  if (recomputes) {
    plan.recompute = {.granularity = RecomputeGranularity::kFull};
  }
  return plan;
}

// OffloadActivations holds the last five tensors that were saved: of eight layers as many as of
// two, where without it every layer adds what it saves.
TEST_CASE("what is on the host takes no memory of the GPU, however many layers there are") {
  Job two = small_trainer_job(1);
  Job eight = two;
  eight.model.layers.resize(8, two.model.layers.front());
  const auto saved = [](const Job& job, const Plan& plan) {
    return most_bytes(job, plan, MomentKind::kLossForward, "layer.ffn");
  };
  CHECK(saved(eight, trainer_plan(0)) == 4 * saved(two, trainer_plan(0)));
  CHECK(saved(eight, offloading(false)) == saved(two, offloading(false)));
  CHECK(saved(eight, offloading(false)) < saved(two, trainer_plan(0)) / 2);
}

// A tensor that is gone while its copy leaves is not taken for the next one, which is new memory
// at the same place on this machine's heap as often as not.
TEST_CASE("every tensor that is saved goes to the host, wherever the one before it lay") {
  eager::Graph graph(0, 132);
  eager::HostTensors host(graph, true, true);
  std::vector<std::shared_ptr<void>> saved;
  for (int i = 0; i < 4; ++i) { saved.push_back(host.pack(graph.make(1024, DType::kBf16))); }
  CHECK(host.most_bytes() == 4 * 2048);
  const eager::Tensor twice = graph.make(1024, DType::kBf16);
  for (int i = 0; i < 2; ++i) { saved.push_back(host.pack(twice)); }
  CHECK(host.most_bytes() == 5 * 2048);
}

// What recomputation keeps, an input of each layer, goes there alone; the loss's tensors beside it
// are the same with and without layers.
TEST_CASE("with recomputation inputs of layers go to the host") {
  Job two = small_trainer_job(1);
  Job eight = two;
  eight.model.layers.resize(8, two.model.layers.front());
  const std::int64_t more = host_bytes(eight, offloading(true)) - host_bytes(two, offloading(true));
  CHECK(more == 6 * kStream);
  CHECK(host_bytes(two, trainer_plan(0)) == 0);
  for (Job* job : {&two, &eight}) {
    job->profile.activation_offload = ActivationOffload::kLayerInputs;
    CHECK(host_bytes(*job, offloading(true)) == job->model.num_layers() * kStream);
  }
  const auto residual = [](const Job& job, const Plan& plan) {
    return most_bytes(job, plan, MomentKind::kLossForward, "layer.residual");
  };
  CHECK(residual(eight, offloading(true)) == residual(two, offloading(true)));
}

// Frozen weights of products that pass a gradient on are saved; axolotl's manager for adapters
// takes them for activations. Each is a power of two here: q and the output's 512 * 512, k and v
// 256 * 512, gate, up and down 512 * 1024, in bf16, of two layers; but for q, k and v of the first,
// whose input has no gradient.
TEST_CASE("a manager that is not told the weights copies frozen ones to the host") {
  Job job = small_trainer_job(1);
  job.adapters = adapters_on_all(8);
  const std::int64_t spared = host_bytes(job, offloading(false));
  job.profile.offload_spares_weights = false;
  const std::int64_t linear = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024;
  const std::int64_t first = 512 * 512 + 2 * 512 * 256;
  CHECK(host_bytes(job, offloading(false)) - spared >= 2 * (2 * linear - first));
}

TEST_CASE("copies that the work does not hide make a step longer") {
  const Job job = small_trainer_job(1);
  const double without = estimate_step_time(job, trainer_plan(0)).total_s;
  Job waits = job;
  waits.profile.activation_offload = ActivationOffload::kOneStream;
  CHECK(estimate_step_time(job, offloading(false)).total_s >= without);
  CHECK(estimate_step_time(waits, offloading(false)).total_s >
        estimate_step_time(job, offloading(false)).total_s);
}

// Of an FFN its input stays, which the norm in front of it has made and counts.
TEST_CASE("an FFN by tiles keeps its input alone, and works on a tile at a time") {
  Job job = small_trainer_job(1);
  const Plan plan = trainer_plan(0);
  const auto most = [&](MomentKind moment) { return most_bytes(job, plan, moment, "layer.ffn"); };
  const std::int64_t whole = most(MomentKind::kLossForward);
  CHECK(whole == 2 * 4 * 1024 * 512 * 2);
  job.profile.ffn_tiles = 4;
  CHECK(most(MomentKind::kLossForward) == 0);
  // Of a tile of 128 tokens gate, activation, up and product; outputs of tiles, and all of them.
  CHECK(most(MomentKind::kForward) <= 4 * 1024 * 128 * 2 + 2 * kStream);
  CHECK(most(MomentKind::kLossBackward) <= 5 * 1024 * 128 * 2 + kStream);
  const LayerSpec& layer = job.model.layers.front();
  const BlockTime whole_time = layer_time(small_trainer_job(1), plan, layer);
  CHECK(layer_time(job, plan, layer).forward_s == whole_time.forward_s);
  const double longer_s =
      layer_time(job, plan, layer).backward_input_s - whole_time.backward_input_s;
  CHECK(longer_s > 0.1 * whole_time.forward_s);
  CHECK(longer_s < whole_time.forward_s);
}

}  // namespace
}  // namespace shardplan::transformers
