#include "validator/cuda_backend.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/cuda_check.h"
#include "tests/kernels/device.h"
#include "tests/validator/layouts.h"

namespace shardplan {
namespace {

int num_devices() {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  return devices;
}

// Widths that the kernels take: heads of a multiple of 16, all else of 8.
Job small_job(std::int64_t world, std::int64_t head_dim) {
  Job job = tiny_job(tiny_model(), world);
  job.model.num_heads = 4;
  job.model.num_kv_heads = 2;
  job.model.head_dim = head_dim;
  job.model.hidden = 4 * head_dim;
  job.model.ffn = 7 * head_dim;
  job.model.vocab = 509;
  job.profile.vocab_multiple = 8;
  job.profile.cross_entropy_chunks = 4;
  job.sequence_length = 64;
  return job;
}

struct Layout {
  std::string name;
  Plan plan;
};

std::vector<Layout> layouts() {
  std::vector<Layout> list;
  const auto add = [&](const std::string& name, const auto& change) {
    Layout layout{.name = name, .plan = {}};
    layout.plan.dp = 1;
    change(layout.plan);
    list.push_back(layout);
  };
  using enum RecomputeGranularity;
  add("one rank", [](Plan&) {});
  add("one rank, recompute", [](Plan& p) {
    p.recompute = {.granularity = kFull, .method = RecomputeMethod::kUniform, .num_layers = 2};
  });
  add("dp 2", [](Plan& p) { p.dp = 2; });
  add("dp 2, zero 1", [](Plan& p) {
    p.dp = 2;
    p.zero = 1;
  });
  add("tp 2", [](Plan& p) { p.tp = 2; });
  add("tp 2, sp", [](Plan& p) {
    p.tp = 2;
    p.sequence_parallel = true;
  });
  add("cp 2, gathered", [](Plan& p) {
    p.cp = 2;
    p.cp_method = CpMethod::kAllGather;
  });
  add("cp 2, ring", [](Plan& p) {
    p.cp = 2;
    p.cp_method = CpMethod::kRing;
  });
  add("pp 2", [](Plan& p) {
    p.pp = 2;
    p.schedule = Schedule::k1F1B;
  });
  add("pp 2, vpp 2", [](Plan& p) {
    p.pp = 2;
    p.vpp = 2;
    p.schedule = Schedule::kInterleaved1F1B;
  });
  add("tp 2, sp, pp 2", [](Plan& p) {
    p.tp = 2;
    p.sequence_parallel = true;
    p.pp = 2;
    p.schedule = Schedule::k1F1B;
  });
  add("cp 2, dp 2, zero 1", [](Plan& p) {
    p.cp = 2;
    p.dp = 2;
    p.zero = 1;
    p.cp_method = CpMethod::kAllGather;
  });
  return list;
}

// Weights as a model begins with them: a row of a product keeps the size of its input. bf16 holds
// them exactly, so that both sides begin with the same numbers.
Tensors initial_weights(const ModelSpec& model) {
  Tensors tensors = initial_tensors(model, 7);
  for (auto& [name, matrix] : tensors) {
    const double scale = matrix.rows == 1 ? 1 : 5 / std::sqrt(static_cast<double>(matrix.rows));
    for (double& value : matrix.values) {
      value = to_double(from_double<__nv_bfloat16>(value * scale));
    }
  }
  return tensors;
}

struct Distance {
  double whole = 0;         // ||a - b|| / ||b|| of all gradients together
  double worst_tensor = 0;  // the largest of one tensor
  std::string where;
};

Distance distance(const Tensors& a, const Tensors& b) {
  Distance result;
  double all_differences = 0;
  double all_norms = 0;
  for (const auto& [name, want] : b) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < want.values.size(); ++i) {
      const double apart = a.at(name).values[i] - want.values[i];
      difference += apart * apart;
      norm += want.values[i] * want.values[i];
    }
    all_differences += difference;
    all_norms += norm;
    if (const double relative = std::sqrt(difference / norm); !(relative <= result.worst_tensor)) {
      result.worst_tensor = relative;
      result.where = name;
    }
  }
  result.whole = std::sqrt(all_differences / all_norms);
  return result;
}

struct Tolerance {
  double loss = 0;
  double whole = 0;
  double tensor = 0;
};

struct Setting {
  CudaPrecision precision;
  std::int64_t head_dim;
  Tensors (*weights)(const ModelSpec& model);
  Tolerance tolerance;
};

void check_layout(const Layout& layout, const Setting& setting) {
  const std::int64_t world = layout.plan.tp * layout.plan.pp * layout.plan.cp * layout.plan.dp;
  if (world > num_devices()) {
    MESSAGE("SKIPPED: " << layout.name << ": needs " << world << " GPUs");
    return;
  }
  CAPTURE(layout.name);
  REQUIRE(world > 0);
  const Job job = small_job(world, setting.head_dim);
  const Batch batch = random_batch(job, 3);
  const Tensors tensors = setting.weights(job.model);
  HostBackend<double> host(lower_all(job, layout.plan), DeadMemory::kKept);
  host.load(tensors);
  CudaBackend cuda(lower_all(job, layout.plan), setting.precision);
  cuda.load(tensors);
  for (int step = 0; step < 2; ++step) {
    const double want = host.step(batch, 1e-3);
    const double got = cuda.step(batch, 1e-3);
    CHECK(std::abs(got - want) < setting.tolerance.loss * want);
    if (step > 0 && setting.precision == CudaPrecision::kAsPlanned) {
      continue;  // AdamW's first update is nearly the gradient's sign: small ones flip
    }
    const Distance gradients = distance(cuda.gradients(), host.gradients());
    CAPTURE(gradients.where);
    CHECK(gradients.whole < setting.tolerance.whole);
    CHECK(gradients.worst_tensor < setting.tolerance.tensor);
  }
  CudaBackend again(lower_all(job, layout.plan), setting.precision);
  again.load(tensors);
  again.step(batch, 1e-3);
  again.step(batch, 1e-3);
  CHECK(bitwise_equal(again.gradients(), cuda.gradients()));
}

}  // namespace

TEST_CASE("programs on GPUs in fp32 equal the host's in float64 to 1e-5, and repeat bit for bit") {
  const Setting setting{.precision = CudaPrecision::kFloat,
                        .head_dim = 16,
                        .weights = [](const ModelSpec& model) { return initial_tensors(model, 7); },
                        .tolerance = {.loss = 1e-5, .whole = 1e-5, .tensor = 1e-5}};
  for (const Layout& layout : layouts()) { check_layout(layout, setting); }
}

// A single tensor may be further off than all together: where attention is nearly uniform, the
// gradients of its queries and keys are small differences of numbers that bf16 rounds.
TEST_CASE("programs on GPUs in bf16 have the loss to 2e-3 and gradients to 1e-2, norm-wise") {
  const Setting setting{.precision = CudaPrecision::kAsPlanned,
                        .head_dim = 64,
                        .weights = initial_weights,
                        .tolerance = {.loss = 2e-3, .whole = 1e-2, .tensor = 4e-2}};
  for (const Layout& layout : layouts()) { check_layout(layout, setting); }
}

}  // namespace shardplan
