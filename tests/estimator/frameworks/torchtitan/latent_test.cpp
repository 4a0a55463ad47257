// torchtitan's DeepSeek-V3: allocation traces of v0.2.2 with PyTorch 2.11 on an H100 (the other
// ranks of the process group faked), sizes counted by hand, laws.
#include <doctest/doctest.h>

#include <string_view>
#include <unordered_map>

#include "estimator/estimate.h"
#include "estimator/frameworks/torchtitan/layer.h"
#include "estimator/price/price.h"
#include "tests/estimator/allocation_changes.h"
#include "tests/estimator/frameworks/torchtitan/peaks.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::torchtitan {
namespace {

// 16 heads of 128 + 64 and values of 128, latent keys and values of 512; 16 experts and two shared
// ones of width 512, four a token, behind one layer without.
Job deepseek(std::int64_t gpus, std::int64_t q_lora_rank) {
  Job job = llama_job("torchtitan", {.hidden = 1024, .ffn = 2816, .heads = 16, .layers = 4}, gpus,
                      2048, 2 * gpus);
  job.model.family = "deepseek_v3";
  job.model.attention = AttentionKind::kMla;
  job.model.vocab = 32000;
  job.model.mla = {.q_lora_rank = q_lora_rank,
                   .kv_lora_rank = 512,
                   .qk_nope_head_dim = 128,
                   .qk_rope_head_dim = 64,
                   .v_head_dim = 128};
  job.model.moe = {.num_experts = 16, .topk = 4, .expert_ffn = 512, .shared_ffn = 1024};
  for (std::size_t i = 1; i < job.model.layers.size(); ++i) { job.model.layers[i].is_moe = true; }
  return job;
}

Plan sharded(std::int64_t dp, std::int64_t ep) {
  Plan plan;
  plan.dp = dp;
  plan.ep = ep;
  plan.zero = 3;
  plan.micro_batch = 2;
  return plan;
}

// In units of 2^17 bytes, of 4096 tokens: the stream; latent queries; queries (keys likewise),
// their part that is turned; latent keys and values with that part and without; keys without it and
// values; the output.
constexpr std::int64_t kStream = 64;
constexpr std::int64_t kLatentQuery = 48;
constexpr std::int64_t kQuery = 192;
constexpr std::int64_t kTurned = 64;
constexpr std::int64_t kKeyPart = 8;  // in fp32; in bf16 half a MiB
constexpr std::int64_t kDown = 36;
constexpr std::int64_t kLatent = 32;
constexpr std::int64_t kKeyValue = 256;
constexpr std::int64_t kOutput = 128;
constexpr std::int64_t kWide = 2 * kTurned;

TEST_CASE("latent attention allocates and frees as traced") {
  const Job job = deepseek(8, 768);
  const TitanSizes sizes(job, sharded(8, 4), false);
  TitanTape tape(0);
  EagerLayer eager(tape, sizes);
  LayerTensors layer;
  layer.input = tape.make(sizes.sequence);
  eager.forward(layer, LayerPass::kSaves);
  const std::vector<std::int64_t> traced = {
      kStream,                                                     // input
      kStream,   kLatentQuery, kLatentQuery, kQuery,               // norm, wq_a, norm, wq_b
      kWide,     kWide,        kTurned,      -kWide,   -kWide,     // rotation
      kQuery,    kDown,        kKeyPart,     kKeyPart, -kKeyPart,  // both parts; wkv_a
      -kKeyPart, kLatent,      kLatent,      -kLatent, kKeyValue,  // norm, wkv_b
      kQuery,    kOutput,      kStream,                            // keys, attention, wo
      -kQuery,   -kTurned,     kStream,      -kStream};            // residual
  std::vector<std::int64_t> changes = large_changes(tape.take_events());
  for (std::int64_t& change : changes) { change /= 1 << 17; }
  REQUIRE(changes.size() > traced.size());
  changes.resize(traced.size());
  CHECK(changes == traced);
}

TEST_CASE("a rank holds as many parameters as torchtitan counted") {
  const auto parameters = [](const Job& job, std::int64_t ep) {
    const StageMemory stage = estimate_memory(job, sharded(8, ep)).stages.at(0);
    std::int64_t elements = 0;
    for (const Row& row : stage.rows) { elements += row.name == "parameters" ? row.bytes / 4 : 0; }
    return elements;
  };
  Job job = deepseek(8, 0);
  job.model.layers.resize(3);
  const std::int64_t rounding = 128 * 64;  // 512 bytes a tensor
  CHECK(parameters(job, 1) >= 19'330'112);
  CHECK(parameters(job, 1) <= 19'330'112 + rounding);
  job = deepseek(8, 768);
  job.model.layers.resize(3);
  CHECK(parameters(job, 4) >= 19'330'400);
  CHECK(parameters(job, 4) <= 19'330'400 + rounding);
}

TEST_CASE("a checkpoint by operations saves every second product, but for the router's") {
  using enum Weight;
  const TitanSizes with(deepseek(8, 768), sharded(8, 4), true);
  for (const Weight weight : {kQueryDown, kKey, kOutput, kSharedUp}) {
    CHECK(with.saves_product(weight));
  }
  for (const Weight weight : {kQuery, kValue, kRouter, kSharedGate, kSharedDown}) {
    CHECK(!with.saves_product(weight));
  }
  const TitanSizes without(deepseek(8, 0), sharded(8, 4), false);
  for (const Weight weight : {kQuery, kValue, kGate, kDown}) {
    CHECK(without.saves_product(weight));
  }
  for (const Weight weight : {kKey, kOutput, kUp}) { CHECK(!without.saves_product(weight)); }
}

TEST_CASE("DeepSeek's rows and its timeline peak alike") {
  for (const std::int64_t q_lora_rank : {0, 768}) {
    for (const std::int64_t vocab : {2048, 32000}) {
      for (const std::int64_t ep : {1, 2, 8}) {
        for (const bool flex : {false, true}) {
          Job job = deepseek(8, q_lora_rank);
          job.model.vocab = vocab;
          job.profile.attention_backend = flex ? AttentionBackend::kFlex : AttentionBackend::kAuto;
          CAPTURE(q_lora_rank);
          CAPTURE(vocab);
          CAPTURE(ep);
          CAPTURE(flex);
          check_peaks_alike(job, sharded(8, ep));
        }
      }
    }
  }
}

TEST_CASE("what of torchtitan's DeepSeek is not described is refused by name") {
  const auto rule = [](const Job& job, const Plan& plan) -> std::string_view {
    const ValidityRule* broken = first_broken_rule(job, plan);
    return broken == nullptr ? "" : broken->name;
  };
  Job job = deepseek(8, 0);
  CHECK(rule(job, sharded(8, 8)) == "");
  Plan plan = sharded(4, 1);
  plan.tp = 2;
  plan.etp = 2;
  plan.sequence_parallel = true;
  CHECK(rule(job, plan) == "unsupported: latent attention over ranks");
  job.profile.compile = true;
  CHECK(rule(job, sharded(8, 8)) == "unsupported: compiled latent attention");
  job.profile.compile_layers = false;
  CHECK(rule(job, sharded(8, 8)) == "");
  job.model.num_mtp_layers = 1;
  const InvalidReason reason = why_invalid(job, sharded(8, 8)).value();
  CHECK(reason.rule == "multi_token_prediction_needs_another_framework");
  CHECK(reason.message.ends_with("--model FILE, a config.json with num_nextn_predict_layers 0"));
  Job llama =
      llama_job("torchtitan", {.hidden = 1024, .ffn = 2816, .heads = 16, .layers = 4}, 8, 2048, 16);
  llama.profile.attention_backend = AttentionBackend::kFlex;
  CHECK(rule(llama, sharded(8, 1)) == "unsupported: flex attention");
}

}  // namespace
}  // namespace shardplan::torchtitan
