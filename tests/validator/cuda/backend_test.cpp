#include "validator/cuda/backend.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "kernels/gemm/warpgroups.h"
#include "kernels/pointwise/cuda_check.h"
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
Job small_job(const ModelSpec& model, std::int64_t world, std::int64_t head_dim) {
  Job job = tiny_job(model, world);
  job.model.num_heads = 4;
  job.model.num_kv_heads = 2;
  job.model.head_dim = head_dim;
  job.model.hidden = 4 * head_dim;
  job.model.ffn = 7 * head_dim;
  if (job.model.moe.num_experts > 0) {
    job.model.moe.expert_ffn = 2 * head_dim;
    job.model.moe.shared_ffn = 3 * head_dim;
  }
  job.model.vocab = 509;
  job.cluster.gpu.compute_capability = 90;
  job.profile.vocab_multiple = 8;
  job.profile.cross_entropy_chunks = 4;
  job.profile.tensor_parallel_chunk_tokens = 24;  // three pieces, the last one smaller
  job.sequence_length = 64;
  return job;
}

struct Layout {
  std::string name;
  Plan plan;
  ModelSpec model = tiny_model();
};

Plan tensor_parallel() {
  return {.tp = 2, .dp = 1, .sequence_parallel = true};
}

Plan data_parallel(std::int64_t dp, std::int64_t zero) {
  return {.dp = dp, .zero = zero};
}

Plan context_parallel(CpMethod method) {
  return {.cp = 2, .dp = 1, .cp_method = method};
}

Plan pipeline(Schedule schedule, std::int64_t vpp = 1) {
  return {.pp = 2, .vpp = vpp, .dp = 1, .schedule = schedule};
}

Layout dense(const std::string& name, const Plan& plan) {
  return {.name = name, .plan = plan, .model = tiny_model()};
}

// Each dimension alone.
std::vector<Layout> single_layouts() {
  using enum Schedule;
  Plan recomputed{.dp = 1};
  recomputed.recompute = {.granularity = RecomputeGranularity::kFull,
                          .method = RecomputeMethod::kUniform,
                          .num_layers = 2};
  Plan partly_recomputed{.dp = 1};
  partly_recomputed.recompute = {.granularity = RecomputeGranularity::kSelective,
                                 .modules = {.core_attn = true, .layernorm = true, .mlp = true}};
  Plan replicated_norms = tensor_parallel();
  replicated_norms.sequence_parallel = false;
  return {dense("one rank", {.dp = 1}),
          dense("one rank, recompute", recomputed),
          dense("one rank, recompute modules", partly_recomputed),
          dense("dp 2", data_parallel(2, 0)),
          dense("dp 2, zero 1", data_parallel(2, 1)),
          dense("dp 2, zero 2", data_parallel(2, 2)),
          dense("dp 2, zero 3", data_parallel(2, 3)),
          dense("tp 2", replicated_norms),
          dense("tp 2, sp", tensor_parallel()),
          dense("cp 2, gathered", context_parallel(CpMethod::kAllGather)),
          dense("cp 2, ring", context_parallel(CpMethod::kRing)),
          {.name = "cp 2, ring, window",
           .plan = context_parallel(CpMethod::kRing),
           .model = wide_model()},
          dense("pp 2, gpipe", pipeline(kGpipe)),
          dense("pp 2, 1f1b", pipeline(k1F1B)),
          dense("pp 2, vpp 2", pipeline(kInterleaved1F1B, 2)),
          dense("pp 2, zb_h1", pipeline(kZbH1))};
}

