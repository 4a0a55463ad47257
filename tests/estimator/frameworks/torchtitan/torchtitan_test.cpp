// torchtitan's profile: sizes counted by hand, laws, and allocation traces of torchtitan v0.2.2
// with PyTorch 2.11 on an H200 (torch.cuda.memory._snapshot at the peak of the third step).
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "estimator/estimate.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/price/price.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::torchtitan {
namespace {

// Llama-3.2-1B shape, untied: 16 layers of 60,821,504 parameters, tables of 262,668,288.
constexpr std::int64_t kLayer1b = 60'821'504;
constexpr std::int64_t kTable1b = 262'668'288;
constexpr std::int64_t kModel1b = 16 * kLayer1b + 2 * kTable1b + 2048;

Job job_1b(std::int64_t gpus, std::int64_t sequence, std::int64_t batch) {
  Job job = llama_job("torchtitan", {.hidden = 2048, .ffn = 8192, .heads = 32, .layers = 16}, gpus,
                      sequence, batch);
  job.model.name = "1b";
  return job;
}

Plan alone(std::int64_t micro_batch) {
  Plan plan;
  plan.micro_batch = micro_batch;
  return plan;
}

Plan sharded(std::int64_t dp) {
  Plan plan;
  plan.dp = dp;
  plan.zero = 3;
  return plan;
}

Plan replicated(std::int64_t dp) {
  Plan plan = sharded(dp);
  plan.dp_replicate = dp;
  plan.zero = 0;
  return plan;
}

const Row& row_named(const StageMemory& stage, std::string_view name) {
  const auto row = std::ranges::find(stage.rows, name, &Row::name);
  REQUIRE(row != stage.rows.end());
  return *row;
}

std::int64_t peak_of(const Job& job, const Plan& plan) {
  return estimate_memory(job, plan).stages.at(0).allocated_bytes;
}

}  // namespace

// Parameters, both moments and gradients in fp32 as on one GPU, under autocast, and buckets.
TEST_CASE("DDP is one GPU and four bytes a parameter") {
  const Job alone_job = job_1b(1, 4096, 1);
  for (const std::int64_t gpus : {2, 8}) {
    const Job job = job_1b(gpus, 4096, gpus);
    for (const char* const policy : {"", "every_second_layer"}) {
      Plan plan = replicated(gpus);
      plan.recompute.policy = policy;
      plan.recompute.granularity = plan.recompute.policy.empty() ? RecomputeGranularity::kNone
                                                                 : RecomputeGranularity::kSelective;
      Plan single = alone(1);
      single.recompute = plan.recompute;
      CHECK(peak_of(job, plan) == peak_of(alone_job, single) + 4 * kModel1b);
    }
  }
  const StageMemory stage = estimate_memory(job_1b(8, 4096, 8), replicated(8)).stages.at(0);
  CHECK(row_named(stage, "ddp.buckets").total_bytes() == 4 * kModel1b);
}

TEST_CASE("a root that holds both ends keeps the embedding and the last layer gathered") {
  const Job job = job_1b(8, 4096, 8);
  Job older = job;
  older.profile.root_holds_ends = true;
  const auto at_loss = [](const Job& of) {
    const StageMemory stage = estimate_memory(of, sharded(8)).stages.at(0);
    const auto moment = std::ranges::find(stage.moments, "loss backward", &Moment::name);
    REQUIRE(moment != stage.moments.end());
    return moment->allocated_bytes;
  };
  // In bf16: the embedding, the last layer, and the gradients of norm and head that wait.
  CHECK(at_loss(older) - at_loss(job) == 2 * (kTable1b + kLayer1b + kTable1b + 2048));
}

TEST_CASE("a head that is resharded after its forward is not there during the loss's backward") {
  const Job job = job_1b(8, 8192, 16);
  Job always = job;
  always.profile.reshard_after_forward = ReshardAfterForward::kAlways;
  Plan plan = sharded(8);
  plan.micro_batch = 2;
  const StageMemory stage = estimate_memory(always, plan).stages.at(0);
  CHECK(stage.peak_moment() == "loss backward");
  CHECK(peak_of(job, plan) - stage.allocated_bytes == 2 * (kTable1b + 2048));
}

