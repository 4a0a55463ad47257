// Attention under context parallelism: blocks of queries on keys, counted by hand.
#include "estimator/time/attention_calls.h"
#include "estimator/frameworks/pieces/memory_model.h"

#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/plan/time_constants.h"
#include "tests/measured_host.h"
#include "tests/time_constants.h"

namespace shardplan {
namespace {

constexpr double kRate = 5e14;  // FLOP/s of every call that fills the GPU

// 32 heads of 128, 8192 tokens, on a GPU whose attention has one rate at every length.
Job job_at_one_rate() {
  Job job;
  job.cluster.gpu.constants = library_constants();
  job.cluster.gpu.compute_capability = 80;
  job.sequence_length = 8192;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 8;
  job.model.head_dim = 128;
  set_measured_framework(job.profile, MemoryModel::kNative);
  AttentionCurve curve;
  curve.head_dim = 128;
  curve.forward = {{.size = 1024, .value = kRate}};
  curve.backward = curve.forward;
  job.cluster.gpu.times.emplace().attention = {curve};
  return job;
}

ForwardBackward calls_of(const Job& job, const Plan& plan, std::int64_t window = 0) {
  const LayerSpec layer = {.attention_window = window};
  const AttentionWork work = {.pairs = attention_pairs(job, layer) *
                                       static_cast<double>(plan.micro_batch) /
                                       static_cast<double>(plan.cp),
                              .heads = job.model.num_heads / plan.tp,
                              .qk_dim = 128,
                              .v_dim = 128,
                              .length = job.sequence_length,
                              .heads_of_call = job.model.num_heads / plan.tp * plan.micro_batch};
  return attention_calls_s(block_context(job, plan), layer, work);
}

// q k^T and p v of 32 heads.
double forward_s(double pairs) {
  return 2 * pairs * 32 * 256 / kRate;
}

TEST_CASE("queries see those before them and half of their own, at most the window") {
  CHECK(seen_pairs({}, 8) == 32);
  CHECK(seen_pairs({.attention_window = 8}, 8) == 32);
  CHECK(seen_pairs({.attention_window = 100}, 8) == 32);
  CHECK(seen_pairs({.attention_window = 3}, 8) == 3 * 8 - 4.5);
}

TEST_CASE("queries of a chunk see those before them in it alone") {
  const LayerSpec layer = {.attention_window = 3, .attends_in_chunks = true};
  CHECK(seen_pairs(layer, 9) == 3 * 4.5);
  CHECK(seen_pairs(layer, 8) == 2 * 4.5 + 2);
  CHECK(seen_pairs(layer, 3) == 4.5);
  CHECK(seen_pairs(layer, 2) == 2);
}

TEST_CASE("at one rate, calls of context parallelism take their share of the whole call's time") {
  const Job job = job_at_one_rate();
  for (const std::int64_t window : {0, 1000}) {
    const ForwardBackward whole = calls_of(job, {.micro_batch = 2}, window);
    for (const CpMethod method : {CpMethod::kRing, CpMethod::kAllGather, CpMethod::kA2a}) {
      for (const std::int64_t cp : {2, 8}) {
        CAPTURE(cp);
        const ForwardBackward part =
            calls_of(job, {.cp = cp, .micro_batch = 2, .cp_method = method}, window);
        CHECK(part.forward_s == doctest::Approx(whole.forward_s / static_cast<double>(cp)));
        CHECK(part.backward_s == doctest::Approx(whole.backward_s / static_cast<double>(cp)));
      }
    }
  }
}

// cp 8: chunks of 512. The first sees itself; the last sees 8192 - 256 keys in the mean, in four
// tiles of 128 queries for every head.
TEST_CASE("tiles of one length leave multiprocessors idle in the last wave") {
  Job job = job_at_one_rate();
  const Plan plan = {.cp = 8, .cp_method = CpMethod::kAllGather};
  constexpr double kDiagonal = 512.0 * 512 / 2;
  constexpr double kRectangle = 512.0 * (8192 - 256);
  const auto expected_s = [&](double waves, double full) {
    return forward_s(kDiagonal) + forward_s(kRectangle) * full / waves;
  };
  job.cluster.gpu.num_sms = 132;  // 128 tiles
  CHECK(calls_of(job, plan).forward_s == doctest::Approx(expected_s(128.0 / 132, 1)));
  job.cluster.gpu.num_sms = 100;
  CHECK(calls_of(job, plan).forward_s == doctest::Approx(expected_s(1.28, 2)));
  job.cluster.gpu.num_sms = 128;
  CHECK(calls_of(job, plan).forward_s == doctest::Approx(expected_s(1, 1)));
  // The diagonal's tiles are of every length: they even out.
  const ForwardBackward ring = calls_of(job, {.cp = 8});
  CHECK(ring.forward_s == doctest::Approx(expected_s(1, 1)));
}

TEST_CASE("rectangles run at the rate of triangles with as many keys in the mean") {
  Job job = job_at_one_rate();
  AttentionCurve& curve = job.cluster.gpu.times->attention.front();
  curve.forward = {{.size = 512, .value = kRate / 4}, {.size = 15872, .value = kRate}};
  // 512 queries on 512 keys, and on 8192, 7936 in the mean.
  CHECK(calls_of(job, {.cp = 8, .cp_method = CpMethod::kAllGather}).forward_s ==
        doctest::Approx(forward_s(512.0 * 512 / 2) * 4 + forward_s(512.0 * 7936)));
}

// cp 8: chunks of 512; blocks off the diagonal have 1024 queries on 512 keys and the reverse. cuDNN
// runs them at the rate of triangles of four times the keys, backward of the queries.
TEST_CASE("rectangles that no mask cuts off run at the rate of longer triangles") {
  Job job = job_at_one_rate();
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  const auto halved_from = [&](double length) {
    AttentionCurve& curve = job.cluster.gpu.times->attention.front();
    curve.forward = {{.size = length, .value = kRate}, {.size = length + 1, .value = kRate / 2}};
    curve.backward = curve.forward;
  };
  const Plan plan = {.cp = 8};
  const double whole_s = forward_s(512.0 * 1024 * 8);
  halved_from(4096);
  CHECK(calls_of(job, plan).forward_s == doctest::Approx(whole_s));
  halved_from(4095);
  CHECK(calls_of(job, plan).forward_s == doctest::Approx(whole_s * (8 + 3.5) / 8));
  CHECK(calls_of(job, plan).backward_s == doctest::Approx(2.5 * whole_s * (8 + 3.5) / 8));
  halved_from(2047);
  CHECK(calls_of(job, plan).forward_s == doctest::Approx(whole_s * (8 + 7) / 8));
}

// Chunks of 1024 tokens. cp 2 by gathered keys: the rank's first queries and its last are 2048 of
// two chunks each.
TEST_CASE("chunks cost what as many sequences of their length do, and cp its share of it") {
  Job job = job_at_one_rate();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  AttentionCurve& curve = job.cluster.gpu.times->attention.front();
  curve.forward = {{.size = 1024, .value = kRate / 2}, {.size = 8192, .value = kRate}};
  const LayerSpec chunked = {.attention_window = 1024, .attends_in_chunks = true};
  const double whole_s = core_attention(block_context(job, {}), chunked).forward_s;
  CHECK(whole_s == doctest::Approx(2 * forward_s(8 * 1024.0 * 1024 / 2)));
  const Plan gathered = {.cp = 2, .cp_method = CpMethod::kAllGather};
  CHECK(core_attention(block_context(job, gathered), chunked).forward_s ==
        doctest::Approx(whole_s / 2));
  job.sequence_length = 1024;
  CHECK(core_attention(block_context(job, {.micro_batch = 8}), {}).forward_s ==
        doctest::Approx(whole_s));
}

TEST_CASE("our own backward kernels add up gradients on gathered keys, at a lower rate") {
  Job job = job_at_one_rate();
  const Plan plan = {.cp = 8, .cp_method = CpMethod::kAllGather};
  const double by_cudnn_s = calls_of(job, plan).backward_s;
  const double ring_s = calls_of(job, {.cp = 8}).backward_s;
  job.cluster.gpu.compute_capability = 90;
  CHECK(calls_of(job, plan).backward_s ==
        doctest::Approx(by_cudnn_s / job.cluster.gpu.constants->own_backward_share));
  CHECK(calls_of(job, {.cp = 8}).backward_s == ring_s);
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  CHECK(calls_of(job, plan).backward_s == doctest::Approx(by_cudnn_s));
}

TEST_CASE("calls of few heads end unevenly: our trainer's are of one sequence") {
  Job job = job_at_one_rate();
  AttentionCurve& curve = job.cluster.gpu.times->attention.front();
  curve.heads = 32;
  curve.tokens = 1 << 20;
  curve.few_heads = 8;
  curve.few = {.forward = {{.size = 1024, .value = kRate / 2}},
               .backward = {{.size = 1024, .value = kRate / 2}}};
  const Plan plan = {.cp = 8, .micro_batch = 4, .cp_method = CpMethod::kAllGather};
  const double native_s = calls_of(job, plan).forward_s;
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  CHECK(calls_of(job, plan).forward_s < native_s);
}

TEST_CASE("on gathered keys attention takes no less time when a chunk grows into one more tile") {
  Job job = job_at_one_rate();
  job.cluster.gpu.num_sms = 132;
  job.cluster.nodes = 2;
  const Plan plan = {.tp = 2, .cp = 8, .cp_method = CpMethod::kAllGather};
  double before_s = 0;
  for (std::int64_t chunk = 1024; chunk <= 1408; chunk += 16) {
    job.sequence_length = 2 * plan.cp * chunk;
    const ForwardBackward calls = calls_of(job, plan);
    CAPTURE(chunk);
    CHECK(calls.forward_s >= before_s);
    before_s = calls.forward_s;
  }
}

}  // namespace
}  // namespace shardplan