// Two dimensions, on 4 GPUs.
std::vector<Layout> paired_layouts() {
  using enum Schedule;
  const auto with = [](Plan plan, const auto& change) {
    change(plan);
    return plan;
  };
  const auto add_dp = [](std::int64_t zero) {
    return [zero](Plan& plan) {
      plan.dp = 2;
      plan.zero = zero;
    };
  };
  const auto add_tp = [](Plan& plan) {
    plan.tp = 2;
    plan.sequence_parallel = true;
  };
  const auto add_cp = [](Plan& plan) {
    plan.cp = 2;
    plan.cp_method = CpMethod::kRing;
  };
  const auto shards_in_pairs = [](Plan& plan) { plan.dp_replicate = 2; };
  return {dense("tp 2, sp, pp 2", with(pipeline(k1F1B), add_tp)),
          dense("tp 2, sp, dp 2, zero 1", with(tensor_parallel(), add_dp(1))),
          dense("tp 2, sp, cp 2", with(tensor_parallel(), add_cp)),
          dense("cp 2, dp 2, zero 1", with(context_parallel(CpMethod::kAllGather), add_dp(1))),
          dense("cp 2, pp 2", with(pipeline(k1F1B), add_cp)),
          dense("dp 2, zero 2, pp 2", with(pipeline(k1F1B), add_dp(2))),
          dense("dp 4, zero 3, replicas", with(data_parallel(4, 3), shards_in_pairs)),
          dense("pp 4", with(pipeline(k1F1B), [](Plan& plan) { plan.pp = 4; }))};
}

// Experts on 1, 2, 4 and 8 GPUs, alone and with the other dimensions; room for every row.
std::vector<Layout> expert_layouts() {
  const auto layout = [](const std::string& name, Plan plan) {
    plan.moe_buffer_factor = static_cast<double>(plan.ep);
    plan.sequence_parallel = plan.tp > 1;
    return Layout{.name = name, .plan = plan, .model = tiny_moe()};
  };
  return {layout("experts, one rank", {.dp = 1}),
          layout("ep 2", {.ep = 2, .dp = 2, .zero = 1}),
          layout("ep 2 over tp 2", {.tp = 2, .ep = 2, .dp = 1}),
          layout("etp 2", {.tp = 2, .etp = 2, .dp = 1}),
          layout("experts, pp 2", {.pp = 2, .dp = 1, .schedule = Schedule::k1F1B}),
          layout("ep 2, etp 2", {.tp = 2, .ep = 2, .etp = 2, .dp = 2, .zero = 1}),
          layout("ep 2, pp 2", {.ep = 2, .pp = 2, .dp = 2, .zero = 1, .schedule = Schedule::k1F1B}),
          layout("ep 4, tp 2, pp 2, dp 2",
                 {.tp = 2, .ep = 4, .pp = 2, .dp = 2, .zero = 1, .schedule = Schedule::k1F1B})};
}

