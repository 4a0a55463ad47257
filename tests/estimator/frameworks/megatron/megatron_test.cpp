// What a layer of Megatron with Transformer Engine keeps, counted by hand: a GPT layer with hidden
// size 512, 8 heads of 64, FFN 2048, sequences of 1024 and micro-batches of 4, the one that
// Megatron-LM's own tests train. T = 4096 tokens.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/stage_memory.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 4096;

Job gpt_job(const char* cluster) {
  const Library library;
  Job job;
  job.model.name = "gpt";
  job.model.hidden = 512;
  job.model.ffn = 2048;
  job.model.vocab = 50257;
  job.model.num_heads = 8;
  job.model.num_kv_heads = 8;
  job.model.head_dim = 64;
  job.model.gated_ffn = false;
  job.model.tied_embeddings = true;
  job.model.layer_norm = true;
  job.model.learned_positions = 1024;
  job.model.layers.resize(12);
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.profile.gradient_accumulation_fusion = false;
  job.sequence_length = 1024;
  job.global_batch = 32;
  return job;
}

const BlockMemory& layer_of(const BlockSet& blocks, BlockKind kind = BlockKind::kDenseLayer) {
  return blocks[static_cast<std::size_t>(kind)];
}

std::int64_t kept_bytes(const Job& job, BlockKind kind = BlockKind::kDenseLayer) {
  return layer_of(block_set(job, Plan{.micro_batch = 4}), kind).summary.kept_bytes;
}

std::int64_t state_bytes(const Job& job, const Plan& plan, std::string_view name) {
  const PlanPieces whole = plan_pieces(job, plan);
  const StagePieces& pieces = whole.stages.back();
  const auto row = std::ranges::find(pieces.state.rows, name, &StateRow::name);
  return row == pieces.state.rows.end() ? 0 : row->total_bytes();
}

// 2(h + h) of each norm, 2 * 4 statistics of each, qkv 6h, output 2h, 4 bytes of log-sum-exp per
// head, 4f of a plain FFN.
constexpr std::int64_t kPlainBytes = 4 * 2 * 512 + 2 * 8 + 8 * 512 + 4 * 8 + 4 * 2048;

TEST_CASE("a GPT layer keeps two statistics per norm and no gate") {
  CHECK(kept_bytes(gpt_job("1x8-h100")) == kTokens * kPlainBytes);
}

TEST_CASE("dropout of the hidden state keeps one byte an element, twice a layer") {
  Job job = gpt_job("1x8-h100");
  job.hidden_dropout = 0.1;
  CHECK(kept_bytes(job) == kTokens * (kPlainBytes + 2 * 512));
  job.attention_dropout = 0.1;  // fused kernels draw the mask again
  CHECK(kept_bytes(job) == kTokens * (kPlainBytes + 2 * 512));
}

TEST_CASE("FlashAttention keeps its own output, unless a batch of one is the same in both orders") {
  const Job job = gpt_job("1x8-a100-sxm-80gb");
  CHECK(kept_bytes(job) == kTokens * (kPlainBytes + 2 * 512));
  const auto one = [](const Job& each) {
    return layer_of(block_set(each, Plan{.micro_batch = 1})).summary.kept_bytes;
  };
  CHECK(one(job) == kTokens / 4 * kPlainBytes);
}

TEST_CASE("the attention kernels are those that Transformer Engine chooses for GPU and run") {
  const auto chosen = [](const char* cluster, bool deterministic, AttentionBackend backend) {
    Job job = gpt_job(cluster);
    job.profile.deterministic_attention = deterministic;
    job.profile.attention_backend = backend;
    return kept_bytes(job) - kTokens * kPlainBytes;
  };
  constexpr AttentionBackend kAuto = AttentionBackend::kAuto;
  CHECK(chosen("1x8-h100", true, kAuto) == 0);
  CHECK(chosen("1x8-b200", false, kAuto) == 0);
  CHECK(chosen("1x8-b200", true, kAuto) == kTokens * 2 * 512);
  CHECK(chosen("1x8-a100-sxm-80gb", false, AttentionBackend::kFused) == 0);
}

