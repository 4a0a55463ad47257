// Steps: sums, laws of the axes, published and measured step times.
#include "estimator/answer/step_time.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "estimator/answer/model_times.h"
#include "estimator/answer/pipeline_step.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/time/block_time.h"
#include "tests/estimator/host_costs.h"
#include "tests/estimator/llama_job.h"
#include "tests/estimator/rank_updates.h"
#include "tests/measured_host.h"

namespace shardplan {
namespace {

double sum_of_parts(const StepTime& step) {
  return step.compute_s + step.recompute_s + step.exposed_tp_s + step.exposed_cp_s +
         step.exposed_ep_s + step.exposed_pp_s + step.exposed_dp_s + step.bubble_s +
         step.optimizer_s + step.host_s;
}

std::vector<Plan> plans_on_eight() {
  Plan full = {.tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true};
  full.schedule = Schedule::k1F1B;
  full.recompute.granularity = RecomputeGranularity::kFull;
  return {{},
          {.zero = 1},
          {.zero = 2},
          {.zero = 3},
          {.tp = 8, .zero = 1, .sequence_parallel = true},
          {.cp = 2, .zero = 1},
          full,
          {.pp = 4, .zero = 1, .schedule = Schedule::kGpipe},
          {.pp = 4, .vpp = 2, .zero = 1, .schedule = Schedule::kInterleaved1F1B},
          {.pp = 4, .zero = 1, .schedule = Schedule::kZbH1},
          {.pp = 4, .vpp = 2, .zero = 1, .schedule = Schedule::kZbv},
          {.pp = 2, .vpp = 2, .zero = 1, .schedule = Schedule::kInterleavedZeroBubble}};
}

TEST_CASE("the parts add up to the total and the total gives tokens per second") {
  const Job job = job_on_h200();
  for (const Plan& plan : plans_on_eight()) {
    const StepTime step = estimate_step_time(job, plan);
    CHECK(step.total_s == sum_of_parts(step));
    CHECK(step.bubble_s >= 0);
    CHECK(step.tokens_per_s_per_gpu == doctest::Approx(64.0 * 8192 / step.total_s / 8));
    CHECK(step.mfu > 0.2);
    CHECK(step.mfu < 0.8);
    CHECK_FALSE(step.calibrated);
  }
}

TEST_CASE("without pipeline, sharding or communication a step is its microbatches and optimizer") {
  Job job = job_on_h200();
  job.cluster.gpus_per_node = 1;
  job.global_batch = 4;
  const StepTime four = estimate_step_time(job, {});
  job.global_batch = 8;
  const StepTime eight = estimate_step_time(job, {});
  CHECK(eight.compute_s == doctest::Approx(2 * four.compute_s));
  CHECK(eight.optimizer_s == four.optimizer_s);
  CHECK(four.total_s == four.compute_s + four.optimizer_s);
  CHECK(eight.tokens_per_s_per_gpu > four.tokens_per_s_per_gpu);
}

TEST_CASE("ZeRO 2 reduces gradients for every microbatch, ZeRO 1 once") {
  const Job job = job_on_h200();  // 8 microbatches on each of 8 ranks
  const double one = estimate_step_time(job, {.zero = 1}).exposed_dp_s;
  const double two = estimate_step_time(job, {.zero = 2}).exposed_dp_s;
  const double reduce_s = 4.0 * 8030261248 * 7 / 8 / (450e9 * 0.82);
  CHECK(two - one == doctest::Approx(7 * reduce_s).epsilon(0.01));
}

TEST_CASE("gradient reduction hides behind a microbatch's backward only where the profile says") {
  Job job = job_on_h200();
  const double exposed = estimate_step_time(job, {.zero = 1}).exposed_dp_s;
  job.profile.overlap_grad_reduce = true;
  job.profile.overlap_param_gather = true;
  CHECK(exposed > 0.1);
  // All is hidden; what remains is what products lose beside it, bytes at 0.28 of their rate.
  const double starts_s = 2 * (20e-6 + 7 * job.cluster.intra_node_latency_s);
  CHECK(estimate_step_time(job, {.zero = 1}).exposed_dp_s ==
        doctest::Approx((1 - 0.92) * (starts_s + (exposed - starts_s) / 0.28)));
  job.profile.overlap_grad_reduce = false;
  job.profile.overlap_param_gather = false;
  job.profile.exposed_dp_share = 0.5;
  CHECK(estimate_step_time(job, {.zero = 1}).exposed_dp_s == doctest::Approx(exposed / 2));
}

TEST_CASE(
    "sends hide behind the work of other chunks, and are divided over tp where they are gathered") {
  Job job = job_on_h200();
  Plan plan = {.tp = 2, .pp = 2, .schedule = Schedule::k1F1B};
  const GroupShape across = {.size = 2, .ranks_per_domain = 1, .ranks_per_node = 1};
  const double whole_s = exposed_sends(job, plan, across).hidden_s;
  job.profile.scatter_gather_sends = true;
  const double divided_s = exposed_sends(job, plan, across).hidden_s;
  CHECK(divided_s < whole_s * 0.75);
  CHECK(divided_s > whole_s / 2);
  job.profile.scatter_gather_sends = false;
  const StepTime visible = estimate_step_time(job, plan);
  job.profile.overlap_p2p_comm = true;
  CHECK(visible.exposed_pp_s > 0);
  CHECK(estimate_step_time(job, plan).exposed_pp_s == visible.exposed_pp_s);
  plan.vpp = 2;
  plan.schedule = Schedule::kInterleaved1F1B;
  CHECK(estimate_step_time(job, plan).exposed_pp_s == 0);
}

// Megatron-LM core_v0.16.1 core/pipeline_parallel/p2p_communication.py, batch_p2p_sync.
TEST_CASE("what the host does around a chunk's pass hides behind the GPU where sends do") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  const Plan plan = {.pp = 2, .vpp = 2, .schedule = Schedule::kInterleaved1F1B};
  const GroupShape pp = {.size = 2, .ranks_per_domain = 2, .ranks_per_node = 2};
  const auto sends_s = [&](bool overlaps, double slowdown) {
    job.profile.overlap_p2p_comm = overlaps;
    job.cluster.host_slowdown = slowdown;
    const StepLayout layout = step_layout(job, plan, layer_kinds(job.model));
    std::vector<ChunkWork> works(layout.chunks.size());
    SendTimes sends = exposed_sends(job, plan, pp);
    sends.hidden_s = 0;
    chunk_works(job, layout, model_times(job, plan), sends, works);
    return works.front().forward_send_s;
  };
  const double pass_s = host_cost_of_pass(job, plan).forward_s;
  CHECK(pass_s > 0);
  CHECK(sends_s(true, 1) == 0);
  CHECK(sends_s(false, 1) == doctest::Approx(pass_s));
  CHECK(sends_s(true, 1000) == doctest::Approx(1000 * pass_s));
}

TEST_CASE("hybrid sharding stays inside the node except for the shards of the gradients") {
  Job job = job_on_h200();
  job.cluster.nodes = 8;
  const Plan plan = {.dp_replicate = 8, .zero = 1};
  const double elements = 4e9;
  const double inside = 7.0 / 8 / (450e9 * 0.82);
  const double reduce_s = 4 * elements * inside;
  const double between_nodes_s = 2 * 4 * elements / 8 * 7 / 8 / (50e9 * 0.85);
  const double gather_s = 2 * elements * inside;
  const RankUpdate update = rank_update(job, plan, {.held = {.dense = 4'000'000'000}});
  const double seconds = exposed_data_parallel_s(job, plan, update, 1, {});
  CHECK(seconds == doctest::Approx(reduce_s + between_nodes_s + gather_s).epsilon(0.01));
}

TEST_CASE("tied embeddings reduce one table between the end stages, unless the V joins them") {
  Job job = job_on_h200();
  job.model.tied_embeddings = true;
  const Plan looping = {.pp = 4, .vpp = 2, .schedule = Schedule::kInterleavedZeroBubble};
  const Plan v = {.pp = 4, .vpp = 2, .schedule = Schedule::kZbv};
  const double table_bytes = 4.0 * 4096 * 128256;
  const double apart = estimate_step_time(job, looping).exposed_dp_s;
  job.model.tied_embeddings = false;
  const double untied = estimate_step_time(job, looping).exposed_dp_s;
  // The tied end stage holds the same parameters as the untied one and sends the table once more.
  CHECK(apart - untied == doctest::Approx(table_bytes / (450e9 * 0.82)).epsilon(0.01));
  job.model.tied_embeddings = true;
  const double joined = estimate_step_time(job, v).exposed_dp_s;
  CHECK(joined < apart);
}

TEST_CASE("recomputing the first half of every chunk costs half of recomputing all") {
  const Job job = job_on_h200();
  Plan plan = {.pp = 2, .schedule = Schedule::k1F1B};
  plan.recompute = {.granularity = RecomputeGranularity::kFull,
                    .method = RecomputeMethod::kBlock,
                    .num_layers = 8};
  const double half = estimate_step_time(job, plan).recompute_s;
  plan.recompute.num_layers = 100;
  const double all = estimate_step_time(job, plan).recompute_s;
  CHECK(all == doctest::Approx(2 * half));
  plan.recompute.method = RecomputeMethod::kUniform;
  plan.recompute.num_layers = 1;
  CHECK(estimate_step_time(job, plan).recompute_s == doctest::Approx(all));
}

TEST_CASE("more microbatches dilute the bubble, more stages grow it") {
  Job job = job_on_h200();
  const Plan four = {.pp = 4, .schedule = Schedule::k1F1B};
  const Plan eight = {.pp = 8, .schedule = Schedule::k1F1B};
  const auto bubble_share = [&](const Plan& plan, std::int64_t microbatches) {
    job.global_batch = microbatches * 8 / plan.pp;
    const StepTime step = estimate_step_time(job, plan);
    return step.bubble_s / step.total_s;
  };
  CHECK(bubble_share(eight, 32) > bubble_share(four, 32));
  CHECK(bubble_share(four, 256) < bubble_share(four, 32) / 4);
}

TEST_CASE("counting embedding and head as layers makes the slowest stage faster") {
  Job job = job_on_h200();
  job.model.layers.resize(30);
  job.profile.account_for_embedding_in_split = true;
  job.profile.account_for_loss_in_split = true;
  Plan plan = {.pp = 8, .schedule = Schedule::k1F1B};
  const double counted = estimate_step_time(job, plan).total_s;
  plan.layers_per_chunk = {3, 3, 4, 4, 4, 4, 4, 4};
  CHECK(counted < estimate_step_time(job, plan).total_s);
}

struct PublishedRow {
  std::string model;
  Plan plan;
  std::int64_t dp;
  std::int64_t microbatches;
  std::int64_t sequence_length;
  double step_s;
};

Plan megatron_plan(std::int64_t tp, std::int64_t pp, std::int64_t cp) {
  Plan plan = {.tp = tp, .cp = cp, .pp = pp, .zero = 1, .sequence_parallel = tp > 1};
  plan.schedule = pp > 1 ? Schedule::k1F1B : Schedule::kNone;
  return plan;
}

// Megatron-LM with Transformer Engine 2.11 on eight B200 (SimuMax docs/b200,
// b200_release_v1.2_summary.json, MooreThreads/SimuMax@4dcaae51): seconds per step.
std::vector<PublishedRow> simumax_rows() {
  const Plan tp1pp2 = megatron_plan(1, 2, 1);
  const Plan tp2 = megatron_plan(2, 1, 1);
  const Plan tp4 = megatron_plan(4, 1, 1);
  const Plan tp8 = megatron_plan(8, 1, 1);
  const Plan tp2cp4 = megatron_plan(2, 1, 4);
  const Plan cp8 = megatron_plan(1, 1, 8);
  return {{"70B", tp1pp2, 4, 4, 4096, 0.8430},   {"70B", tp2, 4, 4, 4096, 0.7255},
          {"70B", tp4, 2, 4, 4096, 0.4098},      {"70B", tp8, 1, 4, 4096, 0.2809},
          {"70B", tp1pp2, 4, 8, 4096, 1.4768},   {"70B", tp2, 4, 8, 4096, 1.3870},
          {"70B", tp4, 2, 8, 4096, 0.7656},      {"70B", tp8, 1, 8, 4096, 0.5567},
          {"70B", tp1pp2, 4, 32, 4096, 5.4365},  {"70B", tp2, 4, 32, 4096, 5.3765},
          {"70B", tp4, 2, 32, 4096, 2.9646},     {"70B", tp8, 1, 32, 4096, 2.0737},
          {"405B", tp1pp2, 4, 4, 4096, 1.0746},  {"405B", tp2, 4, 4, 4096, 0.9073},
          {"405B", tp4, 2, 4, 4096, 0.4760},     {"405B", tp8, 1, 4, 4096, 0.2588},
          {"405B", tp1pp2, 4, 8, 4096, 1.9354},  {"405B", tp2, 4, 8, 4096, 1.7168},
          {"405B", tp4, 2, 8, 4096, 0.8996},     {"405B", tp8, 1, 8, 4096, 0.4881},
          {"405B", tp1pp2, 4, 32, 4096, 7.0464}, {"405B", tp2, 4, 32, 4096, 6.6041},
          {"405B", tp4, 2, 32, 4096, 3.4554},    {"405B", tp8, 1, 32, 4096, 1.9018},
          {"70B", tp2cp4, 1, 4, 32768, 1.7580},  {"70B", cp8, 1, 4, 32768, 1.7681},
          {"405B", tp2cp4, 1, 4, 32768, 1.9847}, {"405B", cp8, 1, 4, 32768, 2.0036}};
}

TEST_CASE("28 published Megatron step times on B200: mean error below 12 %, each below 22 %") {
  Job job = job_on_h200();
  job.cluster.gpu.compute_capability = 100;
  job.cluster.gpu.num_sms = 148;
  job.cluster.gpu.bf16_flops_per_s = 2250e12;
  job.cluster.gpu.memory_bytes_per_s = 7.7e12;
  job.cluster.gpu.nvlink_bytes_per_s = 900e9;
  // As in data/gpus/B200-SXM-180GB.json.
  job.cluster.gpu.sustained = {
      .bf16_flops_per_s = 1147.5e12, .fp8_flops_per_s = 2295e12, .attention_of_curve = 0.75};
  double sum = 0;
  double worst = 0;
  const std::vector<PublishedRow> rows = simumax_rows();
  for (const PublishedRow& row : rows) {
    job.model = llama_model(
        row.model == "70B" ? LlamaShape{.hidden = 8192, .ffn = 28672, .heads = 64, .layers = 12}
                           : LlamaShape{.hidden = 16384, .ffn = 53248, .heads = 128, .layers = 4});
    job.model.num_kv_heads = row.model == "70B" ? 8 : 16;  // configs/models/llama3-405b.json there
    job.sequence_length = row.sequence_length;
    job.global_batch = row.dp * row.microbatches;
    const double error = std::abs(estimate_step_time(job, row.plan).total_s / row.step_s - 1);
    sum += error;
    worst = std::max(worst, error);
  }
  const double mean = sum / static_cast<double>(rows.size());
  MESSAGE("SimuMax B200: mean error " << 100 * mean << " %, worst " << 100 * worst << " %");
  CHECK(mean < 0.12);
  CHECK(worst < 0.22);
}

Plan torchtitan_plan(std::int64_t tp, std::int64_t micro_batch, const Recompute& recompute) {
  Plan plan = {.tp = tp, .zero = 3, .micro_batch = micro_batch, .sequence_parallel = tp > 1};
  plan.recompute = recompute;
  return plan;
}

TEST_CASE("measured torchtitan steps of Llama-3-8B on eight H200 lie within 20 %") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  job.profile.compile = true;
  job.profile.vocab_multiple = 1;
  const Recompute none;
  Recompute full;
  full.granularity = RecomputeGranularity::kFull;
  Recompute selective;
  selective.granularity = RecomputeGranularity::kSelective;
  selective.policy = "every_second_matmul";
  // torchtitan v0.2.2, torch 2.11, torch.compile, FSDP2, bf16: seconds per step.
  const PublishedRow rows[] = {
      {"none b1", torchtitan_plan(1, 1, none), 8, 1, 8192, 0.846},
      {"none b2", torchtitan_plan(1, 2, none), 8, 1, 8192, 1.592},
      {"selective b2", torchtitan_plan(1, 2, selective), 8, 1, 8192, 1.734},
      {"full b4", torchtitan_plan(1, 4, full), 8, 1, 8192, 3.755},
      {"none b2 ga4", torchtitan_plan(1, 2, none), 8, 4, 8192, 6.249},
      {"tp2 selective b2", torchtitan_plan(2, 2, selective), 4, 1, 8192, 0.995},
  };
  for (const PublishedRow& row : rows) {
    CAPTURE(row.model);
    job.global_batch = row.dp * row.plan.micro_batch * row.microbatches;
    const double predicted = estimate_step_time(job, row.plan).total_s;
    CHECK(predicted == doctest::Approx(row.step_s).epsilon(0.2));
  }
}

}  // namespace
}  // namespace shardplan