// Three and more, on 8 GPUs.
std::vector<Layout> mixed_layouts() {
  Plan tp_cp_pp = pipeline(Schedule::k1F1B);
  tp_cp_pp.tp = 2;
  tp_cp_pp.sequence_parallel = true;
  tp_cp_pp.cp = 2;
  tp_cp_pp.cp_method = CpMethod::kRing;
  Plan tp_pp_dp = tp_cp_pp;
  tp_pp_dp.cp = 1;
  tp_pp_dp.dp = 2;
  tp_pp_dp.zero = 1;
  Plan interleaved = tp_pp_dp;
  interleaved.vpp = 2;
  interleaved.schedule = Schedule::kInterleaved1F1B;
  Plan tp_cp_dp = tp_cp_pp;
  tp_cp_dp.pp = 1;
  tp_cp_dp.schedule = Schedule::kNone;
  tp_cp_dp.dp = 2;
  tp_cp_dp.zero = 3;
  return {dense("tp 2, sp, cp 2, pp 2", tp_cp_pp), dense("tp 2, sp, pp 2, dp 2, zero 1", tp_pp_dp),
          dense("tp 2, sp, pp 2, vpp 2, dp 2, zero 1", interleaved),
          dense("tp 2, sp, cp 2, dp 2, zero 3", tp_cp_dp)};
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

// AdamW's first update is nearly the sign of a gradient: rounding flips those that are nothing but
// rounding, and what differs after that is not the arithmetic under test. An epsilon well above the
// rounding error of an element, and well below most elements, keeps the update continuous.
Hyperparameters smooth_update() {
  return {.adam_epsilon = 1e-5};
}

struct Setting {
  CudaPrecision precision;
  std::int64_t head_dim;
  Tensors (*weights)(const ModelSpec& model);
  Tolerance tolerance;
};

// Of every step, in float64.
struct HostSteps {
  std::vector<double> losses;
  std::vector<Tensors> gradients;
};

// Computed once for each model and plan, which is the slow part of these tests, and kept.
const HostSteps* host_steps(const ModelSpec& model, const Plan& plan, const Setting& setting,
                            int num_steps) {
  static std::map<std::string, HostSteps> known;
  const std::string key = model.name + text_of(plan) + " " + std::string(name_of(plan.precision)) +
                          " " + std::to_string(setting.head_dim) + " " + std::to_string(num_steps);
  const auto [at, is_new] = known.try_emplace(key);
  if (is_new) {
    const Job job = small_job(model, plan.tp * plan.cp, setting.head_dim);
    HostBackend<double> host(lower_all(job, plan, smooth_update()), DeadMemory::kKept);
    host.load(setting.weights(job.model));
    for (int step = 0; step < num_steps; ++step) {
      at->second.losses.push_back(host.step(random_batch(job, 3), 1e-3));
      at->second.gradients.push_back(host.gradients());
    }
  }
  return &at->second;
}

void check_layout(const Layout& layout, const Setting& setting) {
  const std::int64_t world = layout.plan.tp * layout.plan.pp * layout.plan.cp * layout.plan.dp;
  if (world > num_devices()) {
    MESSAGE("SKIPPED: " << layout.name << ": needs " << world << " GPUs");
    return;
  }
  CAPTURE(layout.name);
  REQUIRE(world > 0);
  const Job job = small_job(layout.model, world, setting.head_dim);
  const Batch batch = random_batch(job, 3);
  const Tensors tensors = setting.weights(job.model);
  const std::vector<Program> programs = lower_all(job, layout.plan, smooth_update());
  const HostSteps& host = *host_steps(layout.model, {.dp = 1}, setting, 2);
  CudaBackend cuda(programs, setting.precision);
  // Programs have the workspace that cuDNN asks for.
  CHECK(cuda.attention_used().find("less workspace") == std::string::npos);
  cuda.load(tensors);
  for (std::size_t step = 0; step < 2; ++step) {
    const double want = host.losses[step];
    const double got = cuda.step(batch, 1e-3);
    CHECK(std::abs(got - want) < setting.tolerance.loss * want);
    if (step > 0 && setting.precision == CudaPrecision::kAsPlanned) {
      continue;  // the rounding of bf16 is larger than most elements
    }
    const Distance gradients = distance(cuda.gradients(), host.gradients[step]);
    CAPTURE(gradients.where);
    CHECK(gradients.whole < setting.tolerance.whole);
    CHECK(gradients.worst_tensor < setting.tolerance.tensor);
  }
  // Sums of cuDNN's attention have no fixed order; those of our own kernels have.
  CudaBackend first(programs, setting.precision, AttentionKernels::kOwn);
  first.load(tensors);
  first.step(batch, 1e-3);
  first.step(batch, 1e-3);
  CudaBackend again(programs, setting.precision, AttentionKernels::kOwn);
  again.load(tensors);
  again.step(batch, 1e-3);
  again.step(batch, 1e-3);
  CHECK(bitwise_equal(again.gradients(), first.gradients()));
}

void check_fp32(const std::vector<Layout>& layouts) {
  const Setting setting{.precision = CudaPrecision::kFloat,
                        .head_dim = 16,
                        .weights = [](const ModelSpec& model) { return initial_tensors(model, 7); },
                        .tolerance = {.loss = 1e-5, .whole = 1e-5, .tensor = 1e-5}};
  for (const Layout& layout : layouts) {
    SUBCASE(layout.name.c_str()) {
      check_layout(layout, setting);
    }
  }
}

// A single tensor may be further off than all together: where attention is nearly uniform, the
// gradients of its queries and keys are small differences of numbers that bf16 rounds.
Setting bf16_setting() {
  return {.precision = CudaPrecision::kAsPlanned,
          .head_dim = 64,
          .weights = initial_weights,
          .tolerance = {.loss = 2e-3, .whole = 1e-2, .tensor = 4e-2}};
}

void check_bf16(const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    SUBCASE(layout.name.c_str()) {
      check_layout(layout, bf16_setting());
    }
  }
}