TEST_CASE("unfused attention keeps five bytes for each pair of positions with dropout, else two") {
  Job job = gpt_job("1x8-h100");
  job.profile.attention_backend = AttentionBackend::kUnfused;
  const std::int64_t pairs = std::int64_t{4} * 8 * 1024 * 1024;
  const std::int64_t plain = kTokens * (kPlainBytes - 4 * 8);  // no log-sum-exp
  CHECK(kept_bytes(job) == plain + 2 * pairs);
  job.attention_dropout = 0.1;
  CHECK(kept_bytes(job) == plain + 5 * pairs);
}

// core_v0.16.1 core/transformer/dot_product_attention.py: the packed product, of which queries,
// keys and values are parts, softmax's output, a mask of a byte, what dropout left; the
// projection's input. core/fusions/fused_layer_norm.py saves input and two statistics, the products
// their inputs.
TEST_CASE("core's own layers keep what Transformer Engine's do with unfused attention") {
  Job job = gpt_job("1x8-h100");
  job.profile.attention_backend = AttentionBackend::kLocal;
  const std::int64_t pairs = std::int64_t{4} * 8 * 1024 * 1024;
  const std::int64_t plain = kTokens * (kPlainBytes - 4 * 8);
  CHECK(kept_bytes(job) == plain + 2 * pairs);
  job.attention_dropout = 0.1;
  CHECK(kept_bytes(job) == plain + 5 * pairs);
  job.model.learned_positions = 0;  // q and k behind the rotary embedding, v in the packed product
  CHECK(kept_bytes(job) == plain + 5 * pairs + kTokens * 4 * 512);
}

// core/transformer/dot_product_attention.py, repeat_interleave; Transformer Engine's
// UnfusedDotProductAttention likewise: what is saved is the copies, and q's out of the groups.
TEST_CASE("attention that saves its probabilities keeps grouped keys and values for every head") {
  for (const AttentionBackend backend : {AttentionBackend::kUnfused, AttentionBackend::kLocal}) {
    Job job = gpt_job("1x8-h100");
    job.profile.attention_backend = backend;
    const std::int64_t own_heads = kept_bytes(job);
    job.model.num_kv_heads = 2;
    CHECK(kept_bytes(job) == own_heads);
    job.model.learned_positions = 0;  // q behind the rotary embedding
    CHECK(kept_bytes(job) == own_heads);
  }
}

// core/fusions/fused_softmax.py, forward_torch_softmax.
TEST_CASE("a softmax that no kernel fuses is kept in fp32 beside what the product is given") {
  Job job = gpt_job("1x8-h100");
  job.profile.attention_backend = AttentionBackend::kLocal;
  const std::int64_t pairs = std::int64_t{4} * 8 * 1024 * 1024;
  const auto more = [&](bool fuses, bool in_fp32, double dropout) {
    job.attention_dropout = dropout;
    job.profile.masked_softmax_fusion = true;
    job.profile.attention_softmax_in_fp32 = false;
    const std::int64_t fused = kept_bytes(job);
    job.profile.masked_softmax_fusion = fuses;
    job.profile.attention_softmax_in_fp32 = in_fp32;
    return kept_bytes(job) - fused;
  };
  const std::int64_t mask = std::int64_t{1024} * 1024;  // of every layer, whatever the batch
  CHECK(more(true, true, 0.1) == 0);
  CHECK(more(false, false, 0.1) == mask);
  CHECK(more(false, true, 0.1) == mask + 2 * pairs);  // 4 in place of 2 bytes
  CHECK(more(false, true, 0) == mask + 4 * pairs);    // the copy in bf16 is the product's input
  job.profile.attention_mask = true;                  // all layers fill the loader's
  CHECK(more(false, false, 0.1) == 0);
  job.profile.attention_mask = false;
  job.sequence_length = 1026;  // no multiple of 4
  job.model.learned_positions = 1026;
  CHECK(more(true, true, 0.1) == 2 * std::int64_t{4} * 8 * 1026 * 1026);
}

// core/models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_bshd: cosines and sines of
// 1024 positions in bf16, once for queries and once for keys.
TEST_CASE("a rotary embedding that no kernel fuses keeps its tables in every layer") {
  Job job = gpt_job("1x8-h100");
  job.model.learned_positions = 0;
  const std::int64_t fused = kept_bytes(job);
  job.profile.rope_fusion = false;
  CHECK(kept_bytes(job) - fused == std::int64_t{4} * 1024 * job.model.head_dim * 2);
}

