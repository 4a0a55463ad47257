#include "estimator/plan/parameters.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "estimator/plan/layer_partition.h"
#include "tests/estimator/llama_job.h"

using namespace shardplan;

namespace {

ModelSpec llama3_8b() {
  return llama_model({.hidden = 4096, .ffn = 14336, .heads = 32, .layers = 32});
}

// huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json
ModelSpec deepseek_v3() {
  ModelSpec model;
  model.hidden = 7168;
  model.ffn = 18432;
  model.vocab = 129280;
  model.num_heads = 128;
  model.num_kv_heads = 128;
  model.attention = AttentionKind::kMla;
  model.mla = {.q_lora_rank = 1536,
               .kv_lora_rank = 512,
               .qk_nope_head_dim = 128,
               .qk_rope_head_dim = 64,
               .v_head_dim = 128};
  model.moe = {.num_experts = 256, .topk = 8, .expert_ffn = 2048, .shared_ffn = 2048};
  model.num_mtp_layers = 1;
  model.layers = std::vector<LayerSpec>(61, {.is_moe = true});
  for (std::size_t layer = 0; layer < 3; ++layer) { model.layers[layer].is_moe = false; }
  return model;
}

std::int64_t elements_of(const std::vector<ParameterTensor>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &ParameterTensor::name);
  return found == tensors.end() ? -1 : found->elements;
}

std::int64_t sum_of(const std::vector<ParameterTensor>& tensors) {
  std::int64_t sum = 0;
  for (const ParameterTensor& tensor : tensors) { sum += tensor.elements; }
  return sum;
}

}  // namespace