// The host rounds the same products to fp8, in float64 otherwise. What other sums put on the other
// side of the middle of two fp8 values is rounded to the other one, and the next layers round what
// comes of it: after some layers the two are as far apart as two independent roundings, sqrt(2) of
// what one costs, and neither is further from what is exact.
void check_fp8(const Layout& layout) {
  const std::int64_t world = layout.plan.tp * layout.plan.pp * layout.plan.cp * layout.plan.dp;
  if (world > num_devices() || !has_fp8_products()) {
    MESSAGE("SKIPPED: " << layout.name << ": needs " << world << " GPUs of compute capability 8.9");
    return;
  }
  CAPTURE(layout.name);
  const Job job = small_job(layout.model, world, 64);
  const Batch batch = random_batch(job, 3);
  const Tensors tensors = initial_weights(job.model);
  Plan plan = layout.plan;
  plan.precision = Precision::kFp8;
  // What each product rounds: no other dimension divides it.
  const Plan rounds{.tp = plan.tp,
                    .cp = plan.cp,
                    .dp = 1,
                    .sequence_parallel = plan.sequence_parallel,
                    .cp_method = plan.cp_method,
                    .precision = Precision::kFp8};
  const Tensors& exact = host_steps(layout.model, {.dp = 1}, bf16_setting(), 2)->gradients[0];
  const HostSteps& rounded = *host_steps(layout.model, rounds, bf16_setting(), 1);
  const double want = rounded.losses[0];
  const double cost = distance(rounded.gradients[0], exact).whole;
  for (const CudaPrecision precision : {CudaPrecision::kFloat, CudaPrecision::kAsPlanned}) {
    CudaBackend cuda(lower_all(job, plan), precision, AttentionKernels::kOwn);
    cuda.load(tensors);
    const double got = cuda.step(batch, 1e-3);
    const Tensors gradients = cuda.gradients();
    const double own_cost = distance(gradients, exact).whole;
    const double apart = distance(gradients, rounded.gradients[0]).whole;
    MESSAGE(layout.name << ": loss apart by " << std::abs(got / want - 1) << ", gradients by "
                        << apart << "; from what is exact " << own_cost << ", on the host "
                        << cost);
    CHECK(std::abs(got / want - 1) < 1e-3);
    CHECK(apart < 1.5 * cost);
    CHECK(own_cost < 1.25 * cost);
    CudaBackend again(lower_all(job, plan), precision, AttentionKernels::kOwn);
    again.load(tensors);
    again.step(batch, 1e-3);
    CHECK(bitwise_equal(again.gradients(), gradients));
  }
}

std::vector<double> loss_curve(const Plan& plan, int steps) {
  const Job job = small_job(tiny_model(), 1, 64);
  const Batch batch = random_batch(job, 3);
  CudaBackend backend(lower_all(job, plan), CudaPrecision::kAsPlanned);
  backend.load(initial_weights(job.model));
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) { losses.push_back(backend.step(batch, 1e-3)); }
  return losses;
}

}  // namespace

TEST_CASE("one dimension, fp32: the host's loss and gradients to 1e-5, bit for bit again") {
  check_fp32(single_layouts());
}

TEST_CASE("two dimensions, fp32: the host's loss and gradients to 1e-5, bit for bit again") {
  check_fp32(paired_layouts());
}

TEST_CASE("more dimensions, fp32: the host's loss and gradients to 1e-5, bit for bit again") {
  check_fp32(mixed_layouts());
}

// In bf16 a router chooses other experts where two are nearly as likely.
TEST_CASE("experts, fp32: the host's loss and gradients to 1e-5, bit for bit again") {
  check_fp32(expert_layouts());
}

TEST_CASE("one dimension, bf16: the host's loss to 2e-3 and gradients to 1e-2, norm-wise") {
  check_bf16(single_layouts());
}