// torch.nn.RMSNorm on parts of the packed product: 8 heads of queries, 2 of keys, 2 of values.
TEST_CASE("norms of core's own layers keep the packed product that keys are a part of") {
  Job job = gpt_job("1x8-h100");
  job.model.learned_positions = 0;
  job.model.num_kv_heads = 2;
  job.profile.attention_backend = AttentionBackend::kLocal;
  const std::int64_t plain = kept_bytes(job);
  job.model.qk_norm = true;
  const std::int64_t head = job.model.head_dim * 2;
  CHECK(kept_bytes(job) - plain == kTokens * ((8 + 2 + 2) * head + 8 * head + (8 + 2) * 4));
}

// core/transformer/dot_product_attention.py takes a buffer to add to its products, which is never
// freed; core/tensor_parallel/layers.py gathers inputs of products into the same.
TEST_CASE("core's own attention holds two bytes for each pair of positions between steps") {
  Job job = gpt_job("1x8-h100");
  const auto buffer = [&](std::int64_t tp) {
    return state_bytes(job,
                       Plan{.tp = tp,
                            .pp = 2,
                            .micro_batch = 4,
                            .sequence_parallel = tp > 1,
                            .schedule = Schedule::k1F1B},
                       "sequence_gather_buffer");
  };
  CHECK(buffer(1) == 0);
  job.profile.attention_backend = AttentionBackend::kLocal;
  const std::int64_t pairs = std::int64_t{4} * 8 * 1024 * 1024;
  CHECK(buffer(1) == 2 * pairs);
  CHECK(buffer(2) == pairs);
  job.sequence_length = 64;  // 64 keys of 4 heads are fewer than 512: the gathered input is larger
  job.model.learned_positions = 64;
  CHECK(buffer(2) == 2 * 4 * 64 * 512);
}

// core_v0.16.1 core/optimizer/optimizer.py, _copy_model_grads_to_main_grads and zero_grad.
TEST_CASE("fp32 copies of gradients in fewer bits are there until the next step clears them") {
  const Job job = gpt_job("1x8-h100");
  const auto alive = [&](DType dtype, Phase phase) {
    const Plan plan{.micro_batch = 4, .precision = Precision::kFp16, .grad_dtype = dtype};
    const PlanPieces pieces = plan_pieces(job, plan);
    std::int64_t bytes = 0;
    for (const StateRow& row : pieces.stages.front().state.rows) {
      bytes +=
          row.is_alive(phase) && row.name == "optimizer.fp32_gradients" ? row.total_bytes() : 0;
    }
    return bytes;
  };
  const std::int64_t copies = 2 * state_bytes(job, Plan{.micro_batch = 4}, "parameters.dense");
  CHECK(alive(DType::kFp16, Phase::kOptimizer) == copies);
  CHECK(alive(DType::kFp16, Phase::kIdle) == copies);
  CHECK(alive(DType::kFp16, Phase::kForward) == 0);
  CHECK(alive(DType::kFp32, Phase::kIdle) == 0);
}

// core/tensor_parallel/layers.py: the gradient of the logits and the input of the output layer,
// whose graph holds what the stage received, with its gradient.
TEST_CASE("deferred gradients of the output layer hold logits of the first microbatches") {
  Job job = gpt_job("1x8-h100");
  job.profile.gradient_accumulation_fusion = true;
  const auto held = [&](std::int64_t limit, bool sequence_parallel, std::string_view name) {
    job.profile.deferred_embedding_wgrads = limit;
    return state_bytes(job,
                       Plan{.tp = 2,
                            .pp = 2,
                            .micro_batch = 4,
                            .sequence_parallel = sequence_parallel,
                            .schedule = Schedule::k1F1B},
                       name);
  };
  constexpr std::string_view kInputs = "head.deferred_wgrad_inputs";
  constexpr std::string_view kBuffers = "head.deferred_gather_buffers";
  const std::int64_t one = 2 * (kTokens * 50432 / 2 + 3 * kTokens * 512);  // V a multiple of 256
  CHECK(held(0, false, kInputs) == 0);
  CHECK(held(2, false, kInputs) == 2 * one);
  CHECK(held(1000, false, kInputs) == 3 * one);  // four microbatches of 4 sequences on dp 2
  CHECK(held(2, false, kBuffers) == 0);
  CHECK(held(2, true, kInputs) == 2 * (one - 3 * kTokens * 512));
  CHECK(held(2, true, kBuffers) == 2 * 2 * kTokens * 512);
  CHECK(held(1, true, kBuffers) == 2 * kTokens * 512);
}