TEST_CASE("Llama-3 models have their published numbers of parameters") {
  // arXiv 2407.21783, exact integers from the shapes of its Table 3 with vocabulary 128256.
  CHECK(count_parameters(llama3_8b()) == 8'030'261'248);
  CHECK(count_parameters(llama_model({8192, 28672, 64, 80})) == 70'553'706'496);
  CHECK(count_parameters(llama_model({16384, 53248, 128, 126})) == 405'853'388'800);
}

TEST_CASE("a layer of Llama-3-8B is counted by hand") {
  const std::vector<ParameterTensor> tensors = layer_parameters(llama3_8b(), {});
  // 4096 x (32 + 2 x 8) x 128; 4096 x 4096; 2 x 4096 x 14336; 14336 x 4096.
  CHECK(elements_of(tensors, "attention.qkv") == 25'165'824);
  CHECK(elements_of(tensors, "attention.output") == 16'777'216);
  CHECK(elements_of(tensors, "ffn.fc1") == 117'440'512);
  CHECK(elements_of(tensors, "ffn.fc2") == 58'720'256);
  CHECK(elements_of(tensors, "attention.norm") == 4096);
  CHECK(elements_of(tensors, "ffn.norm") == 4096);
  CHECK(sum_of(tensors) == 218'112'000);
}

TEST_CASE("DeepSeek-V3 counts 671 billion, 37 billion of them active, and its MTP module apart") {
  const ModelSpec model = deepseek_v3();
  // One MLA attention: 7168*1536 + 1536 + 1536*128*192 + 7168*576 + 512 + 512*128*256 + 16384*7168.
  const std::vector<ParameterTensor> dense = layer_parameters(model, {});
  CHECK(sum_of(dense) == 187'107'328 + 2 * 7168 + std::int64_t{3} * 7168 * 18432);
  // huggingface.co/deepseek-ai/DeepSeek-V3: 671B in total, 37B active (routing bias not counted).
  CHECK(count_parameters(model) == 671'026'404'352);
  CHECK(count_active_parameters(model) / 1'000'000'000 == 37);
  // One more MoE layer, projection of [embedding, hidden], three norms (README_WEIGHTS.md there:
  // "11.5B unique parameters").
  CHECK(count_mtp_parameters(model) == sum_of(layer_parameters(model, {.is_moe = true})) +
                                           std::int64_t{2} * 7168 * 7168 + std::int64_t{3} * 7168);
}

TEST_CASE("without q-LoRA the query is one projection and has no norm") {
  ModelSpec model = deepseek_v3();
  model.mla.q_lora_rank = 0;
  const std::vector<ParameterTensor> tensors = layer_parameters(model, {});
  CHECK(elements_of(tensors, "attention.q") == 7168 * 128 * 192);
  CHECK(elements_of(tensors, "attention.q_down") == -1);
  CHECK(elements_of(tensors, "attention.q_down_norm") == -1);
}

TEST_CASE("the head dimension need not be hidden over heads") {
  // Qwen3-30B-A3B: hidden 2048, 32 heads of 128.
  ModelSpec model = llama3_8b();
  model.hidden = 2048;
  model.num_kv_heads = 4;
  model.qk_norm = true;
  const std::vector<ParameterTensor> tensors = layer_parameters(model, {});
  CHECK(elements_of(tensors, "attention.qkv") == 2048 * (4096 + 1024));
  CHECK(elements_of(tensors, "attention.output") == 4096 * 2048);
  CHECK(elements_of(tensors, "attention.q_norm") == 128);
}

TEST_CASE("each bias adds its own width") {
  const ModelSpec plain = llama3_8b();
  ModelSpec biased = plain;
  biased.qkv_bias = true;
  CHECK(count_parameters(biased) - count_parameters(plain) == 32 * 6144);
  biased.attention_output_bias = true;
  CHECK(count_parameters(biased) - count_parameters(plain) == 32 * (6144 + 4096));
  biased.ffn_bias = true;
  CHECK(count_parameters(biased) - count_parameters(plain) ==
        32 * (6144 + 4096 + 2 * 14336 + 4096));
}

TEST_CASE("LayerNorm adds a bias to every norm, learned positions one table to the first stage") {
  const ModelSpec plain = llama3_8b();
  ModelSpec layer_norm = plain;
  layer_norm.layer_norm = true;
  CHECK(count_parameters(layer_norm) - count_parameters(plain) == (2 * 32 + 1) * 4096);
  Job job;
  job.model = plain;
  job.sequence_length = 1024;
  job.global_batch = 2;
  job.cluster.gpus_per_node = 2;
  job.model.tied_embeddings = true;
  job.model.learned_positions = 1024;
  Job rotary = job;
  rotary.model.learned_positions = 0;
  Plan plan;
  plan.pp = 2;
  plan.schedule = Schedule::k1F1B;
  CHECK(local_parameters(job, plan, 0).total() ==
        local_parameters(rotary, plan, 0).total() + 1024 * 4096);
  CHECK(local_parameters(job, plan, 1).total() == local_parameters(rotary, plan, 1).total());
}

TEST_CASE("tied embeddings are counted once, Gemma's extra norms twice a layer") {
  const ModelSpec plain = llama3_8b();
  ModelSpec tied = plain;
  tied.tied_embeddings = true;
  CHECK(count_parameters(plain) - count_parameters(tied) == 4096 * 128256);
  ModelSpec four_norms = plain;
  four_norms.norms_per_layer = 4;
  CHECK(count_parameters(four_norms) - count_parameters(plain) == 32 * 2 * 4096);
}

TEST_CASE("a mixture of experts adds router, experts and the gated shared expert") {
  // Qwen1.5-MoE-A2.7B (config.json on huggingface.co): 14,315,784,192 parameters.
  ModelSpec model = llama3_8b();
  model.hidden = 2048;
  model.vocab = 151936;
  model.num_heads = 16;
  model.num_kv_heads = 16;
  model.qkv_bias = true;
  model.moe = {
      .num_experts = 60, .topk = 4, .expert_ffn = 1408, .shared_ffn = 5632, .shared_gate = true};
  model.layers = std::vector<LayerSpec>(24, {.is_moe = true});
  const std::vector<ParameterTensor> tensors = layer_parameters(model, model.layers.front());
  CHECK(elements_of(tensors, "router") == 2048 * 60);
  CHECK(elements_of(tensors, "experts.fc1") + elements_of(tensors, "experts.fc2") ==
        60 * 3 * 2048 * 1408);
  CHECK(elements_of(tensors, "shared.gate") == 2048);
  CHECK(count_parameters(model) == 14'315'784'192);
  // Of 60 experts a token uses 4.
  CHECK(count_parameters(model) - count_active_parameters(model) ==
        std::int64_t{24} * 56 * 3 * 2048 * 1408);
}

namespace {

// Widths of one model, counted again from the formulas rather than from the tensors: what is
// divided by tp, what lies on every tp rank, what is divided by ep * etp.
struct LayerWidths {
  std::int64_t sharded = 0;
  std::int64_t replicated = 0;
  std::int64_t expert = 0;
};

LayerWidths widths_of(const ModelSpec& model, bool is_moe) {
  const std::int64_t h = model.hidden;
  const std::int64_t a = model.num_heads;
  const std::int64_t ffn_matrices = model.gated_ffn ? 3 : 2;
  LayerWidths widths;
  widths.replicated = model.norms_per_layer * h + (model.attention_output_bias ? h : 0);
  if (model.is_mla()) {
    const MlaSpec& mla = model.mla;
    const std::int64_t ql = mla.q_lora_rank;
    const std::int64_t kl = mla.kv_lora_rank;
    const std::int64_t query = a * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
    widths.sharded = (ql == 0 ? h : ql) * query + kl * a * (mla.qk_nope_head_dim + mla.v_head_dim) +
                     a * mla.v_head_dim * h;
    widths.replicated += h * ql + ql + h * (kl + mla.qk_rope_head_dim) + kl;
    widths.replicated += model.qkv_bias ? ql + kl + mla.qk_rope_head_dim : 0;
  } else {
    const std::int64_t d = model.head_dim;
    const std::int64_t k = model.num_kv_heads;
    widths.sharded = 2 * h * a * d + 2 * h * k * d + (model.qkv_bias ? (a + 2 * k) * d : 0);
    widths.replicated += model.qk_norm ? 2 * d : 0;
  }
  if (!is_moe) {
    widths.sharded += ffn_matrices * h * model.ffn;
    widths.sharded += model.ffn_bias ? (ffn_matrices - 1) * model.ffn : 0;
    widths.replicated += model.ffn_bias ? h : 0;
    return widths;
  }
  const MoeSpec& moe = model.moe;
  widths.sharded += ffn_matrices * h * moe.shared_ffn;
  widths.replicated +=
      h * moe.num_experts + (moe.router_bias ? moe.num_experts : 0) + (moe.shared_gate ? h : 0);
  widths.expert = ffn_matrices * h * moe.expert_ffn * moe.num_experts;
  return widths;
}

struct RandomJobs {
  std::mt19937_64 random{20411};

  std::int64_t pick(std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  }
  bool coin() { return random() % 2 == 0; }

  ModelSpec model() {
    ModelSpec model;
    model.hidden = pick({64, 512, 4096});
    model.ffn = 128 * pick({1, 11, 86});
    model.vocab = pick({1000, 32000, 128256, 151937});
    model.num_heads = pick({8, 16, 32});
    model.num_kv_heads = pick({8, 8, model.num_heads, 2});
    model.head_dim = pick({64, 128});
    model.gated_ffn = coin();
    model.tied_embeddings = coin();
    model.qkv_bias = coin();
    model.attention_output_bias = coin();
    model.ffn_bias = coin();
    model.qk_norm = coin();
    model.norms_per_layer = pick({2, 4});
    model.num_mtp_layers = pick({0, 0, 1, 2});
    if (coin()) {
      model.attention = AttentionKind::kMla;
      model.mla = {.q_lora_rank = pick({0, 96}),
                   .kv_lora_rank = 32,
                   .qk_nope_head_dim = 16,
                   .qk_rope_head_dim = 8,
                   .v_head_dim = 24};
    }
    model.layers.resize(static_cast<std::size_t>(pick({8, 16, 24})));
    if (coin()) {
      model.moe = {.num_experts = pick({8, 64}),
                   .topk = 2,
                   .expert_ffn = 256,
                   .shared_ffn = pick({0, 512}),
                   .shared_gate = coin(),
                   .router_bias = coin()};
      for (LayerSpec& layer : model.layers) { layer.is_moe = random() % 3 > 0; }
    }
    return model;
  }

  Plan plan(const ModelSpec& model) {
    Plan plan;
    plan.tp = pick({1, 2, 4, 8});
    plan.pp = pick({1, 2, 4});
    const bool two_chunks = plan.pp > 1 && coin();
    plan.vpp = two_chunks ? 2 : 1;
    plan.schedule = plan.pp == 1  ? Schedule::kNone
                    : !two_chunks ? Schedule::k1F1B
                    : coin()      ? Schedule::kInterleaved1F1B
                                  : Schedule::kZbv;
    if (model.moe.num_experts > 0) {
      plan.ep = pick({1, 2, 8});
      plan.etp = pick({1, 2});
    }
    if (plan.pp > 1 && coin()) {
      plan.layers_per_chunk.assign(static_cast<std::size_t>(plan.pp * plan.vpp), 1);
      plan.layers_per_chunk[random() % plan.layers_per_chunk.size()] +=
          model.num_layers() - plan.pp * plan.vpp;
    }
    return plan;
  }
};

}  // namespace

TEST_CASE("parameters of all ranks are the model, its padding and its counted replicas") {
  RandomJobs jobs;
  std::int64_t failures = 0;
  for (std::int64_t trial = 0; trial < 12'000; ++trial) {
    Job job;
    job.model = jobs.model();
    job.profile.vocab_multiple = jobs.pick({1, 128});
    set_framework(job.profile, jobs.coin() ? MemoryModel::kMegatron : MemoryModel::kNative);
    const ModelSpec& model = job.model;
    const Plan plan = jobs.plan(model);
    LocalParameters all;  // one tp rank and one expert rank of every stage
    for (std::int64_t rank = 0; rank < plan.pp; ++rank) {
      const LocalParameters local = local_parameters(job, plan, rank);
      all.dense += plan.tp * local.dense;
      all.expert += plan.ep * plan.etp * local.expert;
    }

    LayerWidths sum;
    std::vector<LayerSpec> layers = model.layers;
    for (std::int64_t i = 0; i < model.num_mtp_layers; ++i) {
      layers.push_back(model.layers.back());
    }
    for (const LayerSpec& layer : layers) {
      const LayerWidths widths = widths_of(model, layer.is_moe);
      sum.sharded += widths.sharded;
      sum.replicated += widths.replicated;
      sum.expert += widths.expert;
    }
    const std::int64_t h = model.hidden;
    sum.replicated += h + model.num_mtp_layers * 3 * h;
    sum.sharded += model.num_mtp_layers * 2 * h * h;
    const std::int64_t unit = job.profile.vocab_multiple * plan.tp;
    const std::int64_t table = h * ((model.vocab + unit - 1) / unit * unit);
    const bool ends_apart = plan.pp > 1 && plan.schedule != Schedule::kZbv;
    const bool copies_table = ends_apart && (model.tied_embeddings || model.num_mtp_layers > 0);
    const std::int64_t tables = 1 + (model.tied_embeddings ? 0 : 1) + (copies_table ? 1 : 0);
    // Two kv heads on 4 or 8 tp ranks: native holds each of them 2 or 4 times.
    const bool repeats_kv = model.attention == AttentionKind::kGqa &&
                            model.num_kv_heads < plan.tp &&
                            job.profile.memory_model == MemoryModel::kNative;
    const std::int64_t kv_of_layer =
        2 * model.num_kv_heads * model.head_dim * (h + (model.qkv_bias ? 1 : 0));
    const std::int64_t repeated = repeats_kv ? (plan.tp / model.num_kv_heads - 1) * kv_of_layer *
                                                   static_cast<std::int64_t>(layers.size())
                                             : 0;
    failures += all.dense != sum.sharded + plan.tp * sum.replicated + tables * table + repeated;
    failures += all.expert != sum.expert;
    // The whole model once: the same sums without copies and padding.
    const std::int64_t once = sum.sharded + sum.replicated + sum.expert +
                              (model.tied_embeddings ? 1 : 2) * h * model.vocab;
    failures += once != count_parameters(model) + count_mtp_parameters(model);
  }
  CHECK(failures == 0);
}

TEST_CASE("stages of Llama-3 hold the published reference integers") {
  const auto local = [](const ModelSpec& model, std::int64_t tp, std::int64_t pp,
                        std::int64_t rank) {
    Job job;
    job.model = model;
    Plan plan;
    plan.tp = tp;
    plan.pp = pp;
    plan.schedule = pp == 1 ? Schedule::kNone : Schedule::k1F1B;
    return local_parameters(job, plan, rank).total();
  };
  // Vocabulary padded to 128 * tp: 128256 stays for tp <= 2, 128512 at 4, 129024 at 8.
  CHECK(local(llama3_8b(), 1, 1, 0) == 8'030'261'248);
  CHECK(local(llama3_8b(), 2, 1, 0) == 4'015'263'744);
  CHECK(local(llama3_8b(), 4, 1, 0) == 2'008'289'280);
  CHECK(local(llama3_8b(), 2, 2, 0) == 2'007'629'824);
  CHECK(local(llama3_8b(), 2, 2, 1) == 2'007'633'920);
  const ModelSpec large = llama_model({8192, 28672, 64, 80});
  CHECK(local(large, 8, 4, 0) == 2'271'543'296);
  CHECK(local(large, 8, 4, 1) == 2'139'422'720);
  CHECK(local(large, 8, 4, 3) == 2'271'551'488);
  CHECK(local(large, 4, 8, 0) == 2'402'451'456);
  CHECK(local(large, 8, 8, 7) == 1'201'840'128);
}

TEST_CASE("DeepSeek-V3 over ep 8 has the reference counts of dense and expert parameters") {
  // SimuMax docs/b200: four layers, the first dense, e8 D8, no MTP.
  Job job;
  job.model = deepseek_v3();
  job.model.num_mtp_layers = 0;
  job.model.layers.assign(4, {.is_moe = true});
  job.model.layers.front().is_moe = false;
  Plan plan;
  plan.ep = 8;
  const LocalParameters local = local_parameters(job, plan, 0);
  CHECK(local.dense == 3'135'839'232);
  CHECK(local.expert == 4'227'858'432);
}