TEST_CASE("full recompute on one GPU peaks at the logits' backward, counted by hand") {
  const Job job = job_1b(1, 8192, 2);
  Plan plan = alone(2);
  plan.recompute.granularity = RecomputeGranularity::kFull;
  REQUIRE_FALSE(why_invalid(job, plan).has_value());
  const StageMemory stage = estimate_memory(job, plan).stages.at(0);
  const std::int64_t tokens = 2 * 8192;
  const std::int64_t states = 12 * kModel1b + 147 * 512 + 2 * 33'554'432;  // fp32, AdamW, cuBLAS
  const std::int64_t inputs = 17 * tokens * 2048 * 4;  // of 16 layers and the final norm, fp32
  const std::int64_t head = kTable1b * 2 + tokens * 2048 * 2 + tokens * 4;  // casts, statistics
  const std::int64_t logits = 3 * tokens * 128256 * 4;
  const std::int64_t rest = 8192 * 64 * 4 + tokens * 16;  // rotary table, token ids
  CHECK(stage.allocated_bytes == states + inputs + head + logits + rest);
  CHECK(stage.peak_moment() == "loss backward");
  // PyTorch says 46,141,706,240: 10 KB more, of tensors of one number each.
  CHECK(std::abs(stage.allocated_bytes - 46'141'706'240) < 100'000);
}

double error_of(std::int64_t predicted, std::int64_t traced) {
  return std::abs(static_cast<double>(predicted - traced)) / static_cast<double>(traced);
}

// Whole blocks, as torch.cuda counts them; where the moments' blocks come to lie decides a MiB
// each.
TEST_CASE("measured peaks are met within the ends of allocator blocks") {
  Job fsdp = job_1b(2, 16384, 2);  // ids of rows of data/measured/h200_frameworks.jsonl: t2_013
  fsdp.profile.reshard_after_forward = ReshardAfterForward::kNever;
  Plan by_layer = sharded(2);
  by_layer.recompute.granularity = RecomputeGranularity::kSelective;
  by_layer.recompute.policy = "every_second_layer";
  CHECK(error_of(peak_of(fsdp, by_layer), 50'048'438'272) < 0.0001);
  Job compiled = job_1b(1, 8192, 4);  // t1_011
  compiled.profile.compile = true;
  CHECK(std::abs(peak_of(compiled, alone(4)) - 79'684'068'200) < 300'000);
}

Plan in_parallel(std::int64_t tp, std::int64_t pp, std::int64_t cp, std::int64_t dp) {
  Plan plan = sharded(dp);
  plan.tp = tp;
  plan.sequence_parallel = tp > 1;
  plan.pp = pp;
  plan.schedule = pp > 1 ? Schedule::k1F1B : plan.schedule;
  plan.cp = cp;
  plan.cp_method = CpMethod::kRing;
  return plan;
}

// Rank 0 of torchtitan v0.2.2 on one H200 (PyTorch 2.11), the other ranks of the process group
// faked (torch.testing._internal.distributed.fake_pg), 1B shape above, second to fourth step.
TEST_CASE("what no measured run combines is within 0.3 % of its trace") {
  Plan by_layer = alone(2);
  by_layer.recompute.granularity = RecomputeGranularity::kSelective;
  by_layer.recompute.policy = "every_second_layer";
  CHECK(error_of(peak_of(job_1b(1, 4096, 2), by_layer), 40'185'114'624) < 0.003);
  Job compiled = job_1b(2, 8192, 1);
  compiled.profile.compile = true;
  CHECK(error_of(peak_of(compiled, in_parallel(1, 1, 2, 1)), 17'254'560'256) < 0.003);
  Job pipeline = job_1b(4, 4096, 4);
  pipeline.profile.compile = true;
  CHECK(error_of(peak_of(pipeline, in_parallel(1, 2, 2, 1)), 11'962'243'072) < 0.003);
}

Job job_3b(std::int64_t gpus, std::int64_t sequence, std::int64_t batch) {
  Job job = job_1b(gpus, sequence, batch);
  job.model.hidden = 3072;
  job.model.num_heads = 24;
  job.model.head_dim = 128;
  job.model.layers.resize(28);
  return job;
}

// data/measured/frameworks_h200.jsonl, titan-l32_3b_cp2_s16384b1_none_C and s32768b1: 28 layers, 4
// and 8 MiB of angles in each.
TEST_CASE("a compiled ring keeps the rotary angles of its positions") {
  for (const auto& [sequence, measured] :
       {std::pair{16384, 50'909'582'848}, {32768, 79'334'905'344}}) {
    Job job = job_3b(2, sequence, 1);
    job.profile.compile = true;
    CHECK(error_of(peak_of(job, in_parallel(1, 1, 2, 1)), measured) < 0.0003);
  }
}

TEST_CASE("a loss that is not compiled keeps fp32 logits beside compiled blocks") {
  Job job = job_1b(2, 8192, 2);
  job.profile.compile = true;
  const MemoryEstimate compiled = estimate_memory(job, sharded(2));
  CHECK(std::ranges::none_of(compiled.stages.at(0).rows,
                             [](const Row& row) { return row.name == "head.loss.log_softmax"; }));
  job.profile.compile_loss = false;
  const MemoryEstimate eager = estimate_memory(job, sharded(2));
  const Row& row = row_named(eager.stages.at(0), "head.loss.log_softmax");
  CHECK(row.total_bytes() == std::int64_t{4} * 128256 * 8192);
}

TEST_CASE("under tp a pipeline's embedding gradient is the whole table") {
  const MemoryEstimate memory = estimate_memory(job_3b(8, 4096, 8), in_parallel(2, 2, 1, 2));
  const Row& row = row_named(memory.stages.at(0), "embedding.gradients.accumulated");
  CHECK(row.total_bytes() == std::int64_t{4} * 128256 * 3072);
  CHECK(error_of(memory.stages.at(0).allocated_bytes, 18'668'859'392) < 0.003);
}

TEST_CASE("parameters in segments whose rest is too small to split count whole") {
  Job job = job_1b(4, 4096, 2);  // Llama 2 7B: shards of w1, w2, w3 are 43 MiB, of tables 125
  job.model.hidden = 4096;
  job.model.ffn = 11008;
  job.model.vocab = 32000;
  job.model.num_kv_heads = 32;
  job.model.head_dim = 128;
  const MemoryEstimate memory = estimate_memory(job, in_parallel(2, 1, 1, 2));
  CHECK(row_named(memory.stages.at(0), "allocator.block_ends").total_bytes() ==
        (3 * 16 + 2) * kMiB);
  CHECK(error_of(memory.stages.at(0).built_bytes, 3'554'942'976) < 0.0001);
}

TEST_CASE("selective recompute by operations keeps every second product of a layer") {
  const Job job = job_1b(2, 4096, 2);
  Plan plan = sharded(2);
  const auto kept = [&](const char* name) {
    return row_named(estimate_memory(job, plan).stages.at(0), name).copies;
  };
  CHECK(kept("layer.dense.ffn.silu") == 14);
  plan.recompute.granularity = RecomputeGranularity::kSelective;
  plan.recompute.policy = "every_second_matmul";
  CHECK(kept("layer.dense.ffn.silu") == 0);
  CHECK(kept("layer.dense.ffn.gate") == 14);                    // w1, the fifth
  CHECK(kept("layer.dense.attention.query_projection") == 14);  // wq, the first
  CHECK(kept("layer.dense.ffn.output_kept") == 14);             // w2, the seventh
  const std::int64_t selective = peak_of(job, plan);
  plan.recompute = {};
  const std::int64_t none = peak_of(job, plan);
  plan.recompute.granularity = RecomputeGranularity::kFull;
  CHECK(peak_of(job, plan) < selective);
  CHECK(selective < none);
}

TEST_CASE("parameters that stay gathered cost two bytes each") {
  Job job = job_1b(2, 4096, 2);
  const Plan plan = sharded(2);
  const std::int64_t resharded = peak_of(job, plan);
  job.profile.reshard_after_forward = ReshardAfterForward::kNever;
  const std::int64_t extra = peak_of(job, plan) - resharded;
  const std::int64_t gathered = 2 * (kModel1b - kTable1b - 2048);  // the head stays anyway
  CHECK(std::abs(extra - gathered) < 100'000);
}

TEST_CASE("gradients are freed before the next step, so the first of two microbatches lacks them") {
  const Plan plan = sharded(2);
  const std::int64_t one = peak_of(job_1b(2, 8192, 2), plan);
  const std::int64_t two = peak_of(job_1b(2, 8192, 4), plan);
  CHECK(std::abs(two - one - 4 * kModel1b / 2) < 100'000);
  CHECK(peak_of(job_1b(2, 8192, 8), plan) == two);
}

TEST_CASE("a pipeline holds whole gradients and parameters until its last microbatch") {
  Job job = job_1b(4, 4096, 8);
  Plan plan = sharded(2);
  plan.pp = 2;
  plan.schedule = Schedule::k1F1B;
  REQUIRE_FALSE(why_invalid(job, plan).has_value());
  const MemoryEstimate estimate = estimate_memory(job, plan);
  const std::int64_t first = 8 * kLayer1b + kTable1b;
  const StageMemory& stage = estimate.stages.at(0);
  CHECK(stage.parameters == first);
  std::int64_t unsharded = 0;
  std::int64_t accumulated = 0;
  for (const Row& row : stage.rows) {
    unsharded += row.name.ends_with(".fsdp.unsharded_parameters") ? row.total_bytes() : 0;
    accumulated += row.name.ends_with(".gradients.accumulated") ? row.total_bytes() : 0;
  }
  CHECK(unsharded == 2 * first);
  CHECK(accumulated == 4 * first);
}

// A chunk's first layer reads what the pipeline received, or what the embedding made.
TEST_CASE("GPipe's microbatches keep a stage's input once, in the buffer that received it") {
  Job job = job_1b(4, 4096, 16);
  Plan plan = sharded(2);
  plan.pp = 2;
  plan.schedule = Schedule::kGpipe;
  plan.recompute.granularity = RecomputeGranularity::kFull;
  REQUIRE_FALSE(why_invalid(job, plan).has_value());
  const MemoryEstimate estimate = estimate_memory(job, plan);
  const std::int64_t sequence = std::int64_t{2} * 4096 * 2048;
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    const StageMemory& stage = estimate.stages.at(rank);
    REQUIRE(stage.num_layers == 8);
    std::int64_t inputs = 0;
    for (const Row& row : stage.rows) {
      inputs += row.name.starts_with("layer.") && row.name.ends_with(".input") &&
                        !row.name.ends_with("ffn.input")
                    ? row.total_bytes()
                    : 0;
    }
    CHECK(row_named(stage, "pipeline.receive_buffers").total_bytes() == 8 * sequence);
    CHECK(inputs % (7 * sequence) == 0);  // of eight layers all but the first
    CHECK(inputs > 0);
  }
}

TEST_CASE("layers are dealt with embedding and head as one layer each, the rest to the front") {
  Job job = job_1b(4, 4096, 16);
  job.model.layers.resize(28);
  Plan plan = sharded(2);
  plan.pp = 2;
  plan.vpp = 2;
  plan.schedule = Schedule::kInterleaved1F1B;
  REQUIRE_FALSE(why_invalid(job, plan).has_value());
  const MemoryEstimate estimate = estimate_memory(job, plan);
  CHECK(estimate.stages.at(0).num_layers == 14);  // 7 + 7
  CHECK(estimate.stages.at(1).num_layers == 14);  // 8 + 6
}

TEST_CASE("price agrees with estimate to the byte for every behaviour") {
  for (const bool compile : {false, true}) {
    for (const auto& reshard : kReshardAfterForward) {
      Job job = job_1b(8, 4096, 16);
      job.profile.compile = compile;
      job.profile.reshard_after_forward = reshard.value;
      PriceTable table = build_price_table(job);
      for (const char* policy : {"", "every_second_layer", "every_second_matmul"}) {
        for (const std::int64_t pp : {1, 2}) {
          for (const std::int64_t tp : {1, 2}) {
            for (const std::int64_t cp : {1, 2}) {
              Plan plan = sharded(0);
              plan.tp = tp;
              plan.pp = pp;
              plan.cp = cp;
              plan.sequence_parallel = tp > 1;
              plan.schedule = pp > 1 ? Schedule::k1F1B : Schedule::kNone;
              plan.recompute.policy = policy;
              plan.recompute.granularity =
                  *policy == '\0' ? RecomputeGranularity::kNone : RecomputeGranularity::kSelective;
              REQUIRE_FALSE(why_invalid(job, plan).has_value());
              std::int64_t worst = 0;
              for (const StageMemory& stage : estimate_memory(job, plan).stages) {
                worst = std::max(worst, stage.allocated_bytes);
              }
              CHECK(price(table, plan).allocated_bytes == worst);
            }
          }
        }
      }
    }
  }
}

// One H200, PyTorch 2.11, torchtitan v0.2.2, sequences of 4096; with dp 8 or tp 2 the other ranks
// of the process group faked.
TEST_CASE("Qwen3 peaks where torchtitan's did") {
  const auto qwen3 = [](std::int64_t gpus, std::int64_t batch) {
    Job job = job_1b(gpus, 4096, batch);
    job.model.ffn = 6144;
    job.model.head_dim = 128;
    job.model.vocab = 32768;
    job.model.qk_norm = true;
    job.model.layers.resize(4);
    return job;
  };
  CHECK(error_of(peak_of(qwen3(1, 2), alone(1)), 10'671'388'160) < 0.0005);
  CHECK(error_of(peak_of(qwen3(8, 8), sharded(8)), 3'993'787'904) < 0.0005);
  CHECK(error_of(peak_of(qwen3(8, 4), in_parallel(2, 1, 1, 4)), 2'657'730'048) < 0.0005);
  CHECK(error_of(peak_of(qwen3(8, 4), in_parallel(1, 1, 2, 4)), 2'443'632'128) < 0.0005);
  Job tied = qwen3(8, 8);
  tied.model.hidden = 1024;
  tied.model.num_heads = 16;
  tied.model.ffn = 3072;
  tied.model.vocab = 151936;
  tied.model.tied_embeddings = true;
  CHECK(error_of(peak_of(tied, sharded(8)), 9'048'366'592) < 0.0005);
  // Until its first forward FSDP2 holds a shard of the table for the head, too.
  CHECK(error_of(estimate_memory(tied, sharded(8)).stages.at(0).built_bytes, 191'570'432) < 0.002);
  Job compiled = qwen3(1, 1);
  compiled.profile.compile = true;
  CHECK(error_of(peak_of(compiled, alone(1)), 7'148'127'744) < 0.0005);
  // Its gradients of the feed-forward input wait for the block's last kernel.
  compiled = qwen3(8, 8);
  compiled.profile.compile = true;
  CHECK(error_of(peak_of(compiled, sharded(8)), 2'744'416'768) < 0.0005);
  Job ring = qwen3(8, 4);
  ring.profile.compile = true;
  Plan plan = in_parallel(1, 1, 2, 4);
  CHECK(error_of(peak_of(ring, plan), 2'133'268'992) < 0.005);
  plan.recompute.granularity = RecomputeGranularity::kFull;
  CHECK(error_of(peak_of(ring, plan), 1'584'360'960) < 0.005);
  plan.recompute = {.granularity = RecomputeGranularity::kSelective,
                    .policy = "every_second_matmul"};
  CHECK(error_of(peak_of(ring, plan), 1'784'306'176) < 0.015);
}

TEST_CASE("Qwen3 runs tp or cp, in one pipeline stage") {
  Job job = job_1b(8, 4096, 8);
  job.model.qk_norm = true;
  const auto rule = [&job](const Plan& plan) {
    const std::optional<InvalidReason> reason = why_invalid(job, plan);
    return reason ? reason->rule : "";
  };
  CHECK(rule(in_parallel(2, 1, 1, 4)).empty());
  CHECK(rule(in_parallel(2, 1, 2, 2)) == "qwen3_tp_excludes_cp");
  CHECK(rule(in_parallel(1, 2, 1, 4)) == "qwen3_needs_pp_1");
  job.model.tied_embeddings = true;
  CHECK(rule(sharded(8)).empty());
  job.profile.compile = true;
  CHECK(rule(in_parallel(1, 1, 2, 4)).empty());
}

TEST_CASE("what torchtitan does not do is refused by name") {
  const auto rule = [](const Job& job, const Plan& plan) {
    const std::optional<InvalidReason> reason = why_invalid(job, plan);
    return reason ? reason->rule : "";
  };
  Job job = job_1b(8, 4096, 16);
  Plan plan = sharded(8);
  CHECK(rule(job, plan).empty());
  plan.zero = 1;
  CHECK(rule(job, plan) == "unsupported: zero");
  plan.zero = 0;
  CHECK(rule(job, plan) == "zero_3_needs_shards");
  plan.dp_replicate = 8;
  CHECK(rule(job, plan).empty());
  plan.zero = 3;
  CHECK(rule(job, plan) == "zero_3_needs_shards");
  // models/llama3/infra/parallelize.py: a RuntimeError.
  plan = replicated(4);
  plan.tp = 2;
  plan.sequence_parallel = true;
  CHECK(rule(job, plan) == "ddp_needs_tp_1_and_pp_1");
  plan = sharded(4);
  plan.tp = 2;
  CHECK(rule(job, plan) == "sequence_parallel_follows_tp");
  // maybe_enable_amp of distributed/utils.py: fp32, under whatever ZeRO stage.
  plan = sharded(1);
  plan.tp = 8;
  plan.sequence_parallel = true;
  for (const std::int64_t zero : {0, 3}) {
    plan.zero = zero;
    const InvalidReason reason = why_invalid(job, plan).value();
    CHECK(reason.rule == "unsupported: ranks without shards");
    CHECK(reason.message.find("without FSDP torchtitan trains in fp32") != std::string::npos);
  }
  plan = sharded(2);
  plan.pp = 4;
  plan.schedule = Schedule::k1F1B;
  plan.layers_per_chunk = {0, 8, 8, 0};  // embedding and head remain
  CHECK(rule(job, plan).empty());
  plan.layers_per_chunk = {8, 0, 4, 4};
  CHECK(rule(job, plan) == "inner_chunks_have_layers");
  plan = sharded(8);
  plan.recompute.granularity = RecomputeGranularity::kFull;
  plan.recompute.num_layers = 2;
  CHECK(rule(job, plan) == "unsupported: recompute");
  job.model.tied_embeddings = true;
  CHECK(rule(job, sharded(8)) == "unsupported: model");
  job.model.tied_embeddings = false;
  job.model.head_dim *= 2;  // Mistral NeMo's is 128 of 5120 / 32; Llama 3's class has no such field
  CHECK(rule(job, sharded(8)) == "head_dim_is_hidden_over_heads");
  job.model.qk_norm = true;  // Qwen3's has
  CHECK(rule(job, sharded(8)).empty());
  job.model.qk_norm = false;
  job.model.head_dim = 288;  // no fused attention: scores are written out
  CHECK(rule(job, sharded(8)) == "unsupported: model.head_dim");
  set_framework(job.profile, MemoryModel::kMegatronLocal);
  CHECK(rule(job, {.dp = 8, .zero = 1}) == "unsupported: model.head_dim");
}

}  // namespace shardplan::torchtitan