// core_v0.16.1 core/tensor_parallel/random.py, CheckpointFunction: what core attention is given
// lies in storage of 6h (the packed product, of which v is a part) and 4h (q and k behind the
// rotary embedding); without a checkpoint cuDNN saves 6h in one layout and 4 bytes a head.
TEST_CASE("a checkpoint round core attention holds the packed product for a third of it") {
  Job job = gpt_job("1x8-h100");
  job.model.learned_positions = 0;
  const auto one = [&](std::int64_t micro_batch, bool recomputes) {
    Plan plan{.micro_batch = micro_batch};
    if (recomputes) {
      plan.recompute.granularity = RecomputeGranularity::kSelective;
      plan.recompute.modules.core_attn = true;
    }
    return layer_of(block_set(job, plan)).summary.kept_bytes;
  };
  CHECK(one(4, true) - one(4, false) == kTokens * (4 * 512 - 4 * 8));
  job.cluster.gpu.compute_capability = 80;  // FlashAttention saves a second output of a batch
  CHECK(one(1, true) - one(1, false) == kTokens / 4 * (4 * 512 - 4 * 8));
  CHECK(one(4, true) - one(4, false) == kTokens * (4 * 512 - 4 * 8 - 2 * 512));
  job.model.learned_positions = 1024;  // the three are parts of the packed product
  CHECK(one(4, true) - one(4, false) == kTokens * (-4 * 8 - 2 * 512));
}

TEST_CASE("fp8 training with core attention computed again keeps its output in fp8 alone") {
  Job job = gpt_job("1x8-h100");
  const auto kept = [&](bool recomputes) {
    Plan plan{.micro_batch = 4, .precision = Precision::kFp8};
    if (recomputes) {
      plan.recompute.granularity = RecomputeGranularity::kSelective;
      plan.recompute.modules.core_attn = true;
    }
    return layer_of(block_set(job, plan)).summary.kept_bytes;
  };
  CHECK(kept(false) - kept(true) == kTokens * (2 * 512 + 4 * 8));
}

// core_v0.16.1 core/transformer/attention.py:365-379, set_save_original_input.
TEST_CASE("but for delayed scaling the projection saves attention's own output, not one in fp8") {
  Job job = gpt_job("1x8-h100");
  Plan plan{.micro_batch = 4, .precision = Precision::kFp8};
  const auto kept = [&](Fp8Recipe recipe) {
    job.profile.fp8_recipe = recipe;
    return layer_of(block_set(job, plan)).summary.kept_bytes;
  };
  CHECK(kept(Fp8Recipe::kDelayed) - kept(Fp8Recipe::kTensorwise) == kTokens * 512);
  plan.recompute.granularity = RecomputeGranularity::kSelective;
  plan.recompute.modules.core_attn = true;  // 2 bytes an element for the projection alone
  CHECK(kept(Fp8Recipe::kTensorwise) - kept(Fp8Recipe::kDelayed) == kTokens * 512);
}

// core_v0.16.1 core/models/gpt/gpt_layer_specs.py: the norms before grouped-query attention and a
// dense FFN lie inside LayerNormLinear; those before latent attention and experts are modules.
TEST_CASE("recomputation of norms frees the output of those that stand alone and nothing else") {
  Job job = gpt_job("1x8-h100");
  Plan norms{.micro_batch = 4};
  norms.recompute.granularity = RecomputeGranularity::kSelective;
  norms.recompute.modules.layernorm = true;
  const auto freed = [&](BlockKind kind) {
    return kept_bytes(job, kind) - layer_of(block_set(job, norms), kind).summary.kept_bytes;
  };
  constexpr std::int64_t kOutput = kTokens * 512 * 2;
  CHECK(freed(BlockKind::kDenseLayer) == 0);
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  job.model.layers.back().is_moe = true;
  CHECK(freed(BlockKind::kDenseLayer) == 0);
  CHECK(freed(BlockKind::kMoeLayer) == kOutput);
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 128,
                   .kv_lora_rank = 64,
                   .qk_nope_head_dim = 64,
                   .qk_rope_head_dim = 32,
                   .v_head_dim = 64};
  CHECK(freed(BlockKind::kDenseLayer) == kOutput);
  CHECK(freed(BlockKind::kMoeLayer) == 2 * kOutput);
}