// Two addends: their order does not matter. With sequence parallelism the 16 tokens go in several
// pieces, whose parts are exchanged.
TEST_CASE("copies among two GPUs give the bits of NCCL's collectives, fp32") {
  Plan replicated_norms = tensor_parallel();
  replicated_norms.sequence_parallel = false;
  const std::vector<Layout> layouts = {
      dense("tp 2", replicated_norms),
      dense("tp 2, sp", tensor_parallel()),
      dense("cp 2, gathered", context_parallel(CpMethod::kAllGather)),
      dense("cp 2, ring", context_parallel(CpMethod::kRing)),
      dense("dp 2, zero 1", data_parallel(2, 1)),
      dense("dp 2, zero 3", data_parallel(2, 3))};
  if (num_devices() < 2) {
    MESSAGE("SKIPPED: needs 2 GPUs");
    return;
  }
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name);
    const Job job = small_job(layout.model, 2, 16);
    const Batch batch = random_batch(job, 3);
    const std::vector<Program> programs = lower_all(job, layout.plan, smooth_update());
    const auto gradients = [&](Collectives collectives) {
      CudaBackend backend(programs, CudaPrecision::kFloat, AttentionKernels::kOwn, {}, collectives);
      backend.load(initial_tensors(job.model, 7));
      backend.step(batch, 1e-3);
      backend.step(batch, 1e-3);
      return backend.gradients();
    };
    CHECK(bitwise_equal(gradients(Collectives::kFastest), gradients(Collectives::kNccl)));
  }
}

TEST_CASE("two dimensions, bf16: the host's loss to 2e-3 and gradients to 1e-2, norm-wise") {
  check_bf16(paired_layouts());
}

TEST_CASE("more dimensions, bf16: the host's loss to 2e-3 and gradients to 1e-2, norm-wise") {
  check_bf16(mixed_layouts());
}

TEST_CASE("one dimension, fp8: the host's loss to 1e-3, gradients as far from exact ones as its") {
  for (const Layout& layout : single_layouts()) {
    SUBCASE(layout.name.c_str()) {
      check_fp8(layout);
    }
  }
}

TEST_CASE("a weight in fp8 that pieces of tokens find is the one that each of them would round") {
  for (const Layout& layout : single_layouts()) {
    if (layout.plan.tp == 1) {
      continue;
    }
    if (num_devices() < 2 || !has_fp8_products()) {
      MESSAGE("SKIPPED: " << layout.name << ": needs 2 GPUs of compute capability 8.9");
      continue;
    }
    CAPTURE(layout.name);
    Job job = small_job(layout.model, 2, 64);
    job.sequence_length = 96;  // three pieces of 32 tokens
    Plan plan = layout.plan;
    plan.precision = Precision::kFp8;
    const auto gradients = [&](const std::vector<Program>& programs) {
      CudaBackend backend(programs, CudaPrecision::kAsPlanned, AttentionKernels::kOwn);
      backend.load(initial_weights(job.model));
      backend.step(random_batch(job, 3), 1e-3);
      backend.step(random_batch(job, 3), 1e-3);
      return backend.gradients();
    };
    const std::vector<Program> programs = lower_all(job, plan);
    std::vector<Program> each_rounds = programs;
    std::int64_t found = 0;
    for (Program& program : each_rounds) {
      for (Operation& op : program.operations) {
        if (op.attributes.fp8_finds == Fp8Found::kWeight) {
          op.attributes.fp8_finds = Fp8Found::kNothing;
          ++found;
        }
      }
    }
    CHECK(found > 0);
    CHECK(bitwise_equal(gradients(programs), gradients(each_rounds)));
  }
}

TEST_CASE("ten steps in fp8 follow those in bf16 to 2 % of the loss") {
  if (num_devices() == 0 || !has_fp8_products()) {
    MESSAGE("SKIPPED: needs a GPU of compute capability 8.9");
    return;
  }
  constexpr int kSteps = 10;
  const std::vector<double> bf16 = loss_curve({.dp = 1}, kSteps);
  const std::vector<double> fp8 = loss_curve({.dp = 1, .precision = Precision::kFp8}, kSteps);
  CHECK(bf16.back() < 0.9 * bf16.front());
  for (std::size_t i = 0; i < kSteps; ++i) {
    MESSAGE("step " << i << ": bf16 " << bf16[i] << ", fp8 " << fp8[i]);
    CHECK(std::abs(fp8[i] / bf16[i] - 1) < 0.02);
  }
}

}  // namespace shardplan