TEST_CASE("experts keep their activation before the routing probability scales it") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const std::int64_t plain = kept_bytes(job, BlockKind::kMoeLayer);
  job.model.gated_ffn = true;  // one more piece of the first product, nothing to scale apart
  const std::int64_t rows = 2 * kTokens;
  CHECK(kept_bytes(job, BlockKind::kMoeLayer) == plain);
  job.profile.swiglu = SwigluKind::kUnfused;
  CHECK(kept_bytes(job, BlockKind::kMoeLayer) == plain + 2 * rows * 2 * 1024);
}

std::int64_t alive_bytes(const BlockSet& blocks, Step step) {
  std::int64_t bytes = 0;
  for (const BlockRow& row : layer_of(blocks, BlockKind::kMoeLayer).rows) {
    bytes += row.born <= step && step <= row.dies ? row.bytes : 0;
  }
  return bytes;
}

// core/transformer/moe/experts.py, SequentialMLP: when the first of eight has the gradients of its
// weighted activation and of both factors, the others still have what their second products saved.
TEST_CASE("experts that take turns need gradients of one and keep what all saved") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const Plan plan{.micro_batch = 4};
  const BlockSet grouped = block_set(job, plan);
  job.profile.moe_grouped_gemm = false;
  const BlockSet turns = block_set(job, plan);
  constexpr std::int64_t kProduct = std::int64_t{2} * kTokens * 1024 * 2;
  constexpr std::int64_t kSent = std::int64_t{2} * kTokens * 512 * 2;
  const auto more = [&](Step step) {
    return alive_bytes(turns, step) - alive_bytes(grouped, step);
  };
  CHECK(layer_of(turns, BlockKind::kMoeLayer).summary.kept_bytes ==
        layer_of(grouped, BlockKind::kMoeLayer).summary.kept_bytes);
  CHECK(more(Step::kBackwardFc2) == -kProduct * 7 / 8);
  CHECK(more(Step::kBackwardActivation) == kProduct * (7 - 3 * 7) / 8);
  CHECK(more(Step::kForwardFc2) == kSent);
  job.model.moe.num_experts = 1;
  job.model.moe.topk = 1;
  const std::int64_t alone = alive_bytes(block_set(job, plan), Step::kBackwardActivation);
  job.profile.moe_grouped_gemm = true;
  CHECK(alive_bytes(block_set(job, plan), Step::kBackwardActivation) == alone);
}

// Of two microbatches, T tokens each: while experts run backward, the other microbatch has kept
// what attention keeps, 8 bytes of log-sum-exp a head, and has copied its tokens for their experts;
// while attention runs backward, its whole layer is kept.
TEST_CASE("two layers side by side hold another attention, its rows, and then another layer") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  job.profile.overlap_moe_expert_parallel_comm = true;
  const Plan plan = {.ep = 2, .micro_batch = 4};
  const BlockSet blocks = block_set(job, plan);
  const BlockMemory& layer = layer_of(blocks, BlockKind::kMoeLayer);
  const auto bytes_of = [&](std::string_view name) {
    const auto row = std::ranges::find(layer.rows, name, &BlockRow::name);
    return row == layer.rows.end() ? -1 : row->bytes;
  };
  const std::int64_t permuted = 2 * 512 * job.model.moe.topk * kTokens;
  CHECK(bytes_of("other.permuted_tokens") == permuted);
  CHECK(bytes_of("other.layer") == layer.summary.kept_bytes);
  std::int64_t in_experts = 0;
  for (const BlockRow& row : layer.rows) {
    in_experts += row.name.starts_with("experts.") && row.is_kept() ? row.bytes : 0;
  }
  CHECK(bytes_of("other.attention") + in_experts == bytes_of("other.layer"));
  CHECK(state_bytes(job, plan, "held_exchange") == permuted);
  job.profile.overlap_moe_expert_parallel_comm = false;
  CHECK(state_bytes(job, plan, "held_exchange") == 0);
}

// Transformer Engine v2.11 pytorch/module/fp8_padding.py: on average half of what can be missing to
// a multiple of 16 rows (mxfp8: 32) for each of 8 experts.
TEST_CASE("each expert pads its rows under fp8 to what the products want") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const auto rows = [&](std::int64_t sequence, std::string_view name) {
    job.sequence_length = sequence;
    const BlockSet blocks = block_set(job, {.micro_batch = 1, .precision = Precision::kFp8});
    return std::ranges::find(layer_of(blocks, BlockKind::kMoeLayer).rows, name, &BlockRow::name)
        ->elements;
  };
  CHECK(rows(1024, "experts.fc1_input") == (2 * 1024 + 8 * 15 / 2) * 512);
  CHECK(rows(1024, "experts.fc1_output") == (2 * 1024 + 8 * 15 / 2) * 1024);
  CHECK(rows(1024, "experts.sorted_tokens") == 2 * 1024 * 512);
  CHECK(rows(1024, "experts.received_gradient") == 2 * 1024 * 512);
  job.profile.fp8_recipe = Fp8Recipe::kMxfp8;
  CHECK(rows(1024, "experts.fc1_output") == (2 * 1024 + 8 * 31 / 2) * 1024);
  job.profile.moe_capacity_factor = 1;  // 100 / 8 * 2 = 25 rows each
  CHECK(rows(100, "experts.fc1_output") == 8 * 32 * 1024);
}

// core/transformer/moe/shared_experts.py:66-90: the router saves the same output of the norm.
TEST_CASE("shared experts save the norm's output in fp8 beside the router's for delayed scaling") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024, .shared_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const auto kept = [&](Fp8Recipe recipe) {
    job.profile.fp8_recipe = recipe;
    const BlockSet blocks = block_set(job, {.micro_batch = 4, .precision = Precision::kFp8});
    return layer_of(blocks, BlockKind::kMoeLayer).summary.kept_bytes;
  };
  CHECK(kept(Fp8Recipe::kDelayed) - kept(Fp8Recipe::kTensorwise) == 2 * kTokens * 512);
}

// core/transformer/moe/shared_experts.py:124-132: output * gate_score.
TEST_CASE("a gate on the shared experts keeps what it multiplies, one hidden state") {
  Job job = gpt_job("1x8-h200");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024, .shared_ffn = 1024};
  job.model.layers.assign(12, {.is_moe = true});
  const std::int64_t without = kept_bytes(job, BlockKind::kMoeLayer);
  job.model.moe.shared_gate = true;
  CHECK(kept_bytes(job, BlockKind::kMoeLayer) - without == 2 * 512 * kTokens);
}

// core/tensor_parallel/random.py, CheckpointWithoutOutput._recompute: output.copy_(again).
TEST_CASE("what a discarded output is computed again into lies beside it in the backward") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const auto alive = [&](bool RecomputeModules::*module, Step step) {
    Plan plan{.micro_batch = 4};
    if (module != nullptr) {
      plan.recompute.granularity = RecomputeGranularity::kSelective;
      plan.recompute.modules.*module = true;
    }
    return alive_bytes(block_set(job, plan), step);
  };
  CHECK(alive(&RecomputeModules::moe_act, Step::kBackwardFc2) -
            alive(nullptr, Step::kBackwardFc2) ==
        2 * kTokens * 1024 * 2);
  CHECK(alive(&RecomputeModules::layernorm, Step::kBackwardFfnNorm) -
            alive(nullptr, Step::kBackwardFfnNorm) ==
        kTokens * 512 * 2);
}

TEST_CASE("the all-gather dispatcher holds the tokens of all ranks in the buffer that stays") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const Plan plan{.ep = 4, .micro_batch = 4};
  CHECK(state_bytes(job, plan, "sequence_gather_buffer") == 0);
  job.profile.moe_dispatcher = MoeDispatcher::kAllGather;
  CHECK(state_bytes(job, plan, "sequence_gather_buffer") == 4 * kTokens * 512 * 2);
}

// token_dispatcher.py, token_combine: hidden_states.to(local_probs.dtype).
TEST_CASE("with routing probabilities in fp32 the all-gather dispatcher adds up in fp32") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const auto alive = [&](const Plan& plan, Step step) {
    std::int64_t bytes = 0;
    const BlockSet blocks = block_set(job, plan);
    for (const BlockRow& row : layer_of(blocks, BlockKind::kMoeLayer).rows) {
      bytes += row.born <= step && step <= row.dies ? row.bytes : 0;
    }
    return bytes;
  };
  const Plan plan{.ep = 4, .micro_batch = 4};
  for (const MoeDispatcher dispatcher : {MoeDispatcher::kAllToAll, MoeDispatcher::kAllGather}) {
    job.profile.moe_dispatcher = dispatcher;
    job.profile.moe_router_dtype = DType::kBf16;
    const std::int64_t forward = alive(plan, Step::kForwardCombine);
    const std::int64_t backward = alive(plan, Step::kBackwardCombine);
    const std::int64_t alone = alive(Plan{.micro_batch = 4}, Step::kForwardCombine);
    job.profile.moe_router_dtype = DType::kFp32;
    const bool adds = dispatcher == MoeDispatcher::kAllGather;
    const std::int64_t more = adds ? (4 + 1) * kTokens * 512 * 4 : 0;
    CHECK(alive(plan, Step::kForwardCombine) - forward == more);
    CHECK(alive(plan, Step::kBackwardCombine) - backward == more);
    CHECK(alive(Plan{.micro_batch = 4}, Step::kForwardCombine) == alone);
  }
}

TEST_CASE("workspaces of grouped products and of torch's handles are those of the run") {
  Job job = gpt_job("1x8-h100");
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  const Plan plan{.micro_batch = 4};
  constexpr std::int64_t kLarge = 32 << 20;
  CHECK(state_bytes(job, plan, "transformer_engine_workspace") == 5 * kLarge);
  job.profile.moe_grouped_gemm = false;
  CHECK(state_bytes(job, plan, "transformer_engine_workspace") == kLarge);
  CHECK(state_bytes(job, plan, "cublas_workspace") == 2 * kLarge);
  job.profile.torch_workspace_bytes = 1 << 20;
  CHECK(state_bytes(job, plan, "cublas_workspace") == 2 << 20);
}

// Four layers of DeepSeek-V3 held 2 MiB each from the first step on (data/measured/
// latent_two_gpus_h200.jsonl, mla-dense): cosines and sines in bf16, and their angles in fp32.
TEST_CASE("every layer of latent attention has tables of its rotary embedding") {
  Job job = gpt_job("1x8-h100");
  job.sequence_length = 4096;
  const Plan plan{.micro_batch = 4};
  CHECK(state_bytes(job, plan, "rotary_tables") == 0);
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 64,
                   .kv_lora_rank = 64,
                   .qk_nope_head_dim = 64,
                   .qk_rope_head_dim = 64,
                   .v_head_dim = 64};
  CHECK(state_bytes(job, plan, "rotary_tables") == (12 * 2) << 20);
  job.model.layers.resize(40);  // of the angles torch's cache has 32
  CHECK(state_bytes(job, plan, "rotary_tables") == (40 + 32) << 20);
}

// fused_adam.py: 4 bytes for each moment not in fp32 and for main parameters in fp16, of the rank's
// shard; bf16 moments go back one tensor at a time, the largest of which is the embedding.
TEST_CASE("an optimizer step copies state in fewer bits to fp32") {
  Job job = gpt_job("1x8-h100");
  Plan plan{.micro_batch = 4};
  plan.zero = 1;
  const StageState state = plan_pieces(job, plan).stages.front().state;
  const std::int64_t shard = (state.parameters + 7) / 8;
  const auto copied = [&](DType master, DType first, DType second) {
    plan.master_dtype = master;
    plan.exp_avg_dtype = first;
    plan.exp_avg_sq_dtype = second;
    return state_bytes(job, plan, "optimizer.widened_state");
  };
  using enum DType;
  CHECK(copied(kFp32, kFp32, kFp32) == 0);
  CHECK(copied(kBf16, kFp32, kFp32) == 0);  // the low half is taken as it is
  CHECK(copied(kBf16, kBf16, kFp32) == 4 * shard);
  CHECK(copied(kBf16, kBf16, kFp8) == 8 * shard);
  CHECK(copied(kFp16, kFp8, kFp8) == 12 * shard);
  CHECK(state_bytes(job, plan, "optimizer.cast_moment") == 0);
  copied(kBf16, kBf16, kBf16);
  CHECK(state_bytes(job, plan, "optimizer.cast_moment") == 2 * shard);
  plan.dp = 1;
  job.cluster.gpus_per_node = 1;
  CHECK(state_bytes(job, plan, "optimizer.cast_moment") == 2 * 50304 * 512);
}

TEST_CASE("on the meta device Megatron-FSDP never has the whole model") {
  Job job = gpt_job("1x8-h100");
  Plan plan{.micro_batch = 4};
  plan.zero = 3;
  const std::int64_t table = std::int64_t{50304} * 512;
  const std::int64_t whole = plan_pieces(job, plan).stages.front().state.parameters;
  CHECK(state_bytes(job, plan, "start_up.parameters") == 2 * whole);
  job.profile.init_model_with_meta_device = true;
  // The bucket of table, positions and final norm, and the table before it is copied.
  const std::int64_t ends = table + 1024 * 512 + 2 * 512;
  CHECK(state_bytes(job, plan, "start_up.parameters") == 2 * (ends + table));
  plan.zero = 2;
  CHECK(state_bytes(job, plan, "start_up.parameters") == 2 * table);
  plan.zero = 1;  // DistributedDataParallel's model has all its tensors: to_empty
  CHECK(state_bytes(job, plan, "start_up.parameters") == 2 * whole);
}

TEST_CASE("the data loader's attention mask is a byte for each pair, on the ends of the pipeline") {
  Job job = gpt_job("1x8-h100");
  const Plan plan{.pp = 4, .micro_batch = 4, .schedule = Schedule::k1F1B};
  CHECK(state_bytes(job, plan, "attention_mask") == 0);
  job.profile.attention_mask = true;
  CHECK(state_bytes(job, plan, "attention_mask") == 4 * 1024 * 1024);
}

// core/models/common/embeddings/rotary_pos_embedding.py: forward cuts what it caches.
TEST_CASE("a rank of context parallelism keeps the angles of its own positions") {
  Job job = gpt_job("1x8-h100");
  job.model.learned_positions = 0;
  const std::int64_t whole = state_bytes(job, {.micro_batch = 4}, "rotary_table");
  CHECK(whole == 1024 * 64 * 4);
  CHECK(state_bytes(job, {.cp = 4, .micro_batch = 4}, "rotary_table") == whole / 4);
}

// core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving: the output of
// a forward is sent behind the next backward, and the loss is not sent.
TEST_CASE("an interleaved schedule holds an input gradient and an output that is not sent yet") {
  Job job = gpt_job("1x8-h100");
  job.profile.overlap_p2p_comm = false;
  const Plan plan{.pp = 2, .vpp = 2, .micro_batch = 4};
  const auto held = [&](std::size_t stage) {
    const PlanPieces whole = plan_pieces(job, plan);
    return std::ranges::find(whole.stages[stage].state.rows, "pipeline.receive_buffers",
                             &StateRow::name)
        ->total_bytes();
  };
  CHECK(held(0) == 2 * kTokens * 512 * 2);
  CHECK(held(1) == kTokens * 512 * 2);
  job.profile.overlap_p2p_comm = true;
  CHECK(held(1) == 2 * kTokens * 512 * 2);
}

TEST_CASE("learned positions need no table of angles") {
  Job job = gpt_job("1x8-h100");
  const Plan plan{.micro_batch = 4};
  CHECK(state_bytes(job, plan, "rotary_table") == 0);
  job.model.learned_positions = 0;
  CHECK(state_bytes(job, plan, "rotary_table") == 1024 * 64 * 4);
}

}  // namespace
}  // namespace shardplan::megatron
